"""Values in Python that a captured step reads: where they may lie, and what is left alone."""

import argparse
import array
import dataclasses
import functools
import itertools
import sys
import types
from collections import ChainMap, UserDict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bow
from bow.engines.frozen import MAX_PLACES, FrozenValues
from bow.testing import FakeDevice
from tests.grouped import of_replicas

pytestmark = pytest.mark.usefixtures("_captured_anew")

BETA = 0.0
LEARNERS = 2


@dataclasses.dataclass
class Config:
    beta: float = 0.0
    unread: int = 0


class Slots:
    __slots__ = ("_beta",)

    def __init__(self) -> None:
        self._beta = 0.0

    @property
    def beta(self) -> float:
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._beta = value


class Settings:
    beta = 0.0


class Stored:
    """A descriptor."""

    def __get__(self, instance: Any, owner: type) -> Any:
        return instance.stored["value"]


class Described:
    beta = Stored()

    def __init__(self) -> None:
        self.stored = {"value": 0.0}


class Scaled:
    """An object that is called."""

    def __init__(self) -> None:
        self.inner = types.SimpleNamespace(values=[{"beta": 0.0}])

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) + self._term()

    def _term(self) -> float:
        value: float = self.inner.values[0]["beta"]
        return value


class LossModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.beta = 0.0

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) + self.beta


