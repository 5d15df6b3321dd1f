"""Other systems: importing bow, and engines `eager` and `fused`, need nothing Linux-only; Windows is rejected."""

import subprocess
import sys
from pathlib import Path

from tests.forked import FORKED

WITHOUT_LINUX = """
import os, pathlib, sys, torch
torch.set_num_threads(1)
torch.compiler.set_stance("force_eager")  # bow does nothing else where it compiles; that takes ten seconds
exists = pathlib.Path.exists
pathlib.Path.exists = lambda path: not str(path).startswith(("/proc/", "/sys/")) and exists(path)
for name in [name for name in vars(os) if name.startswith(("sched_", "SCHED_"))]:
    delattr(os, name)

def refuse(event, arguments):
    asked = str(arguments[0]) if event == "open" else str(arguments[1]) if event == "ctypes.dlsym" else ""
    if asked.startswith(("/proc/", "/sys/")) or asked == "prctl":
        seen.append(asked)
        raise FileNotFoundError(asked)

for name in [name for name in sys.modules if name.partition(".")[0] == "bow"]:
    del sys.modules[name]  # a forked process has imported it
seen = []
sys.addaudithook(refuse)
import bow, bow.cli, bow.cluster, bow.planning.tiles.machine, bow.planning.tiles.communication
from bow.data import digits
from bow.models import LogisticRegression
data = digits()
model, loss = LogisticRegression(64, 10), torch.nn.functional.cross_entropy
for engine in ("eager", bow.Engine("fused", compile=False)):
    result = bow.train(model, data.train, loss, engine=engine, learners=2, steps=10, validation=data.validation)
    assert result.metrics["accuracy"] > 0.1, result.metrics
assert seen  # that it looks for more on Linux
"""


def test_eager_and_fused_train_without_what_linux_alone_has(tmp_path: Path) -> None:
    done = subprocess.run([*FORKED, "-c", WITHOUT_LINUX], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_windows_is_refused_in_a_sentence() -> None:
    program = "import sys; sys.platform = 'win32'; import bow"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: bow does not run on Windows")
