"""Structural rules of the package."""

import functools
from pathlib import Path

import pytest

import bow
from tests import house

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]

UNREACHED = 0
NAMES_TWICE = 0
LARGE_CLASSES = 0
METHODS = 25
UNFINISHED = 0
LOADED_MODULES = 150  # of the package, that a training imports
LOADED_LINES = 20_000
SECTIONS = 1  # the aim is 0

LARGE = 25

# Packages whose names users meet, in addition to those of `bow` itself: for subclasses or in configurations.
EXTENDED = ("bow.data", "bow.devices", "bow.members", "bow.models", "bow.observe", "bow.sync", "bow.testing")


@functools.cache
def modules() -> dict[str, house.Module]:
    return house.read(ROOT)


def test_every_module_is_reached_from_a_public_name_a_command_or_the_configuration() -> None:
    unreached = set(modules()) - house.Imports(modules()).reached(house.roots(ROOT, modules()))
    assert len(unreached) <= UNREACHED, sorted(unreached)


def test_a_class_name_stands_for_one_class() -> None:
    twice = sorted(name for name, count in house.class_names(modules()).items() if count > 1)
    assert len(twice) <= NAMES_TWICE, twice


def test_classes_have_few_methods() -> None:
    sizes = {
        f"{module.name}.{node.name}": house.methods(node) for module in modules().values() for node in module.classes
    }
    large = {name: size for name, size in sizes.items() if size > LARGE}
    assert len(large) <= LARGE_CLASSES, large
    assert max(sizes.values()) <= METHODS, large


def test_what_a_class_inherits_it_can_do() -> None:
    unfinished = house.unfinished_overrides(modules())
    assert len(unfinished) <= UNFINISHED, unfinished


# Names that users meet beside `bow.train`, which loads all of its packages.
NAMED = "bow.members.StopRule, bow.observe.WandbLogger, bow.sync.Synchroniser, bow.sweep; print(*sys.modules)"


@functools.cache
def loaded() -> list[list[str]]:
    """One fresh interpreter, which takes seconds to load torch."""
    return house.loaded(ROOT, NAMED)


def test_training_loads_what_it_needs() -> None:
    loaded_by_training, _ = loaded()
    assert len(loaded_by_training) <= LOADED_MODULES
    assert sum(modules()[name].lines for name in loaded_by_training if name in modules()) <= LOADED_LINES


def test_importing_bow_finds_its_packages_and_imports_no_library_of_an_adapter() -> None:
    _, every = loaded()
    needed_by_some = {"hydra", "omegaconf", "wandb", "cupy", "sklearn", "optuna", "bow.integrations"}
    needed_by_some |= {"matplotlib", "tensorboard", "jinja2.environment"}
    assert not needed_by_some & set(every)


def test_docstrings_of_internal_functions_have_no_lists_of_arguments() -> None:
    public = {*bow.__all__, *(name for each in EXTENDED for name in house.passed_on(modules()[each]))}
    public |= {
        node.name for home in bow._INTEGRATIONS.values() for node in modules()[home].tree.body if hasattr(node, "name")
    }
    found = house.sections_of_internals(modules(), public)
    assert len(found) <= SECTIONS, found


def test_an_import_leads_to_the_module_that_has_the_name(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from toy.shop import sold as sold\n",
        "shop/__init__.py": "from toy.shop.goods import sold as sold\nfrom toy.shop.dust import kept as kept\n",
        "shop/goods.py": "def sold():\n    return __import__('toy.lazy')\n",
        "shop/dust.py": "kept = 1\n",
        "lazy.py": '"""Not toy.shop.dust."""\n',
    }
    for name, text in files.items():
        (tmp_path / "toy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "toy" / name).write_text(text)
    toy = house.read(tmp_path, "toy")
    assert set(toy) - house.Imports(toy).reached({"toy.shop.sold"}) == {"toy.shop.dust"}


def test_overrides_that_refuse_are_found(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/a.py").write_text(
        "class Base:\n    def run(self):\n        raise NotImplementedError\n\n"
        "class Half(Base):\n    def run(self):\n        raise NotImplementedError('no')\n"
    )
    assert house.unfinished_overrides(house.read(tmp_path, "toy")) == ["toy.a.Half.run"]
