"""Steps of all kinds in every engine: equal to plain PyTorch, refused with the reason, or in `eager` with a warning."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from bow.training.placed import StepCheck
from tests.engines.many_steps import ENGINES, PLACED, course_and_bound, outcome, outcomes
from tests.engines.random_steps import Case

pytestmark = [
    pytest.mark.usefixtures("_captured_anew"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning:torch"),
]

EXAMPLES = {
    "complex": Case(("complex_product", "spectrum"), "in_dict", False, "several", "momentum", 2),
    "checkpoint": Case(("checkpointed", "batch_norm"), "in_dict", False, "several", "momentum", 2),
    "reentrant checkpoint": Case(("checkpointed_reentrant",), "in_dict", False, "module", "sgd", 1),
    "hooks": Case(("backward_hook", "tensor_hook", "forward_pre_hook"), "in_dict", False, "module", "adamw", 2),
    "functions": Case(("straight_through", "reversal", "cube"), "in_dict", False, "several", "rmsprop", 2, 0.5),
    "counter": Case(("counter", "previous", "integer_buffer"), "in_random", False, "margin", "nesterov", 1),
    "buffers": Case(("ring_buffer", "spectral_norm"), "in_dict", False, "penalty", "sgd", 2),
    "derivatives": Case(("functional_derivative", "double_backward"), "in_dict", False, "module", "momentum", 2),
    "generator": Case(("noise", "loop_until"), "in_dict", False, "module", "sgd", 2),
}
EXAMPLES["from zero"] = Case(("gated_from_zero", "reversal"), "in_dict", False, "module", "sgd", 1, None, True)
EXAMPLES["node"] = Case(("accumulate_grad_hook",), "in_dict", False, "module", "sgd", 1)
EXAMPLES["counter that cannot be fused"] = Case(("memory", "straight_through"), "in_dict", False, "module", "sgd", 2)
EXAMPLES["tensor of the model"] = Case(("views",), "in_tensor", True, "margin", "sgd", 1)
AS_ASKED = {("complex", "graph"), ("checkpoint", "graph"), ("complex", "fused"), ("derivatives", "graph")}
"""What an engine is known to run itself."""


@pytest.mark.sample(3)
@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_engines_train_as_plain_pytorch_does_or_say_why_not(name: str, engine: str) -> None:
    case = EXAMPLES[name]
    what = outcome(case, engine, *course_and_bound(case))
    assert not what.startswith("wrong"), what
    assert what == "equal" or (name, engine) not in AS_ASKED, what


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", EXAMPLES)
def test_placed_strategies_train_as_plain_pytorch_does_or_say_why_not(name: str) -> None:
    case = dataclasses.replace(EXAMPLES[name], learners=1, clip_norm=None)
    what = outcome(case, PLACED, *course_and_bound(case))
    assert not what.startswith("wrong"), what
    assert what == "equal" or name not in ("complex", "checkpoint"), what


@pytest.mark.parametrize(("state", "named"), [("in_context", "'read'"), ("in_iterator", "something")])
def test_placed_strategies_find_changes_whether_they_can_be_watched_or_not(state: str, named: str) -> None:
    case = Case(("dense",), state, True, "state", "sgd", 1)
    what = outcome(case, PLACED, *course_and_bound(case))
    assert what.startswith("refused: CaptureError")
    assert named in what


@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize("engine", ["graph", PLACED])
def test_a_late_change_is_told_at_the_end_where_a_graph_was_kept_as_well(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bow.engines.captured.cache_folder", lambda: tmp_path)
    case = Case(("dense",), "in_c", False, "scaled", "sgd", 1, late=True)
    for _ in range(2 if engine == "graph" else 1):  # placed strategies keep none
        what = outcome(case, engine, *course_and_bound(case))
        assert what.startswith("told behind it" if engine == "graph" else "refused: CaptureError"), what


@pytest.mark.usefixtures("_uncompiled")
def test_a_capture_of_what_every_call_changes_is_told_of() -> None:
    case = Case((), "in_iterator", False, "metrics", "sgd", 1)
    assert outcome(case, "graph", *course_and_bound(case)).startswith("told behind it")


@pytest.mark.usefixtures("_uncompiled")
def test_a_step_with_forward_derivatives_can_be_checked_closely() -> None:
    case = Case(("functional_derivative",), "in_environment", False, "state", "momentum", 1)
    assert outcome(case, "graph", *course_and_bound(case)).startswith("told behind it")


@pytest.mark.usefixtures("_uncompiled")
def test_learners_go_on_with_their_parts_of_a_tensor_that_fused_has_kept() -> None:
    case = Case(("previous",), "in_dict", False, "module", "sgd", 2)
    assert outcome(case, "fused", *course_and_bound(case)).startswith("told: the step changes attribute 'last'")


@pytest.mark.usefixtures("_uncompiled")
def test_an_attempt_to_capture_draws_no_random_numbers_of_python() -> None:
    for blocks in (("memory",), ("dense",)):
        case = Case(blocks, "in_random", True, "state", "nesterov", 1)
        assert outcome(case, "graph", *course_and_bound(case)).startswith("told: engine graph does not work")


@pytest.mark.usefixtures("_uncompiled")
def test_learners_on_threads_have_the_callers_context_variables() -> None:
    case = Case(("dense",), "in_context", True, "state", "sgd", 2)
    assert outcome(case, "streams", *course_and_bound(case)) == "equal"


CHUNK, CHUNKS = 20, 12


@pytest.mark.nightly
@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_engines_train_steps_at_random_as_plain_pytorch_does_or_say_why_not(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bow.engines.captured.cache_folder", lambda: tmp_path)  # for graphs that are kept
    wrong = {}
    for seed in range(CHUNK * chunk, CHUNK * (chunk + 1)):
        case = Case.drawn(seed)
        wrong |= {(seed, engine): what for engine, what in outcomes(case).items() if what.startswith("wrong")}
    assert not wrong


@pytest.mark.nightly
@pytest.mark.usefixtures("_unchecked_shapes")
@pytest.mark.parametrize("seed", range(8))
def test_compiled_tasks_train_steps_at_random_as_plain_pytorch_does_or_say_why_not(seed: int) -> None:
    case = dataclasses.replace(Case.drawn(1000 + seed), blocks=Case.drawn(1000 + seed).blocks[:1])
    expected, bound = course_and_bound(case)
    engines = ENGINES if not case.is_random else ENGINES[:1]
    found = {engine: outcome(case, engine, expected, bound, compile=engine != "fused") for engine in engines}
    assert not [what for what in found.values() if what.startswith("wrong")], found


@pytest.mark.usefixtures("_unchecked_shapes")
@pytest.mark.parametrize("engine", ["eager", "streams"])
def test_a_compiled_task_that_counts_in_python_counts_for_every_learner(engine: str) -> None:
    case = Case(("counter",), "in_dict", False, "module", "momentum", 2)
    with torch.compiler.set_stance("default", force_backend="aot_eager"):
        assert outcome(case, engine, *course_and_bound(case), compile=True) == "equal"


def test_a_tensor_that_changes_in_place_is_noticed_in_that_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        StepCheck, "_leads", property(lambda _: False, lambda *_: None), raising=False
    )  # no check is due
    case = EXAMPLES["tensor of the model"]
    what = outcome(case, PLACED, *course_and_bound(case))
    assert what.startswith("refused: CaptureError"), what
    assert "in round 3" in what
