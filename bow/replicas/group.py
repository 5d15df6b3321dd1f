"""The learners of one device: rows, modules, optimizer and central model."""

import copy
import itertools
import operator
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bow.cluster import ALONE, World
from bow.errors import ModelError, SettingError
from bow.replicas.buffers import (
    BufferPolicy,
    buffer_state,
    check_policy,
    copy_buffers,
    extra_state,
    gather_buffers,
    load_buffers,
    load_extra_state,
    nan_buffers,
    split_buffers,
)
from bow.replicas.layout import ParameterLayout
from bow.replicas.matrix import ReplicaMatrix
from bow.replicas.model import check_trainable, frozen_parameters, replicate
from bow.replicas.optimizer import OptimizerFactory, OptimizerRows, make_optimizer, on_cpu
from bow.seeds import derive_seed
from bow.values import whole

# Rows to reserve on a CPU, within this many bytes: reserved memory costs nothing before it is written. Elsewhere, and
# beyond that, rows for twice the learners are reserved, or as many as there is memory for.
SPARE_ROWS = 64
SPARE_BYTES = 2**30

_REQUIRES_GRAD = operator.attrgetter("requires_grad")

ROWS_PER_SPARE = 3  # weights, gradient, and the correction that a synchroniser may need


class Learner:
    """One replica: its module with parameters in its row, and the leaf whose gradient is computed."""

    def __init__(self, module: nn.Module, row: Tensor, gradient: Tensor) -> None:
        self.module = module
        self.row = row
        self.gradient = gradient
        self.buffers = [each._buffers for each in module.modules()]


