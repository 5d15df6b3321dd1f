"""How fast the device starts kernels: chains of tiny ones, from one stream and from many.

One learner of a small model is such a chain. How many of them the device can keep going at once bounds what several
learners bring, whatever their kernels compute.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.parts import Context
from benchmarks.harness import spread
from benchmarks.trainings import branch

NODES = 200
STREAMS = (1, 2, 4, 8, 16, 32)
TURN_S = 0.03
MOST_CALLS = 200
QUEUED = 4  # Launches in a row whose cost to the host is taken: so few that the host never waits


class Chains:
    """Dependent tiny kernels on streams of their own, as one graph each, and as the branches of one graph."""

    def __init__(self, machine: Machine, count: int, nodes: int) -> None:
        device = self._device = machine.device
        self._streams = [device.stream(f"chain {index}") for index in range(count)]
        self._nodes = nodes
        self._tensors = []
        branch(device, self._streams)
        for stream in self._streams:
            with device.on(stream):
                self._tensors.append(torch.zeros(32, device=device.torch_device))
                self._tensors[-1].add_(1)  # loads the kernel
        self._graphs = []
        for index, stream in enumerate(self._streams):
            with device.capture(stream) as graph:
                self._chain(index)
            self._graphs.append(graph)

    def replay(self, count: int) -> None:
        """One graph on each of so many streams."""
        for stream, graph in zip(self._streams[:count], self._graphs, strict=False):
            with self._device.on(stream):
                graph.replay()

    def branched(self, count: int) -> Callable[[], None]:
        """One graph with so many branches, to be replayed."""
        device, streams = self._device, self._streams[:count]
        forked = device.event("fork")
        with device.capture(streams[0]) as graph:
            streams[0].record(forked)
            for index, stream in enumerate(streams):
                if index:
                    stream.wait(forked)
                self._chain(index)
            for stream in streams[1:]:
                joined = device.event(f"{stream.name} joins")
                stream.record(joined)
                streams[0].wait(joined)

        def replay() -> None:
            with device.on(streams[0]):
                graph.replay()

        return replay

    def _chain(self, index: int) -> None:
        with self._device.on(self._streams[index]):
            for _ in range(self._nodes):
                self._tensors[index].add_(1)


def measure(context: Context) -> None:
    """Rates for every number of streams."""
    machine, config = context.machine.apart(), context.config  # it takes all the streams that there are
    counts = STREAMS if not config.fake else STREAMS[:2]
    nodes = NODES if not config.fake else 5
    rows: list[dict[str, Any]] = []
    with machine.device.issuing(), torch.no_grad():
        chains = Chains(machine, max(counts), nodes)
        for count in counts:
            if rows and not context.time.allows(1):
                context.cut(f"{count} streams and more: left out")
                break
            branched = chains.branched(count)
            machine.synchronize()  # graphs on streams of their own write the same memory
            graphs = _timed(machine, functools.partial(chains.replay, count), count, nodes, config.repeats)
            rows.append({"streams": count, "graphs": graphs})
            rows[-1]["branches"] = _timed(machine, branched, count, nodes, config.repeats)
            context.record(nodes=nodes, rows=rows)


def _timed(machine: Machine, replay: Callable[[], None], count: int, nodes: int, repeats: int) -> dict[str, Any]:
    replay()
    once = machine.seconds(replay, 1)
    calls = max(1, min(MOST_CALLS, int(TURN_S / once)))
    seconds = [machine.seconds(replay, calls) / calls for _ in range(repeats)]
    host = [machine.host_seconds(replay, QUEUED) / QUEUED for _ in range(repeats)]
    return {
        "kernels_per_us": spread([count * nodes / each / 1e6 for each in seconds], 4),
        "us_per_kernel_of_a_chain": spread([1e6 * each / nodes for each in seconds], 4),
        "host_us": spread([1e6 * each for each in host], 2),
    }
