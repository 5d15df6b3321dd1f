"""Table 5.1: the models and the data sets, and the operators of a training step."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.contestants import SGD
from benchmarks.figures.convergence import School
from benchmarks.figures.forms import RESNET32, Form, Lesson
from benchmarks.workloads import WORKLOADS, Workload
from bow.graph import capture

BATCH_SIZE = 16  # Of the step that is captured; the number of operators does not depend on it

FLOAT_BYTES = 4

# The paper's: the row of Table 5.1, our model, its data set, and the training images in that
MODELS = (
    ("Logistic regression", WORKLOADS["logistic_regression"], "MNIST", 60_000),
    ("LeNet", WORKLOADS["lenet"], "MNIST", 60_000),
    ("ResNet-32", RESNET32, "CIFAR-10", 50_000),
)

FIXED = (
    "a data set is its training images as float32, in units of 2^20 bytes, and a model its parameters as float32, in "
    "units of 10^6 bytes. By this the paper's number for logistic regression comes out exactly, and that for MNIST but "
    "for 0.01 (179.44 is 179.45 there); its number for CIFAR-10 comes out if the test images count as well. Its LeNet "
    "is another one than ours, and its ResNet-32 is not quite ours, in either unit. Operators are those of bow's step "
    "graph: ATen operators of forward, backward and one update by SGD with momentum"
)


def count_parameters(module: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in module.parameters())


def model_mb(parameters: int) -> float:
    """The size of a model with so many parameters, in the unit of Table 5.1."""
    return round(parameters * FLOAT_BYTES / 1e6, 4)


def characteristics(form: Form, school: School) -> list[dict[str, Any]]:
    """A row for each of the paper's models, and for what this form trains in their place."""
    rows = [_paper_row(*model) for model in MODELS]
    known = {row["model"]: row["data"] for row in rows}
    lessons = [lesson for lesson in (form.lenet_lesson, form.resnet_lesson) if known.get(lesson.model) != lesson.data]
    return [*rows, *(_lesson_row(lesson, school) for lesson in dict.fromkeys(lessons))]


def _paper_row(name: str, workload: Workload, data: str, images: int) -> dict[str, Any]:
    batch = workload.make_data(BATCH_SIZE)
    return _row(name, data, images * math.prod(batch[0].shape[1:]), workload.build(), batch)


def _lesson_row(lesson: Lesson, school: School) -> dict[str, Any]:
    inputs, targets = school.data(lesson).train
    batch = inputs[:BATCH_SIZE], targets[:BATCH_SIZE]
    return _row(lesson.model, lesson.data, inputs.numel(), lesson.build(), batch)


def _row(
    model: str, data: str, values: int, module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]
) -> dict[str, Any]:
    graph = capture(module, batch, cross_entropy, optimizer=SGD)
    parameters = count_parameters(module)
    return {
        "model": model,
        "data": data,
        "data_mb": round(values * FLOAT_BYTES / 2**20, 2),
        "model_mb": model_mb(parameters),
        "parameters": parameters,
        "operators": len(graph.operators),
    }
