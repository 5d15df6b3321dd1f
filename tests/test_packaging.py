import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

import bow
from bow.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Commands of an installed bow, run next to a clone: the folder there is called bow.
LINES = (
    "train engine=graph learners=2 steps=4 model=logistic_regression run.progress=false run.path=run",
    "report run",
    "schedule simulate recipe=logistic_regression out=schedule",
    "plan network=nmt size=tiny topology=p100_node budget_s=1 out=plan",
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that bow is built from: a build creates folders next to them."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("bow", "conf", "hydra_plugins", "kernels"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, as by `make wheel`: what is missing in either is missing in the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    packed = folder / build(source, "build_sdist", folder)
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4 and newer
    shutil.unpack_archive(packed, folder, **safely)
    return folder / build(folder / packed.name.removesuffix(".tar.gz"), "build_wheel", folder)


def build(source: Path, step: str, target: Path) -> str:
    code = f"from setuptools import build_meta; print(build_meta.{step}({str(target)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()[-1]


def environment_in(folder: Path) -> tuple[Path, Path]:
    """Return the interpreter of a new environment, with the other packages of this one, and where it has its own."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))  # a plain path: its .pth files are not read
    return folder / "bin" / "python", site


def installed(wheel: Path, environment: Path) -> Path:
    """Return the interpreter of a new environment with this wheel."""
    python, _ = environment_in(environment)
    arguments = ["--python", python, "install", "-q", "--no-index", "--no-deps", "--disable-pip-version-check", wheel]
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)
    return python


def program(path: Path, text: str) -> Path:
    """A shell script in the place of a program."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def beside_a_clone(folder: Path) -> Path:
    (folder / "bow" / "bow").mkdir(parents=True)
    return folder


def test_every_file_of_the_tree_is_in_the_wheel(source: Path, wheel: Path) -> None:
    walks = [os.walk(source / "bow", followlinks=True), os.walk(source / "hydra_plugins")]
    there = {Path(folder, name).relative_to(source) for walk in walks for folder, _, names in walk for name in names}
    with zipfile.ZipFile(wheel) as archive:
        packed = {Path(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert {path.suffix for path in there} >= {".py", ".yaml", ".h", ".cpp", ".cu", ".cuh", ".html"}
    assert packed == there


@pytest.mark.nightly
def test_an_installed_wheel_trains_reports_schedules_and_plans_beside_a_clone(wheel: Path, tmp_path: Path) -> None:
    python = installed(wheel, tmp_path / "environment")
    code = f"import bow.cli\nprint(bow.__file__)\nfor line in {LINES}: assert bow.cli.main(line.split()) == 0, line"
    folder = beside_a_clone(tmp_path / "work")
    done = subprocess.run([python, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path(done.stdout.splitlines()[0]).is_relative_to(tmp_path / "environment")
    assert (python.parent / "bow").exists()


def test_an_editable_install_is_found_beside_a_clone(source: Path, tmp_path: Path) -> None:
    python, site = environment_in(tmp_path / "environment")
    with zipfile.ZipFile(tmp_path / build(source, "build_editable", tmp_path)) as wheel:
        wheel.extractall(site)  # as pip does, which takes a second to start
    code = "import bow.conf, bow.kernels; print(bow.__file__, bow.conf.__file__, bow.kernels.__file__)"
    folder = beside_a_clone(tmp_path / "work")
    done = subprocess.run([python, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert all(Path(name).is_relative_to(source) for name in done.stdout.split())


def test_the_container_knows_every_command_of_bow(tmp_path: Path) -> None:
    program(tmp_path / "bow", 'echo "$@"')
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    for command in COMMANDS:
        words = ["sh", ROOT / "docker/entrypoint.sh", command, "some=thing"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == f"{command} some=thing\n"


def test_every_dependency_is_pinned_in_the_constraints() -> None:
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    extras = PROJECT["project"]["optional-dependencies"]
    needed = [*PROJECT["project"]["dependencies"], *extras["dev"], *extras["tensorboard"]]
    names = {requirement.split(">")[0].split("[")[0].lower() for requirement in needed} - {"bow-trainer"}
    assert names <= pinned


def test_the_oldest_python_can_install_what_is_pinned() -> None:
    oldest = f"{PROJECT['project']['requires-python'].removeprefix('>=')}.0"
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if re.match(r"[\w.-]+==", line)]
    wanted = {}
    for name, version in (line.split("==") for line in lines):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # of an extra that is not installed
            installed = importlib.metadata.metadata(name)
            if installed["Version"].partition("+")[0] == version:
                wanted[name] = installed.get("Requires-Python", "")
    assert len(wanted) > len(lines) / 2
    assert {name: wants for name, wants in wanted.items() if oldest not in SpecifierSet(wants)} == {}


def test_scripts_of_the_setup_are_sound() -> None:
    for script in (".ci/setup", ".ci/find-python"):
        subprocess.run(["sh", "-n", ROOT / script], check=True)
    subprocess.run(["bash", "-n", ROOT / ".ci/run"], check=True)


def test_python_that_is_found_is_new_enough() -> None:
    found = subprocess.run([ROOT / ".ci/find-python"], capture_output=True, text=True, check=True).stdout.strip()
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    assert tuple(map(int, version.split()[1].split(".")[:2])) >= (3, 11)


def test_setup_without_python_says_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run([ROOT / ".ci/setup", tmp_path / "venv", ""], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("bow: no Python 3.11 or newer is on the path; install one")


def test_setup_without_ensurepip_names_the_package(tmp_path: Path) -> None:
    python = program(tmp_path / "python3", 'case "$2" in *ensurepip*) exit 1;; *) echo 3.12;; esac')
    done = subprocess.run([ROOT / ".ci/setup", tmp_path / "venv", python], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "sudo apt install python3.12-venv" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("nvidia_smi", "tools", "extras", "torch"),
    [
        ("| NVIDIA-SMI 580.65.06   Driver Version: 580.65.06   CUDA Version: 13.0 |", [], "[cu13]", "2.13.0"),
        ("| NVIDIA-SMI 595.12      Driver Version: 595.12      CUDA Version: 13.2 |", ["dev"], "[dev,cu13]", "2.13.0"),
        ("| NVIDIA-SMI 550.54.15   Driver Version: 550.54.15   CUDA Version: 12.4 |", [], "[cu12]", "2.10.0"),
    ],
)
def test_setup_takes_the_torch_that_the_driver_can_run(
    nvidia_smi: str, tools: list[str], extras: str, torch: str, tmp_path: Path
) -> None:
    program(tmp_path / "bin/nvidia-smi", f"echo '{nvidia_smi}'")
    program(tmp_path / "bin/python", f'[ "$1" = -c ] || echo "$@" >>{tmp_path}/installed')
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "BOW_CUDA": ""}
    subprocess.run([ROOT / ".ci/setup", tmp_path, "python3", *tools], env=environment, check=True, capture_output=True)
    words = (tmp_path / "installed").read_text().split()
    assert words[-1] == f".{extras}"
    constraints = ROOT / words[words.index("--constraint") + 1]
    assert f"torch=={torch}" in constraints.read_text().splitlines()


@pytest.mark.parametrize("status", [0, 1])
def test_setup_tells_what_it_does_in_few_lines(status: int, tmp_path: Path) -> None:
    said = [f"Collecting package-{number}" for number in range(45)]
    said += [
        "  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (190.1 MB)",
        "  Downloading small-1.0.whl (1.2 MB)",
        "Obtaining file:///bow",
    ]
    said += ["Installing collected packages: a, b, c", "Successfully installed a-1 b-2 c-3"]
    (tmp_path / "said").write_text("\n".join(said) + "\n")
    lines = f'cat {tmp_path}/said; echo "ERROR: no disk" >&2; exit {status};'
    program(tmp_path / "bin/python", f'[ "$1" = -c ] || {{ {lines} }}')
    command = [ROOT / ".ci/setup", tmp_path, "python3"]
    done = subprocess.run(command, env=os.environ | {"BOW_CUDA": "none"}, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stdout.splitlines()[1:] == [
        "  20 packages found",
        "  40 packages found",
        "  downloading torch-2.13.0 (190.1 MB)",
        "  installing 3 packages",
    ]
    assert [line[:10] for line in done.stderr.splitlines()] == ["ERROR: no ", "bow: the i"][: 2 * status]


def test_a_wheel_needs_what_builds_it_alone(tmp_path: Path) -> None:
    program(tmp_path / "bin/python", '[ "$1" = -c ] || echo "$@"')
    done = subprocess.run(
        [ROOT / ".ci/setup", tmp_path, "python3", "build"], capture_output=True, text=True, check=True
    )
    (words,) = (line.split() for line in done.stdout.splitlines())
    assert words[:3] == ["-m", "pip", "install"]
    assert words[-3:] == ["--constraint", "constraints.txt", "build"]


def test_setup_says_every_quarter_of_a_minute_what_it_is_at(tmp_path: Path) -> None:
    lines = 'echo "Collecting scipy>=1.2 (from bow-trainer==1)"; /bin/sleep 1;'
    program(tmp_path / "bin/python", f'[ "$1" = -c ] || {{ {lines} }}')
    program(tmp_path / "bin/sleep", '[ "$1" = 15 ] && exec /bin/sleep .3')
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "BOW_CUDA": "none"}
    command = [ROOT / ".ci/setup", tmp_path, "python3"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:3] == ["  15 s: Collecting scipy>=1.2", "  30 s: Collecting scipy>=1.2"]


def test_there_is_one_version_and_the_changelog_has_it() -> None:
    changes = re.search(r"^## (\d\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert changes is not None
    assert changes[1] == bow.__version__ == citation["version"]
    assert changes[2] == str(citation["date-released"])


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_files_of_the_code_hosting_site_follow_their_schemas(schema: str, files: str) -> None:
    pytest.importorskip("check_jsonschema", reason="needs the extra dev")
    paths = sorted(ROOT.glob(files))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert paths
    assert done.returncode == 0, done.stdout


def test_the_nightly_workflow_tests_with_every_library_that_tests_skip_without() -> None:
    settings = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"]["integrations"]["env"]
    installed = {re.split(r"\W", each)[0] for each in settings["LIBRARIES"].split()}
    paths = [ROOT / each for each in settings["TESTS"].split()]
    assert [path for path in paths if not path.exists()] == []
    found = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        skips = re.findall(r'importorskip\("(\w+)|find_spec\("(\w+)"\) is not', file.read_text())
        names = {name for pair in skips for name in pair if name in installed}
        assert not names or any(path == file or path in file.parents for path in paths), file
        found |= names
    assert installed - found <= {"timm"}  # which a table of tests/models/test_libraries.py names


def test_the_workflow_tests_what_the_metadata_promises() -> None:
    matrix = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["tests"]["strategy"]["matrix"]
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    lowest = next(each for each in PROJECT["project"]["dependencies"] if each.startswith("torch>="))
    assert pinned is not None
    assert matrix["torch"] == [pinned[1]]
    assert f">={matrix['python'][0]}" == PROJECT["project"]["requires-python"]
    assert any(each["torch"].startswith(lowest.removeprefix("torch>=")) for each in matrix["include"])
