"""What can be set of `python -m benchmarks planner`."""

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.arguments import check_positive, setting
from benchmarks.planner.problems import TITLES
from benchmarks.results import RESULTS
from bow.errors import SettingError

PARTS = ("proof", "neighbours", "simulators", "curve", "seeds", "clusters")
PROOFS = ("lenet", "rnnlm")


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark."""

    out: Path = setting(RESULTS, "folder for planner.json and planner.md; parts left out stay as they are there")  # noqa: RUF009 - it is dataclasses.field
    docs: Path = setting(Path("docs"), "folder with planning.md, whose tables and pictures are replaced")  # noqa: RUF009
    parts: tuple[str, ...] = setting(PARTS, "of the benchmark", choices=PARTS)
    networks: tuple[str, ...] = setting(tuple(TITLES), "of the paper", choices=tuple(TITLES))
    size: str = setting("paper", "of the networks", choices=("paper", "tiny"))
    proofs: tuple[str, ...] = setting(PROOFS, "proof: networks, RNNLM with two steps", choices=PROOFS)
    proof_s: float = setting(3600.0, "proof: seconds for each network")
    search_s: float = setting(60.0, "proof: seconds of the search that is compared with the proof")
    local_devices: tuple[int, ...] = setting((2, 4, 8), "neighbours: numbers of devices")
    local_s: float = setting(60.0, "neighbours: seconds of a search, before it goes down until no neighbour is better")
    simulated_devices: tuple[int, ...] = setting((4, 8, 16, 32, 64), "simulators: numbers of devices")
    recorded_s: float = setting(60.0, "simulators: seconds of the search whose proposals are recorded, at most")
    replayed_s: float = setting(10.0, "simulators: seconds for which each algorithm replays them")
    curve_s: float = setting(960.0, "curve: seconds of each search")
    seeds: int = setting(10, "seeds: searches with as many seeds")
    long_seeds: int = setting(3, "seeds: of which so many are repeated with ten times the time")
    seed_s: float = setting(120.0, "seeds: seconds of a search with two processes")
    cluster_devices: tuple[int, ...] = setting((4, 16, 64), "clusters: numbers of devices, of P100s at most 16")
    cluster_s: float = setting(120.0, "clusters: seconds of a search")
    workers: int = setting(2, "processes that share what is not a race")
    seed: int = setting(0, "of all random numbers")
    quick: bool = setting(False, "a small part of each, to see that it works: tiny networks, one process")

    def __post_init__(self) -> None:
        numbers = ("proof_s", "search_s", "local_s", "recorded_s", "replayed_s", "curve_s", "seed_s", "cluster_s")
        check_positive(self, *numbers, "seeds", "workers", "local_devices", "simulated_devices", "cluster_devices")
        if not 0 <= self.long_seeds <= self.seeds:
            raise SettingError(f"long_seeds must be from 0 to seeds={self.seeds}, got {self.long_seeds}")
        for name in ("parts", "networks", "proofs"):
            if not getattr(self, name):
                raise SettingError(f"{name} must not be empty; leave it out for all")

    def reduced(self) -> "Settings":
        """What `quick` makes of the settings."""
        if not self.quick:
            return self
        return replace(
            self,
            docs=self.out,
            networks=("nmt",),
            size="tiny",
            proofs=("rnnlm",),
            proof_s=3.0,
            search_s=0.2,
            local_devices=(2,),
            local_s=0.1,
            simulated_devices=(4,),
            recorded_s=0.2,
            replayed_s=0.1,
            curve_s=0.2,
            seeds=2,
            long_seeds=1,
            seed_s=0.1,
            cluster_devices=(4,),
            cluster_s=0.2,
            workers=1,
        )
