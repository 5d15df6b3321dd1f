"""Members are runs of their own to loggers too."""

from pathlib import Path
from typing import Any

import pytest
from torch.nn import functional as F

import bow
from bow.errors import SettingError
from bow.observe import TensorBoardLogger, WandbLogger
from tests.members.test_equality import DATA, interrupted, mlp

VARIANTS = [bow.Variant(seed=seed) for seed in range(3)]


class Listing:
    """Keeps what the loggers of members are told, in order."""

    def __init__(self, told: list[Any] | None = None, name: str = "") -> None:
        self.told: list[Any] = [] if told is None else told
        self.name = name

    def for_member(self, name: str, group: str) -> "Listing":
        self.told.append((name, group))
        return Listing(self.told, name)

    def log(self, record: Any) -> None:
        self.told.append((self.name, record["kind"], record.get("round")))

    def close(self) -> None:
        self.told.append((self.name, "close"))

    def of(self, name: str) -> list[Any]:
        return [rest for each, *rest in self.told if each == name]


def logged(path: Path, *loggers: Any, variants: Any = VARIANTS, **settings: Any) -> Any:
    resume = settings.pop("resume", None)
    run = bow.Run(path, loggers=loggers, progress=False, resume=resume)
    given = {"engine": "eager", "batch_size": 16, "epochs": 2, "validation": DATA, **settings}
    return bow.sweep(mlp, DATA, F.cross_entropy, variants=variants, run=run, **given)


def test_each_member_has_a_logger_that_is_told_while_it_trains(tmp_path: Path) -> None:
    listing = Listing()
    logged(tmp_path / "sweep", listing, at_once=2)
    whole = [["sweep"], ["start", None], ["epoch", 10], ["epoch", 19], ["end", 19], ["close"]]
    assert all(listing.of(f"seed={seed}") == whole for seed in range(3))
    assert listing.told.index(("seed=1", "epoch", 10)) < listing.told.index(("seed=0", "epoch", 19))
    assert listing.told[-1] == ("", "close")


def test_one_that_ends_early_is_told_once(tmp_path: Path) -> None:
    listing, lost = Listing(), bow.Variant(settings={"lr": 1e30}, name="lost")
    result = logged(tmp_path / "s", listing, variants=[*VARIANTS, lost], epochs=4, stop=bow.Halving(reduction=2))
    assert {member.stopped for member in result} == {None, "halving", "diverged"}
    for member in result:
        epochs = ["epoch"] * len(member.history)
        assert [kind for kind, *_ in listing.of(member.name)] == ["s", "start", *epochs, "end", "close"]


def test_a_sweep_that_goes_on_begins_a_logger_with_all_epochs(tmp_path: Path) -> None:
    first, second = Listing(), Listing()
    with interrupted(15), pytest.raises(KeyboardInterrupt):
        logged(tmp_path / "s", first, variants=VARIANTS[:1])
    logged(tmp_path / "s", second, variants=VARIANTS[:1], resume="auto")
    assert first.of("seed=0") == [["s"], ["start", None], ["epoch", 10], ["close"]]
    assert second.of("seed=0") == [["s"], ["start", None], ["epoch", 10], ["epoch", 19], ["end", 19], ["close"]]


def test_a_logger_without_members_is_refused(tmp_path: Path) -> None:
    class Printer:
        def log(self, record: Any) -> None: ...

        def close(self) -> None: ...

    with pytest.raises(SettingError, match=r"need a method for_member\(name, group\), which .*Printer"):
        logged(tmp_path / "sweep", Printer())
    assert not (tmp_path / "sweep").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_members_are_runs_of_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = logged(tmp_path / "sweep", TensorBoardLogger())
    logged(tmp_path / "other", TensorBoardLogger(tmp_path / "all"))
    for member in result:
        for path in (member.run_dir / "tensorboard", tmp_path / "all" / "other" / member.name):
            events = accumulator.EventAccumulator(str(path))
            events.Reload()
            values = [(event.step, event.value) for event in events.Scalars("validation/accuracy")]
            assert values == [(each["round"], pytest.approx(each["accuracy"])) for each in member.history]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb")
def test_members_are_runs_of_one_group_of_wandb(tmp_path: Path, offline_wandb: Any) -> None:
    from observe.test_weights_and_biases import items, offline_records

    result = logged(tmp_path / "sweep", WandbLogger(project="p"), variants=VARIANTS[:2])
    offline_wandb.teardown()
    for member in result:
        [file] = (member.run_dir / "wandb").glob("offline-run-*/*.wandb")
        left = list(offline_records(file))
        [about] = [record.run for record in left if record.HasField("run")]
        assert (about.project, about.run_group, about.display_name) == ("p", "sweep", member.name)
        assert items(about.config.update)["settings"]["seed"] == member.variant.seed
        rows = [items(record.history.item) for record in left if record.HasField("history")]
        accuracy = [row["validation/accuracy"] for row in rows if "validation/accuracy" in row]
        assert accuracy == [record["accuracy"] for record in member.history]
