"""Trains a model under a partition, with the same results (to rounding) as training on one device."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bow.errors import OptimizerError, SettingError
from bow.planning.problem.box import whole
from bow.planning.problem.partition import Partition
from bow.planning.rules import RULES
from bow.planning.rules.rule import Rules
from bow.planning.tiles.capture import CapturedOperators
from bow.planning.tiles.communication import ProcessGroup, SpanRecorder, sum_devices, wait_for
from bow.planning.tiles.device_state import Averaging, Cell, DeviceBuffers, DeviceWeights, cells_of
from bow.planning.tiles.passes import BackwardPass, ForwardPass, TileContext
from bow.planning.tiles.program import local_program, tile_program
from bow.planning.tiles.regions import region
from bow.replicas.optimizer import OptimizerFactory, is_elementwise, make_optimizer
from bow.schedule import Timeline
from bow.sync import Synchroniser


def tile_optimizer(
    factory: OptimizerFactory, model: nn.Module, cells: Mapping[Cell, nn.Parameter], values: Mapping[str, Tensor]
) -> Optimizer:
    """Make an optimizer of a device's cells with the parameter groups, settings and state of the user's."""
    optimizer = make_optimizer(factory, model)
    if not is_elementwise(optimizer, torch.device("cpu")):
        raise OptimizerError(
            f"optimizer {type(optimizer).__name__} does not treat every element of a weight independently, so a device "
            "cannot update only its part of the weight; use an optimizer such as torch.optim.SGD or torch.optim.AdamW"
        )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    states: dict[nn.Parameter, dict[str, Any]] = {}
    for group in optimizer.param_groups:
        own = []
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for cell, part in cells.items():
                if cell.name == names.get(id(parameter)):
                    own.append(part)
                    states[part] = {key: _cut(each, cell, values[cell.name]) for key, each in state.items()}
        group["params"] = own
    optimizer.state.clear()
    optimizer.state.update({part: state for part, state in states.items() if state})
    return optimizer


def _cut(state: Any, cell: Cell, value: Tensor) -> Any:
    """Return a cell's part of the optimizer state of a whole parameter."""
    if isinstance(state, Tensor) and state.numel() == value.numel() and state.dim() > 0:
        own = region(state.reshape(value.shape), cell.box, whole(value.shape))
        return own.clone(memory_format=torch.contiguous_format).to(value.device)
    return state.clone() if isinstance(state, Tensor) else copy.copy(state)


