"""Ways to train every member on every fold; each imports only what it needs.

Member `s` of a fold starts with the weights of seed `s` and processes its rows in bow's order of seed `s`, except for
skorch, which has its own order.
"""

import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bow.seeds import derive_seed

Data = tuple[Tensor, Tensor]
Score = float | None


@dataclass(frozen=True)
class Task:
    """The training task; its data are in a file."""

    file: str  # inputs, targets, and by fold the row numbers for training and those held out
    outputs: int
    is_classes: bool
    batch_size: int
    epochs: int
    seeds: tuple[int, ...]  # one per member of every fold
    width: int = 64
    lr: float = 1e-3

    @property
    def loss(self) -> Any:
        return nn.functional.cross_entropy if self.is_classes else nn.functional.mse_loss


@functools.cache
def loaded(file: str) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
    found: tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]] = torch.load(file)
    return found


def network(inputs: int, width: int, outputs: int) -> nn.Module:
    """Create an MLP with two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
    )


def batches(rows: Tensor, seed: int, epochs: int, batch_size: int) -> Iterator[Tensor]:
    """Yield the row numbers of every batch, in the order of `bow.data.stream.SampleOrder`."""
    orders = []
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
        orders.append(rows[torch.randperm(len(rows), generator=generator)])
    yield from torch.split(torch.cat(orders), batch_size)


def fit(task: Task, rows: Tensor, seed: int, lr: float) -> nn.Module:
    """Train in plain PyTorch."""
    inputs, targets, _ = loaded(task.file)
    torch.manual_seed(seed)
    model, loss = network(inputs.shape[1], task.width, task.outputs), task.loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for chosen in batches(rows, seed, task.epochs, task.batch_size):
        optimizer.zero_grad()
        loss(model(inputs[chosen]), targets[chosen]).backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def score(model: nn.Module | None, task: Task, rows: Tensor) -> Score:
    """Return accuracy, or the explained variance, on some rows; None if there is no model."""
    if model is None:
        return None
    inputs, targets, _ = loaded(task.file)
    outputs, targets = model(inputs[rows]), targets[rows]
    if task.is_classes:
        return float((outputs.argmax(1) == targets).double().mean())
    return 1 - float((outputs - targets).double().square().mean() / targets.double().var(correction=0))


def one_member(task: Task, fold: int, seed: int) -> Score:
    """Train a member; the data are loaded once in each process."""
    train, held_out = loaded(task.file)[2][fold]
    return score(fit(task, train, seed, task.lr), task, held_out)


def one_fold(task: Task, fold: int) -> list[Score]:
    """Train the members of a fold one after another."""
    return [one_member(task, fold, seed) for seed in task.seeds]


def loop(task: Task) -> list[Score]:
    """Train one member after another."""
    return [found for fold in range(len(loaded(task.file)[2])) for found in one_fold(task, fold)]


def on_one_thread(train: Callable[..., Any], *arguments: Any) -> Any:
    """Train in a process of `joblib`."""
    torch.set_num_threads(1)
    return train(*arguments)


def processes(task: Task) -> list[Score]:
    """Single-threaded processes, one per core; each imports torch and trains one member after another."""
    from joblib import Parallel, delayed

    folds = range(len(loaded(task.file)[2]))
    work = [delayed(on_one_thread)(one_member, task, fold, seed) for fold in folds for seed in task.seeds]
    return list(Parallel(n_jobs=len(os.sched_getaffinity(0)), backend="loky")(work))


def process_per_fold(task: Task) -> list[Score]:
    """A single-threaded process for each fold, all concurrently; each imports torch."""
    from joblib import Parallel, delayed

    folds = range(len(loaded(task.file)[2]))
    work = (delayed(on_one_thread)(one_fold, task, fold) for fold in folds)
    found = Parallel(n_jobs=len(folds), backend="loky")(work)
    return [each for own in found for each in own]


def skorch(task: Task) -> list[Score]:
    """One member after another with skorch, whose batches have their own order."""
    from skorch import NeuralNetClassifier, NeuralNetRegressor

    kind = NeuralNetClassifier if task.is_classes else NeuralNetRegressor
    inputs, targets, folds = loaded(task.file)
    found = []
    for train, held_out in folds:
        for seed in task.seeds:
            torch.manual_seed(seed)
            net = kind(
                network(inputs.shape[1], task.width, task.outputs),
                criterion=nn.CrossEntropyLoss if task.is_classes else nn.MSELoss,
                optimizer=torch.optim.AdamW,
                lr=task.lr,
                max_epochs=task.epochs,
                batch_size=task.batch_size,
                iterator_train__shuffle=True,
                train_split=None,
                callbacks="disable",
                verbose=0,
            )
            net.fit(inputs[train].numpy(), targets[train].numpy())
            found.append(score(net.module_.eval(), task, held_out))
    return found


def bow(task: Task) -> list[Score]:
    """`bow.cross_validate` with its defaults."""
    import bow

    inputs, targets, folds = loaded(task.file)
    with tempfile.TemporaryDirectory() as folder:
        result = bow.cross_validate(
            functools.partial(network, inputs.shape[1], task.width, task.outputs),
            (inputs, targets),
            task.loss,
            folds=folds,
            seeds=task.seeds,
            epochs=task.epochs,
            batch_size=task.batch_size,
            optimizer=functools.partial(torch.optim.AdamW, lr=task.lr),
            run=bow.Run(folder, progress=False),
        )
    held_out = [rows for _, rows in folds for _ in task.seeds]
    return [score(member.model, task, rows) for member, rows in zip(result.members, held_out, strict=True)]


WAYS = {
    "loop": loop,
    "processes": processes,
    "process per fold": process_per_fold,
    "skorch": skorch,
    "bow": bow,
}


def train(name: str, task: Task) -> Sequence[Score]:
    """Return the scores of a contestant by fold and seed; called in its process."""
    return WAYS[name](task)
