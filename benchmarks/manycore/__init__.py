"""Both papers on operator scheduling, on their machine, simulated.

Steps of the papers' networks are captured in the papers' sizes; operator times on the 68 cores of a Xeon Phi are
those of `Saturation`; the schedulers are those of the runtime. Nothing is executed, so the numbers are the same
on every machine.

Tang et al., 2018: speed-up by number of executors (Figure 6), critical path first against queues (Table 2), cells of
an LSTM along diagonals (section 7.4), the options of section 6. Liu et al., 2019: strategies 1 to 4 separately
(Figure 3), uniform pairs (Table I), concurrent operators (Figure 4), the longest operators (Table VI). Both:
sensitivity to the machine's parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import harness
from benchmarks.harness import setting
from benchmarks.manycore.claims import POINTS, graphi_claims, liu_claims, steps_of
from benchmarks.manycore.jobs import all_jobs
from benchmarks.manycore.machines import AS_IN_TENSORFLOW, CORES, LIU_MACHINES, TEAM_CORES, TEAMS_STAY
from benchmarks.manycore.options import CHANGE_MS
from benchmarks.manycore.pictures import draw_found
from benchmarks.manycore.strategies import SHARED
from bow.models import NETWORKS

GRAPHI = ("lstm", "phased_lstm", "pathnet", "googlenet")
LIU = ("resnet50", "dcgan", "inception")
DOCUMENT = "scheduling.md"


@dataclass(frozen=True)
class Config(harness.Documented):
    graphi: tuple[str, ...] = setting(GRAPHI, "networks of Tang et al.", choices=GRAPHI, quick=GRAPHI[::2])
    sizes: tuple[str, ...] = setting(("small", "medium", "large"), "sizes of these networks", quick=("tiny",))
    detail: str = setting("medium", "size for the studies of queues, options and sensitivity", quick="tiny")
    liu: tuple[str, ...] = setting(LIU, "networks of Liu et al.", choices=LIU, quick=LIU[1:2])
    size: str = setting("paper", "size of these networks", quick="tiny")
    noise: float = setting(0.01, "noise of the times that climbs measure: standard deviation of the logarithm", least=0)
    interval: int = setting(4, "threads that a climb adds per step")
    dispatch_ns: tuple[int, ...] = setting(
        (0, 100, 300, 1000), "time that an executor locks a queue per poll", quick=(0, 1000)
    )
    factors: tuple[float, ...] = setting(
        (0.5, 2.0), "factors on parameters of the machine, one at a time", quick=(2.0,)
    )
    seeds: int = setting(5, "number of random seeds of schedulers that choose any ready operator", quick=2)
    seed: int = setting(0, "seed of the noise, and first seed of these schedulers")
    workers: int = setting(2, "number of processes; 1: only this one", quick=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for network in self.graphi:
            for size in (*self.sizes, self.detail):
                NETWORKS[network].size(size)
        for network in self.liu:
            NETWORKS[network].size(self.size)

    @property
    def draws(self) -> range:
        """Seeds of the schedulers that choose any ready operator."""
        return range(self.seed, self.seed + self.seeds)


def measure(config: Config) -> dict[str, Any]:
    """Simulate everything; also draws the pictures, which show more than the JSON contains."""
    done = []
    for each in harness.parallel(all_jobs(config), config.workers):
        done.append(each)
        harness.say(f"{each.network}, {each.size}: {each.found['operators']} operators")
    found = {(each.network, each.size): each.found for each in done}
    graphi = {network: {size: found[network, size] for size in config.sizes} for network in config.graphi}
    if config.docs.is_dir():
        draw_found(done, graphi, config.docs / "images")
    return {
        "cores": CORES,
        "cores_of_executors": TEAM_CORES,
        "graphi": graphi,
        "liu": {network: found[network, config.size] for network in config.liu},
    }


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    graphi = values["graphi"]
    detailed = {name: own for name, sizes in graphi.items() for own in sizes.values() if "queues" in own}
    return {
        "claims": [*graphi_claims(graphi, values["settings"]["detail"]), *liu_claims(values["liu"])],
        "counts": sorted({row["executors"] for s in graphi.values() for own in s.values() for row in own["executors"]}),
        "detailed": detailed,
        "machines": list(LIU_MACHINES),
        "teams_stay": TEAMS_STAY,
        "as_in_tensorflow": AS_IN_TENSORFLOW,
        "points": POINTS,
        "change_ms": CHANGE_MS,
        "shared": SHARED,
        "steps_of": steps_of,
    }
