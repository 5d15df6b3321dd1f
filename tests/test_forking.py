"""Forking before bow computes is harmless; afterwards torch would hang, and bow raises an error."""

import subprocess

from tests.forked import FORKED

FORKS = """
import os, sys, warnings
import torch
from torch import nn
import bow

torch.set_num_threads(2)
warnings.simplefilter("ignore")
data = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)

def train():
    return bow.Replicas(nn.Linear(4, 2), nn.functional.cross_entropy, learners=2, engine="eager").round([data, data])

def in_child():
    child = os.fork()
    if not child:
        try:
            train()
        except bow.BowError as error:
            print(error, flush=True)
            os._exit(2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

before = in_child()
train()
behind = in_child()
print(before, behind)
"""


def test_a_child_that_was_forked_after_a_training_is_refused() -> None:
    done = subprocess.run([*FORKED, "-c", FORKS], capture_output=True, text=True, check=True)
    refusal, statuses = done.stdout.splitlines()
    assert statuses == "0 2"
    assert "bow.Replicas would hang" in refusal
    assert "spawn" in refusal
