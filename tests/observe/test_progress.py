"""ProgressBar of trainings and searches."""

from __future__ import annotations

import io
import signal
import sys
import threading
import types

import pytest
from rich.console import Console

from bow.observe import ProgressBar
from bow.observe.progress import SHOWN_EVENTS, watched
from bow.terminal import wrapped


def shown(records, *, terminal=False, enabled=True, width=200):
    text = io.StringIO()
    progress = ProgressBar(enabled, Console(file=text, force_terminal=terminal, width=width))
    for record in records:
        progress.update(record)
    progress.close()
    return text.getvalue()


def test_away_from_a_terminal_every_epoch_is_one_plain_line(records):
    lines = shown(records(3)).splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith("epoch")] == [
        "epoch 1/3",
        "epoch 2/3",
        "epoch 3/3",
    ]
    assert lines[1] == (
        "epoch 1/3  train loss 0.3679  validation loss 0.4179  accuracy 50.00 %  1,001 samples/s  2 learners  1.0 s"
    )
    assert len(lines) == 3 + 1 + 1  # three epochs, one event, the end


def test_how_engine_and_learners_were_found_is_one_line(records, calibration):
    start, *others = records(1)
    assert shown([start, calibration, *others]).splitlines()[0] == f"engine and learners: {calibration['summary']}"


@pytest.mark.parametrize("terminal", [False, True])
def test_an_evaluation_within_an_epoch_is_shown(records, evaluation, terminal):
    text = shown([records(3)[0], evaluation], terminal=terminal)
    assert "epoch 0.5/3  validation loss 0.7000  accuracy 40.00 %  2 learners  500 ms" in text
    assert not terminal or text.count("accuracy 40.00 %") > 1  # in the bar as well


def test_what_is_no_record_is_shown_as_it_is():
    text = io.StringIO()
    for enabled in (True, False):
        ProgressBar(enabled, Console(file=text, width=20)).say("engine  [1] a line that is longer than the terminal")
    assert text.getvalue() == "engine  [1] a line that is longer than the terminal\n"


def test_the_end_says_what_came_out(records):
    assert shown(records(3)).splitlines()[-1] == (
        "trained on 4,311 samples in 3.1 s (1,234 samples/s without start-up and evaluation): loss 0.09979, "
        "accuracy 87.50 %; target reached after 2.0 s"
    )


def test_plain_lines_hold_no_control_characters_and_are_not_wrapped(records):
    text = shown(records(3), width=40)
    assert "\x1b" not in text
    assert len(text.splitlines()) == 5


def test_a_run_without_validation_shows_the_training_loss_only(records):
    _, first, *_, last = shown(records(2, validation=False)).splitlines()
    assert first == "epoch 1/2  train loss 0.3679  1,001 samples/s  2 learners  1.0 s"
    assert last.startswith("trained on 2,874 samples in 2.1 s (1,234 samples/s without start-up and evaluation);")


@pytest.mark.parametrize(
    "text", ["accuracy 87.50 %", "3 learners", "1,003 samples/s", "loss 0.04979", "100 %", "0:00:0"]
)
def test_on_a_terminal_a_bar_says_everything(records, text):
    assert text in shown(records(3), terminal=True)


def test_in_a_notebook_a_bar_is_drawn_in_one_place_and_goes(records, monkeypatch):
    drawn = []
    handle = types.SimpleNamespace(display=drawn.append, update=drawn.append)
    names = types.SimpleNamespace(HTML=str, DisplayHandle=lambda: handle, display=lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(display=names))
    monkeypatch.setitem(sys.modules, "IPython.display", names)
    monkeypatch.setattr("bow.observe.progress.EVERY_S", 0.0)
    progress = ProgressBar(console=Console(force_jupyter=True))
    for record in records(3):
        progress.update(record)
    progress.close()
    assert drawn[0] == "<progress></progress>"
    assert any("accuracy 75.00 %" in each and 'max="4311"' in each for each in drawn)
    assert drawn[-1] == ""


def test_the_bar_counts_samples(records):
    unfinished = records(4, finished=False)
    assert " 75 %" in shown([unfinished[0], next(r for r in unfinished if r.get("epoch") == 3)], terminal=True)


