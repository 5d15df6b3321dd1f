"""Models of timm, torchvision and Hugging Face, from a name and a configuration; nothing is downloaded."""

import difflib
import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bow.errors import MissingDependencyError, SettingError, reason

HEADS = ("AutoModelForImageClassification", "AutoModelForCausalLM")  # the first that supports the model type is used


def timm(name: str | None, classes: int, channels: int = 3, **settings: Any) -> nn.Module:
    """Create a timm model with random weights; `settings` are passed to `timm.create_model`."""
    library = _library("timm", f"timm:{name}")
    if not (name and library.is_model(name)):
        raise _unknown("timm", name, library.list_models())
    model: nn.Module = library.create_model(name, num_classes=classes, in_chans=channels, **settings)
    return model


def torchvision(name: str | None, classes: int, channels: int = 3, **settings: Any) -> nn.Module:
    """Create a torchvision model with random weights; `settings` are passed to its function."""
    models = _library("torchvision", f"torchvision:{name}").models
    if name not in models.list_models():
        raise _unknown("torchvision", name, models.list_models())
    if channels != 3:
        raise SettingError(
            f"model=torchvision:{name} takes pictures of 3 channels, and the data have {channels}; choose other data, "
            "or model=timm:NAME"
        )
    model: nn.Module = models.get_model(name, num_classes=classes, **settings)
    return model


def hugging_face(name: str | None, classes: int, head: str | None = None, **settings: Any) -> nn.Module:
    """Create a model of Hugging Face's transformers with random weights, which returns its logits.

    `name` is a model type such as `"gpt2"`, or a folder with a `config.json`; `settings` override its configuration,
    and `head` is the class that creates it, such as `"AutoModelForTokenClassification"`.
    """
    library = _library("transformers", f"hf:{name}")
    settings.setdefault("num_labels", classes)
    if name and Path(name, "config.json").exists():
        config = library.AutoConfig.from_pretrained(name, local_files_only=True, **settings)
    elif name in library.CONFIG_MAPPING:
        config = library.AutoConfig.for_model(name, **settings)
    else:
        raise _unknown("hf", name, library.CONFIG_MAPPING)
    heads = [getattr(library, each, None) for each in (HEADS if head is None else (head,))]
    maker = next((each for each in heads if type(config) in getattr(each, "_model_mapping", ())), None)
    if maker is None:
        raise SettingError(
            f"model=hf:{name} is not made by {' or '.join(HEADS if head is None else (head,))}; write "
            "model.head=CLASS with the class of transformers that makes it"
        )
    if maker.__name__ == HEADS[1] and "vocab_size" not in settings:
        config.vocab_size = classes
    model: nn.Module = maker.from_config(config)
    model.register_forward_hook(_logits)
    return model


def _logits(model: nn.Module, given: Any, outputs: Any) -> Any:
    return getattr(outputs, "logits", outputs)


def _library(package: str, wanted: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        missing = error.name or package
        raise MissingDependencyError(f"model={wanted} needs the package {missing}; pip install {missing}") from error
    except (ImportError, RuntimeError, OSError) as error:  # e.g. a torchvision built for another torch
        raise MissingDependencyError(
            f"model={wanted} needs the package {package}, which cannot be imported ({reason(error)}); install builds "
            f"that belong to torch {torch.__version__}"
        ) from error


def _unknown(library: str, name: str | None, names: Iterable[str]) -> SettingError:
    near = difflib.get_close_matches(name or "", names := list(names), n=3, cutoff=0.5)
    instead = f"did you mean {' or '.join(near)}?" if near else f"there are {len(names)}, such as {names[0]}"
    given = f"model={library}:{name} does not exist" if name else f"model={library} needs a name, as in {library}:NAME"
    return SettingError(f"{given}; {instead}")
