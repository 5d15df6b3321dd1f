"""Training steps at random, of the kinds that users write: what `test_random_steps.py` holds against plain PyTorch.

A model is a stem, some blocks and a head; blocks, what the step reads in Python, loss, optimizer and number of learners
are drawn by a seed. Everything is float64, and nothing here is of bow.
"""

from __future__ import annotations

import contextvars
import ctypes
import dataclasses
import functools
import itertools
import os
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

WIDTH, CLASSES, BATCH = 6, 3, 5

VALUES = (0.0, 0.0, 0.0, 0.5, 0.5, 1.5, 0.0, 0.25)
"""What the value in Python is, by round."""

LATE = (*(0.0,) * 8, 0.5, 0.5)
"""The same, where it changes behind the last round in which an engine looks for that."""

BLOCKS: dict[str, Callable[[], nn.Module]] = {}
"""Modules `[batch, WIDTH] -> [batch, WIDTH]` by name."""


def block(**parts: Callable[[], Any]) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Makes a block of its forward pass; parts are modules, parameters, buffers (tensors) or values in Python."""

    def register(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        kind = type(forward.__name__, (nn.Module,), {"forward": forward})

        def make() -> nn.Module:
            module = kind()
            for name, part in parts.items():
                value = part()
                is_buffer = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
                (module.register_buffer if is_buffer else functools.partial(setattr, module))(name, value)
            return module

        BLOCKS[forward.__name__] = make
        return forward

    return register


linear = functools.partial(nn.Linear, WIDTH, WIDTH)


def weight(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(torch.randn(*(shape or (WIDTH,))) * 0.5)


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
    return functools.partial(torch.zeros, *(shape or (WIDTH,)), dtype=dtype)


def scalar(dtype: torch.dtype = torch.int64) -> Callable[[], Tensor]:
    return functools.partial(torch.zeros, (), dtype=dtype)


# Ordinary layers.


@block(inner=linear)
def dense(self, h):
    return F.gelu(self.inner(h))


@block(norm=lambda: nn.BatchNorm1d(WIDTH))
def batch_norm(self, h):
    return self.norm(h)


@block(conv=lambda: nn.Conv2d(1, 3, 3, padding=1), out=lambda: nn.Conv2d(3, 1, 1))
def channels_last(self, h):
    picture = h.view(-1, 1, 2, 3).to(memory_format=torch.channels_last)
    return self.out(F.relu(self.conv(picture)).contiguous(memory_format=torch.channels_last)).flatten(1)


@block(cell=lambda: nn.LSTM(2, 3, batch_first=True), out=lambda: nn.Linear(9, WIDTH))
def lstm(self, h):
    return self.out(self.cell(h.view(-1, 3, 2))[0].flatten(1))


@block(cell=lambda: nn.GRU(2, 3, bidirectional=True, batch_first=True), out=lambda: nn.Linear(18, WIDTH))
def gru(self, h):
    return self.out(self.cell(h.view(-1, 3, 2))[0].flatten(1))


@block(attend=lambda: nn.MultiheadAttention(2, 1, batch_first=True))
def attention(self, h):
    tokens = h.view(-1, 3, 2)
    return self.attend(tokens, tokens, tokens, need_weights=False)[0].flatten(1)


@block(table=lambda: nn.Embedding(8, WIDTH, padding_idx=0))
def embedding(self, h):
    return h * self.table((h.detach() > 0).sum(1))


@block(mixed=lambda: nn.Bilinear(WIDTH, WIDTH, WIDTH))
def bilinear(self, h):
    return self.mixed(h, h.roll(1, 1))


# What a parameter or a module can be.


@block(first=linear, second=lambda: None)
def tied(self, h):
    return F.linear(torch.tanh(self.first(h)), self.first.weight.t(), self.first.bias)


@block(first=linear, frozen=lambda: nn.Parameter(torch.full((WIDTH,), 0.5), requires_grad=False), idle=weight())
def frozen_and_unused(self, h):
    return self.first(h) * self.frozen


@block(inner=lambda: parametrizations.weight_norm(linear()))
def weight_norm(self, h):
    return self.inner(h)


@block(inner=lambda: parametrizations.spectral_norm(linear()))
def spectral_norm(self, h):
    return self.inner(h)


@block(inner=lambda: parametrizations.orthogonal(linear()))
def orthogonal(self, h):
    return self.inner(h)


@block(parts=lambda: nn.ParameterList([weight()(), weight()()]), more=lambda: nn.ParameterDict({"a": weight()()}))
def containers(self, h):
    return h * self.parts[0] + self.parts[1] * self.more["a"]


@block(inner=lambda: nn.Sequential(linear(), nn.ReLU(inplace=True), nn.Dropout(0.3)))
def dropout(self, h):
    return self.inner(h)


# Hooks. Made in the builder, as users do: a copy of the model may lose them.


def hooked(register: Callable[[nn.Linear], object]) -> Callable[[], nn.Linear]:
    def make() -> nn.Linear:
        module = linear()
        register(module)
        return module

    return make


def forward_of(self, h):
    return self.inner(h)


def halve_gradient(parameter: Tensor) -> None:
    parameter.grad *= 0.5


for name, register in {
    "forward_hook": lambda m: m.register_forward_hook(lambda m, args, made: made * 0.5),
    "forward_pre_hook": lambda m: m.register_forward_pre_hook(lambda m, args: (args[0] * 0.5,)),
    "backward_hook": lambda m: m.register_full_backward_hook(lambda m, made, given: (made[0] * 0.5,)),
    "backward_pre_hook": lambda m: m.register_full_backward_pre_hook(lambda m, given: (given[0] * 0.5,)),
    "parameter_hook": lambda m: m.weight.register_hook(lambda gradient: gradient * 0.5),
    "accumulated_hook": lambda m: m.weight.register_post_accumulate_grad_hook(halve_gradient),
}.items():
    forward = types.FunctionType(forward_of.__code__, globals(), name)
    block(inner=hooked(register))(forward)


NODES: list[Any] = []
"""Where gradients add up; such a node is gone, and its hooks with it, where nobody keeps it."""


def hooked_where_gradients_add_up() -> nn.Linear:
    module = linear(dtype=torch.float64)
    node = module.weight.view_as(module.weight).grad_fn.next_functions[0][0]
    node.register_prehook(lambda gradients: (gradients[0] * 0.5,))
    NODES.append(node)
    return module


@block(inner=hooked_where_gradients_add_up)
def accumulate_grad_hook(self, h):
    return self.inner(h)


@block()
def tensor_hook(self, h):
    h = h * 1.0
    if h.requires_grad:
        h.register_hook(lambda gradient: gradient * 0.5)
    return h


# Backward passes that are written by hand.


class StraightThrough(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Reversal(Function):
    @staticmethod
    def forward(x, scale):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.scale * gradient, None


class Cube(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, w):
        return x**3 * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return 3 * x**2 * w * gradient, 2 * (gradient * x**3).sum(0)  # twice what it should be, on purpose


@block()
def straight_through(self, h):
    return StraightThrough.apply(h)


@block(scale=lambda: 0.3)
def reversal(self, h):
    return Reversal.apply(h, self.scale)


@block(inner=linear, gate=lambda: nn.Parameter(torch.zeros(WIDTH)))
def gated_from_zero(self, h):
    return h + self.gate * StraightThrough.apply(self.inner(h))


@block(w=weight())
def cube(self, h):
    return Cube.apply(h, self.w)


@block(inner=linear)
def checkpointed(self, h):
    return checkpoint(lambda x: torch.sin(self.inner(x)), h, use_reentrant=False)


@block(inner=linear)
def checkpointed_reentrant(self, h):
    return checkpoint(lambda x: torch.sin(self.inner(x)), h, use_reentrant=True)


@block(inner=linear)
def double_backward(self, h):
    with torch.enable_grad():
        x = h if h.requires_grad else h.detach().requires_grad_()
        (slope,) = torch.autograd.grad(torch.sin(self.inner(x)).sum(), x, create_graph=True)
    return slope


@block(inner=linear)
def functional_derivative(self, h):
    return torch.func.jvp(self.inner, (h,), (torch.ones_like(h),))[1] + torch.vmap(torch.sin)(h)


@block(inner=linear)
def no_grad_part(self, h):
    with torch.no_grad():
        scale = self.inner(h).abs().mean()
    return h * scale + self.inner(h.detach())


# Buffers.


@block(mean=zeros())
def buffer_in_place(self, h):
    self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
    return h - self.mean


@block(mean=zeros())
def buffer_assigned(self, h):
    self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
    return h - self.mean


@block(count=scalar())
def integer_buffer(self, h):
    self.count += 1
    return h * (1 + 0.1 * self.count)


@block(count=scalar(torch.bool))
def flag_buffer(self, h):
    self.count.logical_not_()
    return torch.where(self.count, h, -h)


@block(queue=zeros(4, WIDTH), place=scalar())
def ring_buffer(self, h):
    self.queue[self.place % 4] = h.detach().mean(0)
    self.place.add_(1)
    return h + self.queue.mean(0)


# Values, numbers and shapes.


@block(out=lambda: nn.Linear(4, WIDTH))
def spectrum(self, h):
    return self.out(torch.fft.rfft(h).abs())


@block(turn=weight(3))
def complex_product(self, h):
    turned = torch.view_as_complex(h.view(-1, 3, 2).contiguous()) * torch.polar(torch.ones_like(self.turn), self.turn)
    return torch.view_as_real(turned).flatten(1)


@block()
def in_place(self, h):
    h = h.clone()
    h.mul_(0.5).add_(1.0)
    h[:, 0] += h[:, 1]
    h[1:3].neg_()
    return h


@block()
def views(self, h):
    left, right = h.chunk(2, dim=1)
    turned = torch.cat([right, left.flip(1)], 1).t().reshape(WIDTH, -1).transpose(0, 1)
    return turned + h.as_strided((h.shape[0], WIDTH), (WIDTH, 1)) if h.is_contiguous() else turned


@block(w=weight())
def masked(self, h):
    return h.masked_fill(h < 0, 0.1) * self.w + h[h > 0].sum() / 10


@block(w=weight())
def indexed(self, h):
    order = torch.tensor([2, 0, 1, 5, 5, 3])
    return h[:, order] * self.w[order] + h.gather(1, h.argsort(1))


@block(w=weight())
def selected(self, h):
    top = h.topk(2, 1).values.sum(1, keepdim=True)
    return torch.where(h > 0, h * self.w, h) + top + h.cumsum(1).logsumexp(1, keepdim=True)


@block(w=weight(WIDTH, WIDTH))
def solved(self, h):
    return torch.linalg.solve(self.w @ self.w.t() + torch.eye(WIDTH, dtype=h.dtype), h.t()).t()


@block(w=weight())
def noise(self, h):
    return h + 0.1 * self.w * torch.randn(h.shape, generator=torch.Generator().manual_seed(3), dtype=h.dtype)


@block(inner=linear)
def rounded(self, h):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(h.float(), self.inner.weight.float()).to(h.dtype)


# Python and control flow.


@block(calls=lambda: 0)
def counter(self, h):
    self.calls += 1
    return h * (1 + 0.1 * self.calls)


@block(seen=list)
def memory(self, h):
    self.seen.append(h.detach().mean())
    return h + sum(self.seen)


@block(last=lambda: {"h": None})
def previous(self, h):
    before, self.last["h"] = self.last["h"], h.detach()
    return h if before is None or before.shape != h.shape else h + 0.5 * before


@block(inner=linear)
def branch_on_tensor(self, h):
    return self.inner(h) if h.mean() > 0 else h


@block(inner=linear)
def branch_on_mode(self, h):
    return self.inner(h) if self.training and torch.is_grad_enabled() else h


@block(inner=linear)
def loop_until(self, h):
    for _ in range(5):
        h = torch.tanh(self.inner(h))
        if float(h.detach().abs().max()) < 0.3:
            break
    return h


# What a step reads in Python, and the training changes between rounds: `() -> (read, write)`.

State = tuple[Callable[[], float], Callable[[float], object]]
STATES: dict[str, Callable[[], State]] = {}


def state(make: Callable[[], State]) -> Callable[[], State]:
    STATES[make.__name__] = make
    return make


BETA = 0.0
NESTED: dict[str, Any] = {"loss": {"weights": [0.0]}}
CONTEXT: contextvars.ContextVar[float] = contextvars.ContextVar("beta", default=0.0)


@dataclasses.dataclass
class Settings:
    beta: float = 0.0

    @property
    def doubled(self) -> float:
        return 2 * self.beta

    def __call__(self) -> float:
        return self.beta


class Slots:
    __slots__ = ("beta",)


@state
def in_dict() -> State:
    values = {"beta": 0.0}
    return lambda: values["beta"], lambda value: values.update(beta=value)


@state
def in_namespace() -> State:
    values = types.SimpleNamespace(beta=0.0)
    return lambda: values.beta, functools.partial(setattr, values, "beta")


@state
def in_dataclass() -> State:
    values = Settings()
    return lambda: values.beta, functools.partial(setattr, values, "beta")


@state
def in_property() -> State:
    values = Settings()
    return lambda: values.doubled, functools.partial(setattr, values, "beta")


@state
def in_callable() -> State:
    values = Settings()
    return values, functools.partial(setattr, values, "beta")


@state
def in_class() -> State:
    class Values:
        beta = 0.0

    return lambda: Values.beta, functools.partial(setattr, Values, "beta")


@state
def in_slots() -> State:
    values = Slots()
    return lambda: values.beta, functools.partial(setattr, values, "beta")


@state
def in_cell() -> State:
    beta = 0.0

    def write(value: float) -> None:
        nonlocal beta
        beta = value

    return lambda: beta, write


@state
def in_global() -> State:
    def write(value: float) -> None:
        global BETA
        BETA = value

    return lambda: BETA, write


@state
def in_nested_global() -> State:
    return lambda: NESTED["loss"]["weights"][0], lambda value: NESTED["loss"].update(weights=[value])


@state
def in_list() -> State:
    values = [0.0] * 20
    return lambda: values[17], functools.partial(values.__setitem__, 17)


@state
def in_array() -> State:
    values = np.zeros(3)
    return lambda: float(values[1]), functools.partial(values.__setitem__, 1)


@state
def in_bytes() -> State:
    values = bytearray(2)
    return lambda: values[1] / 100, lambda value: values.__setitem__(1, int(100 * value))


@state
def in_c() -> State:
    values = ctypes.c_double()
    return lambda: values.value, functools.partial(setattr, values, "value")


@state
def in_tensor() -> State:
    values = torch.zeros((), dtype=torch.float64)
    return lambda: values, values.fill_


@state
def in_replaced_tensor() -> State:
    values = {"beta": torch.zeros((), dtype=torch.float64)}
    return lambda: values["beta"], lambda value: values.update(beta=torch.tensor(value, dtype=torch.float64))


@state
def in_environment() -> State:
    return lambda: float(os.environ.get("BETA", "0")), lambda value: os.environ.update(BETA=str(value))


@state
def in_context() -> State:
    return CONTEXT.get, CONTEXT.set


@state
def in_mode() -> State:
    values = {"warm": True}
    return lambda: 0.7 if values["warm"] else 0.1, lambda value: values.update(warm=value < 0.5)


@state
def in_function() -> State:
    values = {"read": lambda: 0.0}
    return lambda: values["read"](), lambda value: values.update(read=lambda: value)


ALONE = {"in_iterator", "in_random"}
"""States that every call of the step changes: several learners have an order in `eager` only."""


@state
def in_iterator() -> State:
    values = itertools.count()
    return lambda: next(values) / 10, lambda value: None


@state
def in_random() -> State:
    numbers = random.Random(0)
    return numbers.random, lambda value: None


# Losses and steps: `(read) -> loss`, `(read, model) -> step`; the last one looks at the model that it was not given.

LOSSES: dict[str, Callable[[Callable[[], float]], Any]] = {
    "cross_entropy": lambda read: F.cross_entropy,
    "module": lambda read: nn.CrossEntropyLoss(label_smoothing=0.1),
    "state": lambda read: lambda made, labels: F.cross_entropy(made, labels) + read() * made.square().mean(),
    "scaled": lambda read: lambda made, labels: F.cross_entropy(made, labels) * (1 + read()),
    "several": lambda read: (
        lambda made, labels: F.nll_loss(F.log_softmax(made, 1), labels) + 0.1 * made.abs().mean() + 0.01 * made.var()
    ),
    "margin": lambda read: nn.MultiMarginLoss(),
    "temperature": lambda read: Temperature(),
}
STEPS: dict[str, Callable[[Callable[[], float], nn.Module], Any]] = {
    "metrics": lambda read, model: functools.partial(step_with_metrics, read),
    "penalty": lambda read, model: functools.partial(step_with_penalty, read),
    "twice": lambda read, model: functools.partial(step_twice, read),
    "outer": lambda read, outer: (
        lambda model, batch: (
            F.cross_entropy(model(batch[0]), batch[1]) + 0.01 * sum(each.square().sum() for each in outer.parameters())
        )
    ),
}


class Temperature(nn.Module):
    """A loss with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, made: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(made * self.scale, labels) + 0.1 * self.scale**2


