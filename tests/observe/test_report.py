import html.parser
import json
import re

import pytest

from bow.errors import RunDirectoryError
from bow.observe import RunDirectory
from bow.observe.charts import charts
from bow.observe.report import DECISION_HEAD, Report, write_report


class Page(html.parser.HTMLParser):
    """The words of a page, and every address that a browser would load."""

    def __init__(self, text):
        super().__init__()
        self.words, self.addresses, self.tags = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href", "data", "action")]

    def handle_data(self, data):
        self.words.append(data.strip())


def page(directory):
    path = write_report(directory.path)
    assert path == directory.report_path
    return Page(path.read_text(encoding="utf-8"))


@pytest.mark.usefixtures("no_charts")
def test_the_result_is_on_top(run):
    words = page(run(epochs=3)).words
    first = words.index("finished")
    assert words.index("87.50 %") > first
    assert words.index("accuracy") < words.index("Curves")
    for text in (
        "0.09979",
        "3.1 s",
        "target reached after 2.0 s",
        "1,234",
        "4,311 samples in total",
        "3",
        "batches of 16 each",
    ):
        assert first < words.index(text) < words.index("Curves")


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "start", "time_s": "x"}',
        '{"kind": "start", "time_s": 0, "learners": "two"}',
        '{"kind": "start", "time_s": 0, "model": 7, "parameters": 8}',
        '{"kind": "epoch", "time_s": 0, "epoch": "one"}',
        '{"kind": "epoch", "time_s": [], "epoch": 1}',
        '{"kind": "epoch", "time_s": 0, "epoch": 1, "accuracy": "high"}',
        '{"kind": "epoch", "time_s": 0, "round": null}',
        '{"kind": "event", "time_s": 0, "event": {"a": 1}}',
        '{"kind": ["epoch"]}',
        '{"kind": "calibration", "rows": 3}',
        '{"kind": "calibration", "rows": [{"samples_per_s": "fast"}]}',
        '{"kind": "end", "seconds": "long"}',
    ],
)
def test_records_of_wrong_types_are_refused_with_their_line(run, line):
    directory = run()
    count = len(directory.metrics_path.read_text().splitlines())
    with directory.metrics_path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RunDirectoryError, match=rf"line {count + 1}: \w+ cannot be .*; correct or remove"):
        write_report(directory.path)


def test_the_page_is_self_contained(run):
    text = write_report(run().path).read_text(encoding="utf-8")
    shown = Page(text)
    assert all(address.startswith("#") for address in shown.addresses)
    assert not {"script", "link", "iframe", "img"} & set(shown.tags)
    assert not re.search(r"@import|url\((?!#)", text)


@pytest.mark.usefixtures("no_charts")
def test_settings_events_and_epochs_are_there(run):
    words = page(run()).words
    for text in (
        "optimizer.lr",
        "0.1",
        "validation.target.accuracy",
        "clip_norm",
        "none",
        "SMA(alpha=None)",
        "431,080",
    ):
        assert text in words
    assert "3 learners: throughput grew" in words
    assert words.count("75.00 %") == 1


@pytest.mark.usefixtures("no_charts")
def test_a_learning_rate_that_changes_is_a_curve(run):
    directory = run()
    epochs = [record for record in Report.read(directory).records if record["kind"] == "epoch"]
    with_records(directory, {**epochs[-1], "epoch": 4, "lr": 0.05})
    assert "Learning rate over epochs" in page(directory).words


@pytest.mark.usefixtures("no_charts")
def test_six_charts_of_a_run_with_validation_and_four_without(run):
    assert page(run("with")).tags.count("figure") == 6
    assert page(run("without", validation=False)).tags.count("figure") == 4


@pytest.mark.usefixtures("no_charts")
def test_a_run_without_validation_shows_the_training_loss(run):
    words = page(run(validation=False, epochs=2)).words
    assert words[words.index("training loss") - 1] == "0.1353"


@pytest.mark.usefixtures("no_charts")
def test_a_run_that_goes_on_says_so(run):
    words = page(run(finished=False)).words
    assert "not finished" in words
    assert "finished" not in words


@pytest.mark.usefixtures("no_charts")
def test_a_run_that_was_interrupted_says_so_until_it_has_gone_on(run):
    directory = run()
    end = directory.metrics_path.read_text().splitlines()[-1]
    event = {"kind": "event", "time_s": 3.0, "round": 69, "event": "interrupted", "message": "SIGINT"}
    with_records(directory, event, json.loads(end))
    assert "interrupted" in page(directory).words[:20]
    with_records(directory, {"kind": "start", "time_s": 0.0}, {**json.loads(end), "round": 70})
    assert "finished" in page(directory).words[:20]


@pytest.mark.usefixtures("no_charts")
def test_the_best_epoch_is_named_where_it_is_not_the_last(run):
    directory = run(epochs=2)
    with directory.metrics_path.open("a") as file:
        file.write('{"kind": "epoch", "time_s": 3.0, "epoch": 3, "round": 69, "accuracy": 0.5}\n')
    assert "best 75.00 %, in epoch 2" in page(directory).words


@pytest.mark.sample(2, 1)
@pytest.mark.parametrize("lines", [1, 2, 3, 5])
def test_a_run_that_was_cut_off_anywhere_has_a_report(run, lines):
    directory = run()
    text = directory.metrics_path.read_text().splitlines(keepends=True)
    directory.metrics_path.write_text("".join(text[:lines]) + text[lines][:-9])
    assert "not finished" in page(directory).words


