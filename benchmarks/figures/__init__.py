"""`python -m benchmarks figures`: one benchmark for every figure of the TensorBow evaluation, and for its Table 5.1.

`size=small` is a form of each figure for two CPU cores, with smaller models and data; `size=full` has models of the
same names, and the paper's data, epochs and targets, and is for a server with a GPU. Of the models only logistic
regression is known to be the paper's: its LeNet is 2.5 times as large, its ResNet-32 almost as large as ours (Table
5.1), and it states neither learning rates nor augmentation. The paper's TensorFlow is plain PyTorch here, which
takes turns with bow in one process. Every figure leaves a JSON file and a picture, and `figures.md` is made anew from
all JSON files that are in the folder.

References:
    Budea: TensorBow, supporting small-batch training in TensorFlow, 2019, chapter 5.
"""

import importlib

from benchmarks.figures.settings import Settings as Settings


def run(settings: Settings, command: str) -> int:
    """Measure the figures that were asked for; 1 where one of several could not be measured, else 0."""
    status: int = importlib.import_module("benchmarks.figures.program").run(settings, command)
    return status