def step_with_metrics(read, model, batch):
    inputs, labels = batch
    made = model(inputs)
    loss = F.cross_entropy(made, labels) + read() * made.square().mean()
    return loss, {"accuracy": (made.argmax(1) == labels).double().mean(), "size": made.detach().norm()}


def step_with_penalty(read, model, batch):
    inputs, labels = batch
    inputs = inputs.detach().requires_grad_()
    made = model(inputs)
    (slope,) = torch.autograd.grad(made.sum(), inputs, create_graph=True)
    return F.cross_entropy(made, labels) + (0.1 + read()) * slope.square().mean()


def step_twice(read, model, batch):
    inputs, labels = batch
    with torch.no_grad():
        soft = model(inputs + 0.1).softmax(1)
    return F.cross_entropy(model(inputs), labels) + (0.5 + read()) * F.mse_loss(model(-inputs).softmax(1), soft)


class Model(nn.Module):
    """A stem, blocks and a head."""

    def __init__(self, names: tuple[str, ...], read: Callable[[], float] | None) -> None:
        super().__init__()
        self.stem = linear()
        self.blocks = nn.ModuleList(BLOCKS[name]() for name in names)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.read = read

    def forward(self, h: Tensor) -> Tensor:
        h = torch.tanh(self.stem(h))
        for module in self.blocks:
            h = torch.tanh(module(h)) + 0.1 * h
        return self.head(h if self.read is None else h * (1 + self.read()))