def test_records_may_lack_fields(run):
    directory = run()
    for kind in ("start", "rounds", "epoch", "event", "end"):
        directory.metrics_path.write_text(f'{{"kind": "{kind}"}}\n')
        assert "samples per second" in page(directory).words


@pytest.mark.usefixtures("no_charts")
def test_losses_that_are_not_finite_leave_a_gap(run):
    directory = run()
    text = re.sub(r'"(train_)?loss": [\d.]+', r'"\1loss": null', directory.metrics_path.read_text())
    directory.metrics_path.write_text(text)
    assert "Loss over epochs" not in page(directory).words


@pytest.mark.usefixtures("no_charts")
def test_the_name_of_a_dated_run_is_shown_without_the_date(tmp_path, run):
    directory = RunDirectory(run().path.rename(tmp_path / "2026-01-31_235959_my_net"))
    words = page(directory).words
    assert "my_net" in words
    assert "2026-01-31 23:59" in words


def test_text_from_the_run_cannot_become_markup(run):
    directory = run()
    directory.write_config({"name": "<script>alert(1)</script>"})
    assert "script" not in page(directory).tags


@pytest.mark.usefixtures("no_charts")
def test_many_events_are_cut_short(run):
    directory = run()
    event = '{"kind": "event", "time_s": 1.0, "round": 1, "event": "learner restarted", "message": "again"}\n'
    directory.metrics_path.write_text(event * 250)
    words = page(directory).words
    assert words.count("again") == 100
    assert "150 more events are in" in words


@pytest.mark.usefixtures("no_charts")
def test_a_report_is_written_again_over_the_old_one(run):
    directory = run()
    assert len({len(write_report(directory.path).read_text()) for _ in range(2)}) == 1


@pytest.mark.parametrize("content", [None, "", "not a record\n"])
def test_a_directory_without_records_is_an_error_with_the_remedy(tmp_path, content):
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    with pytest.raises(RunDirectoryError, match=r"contains no records of a run .*name the directory of a run"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_directory_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(RunDirectoryError, match="nowhere is not a directory"):
        write_report(tmp_path / "nowhere")


@pytest.mark.usefixtures("no_charts")
def test_a_report_that_cannot_be_written_is_an_error(run):
    directory = run()
    directory.report_path.mkdir()
    with pytest.raises(RunDirectoryError, match=r"report\.html cannot be written \(Is a directory\)"):
        write_report(directory.path)


@pytest.mark.usefixtures("no_charts")
def test_a_value_that_is_missing_at_the_end_is_taken_from_before(run):
    directory = run(epochs=3, finished=False)
    with directory.metrics_path.open("a") as file:
        file.write('{"kind": "end", "time_s": 4.0, "round": 69, "samples": 4311, "samples_per_s": null}\n')
    words = page(directory).words
    assert words[words.index("samples per second") - 1] == "1,003"


@pytest.mark.usefixtures("no_charts")
def test_settings_are_shown_as_they_are_written(run):
    directory = run()
    directory.write_config({"seed": 12345, "lr": 0.0005, "compile": False, "callbacks": [], "data": {"limit": None}})
    words = page(directory).words
    shown = {name: words[words.index(name) + 1] for name in ("seed", "lr", "compile", "callbacks", "data.limit")}
    assert shown == {"seed": "12345", "lr": "0.0005", "compile": "false", "callbacks": "none", "data.limit": "none"}


def with_records(directory, *records):
    with directory.metrics_path.open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in records)
    return directory


@pytest.mark.usefixtures("no_charts")
def test_it_says_how_engine_and_learners_were_found(run, calibration):
    directory = with_records(run(), calibration)
    words = [word for word in page(directory).words if word]
    begin = words.index("Choice of engine and learners")
    assert words[begin + 1] == "calibration of 2 settings took 3.0 s; chosen: graph, 2 learners"
    table = words[begin + 2 :]
    assert table[:9] == list(DECISION_HEAD)
    assert table[9:17] == ["eager", "1", "1", "1,000", "990", "1,010", "1.5 s", "measured: 50.0 % of the choice"]
    assert "not tried: takes <12 s>" in table
    text = directory.report_path.read_text(encoding="utf-8")
    (chosen,) = re.findall(r'<tr class="chosen">(.*?)</tr>', text, re.DOTALL)
    assert "graph" in chosen
    assert "<12 s>" not in text


@pytest.mark.usefixtures("no_charts")
def test_without_a_calibration_there_is_no_word_of_one(run):
    assert "Choice of engine and learners" not in page(run()).words


@pytest.mark.usefixtures("no_charts")
def test_a_choice_by_rule_is_said_without_a_table(run, calibration):
    calibration |= {"source": "rule", "summary": "eager, by rule of thumb", "rows": []}
    words = page(with_records(run(), calibration)).words
    assert "eager, by rule of thumb" in words
    assert "threads" not in words


def test_evaluations_within_epochs_are_points_of_the_curves(run, evaluation):
    directory = with_records(run(), evaluation)
    points = charts(Report.read(directory).records, {})[0].series[0].points
    assert len(points) == 3 + 1
    assert (0.5, 0.4) in points
