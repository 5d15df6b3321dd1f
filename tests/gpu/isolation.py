"""Learners beside each other: library handles, kernels that overlap, one learner's operators on several streams."""

from __future__ import annotations

import functools
import tempfile
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bow
from benchmarks.gpu.branches import branch_schedule
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.trace import overlap
from benchmarks.trainings import branch
from bow.runtime.streams import StreamRuntime
from tests.gpu.case import Case
from tests.gpu.trainings import batches, exact, few, is_fake, subject, training
from tests.runtime.stream_captures import capture_step

NO_TIME = "on the fake device, work runs when it is issued"


def cases(fake: bool) -> list[Case]:
    return [
        Case("every learner's thread has library handles of its own", _handles),
        *(
            Case(f"kernels of two learners overlap: {engine}", functools.partial(_overlap, engine), NO_TIME)
            for engine in ("graph", "graph+round")
        ),
        *(
            Case(f"operators on {streams} streams: {model}, {way}", functools.partial(_spread, model, streams, way))
            for model in (("logistic", "lenet") if fake else ("logistic", "lenet", "resnet8", "transformer"))
            for streams in ((2,) if fake else (1, 2, 4))
            for way in ("eager", "captured")
        ),
    ]


def _handles(machine: Machine) -> None:
    seen: dict[int, int] = {}
    loss = subject(machine, "mlp").loss

    def step(model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        thread = threading.get_ident()
        # On the fake device there is no library; each thread is one by itself.
        seen[thread] = thread if is_fake(machine) else torch.cuda.current_blas_handle()
        return loss(model(inputs), targets)

    learners = 3
    with training(machine, "mlp", "streams", learners=learners, step=step) as replicas:
        for t in range(3):
            replicas.round(batches(machine, "mlp", t, learners))
        ran = replicas.engine
    seen.pop(threading.get_ident(), None)  # what was tried out before the first round
    assert ran == "streams", f"streams ran as {ran}"
    assert len(seen) == learners, f"{learners} learners ran on {len(seen)} threads"
    assert len(set(seen.values())) == learners, f"handles are shared: {seen}"


def _overlap(engine: str, machine: Machine) -> None:
    learners = 2
    dealt = [batches(machine, "lenet", t, learners) for t in range(4)]
    with training(machine, "lenet", engine, learners=learners) as replicas, tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            replicas.rounds_at_once(dealt)

        def run() -> None:
            for _ in range(10):
                replicas.rounds_at_once(dealt)

        with machine.device.issuing():
            found = overlap(machine.trace(run, Path(folder) / "trace.json"))
    assert found.busy_us > 0, "the profiler saw no kernels"
    assert found.together_us > 0, f"no two kernels ran at the same time in {found.busy_us:.0f} us"


def _spread(model: str, num_streams: int, way: str, machine: Machine) -> None:
    """The same loss and gradients as those of the step graph on one stream."""
    device, trained = machine.device, subject(machine, model)
    torch.manual_seed(0)
    module = trained.build().to(device.torch_device)
    parts = trained.batch(1, torch.float32)
    streams = [device.stream(f"operators {index}") for index in range(num_streams)]
    with exact(), device.issuing():
        batch = tuple(torch.empty_like(part, device=device.torch_device).copy_(part) for part in parts)
        parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
        buffers = {name: b.detach().clone() for name, b in module.named_buffers()}
        machine.synchronize()
    with exact():
        graph = bow.capture(module, batch, trained.loss)
        with torch.no_grad(), device.issuing():
            expected = graph.run(parameters, buffers, batch)
            machine.synchronize()
            branch(machine.device, streams)
        runtime = StreamRuntime(graph, branch_schedule(graph, num_streams), device, streams)
        if way == "captured":
            step = capture_step(runtime, device, streams, parameters, buffers, batch)
            for _ in range(few(machine, 5, 2)):
                outputs = step.replay()
        else:
            for _ in range(few(machine, 5, 2)):
                outputs = runtime.run(parameters, buffers, batch)
        machine.synchronize()
        # cuBLAS chooses by the workspace, which every stream has its own of.
        for name, gradient in expected.gradients.items():
            own = outputs.gradients[name]
            torch.testing.assert_close(
                own.cpu(), gradient.cpu(), rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
            )
        torch.testing.assert_close(outputs.loss.cpu(), expected.loss.cpu(), rtol=1e-5, atol=1e-6)
        runtime.close()
