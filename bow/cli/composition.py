"""Convert the command line to plain settings with hydra; only this module uses hydra, and rewords its errors."""

import functools
import itertools
import pickle
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from bow.cli.checking import suggestion
from bow.errors import SettingError, disk_reason
from bow.training.checks import MOVED
from bow.values import given_path

CONFIG = "config"
SEARCH_PATH = "hydra.searchpath"
MANY = ("logger",)  # groups that allow several options at once
MISTAKES = (HydraException, OmegaConfBaseException, ValueError)  # raised by hydra for a user's mistakes
# Short names of the sections' first fields
SHORT = {"run": "run.path", "devices": "devices.count", "validation": "validation.data"}
SECTIONS = ("engine.", "devices.", "validation.", "run.")
TARGETS = "validation.target."
_LIBRARY = re.compile(r"^model=(timm|torchvision|hf):([^,]+)$")  # a model of another library
_HOME = re.compile(r"^([^=]+)=(~[^'\"\[{,]*)$")  # a path with a home directory, which hydra accepts only quoted


@dataclass(frozen=True)
class Composition:
    """The settings of one run."""

    settings: dict[str, Any]
    choices: dict[str, str]
    overrides: tuple[str, ...]

    def given(self, key: str) -> bool:
        return any(key_of(override) == key for override in self.overrides)


def key_of(word: str) -> str:
    """Return the key of an override: `run.path` of `run=DIR`, `model.width` of `++model.width=4`."""
    name = word.partition("=")[0].lstrip("+~")
    return SHORT.get(name, name)


def compose(overrides: Sequence[str]) -> Composition:
    """Compose the settings of one run; an override that is a whole `_target_` mapping replaces the default."""
    with _hydra():
        parsed = [_parse(each) for each in _with_library(overrides)]
        _refuse_doubtful(parsed)
        in_parts = [override for override in parsed if not _is_whole(override)]
        config = _compose(in_parts)
        choices = _choices(config)
        # A recipe's settings of a group hold for the recipe's option of it: one optimizer's do not suit another.
        if foreign := _foreign_to_recipe(parsed, choices):
            about = {*foreign, "hydra"}
            own = [override for override in in_parts if str(override.key_or_group).split(".")[0] in about]
            base = _compose([*own, _parse("recipe=none")])
            for group in foreign:
                config[group] = base[group]
        _replace_whole(parsed, config, choices)
        return Composition(_plain(config), choices, tuple(overrides))


def recompose(file: str | Path, overrides: Sequence[str]) -> Composition:
    """Return the settings of a run's `config.yaml` with overrides, for a new run or to resume the same one."""
    settings = _read(given_path("--config", file))
    if isinstance(run := settings.get("run"), dict):
        goes_on = any(override.startswith("run.resume=") for override in overrides)
        run |= {"resume": None} if goes_on else {"resume": None, "path": None}
    with _hydra():
        parsed = [_named(_parse(each)) for each in overrides]
        _refuse_doubtful(parsed)
        known, config = set(_flat_keys(settings)), OmegaConf.create(settings)
        for override in parsed:
            key, line = str(override.key_or_group), override.input_line
            if key in _groups() and not _is_whole(override):
                raise SettingError(
                    f"{line} chooses another {key}, but --config has the settings of one; write {key}.NAME=VALUE, or "
                    f"{key}={{_target_: NAME, ...}}"
                )
            if key not in known and not override.is_add() and not key.startswith(TARGETS):
                raise SettingError(f"{line} sets {key}, which does not exist; {_instead_of(key, known, {})}")
            OmegaConf.update(config, key, override.value(), merge=not _is_whole(override), force_add=True)
        return Composition(_plain(config), {}, tuple(overrides))


def _named(override: Override) -> Override:
    """Rewrite `engine=NAME` as `engine.name=NAME`."""
    if override.key_or_group != "engine" or not isinstance(override.value(), str):
        return override
    return _parse(f"engine.name={override.value()}")


