"""`hydra/launcher=bow`: the jobs of a hydra program, side by side."""

import json
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bow
from bow.errors import DivergenceError
from bow.members.jobs import as_members, run_together, train_together, why_alone
from bow.training.config import TrainConfig
from tests.data.test_as_they_come import OnePass
from tests.forked import FORKED

DATA = torch.randn(48, 6, generator=torch.Generator().manual_seed(0)), torch.arange(48) % 3

PROGRAM = """
import functools, json, os, pathlib, sys
import hydra, torch
from hydra.core.hydra_config import HydraConfig
from torch import nn
import bow

@hydra.main(version_base=None, config_path=None, config_name="config")
def main(cfg):
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))      # made by the program, of the job's seed
    data = torch.randn(48, 6, generator=torch.Generator().manual_seed(0)), torch.arange(48) % 3
    result = bow.train(
        model, data, lambda outputs, targets: nn.functional.cross_entropy(outputs, targets), learners=1, batch_size=8,
        epochs=2, seed=cfg.seed, engine="eager", validation=data, run=bow.Run(progress=False),
        optimizer=functools.partial(torch.optim.SGD, lr=cfg.lr),
    )
    job = HydraConfig.get()
    told = {"lr": cfg.lr, "seed": cfg.seed, "number": job.job.num, "own": job.overrides.task, "cwd": os.getcwd(),
            "mark": os.environ["MARK"], "loss": result.metrics["loss"], "weights": float(model[0].weight.sum()),
            "best": [result.best.round, result.best.metrics["loss"], float(result.best.model[0].weight.sum())]}
    with open(sys.argv[0] + ".told", "a") as file:
        file.write(json.dumps({**told, "own": list(told["own"])}) + "\\n")
    return result.metrics["loss"]

from hydra.core.config_store import ConfigStore
job = {"chdir": True, "env_set": {"MARK": "m${hydra:job.num}"}}
ConfigStore.instance().store("config", {"lr": 0.1, "seed": 0, "hydra": {"job": job}})
main()
"""


