"""The paper's experiments on planning that need no machine, simulated.

Steps of the paper's six networks are captured in the paper's sizes, its clusters are those of Figure 6, and what tiles
take is a roofline's. In parts: what the search finds against a proof of the optimum (proof) and against all neighbours
(neighbours), section 8.4; full and delta simulation of the same proposals (simulators), Table 4; the best time over the
time of the search (curve), Figure 12; NMT on 64 devices with several seeds (seeds); found strategies against data
parallelism, experts' and OptCNN's on both clusters (clusters), Figures 7, 8, 10b, 13 and 14; the same where every GPU
has a batch of that size (per_gpu); strategies on 16 P100 where messages pass each other (passing); and without a search
NMT on 64 K80 with 64 samples over all GPUs and for each (figure8), and the lower bound of every plan (bounds).

References:
    Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018, section 8.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import harness, write_page
from benchmarks.harness import setting
from benchmarks.planner.jobs import Done, own_jobs, shared_jobs
from benchmarks.planner.pictures import draw_curves, draw_strategies
from benchmarks.planner.problems import TITLES, graph_of
from bow.errors import SettingError

PARTS = ("proof", "neighbours", "simulators", "curve", "seeds", "clusters", "per_gpu", "passing", "figure8", "bounds")
PROOFS = ("lenet", "rnnlm")
DOCUMENT = "planning.md"
SEEDS_AIM = 0.05  # so far at most a search may be behind what is found in ten times its time


@dataclass(frozen=True)
class Config(harness.Documented):
    parts: tuple[str, ...] = setting(PARTS, "of the benchmark; those left out stay as they are", choices=PARTS)
    networks: tuple[str, ...] = setting(tuple(TITLES), "of the paper", choices=tuple(TITLES), quick=("nmt",))
    size: str = setting("paper", "of the networks", choices=("paper", "tiny"), quick="tiny")
    proofs: tuple[str, ...] = setting(PROOFS, "proof: networks, RNNLM with two steps", choices=PROOFS, quick=PROOFS[1:])
    proof_s: float = setting(3600.0, "proof: seconds for each network", quick=3.0)
    search_s: float = setting(60.0, "proof: seconds of the search that is compared with the proof", quick=0.2)
    local_devices: tuple[int, ...] = setting((2, 4, 8), "neighbours: numbers of devices", quick=(2,))
    local_s: float = setting(60.0, "neighbours: seconds of a search, before it goes down to the bottom", quick=0.1)
    simulated_devices: tuple[int, ...] = setting((4, 8, 16, 32, 64), "simulators: numbers of devices", quick=(4,))
    recorded_s: float = setting(60.0, "simulators: seconds of the search that is recorded, at most", quick=0.2)
    replayed_s: float = setting(10.0, "simulators: seconds for which each algorithm replays it", quick=0.1)
    curve_s: float = setting(960.0, "curve: seconds of each search", quick=0.2)
    seeds: int = setting(10, "seeds: searches with as many seeds", quick=2)
    long_seeds: int = setting(3, "seeds: of which so many are repeated with ten times the time", quick=1, least=0)
    seed_s: float = setting(120.0, "seeds: seconds of a search with two processes", quick=0.1)
    cluster_devices: tuple[int, ...] = setting((4, 16, 64), "clusters: devices, of P100s at most 16", quick=(4,))
    per_gpu_devices: tuple[int, ...] = setting((16,), "per_gpu: devices, of P100s at most 16", quick=(4,))
    cluster_s: float = setting(120.0, "clusters, per_gpu: seconds of a search", quick=0.2)
    passing_s: float = setting(20.0, "passing: seconds of a search", quick=0.2)
    workers: int = setting(2, "processes that share what is not a race", quick=1)
    seed: int = setting(0, "of all random numbers")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.long_seeds > self.seeds:
            raise SettingError(f"long_seeds must be from 0 to seeds={self.seeds}, got {self.long_seeds}")


def run(config: Config, command: str) -> int:
    """Search, prove and replay; what other parts found before stays in the JSON and on the page."""
    harness.prepare_output(config.out)
    began = time.perf_counter()
    graphs = {network: graph_of(network, config.size) for network in config.networks}
    done: list[Done] = []
    for jobs, workers in ((shared_jobs(config, graphs), config.workers), (own_jobs(config, graphs), 1)):
        for each in harness.parallel(jobs, workers):
            done.append(each)
            harness.say(f"{time.perf_counter() - began:.0f} s: {' '.join(each.key)}")
    own, file = _nested(done), config.out / "planner.json"
    made = harness.result("planner", command, config, time.perf_counter() - began, own)
    values = harness.with_other_parts(made, [part for part in config.parts if part in own], file)
    harness.write_json(file, values)
    if config.docs.is_dir():
        images = config.docs / "images"
        images.mkdir(parents=True, exist_ok=True)
        draw_strategies(values, {each.key[2]: each.splits for each in done if each.splits}, graphs, images)
        draw_curves(values.get("curve"), images / "planner_curve.svg")
    write_page("planner", sys.modules[__name__], config, values)
    return 0


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"titles": TITLES, "by_devices": by_devices, "with_optcnn": _with_optcnn, "held": _held(values)}


def by_devices(found: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """By network and number of devices, in order."""
    pairs = [(name, devices) for name in TITLES for devices in sorted(found.get(name, {}), key=int)]
    return [(name, devices, found[name][devices]) for name, devices in pairs]


def _with_optcnn(rows: Sequence[tuple[str, str, Any]]) -> list[tuple[str, str, Any]]:
    return [row for row in rows if "optcnn" in row[2]["strategies"]]


def _held(values: Mapping[str, Any]) -> dict[str, Any]:
    """How far searches are behind those that are ten times as long, of the same seed and of all."""
    short, long = (values.get("seeds", {}).get(which, {}) for which in ("short", "long"))
    best = min((each["found_ms"] for each in long.values()), default=1.0)

    def within(behind: Sequence[float]) -> str:
        close = sum(each <= SEEDS_AIM for each in behind)
        return f"{close} of {len(behind)} are at most {SEEDS_AIM:.0%} (the aim)"

    return {
        "own": [each["found_ms"] / long[seed]["found_ms"] - 1 for seed, each in short.items() if seed in long],
        "all": [each["found_ms"] / best - 1 for each in short.values()],
        "within": within,
    }


def _nested(done: Sequence[Done]) -> dict[str, Any]:
    """By part, and by each further word of the keys."""
    found: dict[str, Any] = {}
    for each in done:
        inside = found
        for word in each.key[:-1]:
            inside = inside.setdefault(word, {})
        inside[each.key[-1]] = each.found
    return found
