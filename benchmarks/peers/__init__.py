"""Time to accuracy of bow, compared with its alternatives.

The same model on the same data, on one machine, with one command: plain PyTorch, compiled PyTorch, with large batches
or as a CUDA graph, accelerate's LocalSGD, Lightning, an ensemble with `torch.func`, and `bow.train`. Two stages:

1. with one seed, batch size and learning rate are swept for plain PyTorch and for bow, with the same rule on the same
   grid; the others use the best setting of plain PyTorch, large batches with the linear scaling rule;
2. the best setting of each (of plain PyTorch and bow the best two) is trained with other seeds, all contestants in
   turns for each seed.

It checks the claim `verdict.CLAIM`: the exit status is 1 if it does not hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import harness
from benchmarks.caches import empty_caches
from benchmarks.harness import setting, values_text, whole_spread
from benchmarks.peers import picture
from benchmarks.peers.contestants import AS_BOW_SETS, BOW, CONTESTANTS, LARGE_BATCH, PYTORCH
from benchmarks.peers.program import (
    FINALISTS,
    REHEARSALS,
    REHEARSED_EPOCHS,
    Program,
    missing,
    package_versions,
    train_apart,
)
from benchmarks.peers.sweep_rule import MARGIN, RULE
from benchmarks.peers.task import DATA, MODELS, read_data
from benchmarks.peers.training import DIVERGED, FAILED, FINAL, SWEEP, Training, by_choice
from benchmarks.peers.verdict import CLAIM, LEAST_SEEDS, LIMIT, decide, represent, time_ratios
from benchmarks.trainings import MOMENTUM
from bow.data import DataSplits
from bow.errors import SettingError


@dataclass(frozen=True)
class Config(harness.Config):
    contestants: tuple[str, ...] = setting(tuple(CONTESTANTS), "contestants", choices=tuple(CONTESTANTS))
    model: str = setting("lenet", "model to train", choices=tuple(MODELS), quick="mlp")
    data: str = setting("fashion_mnist", "data set", choices=tuple(DATA), quick="digits")
    root: str = setting("", "folder of its files; empty: the default locations")
    device: str = setting("cpu", "device", choices=("cpu", "cuda"))
    target: float = setting(0.89, "target accuracy, as a fraction")
    epochs: int = setting(6, "maximum number of epochs")
    limit_s: float = setting(120.0, "maximum training time in seconds")
    evaluate_every: float = setting(0.125, "epochs between evaluations")
    seeds: int = setting(3, "number of seeds in the finals", quick=1)
    batch_sizes: tuple[int, ...] = setting(
        (8, 16, 32, 64, 128, 256), "swept for plain PyTorch and for bow", quick=(16,)
    )
    lrs: tuple[float, ...] = setting(
        (0.00125, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16), "learning rates", quick=(0.05,)
    )
    large_batch_sizes: tuple[int, ...] = setting((128, 256, 512), "tried by the linear scaling rule", quick=(64,))
    threads: tuple[int, ...] = setting((1, 2), "candidate numbers of torch's threads; the fastest is used", quick=(1,))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.evaluate_every > 1:
            raise SettingError(f"evaluate_every must be at most 1 epoch, got {self.evaluate_every:g}")


def measure(config: Config) -> dict[str, Any]:
    data = check(config)
    with empty_caches() as caches:
        program = Program(config, partial(train_apart, environment=caches), harness.say)
        program.run()
    verdict = decide(program.of(FINAL))
    harness.say(str(verdict))
    return {
        "fixed": f"{MODELS[config.model]}, SGD with momentum {MOMENTUM:g}, constant learning rate, float32",
        "epoch_samples": len(data.train[1]),
        "test_samples": len(data.validation[1]),
        "rehearsed_epochs": REHEARSED_EPOCHS,
        "rehearsals": REHEARSALS,
        "finalists": FINALISTS,
        "rule": RULE,
        "margin": MARGIN,
        "limit": LIMIT,
        "least_seeds": LEAST_SEEDS,
        "environments": {name: dict(contestant.environment) for name, contestant in CONTESTANTS.items()},
        "packages": package_versions(),
        "left_out": program.left_out,
        "verdict": verdict.as_dict(),
        "finals": {name: [asdict(choice) for choice in own] for name, own in program.entries.items()},
        "trainings": [training.as_dict() for training in program.trainings],
    }


def missed(values: Mapping[str, Any]) -> bool:
    """Whether the claim does not hold."""
    return values["verdict"]["is_met"] is False


def check(config: Config) -> DataSplits:
    """Check the settings before the first training; returns the data."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise SettingError("device=cuda needs a CUDA device, and torch sees none; use device=cpu")
    absent = missing(config)
    if set(config.contestants) <= set(absent):
        whys = "; ".join(f"{name}: {why}" for name, why in absent.items())
        raise SettingError(f"contestants must name at least one that can take part, got {whys or 'nothing'}")
    return read_data(config.data, config.root)


