"""The page `peers.md`, from the same values as `peers.json`."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from benchmarks.environment import Environment
from benchmarks.measure import Spread
from benchmarks.peers.contestants import AS_BOW_SETS, BOW, CONTESTANTS, LARGE_BATCH, PYTORCH
from benchmarks.peers.training import DIVERGED, FAILED, FINAL, SWEEP, Training, by_choice
from benchmarks.peers.verdict import CLAIM, Verdict, represent, time_ratios
from benchmarks.results import Table

METHOD = """\
* Time is training with everything that belongs to it: compiling, bow's timed trials and its capture. Not timed:
  starting Python, importing packages, reading the data, evaluating. One evaluator for all, the clock stopped meanwhile:
  the model as it is then, bow's central model, on all {test_samples:,} test images.
* Evaluated every {evaluate_every:g} epochs of {epoch_samples:,} samples. The time to the target is that of the first
  evaluation that has it; the training ends there, and otherwise after {epochs} epochs or {limit_s:g} s: then it has not
  reached the target.
* Every training has a process of its own, one at a time. Everybody gets the same data, in memory, the same optimizer,
  `torch.optim.SGD(fused=True)`, or its arithmetic, and with the same seed the same initial weights.
* Processes of bow have {environment}, as the command `bow` sets it for its users; those of everybody else have
  torch's default. `OMP_NUM_THREADS` is the number of threads in the table.
