"""`bow plan`: plan how to split the operators of a model over devices."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from bow.cli.planning_settings import (
    PlanSettings,
    all_methods,
    as_planned,
    check_used,
    compared_methods,
    find,
    load,
    read,
    size_given,
    tower_sentences,
)
from bow.cli.subject import SIZE, parts
from bow.data import batch_length
from bow.engines.memory import bytes_text
from bow.errors import BowError, SettingError, disk_reason, reason
from bow.files import spare_files, write_whole
from bow.observe.progress import measuring
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.partition import Partition
from bow.planning.problem.topology_files import save_topology, shipped_topologies
from bow.planning.search.baselines import baseline
from bow.planning.search.chains import space_of
from bow.planning.search.explain import COLUMNS, Explanation, explain, shortened
from bow.planning.search.lower_bounds import least_batch_ns
from bow.planning.search.metropolis import MOVES, STARTS, SearchSettings
from bow.planning.search.problem import Problem
from bow.planning.search.search import FILE, Found
from bow.planning.simulator.python_simulator import SimulationResult
from bow.planning.tiles import capture_operators
from bow.planning.tiles.agreement import check_agreement
from bow.planning.tiles.machine import MACHINE
from bow.planning.tiles.planning import COSTS, plan_batch_sizes, problem_of, resize_batch, share_budget, topology_of
from bow.planning.tiles.tile_costs import measured_costs
from bow.replicas import in_mode
from bow.schedule.picture import timeline_svg
from bow.terminal import say, terminal, terminal_table
from bow.values import given_path

TIMELINE, PICTURE = "timeline.json", "timeline.svg"  # next to the partition in the output folder
MOST_PERCENT = 500  # above the lower bound; a looser bound is not shown

USAGE = """\
usage: bow plan [--dry-run] [NAME=VALUE ...]
       bow plan compare [NAME=VALUE ...]
       bow plan explain | show FILE [NAME=VALUE ...]
       bow plan train FILE [check=false] [NAME=VALUE ...]

  bow plan network=nmt size=tiny topology=p100_node      search for a partition and write it
  bow plan compare network=alexnet topology=k80_node     compare all methods
  bow plan explain plan/partition.json                    every operator: its split, costs and alternatives
  bow plan show plan/partition.json                       the same without alternatives
  bow plan train plan/partition.json                      train by it; settings and resuming as bow train

Times are simulated, from a roofline of the devices or from measured times.
The model is given as for bow train: recipe=lenet batch_size=64, model=...,
data=...; or as a network of the papers: network=rnnlm size=tiny. A partition's
file contains these settings; those of the command line override them.

topology=NAME or FILE   the devices and links (two_cores); {topologies};
                        {machine}: this one, its links measured between processes
devices=N               with topology={machine}: this many devices, which share its cores or GPUs
save_topology=FILE      write the topology as YAML, for topology=FILE
costs=roofline          or measured: time every tile once on this machine; results are cached
method=NAME             {methods}
methods=NAME,NAME       methods to compare
budget_s=30             seconds of each search, and of the alternatives in explain
proposals=N             instead: proposals of each walk; then its best is improved to a local optimum
learners=1,2            with method=search: numbers of learners to choose from
noise_scale=N           compare by the time to an accuracy, given the gradient noise scale in samples
batch_sizes=16,32       with noise_scale: sizes of a learner's batch to choose from
processes=1             number of search processes
workers=0               with method=learned: processes that train its policy; 0: this one
seed=0                  of the search
starts={starts}
                        starting partitions of the walks, of {all_starts}
moves=guided            proposals of the walks: {moves}; see docs/planning.md
patience=0.5            end a walk after this share of it without improvement; none: never
temperature={temperature}        how much slower partitions walks accept; 0: none
even=false              true: tiles of an operator have equal sizes; method=exhaustive too
keep=2                  alternatives that explain shows for each operator
out=plan                the folder of partition.json, timeline.json and timeline.svg; FILE.json: the partition alone
--dry-run               only print: measure nothing and write no file; for any topology, with or without the hardware

