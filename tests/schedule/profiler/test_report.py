"""Tables about profiles and comparisons."""

import io

from rich.console import Console
from rich.table import Table

from bow.schedule import FirstComeSchedule, Schedule, Span, Timeline
from bow.schedule.profiler import Comparison, OperatorTime, Policy, Profile
from bow.schedule.profiler.report import before_after_table, longest_table, path_table, policy_table, step_table
from bow.schedule.scheduler import critical_path

PROFILE = Profile(
    names=("mm", "relu", "mm"),
    modules=("first", "", "second"),
    times={
        1: (OperatorTime(4e-3, 1e-3, 9), OperatorTime(1e-3, 0.0, 9), OperatorTime(3e-3, 0.0, 9)),
        2: (OperatorTime(2e-3, 0.0, 9), OperatorTime(1e-3, 0.0, 9), OperatorTime(5e-3, 0.0, 9)),
    },
    hardware="a machine",
)
DEPENDENCIES = [(), (0,), (0,)]


def lines(table: Table) -> list[list[str]]:
    """The words of every line of a table, without its title; first those of its columns."""
    console = Console(width=140, file=io.StringIO())
    table.title, table.show_header = None, False
    with console.capture() as captured:
        console.print(table)
    columns = [word for column in table.columns for word in str(column.header).split()]
    return [columns, *(line.split() for line in captured.get().splitlines())]


def title(table: Table) -> str:
    return str(table.title)


def test_a_step_has_a_line_for_every_number_of_threads() -> None:
    assert lines(step_table(PROFILE)) == [
        ["threads", "ms", "fastest", "operators"],
        ["1", "8.000", "2", "of", "3"],  # of equal times the fewest threads
        ["2", "8.000", "1", "of", "3"],
    ]


def test_the_longest_operators_are_those_with_one_thread() -> None:
    header, *rows = lines(longest_table(PROFILE, count=2))
    assert header == ["operator", "module", "1", "thr.,", "ms", "2", "thr.,", "ms", "spread"]
    assert rows == [
        ["mm", "first", "4.000", "2.000", "25", "%"],
        ["mm", "second", "3.000", "5.000", "0", "%"],
    ]
    assert title(longest_table(PROFILE, count=2)) == "The 2 longest operators"


def test_the_critical_path_lists_its_longest_operators_in_their_order() -> None:
    path = critical_path(DEPENDENCIES, PROFILE.nanoseconds(1))
    table = path_table(path, PROFILE)
    assert title(table) == "The critical path: 2 of 3 operators, 7.000 of 8.000 ms, parallelism 1.14"
    assert [row[1] for row in lines(table)[1:]] == ["first", "second"]
    assert [row[1] for row in lines(path_table(path, PROFILE, count=1))[1:]] == ["first"]


def policy(name: str, schedule: Schedule, end_ns: int) -> Policy:
    return Policy(name, schedule, Timeline([Span("mm", "executor 0", 0, end_ns)]))


PLAIN = policy("plain", Schedule.sequential(3), 8_000_000)
QUEUE = policy("queue", FirstComeSchedule((1, 1)), 7_000_000)


def test_policies_are_listed_with_what_was_simulated() -> None:
    assert lines(policy_table([PLAIN, QUEUE])) == [
        ["policy", "simulated", "ms"],
        ["plain", "8.000"],
        ["queue", "7.000"],
    ]


def test_policies_that_were_timed_have_a_ratio_and_the_choice_is_bold() -> None:
    path = critical_path(DEPENDENCIES, PROFILE.nanoseconds(1))
    found = Comparison((PLAIN, QUEUE), {"plain": (0.01, 0.01), "queue": (0.009, 0.007)}, path)
    table = policy_table(found.policies, found)
    assert lines(table)[1:] == [["plain", "8.000", "10.000", "1.000"], ["queue", "7.000", "8.000", "0.800"]]
    assert [row.style for row in table.rows] == [None, "bold"]


def test_operators_are_shown_under_two_policies() -> None:
    table = before_after_table(PROFILE, [1_000, 9_000, 4_000], [1_000, 3_000, 5_000], ("plain", "queue"), count=2)
    assert lines(table) == [
        ["operator", "module", "plain,", "ms", "queue,", "ms", "ratio"],
        ["relu", "0.009", "0.003", "3.00"],
        ["mm", "second", "0.004", "0.005", "0.80"],
    ]
