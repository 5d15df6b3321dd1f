"""A user's mistake is one sentence that names the value and the remedy, exit status 2, and nothing half written."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bow.cli import main

LBFGS = [
    "optimizer._target_=torch.optim.LBFGS",
    *(f"~optimizer.{key}" for key in ("momentum", "weight_decay", "nesterov")),
]

MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "recipe that is a number": (["recipe=7"], ["recipe=7", "choose one of lenet"]),
    "unknown recipe": (["recipe=lenett"], ["recipe=lenett", "did you mean lenet?"]),
    "misspelt key": (["lerners=4"], ["lerners=4", "did you mean learners?"]),
    "misspelt nested key": (["optimizer.momentun=0.5"], ["optimizer.momentun=0.5", "did you mean momentum?"]),
    "unknown option of a group": (["model=vgg"], ["model=vgg", "choose one of alexnet"]),
    "unknown engine": (["engine=warp"], ["engine=warp", "choose one of auto, eager, fused"]),
    "setting of another option": (["sync=ssgd", "sync.mu=0.5"], ["sync.mu=0.5", "sync=ssgd has no settings"]),
    "added key": (["+colour=red"], ["colour=red", "bow train --help"]),
    "added argument": (["+model.depth=3"], ["model.depth=3", "choose one of channels, classes, size"]),
    "no equals sign": (["lenet"], ["'lenet'", "did you mean recipe=lenet?"]),
    "an option of another program": (["--lr"], ["--lr", "NAME=VALUE"]),
    "open bracket": (["validation.metrics=[accuracy"], ["validation.metrics=[accuracy", "close every bracket"]),
    "open interpolation": (["seed=${epochs"], ["seed=${epochs", "close every bracket"]),
    "interpolation of nothing": (["seed=${sead}"], ["seed", "'sead'", "correct the expression in ${}"]),
    "sweep without -m": (["learners=1,2"], ["learners=1,2", "add -m"]),
    "given twice": (["epochs=1", "epochs=2"], ["epochs=1 and epochs=2", "keep one of them"]),
    "two models": (["model=[lenet,mlp]"], ["model=[lenet,mlp]", "choose one of them"]),
    "hydra's own settings": (["hydra.run.dir=there"], ["hydra.run.dir=there", "run.path=DIR"]),
    "learners not a number": (["learners=abc"], ["learners", "a whole number", "auto", "got 'abc'"]),
    "epochs not whole": (["epochs=1.5"], ["epochs must be a whole number", "got 1.5"]),
    "unknown objective": (["tuner.objective=speed"], ["objective", "goodput", "speed"]),
    "share of nothing": (["tuner.share=0"], ["share must be above 0", "got 0"]),
    "goodput of averaged gradients": (
        ["sync=ssgd", "tuner.objective=goodput"],
        ["needs every learner's own gradient", 'objective="throughput"'],
    ),
    "empty value": (["batch_size="], ["batch_size must be a whole number", "got ''"]),
    "word for a list": (["model=mlp", "model.hidden=[a]"], ["model.hidden must be a list", "got [a]"]),
    "negative batch size": (["batch_size=-1"], ["batch_size must be", "at least 1", "got -1"]),
    "no learners": (["learners=0"], ["learners must be", "at least 1", "got 0"]),
    "negative learning rate": (["optimizer.lr=-1"], ["optimizer", "learning rate", "-1"]),
    "unstable alpha": (["learners=4", "sync.alpha=1.5"], ["alpha=1.5", "4 learners", "must be below 0.5455"]),
    "mu out of range": (["sync.mu=1.5"], ["mu must be at least 0 and below 1", "got 1.5"]),
    "huge seed": (["seed=99999999999999999999"], ["seed must be a whole number", "got 99999999999999999999"]),
    "callback that is none": (["callbacks=[{_target_: builtins.int}]"], ["callbacks must be objects with", "got 0"]),
    "scheduler without its form": (
        ["recipe=none", "scheduler._target_=torch.optim.lr_scheduler.StepLR"],
        ["'scheduler={_target_: torch.optim.lr_scheduler.StepLR, ...}'"],
    ),
    "half of another scheduler": (
        ["scheduler._target_=torch.optim.lr_scheduler.StepLR"],
        ["'scheduler={_target_: torch.optim.lr_scheduler.StepLR, ...}'"],
    ),
    "logger without its form": (
        ["run.loggers.x._target_=builtins.int"],
        ["'+run.loggers.x={_target_: builtins.int, ...}'"],
    ),
    "misspelt object": (["schedular={_target_: a.b}"], ["schedular=", "did you mean scheduler?"]),
    "epochs and steps": (["epochs=2", "steps=3"], ["epochs=2 and steps=3", "keep one of them"]),
    "target without validation": (
        ["validation=null", "validation.target.accuracy=0.9"],
        ["target", "accuracy", "validation"],
    ),
    "target that nothing measures": (["validation.target.f1=0.9"], ["target", "f1", "accuracy"]),
    "unknown metric": (["validation.metrics=[acuracy]"], ["acuracy", "did you mean accuracy?"]),
    "model without parameters": (
        ["model._target_=tests.cli.experiments.Untrainable"],
        ["no trainable parameters", "(0 with requires_grad=True)"],
    ),
    "impossible depth": (["model=resnet", "data=synthetic", "model.depth=9"], ["depth", "6n + 2", "got 9"]),
    "model of other data": (["model=lstm"], ["model=lstm needs vocabulary", "data=digits", "choose other data"]),
    "model that cannot be built": (["model.size=1"], ["size"]),
    "loss that is no scalar": (["loss=tests.cli.experiments.loss_per_sample"], ["loss", "scalar", "16"]),
    "loss that cannot be imported": (["loss=torch.nn.functional.crossentropy"], ["crossentropy", "cannot be imported"]),
    "loss that cannot be called": (["loss=tests.cli.experiments.NOT_CALLABLE"], ["NOT_CALLABLE", "name a function"]),
    "labels out of range": (["model.classes=5"], ["9", "5"]),
    "data smaller than a round": (["data.limit=20", "learners=4"], ["20", "64", "learners"]),
    "missing data set": (["data=cifar10"], ["CIFAR-10", "root"]),
    "missing directory": (["data=mnist", "data.root=nowhere"], ["nowhere", "root"]),
    "damaged IDX file": (["data=mnist", "data.root=damaged"], ["damaged/train-images-idx3-ubyte"]),
    "optimizer that is not elementwise": (LBFGS, ["LBFGS"]),
    "unwritable run directory": (["run=taken/run"], ["taken/run", "run directory"]),
    "number in quotes": (['learners="4"'], ["learners must be a whole number", "got '4'"]),
    "run directory of another run": (["run=old"], ["run directory old already holds a run", "resume"]),
    "nothing to resume": (["run.resume=nowhere"], ["nowhere", "resume"]),
    "half precision": (["engine.precision=float16"], ["precision", "bfloat16", "float16"]),
    "negative clipping": (["clip_norm=-1"], ["clip_norm must be above 0", "got -1"]),
    "unknown buffers": (["validation.buffers=sum"], ["buffers must be", "average", "sum"]),
    "clipping by no number": (["clip_norm=nan"], ["clip_norm must be a finite number", "got nan"]),
    "resume by a truth": (["run.resume=true"], ["run.resume must be", "path", "got True"]),
    "run directory that is a number": (["run=7"], ["run.path must be", "path", "got 7"]),
    "run directory that is a list": (["run=[a]"], ["run.path must be", "path", "got [a]"]),
    "empty run directory": (["run="], ["run must be a path, got an empty one"]),
    "long run directory": ([f"run={'x' * 300}"], ["run must be a path of at most"]),
    "huge evaluation": (["validation.batch_size=99999999999999999999"], ["validation.batch_size", "2**63"]),
    "learning rate that is none": (["optimizer.lr=nan"], ["lr=nan", "not finite"]),
    "learning rate beyond float32": (["optimizer.lr=1e308"], ["lr=1e+308", "not finite in float32"]),
    "learning rate without its home": (["lr=0.1"], ["lr=0.1", "did you mean optimizer.lr?"]),
    "momentum without its home": (["momentum=0.1"], ["momentum=0.1", "did you mean optimizer.momentum?"]),
    "a recipe that sounds like none": (["recipe=nope"], ["recipe=nope", "choose one of lenet"]),
    "one metric without a list": (
        ["validation.metrics=accuracy"],
        ["validation.metrics must be a list", "validation.metrics=[accuracy]"],
    ),
    "a setting taken away": (["~learners"], ["~learners", "learners=VALUE"]),
    "a setting of a section taken away": (["~validation.metrics"], ["~validation.metrics", "validation.metrics=VALUE"]),
    "a group taken away": (["~model"], ["~model", "model=VALUE"]),
    "scheduler that divides by zero": (
        ["scheduler={_target_: torch.optim.lr_scheduler.StepLR, step_size: 0}"],
        ["scheduler StepLR fails", "ZeroDivisionError"],
    ),
    "sizes beyond all memory": (
        ["data=synthetic", "data.samples=999999999999"],
        ["data cannot be made from these settings (DefaultCPUAllocator"],
    ),
    "sizes beyond all numbers": (["model.size=99999999999999999999"], ["model cannot be made from these settings"]),
    "batches larger than the data": (["batch_size=1000000000", "steps=3"], ["samples", "batch_size=1000000000"]),
    "processes beyond the cores": (["devices=99999"], ["devices must be a whole number from 1 to", "use devices="]),
    "no GPU": pytest.param(
        ["devices=cuda"], ["cuda"], marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    ),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A working directory in which `taken` is a file, `old` holds a run, and `damaged` a torn data set."""
    (tmp_path / "taken").touch()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "metrics.jsonl").write_text('{"kind": "start", "time_s": 0}\n')
    (tmp_path / "damaged").mkdir()
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / "damaged" / f"{part}-ubyte").write_bytes(b"\0\0\x08\x03\0\0")
    return tmp_path


