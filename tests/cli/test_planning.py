"""`bow plan` from the outside: files, tables, and one sentence for what is wrong."""

from __future__ import annotations

import functools
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch import nn

import bow
from bow.cli import main, planning, planning_settings
from bow.cli import training as cli_training
from bow.cli.subject import Parts
from bow.engines import step_from_loss
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.partition import Partition
from bow.planning.problem.topology_files import load_topology
from bow.planning.tiles import capture_operators
from bow.planning.tiles.tile_costs import OPTIMIZER
from bow.schedule import Timeline
from tests.planning.tiles.test_agreement import BATCH, Net, Rounded

MODEL = ["model=mlp", "batch_size=8"]
NODE = "topology=p100_node"
SHORT = ["proposals=20", "seed=1"]
PLACEMENTS = ("expert_placement", "mcmc_placement", "learned", "scotch", "mincut", "metis")


_parts = functools.cache(planning.parts)
_known: list[Any] = []


@functools.cache
def _captured(model: Any) -> Any:
    """Of one batch and step, as each model here has."""
    parts = next(parts for parts in _known if parts.model is model)
    return capture_operators(parts.model, parts.batch, step=parts.step)


@pytest.fixture(autouse=True)
def _planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are built and captured once for all tests."""

    def parts(*words: Any) -> Any:
        found = _parts(*words)
        _known.append(found)
        return found

    monkeypatch.setattr(planning, "parts", parts)
    monkeypatch.setattr(planning, "capture_operators", lambda model, batch, step: _captured(model))


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    def told() -> str:
        out, err = capsys.readouterr()
        return " ".join((out + err).split())

    return told


@pytest.fixture
def planned(said: Callable[[], str]) -> dict[str, Any]:
    """The file of a strategy for the MLP on four GPUs, as data."""
    assert main(["plan", *MODEL, NODE, "method=data"]) == 0
    said()
    found: dict[str, Any] = json.loads(Path("plan/partition.json").read_text())
    return found


def changed(planned: dict[str, Any], **changes: Any) -> str:
    """The name of a file with the strategy changed."""
    Path("changed.json").write_text(json.dumps({**planned, **changes}))
    return "changed.json"


def test_a_step_whose_gradients_a_plan_would_lose_is_refused(
    said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Parts(Net(Rounded.apply), BATCH, step_from_loss(nn.functional.cross_entropy), OPTIMIZER)
    monkeypatch.setattr(planning, "parts", lambda *words: net)
    monkeypatch.setattr(planning, "capture_operators", capture_operators)
    assert main(["plan", NODE, *SHORT]) == 2
    assert "would lose the backward pass of Rounded" in said()
    assert not Path("plan").exists()


def test_a_search_writes_a_strategy_and_its_timeline(said: Callable[[], str]) -> None:
    assert main(["plan", *MODEL, NODE, *SHORT]) == 0
    told = said()
    assert "a step:" in told
    assert "data parallelism:" in told
    strategy = Partition.from_json(Path("plan/partition.json").read_text())
    assert max(device for split in strategy.splits for device in split.devices) <= 3
    assert Timeline.load("plan/timeline.json").makespan > 0
    assert Path("plan/timeline.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("learners", [1, 2])
def test_every_plan_says_how_far_from_the_best_possible_it_is_at_most(learners: int, said: Callable[[], str]) -> None:
    searching = [*MODEL, NODE, *SHORT, f"learners={learners}"]
    told = []
    for words in (searching, ["show", "plan"], ["compare", *searching, "methods=search"]):
        assert main(["plan", *words]) == 0
        told.append(said())
    batch = "" if learners == 1 else " for a batch"
    line = re.compile(rf"lower bound: ([0-9.]+) ms{batch}; within ([0-9,]+) % of the best possible")
    ((bound, percent),) = {line.search(text).groups() for text in told}  # type: ignore[union-attr]
    step = float(re.search(r"a step: ([0-9.]+) ms", told[0])[1]) / learners  # type: ignore[index]
    assert step / float(bound) == pytest.approx(1 + int(percent.replace(",", "")) / 100, rel=0.05)  # as printed


def test_a_bound_that_says_nothing_is_left_out(said: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MOST_PERCENT", 1)
    assert main(["plan", *MODEL, NODE, *SHORT]) == 0
    assert "lower bound" not in said()


def test_learners_and_batch_are_chosen_by_the_time_to_an_accuracy(
    said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "capture_operators", capture_operators)
    sizes = ["batch_sizes=8,16", "learners=1,4", "noise_scale=100"]
    assert main(["plan", *MODEL[:1], NODE, *SHORT, *sizes]) == 0
    rows = re.findall(
        r"learners=(\d) batch_size=(\d+): ([0-9.]+) ms for (\d+) samples, worth ([0-9.]+) .*? us", told := said()
    )
    assert [int(row[1]) for row in rows] == [8, 16]
    for learners, size, _, samples, worth in rows:
        assert int(samples) == int(learners) * int(size)
        assert float(worth) == pytest.approx(int(samples) / (1 + int(samples) / 100), abs=0.05)
    best = min(rows, key=lambda row: float(row[2]) / float(row[4]))
    assert json.loads(Path("plan/partition.json").read_text())["planned_for"]["batch_size"] == int(best[1])
    assert f"a step: {best[2]} ms" in told
    assert main(["plan", "show", "plan"]) == 0
    assert f"a batch of {best[1]};" in said()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([*MODEL, NODE], "for model=mlp batch_size=8, a batch of 8; topology p100_node, 4 devices; costs=roofline"),
        (["network=alexnet"], "for network=alexnet size=tiny, a batch of 8; topology two_cores, 2 devices; costs="),
    ],
)
def test_what_is_planned_for_is_told_first(words: list[str], line: str, said: Callable[[], str]) -> None:
    assert main(["plan", *words, "method=single"]) == 0
    assert said().startswith(line)
    assert main(["plan", "show", "plan"]) == 0
    assert said().startswith(line)


def test_settings_of_the_search_are_read() -> None:
    words = ["starts=single,optcnn", "moves=paper", "patience=none", "temperature=0.1", "even=true"]
    search = planning_settings.read(words).search
    assert (search.starts, search.moves, search.even) == (("single", "optcnn"), "paper", True)
    assert (search.patience, search.temperature) == (None, 0.1)
    assert planning_settings.read(["patience=0.25"]).search.patience == 0.25


def test_dry_run_prints_the_same_and_writes_nothing(said: Callable[[], str]) -> None:
    assert main(["plan", "--dry-run", *MODEL, "topology=h100_node", "method=model"]) == 0
    dry = said()
    assert "dry run: nothing is written" in dry
    assert not list(Path().iterdir())
    assert main(["plan", *MODEL, "topology=h100_node", "method=model", "out=one/plan.json"]) == 0
    assert said().split("files:")[0] == dry.split("dry run:")[0]
    assert [path.name for path in Path("one").iterdir()] == ["plan.json"]


def test_a_policy_learns_in_several_processes(said: Callable[[], str]) -> None:
    assert main(["plan", *MODEL, NODE, *SHORT, "method=learned", "workers=2", "out=other.json"]) == 0
    assert "groups of operators were placed" in said()
    assert all(split.num_tiles == 1 for split in Partition.from_json(Path("other.json").read_text()).splits)


@pytest.mark.quick
@pytest.mark.parametrize("method", ["single", "data", "model", "expert", "exhaustive", *PLACEMENTS])
def test_every_method_gives_a_strategy(method: str, said: Callable[[], str]) -> None:
    words = ["topology=two_cores", "budget_s=1"] if method == "exhaustive" else [NODE, *SHORT]
    status = main(["plan", *MODEL, *words, f"method={method}", "out=other.json"])
    told = said()
    if status:
        assert method in ("scotch", "mincut", "metis"), told
        assert "install" in told
        return
    strategy = Partition.from_json(Path("other.json").read_text())
    if method in PLACEMENTS:
        assert all(split.num_tiles == 1 for split in strategy.splits)
    if method == "exhaustive":
        assert "partitions with at most 2 tiles an operator, on any devices, is faster" in told


def test_comparing_has_a_row_for_everything(said: Callable[[], str]) -> None:
    methods = ("single", "data", "search", "expert_placement")
    assert main(["plan", "compare", *MODEL, NODE, *SHORT, f"methods={','.join(methods)}"]) == 0
    told = said()
    assert all(method in told for method in methods)
    assert "1.00" in told  # data parallelism over itself
    assert "towers" not in told  # nobody could hold their weights


def test_nothing_is_compared_with_data_parallelism_that_does_not_fit(said: Callable[[], str]) -> None:
    node = (Path(bow.__file__).parent.parent / "conf/topology/p100_node.yaml").read_text()
    Path("small.yaml").write_text(re.sub(r"memory_gib: [\d.]+", "memory_gib: 0.0001", node))
    assert main(["plan", "compare", *MODEL, "topology=small.yaml", *SHORT, "methods=data"]) == 0
    told = said()
    assert "does not fit" in told
    assert "1.00" not in told


def test_comparing_tells_of_towers_where_a_processor_can_hold_their_weights(said: Callable[[], str]) -> None:
    assert main(["plan", "compare", *MODEL, "topology=k80_haswell", "methods=gpu"]) == 0
    told = said()
    for kind in ("synchronous", "asynchronous"):
        pattern = rf"\b{kind} towers: ([0-9.]+) ms [^:]* each of 4 [^:]*: ([0-9.]+) ms per batch"
        (times,) = re.findall(pattern, " ".join(told.split()))
        assert float(times[0]) == pytest.approx(4 * float(times[1]), abs=0.003)


def test_a_method_that_cannot_says_why_in_its_row(said: Callable[[], str]) -> None:
    assert main(["plan", "compare", *MODEL, NODE, "methods=single,cpu"]) == 0
    assert "none: the topology has no CPU device" in said()


def test_a_remedy_in_a_row_keeps_its_brackets(said: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    assert main(["plan", "compare", *MODEL, NODE, "methods=single,metis"]) == 0
    assert "pip install 'bow-trainer[partition]'" in said()


def test_a_device_called_cpu_is_a_processor(said: Callable[[], str]) -> None:
    topology = ["topology=k80_haswell", "method=cpu", "out=placed.json"]
    assert main(["plan", *MODEL, *topology]) == 0
    strategy = Partition.from_json(Path("placed.json").read_text())
    assert {split.devices for split in strategy.splits} == {(0,)}
    assert main(["plan", *MODEL, *topology[:1], "method=expert_placement", *topology[2:]]) == 0
    strategy = Partition.from_json(Path("placed.json").read_text())
    assert all(0 not in split.devices for split in strategy.splits)


@pytest.mark.usefixtures("planned")
def test_showing_a_strategy_names_every_operator(said: Callable[[], str]) -> None:
    assert main(["plan", "show", "plan"]) == 0
    told = said()
    assert "linear" in told
    assert "sample (S) 4" in told


@pytest.mark.usefixtures("planned")
def test_explaining_says_what_other_choices_cost(said: Callable[[], str]) -> None:
    assert main(["plan", "explain", "plan/partition.json", "keep=1"]) == 0
    told = said()
    assert "alternatives simulated" in told
    assert "%)" in told
    assert re.search(r"\w+ \(P\) [234]\b[^:]* on ", told)
    assert "a step:" in told


def test_what_is_explained_is_chosen_from_what_was_planned_from(said: Callable[[], str]) -> None:
    def tried(*words: str) -> int:
        said()
        assert main(["plan", "explain", "plan.json", *words]) == 0
        (number,) = re.findall(r"([\d,]+) alternatives simulated", said())
        return int(number.replace(",", ""))

    plan = ["plan", *MODEL, NODE, "out=plan.json", "method=single"]
    assert main(plan) == 0
    of_any, of_equal = tried(), tried("even=true")
    assert of_equal < of_any
    assert main([*plan, "even=true"]) == 0
    assert (tried(), tried("even=false")) == (of_equal, of_any)


def test_a_strategy_is_explained_for_the_topology_that_its_file_has(said: Callable[[], str]) -> None:
    text = Path(planning.__file__).parents[2] / "conf" / "topology" / "p100_node.yaml"
    Path("own.yaml").write_text(text.read_text().replace("gpu3", "last"))
    assert main(["plan", *MODEL, "topology=own.yaml", "method=model"]) == 0
    Path("own.yaml").unlink()
    assert main(["plan", "show", "plan"]) == 0
    assert "last" in said()


def test_what_bow_plan_returns_is_saved_with_its_topology(said: Callable[[], str], refused: Callable[..., str]) -> None:
    model, batch, step, optimizer = planning.parts("", "", tuple(MODEL))
    settings: dict[str, Any] = {"proposals": 5, "budget_s": None, "starts": "data"}
    found = bow.plan(model, batch, step=step, topology="p100_node", optimizer=optimizer, **settings)
    found.save("found.json")
    assert main(["plan", "show", "found.json", *MODEL]) == 0
    told = said()
    assert "topology p100_node, 4 devices" in told
    assert f"a step: {found.makespan_ns / 1e6:.3f} ms" in told
    refused(["plan", "show", "found.json"], "does not say for which model it was planned")


def test_costs_and_topology_of_this_machine_are_measured_and_kept(
    said: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bow.planning.tiles import planning as tiles_planning
    from bow.planning.tiles import tile_costs
    from bow.planning.tiles.machine import read_devices

    def one_device(devices: str = "auto", count: int | None = None) -> DeviceTopology:
        return read_devices("cpu", 1)

    monkeypatch.setattr(tiles_planning, "measure_machine", one_device)
    monkeypatch.setattr(tile_costs, "REPEATS", 1)
    monkeypatch.setenv("BOW_CACHE", str(tmp_path / "cache"))
    words = ["plan", *MODEL, "method=single", "costs=measured", "out=plan.json"]
    assert main([*words, "topology=machine", "save_topology=own.yaml"]) == 0
    assert load_topology("own.yaml").num_devices == 1
    (kept,) = (tmp_path / "cache" / "tiles").iterdir()
    before = kept.read_bytes()
    assert main([*words, "topology=own.yaml"]) == 0
    assert kept.read_bytes() == before
    assert main(["plan", "show", "plan.json"]) == 0
    times = [line.split()[:2] for line in said().split("a step: ")[1:]]
    assert len(times) == 3
    assert times[0] == times[1] == times[2]


@pytest.mark.parametrize(("words", "copies"), [([], 1), (["optimizer=adamw"], 2), (["optimizer.momentum=0"], 0)])
def test_memory_is_that_of_the_optimizer_that_will_train(words: list[str], copies: int) -> None:
    settings = planning_settings.read([*MODEL, *words])
    (problem,) = planning._problems(Console(), settings, load_topology("two_cores"))
    assert problem.optimizer_bytes_per_weight_byte == copies


@pytest.fixture(params=[1, 2])
def _interrupted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is pressed as soon as a search tells how it goes, once or twice."""
    real = planning_settings.search

    def searched(problem: Any, settings: Any, tell: Any) -> Any:
        def told(*how: Any) -> bool:
            assert signal.getsignal(signal.SIGINT) not in (signal.SIG_DFL, signal.default_int_handler)
            for _ in range(request.param):
                signal.raise_signal(signal.SIGINT)
            return bool(tell(*how))

        return real(problem, settings, told)

    monkeypatch.setattr(planning_settings, "search", searched)


