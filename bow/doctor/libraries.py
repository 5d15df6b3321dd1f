"""Which libraries are there, in which version, and what is lost without those that are not."""

import importlib.metadata
from dataclasses import dataclass

REQUIRED = {
    "torch": "training",
    "cloudpickle": "several devices",
    "numpy": "arrays",
    "safetensors": "saved models",
    "scikit-learn": "the digits data set",
    "hydra-core": "the command line",
    "pyyaml": "the command line",
    "rich": "progress",
    "matplotlib": "reports",
    "jinja2": "reports",
    "jaxtyping": "annotations",
    "wandb": "logger=wandb",
}
OPTIONAL = {"tensorboard": "logger=tensorboard", "cupy": "CUDA kernels"}
ALIASES = {"cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy")}
EXCLUSIVE = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
REMEDIES = {
    "tensorboard": "pip install 'bow-trainer[tensorboard]'",
    "cupy": "pip install 'bow-trainer[cu13]'",
}


@dataclass(frozen=True)
class Library:
    """A library that bow uses.

    Attributes:
        name: of its distribution.
        purpose: what bow needs it for.
        version: the one that is installed; None: missing.
        required: whether bow does without it.
    """

    name: str
    purpose: str
    version: str | None
    required: bool

    @property
    def remedy(self) -> str:
        """How to get it."""
        return REMEDIES.get(self.name, f"pip install {self.name}")


def find_libraries() -> list[Library]:
    """All libraries that bow uses, without importing one of them."""
    required = [Library(name, purpose, version(name), True) for name, purpose in REQUIRED.items()]
    return required + [Library(name, purpose, version(name), False) for name, purpose in OPTIONAL.items()]


def problems() -> list[str]:
    """What is wrong with the installed libraries together."""
    there = [name for name in EXCLUSIVE if version(name)]
    if len(there) < len(EXCLUSIVE):
        return []
    return [f"{' and '.join(there)} are both installed and overwrite each other's files; uninstall one of them"]


def version(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    for alias in ALIASES.get(name, (name,)):
        try:
            return importlib.metadata.version(alias)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