def test_the_bar_counts_rounds_where_steps_are_the_limit(records):
    start = {**records()[0], "epochs": 1, "steps": 200, "rounds": 200}
    at_half = {**records()[1], "round": 100}
    assert " 50 %" in shown([start, at_half], terminal=True)


def test_of_many_events_the_first_ones_are_shown():
    event = {"kind": "event", "time_s": 1.0, "round": 7, "event": "learner restarted", "message": "learner 1"}
    lines = shown([event] * 20).splitlines()
    assert len(lines) == SHOWN_EVENTS
    assert lines[-1] == "learner 1 (further ones are not shown here)"


def test_text_in_brackets_is_shown_as_it_is():
    event = {"kind": "event", "time_s": 1.0, "round": 7, "event": "x", "message": "shape [1, 2] [red]"}
    assert shown([event]) == "shape [1, 2] [red]\n"


def test_nothing_is_shown_when_it_is_off(records):
    assert shown(records(), enabled=False) == ""
    assert shown(records(), enabled=False, terminal=True) == ""


def test_closing_twice_and_before_the_start_is_harmless():
    progress = ProgressBar()
    progress.close()
    progress.close()


def test_ctrl_c_ends_the_search_and_pressed_again_interrupts_what_does_not_look() -> None:
    before = signal.getsignal(signal.SIGINT)
    with watched(1.0, Console(file=io.StringIO())) as tell:
        assert tell(0.1, 1, 1e6)
        signal.raise_signal(signal.SIGINT)
        assert not tell(0.2, 2, 1e6)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_that_python_does_not_know_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    known = signal.getsignal
    before = known(signal.SIGINT)
    monkeypatch.setattr("bow.observe.progress.signal.getsignal", lambda number: None)
    with watched(None, Console(file=io.StringIO())) as tell:
        assert known(signal.SIGINT) is before
        assert tell(0.1, 1, 1e6)
    assert known(signal.SIGINT) is before


def test_another_thread_than_the_main_one_leaves_handlers_alone() -> None:
    before, told = signal.getsignal(signal.SIGINT), list[bool]()

    def search() -> None:
        with watched(None, Console(file=io.StringIO())) as tell:
            told.append(signal.getsignal(signal.SIGINT) is before and tell(0.1, 1, 1e6))

    thread = threading.Thread(target=search)
    thread.start()
    thread.join(60)
    assert told == [True]


def test_on_a_narrow_terminal_no_value_is_cut(records):
    text = io.StringIO()
    epoch = next(record for record in records(3) if record["kind"] == "epoch")
    ProgressBar(console=Console(file=text, force_terminal=True, width=60)).update(epoch)
    lines = text.getvalue().splitlines()
    assert len(lines) == 2
    assert all(len(line) <= 60 for line in lines)


@pytest.mark.parametrize("width", [60, 70, 80])
def test_the_time_left_is_not_cut_by_what_stands_before_it(records, width):
    start, *others = records(3)
    others = [{**each, "samples_per_s": 123_456, "train_loss": 0.002875, "loss": 0.002875} for each in others]
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown([start, *others], terminal=True, width=width)


def test_long_lines_and_tables_of_a_terminal():
    assert wrapped("epoch 1/3  train loss 0.3679  accuracy 50.00 %", 32) == [
        "epoch 1/3  train loss 0.3679",
        "    accuracy 50.00 %",
    ]
    assert wrapped("a sentence that is longer than this", 20) == ["a sentence that is", "    longer than this"]
    assert wrapped("in the end, an accuracy of 92.11 %", 32) == ["in the end, an accuracy of", "    92.11 %"]
    assert wrapped("a training of about 42 s is too short", 22) == ["a training of about", "    42 s is too short"]
    assert wrapped("short", 20) == ["short"]


def test_the_time_of_a_search_begins_with_its_first_proposal():
    now, text = [0.0], io.StringIO()
    console = Console(file=text, force_terminal=True, color_system=None, width=120, get_time=lambda: now[0])
    with watched(100.0, console) as tell:
        now[0] = 20.0
        tell(0.0, 0, 2e6)
        now[0] = 25.0
        tell(5.0, 10, 1e6)
    assert "building the problem" in text.getvalue()
    assert "0:00:05 best 1.000 ms, 10 examined" in text.getvalue()
    assert "0:00:25" not in text.getvalue()
