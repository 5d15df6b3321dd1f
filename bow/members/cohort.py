"""Cohort: members whose models have the same shapes share a weight matrix and run rounds together."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.data import Subset

from bow.data import Batch, BatchStream, batch_of, open_stream
from bow.data.opening import LoaderStream
from bow.data.stream import Indexed, TensorStream
from bow.devices import StreamDevice, available_cores, cuda_device, num_threads
from bow.engines import LearningConfig, Loop, Outcome, Turns, make_engine
from bow.engines.captured import shape_of
from bow.errors import ModelError, warn_user
from bow.graph.refusal import PythonState, changed, python_state
from bow.members.config import SweepConfig
from bow.members.group import MemberGroup
from bow.members.member import Member, Progress, Variant
from bow.members.saving import THREADS
from bow.replicas import prepare_template
from bow.seeds import derive_seed
from bow.sync import Members
from bow.training.batches import RoundBatches
from bow.training.checks import changes_told, make_scheduler
from bow.training.epoch import TaskValues
from bow.training.evaluation import EVALUATION, Evaluator, NotFinite, own_numbers
from bow.training.replicas_state import refusing_damage

if TYPE_CHECKING:
    from bow.engines.graph import ReadyTurns


class MemberFeed:
    """Deal batches to the members on the rows, for one round or for turns of several rounds."""

    def __init__(self, rows: int) -> None:
        self.streams: list[BatchStream | None] = [None] * rows  # None: the row is idle

    def most_turns(self) -> float:
        """Return how many batches a turn may have without passing an epoch's end; 0: run rounds."""
        streams = [stream for stream in self.streams if stream is not None]
        if not all(isinstance(stream, TensorStream) and not stream.resides for stream in streams):
            return 0
        return min(stream.full_batches_in_epoch() for stream in streams if isinstance(stream, TensorStream))

    def turns(self, count: int) -> list[Indexed | None]:
        return [
            Indexed(stream.samples, stream.coming(count).view(count, -1)) if isinstance(stream, TensorStream) else None
            for stream in self.streams
        ]

    def skip(self, counts: Sequence[int]) -> list[int]:
        """Advance each row's stream by this many batches; return the epochs completed, by row."""
        most: dict[BatchStream | None, int] = {}  # a shared stream advances once
        for stream, count in zip(self.streams, counts, strict=True):
            most[stream] = max(count, most.get(stream, 0))
        epochs = {stream: stream.skip(count) for stream, count in most.items() if isinstance(stream, TensorStream)}
        return [epochs.get(stream, 0) for stream in self.streams]  # type: ignore[call-overload]

    def deal(self) -> tuple[list[Batch | None], Sequence[tuple[int, int] | None]]:
        """Return batches, and samples and completed epochs, by row; None: idle, or out of batches."""
        batches: list[Any] = []
        dealt: list[tuple[int, int] | None] = []
        shared: dict[int, Any] = {}  # members that share a stream share its batch
        for stream in self.streams:
            is_first = stream is not None and id(stream) not in shared
            if stream is not None and is_first:
                if isinstance(stream, LoaderStream):
                    stream.go_on()  # other members may be in another epoch of the same data set
                shared[id(stream)] = stream.deal(1)
            if (deal := shared.get(id(stream))) is None:
                batches.append(None)
                dealt.append(None)
            else:
                batch = batch_of(deal.batches, 0)
                batches.append(batch if is_first else tree_map_only(Tensor, Tensor.clone, batch))  # as steps may write
                dealt.append((deal.num_samples, deal.epochs))
        return batches, dealt


