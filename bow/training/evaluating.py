"""`bow.evaluate`: loss and metrics of a model on data, outside a training."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from bow.engines import Engine, LearningConfig, Loss, Step
from bow.errors import BowError, ModelError, SettingError, reason
from bow.training.checks import check_objects, check_step
from bow.training.evaluation import Evaluator
from bow.training.metrics import Accuracy, Metric, as_metrics, check_names


def evaluate(
    model: nn.Module,
    data: Any,
    metrics: Sequence[Metric] = (Accuracy(),),
    *,
    loss: Loss | None = None,
    step: Step | None = None,
    batch_size: int | None = None,
    precision: str | None = None,
) -> dict[str, float]:
    """Loss and metrics of a model on data, as a training computes them after every epoch.

    Args:
        model: in evaluation mode meanwhile; where it is, batches go.
        data: as for `bow.train`; in order, once.
        metrics: what it is measured by; those that do not apply are left out.
        loss: `loss(outputs, targets) -> scalar`, a mean over samples; without it there are metrics alone, and of a
            model that computes its loss itself, its own.
        step: instead: what `step(model, batch)` returns.
        batch_size: samples of a batch; None: 256, or the `DataLoader`'s own.
        precision: `"bfloat16"` for autocast; None is the model's own dtype.

    Returns:
        Values by name.

    Raises:
        BowError: an argument that cannot be carried out; the message names the value and the remedy.

    Example:
        >>> inputs = torch.eye(3)
        >>> evaluate(nn.Identity(), (inputs, torch.tensor([0, 1, 0])))
        {'accuracy': 0.6666666666666666}
    """
    if not isinstance(model, nn.Module):
        raise SettingError(f"model must be a module, got {type(model).__name__}; give result.model")
    metrics = as_metrics(metrics)
    check_objects("metrics", metrics, Metric)
    check_names("a metric", [getattr(metric, "name", None) for metric in metrics])
    task = LearningConfig(check_step(loss, step), engine=Engine(precision=precision))
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    modes = {module: module.training for module in model.modules()}
    evaluator = Evaluator(data, loss, metrics, batch_size)
    model.eval()
    try:
        return evaluator(model, device, task)
    except BowError:
        raise
    except Exception as error:
        raise ModelError(
            f"the model, its loss or a metric fails on the data ({type(error).__name__}: {reason(error)}); check that "
            "they fit"
        ) from error
    finally:
        for module, training in modes.items():
            module.training = training
