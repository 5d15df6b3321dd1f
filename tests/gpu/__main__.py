"""Runs the tests on a GPU without pytest and without anything that is not there: `python -m tests.gpu [KEY=VALUE ...]`.

Every group runs in a process of its own. A test that hangs or ends its process is told as such, and the group goes on
behind it in another one. Results: `tests.json`, `tests.xml` (JUnit) and `logs/tests_*.txt` in the folder `out`.

    out=DIR        build/gpu
    budget_s=N     seconds for all tests (480); those that come to no turn are told as not run
    groups=A,B     some of the groups
    fake=true      in tiny form on the fake device
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.harness.bare import prepare

CASE_S = 150.0
"""A test that takes longer hangs."""

START_S = 60.0
"""As does a process that begins no test for so long."""

POLL_S = 0.1


@dataclass
class Options:
    """What the command line says."""

    out: Path = Path("build/gpu")
    budget_s: float = 480.0
    groups: tuple[str, ...] = ()
    fake: bool = False


def parse(words: list[str]) -> Options:
    options = Options()
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or key not in vars(options):
            raise SystemExit(f"tests.gpu: settings are written {', '.join(vars(options))}=VALUE, got {word!r}")
        readers: dict[str, Any] = {
            "out": lambda text: Path(text).resolve(),
            "budget_s": float,
            "fake": lambda text: text == "true",
        }
        setattr(options, key, readers.get(key, lambda text: tuple(text.split(",")))(text))
    return options


def main(words: list[str]) -> int:
    try:
        missing = prepare()
    except ModuleNotFoundError as error:
        print(f"tests.gpu: {error.name} is not installed, and nothing runs without it")
        return 2
    from benchmarks.gpu.machine import check_gpu
    from bow.errors import BowError
    from tests.gpu.groups import GROUPS

    options = parse(words)
    (options.out / "logs").mkdir(parents=True, exist_ok=True)
    tell_what_is_there(options, missing)
    if not options.fake:
        try:
            check_gpu()
        except BowError as error:
            print(f"tests.gpu: every test skipped: {error}")
            return 0
    deadline = time.monotonic() + options.budget_s
    results = []
    for name in options.groups or GROUPS:
        group = Group(name, options, deadline)
        group.run()
        results += group.results()
        write(options.out, results)
        counts = {state: [r["state"] for r in group.results()].count(state) for state in STATES}
        print(f"{name}: {', '.join(f'{count} {state}' for state, count in counts.items() if count)}", flush=True)
    bad = [each for each in results if each["state"] in BAD]
    for each in bad:
        last = each["message"].strip().splitlines()[-1:] or [""]
        print(f"{each['state']}: {each['case']}: {last[0]}")
    return int(bool(bad))


STATES = ("passed", "failed", "ended the process", "hung", "skipped", "not run")
BAD = ("failed", "ended the process", "hung")


@dataclass
class Group:
    """The tests of one group.

    Args:
        name: of the group.
        options: of the run.
        deadline: behind which no test begins.
    """

    name: str
    options: Options
    deadline: float
    lines: dict[int, dict[str, Any]] = field(default_factory=dict)
    total: int = 0

    def run(self) -> None:
        """Run all tests, in another process behind each one that ended its own."""
        path = self.options.out / "logs" / f"tests_{self.name}.jsonl"
        path.unlink(missing_ok=True)
        first = 0
        with (self.options.out / "logs" / f"tests_{self.name}.txt").open("w", encoding="utf-8") as log:
            while True:
                how = self._run_from(first, path, log)
                for line in [line for line in self.lines.values() if line["state"] == "begun"]:
                    line |= {"state": how[0], "message": how[1]}
                    with path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
                last = max(self.lines, default=-1)
                if last < first:  # not even one began
                    self.lines[first] = {
                        "index": first,
                        "case": f"{self.name}: start",
                        "state": how[0],
                        "message": how[1],
                    }
                    return
                first = last + 1
                if first >= self.total:
                    return

    def results(self) -> list[dict[str, Any]]:
        """Of every test that is known of."""
        return [
            {"group": self.name, "seconds": 0.0, "message": "", **self.lines[index]} for index in sorted(self.lines)
        ]

    def _run_from(self, first: int, path: Path, log: Any) -> tuple[str, str]:
        words = [self.name, str(path), str(first), str(self.deadline), str(self.options.fake)]
        from benchmarks.harness.processes import environment_of

        process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.one_group", *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment_of({}),
            cwd=Path(__file__).parents[2],
        )
        since, seen = time.monotonic(), 0
        try:
            while process.poll() is None:
                time.sleep(POLL_S)
                count = self._read(path)
                if count != seen:
                    since, seen = time.monotonic(), count
                if time.monotonic() - since > (CASE_S if self._is_busy() else START_S):
                    return "hung", f"took longer than {CASE_S:.0f} s"
        finally:
            process.kill()
            process.wait()
            self._read(path)
        return "ended the process", f"its process ended with status {process.returncode}"

    def _is_busy(self) -> bool:
        return any(line["state"] == "begun" for line in self.lines.values())

    def _read(self, path: Path) -> int:
        if not path.exists():
            return 0
        text = path.read_text(encoding="utf-8")
        complete = text[: text.rfind("\n") + 1].splitlines()
        for line in map(json.loads, complete):
            if "total" in line:
                self.total = line["total"]
            else:
                self.lines[line["index"]] = line
        return len(complete)


def tell_what_is_there(options: Options, missing: list[str]) -> None:
    """Print and keep what is installed."""
    import importlib.metadata
    import platform

    names = ("torch", "triton", "numpy", "cupy-cuda13x", "cupy-cuda12x", "cupy", "pytest", "nvidia-nccl-cu13")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    missing = [*missing, *(name for name in ("numpy", "triton", "pytest") if name not in found)]
    if not any(name.startswith("cupy") for name in found):
        missing = [*missing, "cupy"]
    print(f"here: {', '.join(f'{name} {version}' for name, version in found.items())}")
    print(f"missing: {', '.join(missing) or 'nothing'}", flush=True)
    text = json.dumps({"installed": found, "missing": missing}, indent=2) + "\n"
    (options.out / "installed.json").write_text(text, encoding="utf-8")


def write(out: Path, results: list[dict[str, Any]]) -> None:
    """All results so far, as JSON and for JUnit's readers."""
    (out / "tests.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    suite = ElementTree.Element("testsuite", name="gpu", tests=str(len(results)))
    for each in results:
        seconds = f"{each['seconds']:.3f}"
        case = ElementTree.SubElement(suite, "testcase", classname=each["group"], name=each["case"], time=seconds)
        if each["state"] in BAD:
            ElementTree.SubElement(case, "failure", message=each["state"]).text = printable(each["message"])
        elif each["state"] != "passed":
            ElementTree.SubElement(case, "skipped", message=f"{each['state']}: {printable(each['message'])}")
    ElementTree.ElementTree(suite).write(out / "tests.xml", encoding="utf-8", xml_declaration=True)


def printable(text: str) -> str:
    """Without what XML forbids."""
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
