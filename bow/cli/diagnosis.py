"""`bow doctor`: what this machine can run, how to train faster or safer, and whether settings fit into its memory."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bow.compiling import MOST_BYTES, cache_folder, cached_files, trim_cache
from bow.data import digits
from bow.devices.cores import BUSY, LOSS_TURNS, busy_cores
from bow.devices.cupy_kernels import library_clash
from bow.devices.memory import free_bytes
from bow.doctor import MachineInfo, check_engines, find_libraries, inspect_machine, version
from bow.engines import Engine, choose_learners
from bow.engines.memory import MemoryNeed, bytes_text, predict_memory, saved_bytes
from bow.engines.task import parts_of
from bow.errors import BowError
from bow.models import LeNet, ResNet
from bow.runtime import loading
from bow.terminal import say, terminal, terminal_table
from bow.timing import time_in_turns
from bow.training.batches import DataSource
from bow.training.checks import engine_for
from bow.training.replicas import Replicas

USAGE = """\
usage: bow doctor [NAME=VALUE ...]
       bow doctor clear=cache

Shows this machine, which engines run on it and which libraries are installed,
and recommends how to train faster or safer, measured in a few seconds. With
settings, as for bow train, it shows instead whether that training would fit
into memory; exit status 1 if not. clear=cache deletes what bow has compiled,
captured and measured on this machine, except pinned choices and files that a
running process uses.
"""
CLEAR = "clear=cache"
GOOD, BAD, UNSURE = Text("yes", "green"), Text("no", "red"), Text("no", "yellow")


def run(words: Sequence[str]) -> int:
    if list(words) == [CLEAR]:
        say(f"{bytes_text(trim_cache(0))} deleted from {cache_folder()}")
        return 0
    console = terminal()
    machine = inspect_machine()
    rows = [(engine.name, GOOD if engine.runs else BAD, engine.note) for engine in check_engines(machine)]
    engines = terminal_table("Engines", "name", "runs", "", texts=range(3), rows=rows)
    libraries = terminal_table("Libraries", "name", "installed", "version", "for", texts=range(4))
    for each in find_libraries():
        there = GOOD if each.version else BAD if each.required else UNSURE
        libraries.add_row(each.name, there, Text(each.version or each.remedy), each.purpose)
    console.print(_machine_table(machine), "", engines, "", libraries, "", _learner_table(machine))
    for problem in (machine.gpu_problem, library_clash()):
        if problem:
            console.print(Text(f"\n{problem}", "yellow"))
    if words:
        return _check_fit(words, console)
    say("\nRecommendations (measured, which takes some seconds)")
    for line in list(advice(machine)) or ["none"]:
        say(f"  {line}")
    return 0


def _machine_table(machine: MachineInfo) -> Table:
    table = terminal_table("This machine", "", "", texts=(0, 1))
    table.show_header = False
    table.add_row("Python", machine.python)
    table.add_row("system", machine.system)
    table.add_row("processor", f"{machine.processor}, {machine.cores} cores")
    table.add_row("memory", f"{bytes_text(machine.available_bytes)} free of {bytes_text(machine.memory_bytes)}")
    table.add_row("torch", machine.torch)
    for index, gpu in enumerate(machine.gpus):
        free, total = bytes_text(gpu.free_bytes), bytes_text(gpu.total_bytes)
        table.add_row(f"cuda:{index}", f"{gpu.name}, compute capability {gpu.capability}, {free} free of {total}")
    if not machine.gpus:
        table.add_row("GPU", "none that torch can use")
    table.add_row("C++ compiler", machine.compiler or "none")
    held, folder = sum(size for _, size, _ in cached_files()), cache_folder()
    table.add_row("cache", f"{bytes_text(held)} of at most {bytes_text(MOST_BYTES)} in {folder} ({CLEAR} deletes it)")
    return table


def _learner_table(machine: MachineInfo) -> Table:
    columns = "device", "engine", "each", "activations", "fit in memory"
    table = terminal_table("Learners of the default recipe, predicted", *columns, texts=range(5))
    try:
        arguments = _arguments(())
    except BowError as error:
        table.add_row("none", "", "", "", Text(str(error), "yellow"))
        return table
    for device in ["cpu", *(f"cuda:{index}" for index in range(len(machine.gpus)))]:
        place = torch.device(device)
        engine, need = _need(arguments, place)
        fitting = f"{need.fitting(free_bytes(place)):,}"
        table.add_row(device, engine, bytes_text(need.learner_bytes), bytes_text(need.task_bytes), fitting)
    return table


def _check_fit(words: Sequence[str], console: Console) -> int:
    arguments = _arguments(words)
    place = torch.device("cuda:0" if arguments["devices"] != "cpu" and torch.cuda.is_available() else "cpu")
    _, need = _need(arguments, place)
    free = free_bytes(place)
    console.print("", _need_table(need))
    activations = "" if need.activation_bytes is not None else ", activations not included"
    text = f"{bytes_text(need.total_bytes)} of {bytes_text(free)}{activations}"
    if need.total_bytes <= free:
        console.print(Text(f"\nIt fits: {text}", "green"))
        return 0
    most = need.fitting(free)
    remedy = f"use learners={most}" if most else "use a smaller model or batch_size"
    console.print(Text(f"\nIt does not fit: {text}; {remedy}", "red"))
    return 1


def _arguments(words: Sequence[str]) -> dict[str, Any]:
    from bow.cli.arguments import build
    from bow.cli.composition import compose

    return build(compose(words))


def _need(arguments: dict[str, Any], place: torch.device) -> tuple[str, MemoryNeed]:
    stream_settings = {name: arguments[name] for name in ("batch_size", "epochs", "steps", "seed")}
    opened = DataSource(arguments["data"], **stream_settings)
    model, wanted = arguments["model"](), arguments["engine"]
    stream, (part, _) = opened.stream, next(parts_of(opened.example, wanted.accumulate))
    learners = getattr(arguments["learners"], "learners", arguments["learners"])  # a number, or a Tuner
    engine = engine_for(wanted, arguments["steps"], place)
    need = predict_memory(
        model,
        arguments["optimizer"],
        arguments["sync"],
        learners=choose_learners(place, stream.samples_per_epoch, stream.batch_size)
        if learners == "auto"
        else learners,
        engine=engine,
        place=place,
        saved=saved_bytes(model, part, wanted.precision),
        clip_norm=arguments["clip_norm"],
        offload=wanted.offload,
        moving_average=arguments["validation"].ema is not None,
    )
    return engine, need


def _need_table(need: MemoryNeed) -> Table:
    table = terminal_table("Memory of these settings", "what", "size", "", texts=range(3))
    each = f"{need.learners} x {bytes_text(need.learner_bytes)}: weights, gradient"
    each += ", correction" if need.rows_per_learner > 2 else ""
    each += f", {need.state_tensors} optimizer tensors" if need.state_tensors else ""
    each += ", buffers" if need.buffer_bytes else ""
    table.add_row("learners", bytes_text(need.learners * need.learner_bytes), each)
    table.add_row("central model", bytes_text(need.device_bytes), "its weights, next and previous weights, and the sum")
    if need.activation_bytes is None:
        table.add_row("activations", "unknown", "this model cannot be measured without running it")
    else:
        note = f"{need.num_tasks} x {bytes_text(need.task_bytes)}, estimated"
        table.add_row("activations", bytes_text(need.num_tasks * need.task_bytes), note)
    return table


BATCH_SIZE = 16
TURNS, WINDOW_S = 5, 0.15
GAIN = 1.1  # speed-up from which another precision is recommended
LOSS = 2.0  # slow-down of torch's default threads against one thread from which to warn
LITTLE_BYTES = 2 * 2**30  # free disk space below which to warn
WRITTEN, SLOW_S = 16 * 2**20, 1.0


def advice(machine: MachineInfo) -> Iterator[str]:
    if machine.compiler is None:
        yield "install g++, or set CXX: engines graph and fused need it (its gain cannot be measured without it)"
    elif not loading.is_built():
        yield "run python -m bow.runtime: it builds the native runtime, for which the first training would wait"
    if machine.gpus and version("cupy") is None:
        yield "pip install 'bow-trainer[cu13]': CUDA kernels for averaging (the gain is not measured)"
    yield from _disk(Path.cwd())
    others = min(busy_cores(), machine.cores)
    if others >= BUSY:
        yield (
            f"other processes use {others:.1f} of {machine.cores} cores, which slows training down: end them, or wait "
            "until they have ended"
        )
    if machine.cores > 1 and others > machine.cores / 2:
        yield "threads and engines are not measured while other processes use most cores; run bow doctor later"
    elif machine.cores > 1:
        if loss := _default_loss():
            yield loss
        if machine.compiler is not None and loading.is_built():
            yield _engines(machine.cores)
            yield from _bfloat16(machine.cores)


def _disk(folder: Path) -> Iterator[str]:
    free = shutil.disk_usage(folder).free
    if free < LITTLE_BYTES:
        yield f"only {bytes_text(free)} are free in {folder}, which checkpoints may exceed; free space, or set run=DIR"
        return
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            began = time.perf_counter()
            file.write(bytes(WRITTEN))
            os.fsync(file.fileno())
            took = time.perf_counter() - began
    except OSError:
        yield f"{folder} cannot be written: set run=DIR to a writable directory"
        return
    if took > SLOW_S:
        rate = bytes_text(round(WRITTEN / took))
        yield f"{folder} is slow ({rate}/s), which delays checkpoints; set run=DIR to a faster disk"


class _Rounds:
    """Rounds to be timed: learners of LeNet on digits, or of ResNet-8 on digits of 32x32."""

    def __init__(self, engine: Engine, learners: int = 1, *, is_resnet: bool = False) -> None:
        inputs, targets = (part[: learners * BATCH_SIZE] for part in digits().train)
        if is_resnet:
            inputs = torch.nn.functional.interpolate(inputs, size=32)
        self.batches = list(zip(torch.split(inputs, BATCH_SIZE), torch.split(targets, BATCH_SIZE), strict=True))
        model = ResNet(8, classes=10, channels=1) if is_resnet else LeNet(classes=10, channels=1, size=8)
        loss = torch.nn.functional.cross_entropy
        self.replicas = Replicas(model, loss, learners=learners, engine=engine, device="cpu")

    def run(self) -> None:
        self.replicas.round(self.batches)

    def rest(self) -> None:
        """Do nothing: the engines' threads wait without spinning."""


