"""Compare two versions of bow bit for bit: `python -m tests.compare_trees OLD [NEW]`.

Both arguments are checkouts. Each runs in its own process, with this interpreter and its packages, and records digests
of results that refactoring must not change: the central model after 50 rounds for every synchroniser and engine,
partitions found by searches with fixed seeds, schedules made from fixed profiles, and the end of a training that the
old version interrupts and the new one resumes. Prints the differences; exit status 1 if there is one that is not listed
with its reason.

`_spelling` has the names that differ between the versions.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROUNDS, LEARNERS, SIZE, CLASSES = 50, 3, 12, 3
OPTIMIZERS = {"momentum": {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}, "AdamW": {"lr": 0.01, "eps": 1e-4}}
DIVERGES_AT = 17
"""Round in which one learner's batch is not finite."""
LISTED = {
    r"z: (Independent|LocalSGD|DiLoCo).*, graph.*": "graph steps where nothing is averaged; torch did before",
}
"""Expected differences from earlier versions, with reasons."""
PLANS: dict[str, dict[str, Any]] = {
    "search": {"proposals": 300, "seed": 3},
    "search, two learners": {"proposals": 300, "learners": 2, "topology": "p100_node"},
    "data": {"proposals": 1, "starts": "data", "topology": "k80_node"},
}


def digest(value: Any) -> str:
    return hashlib.sha256(value if isinstance(value, bytes) else repr(value).encode()).hexdigest()[:16]


def digest_of_model(model: Any) -> str:
    tensors = sorted((name, tensor) for name, tensor in model.state_dict().items())
    return digest(b"".join(name.encode() + tensor.detach().contiguous().numpy().tobytes() for name, tensor in tensors))


# --- recording


def small_network() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Linear(SIZE, 16, bias=False),
        nn.BatchNorm1d(16),
        nn.Tanh(),
        nn.Linear(16, 8),
        nn.ReLU(),
        nn.Linear(8, CLASSES),
    )


def batch(seed: int, samples: int = 8) -> tuple[Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, SIZE, generator=generator), torch.randint(CLASSES, (samples,), generator=generator)


def trajectories() -> Iterator[tuple[str, Callable[[], Any]]]:
    """The central model after 50 rounds; with falling learning rate (a restart), a short round, a diverged learner."""
    import bow

    syncs = {
        "SMA": bow.SMA(),
        "SMA, two levels": bow.SMA(levels=2),
        "SMA every 2": bow.SMA(alpha=0.2, mu=0.9, every=2),
        "EASGD": bow.EASGD(alpha=0.2),
        "SSGD": bow.SSGD(),
        "LocalSGD": bow.LocalSGD(every=3),
        "DiLoCo": bow.DiLoCo(every=3),
        "ASGD": bow.ASGD(),
        "Independent": bow.Independent(),
    }
    for (name, sync), optimizer, engine, diverges in itertools.product(
        syncs.items(), OPTIMIZERS, ("eager", "streams", "graph", "fused"), (False, True)
    ):
        made = functools.partial(_central_model, sync, optimizer, engine, diverges, compile=False)
        yield f"z: {name}, {optimizer}, {engine}{', one diverges' if diverges else ''}", made
    for optimizer, engine in itertools.product(OPTIMIZERS, ("graph", "fused")):
        made = functools.partial(_central_model, syncs["SMA"], optimizer, engine, False, compile=True)
        yield f"z: SMA, {optimizer}, {engine}, compiled", made


def _central_model(sync: Any, optimizer: str, engine: str, diverges: bool, **settings: Any) -> str:
    import torch

    import bow

    torch.manual_seed(0)
    kinds = {"momentum": torch.optim.SGD, "AdamW": torch.optim.AdamW}
    replicas = bow.Replicas(
        small_network(),
        torch.nn.functional.cross_entropy,
        optimizer=functools.partial(kinds[optimizer], **OPTIMIZERS[optimizer]),
        learners=LEARNERS,
        sync=sync,
        **_engine_settings(engine, **settings),
        device="cpu",
        seed=0,
    )
    scheduler = torch.optim.lr_scheduler.StepLR(replicas.optimizer, 20, gamma=0.3)
    for t in range(ROUNDS):
        batches: list[Any] = [batch(10 * t + j) for j in range(LEARNERS)]
        if diverges and t == DIVERGES_AT:
            batches[1][0].fill_(float("nan"))
        replicas.round([*batches[:-1], None] if t == 30 else batches)
        scheduler.step()
    found = replicas.engine, digest_of_model(replicas.central)
    replicas.close()
    return ": ".join(found)


def partitions() -> Iterator[tuple[str, Callable[[], Any]]]:
    def found(**settings: Any) -> str:
        import torch

        import bow

        torch.manual_seed(0)
        given = {"topology": "p100_cluster", "budget_s": None, "progress": False, **settings}
        plan = bow.plan(small_network(), batch(0, 64), torch.nn.functional.cross_entropy, **given)
        return f"{plan.makespan_ns} ns, {digest(_spelling()['partition'](plan))}"

    for name, settings in PLANS.items():
        yield f"plan: {name}", functools.partial(found, **settings)


