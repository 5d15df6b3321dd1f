"""The page and its pictures, from made-up results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib import image

from benchmarks.figures import views
from benchmarks.figures.catalogue import FIGURES, View
from benchmarks.figures.charts import Box, Level, draw_boxes
from benchmarks.figures.entries import PLAIN_TITLE, Entry
from benchmarks.figures.page import markdown
from benchmarks.figures.paper import STATEMENTS
from tests.benchmarks.figures.made_up import ABOUT, convergence, rates, refused, run, throughput, write

SENTENCE = "devices must be 1, got 2; this version trains on one device"
ALONE = [Entry(32, learners, "independent") for learners in (1, 2, 3)]
RATES = throughput(
    rates(Entry(32), 100.0, 80.0, 90.0),
    *(rates(entry, factor * 100, factor * 110, factor * 90) for entry, factor in zip(ALONE, (1, 2, 3), strict=True)),
)
DEVICES = throughput(
    rates(Entry(32), 90.0),
    rates(Entry(32, 1, "SMA"), 100.0),
    rates(Entry(32, 2, "SMA"), 150.0),
    refused(Entry(32, 1, "SMA", devices=2), SENTENCE),
    refused(Entry(32, 2, "SMA", devices=2), SENTENCE),
)
EXPLORED = convergence(
    *(run(Entry(16), [0.5, 0.95, 0.95], seed=seed) for seed in (0, 1)),
    run(Entry(8), [0.95], epoch_s=6.0),
    run(Entry(64), [0.5, 0.5, 0.5]),
)
COMPARED = convergence(
    run(Entry(16), [0.95], epoch_s=2.0),
    run(Entry(4), [0.95], epoch_s=5.0),
    run(Entry(16, 1, "SMA"), [0.95], epoch_s=2.0),
    run(Entry(4, 1, "SMA"), [0.5]),
    run(Entry(4, 3, "SMA"), [0.95], epoch_s=1.5),
)


def part(page: str, name: str) -> str:
    """The section of a figure."""
    return page.partition(f"## {name}:")[2].partition("\n## ")[0]


def test_what_was_not_measured_says_how_to() -> None:
    page = markdown(Path("/nowhere"))
    assert page.count("Not measured yet") == len(FIGURES) == 14
    assert "`python -m benchmarks figures figure=5.6`" in part(page, "Figure 5.6")
    assert "Absolute numbers do not compare" in page


def test_a_figure_has_its_command_machine_numbers_and_the_papers_beside_them(tmp_path: Path) -> None:
    write(tmp_path, "figure_5.7", RATES)
    text = part(markdown(tmp_path), "Figure 5.7")
    assert "`python -m benchmarks figures`, 2026-01-02, 60 s, on cpu. a processor, 2 cores" in text
    assert "Here, form small: ResNet-8; 3 runs." in text
    assert "![ResNet: throughput by number of learners, batch 32](figure_5.7.png)" in text
    assert "| throughput of 2 learners over 1 | more than 1.43 | 2.00 (2.00 to 2.00) |" in text
    assert "| throughput of 4 learners over 3 | drops slightly | not measured in this form |" in text
    assert "| bow, 2 learners | 32 | 1 | no synchronisation | graph | 1 | 200 (180 to 220) | 3 |" in text
    assert "| plain PyTorch | 32 | 1 |  |  | 1 | 90 (80 to 100) | 3 |" in text
    assert "Not measured yet" in part(markdown(tmp_path), "Figure 5.8")


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_of_the_paper_is_shown(name: str, tmp_path: Path) -> None:
    values = RATES if FIGURES[name].view is None or "throughput" in FIGURES[name].title else COMPARED
    values = COMPARED if name in ("5.1", "5.2", "5.3", "5.4", "5.5") else values
    write(tmp_path, f"figure_{name}", values)
    text = part(markdown(tmp_path), f"Figure {name}")
    for statement in STATEMENTS[name]:
        assert f"| {statement.what} | {statement.value} | " in text


def test_a_refusal_is_quoted(tmp_path: Path) -> None:
    write(tmp_path, "figure_5.9", DEVICES)
    text = part(markdown(tmp_path), "Figure 5.9")
    assert "| 1 device: throughput of 2 learners over 1 | 1.39 | 1.50 |" in text
    assert "| 2 devices: throughput of 2 learners each over 1 | 1.32 | waits for several devices, see below |" in text
    assert "| bow, 1 learner | 32 | 2 | SMA |  |  | refused |  |" in text
    assert (
        f"bow refused bow, 1 learner on 2 devices (SMA); bow, 2 learners on 2 devices (SMA): \u201c{SENTENCE}\u201d"
        in text
    )


def test_an_exploration_tells_the_best_batch_size_and_which_never_get_there(tmp_path: Path) -> None:
    write(tmp_path, "figure_5.3", EXPLORED)
    text = part(markdown(tmp_path), "Figure 5.3")
    assert "LeNet on digits, to 90% test accuracy" in text
    assert "| best batch size | 16 | 16 |" in text
    assert (
        "| time with half the best batch size over the best | 1.74 (934 s over 536 s) | 2.00 (6 s over 3 s) |" in text
    )
    assert "| batch sizes that never reach the target | all above 16 | 64 |" in text
    assert "| batch sizes that reach the target | only 8 and 16 (caption) | 16, 8 |" in text
    assert "| plain PyTorch | 16 | 1 | 2 of 2 | 3 (3 to 3) | 3.00 (3.00 to 3.00) | 100 (100 to 100) | 95.0% |" in text
    assert "| plain PyTorch | 64 | 1 | 0 of 1 | never | never | 100 | 50.0% |" in text


def test_batch_sizes_are_compared_within_the_papers_range(tmp_path: Path) -> None:
    what = "| time with batch sizes 128 to 512 | approximately the same |"
    kept = [run(Entry(256), [0.95], epoch_s=6.0), run(Entry(512), [0.95], epoch_s=3.0), run(Entry(64), [0.5])]
    write(tmp_path, "figure_5.1", convergence(*kept))
    ours = "2.00 (slowest over fastest of 256, 512: 6 s with 256 over 3 s with 512)"
    assert f"{what} {ours} |" in part(markdown(tmp_path), "Figure 5.1")
    write(tmp_path, "figure_5.1", convergence(*kept, run(Entry(128), [0.5])))
    assert f"{what} 128 never reached the target |" in part(markdown(tmp_path), "Figure 5.1")
    write(tmp_path, "figure_5.1", convergence(kept[0]))
    assert f"{what} not measured in this form |" in part(markdown(tmp_path), "Figure 5.1")


def test_what_is_not_the_papers_is_said_beside_the_figures() -> None:
    page = markdown(Path("/nowhere"))
    lenet = "LeNet: 4.24 MB in the paper, 1.72 MB here (431,080 parameters)"
    assert lenet in page
    assert "ResNet-32: 1.79 MB in the paper, 1.86 MB here (464,154 parameters)" in page
    assert "Logistic regression: 0.0314 MB in the paper, 0.0314 MB here (7,850 parameters)" in page
    for name in ("5.3", "5.4", "5.5", "5.8", "5.11"):
        assert lenet.removeprefix("LeNet: ") in part(page, f"Figure {name}")
    assert all("gives no learning rate" in part(page, f"Figure 5.{number}") for number in range(1, 6))
    assert "gives no learning rate" not in part(page, "Figure 5.8")


def test_the_gain_on_several_devices_waits_for_them(tmp_path: Path) -> None:
    write(tmp_path, "figure_5.13", throughput(*(refused(Entry(32, k, "SMA", devices=2), SENTENCE) for k in (1, 2))))
    text = part(markdown(tmp_path), "Figure 5.13")
    assert "2 devices, SMA: throughput of 2 learners each over 1 | the gain \u201cremains constant\u201d" in text
    assert text.count("waits for several devices, see below") == 1


def test_time_and_epochs_of_bow_stand_beside_the_papers(tmp_path: Path) -> None:
    write(tmp_path, "figure_5.4", COMPARED)
    text = part(markdown(tmp_path), "Figure 5.4")
    assert "| 0.71 (382 s over 536 s) | 0.75 (1.5 s over 2 s) |" in text
    assert "| almost identical | 1.00 (2 s over 2 s) |" in text
    assert "the second never reached it" in text


def test_the_table_shows_the_papers_beside_ours(tmp_path: Path) -> None:
    rows = [
        {
            "model": "LeNet",
            "data": "MNIST",
            "data_mb": 179.44,
            "model_mb": 1.7243,
            "parameters": 431_080,
            "operators": 42,
        },
        {
            "model": "LeNet",
            "data": "digits (8x8)",
            "data_mb": 0.35,
            "model_mb": 2.1,
            "parameters": 525_000,
            "operators": 43,
        },
    ]
    write(tmp_path, "table_5.1", {**ABOUT, "rows": rows})
    text = part(markdown(tmp_path), "Table 5.1")
    assert "| LeNet | MNIST | 179.45 | 179.44 | 4.24 | 1.72 | 169 | 42 | 431,080 |" in text
    assert "| LeNet | digits (8x8) |  | 0.35 |  | 2.1 |  | 43 | 525,000 |" in text


def test_boxes_say_what_is_missing() -> None:
    boxes = views.boxes(EXPLORED["rows"], View("batch_size", measure="time_s"))
    assert boxes == [
        Box("16", PLAIN_TITLE, [3.0, 3.0]),
        Box("8", PLAIN_TITLE, [6.0]),
        Box("64", PLAIN_TITLE, [], "never"),
    ]
    some = convergence(run(Entry(16), [0.95]), run(Entry(16), [0.5], seed=1))
    (box,) = views.boxes(some["rows"], View("batch_size", measure="epochs"))
    assert (box.values, box.note) == ([1], "1 of 2 never")
    noted = [box.note for box in views.boxes(DEVICES["rows"][1:], View("devices", ("learners",)))]
    assert noted == ["", "", "refused", "refused"]


@pytest.mark.parametrize(
    ("name", "values"),
    [("5.1", EXPLORED), ("5.2", EXPLORED), ("5.4", COMPARED), ("5.7", RATES), ("5.9", DEVICES), ("5.10", RATES)],
)
def test_pictures_are_drawn(name: str, values: dict[str, object], tmp_path: Path) -> None:
    views.draw(name, json.loads(json.dumps(values)), tmp_path / "figure.png")
    pixels = image.imread(tmp_path / "figure.png")
    assert pixels.shape[1] > 700
    assert pixels[..., :3].std() > 0.02


def test_a_picture_of_notes_only_is_drawn(tmp_path: Path) -> None:
    draw_boxes(tmp_path / "figure.png", [Box("1", "", [], "never")], "x", "y", Level("plain", [1.0]))
    assert (tmp_path / "figure.png").is_file()
