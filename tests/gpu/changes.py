"""Shapes and numbers of learners that change, rounds that are issued together, bfloat16."""

from __future__ import annotations

import functools
from typing import Any

import torch

from benchmarks.gpu.machine import Machine, place
from bow.data import Stacked, open_stream
from tests.gpu.case import Case
from tests.gpu.trainings import ENGINES, batches, exact, few, subject, training, weights

TOLERANCE = 1e-9
MODEL = "lenet"


def cases(fake: bool) -> list[Case]:
    return [
        *(Case(f"the last batch is smaller: {engine}", functools.partial(_smaller, engine)) for engine in ENGINES),
        *(Case(f"a learner sits out: {engine}", functools.partial(_sits_out, engine)) for engine in ENGINES),
        *(Case(f"learners come and go: {engine}", functools.partial(_resized, engine)) for engine in ENGINES),
        *(
            Case(f"rounds together are rounds singly: {engine}", functools.partial(_together, engine))
            for engine in ENGINES
        ),
        *(Case(f"bfloat16 learns: {engine}", functools.partial(_bfloat16, engine)) for engine in ENGINES),
        *(Case(f"batches of the device: {engine}", functools.partial(_on_device, engine)) for engine in ENGINES),
        *(Case(f"samples of the device: {engine}", functools.partial(_resides, engine)) for engine in ENGINES),
    ]


def _follow(machine: Machine, engine: str, plan: Any, **settings: Any) -> None:
    """The same plan with `eager` and with another engine, in float64."""
    found = []
    for name in ("eager", engine):
        with exact(), training(machine, MODEL, name, dtype=torch.float64, **settings) as replicas:
            plan(replicas)
            found.append(weights(machine, replicas))
    torch.testing.assert_close(found[1], found[0], rtol=TOLERANCE, atol=TOLERANCE)


def _batches(machine: Machine, round_index: int, learners: int) -> list[Any]:
    return batches(machine, MODEL, round_index, learners, torch.float64)


def _smaller(engine: str, machine: Machine) -> None:
    """First of a shape, then again, so that it is captured; both in the middle and at the end."""

    def plan(replicas: Any) -> None:
        small = subject(machine, MODEL).batch(7, torch.float64, samples=3)
        for t, last in enumerate((False, True, False, True, True)):
            given = _batches(machine, t, 2)
            replicas.round([small, small] if last else given)
            replicas.round([given[0], small])

    _follow(machine, engine, plan)


def _sits_out(engine: str, machine: Machine) -> None:
    def plan(replicas: Any) -> None:
        for t in range(4):
            given = _batches(machine, t, 2)
            replicas.round([given[0], None] if t % 2 else given)

    _follow(machine, engine, plan)


def _resized(engine: str, machine: Machine) -> None:
    """Graphs of those who stay must outlive those who go."""

    def plan(replicas: Any) -> None:
        for t, learners in enumerate((2, 3, 3, 2, 1, 2)):
            while replicas.learners < learners:
                replicas.resize(replicas.learners + 1)
            while replicas.learners > learners:
                replicas.resize(replicas.learners - 1)
            for i in range(2):
                replicas.round(_batches(machine, 2 * t + i, learners))

    _follow(machine, engine, plan)


def _together(engine: str, machine: Machine) -> None:
    found = []
    for together in (False, True):
        with exact(), training(machine, MODEL, engine, dtype=torch.float64) as replicas:
            replicas.round(_batches(machine, 99, 2))  # from here on it is captured
            dealt = [_batches(machine, t, 2) for t in range(few(machine, 12, 4))]
            while dealt:
                count = max(1, replicas.loop.period) if together else 1
                replicas.rounds_at_once(dealt[:count])
                del dealt[:count]
            found.append(weights(machine, replicas))
    assert torch.equal(*found)


def _bfloat16(engine: str, machine: Machine) -> None:
    model = "mlp"
    dealt = [batches(machine, model, t, 2) for t in range(2)]
    for given in dealt:  # something to learn: the sign of the first number
        for j, (inputs, _) in enumerate(given):
            given[j] = (inputs, (inputs.flatten(1)[:, 0] > 0).long())
    optimizer = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    with training(machine, model, engine, precision="bfloat16", optimizer=optimizer) as replicas:
        losses = [float(replicas.round(dealt[t % 2]).mean()) for t in range(few(machine, 100, 25))]
        assert replicas.W.dtype == torch.float32
        ran = replicas.engine
    assert losses[-1] < 0.7 * losses[0], f"the loss went from {losses[0]:.3f} to {losses[-1]:.3f}"
    assert ran == engine, f"{engine} ran as {ran}"


def _on_device(engine: str, machine: Machine) -> None:
    """Batches that lie on the device, all learners' in one tensor, are what they are from the host."""
    found = []
    for on_device in (False, True):
        with exact(), training(machine, MODEL, engine, dtype=torch.float64) as replicas:
            for t in range(few(machine, 8, 4)):
                given = _batches(machine, t, 2)
                if on_device:
                    stacked = tuple(torch.stack(parts) for parts in zip(*given, strict=True))
                    replicas.round(Stacked(tuple(place(machine.device, part) for part in stacked)))
                else:
                    replicas.round(given)
            found.append(weights(machine, replicas))
    assert torch.equal(*found)


def _resides(engine: str, machine: Machine) -> None:
    """Samples that stay on the device are gathered within the graph, and are what they are from the host."""
    data = subject(machine, MODEL).batch(5, torch.float64, samples=few(machine, 200, 20))
    size = subject(machine, MODEL).batch_size
    found = []
    for name in ("eager", engine):
        with exact(), training(machine, MODEL, name, dtype=torch.float64) as replicas, machine.device.issuing():
            stream = open_stream(data, batch_size=size, steps=1)
            assert replicas.batches.reside(stream) == (name != "eager")
            for _ in range(few(machine, 12, 3)):
                deal = stream.deal(replicas.learners)
                assert deal is not None
                replicas.round(deal.batches)
            found.append(weights(machine, replicas))
    torch.testing.assert_close(found[1], found[0], rtol=TOLERANCE, atol=TOLERANCE)
