"""What can be set of `python -m benchmarks figures`, and that no figure of the paper is left out."""

from __future__ import annotations

import pytest

from benchmarks.arguments import parse
from benchmarks.figures.catalogue import FIGURES
from benchmarks.figures.forms import FORMS
from benchmarks.figures.paper import SETUPS, STATEMENTS
from benchmarks.figures.settings import NAMES, TABLE, Settings
from bow.errors import SettingError

PAPER = [f"5.{number}" for number in range(1, 14)]


def test_every_figure_and_the_table_are_there() -> None:
    assert list(NAMES) == [*PAPER, "table5.1"]
    assert list(FIGURES) == list(SETUPS) == list(NAMES)
    assert sorted(STATEMENTS) == sorted(PAPER)


def test_all_figures_are_the_default() -> None:
    settings = parse(Settings, [])
    assert settings.names == NAMES
    assert settings.form == "small"
    assert str(settings.out) == "benchmarks/results/figures"


def test_figures_are_measured_in_the_order_of_the_paper_and_once() -> None:
    assert parse(Settings, ["figure=table5.1,5.7,5.6,5.7"]).names == ("5.6", "5.7", TABLE)


@pytest.mark.parametrize(("words", "form"), [([], "small"), (["size=full"], "full"), (["quick=true"], "quick")])
def test_one_setting_chooses_the_form(words: list[str], form: str) -> None:
    settings = parse(Settings, words)
    assert settings.form == form
    assert form in FORMS


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["figure=5.14"], "'5.14'"),
        (["figure="], "at least one figure"),
        (["size=large"], "small, full"),
        (["root=there"], "set size=full"),
        (["root=there", "quick=true"], "set size=full"),
        (["quick=true", "size=full"], "leave one of the two out"),
    ],
)
def test_a_mistake_is_a_sentence(words: list[str], part: str) -> None:
    with pytest.raises(SettingError, match=part):
        parse(Settings, words)


def test_the_full_form_has_the_papers_models_data_epochs_and_targets() -> None:
    full = FORMS["full"]
    resnet, lenet = full.resnet_lesson, full.lenet_lesson
    assert (resnet.model, resnet.data, resnet.epochs, resnet.target) == ("ResNet-32", "CIFAR-10", 80, 0.8)
    assert (lenet.model, lenet.data, lenet.epochs, lenet.target) == ("LeNet", "MNIST", 100, 0.99)
    assert {128, 256, 512, 1024} <= set(resnet.batch_sizes)
    assert {8, 16, 32} <= set(lenet.batch_sizes)
    assert (full.resnet.title, full.small_batch, full.seeds, full.runs) == ("ResNet-32", 4, 5, 5)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_small_batch_is_one_of_those_that_plain_pytorch_tries(form: object) -> None:
    assert form.small_batch in form.lenet_lesson.batch_sizes  # type: ignore[attr-defined]
