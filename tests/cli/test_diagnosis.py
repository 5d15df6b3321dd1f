from pathlib import Path

import pytest

from bow.cli import main
from bow.errors import DataError


def test_doctor_describes_machine_engines_and_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for word in ("Python", "memory", "C++ compiler", "eager", "fused", "wandb", "tensorboard", "cupy"):
        assert word in shown
    assert "fits" not in shown


def test_doctor_shows_the_cache_and_clears_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BOW_CACHE", str(tmp_path))
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "one.json").write_bytes(bytes(2**20))
    main(["doctor"])
    assert "1.0 MiB of at most 2.0 GiB" in capsys.readouterr().out
    assert main(["doctor", "clear=cache"]) == 0
    assert "1.0 MiB deleted" in capsys.readouterr().out
    assert not list(tmp_path.rglob("*.json"))


def test_doctor_predicts_what_a_learner_costs_on_each_device(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    lines = capsys.readouterr().out.split("Learners of the default recipe, predicted")[1].splitlines()
    assert lines[1].split() == ["device", "engine", "each", "activations", "fit", "in", "memory"]
    device, _, *sizes, fitting = lines[2].split()
    assert device == "cpu"
    assert sizes[1::2] == ["MiB", "MiB"]
    assert int(fitting.replace(",", "")) > 10


def test_doctor_goes_on_without_the_data_of_the_default_recipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(words: object) -> None:
        raise DataError("no digits; install scikit-learn")

    monkeypatch.setattr("bow.cli.diagnosis._arguments", missing)
    assert main(["doctor"]) == 0
    assert "no digits; install scikit-learn" in capsys.readouterr().out


def test_doctor_says_that_settings_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "model=mlp", "learners=3"]) == 0
    shown = capsys.readouterr().out
    assert "3 x " in shown
    assert "It fits: " in shown


def test_doctor_says_how_many_learners_would_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "model=mlp", "model.hidden=[2000,2000]", "learners=1000000"]) == 1
    assert "It does not fit: " in (shown := capsys.readouterr().out)
    assert "use learners=" in shown


def test_doctor_measures_the_batches_that_a_training_reads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bow.engines.choice.available_cores", lambda: range(2))
    records = b"".join(bytes([label, *(shade for shade in range(3) for _ in range(1024))]) for label in range(10))
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (tmp_path / f"{name}.bin").write_bytes(10 * records)
    words = [
        "recipe=resnet32",
        "data=cifar10",
        f"data.root={tmp_path}",
        "learners=auto",
        "engine=graph",
        "batch_size=2",
    ]
    for augment in ("false", "true"):  # tensors, and a data set that reads sample by sample
        assert main(["doctor", *words, f"data.augment={augment}"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("learners  ", "activations"))]
    assert rows[:2] == rows[2:]
    assert rows[0].split()[3:5] == ["2", "x"]
    assert "2 x " in rows[1]


def test_doctor_takes_the_default_size_of_batches(capsys: pytest.CaptureFixture[str]) -> None:
    for size in ("null", "16"):
        assert main(["doctor", "model=mlp", "learners=2", f"batch_size={size}"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("activations")]
    assert rows[0] == rows[1]


def test_a_moving_average_is_part_of_the_central_model(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "model=mlp", "learners=2"])
    main(["doctor", "model=mlp", "learners=2", "validation.ema=0.999"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("central model")]
    without, averaged = (float(line[2]) * {"KiB": 1, "MiB": 1024}[line[3]] for line in lines)
    assert averaged == pytest.approx(1.25 * without, rel=0.05)


def test_fused_engine_needs_the_activations_of_all_learners(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "model=mlp", "learners=3", "engine=eager"])
    main(["doctor", "model=mlp", "learners=3", "engine=fused"])
    lines = [line.split("(")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("activations")]
    assert "1 x" in lines[0]
    assert "3 x" in lines[1]


@pytest.fixture(autouse=True)
def _nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bow.cli.diagnosis.advice", lambda machine: ["set something"])


def test_doctor_ends_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("\nRecommendations (measured, which takes some seconds)\n  set something\n")