@pytest.mark.quick(4)
@pytest.mark.parametrize(("overrides", "fragments"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake_is_one_sentence_and_leaves_nothing(
    overrides: list[str], fragments: list[str], directory: Path, refused: Callable[..., str]
) -> None:
    before = contents(directory)
    refused(["train", *overrides], *fragments)
    assert contents(directory) == before


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["trian"], ["'trian'", "did you mean train?"]),
        (["report"], ["got 0", "bow report RUN_DIR"]),
        (["report", "nowhere"], ["nowhere"]),
        (["doctor", "batch_size=99999999999999999999"], ["batch_size must be a whole number from 1 to"]),
        (["report", "x" * 300], ["must be a path of at most"]),
        (["report", "~/nowhere"], [str(Path.home() / "nowhere"), "is not a directory"]),
        (["plan", "recipe=lenet", "budget_s=nan"], ["budget_s must be a finite number above 0", "got nan"]),
        (["plan", "recipe=lenet", "processes=99999"], ["processes must be a whole number from 1 to"]),
        (["plan", "recipe=lenet", "out="], ["out must be a path, got an empty one"]),
        (["plan", "recipe=lenet", "topology=a\0b"], ["the topology must be a path without NUL"]),
        (["plan", "explain", "~/nowhere"], [str(Path.home() / "nowhere"), "cannot be read"]),
        (["schedule", "compare", "turns=0"], ["turns must be a whole number of at least 1", "got 0"]),
        (["schedule", "profile", "out="], ["out must be a path"]),
        (["doctor", "lerners=2"], ["lerners=2", "did you mean learners?"]),
        (["train", "-m", "learners=1,2", "run=there"], ["run.path=there", "2 runs"]),
        (["train", "-m", "optimizer.lr=interval(0,1)"], ["optimizer.lr=interval(0,1) has no values", "by commas"]),
        (["train", "-m", "learners=2,0"], ["learners must be", "at least 1", "got 0"]),
        (["train", "-m", "epochs=1,x"], ["epochs must be a whole number", "got 'x'"]),
        (["train", "-m", "learners=1,2", "model=lenett"], ["model=lenett", "did you mean lenet?"]),
    ],
)
def test_mistake_in_any_command_is_one_sentence(
    words: list[str], fragments: list[str], directory: Path, refused: Callable[..., str]
) -> None:
    before = contents(directory)
    refused(words, *fragments)
    assert contents(directory) == before


def test_a_deleted_directory_is_told_of(
    directory: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    gone = directory / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    refused(["train"], "has been deleted")


@pytest.mark.filterwarnings("ignore:.*restarts|.*validation data")
def test_a_training_that_fails_has_another_status(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["learners=2", "engine=eager", "run.progress=false", "steps=40", "optimizer.lr=1e30", "run=run"]
    assert main(["train", *settings]) == 1
    assert "training diverged" in capsys.readouterr().err


def test_real_command_prints_nothing_but_the_sentence(directory: Path) -> None:
    command = [sys.executable, "-m", "bow", "train", "lerners=4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "bow: lerners=4 sets lerners, which does not exist; did you mean learners?\n"


def contents(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*"))
