"""Tables of profiling and comparison results."""

from collections.abc import Sequence

from rich.table import Table

from bow.schedule.profiler.compare import Comparison, Symmetric
from bow.schedule.profiler.measuring import Profile
from bow.schedule.profiler.policies import Policy
from bow.schedule.scheduler import CriticalPath
from bow.schedule.scheduler.corun import best_threads
from bow.terminal import terminal_table

LONGEST = 10


def step_table(profile: Profile) -> Table:
    table = terminal_table("The step, operators one after another", "threads", "ms", "fastest operators")
    curves = profile.curves()
    best = [best_threads(curve) for curve in curves]
    for threads in profile.threads:
        share = f"{best.count(threads)} of {len(best)}"
        table.add_row(str(threads), _ms(profile.step_s[threads] * 1e9), share)
    return table


def symmetric_table(found: Symmetric) -> Table:
    table = terminal_table(
        "The step on executors of equally many threads, critical path first", "executors x threads", "ms"
    )
    for pair in found.seconds:
        executors, threads = pair
        style = "bold" if pair == found.best else None
        table.add_row(f"{executors} x {threads}", _ms(found.median_s(pair) * 1e9), style=style)
    return table


def longest_table(profile: Profile, found: Symmetric | None = None, count: int = LONGEST) -> Table:
    columns = [f"{threads} thr., ms" for threads in profile.threads]
    uniform = [] if found is None else [f"in {found.best[0]} x {found.best[1]}, ms"]
    table = terminal_table(
        f"The {count} longest operators", "operator", "module", *columns, "spread", *uniform, texts=(0, 1)
    )
    first = profile.threads[0]
    for index in profile.longest(count, first):
        times = [profile.times[threads][index] for threads in profile.threads]
        spread = f"{100 * times[0].spread_s / max(times[0].median_s, 1e-12):.0f} %"
        cells = [*(_ms(time.median_s * 1e9) for time in times), spread]
        cells += [] if found is None else [_ms(found.nanoseconds[index])]
        table.add_row(_name(profile, index), profile.modules[index], *cells)
    return table


def path_table(path: CriticalPath, profile: Profile, count: int = LONGEST) -> Table:
    title = (
        f"The critical path: {len(path.path)} of {len(profile.names)} operators, {_ms(path.length)} of "
        f"{_ms(path.total)} ms, parallelism {path.parallelism:.2f}"
    )
    table = terminal_table(title, "operator", "module", "ms", texts=(0, 1))
    times = profile.nanoseconds(1)
    longest = set(sorted(path.path, key=lambda index: -times[index])[:count])
    for index in (index for index in path.path if index in longest):
        table.add_row(_name(profile, index), profile.modules[index], _ms(times[index]))
    return table


def policy_table(policies: Sequence[Policy], comparison: Comparison | None = None) -> Table:
    measured = ("measured ms", "over the best sequential") if comparison is not None else ()
    table = terminal_table("A step by policy", "policy", "simulated ms", *measured)
    for policy in policies:
        row = [policy.name, _ms(policy.predicted.makespan * 1e9)]
        if comparison is not None:
            ratio = comparison.ratio(policy, comparison.best_sequential)
            row += [_ms(comparison.median_s(policy) * 1e9), f"{ratio:.3f}"]
        table.add_row(*row, style="bold" if comparison is not None and policy is comparison.choice else None)
    return table


def before_after_table(
    profile: Profile, before: Sequence[int], after: Sequence[int], names: tuple[str, str], count: int = LONGEST
) -> Table:
    """Table of the longest operators under two policies (Liu et al., Table VI)."""
    table = terminal_table(
        f"The {count} longest operators",
        "operator",
        "module",
        *(f"{name}, ms" for name in names),
        "ratio",
        texts=(0, 1),
    )
    for index in sorted(range(len(before)), key=lambda index: -before[index])[:count]:
        ratio = f"{before[index] / max(after[index], 1):.2f}"
        table.add_row(_name(profile, index), profile.modules[index], _ms(before[index]), _ms(after[index]), ratio)
    return table


def _name(profile: Profile, index: int) -> str:
    return profile.names[index].removeprefix("aten.").removesuffix(".default")


def _ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.3f}"
