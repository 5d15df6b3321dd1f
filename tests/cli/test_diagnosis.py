import pytest

from bow.cli import main


def test_doctor_describes_machine_engines_and_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for word in ("Python", "memory", "C++ compiler", "eager", "fused", "wandb", "tensorboard", "cupy"):
        assert word in shown
    assert "fits" not in shown


def test_doctor_says_that_settings_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "model=mlp", "learners=3"]) == 0
    shown = capsys.readouterr().out
    assert "3 x " in shown
    assert "It fits: " in shown


def test_doctor_says_how_many_learners_would_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "model=mlp", "model.hidden=[2000,2000]", "learners=1000000"]) == 1
    assert "It does not fit: " in (shown := capsys.readouterr().out)
    assert "use learners=" in shown


def test_fused_engine_needs_the_activations_of_all_learners(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "model=mlp", "learners=3", "engine=eager"])
    main(["doctor", "model=mlp", "learners=3", "engine=fused"])
    lines = [line.split("(")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("activations")]
    assert "1 x" in lines[0]
    assert "3 x" in lines[1]