class SharedSamples:
    """Open streams over data loaded once; with `batches="shared"`, members that start together share a stream."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._first: TensorStream | None = None
        self._beginning: dict[Any, BatchStream] = {}  # streams not yet read from

    def open(self, config: SweepConfig, variant: Variant) -> BatchStream:
        if config.batches == "own":
            return self._open(config, variant)
        key = (id(variant.train_on), config.of(variant).batch_size)
        if key not in self._beginning:
            self._beginning[key] = self._open(config, variant)
        return self._beginning[key]

    def dealt(self) -> None:
        self._beginning.clear()

    def _open(self, config: SweepConfig, variant: Variant) -> BatchStream:
        settings, data = config.of(variant).stream_settings, self._data
        if config.batches == "shared":
            settings["seed"] = config.train.seed
        stream = open_stream(data, **settings)
        if variant.train_on is not None:
            among = torch.as_tensor(variant.train_on)
            if isinstance(stream, TensorStream):
                stream = stream.among(among, settings["epochs"] if settings["steps"] is None else None)
            else:
                return open_stream(Subset(data, among.tolist()), **settings)
        if isinstance(stream, TensorStream):
            self._first = self._first or stream
            stream.samples = self._first.samples
        return stream


MOST_ROUNDS = 1000
TURNS_S = 0.1  # longest time (s) between two checks for signals and progress output

# Row, member, whether its values are finite and, if it ran, epochs completed.
RowOutcome: TypeAlias = tuple[int, Progress, bool, int | None]

# Validation values by name, and the first one of a batch that was not finite.
Evaluated: TypeAlias = tuple[dict[str, float], NotFinite | None]


class Cohort:
    """Rows on which members of one kind train side by side."""

    def __init__(
        self,
        config: SweepConfig,
        like: Progress,
        rows: int,
        device: torch.device | StreamDevice,
        samples: SharedSamples,
        rounds: int | None,  # of all members together, to decide whether compiling pays off
        is_reused: bool = False,  # whether rows will be reused by other members
    ) -> None:
        train, variant = config.train, like.member.variant
        self.kind = like.kind
        self._config = config
        self._samples = samples
        streams = device if isinstance(device, StreamDevice) else None
        self.device = device.torch_device if isinstance(device, StreamDevice) else device
        if self.device.type == "cuda" and streams is None:
            streams = cuda_device(self.device)
        self.where = device
        template = prepare_template(config.of(variant).model, variant.seed)
        self.group = MemberGroup(template, config.of(variant).optimizer, rows, self.device, train.engine.memory_format)
        task = LearningConfig(
            train.step_or_loss,
            clip_norm=train.clip_norm,
            batch_size=config.usual_batches.get(like.kind),
            rounds=rounds,
            engine=train.engine,
        )
        name = config.engine_name
        self.loop: Loop = make_engine(name, self.group, Members(), task, streams)
        self.feed = MemberFeed(rows)
        self._round_batches = RoundBatches(self.group, self.loop, streams, name)
        self.rows: list[Progress | None] = [None] * rows
        self.trained: list[Member] = []  # the last ones on the rows
        self.num_rounds = 0  # run so far
        self.turn_s = math.inf  # seconds of a member's turn, as last measured
        self._task = task
        # Prepared or started by `begin`.
        self._turns: Sequence[Indexed | None] = []
        self._dealt: Sequence[tuple[int, int] | None] = []
        self._issued: list[Outcome] = []
        self._ends: list[float] = [math.inf] * rows  # round at which a row's member has all its steps
        self._is_reused = is_reused
        self._is_checked = False
        self._python: PythonState = {}  # before the first round
        self._looks = True  # for changes by a later round that are not saved
        self.draws = True  # whether evaluation draws random numbers, of generators that all threads share
        self._shown: list[nn.Module] = []  # models that are free for evaluating a member

    @property
    def num_training(self) -> int:
        return len(self.rows) - self.rows.count(None)

    def place(self, progress: Progress) -> None:
        row = self.rows.index(None)
        train, variant, group = self._config.train, progress.member.variant, self.group
        model = prepare_template(self._config.of(variant).model, variant.seed)
        group.place(row, model, self._config.of(variant).optimizer, variant.seed)
        if progress.state is not None:
            self._samples.dealt()  # it resumes at another position than new members
        stream = self._samples.open(self._config, variant)
        rounds = train.steps or stream.rounds_left(1)
        self.feed.streams[row] = stream
        factory = self._config.of(variant).scheduler_factory
        progress.scheduler = make_scheduler(factory, group.optimizer.by_learner[row], rounds)
        self.rows[row] = progress
        if progress.state is not None:
            self._samples.dealt()
            self._restore(row, progress)
        self._ends[row] = math.inf if train.steps is None else train.steps

    def state_of(self, row: int) -> dict[str, Any]:
        progress = self._on(row)
        return {
            **self.group.state_of(row),
            "stream": self._stream_of(row).state_dict(),
            "scheduler": None if progress.scheduler is None else progress.scheduler.state_dict(),
            "losses": progress.losses.table,
        }

    def take(self, row: int) -> Progress:
        progress = self._on(row)
        self.rows[row] = None
        self.feed.streams[row] = None
        progress.scheduler, progress.losses = None, TaskValues()
        return progress

    def _on(self, row: int) -> Progress:
        progress = self.rows[row]
        assert progress is not None
        return progress

    def _stream_of(self, row: int) -> BatchStream:
        stream = self.feed.streams[row]
        assert stream is not None
        return stream

    def rounds_left(self) -> float:
        return max(self._rounds_left(row) for row, progress in enumerate(self.rows) if progress is not None)

    def _rounds_left(self, row: int) -> float:
        left = self._stream_of(row).rounds_left(1)
        return min(self._ends[row] - self._on(row).round, math.inf if left is None else left)

    def most_turns(self) -> int:
        """Return the number of batches that every member can run before its outcome is needed; 0: run a round."""
        most = min(self.feed.most_turns(), self.loop.most_turns)
        for row, progress in enumerate(self.rows):
            if progress is not None:
                is_per_round = self._config.of(progress.member.variant).is_per_round
                most = min(most, 1 if is_per_round else self._ends[row] - progress.round)
        return int(most)

    def begin(self, turns: int) -> "ReadyTurns | None":
        """Prepare `turns` batches of every member, for `run_with`; None: started a round instead."""
        self._samples.dealt()
        for row, progress in enumerate(self.rows):
            if progress is not None:
                self.group.own_rounds[row] = progress.round
        if turns > 0:
            self._turns, seeds, begun = self.feed.turns(turns), self.group.seeds, self.group.own_rounds
            ready = self.loop.turns(self._turns, lambda row, turn: derive_seed(seeds[row], begun[row] + turn, 0))
            if ready is not None:
                return ready
        batches, self._dealt = self.feed.deal()
        module = self.group.learners[0].module
        if not self._is_checked:
            self._python = python_state(module)
        looks = self._looks and self.num_rounds > 0 and self.rows[0] is not None
        self._looks = self._looks and not looks
        self.num_rounds += 1
        with changes_told(module, self._warn_of) if looks else contextlib.nullcontext():
            self._issued = [self.loop.round(self._round_batches.prepare(part)) for part in self._parts(batches)]
        return None

    def outcomes(self, ready: "ReadyTurns | None") -> Iterator[RowOutcome]:
        """Yield the outcomes of the turns or round that `begin` prepared or started."""
        return self._of_round() if ready is None else self._of_turns(ready.collect())

    def _of_turns(self, taken: Sequence[Turns | None]) -> Iterator[RowOutcome]:
        turns, counts = self._turns, [0 if each is None else len(each.losses) for each in taken]
        self.turn_s = max(each.turn_s for each in taken if each is not None) or self.turn_s
        self.num_rounds += max(counts)
        epochs = self.feed.skip(counts)
        for row, (progress, batches, own) in enumerate(zip(list(self.rows), turns, taken, strict=True)):
            if progress is not None and batches is not None and own is not None:
                progress.round += counts[row]
                progress.samples += counts[row] * batches.indices.shape[1]
                progress.losses.add(own.losses, [batches.indices.shape[1]] * counts[row])
                yield row, progress, own.finite, epochs[row]

    def _of_round(self) -> Iterator[RowOutcome]:
        if not self._is_checked:
            self._check_python_state()
        for row, progress in enumerate(list(self.rows)):
            if progress is None:
                continue
            each = self._dealt[row]
            if each is None:
                yield row, progress, True, None
                continue
            outcome = next(outcome for outcome in self._issued if outcome.active[row])
            progress.round += 1
            progress.samples += each[0]
            progress.losses.add(outcome.losses[row : row + 1], [each[0]])
            yield row, progress, outcome.healthy[row], each[1]

    def _parts(self, batches: Sequence[Batch | None]) -> list[list[Batch | None]]:
        """Group batches by shape: one that an engine cannot take would keep all of its round from running as usual."""
        shapes = [None if batch is None else shape_of(batch) for batch in batches]
        kinds = dict.fromkeys(shape for shape in shapes if shape is not None)
        return [[b if s == kind else None for b, s in zip(batches, shapes, strict=True)] for kind in kinds]

    def is_over(self, row: int) -> bool:
        return self._rounds_left(row) <= 0

    def epochs(self, row: int) -> float:
        """Return a member's passes over its data, fractional if the length of the data is known."""
        progress, per_epoch = self._on(row), self._stream_of(row).samples_per_epoch
        return round(progress.samples / per_epoch, 4) if per_epoch else float(progress.epoch)

    def mean_loss(self, progress: Progress) -> float:
        losses, progress.losses = progress.losses, TaskValues()
        return losses.mean

    def evaluate_beside_others(self, row: int, evaluator: Evaluator) -> Evaluated:
        """Run `evaluate` in a pool's thread, with a model that no other thread uses."""
        try:
            model = self._shown.pop()
        except IndexError:
            model = self.group.new_central()
        with num_threads(THREADS):
            evaluated = self.evaluate(row, evaluator.copy(), model)
        self._shown.append(model)
        return evaluated

    def evaluate_alone(self, row: int, evaluator: Evaluator) -> Evaluated:
        """Run `evaluate` with random numbers of the member's seed."""
        with own_numbers(derive_seed(self._on(row).member.variant.seed, EVALUATION), self.device):
            before, of_python = torch.get_rng_state(), python_state(nn.Module())
            evaluated = self.evaluate(row, evaluator)
            has_drawn = bool(changed(of_python, python_state(nn.Module())))
            self.draws = has_drawn or not torch.equal(torch.get_rng_state(), before)
        return evaluated

    def evaluate(self, row: int, evaluate: Evaluator, model: nn.Module | None = None) -> Evaluated:
        progress, model = self._on(row), self.group.central_of(row, model)
        values, best = evaluate(model, self.device, self._task), self._config.best_of(progress)
        best.look(values, progress.round, self.epochs(row), model)
        progress.best = best.state
        return values, evaluate.problem

    def export(self, row: int) -> None:
        progress = self._on(row)
        progress.member.model = self.group.export_of(row)
        progress.member.best = self._config.best_of(progress).model(progress.member.model, progress.round)

    def _check_python_state(self) -> None:
        """After the first round, check that it changed nothing in Python that members share, or inherit with a row."""
        self._is_checked, module = True, self.group.learners[0].module
        names = changed(self._python, python_state(module)) if self.rows[0] else []
        is_one = (self._config.part_of or self._config.num_members) == 1 and self._config.search is None
        if (drawn := next((name for name in names if name.module is None), None)) and not is_one:
            raise ModelError(
                f"the model or its loss changes {drawn} during training, which all members share; draw random numbers "
                "from torch, whose seed is each member's own"
            )
        if self._is_reused and (kept := [name for name in names if name.module is not None]):
            raise ModelError(
                f"the model changes {kept[0]} in Python during training, which the next member on its row would "
                f"inherit; keep it in a buffer, or use at_once={self._config.num_members} without halving"
            )

    def _warn_of(self, event: str, message: str) -> None:
        warn_user(message)
        self.loop.context.log.record_event(event, message)

    def _restore(self, row: int, progress: Progress) -> None:
        state = progress.state
        assert state is not None
        with refusing_damage():
            self.group.load_state_of(row, dict(state))
            self._stream_of(row).load_state_dict(state["stream"])
            if progress.scheduler is not None:
                progress.scheduler.load_state_dict(state["scheduler"])
            progress.losses = TaskValues()
            progress.losses.add_saved(state["losses"], self.device)
        progress.state = None