def with_term(term: Callable[[], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, targets: cross_entropy(outputs, targets) + float(term())


def weighted(outputs: Tensor, targets: Tensor, *, weights: dict[str, float]) -> Tensor:
    return cross_entropy(outputs, targets) + weights["beta"]


def by_default(outputs: Tensor, targets: Tensor, weights: list[float] = [0.0]) -> Tensor:  # noqa: B006 - on purpose
    return cross_entropy(outputs, targets) + weights[0]


def with_global(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets) + sum(BETA for _ in range(1))


def with_import(outputs: Tensor, targets: Tensor) -> Tensor:
    import imported_settings

    return cross_entropy(outputs, targets) + imported_settings.beta


def set_global(value: float) -> None:
    global BETA
    BETA = value


def place(name: str) -> tuple[Callable[..., Tensor], Callable[[float], None]]:
    """A loss that reads a value at some place, and what sets it there."""
    dictionary, listed, of_numpy = {"beta": 0.0}, [0.0], np.zeros(2)
    namespace, config, slots = argparse.Namespace(beta=0.0), Config(), Slots()
    nested, scaled, module = {"loss": {"kl": [0.0, 1.0]}}, Scaled(), LossModule()
    omega, beta, chosen = OmegaConf.create({"train": {"beta": 0.0}}), 0.0, {0.0}
    described, user, chained = Described(), UserDict({"beta": 0.0}), ChainMap({}, dictionary)
    context: ContextVar[float] = ContextVar("beta", default=0.0)
    file: Any = types.ModuleType("settings_of_the_users")
    file.beta = 0.0
    numbers, octets, imported = array.array("d", [0.0]), bytearray(2), types.ModuleType("imported_settings")
    vars(sys.modules.setdefault("imported_settings", imported)).update(beta=0.0)
    Settings.beta = by_default.__defaults__[0][0] = 0.0  # type: ignore[index]
    set_global(0.0)

    def set_cell(value: float) -> None:
        nonlocal beta
        beta = value

    @functools.cache
    def cached() -> float:
        return listed[0]

    def set_cached(value: float) -> None:
        listed[0] = value
        cached.cache_clear()

    def set_choice(value: float) -> None:
        chosen.clear()
        chosen.add(value)

    places: dict[str, tuple[Callable[..., Tensor], Callable[[float], None]]] = {
        "dictionary": (with_term(lambda: dictionary["beta"]), lambda v: dictionary.update(beta=v)),
        "method": (with_term(functools.partial(dictionary.get, "beta")), lambda v: dictionary.update(beta=v)),
        "nested": (with_term(lambda: nested["loss"]["kl"][0]), lambda v: nested["loss"]["kl"].__setitem__(0, v)),
        "list": (with_term(lambda: listed[0]), lambda v: listed.__setitem__(0, v)),
        "longer list": (with_term(lambda: len(listed) - 1), lambda v: listed.extend([1.0] * int(v))),
        "set": (with_term(lambda: max(chosen)), set_choice),
        "array": (with_term(lambda: of_numpy[1]), lambda v: of_numpy.__setitem__(1, v)),
        "array of Python's": (with_term(lambda: numbers[0]), lambda v: numbers.__setitem__(0, v)),
        "bytearray": (with_term(lambda: octets[1]), lambda v: octets.__setitem__(1, int(v))),
        "imported where it is read": (with_import, lambda v: setattr(sys.modules["imported_settings"], "beta", v)),
        "namespace": (with_term(lambda: namespace.beta), lambda v: setattr(namespace, "beta", v)),
        "getattr": (with_term(lambda: getattr(namespace, "beta")), lambda v: setattr(namespace, "beta", v)),  # noqa: B009
        "dataclass": (with_term(lambda: config.beta), lambda v: setattr(config, "beta", v)),
        "property of slots": (with_term(lambda: slots.beta), lambda v: setattr(slots, "beta", v)),
        "class": (with_term(lambda: Settings.beta), lambda v: setattr(Settings, "beta", v)),
        "module": (with_term(lambda: file.beta), lambda v: setattr(file, "beta", v)),
        "cell": (with_term(lambda: beta), set_cell),
        "global": (with_global, set_global),
        "callable object": (scaled, lambda v: scaled.inner.values[0].update(beta=v)),
        "bound method": (scaled.__call__, lambda v: scaled.inner.values[0].update(beta=v)),
        "loss module": (module, lambda v: setattr(module, "beta", v)),
        "partial": (functools.partial(weighted, weights=dictionary), lambda v: dictionary.update(beta=v)),
        "default": (by_default, lambda v: by_default.__defaults__[0].__setitem__(0, v)),  # type: ignore[index]
        "descriptor": (with_term(lambda: described.beta), lambda v: described.stored.update(value=v)),
        "context variable": (with_term(context.get), context.set),
        "ChainMap": (with_term(lambda: chained["beta"]), lambda v: dictionary.update(beta=v)),
        "UserDict": (with_term(lambda: user["beta"]), lambda v: user.update(beta=v)),
        "cached function": (with_term(lambda: cached()), set_cached),
        "hydra's configuration": (with_term(lambda: omega.train.beta), lambda v: omega.train.update(beta=v)),
    }  # fmt: skip
    return places[name]


PLACES = [
    *("dictionary", "method", "nested", "list", "longer list", "set", "array", "namespace", "getattr"),
    *("dataclass", "property of slots", "class", "cell", "global", "callable object", "bound method", "loss module"),
    *("module", "descriptor", "context variable", "ChainMap", "UserDict", "cached function"),
    *("partial", "default", "hydra's configuration"),
    *("array of Python's", "bytearray", "imported where it is read"),
]


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 6, generator=generator), torch.randint(3, (4,), generator=generator)


def every_place() -> Iterator[Any]:
    """Each on one of the engines in turn; `--nightly` has all."""
    for (i, name), (j, engine) in itertools.product(
        enumerate(PLACES), enumerate(("graph", "graph@fake", "graph+round@fake"))
    ):
        yield pytest.param(name, engine, marks=pytest.mark.nightly if (i - j) % 3 else ())


@pytest.mark.parametrize(("name", "engine"), list(every_place()))
def test_a_value_that_changes_is_captured_anew_wherever_it_lies(name: str, engine: str) -> None:
    loss, put = place(name)
    engine, _, fake = engine.partition("@")
    still = functools.partial(torch.optim.SGD, lr=0.0)
    device = FakeDevice() if fake else "cpu"
    replicas = bow.Replicas(
        nn.Linear(6, 3), loss, **of_replicas(learners=LEARNERS, engine=engine, device=device, optimizer=still)
    )
    given = [batch(j) for j in range(LEARNERS)]
    try:
        before = replicas.round(given).clone()
        put(2.0)
        torch.testing.assert_close(replicas.round(given), before + 2)
        torch.testing.assert_close(replicas.round(given), before + 2)
        assert replicas.engine == engine
        assert not replicas.loop.take_events()
    finally:
        replicas.close()


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.1))