class LearnerGroup:
    """All learners of one device and their central model."""

    def __init__(
        self,
        template: nn.Module,
        optimizer: OptimizerFactory,
        *,
        learners: int,
        device: torch.device,
        buffers: BufferPolicy = "average",
        spare_bytes: int | None = None,
        world: World = ALONE,
        memory_format: str | None = None,
    ) -> None:
        learners = whole("learners", learners, also='"auto"')
        check_policy(buffers)
        trainable = [p for p in template.parameters() if p.requires_grad]
        check_trainable(trainable)
        made = make_optimizer(optimizer, template)
        groups = [group["params"] for group in made.param_groups]
        self.template = template
        self.device = device
        self.world = world
        self.buffer_policy: BufferPolicy = buffers
        self.layout = ParameterLayout(template, groups, memory_format)
        row_bytes = self.layout.row_length * trainable[0].element_size()
        spare = learners
        if device.type == "cpu":
            spare = max(spare, min(SPARE_ROWS, SPARE_BYTES // row_bytes) - learners)
        elif spare_bytes is not None:
            spare = min(spare, spare_bytes // (ROWS_PER_SPARE * row_bytes))
        capacity = learners + spare
        self.matrix = ReplicaMatrix(self.layout.row_length, capacity, trainable[0].dtype, device)
        self.layout.fill(self.matrix.z, template)
        self.optimizer = OptimizerRows(made, self.layout, self.matrix)
        self._frozen = frozen_parameters(template, self.layout, device)
        self._central = replicate(template, self.layout, self.matrix.z, device, self._frozen)
        self._central.eval()
        if not world.is_one:
            begins = sorted({slot.offset for slots in self.layout.group_slots for slot in slots})
            world.variables = [end - at for at, end in zip(begins, [*begins[1:], self.layout.row_length], strict=True)]
            # All start from rank 0's values.
            frozen = [parameter.data for parameter in self._frozen.values()]
            world.broadcast_tensors([self.matrix.z, *frozen, *self._central.buffers()])
        self.learners: list[Learner] = []
        for _ in range(learners):
            self.add()
        self.count()
        own = {id(parameter) for parameter in self._frozen.values()}
        ours = [*self._central.parameters(), *self.learners[0].module.parameters()]
        self._trained = [parameter for parameter in ours if id(parameter) not in own]
        fixed = [*self._frozen.values(), *template.parameters()]
        self._untrained = [parameter for parameter in fixed if not parameter.requires_grad]

    def __len__(self) -> int:
        return len(self.learners)

    @property
    def num_all(self) -> int:
        return len(self) if self.is_alone else sum(self.by_device)

    def task_seed(self, seed: int, round_index: int, position: int) -> int:
        return derive_seed(seed, round_index, self.first + position)

    def check_flags(self) -> None:
        """Raise if a parameter was frozen or unfrozen since the start: exactly the parameters in a row are trained."""
        if all(map(_REQUIRES_GRAD, self._trained)) and not any(map(_REQUIRES_GRAD, self._untrained)):
            return
        wrong = {id(each) for each in self._untrained if each.requires_grad}
        wrong |= {id(each) for each in self._trained if not each.requires_grad}
        modules = (self._central, self.learners[0].module, self.template)
        named = (pair for module in modules for pair in module.named_parameters())
        name, is_now = next((name, each.requires_grad) for name, each in named if id(each) in wrong)
        was, now = ("frozen", "requires a gradient") if is_now else ("trained", "is frozen")
        raise ModelError(
            f"parameter {name!r} was {was} when this training began and {now} now, which is not supported during "
            "training; leave requires_grad unchanged, or start another training with the exported model"
        )

    @property
    def own(self) -> range:
        return range(self.first, self.first + len(self))

    @property
    def is_alone(self) -> bool:
        return self.world.is_one

    def by_node(self, learners: Sequence[int]) -> dict[int, int]:
        """Return the number of learners of each machine, given those of the devices."""
        totals: dict[int, int] = {}
        for count, node in zip(learners, self.nodes, strict=True):
            totals[node] = totals.get(node, 0) + count
        return totals

    def count(self) -> None:
        """Exchange the numbers of learners; all devices call this after the same round."""
        counted = self.world.all_gather((len(self), self.world.node))
        self.by_device = self.matrix.by_device = [learners for learners, _ in counted]
        self.nodes = [node for _, node in counted]
        self.first = sum(self.by_device[: self.world.rank])

    @property
    def held(self) -> list[Tensor]:
        """All tensors of learners and central model, without rows that are only reserved."""
        matrix = self.matrix
        rows = [matrix.weights, matrix.gradients, matrix.z, matrix.total, *matrix.state.values()]
        rows += [matrix.corrections] if matrix.has_corrections else []
        states = [value for state in self.optimizer.optimizer.state.values() for value in state.values()]
        buffers = [buffer for module in (self._central, *self._modules()) for buffer in module.buffers()]
        return [*rows, *buffers, *self._frozen.values(), *(s for s in states if isinstance(s, Tensor))]

    @property
    def central(self) -> nn.Module:
        """The central model on `z` with updated buffers; with several devices, as of the last `share_buffers`."""
        if self.is_alone:
            self.gather_buffers()
        return self._central

    def gather_buffers(self) -> None:
        if self.learners:
            gather_buffers(self._central, self._modules(), self.buffer_policy)

    @torch.no_grad()
    def share_buffers(self) -> None:
        """Update the central model's buffers from all devices, which call this after the same round."""
        self.gather_buffers()
        if self.is_alone:
            return
        averaged, others = split_buffers(self._central, self.buffer_policy)
        if averaged:  # rank 0's values plus the mean distance from them: equal values stay exact
            origin = torch.cat([buffer.flatten() for buffer in averaged])
            mean = origin.clone()
            self.world.broadcast_tensors([origin])
            mean.sub_(origin).mul_(len(self) / self.num_all)
            self.world.sum(mean).wait()
            means = torch.split(mean.add_(origin), [buffer.numel() for buffer in averaged])
            for buffer, value in zip(averaged, means, strict=True):
                buffer.copy_(value.view_as(buffer))
        self.world.broadcast_tensors(others)

    def add(self) -> None:
        central = self.central
        index = self.matrix.add_row()
        row = self.matrix.leaf(index)
        module = replicate(self.template, self.layout, row, self.device, self._frozen)
        copy_buffers(central, module)
        if not self.template.training:
            module.train()
        self.learners.append(Learner(module, row, self.matrix.gradient_of(index)))
        self.optimizer.add_learner()

    def remove(self) -> None:
        if len(self.learners) == 1:
            raise SettingError("learners must be at least 1: the only learner cannot be removed")
        self.learners.pop()
        self.optimizer.remove_learner()
        self.matrix.remove_row()

    @torch.no_grad()
    def restart(
        self,
        diverged: Sequence[bool],
        center: Tensor | None = None,
        *,
        weights: bool = True,
        gather: bool = True,
        written: bool = False,  # whether the buffers of diverged learners may be those of the failed task
    ) -> None:
        """Restart diverged learners from the central model, or from `center`."""
        sources = [learner.module for learner, bad in zip(self.learners, diverged, strict=True) if not bad]
        if gather and not sources:
            sources = [module for module in self._modules() if not (written and any(nan_buffers(module)))]
        if gather and sources:
            gather_buffers(self._central, sources, self.buffer_policy)
        for index, bad in enumerate(diverged):
            if bad:
                copy_buffers(self._central, self.learners[index].module)
            if bad and weights:
                self.matrix.weights_of(index).copy_(self.matrix.z if center is None else center)
                self.optimizer.reset(index)

    @torch.no_grad()
    def restart_all(self) -> None:
        self.matrix.weights.copy_(self.matrix.z.expand_as(self.matrix.weights))

    def export(self) -> nn.Module:
        """Return the central model as a plain module with its own storage, in evaluation mode, on the CPU."""
        return self._exported(self.central)

    def _exported(self, model: nn.Module) -> nn.Module:
        exported = copy.deepcopy(model).to("cpu")
        flags = {name: p.requires_grad for name, p in self.template.named_parameters()}
        for name, parameter in exported.named_parameters():
            parameter.data = parameter.detach().clone()  # no longer a view of z
            parameter.requires_grad_(flags[name])
        for module in exported.modules():
            if isinstance(module, nn.RNNBase):
                vars(module).pop("flatten_parameters", None)  # which `leave_weights` has put over the class's
        return exported.eval()

    def state(self, own: Collection[str] = ()) -> dict[str, Any] | None:
        """Return the state of all learners, on the CPU, at rank 0; all devices call this after the same round."""
        learners = [self._state_of(index) for index in range(len(self))]
        kept = {name: on_cpu(tensor) for name, tensor in self.matrix.state.items() if name in own}
        gathered = self.world.gather((learners, kept))
        if gathered is None:
            return None
        by_device, own_states = zip(*gathered, strict=True)
        return {
            "z": on_cpu(self.matrix.z),
            "synchroniser": {name: on_cpu(tensor) for name, tensor in self.matrix.state.items() if name not in own},
            "devices": list(own_states),
            "optimizer": self.optimizer.settings,
            "learners": [learner for device in by_device for learner in device],
            "by_device": list(map(len, by_device)),
            "nodes": self.nodes,
            "frozen": {name: on_cpu(parameter) for name, parameter in self.named_frozen()},
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Any] | None, alike: bool = False) -> tuple[int, bool]:
        """Restore the state that `state` returned, given to rank 0.

        Return for how many learners there was one, and whether there was the synchroniser's of this device. Learners
        without one get the buffers of the first, and its optimizer state if `alike`; the caller sets their weights.
        """
        parts = None
        if state is not None:
            left_out = ("learners", "devices")
            shared = {name: value for name, value in state.items() if name not in left_out}
            ends = list(itertools.accumulate(self.by_device))
            pieces = [state["learners"][end - n : end] for end, n in zip(ends, self.by_device, strict=True)]
            leading = state["learners"][0]
            first = {**leading, "weights": None, "optimizer": leading["optimizer"] if alike else None}
            as_before = state["nodes"] == self.nodes and len(state["devices"]) == len(pieces)
            devices = state["devices"] if as_before else [{}] * len(pieces)
            parts = [(shared, first, *each) for each in zip(pieces, devices, strict=True)]
        shared, first, learners, kept = self.world.scatter(parts)
        self.matrix.z.copy_(shared["z"])
        for name, tensor in {**shared["synchroniser"], **kept}.items():
            if name in self.matrix.state:
                self.matrix.state[name].copy_(tensor)
        for name, parameter in self.named_frozen():
            parameter.data.copy_(shared["frozen"][name])
        missing = [None] * (len(self) - len(learners))
        for index, saved in enumerate([*learners, *missing]):
            module, own = self.learners[index].module, first if saved is None else saved
            load_buffers(module, own["buffers"])
            load_extra_state(module, own["extra"])
            if saved is None:
                self.optimizer.reset(index)
            else:
                self.matrix.weights_of(index).copy_(saved["weights"])
        states = [  # tensors are used without a copy: each learner needs its own
            copy.deepcopy(first["optimizer"]) if saved is None else saved["optimizer"]
            for saved in (*learners, *missing)
        ]
        self.optimizer.load(shared["optimizer"], states)
        self.gather_buffers()
        return len(learners), bool(kept)

    def _state_of(self, index: int) -> dict[str, Any]:
        module = self.learners[index].module
        return {
            "weights": on_cpu(self.matrix.weights_of(index)),
            "optimizer": self.optimizer.state_of(index),
            "buffers": {name: on_cpu(buffer) for name, buffer in buffer_state(module).items()},
            "extra": extra_state(module),
        }

    def named_frozen(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Iterate over the parameters outside of the row, which all learners share, with their names."""
        for name, parameter in self.template.named_parameters():
            if id(parameter) in self._frozen:
                yield name, self._frozen[id(parameter)]

    def _modules(self) -> list[nn.Module]:
        return [learner.module for learner in self.learners]
