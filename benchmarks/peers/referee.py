"""The clock and the evaluator, common to all contestants."""

import contextlib
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from benchmarks.peers.training import DIVERGED, EPOCHS, REACHED, TIME, Look
from bow.data import evaluation_batches
from bow.training import Accuracy

Predict = Callable[[Tensor], Tensor]  # from images to class scores


class Referee:
    """Measures time, evaluates, and determines when a training ends."""

    def __init__(
        self,
        validation: tuple[Tensor, Tensor],
        every: float,
        target: float,
        most_samples: float,
        limit_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._validation = validation
        self._every = every
        self._target = target
        self._most_samples = most_samples
        self._limit_s = limit_s
        self._clock = clock
        self._began = 0.0
        self._seconds = 0.0
        self._next = every
        self.looks: list[Look] = []
        self.ending: str | None = None

    def start(self) -> None:
        self._seconds, self._began = 0.0, self._now()

    def pause(self) -> None:
        self._seconds += self._now() - self._began

    def resume(self) -> None:
        self._began = self._now()

    def is_due(self, samples: int) -> bool:
        """Whether an evaluation is due after this many samples."""
        return samples >= self._next

    def ends(self, predict: Predict, samples: int) -> bool:
        """Evaluate if it is due, with the clock stopped; returns whether the training should end."""
        return self.is_due(samples) and self.look(predict, samples)

    def look(self, predict: Predict, samples: int) -> bool:
        """Evaluate with the clock stopped; returns whether the training should end."""
        self.pause()
        watch = Watch()
        with evaluating(predict), torch.no_grad():
            for images, labels in evaluation_batches(self._validation):
                watch.update(predict(images), labels)
        is_over = self.note(samples, watch.compute(), watch.is_finite)
        self.resume()
        return is_over

    def skip(self, samples: int) -> bool:
        """Leave a due evaluation to another process; returns False."""
        self._next = self._every * (samples // self._every + 1)
        return False

    def note(self, samples: int, accuracy: float, is_finite: bool) -> bool:
        """Record an evaluation while the clock is stopped; returns whether the training should end."""
        self.looks.append(Look(self._seconds, samples, accuracy))
        self._next = self._every * (samples // self._every + 1)
        if not is_finite:
            self.ending = DIVERGED
        elif accuracy >= self._target:
            self.ending = REACHED
        elif samples >= self._most_samples:
            self.ending = EPOCHS
        elif self._seconds >= self._limit_s:
            self.ending = TIME
        return self.ending is not None

    def _now(self) -> float:
        if self._validation[0].is_cuda:
            torch.cuda.synchronize()  # include pending work of the device
        return self._clock()


@contextlib.contextmanager
def evaluating(predict: Predict) -> Iterator[None]:
    """Set a module to evaluation mode, and restore its mode."""
    modes = {module: module.training for module in predict.modules()} if isinstance(predict, nn.Module) else {}
    for module in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


class Watch(Accuracy):
    """Accuracy, and whether all outputs were finite."""

    def reset(self) -> None:
        super().reset()
        self.is_finite = True

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        super().update(outputs, targets)
        self.is_finite = self.is_finite and bool(outputs.isfinite().all())
