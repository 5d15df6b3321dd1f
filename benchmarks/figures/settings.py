"""What can be set of `python -m benchmarks figures`."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.arguments import setting
from benchmarks.results import RESULTS
from bow.errors import SettingError

FIGURES = tuple(f"5.{number}" for number in range(1, 14))
TABLE = "table5.1"
NAMES = (*FIGURES, TABLE)  # In the order in which they are measured and shown

ALL = "all"
QUICK = "quick"
SIZES = ("small", "full")


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark."""

    out: Path = setting(RESULTS / "figures", "folder for the JSON files, pictures and figures.md")  # noqa: RUF009
    figure: tuple[str, ...] = setting((ALL,), "figures, such as 5.6,5.7 or table5.1", choices=(ALL, *NAMES))
    size: str = setting("small", "small: for two cores; full: as in the paper, for a GPU", choices=SIZES)
    root: str = setting("", "with size=full: folder with the files of MNIST and CIFAR-10, or with mnist/ and cifar10/")
    quick: bool = setting(False, "a small part, to see that it works: tiny models and data, short turns")

    def __post_init__(self) -> None:
        if not self.figure:
            choices = ", ".join((ALL, *NAMES))
            raise SettingError(f"figure must name at least one figure, got nothing; choose from {choices}")
        if self.quick and self.size != "small":
            raise SettingError(f"quick=true has a size of its own, got size={self.size}; leave one of the two out")
        if self.root and self.form != "full":
            raise SettingError(f"root={self.root} has an effect with size=full only; leave it out, or set size=full")

    @property
    def form(self) -> str:
        """Which form of the figures is measured."""
        return QUICK if self.quick else self.size

    @property
    def names(self) -> tuple[str, ...]:
        """The figures, each once, in order."""
        return NAMES if ALL in self.figure else tuple(name for name in NAMES if name in self.figure)