def test_away_from_a_terminal_nothing_stands_for_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *MODEL, NODE, *SHORT, "--dry-run"]) == 0
    assert all(capsys.readouterr().out.splitlines())


@pytest.mark.usefixtures("_interrupted")
def test_ctrl_c_keeps_the_best_strategy(said: Callable[[], str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    began = time.monotonic()
    assert main(["plan", *MODEL, NODE, "budget_s=3600"]) == 0
    assert time.monotonic() - began < 1800
    assert "interrupted" in said()
    Partition.from_json(Path("plan/partition.json").read_text())
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("_interrupted")
def test_ctrl_c_ends_the_searches_for_all_sizes_of_batch(
    said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "capture_operators", capture_operators)
    assert main(["plan", *MODEL[:1], NODE, "budget_s=300", "batch_sizes=8,16,32", "noise_scale=100"]) == 0
    assert (told := said()).count(", interrupted;") == 1
    assert told.count("left out: batch_sizes=16,32 (the search was interrupted)") == 1
    assert json.loads(Path("plan/partition.json").read_text())["planned_for"]["batch_size"] == 8


def test_training_is_for_what_was_planned_for_where_nothing_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Sequence[str]] = []
    monkeypatch.setattr(cli_training, "run", lambda words, *_: given.append(words) or 0)
    monkeypatch.setattr(planning, "capture_operators", capture_operators)
    assert main(["plan", *MODEL[:1], "seed=3", NODE, "method=single", "batch_sizes=16"]) == 0
    for words in ([], ["epochs=2"], ["batch_size=8"], ["recipe=lenet"], ["--config", "runs/a/config.yaml"]):
        assert main(["plan", "train", "plan", *words]) == 0
    assert main(["plan", *MODEL, NODE, "method=single"]) == 0
    assert main(["plan", "train", "plan", "data=synthetic"]) == 0
    assert given == [
        ["model=mlp", "batch_size=16"],
        ["model=mlp", "batch_size=16", "epochs=2"],
        ["model=mlp", "batch_size=8"],
        ["batch_size=16", "recipe=lenet"],
        ["--config", "runs/a/config.yaml"],
        ["batch_size=8", "data=synthetic"],
    ]


@pytest.mark.parametrize(
    ("words", "replaced"),
    [
        (["optimizer=sgd"], {"optimizer=adam", "optimizer.lr=0.0005"}),
        (["optimizer=adam"], {"optimizer=adam"}),
        (["~optimizer.lr"], {"optimizer.lr=0.0005"}),
        (["++model.width=4"], {"model.width=2"}),
        (["++seed=4"], {"+seed=3"}),
        (["run=there"], {"run.path=here"}),
    ],
)
def test_a_word_replaces_what_was_planned_of_it_and_below_it(
    words: list[str], replaced: set[str], planned: dict[str, Any]
) -> None:
    others = ["recipe=lenet", "optimizer=adam", "optimizer.lr=0.0005", "model.width=2", "+seed=3", "run.path=here"]
    others += ["run.checkpoint_every=9"]
    file = changed(planned, planned_for={"others": others})
    left = [word for word in others if word not in replaced]
    assert planning_settings.as_planned(file, words) == [*left, *words]


def test_a_partition_is_shown_for_its_model_where_other_settings_are_given(
    said: Callable[[], str], refused: Callable[..., str]
) -> None:
    assert main(["plan", *MODEL, NODE, "method=single"]) == 0
    said()
    assert main(["plan", "show", "plan", "optimizer=adamw"]) == 0
    assert said().startswith("for model=mlp batch_size=8 optimizer=adamw, a batch of 8;")
    main(["plan", "show", "plan", "batch_size=32"])
    assert said().startswith("for model=mlp batch_size=32, a batch of 32;")
    assert main(["plan", "network=alexnet", "method=single"]) == 0
    refused(["plan", "show", "plan", "batch_size=32"], "network=alexnet takes no settings of a model")
    refused(["plan", "show", "plan", "size=huge"], "network=alexnet has no size 'huge'")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["network=nosuch"], "network='nosuch' does not exist"),
        (["network=rnnlm", "size=huge"], "has no size 'huge'"),
        ([*MODEL, "topology=nosuch"], "topology 'nosuch' cannot be read"),
        ([*MODEL, "method=magic"], "method='magic' does not exist"),
        ([*MODEL, "method=serch"], "did you mean search?"),
        (["compare", *MODEL, "methods=data,magic"], "method='magic' does not exist"),
        ([*MODEL, "costs=guessed"], "costs='guessed' does not exist; choose one of measured, roofline"),
        ([*MODEL, "costs=measured"], "costs=measured needs devices of this machine, topology 'two_cores' has core"),
        ([*MODEL, "budget_s=soon"], "budget_s must be a number, got 'soon'"),
        ([*MODEL, "starts=data,exprt"], "starts must be among data, expert, random, model, single, optcnn, got exprt"),
        ([*MODEL, "patience=long"], "patience must be a number, or none, got 'long'"),
        ([*MODEL, "even=perhaps"], "even must be true or false, got 'perhaps'"),
        ([*MODEL, "proposals=many"], "proposals must be a whole number, got 'many'"),
        ([*MODEL, "learners=1,x"], "learners must be a whole number, or several with commas, got '1,x'"),
        ([*MODEL, "learners=3", "topology=p100_node"], "4 devices cannot be divided among 3 learners"),
        ([*MODEL, "learners=2", "method=data"], "learners=2 is for method=search, and method=data plans one learner"),
        ([*MODEL, "learners=1,2", "method=exhaustive"], "learners=1,2 is for method=search, and method=exhaustive"),
        ([*MODEL, "starts=random", "method=data"], "starts=random is for method=search, and method=data has no starts"),
        ([*MODEL, "patience=none", "method=exhaustive"], "patience=none is for method=search"),
        (
            [*MODEL, "proposals=9", "method=exhaustive"],
            "proposals=9 is for method=search; limit method=exhaustive by",
        ),
        ([*MODEL, "batch_sizes=16"], "batch_size=8 and batch_sizes=16 both set the batch size; keep one of them"),
        ([*MODEL[:1], "batch_sizes=4,8"], "batch_sizes=4,8 are compared by the time to an accuracy"),
        (["show", "plan", "batch_sizes=4,8", "noise_scale=9"], "bow plan show takes one batch size"),
        (["compare", *MODEL[:1], "batch_sizes=4,8", "noise_scale=9"], "bow plan compare takes one batch size"),
        ([*MODEL, "learners=2", "method=gpu"], "use method=search, or leave learners out"),
        ([*MODEL, "workers=2"], "workers=2 is for method=learned, and method=search trains no policy"),
        ([*MODEL, "workers=-1", "method=learned"], "workers must be a whole number of at least 0, got -1"),
        ([*MODEL, "devices=2"], "devices=2 is for topology=machine"),
        ([*MODEL, "topology=machine", "devices=9999"], "9999 devices need 9999 cores"),
        ([*MODEL, "topology=machine", "--dry-run"], "topology=machine measures this machine, but a dry run"),
        ([*MODEL, "costs=measured", "dry_run=true"], "costs=measured measures this machine, but a dry run"),
        ([*MODEL, "save_topology=x.yaml", "dry_run=true"], "a dry run writes nothing"),
        ([*MODEL, "dry_run=perhaps"], "dry_run must be true or false, got 'perhaps'"),
        ([*MODEL, "out=/dev/null/there", "method=single"], "out=/dev/null/there cannot be written"),
        ([*MODEL, "method=single", "save_topology=/dev/null/there"], "the topology cannot be written to"),
        (["model=nosuch"], "choose one of alexnet"),
        (["explane"], "'explane' is not an action of bow plan"),
        (["show"], "bow plan show needs the file of a partition"),
        (["explain", "network=rnnlm"], "bow plan explain needs the file of a partition"),
        (["show", "missing.json"], "missing.json cannot be read"),
        (["show", "damaged.json"], "the partition is not JSON"),
        (["show", "binary.json"], "binary.json cannot be read (not a UTF-8 text file)"),
        (["show", "list.json"], 'the text is not a "bow partition"'),
        ([*MODEL, "topology=damaged.yaml"], "topology 'damaged.yaml' is not YAML"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], message: str, refused: Callable[..., str]) -> None:
    Path("damaged.json").write_text("{")
    Path("binary.json").write_bytes(b"\xff\xfe\x00")
    Path("list.json").write_text("[]")
    Path("damaged.yaml").write_text("a: [")
    refused(["plan", *words], message)


