"""What the command line can set."""

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.arguments import check_positive, setting
from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.task import DATA, MODELS
from benchmarks.results import RESULTS
from bow.errors import SettingError

# Where results of `quick` go by default, so that they do not replace those that are committed
QUICK = Path("build/quick")


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark."""

    out: Path = setting(RESULTS, "folder for peers.json, peers.md and peers.png; quick: build/quick")  # noqa: RUF009 - it is dataclasses.field
    contestants: tuple[str, ...] = setting(tuple(CONTESTANTS), "who takes part", choices=tuple(CONTESTANTS))
    model: str = setting("lenet", "what is trained", choices=tuple(MODELS))
    data: str = setting("fashion_mnist", "data set", choices=tuple(DATA))
    root: str = setting("", "folder of its files; empty: where they usually are")
    device: str = setting("cpu", "where", choices=("cpu", "cuda"))
    target: float = setting(0.89, "accuracy to be reached, as a share")
    epochs: int = setting(6, "passes over the data after which a training ends")
    limit_s: float = setting(120.0, "seconds of training after which it ends")
    evaluate_every: float = setting(0.125, "epochs between evaluations")
    seeds: int = setting(3, "trainings of each contestant in the finals")
    batch_sizes: tuple[int, ...] = setting((8, 16, 32, 64, 128, 256), "swept for plain PyTorch and for bow")
    lrs: tuple[float, ...] = setting((0.00125, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16), "likewise")
    large_batch_sizes: tuple[int, ...] = setting((128, 256, 512), "tried by the linear scaling rule")
    threads: tuple[int, ...] = setting((1, 2), "torch's threads; whoever gains by more of them has them")
    quick: bool = setting(False, "a small part, to see that it works: an MLP on the digits, one seed, one setting")

    def __post_init__(self) -> None:
        names = ("target", "epochs", "limit_s", "evaluate_every", "seeds")
        check_positive(self, *names, "batch_sizes", "lrs", "large_batch_sizes", "threads")
        if self.evaluate_every > 1:
            raise SettingError(f"evaluate_every must be at most 1 epoch, got {self.evaluate_every:g}")

    def reduced(self) -> "Settings":
        """What `quick` makes of the settings."""
        if not self.quick:
            return self
        return replace(
            self,
            out=QUICK if self.out == RESULTS else self.out,
            model="mlp",
            data="digits",
            root="",
            seeds=1,
            batch_sizes=(16,),
            lrs=(0.05,),
            large_batch_sizes=(64,),
            threads=(1,),
        )
