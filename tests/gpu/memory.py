"""Memory: nothing is left behind, running out of it is survived, and no block goes from one learner to another."""

from __future__ import annotations

import bisect
import functools
import gc
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from benchmarks.gpu.machine import Machine
from bow.errors import BowError
from tests.gpu.case import Case, Skipped
from tests.gpu.trainings import batches, few, is_fake, subject, training

NO_POOLS = "the fake device checks that of every block by itself"
NO_END = "the memory of the fake device never runs out"
WARM_UP = 16
"""Rounds until memory for batches is there for all rounds that may be under way, and all streams have workspaces."""

SLACK = 4096
"""Bytes: results of the last rounds have the size that they have. A block for each round, or a graph, is far more."""

LEARNERS = 16
"""So many do not fit, and have streams all the same beside those of other tests: torch has 32 in all."""

ROOM = 2**30
"""Bytes beyond what is in use that an allocation may take in the tests that run out of memory."""


def cases(fake: bool) -> list[Case]:
    return [
        *(
            Case(f"no leak: {engine}", functools.partial(_no_leak, engine))
            for engine in ("graph", "graph+round", "streams")
        ),
        Case("a batch that is too large is survived", _large_batch, NO_END),
        Case("too many learners are survived", _many_learners, NO_END),
        *(
            Case(f"no block goes from one learner to another: {engine}", functools.partial(_apart, engine), NO_POOLS)
            for engine in ("graph", "streams")
        ),
        Case("a graph's pool has one stream", _one_stream_a_pool, NO_POOLS),
    ]


def _no_leak(engine: str, machine: Machine) -> None:
    """Rounds, with a learner that is added and removed every now and then."""
    rounds = few(machine, 1000, 12)
    with training(machine, "lenet", engine) as replicas:
        _come_and_go(machine, replicas, rounds=few(machine, WARM_UP, 9))
        before = _footprint(machine, replicas)
        for t in range(rounds // 4):
            _some_rounds(machine, replicas, 4)
            if t % max(1, rounds // 40) == 0:
                _come_and_go(machine, replicas)
        after = _footprint(machine, replicas)
    assert after <= before + SLACK, f"{after - before} bytes more than before, after {rounds} rounds"


def _footprint(machine: Machine, replicas: Any) -> int:
    """Bytes in use, always behind the same rounds: the last batches are among them."""
    _come_and_go(machine, replicas)
    _some_rounds(machine, replicas, 4)
    _settle(machine, replicas)
    return machine.device.used_bytes()


def _some_rounds(machine: Machine, replicas: Any, rounds: int) -> None:
    for t in range(rounds):
        replicas.round(batches(machine, "lenet", t, replicas.learners))


def _come_and_go(machine: Machine, replicas: Any, rounds: int = 2) -> None:
    replicas.resize(replicas.learners + 1)
    _some_rounds(machine, replicas, rounds)
    replicas.resize(replicas.learners - 1)
    _some_rounds(machine, replicas, rounds)


def _settle(machine: Machine, replicas: Any) -> None:
    replicas.training_state()
    replicas.last = None
    machine.synchronize()
    gc.collect()
    if not is_fake(machine) and replicas.engine == "streams":
        # One for each thread and stream that ever met, and threads are new ones after a change of learners. No graph
        # needs them here.
        torch._C._cuda_clearCublasWorkspaces()


def _large_batch(machine: Machine) -> None:
    with training(machine, "lenet", "graph") as replicas:
        _some_rounds(machine, replicas, 2)
        huge = subject(machine, "lenet").batch(0, torch.float32, samples=40_000)
        with _little_room():
            error = _error(lambda: replicas.round([huge, huge]))
    assert isinstance(error, torch.OutOfMemoryError | BowError), f"got {error!r}"
    _trains(machine)


def _many_learners(machine: Machine) -> None:
    def train() -> None:
        with training(machine, "lenet", "graph", learners=LEARNERS) as replicas:
            huge = subject(machine, "lenet").batch(0, torch.float32, samples=8_000)
            replicas.round([huge] * replicas.learners)

    with _little_room():
        error = _error(train)
    assert isinstance(error, torch.OutOfMemoryError | BowError), f"got {error!r}"
    _trains(machine)


class _little_room:
    """Within it, allocations beyond some gigabyte fail as if the device were full."""

    def __enter__(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + ROOM) / total))

    def __exit__(self, *error: object) -> None:
        torch.cuda.set_per_process_memory_fraction(1.0)
        gc.collect()
        torch.cuda.empty_cache()


