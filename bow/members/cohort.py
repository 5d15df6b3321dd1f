"""Members whose models have the same shapes: the matrix that they share, and the rounds that they run together."""

import math
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from bow.data import BatchStream, Indexed
from bow.devices import StreamDevice, available_cores
from bow.engines import Batch, Batches, LearningConfig, Loop, Turns, make_engine
from bow.engines.captured import shape_of
from bow.engines.thread_pool import num_threads
from bow.errors import ModelError
from bow.graph.refusal import changed, python_state
from bow.members.config import SweepConfig
from bow.members.feed import MemberFeed, SharedSamples
from bow.members.group import MemberGroup
from bow.members.member import Progress
from bow.replicas import prepare_template
from bow.seeds import derive_seed
from bow.sync import Members
from bow.training.checks import make_scheduler
from bow.training.evaluation import Evaluator
from bow.training.metrics import mean_of


class Cohort:
    """Rows on which members of one kind train side by side."""

    def __init__(
        self,
        config: SweepConfig,
        like: Progress,
        rows: int,
        device: torch.device | StreamDevice,
        samples: SharedSamples,
        rounds: int | None,  # of all of them together, by which it is decided whether compiling pays
        is_reused: bool = False,  # whether rows will be given to others
    ) -> None:
        train, variant = config.train, like.member.variant
        self._config = config
        self._samples = samples
        streams = device if isinstance(device, StreamDevice) else None
        self.device = device.torch_device if isinstance(device, StreamDevice) else device
        template = prepare_template(config.of(variant).model, variant.seed)
        self.group = MemberGroup(template, config.of(variant).optimizer, rows, self.device)
        self._python = python_state(self.group.learners[0].module)
        task = LearningConfig(
            train.step_or_loss,
            clip_norm=train.clip_norm,
            batch_size=config.usual_batches.get(like.kind),
            rounds=rounds,
            engine=train.engine,
        )
        name = "graph" if train.engine.name == "auto" else train.engine.name
        self.loop: Loop = make_engine(name, self.group, Members(), task, streams)
        self.feed = MemberFeed(rows)
        self.rows: list[Progress | None] = [None] * rows
        self.num_rounds = 0  # that it has run
        self._task = task
        self._ends: list[float] = [math.inf] * rows  # rounds at which a row's member has its steps
        self._is_reused = is_reused
        self._is_checked = False
        self._shown: list[nn.Module] = []  # models in which members are evaluated at the same time

    def place(self, row: int, progress: Progress) -> None:
        train, variant, group = self._config.train, progress.member.variant, self.group
        model = prepare_template(self._config.of(variant).model, variant.seed)
        group.place(row, model, self._config.of(variant).optimizer, variant.seed)
        if progress.state is not None:
            self._samples.dealt()  # it goes on somewhere else than those that begin
        stream = self._samples.open(self._config, variant)
        rounds = train.steps or stream.rounds_left(1)
        self.feed.streams[row] = stream
        if progress.state is not None:
            self._samples.dealt()
        optimizer = group.optimizer.by_learner[row]
        factory = self._config.of(variant).scheduler_factory
        progress.scheduler = make_scheduler(factory, optimizer, rounds)
        if progress.state is not None:
            self._restore(row, progress)
        self.rows[row] = progress
        self._ends[row] = math.inf if train.steps is None else train.steps

    def state_of(self, row: int) -> dict[str, Any]:
        progress = self._on(row)
        return {
            **self.group.state_of(row),
            "stream": self._stream_of(row).state_dict(),
            "scheduler": None if progress.scheduler is None else progress.scheduler.state_dict(),
            "losses": torch.cat(progress.losses).cpu() if progress.losses else torch.empty(0),
        }

    def take(self, row: int) -> Progress:
        progress = self._on(row)
        self.rows[row] = None
        self.feed.streams[row] = None
        progress.scheduler, progress.losses = None, []
        return progress

    def _on(self, row: int) -> Progress:
        progress = self.rows[row]
        assert progress is not None
        return progress

    def _stream_of(self, row: int) -> BatchStream:
        stream = self.feed.streams[row]
        assert stream is not None
        return stream

    def rounds(self, most: int) -> Iterator[tuple[int, Progress, bool, int | None]]:
        """Run a round or more, up to an epoch's end; by row whether it is finite and, if it ran, epochs completed."""
        self._samples.dealt()
        for row, progress in enumerate(self.rows):
            if progress is not None:
                self.group.own_rounds[row] = progress.round
        most = self._most_turns(most)
        turns = self.feed.turns(most) if most > 1 else []
        seeds, begun = self.group.seeds, self.group.own_rounds
        taken = self.loop.turns(turns, lambda row, n: derive_seed(seeds[row], begun[row] + n, 0)) if turns else None
        return self._round() if taken is None else self._taken(turns, taken)

    def _most_turns(self, most: int) -> int:
        """How many batches every member can take without anybody looking at it in between."""
        halving = self._config.halving
        if most < 2 or self._config.search is not None or (halving and halving.asynchronous):
            return 1  # what is begun or goes on next may depend on who has ended by now
        for row, progress in enumerate(self.rows):
            if progress is not None:
                if self._config.of(progress.member.variant).is_per_round:
                    return 1
                most = int(min(most, self._ends[row] - progress.round))
        return int(min(most, self.feed.most_turns(), self.loop.most_turns))

    def _taken(
        self, turns: Sequence[Indexed | None], taken: Sequence[Turns | None]
    ) -> Iterator[tuple[int, Progress, bool, int]]:
        counts = [0 if each is None else len(each.losses) for each in taken]
        self.num_rounds += max(counts)
        epochs = self.feed.skip(counts)
        for row, (progress, batches, own) in enumerate(zip(list(self.rows), turns, taken, strict=True)):
            if progress is not None and batches is not None and own is not None:
                progress.round += counts[row]
                progress.samples += counts[row] * batches.indices.shape[1]
                progress.losses.append(own.losses)
                yield row, progress, own.finite, epochs[row]

    def _round(self) -> Iterator[tuple[int, Progress, bool, int | None]]:
        batches, dealt = self.feed.deal()
        self.num_rounds += 1
        outcomes = [self.loop.round(part) for part in self._parts(batches)]
        if not self._is_checked:
            self._check_python_state()
        for row, progress in enumerate(list(self.rows)):
            if progress is None:
                continue
            each = dealt[row]
            if each is None:
                yield row, progress, True, None
                continue
            outcome = next(outcome for outcome in outcomes if outcome.active[row])
            progress.round += 1
            progress.samples += each[0]
            progress.losses.append(outcome.losses[row : row + 1])
            yield row, progress, outcome.healthy[row], each[1]

    def _parts(self, batches: Sequence[Batch | None]) -> list[Batches]:
        """Batches of one shape at a time: an engine that cannot take one of them runs none of its round as usual."""
        shapes = [None if batch is None else shape_of(batch) for batch in batches]
        kinds = dict.fromkeys(shape for shape in shapes if shape is not None)
        return [[b if s == kind else None for b, s in zip(batches, shapes, strict=True)] for kind in kinds]

    def is_over(self, row: int, progress: Progress) -> bool:
        return progress.round >= self._ends[row] or self._stream_of(row).rounds_left(1) == 0

    def epochs(self, row: int) -> float:
        """Passes of a row's member over its data, where their length is known."""
        progress, per_epoch = self._on(row), self._stream_of(row).samples_per_epoch
        return round(progress.samples / per_epoch, 4) if per_epoch else float(progress.epoch)

    def mean_loss(self, progress: Progress) -> float:
        """Over the rounds since the last epoch's end, which are forgotten."""
        losses, progress.losses = progress.losses, []
        return mean_of([torch.cat(losses)]) if losses else math.nan

    def last_loss(self, progress: Progress) -> float:
        return float(progress.losses[-1][-1]) if isinstance(progress.scheduler, ReduceLROnPlateau) else math.nan

    def evaluate(self, rows: Sequence[tuple[int, Evaluator | None]]) -> list[dict[str, float]]:
        """The values of the members on these rows, whose best are kept; several at once where data are in memory."""
        self.loop.catch_up()
        places = min(len(rows), len(available_cores())) if self.device.type == "cpu" else 1
        if places == 1 or any(each is None or not each.is_in_memory for _, each in rows):
            return [{} if each is None else self._evaluate(row, each) for row, each in rows]
        while len(self._shown) < places:
            self._shown.append(self.group.new_central())
        free = queue.SimpleQueue[nn.Module]()
        for model in self._shown:
            free.put(model)

        def evaluate(row: int, evaluator: Evaluator) -> dict[str, float]:
            model = free.get()
            try:
                with num_threads(1):  # a thread has its own number
                    return self._evaluate(row, evaluator.copy(), model)
            finally:
                free.put(model)

        with ThreadPoolExecutor(places) as pool:
            return list(pool.map(evaluate, *zip(*rows, strict=True)))

    def _evaluate(self, row: int, evaluate: Evaluator, model: nn.Module | None = None) -> dict[str, float]:
        progress, model = self._on(row), self.group.central_of(row, model)
        values, best = evaluate(model, self.device, self._task), self._config.best_of(progress)
        best.look(values, progress.round, self.epochs(row), model)
        progress.best = best.state
        return values

    def export(self, row: int) -> None:
        progress = self._on(row)
        progress.member.model = self.group.export_of(row)
        progress.member.best = self._config.best_of(progress).model(progress.member.model, progress.round)

    def _check_python_state(self) -> None:
        """Behind the first round: what a module keeps in Python cannot be given to the next member of a row."""
        self._is_checked = True
        names = changed(self._python, python_state(self.group.learners[0].module)) if self.rows[0] else []
        if names and self._is_reused:
            raise ModelError(
                f"the model changes {names[0]} in Python while it trains, which the next member on its row would find "
                f"so; keep it in a buffer, or use at_once={self._config.num_members} without halving"
            )

    def _restore(self, row: int, progress: Progress) -> None:
        state = progress.state
        assert state is not None
        self.group.load_state_of(row, dict(state))
        self._stream_of(row).load_state_dict(state["stream"])
        if progress.scheduler is not None:
            progress.scheduler.load_state_dict(state["scheduler"])
        losses: Tensor = state["losses"]
        progress.losses = [losses.to(self.device)] if len(losses) else []
        progress.state = None
