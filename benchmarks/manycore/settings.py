"""What can be set of `python -m benchmarks manycore`."""

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.arguments import check_positive, setting
from benchmarks.results import RESULTS
from bow.errors import SettingError
from bow.models import NETWORKS

GRAPHI = ("lstm", "phased_lstm", "pathnet", "googlenet")
LIU = ("resnet50", "dcgan", "inception")


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark."""

    out: Path = setting(RESULTS, "folder for manycore.json and manycore.md")  # noqa: RUF009 - it is dataclasses.field
    docs: Path = setting(Path("docs"), "folder with scheduling.md, whose tables and pictures are replaced")  # noqa: RUF009
    graphi: tuple[str, ...] = setting(GRAPHI, "networks of Tang et al.", choices=GRAPHI)
    sizes: tuple[str, ...] = setting(("small", "medium", "large"), "of these networks")
    detail: str = setting("medium", "size whose queues, options and sensitivity are looked at")
    liu: tuple[str, ...] = setting(LIU, "networks of Liu et al.", choices=LIU)
    size: str = setting("paper", "of these networks")
    noise: float = setting(0.01, "of what climbs measure: standard deviation of the logarithm")
    interval: int = setting(4, "threads that a climb adds at a time")
    dispatch_ns: tuple[int, ...] = setting((0, 100, 300, 1000), "for which an executor that polls keeps a queue")
    factors: tuple[float, ...] = setting((0.5, 2.0), "that parameters of the machine are multiplied by, one at a time")
    seeds: int = setting(5, "schedulers that take any ready operator, each with draws of its own")
    seed: int = setting(0, "of the noise, and of the first of these")
    workers: int = setting(2, "processes that share the networks; 1: this one")
    quick: bool = setting(False, "a small part, to see that it works: tiny networks, one process")

    def __post_init__(self) -> None:
        check_positive(self, "interval", "factors", "seeds", "workers")
        if not self.noise >= 0:
            raise SettingError(f"noise must be at least 0, got {self.noise}; 0.01 is 1%")
        if not self.dispatch_ns or min(self.dispatch_ns) < 0:
            raise SettingError(f"dispatch_ns must be at least 0, and one value, got {self.dispatch_ns}")
        for network in self.graphi:
            for size in (*self.sizes, self.detail):
                NETWORKS[network].size(size)
        for network in self.liu:
            NETWORKS[network].size(self.size)

    def reduced(self) -> "Settings":
        """What `quick` makes of the settings."""
        if not self.quick:
            return self
        return replace(
            self,
            graphi=self.graphi[::2],
            sizes=("tiny",),
            detail="tiny",
            liu=self.liu[1:2] or self.liu,
            size="tiny",
            dispatch_ns=(0, 1000),
            factors=(2.0,),
            seeds=2,
            workers=1,
            docs=self.out,
        )

    @property
    def draws(self) -> range:
        """Seeds of the schedulers that take any ready operator."""
        return range(self.seed, self.seed + self.seeds)
