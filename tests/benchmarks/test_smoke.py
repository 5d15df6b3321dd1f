"""Every experiment, in tiny form: it starts, measures, and leaves its JSON and its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import allreduce, main
from benchmarks.harness import RESULTS
from bow.errors import SettingError

# What the compiler uses when it is first imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning:torch")

TINY = "quick=true stint_s=0.001 repeats=1"
RUNS = {
    "bounds": ("quick=true models=lenet", "bounds"),
    "budgets": ("quick=true", "budgets"),
    "costs-papers": ("quick=true parts=papers,climbing", "costs"),
    "memory": ("quick=true", "memory"),
    "micro-threads": ("quick=true parts=threads", "micro"),
    "placement": ("quick=true networks=rnnlm methods=cpu,gpu,expert,mcmc placements=8", "placement"),
}
SLOW = {
    "start": ("quick=true", "start"),
    "models": ("quick=true", "models"),
    "gpu": ("fake=true processes=false quick=true", "gpu"),
    "micro-together": ("quick=true parts=pinned,together", "micro"),
    "costs-regression": ("quick=true parts=regression", "costs"),
    "manycore": ("quick=true", "manycore"),
    "engines": (f"{TINY} rivals=compiled_step,eager,graph", "engines"),
    "engines-last": (
        f"{TINY} models=lenet rivals=channels_last,graph+channels_last precision=bfloat16 threads=1",
        "engines_bfloat16",
    ),
    "engines-cores": (f"{TINY} rivals=graph cores=1,2", "engines_cores"),
    "allreduce": ("quick=true turns=1 stint_s=0.01", "allreduce"),
    "tiles": ("quick=true", "tiles"),
    "predicted": ("quick=true", "predicted"),
    "schedule": ("quick=true", "schedule"),
    "unseen": ("quick=true", "unseen"),
    "dispatch": ("quick=true", "dispatch"),
    "tuner": ("quick=true", "tuner"),
    "online": ("quick=true", "online"),
    "placement-all": ("quick=true", "placement"),
    "placement-real": ("quick=true part=real budget_s=0.5 networks=rnnlm", "placement_real"),
    "planner": ("quick=true", "planner"),
    "one_search": ("quick=true", "one_search"),
    "members": ("quick=true", "members"),
    "tabular": ("quick=true", "tabular"),
    "halving": ("quick=true", "halving"),
    "peers": ("quick=true contestants=pytorch,channels_last,bow target=0.5", "peers"),
    "figures-throughput": ("quick=true figure=5.7,5.9", "figures/figure_5.7"),
    "figures-convergence": ("quick=true figure=5.2,5.4,table5.1", "figures/figure_5.4"),
}
EVERY = [*RUNS.items(), *(pytest.param(*run, marks=pytest.mark.nightly) for run in SLOW.items())]


@pytest.mark.parametrize(("case", "run"), EVERY, ids=[*RUNS, *SLOW])
def test_an_experiment_runs_in_tiny_form(case: str, run: tuple[str, str], tmp_path: Path) -> None:
    words, stem = run
    name, threads = case.split("-")[0], torch.get_num_threads()
    out = tmp_path / stem.split("/")[0] if "/" in stem else tmp_path
    assert main(name, [*words.split(), f"out={out}"]) in (0, 1)
    values = json.loads((tmp_path / f"{stem}.json").read_text())
    assert values.get("settings", {}).get("quick", True) is True
    page = out / "figures.md" if name == "figures" else tmp_path / f"{stem}.md"
    assert page.read_text().startswith("# ")
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("is_met", [False, True])
def test_a_missed_aim_is_exit_status_1(is_met: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = json.loads((RESULTS / "allreduce.json").read_text())
    values["verdict"] = dict.fromkeys(values["verdict"], is_met)
    monkeypatch.setattr(allreduce, "measure", lambda config: values)
    assert main("allreduce", [f"out={tmp_path}"]) == (0 if is_met else 1)
    assert json.loads((tmp_path / "allreduce.json").read_text())["verdict"] == values["verdict"]


def test_a_folder_has_no_effect_on_data_that_are_not_read_from_it(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"root=5 has no effect with data=digits, .* leave it out"):
        main("peers", ["data=digits", "root=5", "epochs=1", "seeds=1", f"out={tmp_path}"])


def test_figures_that_have_no_effect_together_are_refused() -> None:
    for words in (["figure="], ["quick=true", "size=full"], ["root=somewhere"]):
        with pytest.raises(Exception, match=r"figure|quick|root"):
            main("figures", words)