def _read(file: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingError(
            f"--config {file} cannot be read ({disk_reason(error)}); give a run's config.yaml"
        ) from error
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
        raise SettingError(
            f"--config {file} is not from a run of the bow train command (it has no model._target_); repeat a run of "
            "bow.train with its Python program"
        )
    now = {name: key for name, (_, key) in MOVED.items() if name != "tuner" and name in settings}
    firsts = {"engine": "engine.name", **SHORT}
    now |= {name: f"{key}=..." for name, key in firsts.items() if not isinstance(settings.get(name, {}), dict)}
    if now:
        moved = ", ".join(f"{name} is {key} now" for name, key in now.items())
        raise SettingError(f"--config {file} is of an earlier version: {moved}; correct a copy of it")
    return settings


def sweep(overrides: Sequence[str]) -> list[list[str]]:
    with _hydra():
        axes = [_axis(_parse(each)) for each in overrides]
        return [list(run) for run in itertools.product(*axes)]


def options() -> dict[str, list[str]]:
    with _hydra():
        return {group: _options(group) for group in _groups()}


@contextmanager
def _hydra() -> Iterator[None]:
    GlobalHydra.instance().clear()
    with initialize_config_module("bow.conf", version_base="1.3"):
        yield


def _axis(override: Override) -> list[str]:
    line = str(override.input_line)
    if not override.is_sweep_override():
        return [line]
    values = override.sweep_string_iterator() if override.is_discrete_sweep() else ()  # not interval(0, 1), glob(*)
    runs = [f"{override.get_key_element()}={value}" for value in values]
    if not runs:
        raise SettingError(f"{line} has no values; separate values by commas")
    return runs


def _with_library(overrides: Sequence[str]) -> Sequence[str]:
    """Rewrite `model=timm:NAME` as `model=timm` and `model.name`; allow settings of the model that are unknown here."""
    found = next(filter(None, map(_LIBRARY.match, overrides)), None)
    if found is None:
        return overrides
    named = [f"model={found[1]}", f"++model.name='{found[2]}'"]
    others = [override for override in overrides if override != found.string]
    return [*named, *(f"++{each}" if each.startswith("model.") else each for each in others)]


def _parse(override: str) -> Override:
    if override.startswith("-"):
        raise SettingError(
            f"{override} is not an option of this command; settings are written NAME=VALUE, such as learners=4"
        )
    if override.find("=") < 1 and not override.startswith("~"):
        homes = [group for group in ("recipe", *_groups()) if override in _options(group)]
        example = f"did you mean {homes[0]}={override}?" if homes else "write NAME=VALUE, such as learners=4"
        raise SettingError(f"{override!r} is not a setting; {example}")
    override = _HOME.sub(r"\1='\2'", override)
    name, _, value = override.partition("=")
    override = f"{SHORT.get(name, name)}={value}" if "=" in override else override
    moved = name.lstrip("+~").split(".")[0]
    if moved in MOVED and moved != "tuner":
        raise SettingError(f"{override} sets {moved}, which is {MOVED[moved][1]} now")
    if override == "engine=whole_round":
        raise SettingError(f"{override} is engine=graph engine.capture=round now")
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    try:
        return parser.parse_overrides([override])[0]
    except MISTAKES:
        raise SettingError(
            f"{override} cannot be read; write NAME=VALUE, close every bracket and quote, and put quotes around"
            " values with special characters, such as 'run.path=\"my runs\"'"
        ) from None


def _refuse_doubtful(parsed: Sequence[Override]) -> None:
    counts = Counter(override.get_key_element().lstrip("+") for override in parsed)
    for override in parsed:
        key, line = override.key_or_group, override.input_line
        if counts[override.get_key_element().lstrip("+")] > 1:
            values = " and ".join(str(other.input_line) for other in parsed if other.key_or_group == key)
            raise SettingError(f"{key} is given more than once, {values}; keep one of them")
        if override.is_sweep_override():
            raise SettingError(f"{line} is a sweep over several values; add -m to train with each of them")
        if key.startswith("hydra") and key != SEARCH_PATH:
            raise SettingError(
                f"{line} has no effect, because bow sets hydra up itself; remove it, and set run.path=DIR for"
                " the directory of a run"
            )
        if override.is_delete() and ("." not in key or key.startswith(SECTIONS)) and not key.startswith(TARGETS):
            raise SettingError(f"{line} deletes a setting that is required; write {key.lstrip('~')}=VALUE instead")
        if key in _groups():
            _check_choice(key, override)


def _check_choice(group: str, override: Override) -> None:
    value, line = override.value(), override.input_line
    if isinstance(value, dict):
        raise SettingError(f"{line} does not choose an option of {group}; write {group}.NAME=VALUE for its settings")
    if isinstance(value, list) and group not in MANY:
        raise SettingError(f"{line} chooses several options of {group}, which takes one; choose one of them")
    if value is None:
        raise SettingError(f"{line} chooses nothing; choose one of {', '.join(_options(group))}")
    if not isinstance(value, str | list):
        raise SettingError(f"{line} does not exist; choose one of {', '.join(_options(group))}")


def _line(override: Override) -> str:
    """Return the override for hydra; keys below a mapping that is empty by default need `++`."""
    line = str(override.input_line)
    return f"++{line}" if override.key_or_group.startswith(TARGETS) and not line.startswith(("+", "~")) else line


def _compose(overrides: Sequence[Override]) -> DictConfig:
    try:
        return _composed(overrides)
    except MissingConfigException as error:
        group, _, option = (error.missing_cfg_file or "").rpartition("/")
        if not group:
            raise SettingError(f"the configuration cannot be found: {_first_line(error)}") from None
        raise SettingError(f"{group}={option} does not exist; {suggestion(option, error.options or [])}") from None
    except MISTAKES as error:
        raise _rejected(error, overrides) from None


def _composed(overrides: Sequence[Override]) -> DictConfig:
    """Compose with hydra; cached by chosen groups, as it is slow, unless a search path is given."""
    if any(override.key_or_group == SEARCH_PATH for override in overrides):
        return hydra_compose(CONFIG, overrides=list(map(_line, overrides)), return_hydra_config=True)
    chosen = [override for override in overrides if override.key_or_group in _groups()]
    config: DictConfig = pickle.loads(_of_groups(tuple(map(_line, chosen))))
    values = OverridesParser.create().parse_overrides([_line(each) for each in overrides if each not in chosen])
    ConfigLoaderImpl._apply_overrides_to_config(values, config)
    return config


@functools.cache
def _of_groups(chosen: tuple[str, ...]) -> bytes:
    """Return the pickled configuration: a copy by pickle takes a fraction of the time of `copy.deepcopy`."""
    return pickle.dumps(hydra_compose(CONFIG, overrides=list(chosen), return_hydra_config=True))


def _rejected(error: Exception, overrides: Sequence[Override]) -> SettingError:
    groups = [override for override in overrides if override.key_or_group in (*_groups(), SEARCH_PATH)]
    for override in overrides:
        try:
            _composed([*groups, *([] if override in groups else [override])])
        except MISTAKES as reason:
            return _explain(override, reason, groups)
    return SettingError(f"these settings cannot be combined: {_first_line(error)}")


def _explain(override: Override, reason: Exception, groups: Sequence[Override]) -> SettingError:
    key, line = str(override.key_or_group), str(override.input_line)
    config = _composed(groups)
    known = set(_flat_keys(OmegaConf.to_container(config, resolve=False)))
    if override.is_add() and key in known:
        return SettingError(f"{line} adds a setting that already exists; write {line.removeprefix('+')} to change it")
    if key.endswith("._target_") and key not in known:
        return SettingError(f"{line} sets {key}, which does not exist; {_as_whole(override, config)}")
    if key in known or key in _groups():
        return SettingError(f"{line} cannot be used: {_first_line(reason)}")
    return SettingError(f"{line} sets {key}, which does not exist; {_instead_of(key, known, _choices(config))}")


def _replace_whole(parsed: Sequence[Override], config: DictConfig, choices: Mapping[str, str]) -> None:
    for override in parsed:
        key = str(override.key_or_group)
        if _is_whole(override):
            OmegaConf.update(config, key, override.value(), merge=False, force_add=True)
        elif key.endswith("._target_") and key.split(".")[0] not in choices:
            line = override.input_line
            raise SettingError(f"{line} changes only the _target_ of an object; {_as_whole(override, config)}")


def _is_whole(override: Override) -> bool:
    value = None if override.is_sweep_override() else override.value()
    return isinstance(value, dict) and "_target_" in value


def _as_whole(override: Override, config: DictConfig) -> str:
    home = str(override.key_or_group).removesuffix("._target_")
    new = "+" if "." in home and OmegaConf.select(config, home) is None else ""
    return f"write '{new}{home}={{_target_: {override.value()}, ...}}'"


def _instead_of(key: str, known: set[str], choices: Mapping[str, str]) -> str:
    parent, _, name = key.rpartition(".")
    if parent not in choices:
        nested = sorted(other for other in known if other.endswith(f".{key}") and other.count(".") == 1)
        return suggestion(nested[0] if nested else key, known, "bow train --help lists the settings")
    siblings = [other.rpartition(".")[2] for other in known if other.rpartition(".")[0] == parent]
    names = sorted(sibling for sibling in siblings if sibling != "_target_")
    return suggestion(name, names, f"{parent}={choices[parent]} has {', '.join(names) or 'no settings'}")


def _plain(config: DictConfig) -> dict[str, Any]:
    """Return the settings without hydra's own, which are removed from the configuration."""
    try:
        with open_dict(config):
            config.pop("hydra", None)
        settings = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = error.full_key or "a setting"
        raise SettingError(f"{key} cannot be resolved: {_first_line(error)}; correct the expression in ${{}}") from None
    assert isinstance(settings, dict)
    return {str(key): value for key, value in settings.items()}


def _choices(config: DictConfig) -> dict[str, str]:
    return {group: option for group, option in config.hydra.runtime.choices.items() if "hydra" not in group}


def _foreign_to_recipe(parsed: Sequence[Override], choices: Mapping[str, str]) -> list[str]:
    """Return the groups for which the command line chose another option than the recipe."""
    chosen = {override.key_or_group for override in parsed} & choices.keys() - {"recipe", *MANY}
    if not chosen or "recipe" not in choices:
        return []
    places = [override for override in parsed if override.key_or_group == SEARCH_PATH]
    own = _choices(_compose([*places, _parse(f"recipe={choices['recipe']}")]))
    return [group for group in chosen if choices[group] != own[group]]


@functools.cache
def _groups() -> tuple[str, ...]:
    loader = GlobalHydra.instance().config_loader()
    names = loader.get_group_options("", ObjectType.GROUP)
    return tuple(name for name in names if name != "hydra" and not name.startswith("_"))


def _options(group: str) -> list[str]:
    return list(GlobalHydra.instance().config_loader().get_group_options(group))


def _flat_keys(settings: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            yield f"{prefix}{key}"
            yield from _flat_keys(value, f"{prefix}{key}.")


def _first_line(error: Exception) -> str:
    line = str(error).strip().split("\n")[0].rstrip(".")
    return re.sub(r"^\w+ raised while resolving interpolation: ", "", line)
