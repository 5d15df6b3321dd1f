import xml.etree.ElementTree as ElementTree

import pytest
from matplotlib.figure import Figure

from bow.observe.charts import MAX_POINTS, ORANGE, Chart, ChartAxis, Series, charts, thin
from bow.observe.report import continuous

SVG = "{http://www.w3.org/2000/svg}"


def texts(chart):
    document = ElementTree.fromstring(chart.svg())
    return ["".join(element.itertext()).strip() for element in document.iter(f"{SVG}text")]


def line(*values, **options):
    return Series("line", list(enumerate(values, start=1)), **options)


def test_shares_are_shown_in_percent():
    chart = Chart("Accuracy", [line(0.4, 0.75, 1.0)], ChartAxis("epochs"), ChartAxis(percent=True))
    assert {"60 %", "100 %", "epochs"} <= set(texts(chart))


def test_values_of_several_decades_get_a_logarithmic_axis():
    assert {"0.01", "0.1", "1"} <= set(texts(Chart("Loss", [line(3.0, 0.1, 0.01)], ChartAxis("epochs"))))
    assert "0.01" not in texts(Chart("Loss", [line(3.0, 1.0, 0.5)], ChartAxis("epochs")))


def test_values_below_zero_can_be_drawn():
    assert texts(Chart("Reward", [line(-100.0, 0.0, 1000.0)], ChartAxis("epochs")))


def test_counts_have_whole_ticks_and_begin_at_zero():
    learners = Series("learners", [(10.0, 1.0), (11.0, 2.0)])
    chart = Chart("Learners", [learners], ChartAxis("time (s)"), ChartAxis(whole=True, zero=True), steps=True)
    assert [text for text in texts(chart) if text in ("0", "0.5", "1", "1.5", "2")] == ["0", "1", "2"]


def test_one_point_and_equal_points_can_be_drawn():
    assert texts(Chart("Accuracy", [line(0.5)], ChartAxis("epochs", whole=True, zero=True), ChartAxis(percent=True)))
    assert texts(Chart("Loss", [line(0.0, 0.0)], ChartAxis("epochs"), ChartAxis(zero=True)))


def test_a_faint_line_of_one_point_is_seen():
    axes = Figure().add_subplot()
    for points in ([(1, 0.5)], [(1, 0.5), (2, 0.6)]):
        Chart("x", [], ChartAxis())._draw(axes, Series("a", points, faint=True))
    assert [line.get_marker() for line in axes.lines] == ["o", ""]


def test_a_title_is_escaped():
    ElementTree.fromstring(Chart('a "<b>" & c', [line(1.0)], ChartAxis()).svg())


def test_the_same_chart_is_the_same_text():
    chart = Chart("Loss", [line(1.0, 2.0)], ChartAxis())
    assert chart.svg() == chart.svg()


def test_charts_of_one_page_share_no_clip_path():
    one, other = (Chart(title, [line(1.0, 2.0)], ChartAxis()).svg() for title in ("one", "other"))
    ids = [{path.get("id") for path in ElementTree.fromstring(svg).iter(f"{SVG}clipPath")} for svg in (one, other)]
    assert ids[0]
    assert not ids[0] & ids[1]


def test_a_legend_tells_series_apart_and_is_left_out_otherwise():
    rounds, mean, validation = line(2.0, faint=True), line(1.0), Series("validation", [(1, 1.0)], ORANGE)
    assert Chart("Loss", [rounds, mean, validation], ChartAxis()).legend == [mean, validation]
    assert Chart("Loss", [rounds, mean, Series("validation", [])], ChartAxis()).legend == []


def test_long_series_are_thinned_and_keep_their_mean():
    points = [(float(x), float(x % 7)) for x in range(7 * MAX_POINTS)]
    thinned = thin(points)
    assert len(thinned) == MAX_POINTS
    assert all(y == 3.0 for _, y in thinned)
    assert thinned == sorted(thinned)


def titles(records, settings=None):
    return [chart.title for chart in charts(continuous(records), settings or {})]


def test_every_metric_is_drawn_over_epochs_and_over_time(records):
    assert titles(records()) == [
        "Accuracy over epochs",
        "Accuracy over time",
        "Loss over epochs",
        "Loss over time",
        "Samples per second",
        "Learners per device",
    ]


def test_without_validation_the_training_loss_is_drawn(records):
    assert titles(records(validation=False))[0] == "Loss over epochs"


def test_nothing_is_drawn_of_a_run_that_has_just_begun(records):
    assert titles(records()[:1]) == ["Learners per device"]


def test_the_target_is_drawn_where_it_belongs(records):
    drawn = charts(records(), {"validation.target.accuracy": "0.6", "validation.target.loss": "none"})
    assert [chart.target for chart in drawn] == [0.6, 0.6, None, None, None, None]


@pytest.mark.parametrize(
    ("longest", "label", "end"), [(60, "time (s)", 60), (600, "time (min)", 10), (7200, "time (h)", 2)]
)
def test_time_is_shown_in_a_unit_that_fits(longest, label, end):
    record = {"kind": "epoch", "time_s": longest, "epoch": 1, "train_loss": 1.0}
    chart = charts([record], {})[1]
    assert chart.x.label == label
    assert chart.points == [(end, 1.0)]


def test_learners_are_drawn_as_steps_to_the_end(records):
    [learners] = charts(records(3), {})[-1].series
    assert learners.points == [(0.0, 2.0), (1.5, 3.0), (3.0, 3.0)]


def test_throughput_comes_from_epochs_where_rounds_are_too_few(records):
    epochs_only = [record for record in records(3) if record["kind"] != "rounds"]
    [throughput] = charts(epochs_only, {})[-2].series
    assert throughput.points == [(1.0, 1001.0), (2.0, 1002.0), (3.0, 1003.0)]