def run_side_by_side(cohorts: Sequence[Cohort], most: int = MOST_ROUNDS) -> list[tuple[Cohort, list[RowOutcome]]]:
    """Run a round, or up to `most` turns of every member, of each cohort; turns of all cohorts run concurrently."""
    begun = [cohort.begin(turns) for cohort, turns in zip(cohorts, _turns(cohorts, most), strict=True)]
    together = [ready for ready in begun if ready is not None]
    if together:
        together[0].run_with(together[1:])
    return [(cohort, list(cohort.outcomes(ready))) for cohort, ready in zip(cohorts, begun, strict=True)]


def _turns(cohorts: Sequence[Cohort], most: int) -> list[int]:
    """Return turns by cohort, about the same share of the remaining rounds for all; 0: run a round."""
    limits = [min(most, cohort.most_turns()) for cohort in cohorts]
    if len(cohorts) == 1 and limits[0] < 2:
        return [0]  # a round runs all members at once
    left = [cohort.rounds_left() if limit else 0 for cohort, limit in zip(cohorts, limits, strict=True)]
    seconds = [rounds * cohort.turn_s if rounds else 0 for cohort, rounds in zip(cohorts, left, strict=True)]
    in_all = sum(each * cohort.num_training for cohort, each in zip(cohorts, seconds, strict=True))
    longest = max(*seconds, in_all / len(available_cores()), 1e-9)
    return [min(limit, max(1, int(TURNS_S / longest * rounds))) for limit, rounds in zip(limits, left, strict=True)]


def evaluate(ended: Sequence[tuple[Cohort, int, Evaluator | None]]) -> list[Evaluated]:
    """Evaluate members by cohort and row; several concurrently if the data are in memory."""
    for cohort in {cohort for cohort, _, _ in ended}:
        cohort.loop.catch_up()
    places = min(len(ended), len(available_cores())) if ended[0][0].device.type == "cpu" else 1
    if places == 1 or any(each is None or not each.is_in_memory or cohort.draws for cohort, _, each in ended):
        return [({}, None) if each is None else cohort.evaluate_alone(row, each) for cohort, row, each in ended]
    with ThreadPoolExecutor(places) as pool:
        return list(pool.map(Cohort.evaluate_beside_others, *zip(*ended, strict=True)))
