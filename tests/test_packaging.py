import os
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]


def test_every_package_is_shipped() -> None:
    folders = {path.parent for path in (ROOT / "bow").rglob("*.py")}
    packages = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    mapped = {name for name in SETUPTOOLS["package-dir"] if name != "bow"}
    assert set(SETUPTOOLS["packages"]) == packages | mapped


def test_mapped_folders_exist() -> None:
    assert all((ROOT / folder / "__init__.py").exists() for folder in SETUPTOOLS["package-dir"].values())


def test_every_dependency_is_pinned_in_the_constraints() -> None:
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    extras = PROJECT["project"]["optional-dependencies"]
    needed = [*PROJECT["project"]["dependencies"], *extras["dev"], *extras["tensorboard"]]
    names = {requirement.split(">")[0].split("[")[0].lower() for requirement in needed} - {"bow-trainer"}
    assert names <= pinned


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
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; *) echo 3.12;; esac\n')
    python.chmod(0o755)
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
    programs = {
        "nvidia-smi": f"echo '{nvidia_smi}'",
        "python": f'[ "$1" = -c ] || echo "$@" >>{tmp_path}/installed',
    }
    for name, text in programs.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "BOW_CUDA": ""}
    subprocess.run([ROOT / ".ci/setup", tmp_path, "python3", *tools], env=environment, check=True, capture_output=True)
    words = (tmp_path / "installed").read_text().split()
    assert words[-1] == f".{extras}"
    constraints = ROOT / words[words.index("--constraint") + 1]
    assert f"torch=={torch}" in constraints.read_text().splitlines()
