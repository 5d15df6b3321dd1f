"""Dropout: reproducible, different between learners and rounds, and untouched by graphs that run at the same time."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from benchmarks.gpu.machine import Machine
from benchmarks.trainings import branch
from tests.gpu.case import Case
from tests.gpu.trainings import ENGINES, batches, few, subject, training, weights

MODEL = "dropout"
DRAWS = 16
TRIALS = 50


def cases(fake: bool) -> list[Case]:
    return [
        *(Case(f"dropout is reproducible: {engine}", functools.partial(_reproducible, engine)) for engine in ENGINES),
        *(Case(f"dropout differs: {engine}", functools.partial(_differs, engine)) for engine in ENGINES),
        Case("graphs that draw at the same time draw as in turn", _concurrent),
    ]


def _train(machine: Machine, engine: str, seed: int) -> Tensor:
    with training(machine, MODEL, engine, seed=seed) as replicas:
        for t in range(few(machine, 12, 3)):
            replicas.round(batches(machine, MODEL, t, 2))
        return weights(machine, replicas)


def _reproducible(engine: str, machine: Machine) -> None:
    first, second, other = (_train(machine, engine, seed) for seed in (3, 3, 4))
    assert torch.equal(first, second), f"the same seed differs by {float((first - second).abs().max()):.1e}"
    assert not torch.equal(first, other), "the seed has no effect"


def _differs(engine: str, machine: Machine) -> None:
    """Between learners on the same batch and weights, and between rounds where the weights stay."""
    same = subject(machine, MODEL).batch(0, torch.float32)
    optimizer = functools.partial(torch.optim.SGD, lr=0.0)
    with training(machine, MODEL, engine, optimizer=optimizer) as replicas:
        losses = torch.stack([replicas.round([same, same]).detach().cpu().clone() for _ in range(4)])
        machine.synchronize()
    assert losses.unique().numel() == losses.numel(), f"masks are repeated: {losses.tolist()}"


def _concurrent(machine: Machine) -> None:
    """Until torch 2.12, graphs of one generator share its seed and offset on the device."""
    device = machine.device
    size = few(machine, 2**18, 64)
    streams = [device.stream(f"learner {j}") for j in range(2)]
    generators = [device.generator() for _ in range(2)]
    outputs, graphs = [], []
    with device.issuing(), torch.no_grad():
        branch(machine.device, streams)
        for stream, generator in zip(streams, generators, strict=True):
            with device.on(stream):
                ones, output = (torch.ones(size, device=device.torch_device) for _ in range(2))
                with device.drawing_from(generator):
                    _draw(ones, output)
            with device.capture(stream, generator) as graph:
                _draw(ones, output)
            outputs.append(output)
            graphs.append((graph, ones))

        def replay(j: int, seed: int) -> None:
            with device.on(streams[j]):
                generators[j].manual_seed(seed)
                graphs[j][0].replay()

        def results() -> list[Tensor]:
            machine.synchronize()
            found = [output.detach().cpu().clone() for output in outputs]
            machine.synchronize()
            return found

        for trial in range(few(machine, TRIALS, 3)):
            seeds = (1000 + trial, 2000 + trial)
            for j, seed in enumerate(seeds):
                replay(j, seed)
                machine.synchronize()
            in_turn = results()
            for j, seed in enumerate(seeds):
                replay(j, seed)
            together = results()
            for j in range(2):
                assert torch.equal(in_turn[j], together[j]), f"trial {trial}: graph {j} drew other numbers"
            assert not torch.equal(*in_turn), "both drew the same"


def _draw(ones: Tensor, output: Tensor) -> None:
    """Many masks, one behind the other, so that the two graphs really run at the same time."""
    output.zero_()
    for draw in range(DRAWS):
        output.add_(torch.nn.functional.dropout(ones, 0.5), alpha=1 / (1 + draw))