def schedules() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Schedule and simulated timeline of every policy, from synthetic times."""

    def made() -> str:
        import torch

        spelling = _spelling()
        torch.manual_seed(0)
        subject = spelling["Subject"].of(small_network(), batch(0), torch.nn.functional.cross_entropy)
        operators = range(subject.num_operators)
        times = {
            threads: tuple(
                spelling["OperatorTime"]((1 + i * 7919 % 31) * 1e-6 / threads**0.5, 0.0, 1) for i in operators
            )
            for threads in (1, 2, 3, 4)
        }
        names = tuple(f"operator {i % 5}" for i in operators)
        profile = spelling["Profile"](names, names, times, "no machine")
        policies = spelling["make_policies"](subject, profile, 4)
        known = [policy for policy in policies if "narrow" not in policy.name]  # unknown in older versions
        return ", ".join(f"{policy.name} {digest(spelling['schedule'](policy.schedule))}" for policy in known)

    yield "schedules", made


def _training(folder: Path | None, *, steps: int, resume: bool) -> str:
    import torch

    import bow

    torch.manual_seed(0)
    data = torch.randn(300, SIZE), torch.randint(CLASSES, (300,))
    try:
        result = bow.train(
            small_network,
            data,
            torch.nn.functional.cross_entropy,
            optimizer=functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
            learners=LEARNERS,
            engine="eager",
            batch_size=4,
            seed=0,
            **_spelling()["run"](folder, steps, resume),
        )
    except bow.BowError as error:
        return f"refused: {type(error).__name__}"
    return digest_of_model(result.model)


def _spelling() -> dict[str, Any]:
    """Names that differ between versions."""
    profiler = _first_of("bow.schedule.profiler", "bow.profiler")
    return {
        **{name: getattr(profiler, name) for name in ("Profile", "make_policies")},
        "Subject": getattr(profiler, "BoundStep", None) or profiler.Subject,
        "OperatorTime": profiler.OperatorTime,
        "partition": lambda found: (getattr(found, "partition", None) or found.strategy).splits,
        "schedule": _schedule_fields,
        "run": _run_settings,
    }


def _engine_settings(engine: str, **settings: Any) -> dict[str, Any]:
    import bow

    section = getattr(bow, "Engine", None)
    return {"engine": section(engine, **settings)} if section else {"engine": engine, **settings}


def _run_settings(folder: Path | None, steps: int, resume: bool) -> dict[str, Any]:
    import bow

    own: dict[str, Any] = {"progress": False}
    own |= {"checkpoint_every": 30} if folder else {}
    own |= {"resume": "auto"} if resume else {}
    if section := getattr(bow, "Run", None):
        return {"steps": steps, "run": section(folder, **own)}
    return {"steps": steps, **own, **({"run_dir": folder} if folder else {})}


def _schedule_fields(schedule: Any) -> dict[str, Any]:
    """Return a schedule's fields as when they were in a single class."""
    fields = json.loads(schedule.to_json())
    kind = fields.pop("kind", None)
    default = {"order": None, "priority": None, "stay": False, "small": [], "after": []}
    fields = {**default, "first_come": kind == "first come", **fields}
    return {name: fields[name] for name in ("threads", "order", "priority", "first_come", "stay", "small", "after")}


def _first_of(*names: str) -> ModuleType:
    """Import a module by the first of its names that exists, the newest first."""
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise ModuleNotFoundError(f"none of {names}")


def record(out: Path, run: Path) -> None:
    """Record everything above; the first version leaves an unfinished training in `run`, which the second resumes."""
    import torch

    torch.set_num_threads(1)
    is_first = not run.exists()
    training = functools.partial(_training, None if is_first else run, steps=150, resume=not is_first)
    found = {}
    for name, made in [*trajectories(), *partitions(), *schedules(), ("resumed training", training)]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found[name] = made()
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
    if is_first:
        _training(run, steps=90, resume=False)
    out.write_text(json.dumps(found))


# --- comparison


def recorded(tree: Path, run: Path) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        # Versions that do not know the compile settings of cached code would load that of others from torch's cache.
        environment = os.environ | {"PYTHONPATH": str(tree.resolve()), "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch"}
        subprocess.run([sys.executable, "-P", __file__, str(out), str(run)], cwd=folder, env=environment, check=True)
        found: dict[str, str] = json.loads(out.read_text())
    return found


def main(old: Path, new: Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        before, after = (recorded(tree, Path(folder) / "run") for tree in (old, new))
    differing = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    reasons = {name: why for name in differing for pattern, why in LISTED.items() if re.fullmatch(pattern, name)}
    for name in differing:
        listed = f" (listed: {reasons[name]})" if name in reasons else ""
        print(f"{name}{listed}\n  old: {before.get(name)}\n  new: {after.get(name)}")
    for name in sorted(name for name, found in before.items() if "Error: " in found):
        print(f"{name}: nothing compared, {before[name]}")
    print(f"{len(before.keys() & after.keys()) - len(differing)} of {len(before)} are the same")
    return 0 if len(reasons) == len(differing) else 1


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:]]
    if paths[0].suffix == ".json":
        record(*paths)
    else:
        sys.exit(main(paths[0], paths[1] if len(paths) > 1 else Path.cwd()))