* Caches of compiled code (torch's, Triton's and bow's) are in a folder of the benchmark's own: empty when it begins,
  they fill during its rehearsals and sweep, for everybody alike. bow's native runtime is in there from the beginning,
  as a part of its installation. bow's tuner is told to keep nothing, and measures anew in every training.
* Everybody has rehearsed with the batch size of its training, for {rehearsed_epochs:g} epochs. Who may have several
  numbers of threads ({threads}) does so {rehearsals} times with each, in turns, and has the one with the highest median
  throughput.
* Sweep, with one seed, for plain PyTorch and for bow on the same grid, batch sizes {batch_sizes} and learning rates
  {lrs}: {rule}. Large batches take the best learning rate of plain PyTorch in proportion to the batch size, everybody
  else takes the best setting of plain PyTorch; goodput takes that of bow.
* Finals, with {seeds} other seed(s): all contestants in turn within each seed, plain PyTorch and bow side by side, with
  every other seed in reverse order. Plain PyTorch and bow both have the best {finalists} settings of their sweep in the
  finals, as far as these reached the target there; the verdict takes, for each of the two, the one with the shorter
  median time over the seeds, where a seed that misses the target counts as infinite.
* Samples per second are counted from the first evaluation to the last; the rest is the time beyond what all samples
  take at that speed: compiling, timed trials, capture, first steps. It is what is left of a subtraction, and below 0
  where the beginning was faster than what came after it. Where the first evaluation is the last, there is none: samples
  are counted from the start. Samples of an ensemble are those of each of its models.
"""


def markdown(
    trainings: Sequence[Training], verdict: Verdict, values: Mapping[str, Any], environment: Environment
) -> str:
    """The page."""
    settings = values["settings"]
    finals = [training for training in trainings if training.stage == FINAL]
    packages = ", ".join(f"{name} {version}" for name, version in values["packages"].items())
    parts = [
        f"# Time to accuracy, beside the peers: {settings['model']} on {settings['data'].replace('_', ' ')}",
        f"`{values['command']}`, {values['date'][:10]}, {values['seconds']:.0f} s. {environment}"
        f"{', ' if packages else ''}{packages}.",
        f"Fixed: {values['fixed']}. Target: {settings['target']:.1%} of the test images. The claim: {CLAIM}, in the "
        "median of the seeds.",
        f"**{verdict}** {verdict.explanation()}".strip(),
        _optional(duels_table(verdict)),
        "![accuracy against seconds](peers.png)",
        "## Finals",
        f"Medians over {settings['seeds']} seed(s), lowest to highest in parentheses; ratio is the time as a share of "
        "that of plain PyTorch with its better setting, seed by seed.",
        finals_table(finals, settings["target"]).markdown(),
        about(settings["contestants"], values["left_out"]),
        "## How it was measured",
        method(values),
        "## Sweep",
        "Seconds to the target, with one seed; where it was not reached, the best accuracy until the training ended. ✗ "
        "diverged.",
        *(_sweep(trainings, name, values) for name in (PYTORCH, BOW, LARGE_BATCH)),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def finals_table(finals: Sequence[Training], target: float) -> Table:
    """A row for every contestant and setting, the fastest first."""
    plain = represent([training for training in finals if training.choice.contestant == PYTORCH])
    names = {training.choice.contestant for training in finals}
    rows = []
    for trainings in sorted(by_choice(finals).values(), key=_rank):
        choice = trainings[0].choice
        reached = [training for training in trainings if training.time_s is not None]
        ran_as = dict.fromkeys(training.ran_as for training in trainings if training.ran_as is not None)
        rows.append(
            (
                CONTESTANTS[choice.contestant].title,
                setting_of(choice.contestant, names),
                str(choice.batch_size),
                f"{choice.lr:g}",
                str(choice.threads),
                "; ".join(map(str, ran_as)),
                _time(trainings),
                _spread([training.samples for training in reached], ",.0f"),
                _spread([training.throughput for training in trainings if training.looks], ",.0f"),
                _spread([training.rest_s for training in trainings if training.looks], ".1f"),
                _spread(time_ratios(trainings, plain), ".2f"),
            )
        )
    headings = [
        "",
        "setting",
        "batch",
        "lr",
        "threads",
        "ran as",
        f"s to {target:.1%}",
        "samples",
        "samples/s",
        "rest s",
        "ratio",
    ]
    return Table(headings, rows, left=["", "setting", "ran as"])


def setting_of(name: str, names: Collection[str]) -> str:
    """Where a contestant has its setting from, in finals of these contestants."""
    base = CONTESTANTS[name].base
    if base is None:
        return "of its own sweep"
    if name == LARGE_BATCH:
        return "by linear scaling"
    if base not in names:
        return "middle of the grid"
    return "at plain PyTorch's setting" if base == PYTORCH else f"at {CONTESTANTS[base].title}'s setting"


def duels_table(verdict: Verdict) -> Table:
    """A row for every seed with which bow and plain PyTorch reached the target: the ratios."""
    rows = [
        (
            str(duel.bow.seed),
            f"{duel.bow.looks[-1].seconds:.1f}",
            f"{duel.plain.looks[-1].seconds:.1f}",
            *(f"{part:.2f}" for part in (duel.ratio, duel.samples, duel.throughput, duel.rest)),
        )
        for duel in verdict.duels
    ]
    return Table(["seed", "bow, s", "PyTorch, s", "ratio", "= samples", "/ throughput", "+ rest"], rows)


def sweep_table(trainings: Sequence[Training]) -> Table:
    """A row for every batch size, a column for every learning rate of a contestant."""
    found = {(t.choice.batch_size, t.choice.lr): t for t in trainings}
    lrs = sorted({lr for _, lr in found})
    rows = []
    for size in sorted({size for size, _ in found}):
        threads = next(t.choice.threads for t in trainings if t.choice.batch_size == size)
        rows.append((str(size), str(threads), *(_cell(found.get((size, lr))) for lr in lrs)))
    return Table(["batch", "threads", *(f"lr {lr:g}" for lr in lrs)], rows)


def about(names: Sequence[str], left_out: Mapping[str, str]) -> str:
    """Who is who, and who was left out."""
    present = [contestant for name, contestant in CONTESTANTS.items() if name in names and name not in left_out]
    lines = [f"* {contestant.title}: {contestant.about}." for contestant in present]
    lines += [f"* {CONTESTANTS[name].title}: left out, {why}." for name, why in left_out.items()]
    return "\n".join(lines)


def method(values: Mapping[str, Any]) -> str:
    """How it was measured."""
    settings = values["settings"]
    lists = {name: ", ".join(f"{value:g}" for value in settings[name]) for name in ("threads", "batch_sizes", "lrs")}
    environment = " ".join(f"`{name}={value}`" for name, value in AS_BOW_SETS.items())
    return METHOD.format(**{**values, **settings, **lists, "environment": environment})


def edges(choice: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> str:
    """A warning where the best of a sweep lies at the edge of its grid, so that there may be better beyond."""
    if choice is None:
        return ""
    found = []
    for name, grid in (("batch_size", settings["batch_sizes"]), ("lr", settings["lrs"])):
        if len(grid) > 1 and choice[name] in (min(grid), max(grid)):
            found.append(f"{name} {choice[name]:g}")
    return f"\nThe best is at the edge of the grid: {', '.join(found)}.\n" if found else ""


def _sweep(trainings: Sequence[Training], name: str, values: Mapping[str, Any]) -> str:
    own = [t for t in trainings if t.stage == SWEEP and t.choice.contestant == name]
    if not own:
        return ""
    warning = "" if name == LARGE_BATCH else edges(next(iter(values["finals"].get(name, ())), None), values["settings"])
    return f"### {CONTESTANTS[name].title}\n\n{sweep_table(own).markdown()}{warning}"


def _optional(table: Table) -> str:
    return table.markdown() if table.rows else ""


def _rank(trainings: Sequence[Training]) -> tuple[int, float]:
    """Who reached the target most often, and then in the shortest time, comes first."""
    times = [training.time_s for training in trainings if training.time_s is not None]
    return len(trainings) - len(times), Spread.of(times).median if times else 0.0


def _time(trainings: Sequence[Training]) -> str:
    times = [training.time_s for training in trainings if training.time_s is not None]
    if len(times) == len(trainings):
        return _spread(times, ".1f")
    if not times and all(training.ending == FAILED for training in trainings):
        return f"failed: {trainings[0].why}"
    diverged = sum(training.ending == DIVERGED for training in trainings)
    best = max(training.best_accuracy for training in trainings)
    some = f"reached in {len(times)} of {len(trainings)}" if times else "not reached"
    return f"{some}, {f'{diverged} diverged, ' if diverged else ''}best {best:.1%}"


def _cell(training: Training | None) -> str:
    if training is None:
        return ""
    if training.ending in (DIVERGED, FAILED):
        return "✗" if training.ending == DIVERGED else FAILED
    return f"{training.best_accuracy:.1%}" if training.time_s is None else f"**{training.time_s:.1f} s**"


def _spread(values: Sequence[float], form: str) -> str:
    if not values:
        return ""
    spread = Spread.of(values)
    if spread.n == 1:
        return f"{spread.median:{form}}"
    return f"{spread.median:{form}} ({spread.low:{form}} to {spread.high:{form}})"