def test_values_that_the_step_does_not_name_are_not_watched() -> None:
    config = Config()
    frozen = FrozenValues(with_term(lambda: config.beta), model())
    config.unread += 1
    assert frozen.changed() is None


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda made: setattr(made[1], "p", 0.2), "p"),
        (lambda made: made[1].eval(), "training"),
        (lambda made: made.apply(lambda module: setattr(module, "training", False)), "training"),
        (lambda made: made[1].register_forward_hook(lambda *_: None), "hook"),
        (lambda made: setattr(made, "1", nn.ReLU()), "_modules"),
    ],
)
def test_attributes_hooks_and_parts_of_the_model_are_watched(change: Callable[[Any], object], name: str) -> None:
    made = model()
    frozen = FrozenValues(cross_entropy, made)
    assert frozen.changed() is None
    change(made)
    assert name in (frozen.changed() or "")


def test_what_a_forward_method_reads_is_watched() -> None:
    config = {"scale": 1.0}

    class Reading(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) * config["scale"]

    frozen = FrozenValues(cross_entropy, Reading(6, 3))
    config["scale"] = 2.0
    assert "config" in (frozen.changed() or "")


def test_the_learning_rate_that_a_step_reads_is_watched() -> None:
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    frozen = FrozenValues(with_term(lambda: optimizer.param_groups[0]["lr"]), made)
    optimizer.param_groups[0]["lr"] = 0.01
    assert "lr" in (frozen.changed() or "")


def test_an_equal_value_has_not_changed_and_one_of_another_type_has() -> None:
    config = {"beta": 1000.0, "name": [1, 2], "tensor": torch.ones(2)}
    frozen = FrozenValues(with_term(lambda: config["beta"]), model())
    config["beta"] = float("1000")
    assert frozen.changed() is None
    config["beta"] = 1000
    assert "beta" in (frozen.changed() or "")


def test_no_code_of_the_users_is_called() -> None:
    class Strict:
        def __init__(self) -> None:
            self.inner = [1.0]

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

        @property
        def beta(self) -> float:
            raise AssertionError

    strict = Strict()
    frozen = FrozenValues(with_term(lambda: strict.beta), model())
    assert frozen.changed() is None


def test_so_much_is_watched_and_not_more() -> None:
    many = {index: [torch.ones(1)] for index in range(900)}
    more = [{"a": object(), "b": index} for index in range(900)]
    large = list(range(10**6))
    frozen = FrozenValues(with_term(lambda: many[0][0] + more[0]["b"] + large[0]), model())
    assert len(frozen._values) < MAX_PLACES + 100
    large.append(1)
    assert "large" in (frozen.changed() or "")


def test_buffers_that_have_not_changed_are_no_change() -> None:
    numbers, octets = array.array("d", [0.0]), bytearray(2)
    frozen = FrozenValues(with_term(lambda: numbers[0] + octets[0] + np.zeros(1)[0]), model())
    other = FrozenValues(with_term(lambda: numbers[0] + octets[0] + np.zeros(1)[0]), model())
    assert frozen.changed() is None
    before = frozen.text()
    octets[0] = 1
    assert frozen.changed() == other.changed() == "octets"
    assert before != FrozenValues(with_term(lambda: numbers[0] + octets[0] + np.zeros(1)[0]), model()).text()
