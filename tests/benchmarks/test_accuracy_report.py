"""What is told of trainings, on made-up ones."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.accuracy_report import Training, table

TRAINING = Training(0, (0.85, 0.9, 0.89), (0.4, 0.3, 0.35), (10.0, 21.0, 32.0), 1234.5)


def test_the_target_is_reached_in_the_first_epoch_that_has_it() -> None:
    assert TRAINING.epoch_of(0.9) == 2
    assert TRAINING.time_to(0.9) == 21.0
    assert TRAINING.epoch_of(0.95) is None
    assert TRAINING.time_to(0.95) is None


def test_the_table_has_a_row_for_every_epoch_and_says_when_the_target_was_reached() -> None:
    other = replace(TRAINING, seed=1, accuracies=(0.5, 0.6, 0.7))
    assert table([TRAINING, other], 0.9).columns == ["", "seed 0", "seed 1"]
    assert table([TRAINING, other], 0.9).rows == [
        ["epoch 1", "85.00%", "50.00%"],
        ["epoch 2", "90.00%", "60.00%"],
        ["epoch 3", "89.00%", "70.00%"],
        ["90% reached in epoch", "2", "never"],
        ["after", "21 s", ""],
        ["samples/s", "1,234", "1,234"],
    ]


def test_the_summary_says_whether_it_was_reached() -> None:
    assert TRAINING.summary(0.9) == "seed 0: 90% in epoch 2 after 21 s, best 90.00%, last 89.00%, 1,234 samples/s"
    assert "never 95%, best" in TRAINING.summary(0.95)


def test_the_json_has_every_epoch() -> None:
    values = TRAINING.as_dict(0.9)
    assert values["accuracies"] == [0.85, 0.9, 0.89]
    assert (values["epochs_to_target"], values["time_to_target_s"]) == (2, 21.0)
    assert TRAINING.as_dict(0.95)["time_to_target_s"] is None