Ctrl-C ends a search and keeps the best partition so far.
"""


def run(words: Sequence[str]) -> int:
    if words and words[0] == "train":
        return _train(words[1:])
    action, file, rest = _action(words)
    settings = read(rest)
    console = terminal()
    if settings.batch_sizes and (size := size_given(settings.others)):
        sizes = ",".join(map(str, settings.batch_sizes))
        raise SettingError(f"{size} and batch_sizes={sizes} both set the batch size; keep one of them")
    if action != "plan" and len(settings.batch_sizes) > 1:
        raise SettingError(f"bow plan {action} takes one batch size; give batch_sizes=N")
    if action in ("show", "explain"):
        _tell(console, file, settings, action)
        return 0
    if action == "plan":
        check_used(settings.method, settings.search, settings.workers)
    topology = topology_of(settings.topology or "two_cores", settings.devices)
    if settings.save_topology is not None:
        save_topology(topology, settings.save_topology)
    problems = _problems(console, settings, topology, is_new=True)
    if action == "plan":
        _plan(console, problems, settings)
    else:
        _compare(console, problems[0], settings)
    return 0


def _train(words: Sequence[str]) -> int:
    from bow.cli.training import run as run_training

    if not words or "=" in words[0]:
        raise SettingError("bow plan train needs the file of a partition; write bow plan train plan/partition.json")
    checks = [word for word in words if word.startswith("check=")]
    if any(word not in ("check=true", "check=false") for word in checks):
        raise SettingError(f"check must be true or false, got {checks[0]}; check=false trains without timing")
    rest = [word for word in words[1:] if word not in checks]
    return run_training(as_planned(words[0], rest), words[0], "check=false" not in checks)


def usage() -> str:
    usual = SearchSettings()
    return USAGE.format(
        topologies=", ".join(shipped_topologies()),
        methods=", ".join(all_methods()),
        machine=MACHINE,
        starts=",".join(usual.starts),
        all_starts=", ".join(STARTS),
        moves=", ".join(MOVES),
        temperature=usual.temperature,
    )


def _problems(
    console: Console, settings: PlanSettings, topology: DeviceTopology, is_new: bool = False
) -> list[Problem]:
    model, example, step, optimizer = parts(settings.network, settings.size, settings.others)
    problems = []
    for batch in resize_batch(example, settings.batch_sizes, settings.search):
        console.print(_subject(settings, batch, topology))
        with in_mode(model, True):
            captured = capture_operators(model, batch, step=step)
            if is_new and not settings.network:  # the papers' networks are slow to check, and known to be right
                check_agreement(captured, model, batch, step)
        costs, even = None, settings.search.even
        if settings.costs == "measured":
            with measuring(console) as tell:
                costs = measured_costs(captured, model, batch, topology, optimizer, even=even, on_measured=tell)
        made = problem_of(captured.graph, topology, costs=costs, optimizer=optimizer, batch_size=batch_length(batch))
        problems.append(made)
    return problems


def _subject(settings: PlanSettings, batch: Any, topology: DeviceTopology) -> str:
    network = f"network={settings.network} size={settings.size or SIZE}"
    what = network if settings.network else " ".join(settings.others) or "the default recipe"
    return (
        f"for {what}, a batch of {batch_length(batch)}; topology {topology.name}, {topology.num_devices} devices; "
        f"costs={settings.costs or COSTS[0]}"
    )


def _plan(console: Console, problems: Sequence[Problem], settings: PlanSettings) -> None:
    def planned_for(each: Problem) -> tuple[float, Problem, Partition, SimulationResult, bool]:
        planned = find(each, settings.method, share_budget(settings.search, len(problems)), console, settings.workers)
        if planned.how:
            console.print(planned.how)
        made = each.simulate(planned.partition.splits, planned.partition.learners)
        if made.refusal is not None:
            raise SettingError(f"method={settings.method} returned a partition that does not fit: {made.refusal}")
        worth = settings.search.worth(each.batch_size, planned.partition.learners)
        if settings.search.noise_scale is not None:
            learners = planned.partition.learners
            console.print(
                f"learners={learners} batch_size={each.batch_size}: {made.makespan_ns / 1e6:.3f} ms for "
                f"{each.batch_size * learners:,} samples, worth {worth:,.1f} single samples: "
                f"{made.makespan_ns / worth / 1e3:.3f} us each"
            )
        return made.makespan_ns / worth, each, planned.partition, made, planned.is_interrupted

    plans = plan_batch_sizes(planned_for, problems, console.print, attrgetter("batch_size"), itemgetter(4))
    _, problem, partition, result, _ = min(plans, key=itemgetter(0))
    console.print(_summary(partition, result))
    if (base := _data_parallel(problem)) is not None:
        ratio = base.makespan_ns / (result.makespan_ns / partition.learners)
        compared = f"{ratio:.2f} times as fast" if base.refusal is None else f"does not fit, {base.refusal}"
        console.print(f"data parallelism: {base.makespan_ns / 1e6:.3f} ms; {compared}")
    _print_distance(console, problem, settings, result.makespan_ns / partition.learners, partition.learners)
    if settings.dry_run:
        console.print("dry run: nothing is written")
        return
    found = Found(partition, result.makespan_ns, problem.topology, settings.search, problem)
    console.print(f"files: {', '.join(map(str, _save(settings, found, result)))}")


def _save(settings: PlanSettings, found: Found, result: SimulationResult) -> tuple[Path, ...]:
    """Write a partition with its metadata; if the output is a folder, its timeline too."""
    text = found.to_json(
        network=settings.network,
        size=settings.size,
        others=list(settings.others),
        costs=settings.costs or COSTS[0],
        **({"batch_size": found.problem.batch_size} if settings.batch_sizes and found.problem is not None else {}),
    )
    is_file = settings.out.suffix == ".json"
    folder = settings.out.parent if is_file else settings.out
    file = settings.out if is_file else folder / FILE
    written: Path | None = None
    try:
        write_whole(file, text)
        written = file
        if is_file:
            return (file,)
        result.timeline.save(folder / TIMELINE)
        (folder / PICTURE).write_text(timeline_svg(result.timeline, "simulated"), encoding="utf-8")
    except OSError as error:
        written = written or _written_elsewhere(text)
        kept = "give another" if written is None else f"the partition is in {written}"
        raise SettingError(f"out={settings.out} cannot be written ({disk_reason(error)}); {kept}") from error
    return tuple(folder / name for name in (FILE, TIMELINE, PICTURE))


def _written_elsewhere(text: str) -> Path | None:
    for path in spare_files("partition", ".json"):
        with contextlib.suppress(OSError):
            write_whole(path, text)
            return path
    return None


def _compare(console: Console, problem: Problem, settings: PlanSettings) -> None:
    rows = terminal_table("A step, simulated", "method", "ms", "speed-up", "sent MB", "compute ms", "peak memory")
    base = _data_parallel(problem)
    base_ns = None if base is None or base.refusal is not None else base.makespan_ns
    fitting: list[tuple[float, int]] = []
    for method in settings.methods or compared_methods():
        try:
            partition = find(problem, method, settings.search, console, settings.workers).partition
            result = problem.simulate(partition.splits, partition.learners)
        except BowError as error:
            rows.add_row(Text.assemble(method, (f": none: {reason(error)}", "dim")))
            continue
        name = method if partition.learners == 1 else f"{method}, {partition.learners} learners"
        step_ns = result.makespan_ns / partition.learners
        fitting += [(step_ns, partition.learners)] if result.refusal is None else []
        rows.add_row(
            name if result.refusal is None else f"{name}: does not fit, {result.refusal}",
            f"{step_ns / 1e6:.3f}",
            "" if base_ns is None else f"{base_ns / step_ns:.2f}",
            f"{result.communication_bytes / 1e6:.2f}",
            f"{result.task_ns / 1e6:.3f}",
            bytes_text(max(result.peaks)),
        )
    console.print(rows)
    if fitting:
        _print_distance(console, problem, settings, *min(fitting))
    for sentence in tower_sentences(problem):
        console.print(sentence)


def _data_parallel(problem: Problem) -> SimulationResult | None:
    try:
        return problem.simulate(baseline(problem, "data"))
    except BowError:
        return None


def _tell(console: Console, file: str, settings: PlanSettings, action: str) -> None:
    loaded = load(given_path("the file of a partition", file), settings)
    topology = loaded.topology or topology_of(loaded.settings.topology, settings.devices)
    (problem,), partition = _problems(console, loaded.settings, topology), loaded.partition
    partition.check(problem.graph, topology.num_devices, problem.rules)
    splits, learners = partition.splits, partition.learners
    if action == "show":
        explanation = explain(problem, splits, learners, operators=())
    else:
        with console.status("simulating alternatives"):
            explanation = explain(
                problem,
                splits,
                learners,
                space=space_of(problem, (), loaded.settings.search, learners),
                keep=settings.keep,
                budget_s=settings.search.budget_s,
            )
    for line in _lines(problem, explanation):
        say(line)
    if action == "explain":
        left_out = f"; {explanation.left_out} operators skipped, increase budget_s" if explanation.left_out else ""
        console.print(f"{explanation.tried:,} alternatives simulated{left_out}")
    result = problem.simulate(splits, learners)
    console.print(_summary(partition, result))
    _print_distance(console, problem, loaded.settings, result.makespan_ns / learners, learners)


def _lines(problem: Problem, explanation: Explanation) -> Iterator[str]:
    """Yield the choice for every operator, its cost, and the costs of its best alternatives."""
    yield "milliseconds of every operator, and of a step with an alternative"
    for each in explanation.operators:
        name, kind, split, devices, *times = each.cells()
        costs = [f"{column} {time}" for column, time in zip(COLUMNS[-len(times) :], times, strict=True) if time]
        yield "  ".join([f"{name}, {kind}", f"{split} on {devices}", *costs])
        for choice in each.alternatives:
            devices = shortened([problem.topology.devices[device].name for device in choice.split.devices])
            cost = "does not fit"
            if choice.makespan_ns is not None:
                cost = f"{choice.makespan_ns / 1e6:.3f} ({explanation.slower(choice.makespan_ns):+.1f} %)"
            yield f"    or {each.split_text(choice.split)} on {devices}: {cost}"


def _summary(partition: Partition, result: SimulationResult) -> str:
    learners = "" if partition.learners == 1 else f", {partition.learners} learners with a batch each"
    return (
        f"a step: {result.makespan_ns / 1e6:.3f} ms{learners}; {result.communication_bytes / 1e6:.2f} MB sent, "
        f"{result.task_ns / 1e6:.3f} ms computed on all devices together"
    )


def _print_distance(console: Console, problem: Problem, settings: PlanSettings, batch_ns: float, learners: int) -> None:
    others = settings.search.learners if settings.search.noise_scale is None else ()
    bound_ns = least_batch_ns(problem, {learners, *others})
    percent = math.ceil(100 * (batch_ns / bound_ns - 1)) if bound_ns else 0
    batch = "" if learners == 1 else " for a batch"
    if percent <= MOST_PERCENT:
        console.print(f"lower bound: {bound_ns / 1e6:.3f} ms{batch}; within {percent} % of the best possible")


def _action(words: Sequence[str]) -> tuple[str, str, Sequence[str]]:
    first = words[0] if words else ""
    if first == "compare":
        return first, "", words[1:]
    if first in ("show", "explain"):
        if len(words) < 2 or "=" in words[1]:
            raise SettingError(
                f"bow plan {first} needs the file of a partition; write bow plan {first} plan/partition.json"
            )
        return first, words[1], words[2:]
    if first and "=" not in first and not first.startswith("-"):
        raise SettingError(
            f"{first!r} is not an action of bow plan; use compare, explain FILE, show FILE, train FILE or settings"
        )
    return "plan", "", words