def test_a_hydra_program_gets_what_its_jobs_get_alone(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    told: dict[str, list[dict[str, Any]]] = {}
    for launcher in ("basic", "bow"):
        words = [
            "-m",
            f"hydra/launcher={launcher}",
            "lr=0.05,0.2",
            "seed=0,1",
            f"hydra.sweep.dir={tmp_path / launcher}",
        ]
        ran = subprocess.run([*FORKED, str(program), *words], check=False, capture_output=True, text=True, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr[-3000:]
        if launcher == "bow":
            assert "4 runs side by side" in ran.stdout
        lines = Path(f"{program}.told").read_text().splitlines()
        told[launcher] = [json.loads(line) for line in lines]
        Path(f"{program}.told").unlink()
    for one, other in zip(told["basic"], told["bow"], strict=True):
        assert one.pop("cwd").replace("/basic/", "/bow/") == other.pop("cwd")
        one["own"], other["own"] = sorted(one["own"]), sorted(other["own"])
        assert one == other
    assert list(tmp_path.glob("bow/side_by_side_0_0/report.html"))


SWEEPER = """
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

class Asking(Sweeper):
    def __init__(self, **settings):
        pass

    def setup(self, *, hydra_context, task_function, config):
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments):
        first = self.launcher.launch([["lr=0.05"], ["lr=0.2"], ["lr=1e30"]], initial_job_idx=0)
        values = [job.return_value for job in first[:2]]
        best = first[values.index(min(values))].overrides[0]
        second = self.launcher.launch([[best, "seed=1"], [best, "seed=2"], [best, "+callbacks=1"]], initial_job_idx=3)
        print("asked", values, [job.status.name for job in first], [job.return_value for job in second])
"""


def test_a_sweeper_gets_values_and_asks_for_more_jobs_by_them(tmp_path: Path) -> None:
    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins" / "asking.py").write_text(textwrap.dedent(SWEEPER))
    program = tmp_path / "program.py"
    text = PROGRAM.replace("run=bow.Run(", 'callbacks=[bow.Callback()] * cfg.get("callbacks", 0), run=bow.Run(')
    program.write_text(textwrap.dedent(text))
    words = ["-m", "hydra/launcher=bow", "hydra.sweeper._target_=hydra_plugins.asking.Asking"]
    command = [*FORKED, str(program), *words, f"hydra.sweep.dir={tmp_path / 'jobs'}"]

    def ran(*more: str, status: int = 0) -> str:
        done = subprocess.run([*command, *more], check=False, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == status, done.stderr[-3000:]
        return done.stderr if status else done.stdout.strip().splitlines()[-1]

    said = ran()
    told = [json.loads(line) for line in Path(f"{program}.told").read_text().splitlines()]
    losses = [each["loss"] for each in told]
    assert said == f"asked {losses[:2]} ['COMPLETED', 'COMPLETED', 'FAILED'] {losses[2:]}"
    alone = list(tmp_path.glob("jobs/[345]/runs/*/model.safetensors"))  # one has callbacks; each in its own folder
    assert len(alone) == 3
    assert "already holds a run" in ran(status=1)
    assert ran("hydra.launcher.resume=auto").startswith(f"asked {losses[:2]}")


def config(**settings: Any) -> TrainConfig:
    given = {"learners": 1, "batch_size": 8, "engine": "eager", "run": bow.Run(progress=False), **settings}
    return TrainConfig(**{"model": nn.Linear(6, 3), "data": DATA, "loss": F.cross_entropy, **given})


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, None),
        ({"seed": 3, "batch_size": 4, "optimizer": torch.optim.AdamW}, None),
        ({"data": (DATA[0].clone(), DATA[1])}, None),
        ({"data": (DATA[0] + 1, DATA[1])}, "they differ in data"),
        ({"epochs": 3}, "they differ in epochs"),
        ({"loss": F.multi_margin_loss}, "they differ in loss"),
        ({"model": nn.Linear(6, 4)}, "their models differ"),
        ({"model": nn.Sequential(nn.Dropout(0.1), nn.Linear(6, 3))}, "their models differ"),
        ({"callbacks": [bow.Callback()]}, "they have callbacks"),
        (
            {"validation": bow.Validation(DATA, buffers="recalibrate")},
            'validation.buffers="recalibrate": members keep the statistics of their training; leave it out',
        ),
        ({"learners": 2}, "they differ in learners"),
        ({"learners": bow.Tuner()}, None),
        ({"devices": 2}, "devices=2; members use one device"),
        ({"run": bow.Run(resume="auto")}, "they resume from checkpoints"),
        ({"run": bow.Run(checkpoint_every=3)}, "they differ in run.checkpoint_every"),
        (
            {"run": bow.Run(on_interrupt="return")},
            "run.on_interrupt=return: members of a sweep can only be interrupted together",
        ),
    ],
)
def test_trainings_that_differ_in_more_are_not_members(settings: dict[str, Any], why: str | None) -> None:
    assert why_alone([config(), config(**settings)]) == why


def test_trainings_of_several_learners_may_average_as_they_like() -> None:
    first = config(learners=2, sync=bow.EASGD(), engine="fused")
    assert why_alone([first, config(learners=2, sync=bow.EASGD(), engine="fused", seed=1)]) is None
    assert why_alone([first, config(learners=2, engine="fused")]) == "they differ in sync"


@pytest.mark.parametrize("sizes", [(4, None), (None, 4), (4, 4), (None, None), (4, 8)])
def test_a_member_has_the_batch_size_of_its_training(sizes: tuple[int | None, ...]) -> None:
    sweep = as_members([config(batch_size=size) for size in sizes], bow.Run(), "")
    assert tuple(sweep.of(variant).batch_size for variant in sweep.variants) == sizes


def test_run_directories_that_are_taken_are_left_to_each_training(tmp_path: Path) -> None:
    first, second = (config(run=bow.Run(tmp_path / name)) for name in ("first", "second"))
    assert why_alone([first, first]) == "they have the same run directory"
    assert why_alone([first, second]) is None
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "metrics.jsonl").touch()
    assert why_alone([first, second]) == "their run directories contain runs"
    assert why_alone([first, second], goes_on=True) is None


def test_what_a_model_is_counts_and_not_its_shapes_alone() -> None:
    one, other = (nn.Sequential(nn.Dropout(p), nn.Linear(6, 3)) for p in (0.1, 0.2))
    assert why_alone([config(model=one), config(model=other)]) == "their models differ"