def draw(values: Mapping[str, Any], folder: Path) -> None:
    """Plot accuracy against seconds of training."""
    finals = [training for training in trainings_of(values) if training.stage == FINAL]
    picture.draw(finals, values["settings"]["target"], folder / "peers.png")


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    trainings = trainings_of(values)
    finals = [training for training in trainings if training.stage == FINAL]
    verdict = decide(finals)
    return {
        "claim": CLAIM,
        "told_verdict": f"**{verdict}** {verdict.explanation()}".strip(),
        "duels": verdict.duels,
        "rows": finals_rows(finals),
        "contestants": CONTESTANTS,
        "as_bow_sets": AS_BOW_SETS,
        "sweeps": {name: _sweep(trainings, name, values) for name in (PYTORCH, BOW, LARGE_BATCH)},
    }


def trainings_of(values: Mapping[str, Any]) -> list[Training]:
    return [Training.from_dict(each) for each in values["trainings"]]


def finals_rows(finals: Sequence[Training]) -> list[list[str]]:
    """Return the cells of a row for every contestant and setting, the fastest first."""
    plain = represent([training for training in finals if training.choice.contestant == PYTORCH])
    names = {training.choice.contestant for training in finals}
    rows = []
    for trainings in sorted(by_choice(finals).values(), key=_rank):
        choice = trainings[0].choice
        reached = [training for training in trainings if training.time_s is not None]
        looked = [training for training in trainings if training.looks]
        ran_as = dict.fromkeys(training.ran_as for training in trainings if training.ran_as is not None)
        rows.append(
            [
                CONTESTANTS[choice.contestant].title,
                _setting_of(choice.contestant, names),
                str(choice.batch_size),
                f"{choice.lr:g}",
                str(choice.threads),
                "; ".join(map(str, ran_as)),
                _time(trainings),
                values_text([training.samples for training in reached], ",.0f"),
                values_text([training.throughput for training in looked], ",.0f"),
                values_text([training.rest_s for training in looked], ".1f"),
                values_text(time_ratios(trainings, plain), ".2f"),
            ]
        )
    return rows


def _setting_of(name: str, names: set[str]) -> str:
    """Describe the origin of a contestant's setting, in finals of these contestants."""
    base = CONTESTANTS[name].base
    if base is None:
        return "of its own sweep"
    if name == LARGE_BATCH:
        return "by linear scaling"
    if base not in names:
        return "middle of the grid"
    return "at plain PyTorch's setting" if base == PYTORCH else f"at {CONTESTANTS[base].title}'s setting"


def _sweep(trainings: Sequence[Training], name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Results of a contestant's sweep by batch size and learning rate, and whether the best is at the grid's edge."""
    own = [each for each in trainings if each.stage == SWEEP and each.choice.contestant == name]
    lrs = sorted({each.choice.lr for each in own})
    rows = []
    for size in sorted({each.choice.batch_size for each in own}):
        found = {each.choice.lr: each for each in own if each.choice.batch_size == size}
        threads = next(iter(found.values())).choice.threads
        rows.append([str(size), str(threads), *(_cell(found.get(lr)) for lr in lrs)])
    best, edges = next(iter(values["finals"].get(name, ())), None), []
    for what, grid in (("batch_size", values["settings"]["batch_sizes"]), ("lr", values["settings"]["lrs"])):
        if best and name != LARGE_BATCH and len(grid) > 1 and best[what] in (min(grid), max(grid)):
            edges.append(f"{what} {best[what]:g}")
    return {"lrs": lrs, "rows": rows, "edges": edges}


def _rank(trainings: Sequence[Training]) -> tuple[int, float]:
    """Sort key: most often at the target, then the shortest time."""
    times = [training.time_s for training in trainings if training.time_s is not None]
    return len(trainings) - len(times), whole_spread(times)["median"] if times else 0.0


def _time(trainings: Sequence[Training]) -> str:
    times = [training.time_s for training in trainings if training.time_s is not None]
    if len(times) == len(trainings):
        return values_text(times, ".1f")
    if not times and all(training.ending == FAILED for training in trainings):
        return f"failed: {trainings[0].why}"
    diverged = sum(training.ending == DIVERGED for training in trainings)
    best = max(training.best_accuracy for training in trainings)
    some = f"reached in {len(times)} of {len(trainings)}" if times else "not reached"
    return f"{some}, {f'{diverged} diverged, ' if diverged else ''}best {best:.1%}"


def _cell(training: Training | None) -> str:
    if training is None:
        return ""
    if training.ending in (DIVERGED, FAILED):
        return "✗" if training.ending == DIVERGED else FAILED
    return f"{training.best_accuracy:.1%}" if training.time_s is None else f"**{training.time_s:.1f} s**"