def test_a_strategy_that_cannot_be_written_is_kept_elsewhere(refused: Callable[..., str]) -> None:
    refused(["plan", *MODEL, "method=single", "out=/dev/null/there"], "partition.json")
    (kept,) = Path().glob("*.json")
    assert main(["plan", "show", str(kept)]) == 0


WIDE: list[dict[str, Any]] = [{"degrees": [99, 1], "devices": [0] * 99}]


@pytest.mark.parametrize(
    ("changes", "words", "message"),
    [
        ({}, ["model=logistic_regression", "batch_size=8"], "the partition is for graph"),
        ({}, ["topology=two_cores"], "has a tile on device 2, and there are 2 (0 to 1)"),
        ({"splits": WIDE}, [], "has a sample of 8, got degree 99; give at most 8"),
        ({"splits": None}, [], "the partition is damaged"),
        ({"version": 99}, [], "the partition has version 99, this bow reads 1; plan again"),
        ({"learners": 3}, [], "4 devices cannot be divided among 3 learners"),
        ({"planned_for": None}, [], "does not say for which model it was planned; add network=NAME"),
        ({"planned_for": None}, MODEL, "does not say for which devices it was planned; add topology=NAME or FILE"),
        ({"planned_for": {"device_lists": "odd"}}, [*MODEL, NODE], "has invalid metadata"),
        ({"planned_for": {"topology": 7}}, MODEL, "a topology must be a mapping with devices and links"),
        ({"planned_for": [1]}, [], "has invalid metadata"),
        ({"planned_for": {"even": "perhaps"}}, [*MODEL, NODE], "has invalid metadata"),
        ({"planned_for": {"topology": None, "costs": "guessed"}}, [*MODEL, NODE], "has invalid metadata"),
    ],
)
def test_files_that_do_not_fit_get_one_sentence(
    changes: dict[str, Any],
    words: list[str],
    message: str,
    planned: dict[str, Any],
    refused: Callable[..., str],
) -> None:
    if changes.get("splits"):
        changes = {"splits": [*changes["splits"], *planned["splits"][1:]]}
    refused(["plan", "show", changed(planned, **changes), *words], message)


def test_an_operator_without_a_rule_is_never_split(said: Callable[[], str], refused: Callable[..., str]) -> None:
    words = ["model=logistic_regression", "batch_size=8", "loss=null", "step=tests.cli.steps.sorted_outputs"]
    assert main(["plan", *words, "topology=p100_node", "method=data"]) == 0
    planned = json.loads(Path("plan/partition.json").read_text())
    assert main(["plan", "show", "plan"]) == 0
    assert "sort" in said()
    whole = [number for number, split in enumerate(planned["splits"]) if split["devices"] == [0]]
    planned["splits"][whole[0]] = {"degrees": [2, 1], "devices": [0, 1]}
    refused(["plan", "show", changed(planned)], "cannot be split by")


@pytest.mark.parametrize("words", [["--help"], ["compare", "--help"], ["explain", "-h"]])
def test_help_names_topologies_and_methods(words: list[str], said: Callable[[], str]) -> None:
    assert main(["plan", *words]) == 0
    told = said()
    for word in ("p100_cluster", "machine", "mcmc_placement", "learned", "explain", "--dry-run"):
        assert word in told