class Growing(nn.CrossEntropyLoss):
    """Has a weight that every call changes."""

    calls = 0

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return self.calls * super().forward(outputs, targets)


def test_a_loss_with_state_of_its_own_is_not_shared() -> None:
    loss = Growing()
    assert why_alone([config(loss=loss), config(loss=loss, seed=1)]) == "their step or loss changes 'calls' in Python"


def test_trainings_that_share_the_pass_of_a_loader_are_not_members() -> None:
    loader = OnePass()
    configs = [config(data=loader, batch_size=None, steps=3, seed=seed) for seed in range(2)]
    assert why_alone(configs) == "their loader allows one pass at a time"
    assert why_alone(configs[:1]) is None


@pytest.fixture
def together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Any], list[str]], list[Any]]:
    """What jobs return that run as members in an empty folder; what is said goes into a list."""
    monkeypatch.chdir(tmp_path)

    def run(jobs: list[Any], said: list[str]) -> list[Any]:
        def train(configs: Any) -> Any:
            return train_together(configs, bow.Run(tmp_path / "sweep"), "", said.append)

        return run_together(jobs, train, lambda before: lambda: before)

    return run


def test_jobs_that_fail_or_diverge_fail_alone(together: Callable[..., list[Any]], tmp_path: Path) -> None:
    def job(lr: float) -> Any:
        try:
            result = bow.train(
                nn.Linear(6, 3), DATA, F.cross_entropy, learners=1, engine="eager", devices="cpu", batch_size=8,
                optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr),
                run=bow.Run(checkpoint_every=2, progress=False),
            )  # fmt: skip
        except DivergenceError as error:
            return str(error)
        return result.learners

    said: list[str] = []
    returned = together([lambda: job(0.1), lambda: job(3e38), lambda: "no training"], said)
    assert returned[0] == 1
    assert "diverged" in returned[1]
    assert "look for NaN in the data" in returned[1]  # of which one batch is enough
    assert returned[2] == "no training"
    assert said == ["2 runs side by side, one learner each"]
    assert len(list(tmp_path.glob("sweep/checkpoints/*"))) == 2


class Own(torch.optim.lr_scheduler.LambdaLR):
    """Which nobody tries before a training."""


@pytest.mark.filterwarnings("ignore:.*restarts")
def test_jobs_of_several_learners_have_each_its_own_result(together: Callable[..., list[Any]]) -> None:
    data = DATA[0].clone(), DATA[1]
    data[0][30] = torch.nan  # a learner restarts once an epoch

    def job(rate: Any, **run: Any) -> Any:
        return bow.train(
            nn.Linear(6, 3), data, F.cross_entropy, learners=2, engine="eager", devices="cpu", batch_size=8, epochs=2,
            scheduler=lambda optimizer: Own(optimizer, rate), run=bow.Run(progress=False, **run),
        )  # fmt: skip

    def fails() -> Any:
        with pytest.raises(ZeroDivisionError):
            job(lambda epoch: 1 / (1 - epoch))

    def is_asked_to_end(epoch: int) -> float:
        if epoch == 1:
            signal.raise_signal(signal.SIGINT)
        return 1.0

    said: list[str] = []
    tasks = [
        lambda: job(lambda epoch: 1.0),
        fails,
        lambda: job(is_asked_to_end, on_interrupt="return"),
        lambda: job(lambda epoch: 1.0, checkpoint_every=2),
    ]

    began = time.perf_counter()
    first, _, interrupted, last = together(tasks, said)
    elapsed_s = time.perf_counter() - began
    assert said == ["4 runs one after another: learners=2"]
    assert (interrupted.interrupted_by, len(interrupted.history)) == (signal.SIGINT, 1)
    for result in (first, interrupted, last):
        assert result.num_restarts == len(result.history)
        assert result.report_path == result.run_dir / "report.html"
    assert len(list(last.run_dir.glob("checkpoints/*"))) == 2
    assert first.seconds + interrupted.seconds + last.seconds < elapsed_s


def test_an_interruption_reaches_all_jobs() -> None:
    ended = []

    def job() -> None:
        try:
            bow.train(nn.Linear(6, 3), DATA, F.cross_entropy)
        finally:
            ended.append(True)

    def train(configs: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_together([job, job], train, lambda before: lambda: before)
    assert ended == [True, True]
