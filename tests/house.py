"""Compare the size and structure of source trees: `python -m tests.house [TREE ...] [--wheel]`.

A tree is a checkout of bow, or any folder with a package in it (`TREE:PACKAGE`). Lines of code exclude blank lines,
comments and docstrings. `tests/test_house.py` limits some of the numbers.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]

SECTIONS = re.compile(r"^\s*(Args|Returns|Yields):\s*$", re.MULTILINE)

LOADED = """
import sys; sys.path.insert(0, ".")
import bow; bow.train
print(*(name for name in sys.modules if name.split(".")[0] == "bow"))
"""
AIMS = {
    "lines (code)": "40,000",
    "class names used twice": "0",
    "methods of the largest classes": "25",
    "modules (lines) that bow.train loads": "150 (20,000)",
    "wheel": "700 KiB",
}
WHEEL = "from setuptools import build_meta; build_meta.build_wheel({!r})"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function


@dataclass(frozen=True, eq=False)
class Module:
    """A source file of the package."""

    name: str  # dotted
    path: Path
    text: str
    tree: ast.Module = field(repr=False)

    @functools.cached_property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @functools.cached_property
    def code(self) -> set[int]:
        """Line numbers of the code."""
        held = {
            n for n, line in enumerate(self.text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")
        }
        for text in docstrings(self.tree):
            held -= set(range(text.lineno, text.end_lineno + 1))
        return held

    @property
    def comments(self) -> int:
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return sum(token.type == tokenize.COMMENT for token in tokens)

    @functools.cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]

    @property
    def functions(self) -> Iterator[Function]:
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield every standalone string: docstrings of modules, classes, functions and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def read(root: Path, package: str = "bow") -> dict[str, Module]:
    """Read all modules of a package, by dotted name; symbolic links are excluded."""
    found = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found[name] = Module(name, path, text, ast.parse(text))
    return found


def methods(node: ast.ClassDef) -> int:
    return sum(isinstance(each, Function) for each in node.body)


def parameters(node: Function) -> int:
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(each.arg not in ("self", "cls") for each in named)


def class_names(modules: dict[str, Module]) -> Counter[str]:
    return Counter(node.name for module in modules.values() for node in module.classes)


def unfinished_overrides(modules: dict[str, Module]) -> list[str]:
    """Return methods that only raise NotImplementedError, in a class that inherits from one of the package."""
    known = class_names(modules)
    found = []
    for module in modules.values():
        for node in module.classes:
            if not any(isinstance(base, ast.Name) and base.id in known for base in node.bases):
                continue
            for each in node.body:
                if isinstance(each, Function) and _only_raises(each, "NotImplementedError"):
                    found.append(f"{module.name}.{node.name}.{each.name}")
    return found


def _only_raises(function: Function, error: str) -> bool:
    last = function.body[-1]
    if not isinstance(last, ast.Raise) or last.exc is None or len(function.body) > 2:
        return False
    raised = last.exc.func if isinstance(last.exc, ast.Call) else last.exc
    return isinstance(raised, ast.Name) and raised.id == error


def sections_of_internals(modules: dict[str, Module], public: set[str]) -> list[str]:
    """Return functions with argument lists in their docstrings that are neither public nor methods of public ones."""
    found = []
    for module in modules.values():
        for name, node in _members(module.tree):
            if name.split(".")[0] not in public and SECTIONS.search(ast.get_docstring(node) or ""):
                found.append(f"{module.name}.{name}")
    return found


def _members(owner: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(owner):
        if isinstance(node, Function):
            yield prefix + node.name, node
        if isinstance(node, (*Function.__args__, ast.ClassDef)):
            yield from _members(node, f"{prefix}{node.name}.")


def roots(root: Path, modules: dict[str, Module]) -> set[str]:
    """Return all entry points: public names, commands, targets in the configuration, and `bow.testing`."""
    named = {"bow.cli", "bow.cli.*", "bow.testing", *(name for name in modules if name.endswith(".__main__"))}
    named |= {f"{node.module}.{each.name}" for node in _from_imports(modules["bow"]) for each in node.names}
    for path in (root / "conf").rglob("*.yaml"):
        named |= set(re.findall(r"_target_: *(bow[.\w]+)", path.read_text(encoding="utf-8")))
    return named


class Imports:
    """Reachability of modules through imports.

    Importing a re-exported name leads to the module that defines it, and not to everything that the package
    re-exports. Dotted names in strings count as imports: lazily imported names, and `python -m`.
    """

    def __init__(self, modules: dict[str, Module]) -> None:
        self.modules = modules

    def reached(self, roots: set[str]) -> set[str]:
        """Return the modules reachable from dotted names."""
        found: set[str] = set()
        left = [where for root in roots for where in self._resolved(root)]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self._targets(name)
        packages = {".".join(name.split(".")[:n]) for name in found for n in range(1, name.count(".") + 1)}
        return found | packages & set(self.modules)

    def _targets(self, name: str) -> list[str]:
        module = self.modules[name]
        if module.is_package and not any(
            isinstance(each, (*Function.__args__, ast.ClassDef)) for each in module.tree.body
        ):
            # A re-exporting package: its names are followed where they are used; modules without names are imported for
            # their side effects.
            return [
                dotted for dotted in _dotted(module) if dotted in self.modules and not self.modules[dotted].is_package
            ]
        return [where for dotted in _dotted(module) for where in self._resolved(dotted)]

    def _resolved(self, dotted: str) -> list[str]:
        """Return the modules of `package.module.name`."""
        if dotted.endswith(".*"):
            inside = dotted[:-1]
            return [name for name in self.modules if name.startswith(inside) and "." not in name[len(inside) :]]
        parts = dotted.split(".")
        for size in range(len(parts), 0, -1):
            name = ".".join(parts[:size])
            if name in self.modules:
                break
        else:
            return []
        module = self.modules[name]
        if not module.is_package:
            return [name]
        if size == len(parts):  # the package itself, all of whose names may be used
            return [name, *(where for each in _dotted(module) if each != name for where in self._resolved(each))]
        passed = passed_on(module).get(parts[size])
        return [name, *(self._resolved(passed) if passed not in (None, dotted) else [])]


@functools.cache
def passed_on(package: Module) -> dict[str, str]:
    """Return the names that a package re-exports, and their definitions."""
    found = {}
    for node in _from_imports(package):
        found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return found


def _from_imports(module: Module) -> Iterator[ast.ImportFrom]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom) and node.module)


@functools.cache
def _dotted(module: Module) -> tuple[str, ...]:
    """Return the imports of a module: `package.module` or `package.module.name`."""
    return tuple(_each_dotted(module))


def _each_dotted(module: Module) -> Iterator[str]:
    package = module.name.split(".")[0]
    alone = {id(text) for text in docstrings(module.tree)}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name != package)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield from re.findall(rf"\b{package}(?:\.\w+)+", node.value)
        elif isinstance(node, ast.JoinedStr):  # f"bow.cli.{command}": any command
            first = node.values[0]
            if isinstance(first, ast.Constant) and re.fullmatch(rf"{package}(\.\w+)*\.", first.value):
                yield first.value.rstrip(".") + ".*"


def loaded(root: Path, more: str = "") -> list[list[str]]:
    """Return the modules of bow that `bow.train` loads, and the words of each line that more code prints behind it."""
    command = [sys.executable, "-P", "-c", LOADED + more]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def wheel_kib(root: Path) -> float:
    """Return the size of the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("bow", "conf", "hydra_plugins", "kernels"):
            shutil.copytree(
                root / name, f"{folder}/{name}", symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(root / name, folder)
        subprocess.run([sys.executable, "-c", WHEEL.format(folder)], cwd=folder, check=True, capture_output=True)
        (wheel,) = Path(folder).glob("*.whl")
        return wheel.stat().st_size / 1024


def table(root: Path, package: str = "bow", with_wheel: bool = False) -> dict[str, str]:
    """Return the measures of a tree as text."""
    modules = read(root, package)
    files = list(modules.values())
    functions = [(module, node) for module in files for node in module.functions]
    sizes = [len(module.code.intersection(range(node.lineno, node.end_lineno + 1))) for module, node in functions]
    lines, code = sum(module.lines for module in files), sum(len(module.code) for module in files)
    largest = sorted((methods(node) for module in files for node in module.classes), reverse=True)[:4]
    names = class_names(modules)
    found = {
        "files": f"{len(files)}",
        "lines (code)": f"{lines:,} ({code:,})",
        "median file": f"{statistics.median(module.lines for module in files):.0f}",
        "median / p90 function": f"{statistics.median(sizes):.0f} / {statistics.quantiles(sizes, n=10)[-1]:.0f}",
        "comments": f"{sum(module.comments for module in files) / lines:.1%}",
        "classes": f"{names.total()}",
        "class names used twice": f"{sum(count > 1 for count in names.values())}",
        "methods of the largest classes": ", ".join(map(str, largest)),
        "most parameters": f"{max(parameters(node) for _, node in functions)}",
    }
    if package == "bow":
        used = [modules[name] for name in loaded(root)[0] if name in modules]
        found["modules (lines) that bow.train loads"] = f"{len(used)} ({sum(module.lines for module in used):,})"
        if with_wheel:
            found["wheel"] = f"{wheel_kib(root):.0f} KiB"
    return found


def main(words: list[str]) -> int:
    with_wheel = "--wheel" in words
    trees = [word for word in words if word != "--wheel"] or [str(ROOT)]
    columns: dict[str, dict[str, str]] = {}
    for word in trees:
        folder, _, package = word.partition(":")
        columns[word] = table(Path(folder).resolve(), package or "bow", with_wheel)
    rows = defaultdict(dict)
    for tree, column in columns.items():
        for name, value in column.items():
            rows[name][tree] = value
    cells = [["", *trees, "aim"]]
    cells += ([name, *(row.get(tree, "-") for tree in trees), AIMS.get(name, "")] for name, row in rows.items())
    widths = [max(len(line[n]) for line in cells) for n in range(len(trees) + 2)]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in cells]
    padded.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    for line in padded:
        print(f"| {' | '.join(line)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