# Adam divides by what may be rounding noise: a larger epsilon says how far that can go.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.2),
    "momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.5, nesterov=True),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.05, eps=1e-3),
    "rmsprop": functools.partial(torch.optim.RMSprop, lr=0.02, eps=1e-3),
}


@dataclasses.dataclass(frozen=True)
class Program:
    """A model and its step, as a user would hand them over, and what changes a value that they read."""

    model: nn.Module
    loss: Any
    step: Any
    write: Callable[[float], object]


@dataclasses.dataclass(frozen=True)
class Case:
    """What is trained; equal cases are equal trainings."""

    blocks: tuple[str, ...]
    state: str
    in_model: bool
    loss: str
    optimizer: str
    learners: int
    clip_norm: float | None = None
    from_zero: bool = False
    late: bool = False

    @classmethod
    def drawn(cls, seed: int) -> Case:
        """Blocks and states take turns, so that all come; what they meet is drawn."""
        draw = random.Random(seed)
        first = list(BLOCKS)[seed % len(BLOCKS)]
        state = list(STATES)[seed % len(STATES)]
        return cls(
            (first, *draw.sample(sorted(BLOCKS), draw.choice((0, 0, 1, 2)))),
            state,
            draw.random() < 0.4,
            draw.choice([*LOSSES, *STEPS]),
            draw.choice(list(OPTIMIZERS)),
            1 if state in ALONE else draw.choice((1, 2)),
            draw.choice((None, None, None, 0.5)),
            draw.random() < 0.3,
            draw.random() < 0.3,
        )

    def simpler(self) -> Iterator[Case]:
        """Cases with a part less."""
        for place in range(len(self.blocks)):
            yield dataclasses.replace(self, blocks=self.blocks[:place] + self.blocks[place + 1 :])
        plain = {"in_model": False, "loss": "cross_entropy", "optimizer": "sgd", "learners": 1, "clip_norm": None}
        plain |= {"from_zero": False, "late": False}
        for name, value in plain.items():
            if getattr(self, name) != value:
                yield dataclasses.replace(self, **{name: value})

    def optimizer_over(self, parameters: Any) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.optimizer](parameters)

    @property
    def values(self) -> tuple[float, ...]:
        return LATE if self.late else VALUES

    @property
    def is_random(self) -> bool:
        return "dropout" in self.blocks

    def build(self) -> Program:
        """A new one, with states of its own; only globals are shared, and they are put back."""
        torch.manual_seed(0)
        read, write = STATES[self.state]()
        write(0.0)
        model = Model(self.blocks, (lambda: read()) if self.in_model else None).double()  # a copy reads the same
        if self.from_zero:
            nn.init.zeros_(model.head.weight)
        chosen = STEPS[self.loss](read, model) if self.loss in STEPS else LOSSES[self.loss](read)
        chosen = chosen.double() if isinstance(chosen, nn.Module) else chosen
        return Program(model, *((None, chosen) if self.loss in STEPS else (chosen, None)), write)

    def batches(self, rounds: int, size: int = BATCH) -> list[list[tuple[Tensor, Tensor]]]:
        """By round and learner."""
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(rounds, self.learners, size, WIDTH, generator=generator, dtype=torch.float64)
        labels = torch.randint(CLASSES, (rounds, self.learners, size), generator=generator)
        return [list(zip(*each, strict=True)) for each in zip(inputs, labels, strict=True)]
