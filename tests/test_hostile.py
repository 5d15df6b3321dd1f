"""Calls and command lines of a hostile user: a result or one sentence each, and nothing left behind."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_every_call_and_command_line_gives_a_result_or_a_sentence(seed: int) -> None:
    """1,200 in all; in a process that has computed nothing, since each is made in a fork of it."""
    command = [sys.executable, "-m", "tests.hostile", "180", "120", str(seed)]
    found = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
