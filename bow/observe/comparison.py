"""A page that compares runs: results, differing settings, and all curves."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from bow.observe.charts import BLUE, PALETTE, Chart, charts, longest_s
from bow.observe.report import Report, now_text

PROVENANCE = ("commit", "versions", "machine")
UNCOMPARED = ("run.path", "run.resume")


class RunComparison:
    """The contents of the page; the parts of a single run's page are empty."""

    state: ClassVar[str] = ""
    headline: ClassVar[Sequence[str]] = ()
    tiles: ClassVar[Sequence[Any]] = ()
    decisions: ClassVar[Mapping[str, str]] = {}
    settings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, names: Sequence[str], reports: Sequence[Report]) -> None:
        self.names = names
        self.reports = reports
        self.name = self.title = " and ".join(names)
        self.written = now_text()

    @cached_property
    def results(self) -> list[list[str]]:
        names = dict.fromkeys(name for report in self.reports for name in report.summary)
        return [[name, *(report.summary.get(name, "") for report in self.reports)] for name in names]

    @cached_property
    def differences(self) -> list[list[str]]:
        known = [
            {**report.settings, **{name: str(report.start.get(name, "")) for name in PROVENANCE}}
            for report in self.reports
        ]
        names = dict.fromkeys(name for each in known for name in each if name not in UNCOMPARED)
        rows = [[name, *(each.get(name, "") for each in known)] for name in names]
        return [row for row in rows if len(set(row[1:])) > 1]

    @property
    def charts(self) -> list[Chart]:
        """Charts that each combine the runs' curves of one kind, one colour per run."""
        longest, drawn = max(longest_s(report.records) for report in self.reports), dict[str, Chart]()
        for name, report, color in zip(self.names, self.reports, itertools.cycle((BLUE, *PALETTE)), strict=False):
            for chart in charts(report.records, report.settings, longest):
                line = [each for each in chart.series if each.points][-1]  # the validation curve if there is one
                of = f"{name} ({line.name})" if len(chart.series) > 1 else name
                before = drawn[chart.title].series if chart.title in drawn else ()
                series = [*before, replace(line, name=of, color=color)]
                drawn[chart.title] = replace(chart, series=series, target=None)
        return list(drawn.values())
