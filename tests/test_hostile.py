"""Invalid calls and command lines: a result or a one-sentence error each, and no files or processes left."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_every_call_and_command_line_gives_a_result_or_a_sentence(seed: int) -> None:
    """1,200 cases in all; in a process that has computed nothing, because each is run in a fork of it."""
    command = [sys.executable, "-m", "tests.hostile", "180", "120", str(seed)]
    found = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