def _default_loss() -> str | None:
    """Return a warning if torch's default threads are slow here (measured in a new process), else None."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    code = "import torch, bow.devices as d; n = torch.get_num_threads(); print(n, *d.threads_loss(n))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    threads, low, median, high = map(float, done.stdout.split())
    if low < LOSS:
        return None
    return (
        f"outside of the bow command, torch's {threads:.0f} spinning threads take {median:.0f} times as long as one "
        f"({low:.0f} to {high:.0f} in {LOSS_TURNS} turns): import bow before torch, or set OMP_WAIT_POLICY=PASSIVE, as "
        "the bow command does"
    )


def _engines(cores: int) -> str:
    low, median, high = _gains(_Rounds(Engine("eager")), _Rounds(Engine("graph"), cores), cores)
    what = f"engine=graph learners={cores}: {median:.2f} times the samples per second of one learner"
    how = f"({low:.2f} to {high:.2f} in {TURNS} turns; LeNet, batches of {BATCH_SIZE})"
    return f"{what} in eager {how}" if low > 1 else f"{what} in eager, which is within noise or slower here {how}"


def _bfloat16(cores: int) -> Iterator[str]:
    full, half = Engine("graph"), Engine("graph", precision="bfloat16")
    low, median, high = _gains(_Rounds(full, cores, is_resnet=True), _Rounds(half, cores, is_resnet=True))
    if low > 1 and median > GAIN:
        yield (
            f"engine.precision=bfloat16: {median:.2f} times the samples per second of float32 ({low:.2f} to {high:.2f} "
            f"in {TURNS} turns; engine=graph, ResNet-8, batches of {BATCH_SIZE}); it computes with less precision"
        )


def _gains(one: _Rounds, other: _Rounds, learners: int = 1) -> tuple[float, float, float]:
    """Lowest, median and highest ratio of samples per second: `other`, with `learners`, over `one`, with one."""
    try:
        found = time_in_turns({"one": one, "other": other}, turns=TURNS, window_s=WINDOW_S)
    finally:
        for each in (one, other):
            each.replicas.close()
    gains = [learners * own / others for own, others in zip(found["one"], found["other"], strict=True)]
    return min(gains), statistics.median(gains), max(gains)
