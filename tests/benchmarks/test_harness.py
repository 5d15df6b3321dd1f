"""What all experiments share: settings, turns, processes, statistics, results."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import bow
from benchmarks import EXPERIMENTS, harness, main
from benchmarks.__main__ import run
from benchmarks.harness import setting
from benchmarks.harness.environment import find_commit, told
from benchmarks.harness.processes import SERVING, CaseError, Remote
from bow.errors import SettingError
from tests import forked


@dataclass(frozen=True)
class Config(harness.Config):
    models: tuple[str, ...] = setting(("a", "b"), "models", choices=("a", "b"), quick=("a",))
    counts: tuple[int, ...] = setting((1, 2), "counts")
    seconds: float = setting(0.5, "seconds", quick=0.1)
    repeats: int = setting(3, "repeats")
    seed: int = setting(0, "seed", least=0)


def test_words_become_values_of_their_types() -> None:
    words = ["out=there", "models=b", "counts=4,8", "seconds=2", "repeats=7", "quick=true"]
    found = harness.parse(Config, words)
    assert found == Config(Path("there"), True, ("b",), (4, 8), 2.0, 7)
    assert harness.parse(Config, ["repeats=1"]) == Config(repeats=1)


def test_quick_changes_only_what_was_not_given() -> None:
    quick = Config(quick=True, seconds=3.0).reduced()
    assert (quick.models, quick.seconds, quick.repeats) == (("a",), 3.0, 3)
    assert Config().reduced() == Config()


def test_quick_leaves_what_is_committed_and_the_documentation_alone(tmp_path: Path) -> None:
    assert Config(quick=True).reduced().out == Path("build/quick")
    assert Config(quick=True, out=tmp_path).reduced().out == tmp_path
    documented = harness.Documented(quick=True, out=tmp_path)
    assert (harness.Documented().reduced().docs, documented.reduced().docs) == (Path("docs"), tmp_path)
    given = harness.Documented(quick=True, out=tmp_path, docs=tmp_path / "docs")
    assert given.reduced().docs == tmp_path / "docs"


def together(rank: int) -> int:
    if rank == 1:
        raise ValueError("the other one")
    time.sleep(60)
    return rank


def test_where_one_of_several_processes_fails_the_others_are_not_waited_for() -> None:
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(contextlib.closing(harness.Host())) for _ in range(2)]
        with pytest.raises(harness.CaseError, match="the other one"):
            harness.in_concert(hosts, together, limit_s=60)
        assert harness.in_concert(hosts[1:], abs, limit_s=60) == 0


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("repaets=1", ["'repaets'", "models, counts, seconds, repeats, seed"]),
        ("quick", ["key=value", "'quick'", "repeats"]),
        ("repeats=many", ["repeats must be a whole number", "'many'"]),
        ("repeats=0", ["repeats must be above 0", "got 0"]),
        ("seconds=soon", ["seconds must be a number", "'soon'"]),
        ("seconds=nan", ["seconds must be above 0", "got nan"]),
        ("quick=perhaps", ["quick must be true or false", "'perhaps'"]),
        ("models=a,c", ["models must be of a, b", "'c'"]),
        ("counts=2,-1", ["counts must be above 0", "2,-1"]),
        ("counts=", ["counts must not be empty"]),
        ("seed=-1", ["seed must be at least 0", "got -1"]),
    ],
)
def test_a_mistake_is_a_sentence_that_names_the_value_and_the_choices(word: str, parts: list[str]) -> None:
    with pytest.raises(SettingError) as caught:
        harness.parse(Config, [word])
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message


def test_an_unknown_experiment_lists_the_names() -> None:
    with pytest.raises(SettingError, match="'enginse' is not a benchmark; choose one of engines, budgets, gpu"):
        main("enginse", [])


def test_without_a_name_the_experiments_are_listed_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.split()[:1] == [name] and line.endswith(")") for line in lines) for name in EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_lists_its_settings_and_refuses_others(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(name, ["--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: python -m benchmarks {name}" in text
    assert "=benchmarks/results" in text
    assert run([name, f"out={tmp_path / 'results'}", "threeds=1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_cases_take_turns_and_change_places_every_other_time() -> None:
    order: list[str] = []
    cases = {name: lambda name=name: order.append(name) or len(order) for name in "abc"}  # type: ignore[misc]
    assert harness.take_turns(cases, 3) == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}
    assert "".join(order) == "abccbaabc"


def test_a_case_that_fails_takes_part_no_longer_and_a_race_may_end_early() -> None:
    failures: dict[str, str] = {}

    def fails() -> int:
        raise ValueError("no")

    found = harness.take_turns(
        {"good": lambda: 1, "bad": fails},
        5,
        failed=lambda name, error: failures.update({name: str(error)}),
        after=lambda turn, _: turn == 1,
    )
    assert found == {"good": [1, 1]}
    assert failures == {"bad": "no"}
    with pytest.raises(ValueError, match="no"):
        harness.take_turns({"bad": fails}, 1)


def test_the_first_call_of_a_turn_does_not_count_unless_it_takes_all_of_it() -> None:
    moments = iter([0.0, 1.0, 2.0, 3.0, 10.0])
    assert harness.rate(lambda: 30, 2.0, clock=lambda: next(moments)) == 60 / 2.0
    slow = iter([0.0, 5.0])
    assert harness.rate(lambda: 30, 2.0, clock=lambda: next(slow)) == 6.0


def fails(message: str) -> None:
    raise ValueError(f"{message}\nand more")


def variable(name: str) -> str | None:
    return os.environ.get(name)


def test_a_process_of_its_own_is_that_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # torch's default is another
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # modules would be compiled in every start
    assert SERVING in forked.SCRIPTS  # by day; `--nightly` starts a new interpreter
    with contextlib.closing(harness.Host({"OMP_NUM_THREADS": "1"})) as host:
        assert host.call(os.getpid) != os.getpid()
        assert host.call(variable, "OMP_WAIT_POLICY") is None
        assert host.call(variable, "PYTHONDONTWRITEBYTECODE") is None
        assert host.call(torch.get_num_threads) == 1
        with pytest.raises(harness.CaseError, match=r"^ValueError: no$"):
            host.call(fails, "no")
        host.stop()
        assert host.call(abs, -1) == 1
        with pytest.raises(harness.CaseError, match="ended"):
            host.call(os._exit, 3)


def test_a_process_whose_address_is_there_before_it_listens_is_waited_for(tmp_path: Path) -> None:
    address = tmp_path / "calls"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        late = threading.Timer(0.2, listener.listen)
        late.start()
        Remote(address, patience_s=10).close()
        late.join()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "never"))
        with pytest.raises(CaseError, match="not ready in time"):
            Remote(tmp_path / "never", patience_s=0.1)


def test_a_preparation_that_fails_is_told(tmp_path: Path) -> None:
    host = harness.Host(log=tmp_path / "log", prepare=(fails, ("not here",)))
    with contextlib.closing(host), pytest.raises(harness.CaseError, match="not here"):
        host.call(abs, -1)
    assert "Traceback" in (tmp_path / "log").read_text()


def test_spreads_intervals_and_ratios() -> None:
    assert harness.spread([3.0, 1.0, 2.0], 2, scale=10) == {"median": 20.0, "low": 10.0, "high": 30.0, "n": 3}
    assert harness.quartiles([7.0], 1) == {"median": 7.0, "low": 7.0, "high": 7.0, "n": 1}
    few = harness.median_interval([1.0, 2.0, 3.0])
    assert (few["low"], few["high"], few["confidence"]) == (1.0, 3.0, 0.75)
    assert harness.ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]


def test_a_result_says_how_to_make_it_again_and_where_it_was_made() -> None:
    values = harness.result("budgets", "python -m benchmarks budgets", Config(), 12.345, {"best": 7})
    assert (values["command"], values["seconds"], values["best"]) == ("python -m benchmarks budgets", 12.3, 7)
    assert "out" not in values["settings"]
    environment = values["environment"]
    assert (environment["torch"], environment["bow"]) == (torch.__version__, bow.__version__)
    assert str(Path.cwd()) not in json.dumps(values)
    assert told({**environment, "commit": "0123abc"}).endswith(f"bow {bow.__version__} at 0123abc")
    assert told({**environment, "commit": None}).endswith(f"bow {bow.__version__}")


def test_json_reads_back_as_it_was_and_what_is_no_json_leaves_the_old_file(tmp_path: Path) -> None:
    long = {"name": "x" * 60, "numbers": [1.5] * 5, "none": None}
    values = {"entries": [long, long], "empty": {}, "deep": {"list": list(range(90))}}
    harness.write_json(tmp_path / "result.json", values)
    text = (tmp_path / "result.json").read_text()
    assert json.loads(text) == values
    assert max(map(len, text.splitlines())) < 500
    with pytest.raises(ValueError, match="JSON"):
        harness.write_json(tmp_path / "result.json", {"a": float("nan")})
    assert (tmp_path / "result.json").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match=r"out=.*cannot be made"):
        main("memory", ["quick=true", f"out={tmp_path / 'file' / 'results'}"])


def test_tables_of_a_page_replace_those_of_a_document_and_others_stay(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text("a\n<!-- x: one -->\nold\n<!-- end -->\nb\n<!-- x: two -->\nkept\n<!-- end -->\n")
    harness.replace_tables(document, "<!-- x: one -->\n\nnew\n<!-- end -->\n<!-- x: three -->\nmore\n<!-- end -->\n")
    text = document.read_text()
    assert text == "a\n<!-- x: one -->\n\nnew\n<!-- end -->\nb\n<!-- x: two -->\nkept\n<!-- end -->\n"


def test_a_checkout_names_its_commit_and_whether_it_was_modified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    me = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")
    for arguments in (["init"], ["add", "."], [*me, "commit", "--message", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)
    commit = find_commit(package)
    assert commit is not None
    assert re.fullmatch("[0-9a-f]{7,}", commit)
    (package / "results").mkdir()
    (package / "results" / "new.json").write_text("{}")
    assert find_commit(package) == commit
    (package / "__init__.py").write_text("changed = True")
    assert find_commit(package) == f"{commit} (modified)"
    installed = tmp_path / "site-packages"
    installed.mkdir()
    assert find_commit(installed) is None
    monkeypatch.setenv("PATH", "")
    assert find_commit(package) is None
