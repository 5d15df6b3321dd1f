"""`python -m benchmarks predicted` for people: the verdict, a table for each network, and the page."""

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.results import Table

# Relative errors: no prediction is to be off by more than the first, half of them by no more than the second
LARGEST, TYPICAL = 0.30, 0.15

# Two strategies of a network whose measured times differ by more than this are to be put into the right order
APART = 0.15

RIGHT = 0.95  # Of such pairs


@dataclass(frozen=True)
class Verdict:
    """How good the predictions are."""

    strategies: int  # how many there are
    largest: float  # of all relative errors
    typical: float  # their median
    pairs: int  # of strategies of a network whose measured times differ enough
    right: int  # how many of them are predicted in the right order
    is_met: bool  # whether all aims are


def judge(networks: Mapping[str, Any]) -> Verdict:
    """Compare predicted and measured times."""
    errors = [abs(row["error"]) for network in networks.values() for row in network["strategies"]]
    pairs = [pair for network in networks.values() for pair in _pairs(network["strategies"])]
    right = sum(pairs)
    largest, typical = max(errors), statistics.median(errors)
    is_met = largest <= LARGEST and typical <= TYPICAL and right >= RIGHT * len(pairs)
    return Verdict(len(errors), round(largest, 4), round(typical, 4), len(pairs), right, is_met)


def _pairs(rows: Sequence[Mapping[str, Any]]) -> Iterator[bool]:
    """Of two strategies that differ enough: whether the faster one is predicted to be faster."""
    for one, other in itertools.combinations(rows, 2):
        fast, slow = sorted((one, other), key=lambda row: float(row["measured_ms"]["median"]))
        if slow["measured_ms"]["median"] > (1 + APART) * fast["measured_ms"]["median"]:
            yield slow["predicted_ms"] > fast["predicted_ms"]


def tables(values: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    """A table for each network, and its title."""
    for network in values["networks"].values():
        rows = [
            [
                row["strategy"],
                f"{row['predicted_ms']:.1f}",
                "{median:.1f} ({low:.1f} to {high:.1f})".format(**row["measured_ms"]),
                f"{100 * row['error']:+.0f} %",
                str(row["messages"]),
                f"{row['sent_mb']:.2f}",
            ]
            for row in network["strategies"]
        ]
        columns = ("strategy", "predicted ms", "measured ms (quartiles)", "error", "messages", "sent MB")
        (link,) = network["links"][-1]
        title = (
            f"{network['title']}, {network['samples']} samples, {network['operators']} operators; a message "
            f"{link['latency_us']:.0f} microseconds, and {link['gb_per_s']:.2f} GB/s"
        )
        yield title, Table(columns, rows, left=("strategy",))


def told(values: Mapping[str, Any]) -> str:
    """The verdict in a sentence."""
    verdict = values["verdict"]
    outcome = "All aims are met" if verdict["is_met"] else "Not all aims are met"
    return (
        f"{verdict['strategies']} strategies: the largest relative error is {verdict['largest']:.1%} "
        f"(aim: {LARGEST:.0%}), the median {verdict['typical']:.1%} ({TYPICAL:.0%}); of {verdict['pairs']} pairs of a "
        f"network whose measured times differ by more than {APART:.0%}, {verdict['right']} are predicted in the right "
        f"order ({RIGHT:.0%}). {outcome}."
    )


def markdown(values: Mapping[str, Any], environment: str) -> str:
    """The page `predicted.md`, from the same values as `predicted.json`."""
    parts = [f"## {title}\n\n{table.markdown()}" for title, table in tables(values)]
    return f"""# Predicted and measured steps

`{values["command"]}`, {values["date"][:10]}, {values["seconds"]:.0f} s. {environment}.

Two processes, each with one core and one thread, over Gloo. Tiles were measured whole step by whole step on one device,
in both processes at the same time. By what a message keeps both processes from computing was measured on a chain of
layers whose halves of the samples change places behind every layer, against the same chain where they stay, and what a
sum delays beside its messages on batch norms. All were measured in the same turns as the strategies, and the median of
all turns counts. None of it was measured on the strategies of the tables, and no number is fitted to them. A measured
step is the median of {values["settings"]["turns"]} turns of all strategies of a network; of two steps in a row the
second counts.

**{told(values)}**

![predicted against measured](predicted.png)

{chr(10).join(parts)}"""
