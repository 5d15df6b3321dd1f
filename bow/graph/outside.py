"""Find tensors that a step reaches outside its model: these are neither trained, averaged nor saved."""

import contextlib
import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bow.errors import LossError
from bow.graph.refusal import GENERATORS

MANY = 10_000  # visit at most about this many objects

CONTAINERS = (list, tuple, set, frozenset, deque)

PLAIN = (type(None), bool, int, float, str)  # hold nothing

REGISTERED = ("_parameters", "_buffers", "_modules")  # attributes of modules with the model's own tensors

REMEDY = "make its module part of the model and compute the loss in step=, or"


class OutsideTensors:
    """Tensors and modules that a step reaches and that are not registered in the model, as parameters of a loss."""

    def __init__(self, step: Any, model: nn.Module) -> None:
        self._named = {id(each): name for name, each in model.named_parameters() if each.requires_grad}
        self._own = {id(each) for each in chain(model.parameters(), model.buffers())}
        found = list(_reached(step, model))
        parts = (value.named_parameters() if isinstance(value, nn.Module) else [("", value)] for _, value in found)
        # Whether a parameter that is trained is also reached otherwise than by its name, as through a list.
        self.is_held = any(id(each) in self._named for _, each in chain.from_iterable(parts))
        found = [(name, value) for name, value in found if id(value) not in self._own]
        self._found = {name: value for name, value in found if not isinstance(value, GENERATORS)}
        self.generators = [value for _, value in found if isinstance(value, GENERATORS)]
        self._versions = {name: (id(tensor), tensor._version) for name, tensor in self._kept()}

    @property
    def may_matter(self) -> bool:
        """Whether `check` can ever raise for them."""
        return bool(self._versions) or any(tensor.requires_grad for tensor in self._tensors().values())

    def by_name(self) -> contextlib.AbstractContextManager[Any]:
        """Refuse, where others take the parameters' place by name, operators on the parameters themselves."""
        return _ByName(self._named) if self.is_held else contextlib.nullcontext()

    def check(self, loss: Tensor, leaves: Iterable[Any]) -> None:
        """Refuse a loss that depends on other tensors than `leaves`, and a step that changed an outside module."""
        # `leaves` are the batch, and the parameters or what takes their place; they may be held in lists, too.
        given = {id(leaf) for leaf in tree_leaves(list(leaves))}
        own = (self._own - self._named.keys()) | given
        names = {id(tensor): name for name, tensor in self._tensors().items()}
        for leaf in _leaves_of(loss):
            if (named := self._named.get(id(leaf))) is not None and id(leaf) not in given:
                raise _held(named)
            if id(leaf) not in own and (id(leaf) in names or isinstance(leaf, nn.Parameter)):  # else the step made it
                name = f"{names[id(leaf)]!r}" if id(leaf) in names else "a parameter"
                raise LossError(
                    f"the loss depends on {name} of shape {tuple(leaf.shape)}, which "
                    f"requires a gradient, is not in the model and so would never be trained; {REMEDY} call "
                    "requires_grad_(False) on it"
                )
        now = {name: (id(tensor), tensor._version) for name, tensor in self._kept()}
        for name, before in self._versions.items():
            if now.get(name) != before:
                raise LossError(
                    f"the step changes {name!r}, which is not in the model: learners would share it, and no "
                    f"checkpoint would have it; {REMEDY} leave it as it is"
                )

    def _tensors(self) -> dict[str, Tensor]:
        bare = ((name, value) for name, value in self._found.items() if isinstance(value, Tensor))
        return dict(chain(bare, self._kept()))

    def _kept(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self._found.items():
            if isinstance(value, nn.Module):
                for path, tensor in chain(value.named_parameters(), value.named_buffers()):
                    if id(tensor) not in self._own:
                        yield f"{name}.{path}", tensor


class _ByName(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, named: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._named = named

    def __torch_dispatch__(self, operator: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        for leaf in tree_leaves((args, keywords)):
            if id(leaf) in self._named:
                raise _held(self._named[id(leaf)])
        return operator(*args, **keywords)


def _held(name: str) -> LossError:
    return LossError(
        f"the step uses parameter {name!r} other than by its name, as through a list that holds it, where it would not "
        "be trained, and learners might read each other's; reach it by its name, or use nn.ParameterList"
    )


def _leaves_of(loss: Tensor) -> Iterator[Tensor]:
    seen, waiting = set(), [loss.grad_fn]
    for node in waiting:
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
            if (leaf := getattr(node, "variable", None)) is not None:
                yield leaf


def _reached(step: Any, model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Iterate over reachable tensors, modules and generators with their names, including attributes of modules."""
    seen = set(map(id, model.modules()))
    waiting: list[tuple[Any, str]] = [(step, "step")]
    for path, module in model.named_modules():
        skipped = {*REGISTERED, "_flat_weights"} if isinstance(module, nn.RNNBase) else REGISTERED  # which it renews
        waiting.append(({key: own for key, own in vars(module).items() if key not in skipped}, path or "model"))
    for value, name in waiting:
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (Tensor, nn.Module, *GENERATORS)):
            yield name, value
        if len(waiting) < MANY:
            parts = ((key, part) for key, part in _parts(value).items() if _may_hold(part))
            waiting += [(part, key if name == "step" else f"{name}.{key}") for key, part in parts]


def _may_hold(value: Any) -> bool:
    return bool(value) if isinstance(value, (dict, *CONTAINERS)) else not isinstance(value, PLAIN)


def _parts(value: Any) -> Mapping[str, Any]:
    kind = type(value)
    if isinstance(value, functools.partial):
        return {"func": value.func, "args": value.args, **value.keywords}
    if isinstance(value, MethodType):
        return {"__func__": value.__func__, "self": value.__self__}
    if isinstance(value, FunctionType):
        outer = inspect.getclosurevars(value)
        modules = [each for each in outer.globals.values() if isinstance(each, ModuleType)]
        named = {name: vars(each)[name] for each in modules for name in outer.unbound & vars(each).keys()}
        return {} if _is_of_torch(value) else {**named, **outer.globals, **outer.nonlocals}
    if isinstance(value, dict):
        return {str(key): part for key, part in value.items()}
    if isinstance(value, CONTAINERS):
        return {str(index): part for index, part in enumerate(value)}
    if isinstance(value, Tensor | ModuleType) or _is_of_torch(value):
        return {}
    if isinstance(value, type):
        return {name: part for name, part in vars(value).items() if not name.startswith("__")}
    if kind.__module__ == "builtins":
        return {}
    code = kind.forward if isinstance(value, nn.Module) else inspect.getattr_static(kind, "__call__", None)
    return {"": code, "class": kind, **getattr(value, "__dict__", {})}


def _is_of_torch(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "torch"