class TileRuntime:
    """Runs training steps under a partition, with one process per device."""

    # Collective: all processes of the group construct one with the same arguments and call its methods in the same
    # order. All start with the weights of rank 0.

    def __init__(
        self,
        captured: CapturedOperators,
        partition: Partition,
        model: nn.Module,
        optimizer: OptimizerFactory,
        group: ProcessGroup | None = None,
        *,
        sync: Synchroniser | None = None,
        rules: Rules = RULES,
        seed: int = 0,
    ) -> None:
        graph = captured.graph
        group = group or ProcessGroup(torch.device("cpu"), learners=partition.learners)
        partition.check(graph, group.size * group.learners, rules)
        program = tile_program(graph, partition.splits, rules)
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        values = {name: _initial_value(parameters[name], weight.shape, group) for name, weight in graph.weights.items()}
        self._captured = captured
        self._group = group
        self._steps = 0
        self._skipped = 0
        self._shapes = {name: parameters[name].shape for name in values}
        self._counts = {name: int(buffers[name]) for name in captured.counters}
        self._context = TileContext(
            graph,
            captured.dtypes,
            program,
            local_program(graph, program, group.rank),
            group,
            DeviceWeights(cells_of(graph, program), values, group),
            DeviceBuffers(graph, program, buffers, group),
            SpanRecorder(group.rank, group.device),
            seed,
        )
        group.prepare(sum_devices(tasks) for sums in program.sums for tasks in sums.values())
        self._loss_device = program.tasks[graph.makers[graph.loss][0]][0].device
        self._constants = captured.constants(model, group.device)
        self._averaging: Averaging | None = None
        if group.learners > 1:
            if sync is None:
                raise SettingError(
                    f"the partition has {group.learners} learners but no synchroniser; give sync=bow.SMA()"
                )
            self._averaging = Averaging(sync, self._context.weights, group)
        self.optimizer = tile_optimizer(optimizer, model, self._context.weights.parameters, values)

    def step(self, batch: Any, index: int) -> Tensor:
        context = self._context
        tensors = {**self._constants, **self._captured.leaves(batch, self._group.device)}
        self._begin_averaging()
        forward = ForwardPass(context, tensors, index)
        forward.run()
        loss = forward.loss
        if loss is None:
            graph = context.graph
            loss = torch.empty((), dtype=context.dtypes[graph.loss], device=self._group.device)
        works = [] if self._group.size == 1 else [self._group.broadcast(loss, self._loss_device)]
        backward = BackwardPass(context, forward.saved)
        backward.run()
        with context.recorder.span("reduction", "gradients"):
            context.weights.finish_sums()
        with context.recorder.span("update", "all"):
            self.optimizer.step()
            if self._averaging is not None:
                self._averaging.finish()
        wait_for(works)
        forward.messages.close()
        backward.messages.close()
        self._steps += 1
        return loss

    def skip(self) -> None:
        """Skip a step of this learner, which has no batch, but take part in the averaging."""
        self._begin_averaging()
        if self._averaging is not None:
            self._averaging.finish()
        self._skipped += 1

    def gradients(self) -> dict[str, Tensor]:
        """Return the whole gradients of the last step by parameter name, the same on every device."""
        return self._shaped(self._context.weights.gradients())

    def gather_into(self, model: nn.Module) -> None:
        """Copy the trained parameters, running statistics and counters into a model, on every device."""
        # With several learners: the central model and the mean of their running statistics.
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        with torch.no_grad():
            central = None if self._averaging is None else self._averaging.central
            for name, value in self._shaped(self._context.weights.gather(central)).items():
                parameters[name].copy_(value)
            for name, value in self._context.buffers.gather().items():
                buffers[name].copy_(value)
            for name, each in self._captured.counters.items():
                buffers[name].fill_(self._counts[name] + each * self._steps)

    def state(self) -> dict[str, Any]:
        """Return this device's state for an exact resume under the same partition."""
        context = self._context
        return {
            "steps": [self._steps, self._skipped],
            "weights": [parameter.detach() for parameter in context.weights.parameters.values()],
            "kept": context.buffers.own,
            "optimizer": self.optimizer.state_dict(),
            "averaging": None if self._averaging is None else self._averaging.state(),
        }

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        context = self._context
        self._steps, self._skipped = state["steps"]
        own = [*context.weights.parameters.values(), *context.buffers.own]
        for tensor, value in zip(own, [*state["weights"], *state["kept"]], strict=True):
            tensor.copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])
        if self._averaging is not None:
            self._averaging.load_state(state["averaging"])

    def record(self, is_on: bool = True) -> None:
        self._context.recorder.is_on = is_on

    def timeline(self) -> Timeline:
        """Return and clear the recorded spans of all devices; collective."""
        recorder = self._context.recorder
        spans = [span for of_device in self._group.all_gather(recorder.spans) for span in of_device]
        recorder.spans = []
        return Timeline(spans)

    def _begin_averaging(self) -> None:
        if self._averaging is not None:
            self._averaging.begin(self._steps + self._skipped, float(self.optimizer.param_groups[0]["lr"]))

    def _shaped(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.view(self._shapes[name]) for name, value in values.items()}


def _initial_value(parameter: nn.Parameter, shape: tuple[int, ...], group: ProcessGroup) -> Tensor:
    """Broadcast a parameter's value from the first process, in its shape in the graph."""
    value = parameter.detach().to(group.device, copy=True).contiguous()
    group.broadcast_first(value)
    return value.view(shape).requires_grad_(parameter.requires_grad)
