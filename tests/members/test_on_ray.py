"""Members on Ray's local cluster of several machines, one of which is killed while it trains some of them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.nn import functional as F

import bow
from bow.errors import SettingError
from bow.members import cohort
from bow.members.config import SweepConfig
from bow.members.member import check_variants
from bow.members.on_ray import _workers, train_part
from bow.members.sweep import run_sweep
from bow.training.config import TrainConfig
from tests.members.test_equality import DATA, mlp, swept

HAS_RAY = importlib.util.find_spec("ray") is not None

SCRIPT = """
import functools, sys, threading, time
from pathlib import Path
import ray, torch
from ray.cluster_utils import Cluster
from torch.nn.functional import cross_entropy
import bow

class Slow(torch.nn.Linear):
    def forward(self, inputs):
        if self.training and {slow}:
            time.sleep(0.02)
        return super().forward(inputs)

generator = torch.Generator().manual_seed(0)
data = torch.randn(150, 6, generator=generator), torch.randint(0, 3, (150,), generator=generator)
folder = Path(sys.argv[1])

def trained(name, **given):
    run = bow.Run(folder / name, checkpoint_every=5, progress=False)
    return bow.sweep(
        lambda: torch.nn.Sequential(Slow(6, 3), torch.nn.Dropout(0.1)), data, cross_entropy, epochs=6, engine="eager",
        variants=bow.grid(seed=range(3), lr=[0.05, 0.01]), validation=data, at_once=2, run=run, **given,
    )

def kill():
    while not (begun := list((folder / "ray").glob("parts/*/checkpoints/round_*.pt"))):
        time.sleep(0.02)
    worker = (begun[0].parents[1] / ".lock").read_text().split()[0]
    parent = int(Path(f"/proc/{{worker}}/stat").read_text().rsplit(")", 1)[1].split()[1])
    (node,) = [each for each in nodes if each.all_processes["raylet"][0].process.pid == parent]
    cluster.remove_node(node, allow_graceful=False)
    killed.append(begun[0].parents[1])

expected, killed = trained("alone"), []
cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 0}})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
ray.init(address=cluster.address, log_to_driver=False)
killer = threading.Thread(target=kill)
killer.start()
result = trained("ray", cluster="ray")
killer.join()
assert len(killed) == 1
assert not (folder / "ray" / "parts").exists()
for member, other in zip(result.members, expected.members, strict=True):
    for model, its in ((member.model, other.model), (member.best.model, other.best.model)):
        assert all(torch.equal(value, its.state_dict()[name]) for name, value in model.state_dict().items())
    for mine, its in zip(member.history, other.history, strict=True):
        assert all(mine[name] == its[name] for name in ("epoch", "round", "samples", "train_loss", "loss", "accuracy"))
    assert (member.run_dir / "model.safetensors").exists()
assert (result.engine, result.at_once, result.report_path is not None) == ("eager", 2, True)
print("all the same")
ray.shutdown()
cluster.shutdown()
"""


KILLING = """
import os, signal
from pathlib import Path

class Killing:
    def why_over(self, member):
        seen = Path({seen!r})
        with seen.open("a") as file:
            print(member.name, os.getpid(), file=file)
        if len(seen.read_text().splitlines()) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not HAS_RAY, reason="ray is not installed")
def test_a_machine_that_dies_changes_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(slow="ray.is_initialized()"))
    settings = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    given: dict[str, Any] = {"env": settings, "capture_output": True, "text": True, "timeout": 280}
    ended = subprocess.run([sys.executable, str(script), str(tmp_path)], check=False, **given)
    assert "all the same" in ended.stdout, ended.stdout[-3000:] + ended.stderr[-6000:]


@pytest.mark.skipif(not HAS_RAY, reason="ray is not installed")
def test_a_trial_of_ray_tune_is_several_members_that_go_on_where_it_was_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray.tune", exc_type=ImportError)
    page = (Path(__file__).parents[2] / "docs/members_integrations.md").read_text()
    block = page.partition("## Ray Tune")[2].partition("```python\n")[2].partition("```")[0]
    for documented, changed in (
        ("epochs=3", "epochs=3, stop=Killing(), at_once=1"),
        ("num_samples=2", "num_samples=1"),
        ("progress=False", "progress=False, checkpoint_every=1"),
    ):
        assert documented in block
        block = block.replace(documented, changed)
    script, seen = tmp_path / "script.py", tmp_path / "seen"
    script.write_text(KILLING.format(seen=str(seen)) + block)
    cache = os.environ.get("BOW_CACHE", str(Path.home() / ".cache/bow"))
    settings = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "HOME": str(tmp_path), "BOW_CACHE": cache}
    given: dict[str, Any] = {"env": settings, "capture_output": True, "text": True, "timeout": 280}
    ended = subprocess.run([sys.executable, str(script)], check=False, **given)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-6000:]
    accuracy, lr = map(float, ended.stdout.split()[-2:])
    assert accuracy > 0.8
    epochs = [line.rsplit(" ", 1) for line in seen.read_text().splitlines()]
    assert f"lr={lr:g}" in {name for name, _ in epochs}
    processes = dict.fromkeys(process for _, process in epochs)
    first, second = ([name for name, process in epochs if process == each] for each in processes)
    assert [first.count(name) for name in dict.fromkeys(first)] == [3, 2]  # then it was killed
    assert first[0] not in second
    assert len(set(second)) == 7


@pytest.mark.skipif(HAS_RAY, reason="ray is installed")
def test_without_ray_it_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"bow-trainer\[ray\]"):
        swept(tmp_path / "sweep", mlp, DATA, [bow.Variant()], cluster="ray")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cluster": "slurm"}, "cluster must be"),
        ({"cluster": "ray", "stop": bow.Halving()}, "not supported on a cluster|needs Ray"),
    ],
)
def test_what_a_cluster_cannot_is_refused(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=said):
        swept(tmp_path / "sweep", mlp, DATA, [bow.Variant()], **settings)


def test_a_part_is_compiled_as_the_whole_sweep_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    make = cohort.LearningConfig

    def seen(*given: Any, **settings: Any) -> Any:
        rounds.append(settings["rounds"])
        return make(*given, **settings)

    monkeypatch.setattr(cohort, "LearningConfig", seen)
    run = bow.Run(tmp_path / "whole", progress=False)
    train = TrainConfig(model=mlp, data=DATA, loss=F.cross_entropy, learners=1, engine="eager", run=run)
    config = SweepConfig(train=train, variants=check_variants(bow.grid(seed=range(5))))
    run_sweep(config)
    train_part(config, [1, 3], tmp_path / "part")
    assert rounds == [5 * 10] * 2  # epochs of ten batches


def test_a_worker_is_a_gpu_or_the_cores_of_the_smallest_machine() -> None:
    machines = [{"CPU": 4.0}, {"CPU": 9.0}, {"CPU": 0.0}]
    nodes = [{"Alive": True, "Resources": each} for each in machines] + [{"Alive": False, "Resources": {"CPU": 1.0}}]
    assert _workers(nodes, "auto") == (3, {"num_cpus": 4})
    gpus = [{"Alive": True, "Resources": {"CPU": 4.0, "GPU": 2.0}}]
    assert _workers(gpus, "auto") == (2, {"num_gpus": 1})
    assert _workers(gpus, "cpu") == (1, {"num_cpus": 4})
    with pytest.raises(SettingError, match="no machine"):
        _workers(nodes[2:], "auto")
