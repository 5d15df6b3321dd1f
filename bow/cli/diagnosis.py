"""`bow doctor`: what this machine can run, and whether given settings would fit into its memory."""

from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bow.cli.advice import advice
from bow.compiling import MOST_BYTES, cache_folder, cached_files, trim_cache
from bow.devices.cupy_kernels import library_clash
from bow.devices.memory import free_bytes
from bow.doctor import MachineInfo, check_engines, find_libraries, inspect_machine
from bow.engines.memory import MemoryNeed, bytes_text, predict_memory, saved_bytes
from bow.errors import BowError
from bow.terminal import say, terminal, terminal_table

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
    console.print(_machine_table(machine), "", engines, "", _library_table(), "", _learner_table(machine))
    for problem in (machine.gpu_problem, library_clash()):
        if problem:
            console.print(Text(f"\n{problem}", "yellow"))
    if words:
        return _check_fit(words, console)
    say("\nRecommendations")
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


def _library_table() -> Table:
    table = terminal_table("Libraries", "name", "installed", "version", "for", texts=range(4))
    for library in find_libraries():
        there = GOOD if library.version else BAD if library.required else UNSURE
        table.add_row(library.name, there, Text(library.version or library.remedy), library.purpose)
    return table


def _learner_table(machine: MachineInfo) -> Table:
    """Memory of a learner of the default recipe on each device, and how many fit."""
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
    """Return the engine that would run, and its memory need."""
    from bow.engines import choose_learners
    from bow.training.checks import engine_for

    inputs, size, wanted = arguments["data"][0], arguments["batch_size"], arguments["engine"]
    model = arguments["model"]()
    learners = getattr(arguments["learners"], "learners", arguments["learners"])  # a number, or a Tuner
    engine = engine_for(wanted, arguments["steps"], place)
    need = predict_memory(
        model,
        arguments["optimizer"],
        arguments["sync"],
        learners=choose_learners(place, model, len(inputs), size) if learners == "auto" else learners,
        engine=engine,
        place=place,
        saved=saved_bytes(model, inputs[: -(-size // wanted.accumulate)], wanted.precision),
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