def _error(run: Any) -> BaseException | None:
    """What it raises, without the frames that would hold on to memory."""
    try:
        run()
    except Exception as error:
        return error.with_traceback(None)
    return None


def _trains(machine: Machine) -> None:
    """A small training works afterwards."""
    for engine in ("eager", "graph", "streams"):
        with training(machine, "lenet", engine) as replicas:
            for t in range(3):
                loss = replicas.round(batches(machine, "lenet", t, 2))
            assert bool(loss.isfinite().all()), f"{engine}: {loss}"


def _apart(engine: str, machine: Machine) -> None:
    memory: Any = torch.cuda.memory
    memory._record_memory_history(context=None, stacks="python", max_entries=1_000_000)
    try:
        with training(machine, "lenet", engine, learners=3) as replicas:
            _some_rounds(machine, replicas, 12)
            _settle(machine, replicas)
            trace = memory._snapshot()["device_traces"][0]
            streams = {_handle(machine, f"learner {j}") for j in range(replicas.learners)}
    finally:
        memory._record_memory_history(None)
    assert len(streams) == 3, "learners share streams"
    used = {entry["stream"] for entry in trace if entry["action"] == "alloc"} & streams
    assert used == streams, f"{len(used)} of {len(streams)} learners have allocated memory on their streams"
    passed = blocks_that_passed(trace, streams)
    assert not passed, f"{len(passed)} blocks went from one learner to another, such as {passed[:3]}"


def _one_stream_a_pool(machine: Machine) -> None:
    with training(machine, "lenet", "graph", learners=3) as replicas:
        _some_rounds(machine, replicas, 4)
        _settle(machine, replicas)
        segments = torch.cuda.memory._snapshot()["segments"]
        if not all("segment_pool_id" in segment for segment in segments):
            raise Skipped("this torch does not say which pool a segment belongs to")
    pools = streams_of_pools(segments)
    learners = {_handle(machine, f"learner {j}") for j in range(3)}
    own = [streams for pool, streams in pools.items() if pool != (0, 0) and streams & learners]
    assert len(own) >= 3, f"3 learners have {len(own)} pools"
    assert all(len(streams) == 1 for streams in own), f"pools are shared: {own}"


def _handle(machine: Machine, name: str) -> int:
    stream: Any = machine.device.stream(name)
    return int(stream.raw.cuda_stream)


def streams_of_pools(segments: Iterable[Mapping[str, Any]]) -> dict[tuple[int, int], set[int]]:
    """By the id of a memory pool: the streams of its segments."""
    pools: dict[tuple[int, int], set[int]] = {}
    for segment in segments:
        pools.setdefault(tuple(segment["segment_pool_id"]), set()).add(segment["stream"])  # type: ignore[arg-type]
    return pools


def blocks_that_passed(trace: Iterable[Mapping[str, Any]], streams: Collection[int]) -> list[tuple[int, int, int]]:
    """Addresses that two of these streams were given, one after the other, without the driver in between.

    Args:
        trace: events of an allocator, in order: `action`, `addr`, `size`, `stream`.
        streams: whose blocks are looked at.

    Returns:
        Address, the stream that had it first, and the one that got it.
    """
    owned: list[tuple[int, int, int]] = []  # begin, end and stream, in order and apart from each other
    passed = []
    for event in trace:
        action = event["action"]
        if action != "segment_free" and (action != "alloc" or event["stream"] not in streams):
            continue
        begin, end = event["addr"], event["addr"] + event["size"]
        first = bisect.bisect_left(owned, begin, key=lambda interval: interval[1] - 1)
        last = bisect.bisect_left(owned, end, key=lambda interval: interval[0])
        inside = owned[first:last]
        left = [(b, min(e, begin), stream) for b, e, stream in inside if b < begin]
        right = [(max(b, end), e, stream) for b, e, stream in inside if e > end]
        if action == "segment_free":
            owned[first:last] = [*left, *right]
            continue
        passed += [(b, stream, event["stream"]) for b, _, stream in inside if stream != event["stream"]]
        owned[first:last] = [*left, (begin, end, event["stream"]), *right]
    return passed
