"""`bow doctor`: what this machine can run, and whether a configuration would fit."""

from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bow.doctor import Machine, MemoryNeed, check_engines, estimate_memory, find_libraries, inspect_machine, problems

USAGE = """\
usage: bow doctor [NAME=VALUE ...]

Says what this machine is, which engines run on it, and which libraries are there or missing. With settings, as for
bow train, it also says whether that training would fit in memory, and ends with exit status 1 where it would not.
"""
GOOD, BAD, UNSURE = Text("yes", "green"), Text("no", "red"), Text("no", "yellow")
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def run(words: Sequence[str]) -> int:
    """Carry out `bow doctor`; `words` are what stands behind it."""
    if "-h" in words or "--help" in words:
        print(USAGE, end="")
        return 0
    console = Console(highlight=False, soft_wrap=True)
    machine = inspect_machine()
    console.print(_machine_table(machine), "", _engine_table(machine), "", _library_table())
    for problem in [machine.gpu_problem, *problems()]:
        if problem:
            console.print(Text(f"\n{problem}", "yellow"))
    return 0 if not words else _check_fit(words, machine, console)


def bytes_text(count: float) -> str:
    """A number of bytes as people read it.

    Example:
        >>> bytes_text(3 * 2**20), bytes_text(512), bytes_text(25 * 2**30)
        ('3.0 MiB', '512 B', '25.0 GiB')
    """
    size, unit = float(count), 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {UNITS[unit]}" if unit else f"{count:.0f} B"


def _machine_table(machine: Machine) -> Table:
    table = _table("This machine", "", "")
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
    return table


def _engine_table(machine: Machine) -> Table:
    table = _table("Engines", "name", "runs", "")
    for engine in check_engines(machine):
        table.add_row(engine.name, GOOD if engine.runs else BAD, engine.note)
    return table


def _library_table() -> Table:
    table = _table("Libraries", "name", "there", "version", "for")
    for library in find_libraries():
        absent = BAD if library.required else UNSURE
        there = GOOD if library.version else absent
        table.add_row(library.name, there, Text(library.version or library.remedy), library.purpose)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, header_style="dim", overflow="fold")
    return table


def _check_fit(words: Sequence[str], machine: Machine, console: Console) -> int:
    from bow.cli.arguments import build
    from bow.cli.composition import compose

    arguments = build(compose(words))
    need = _need(arguments)
    free = _free_bytes(arguments, machine)
    console.print("", _need_table(need))
    activations = "" if need.activation_bytes is not None else ", activations not included"
    text = f"{bytes_text(need.total_bytes)} of {bytes_text(free)}{activations}"
    if need.total_bytes <= free:
        console.print(Text(f"\nIt fits: {text}", "green"))
        return 0
    console.print(Text(f"\nIt does not fit: {text}; {_remedy(need, free)}", "red"))
    return 1


def _need(arguments: dict[str, Any]) -> MemoryNeed:
    inputs = arguments["data"][0]
    device = torch.device("cuda" if _on_cuda(arguments) else "cpu")
    learners = arguments["learners"]
    if learners == "auto":
        from bow.engine import choose_learners

        learners = choose_learners(device, len(inputs), arguments["batch_size"])
    return estimate_memory(
        arguments["model"],
        inputs[: arguments["batch_size"]],
        arguments["optimizer"],
        learners=learners,
        learners_at_once=learners if arguments["engine"] == "fused" else 1,
    )


def _on_cuda(arguments: dict[str, Any]) -> bool:
    return arguments["devices"] != "cpu" and torch.cuda.is_available()


def _free_bytes(arguments: dict[str, Any], machine: Machine) -> int:
    return machine.gpus[0].free_bytes if _on_cuda(arguments) else machine.available_bytes


def _need_table(need: MemoryNeed) -> Table:
    table = _table("Memory of these settings", "what", "size", "")
    each = f"{need.learners} x {bytes_text(need.learner_bytes)}: weights, gradient, correction"
    each += f", {need.state_tensors} optimizer tensors" if need.state_tensors else ""
    table.add_row("learners", bytes_text(need.learners * need.learner_bytes), each)
    table.add_row("central model", bytes_text(need.device_bytes), "itself, its next and last value, and the sum")
    if need.activation_bytes is None:
        table.add_row("activations", "unknown", "this model cannot be measured without running it")
    else:
        total = need.learners_at_once * need.activation_bytes
        note = f"{need.learners_at_once} x {bytes_text(need.activation_bytes)}, estimated"
        table.add_row("activations", bytes_text(total), note)
    return table


def _remedy(need: MemoryNeed, free: int) -> str:
    fixed = need.total_bytes - need.learners * need.learner_bytes
    most = int((free - fixed) // need.learner_bytes)
    return f"use learners={most}" if most >= 1 else "use a smaller model or batch_size"
