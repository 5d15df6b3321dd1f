"""Shared code of all experiments: settings, races, separate processes, statistics, JSON and pages.

An experiment is a module (or package) of `benchmarks` with a dataclass `Config(harness.Config)` and

* `measure(config) -> findings`, plain values for the JSON;
* `missed(values) -> bool`, optional: whether an aim was missed, which determines the exit status;
* `page(values) -> context`, optional: additional values for its template in `benchmarks/pages`;
* `draw(values, folder)`, optional: its pictures;
* `DOCUMENT`, with a `Config(harness.Documented)`: the page of the documentation that includes its tables;
* or `run(config, command) -> exit status` (and `render(config)`) instead, if it writes more than one result.
"""

from benchmarks.harness.config import Config as Config
from benchmarks.harness.config import Documented as Documented
from benchmarks.harness.config import describe as describe
from benchmarks.harness.config import parse as parse
from benchmarks.harness.config import setting as setting
from benchmarks.harness.environment import inspect_environment as inspect_environment
from benchmarks.harness.environment import told as told
from benchmarks.harness.pages import counted as counted
from benchmarks.harness.pages import paper as paper
from benchmarks.harness.pages import render as render
from benchmarks.harness.pages import spread_text as spread_text
from benchmarks.harness.pages import values_text as values_text
from benchmarks.harness.processes import CaseError as CaseError
from benchmarks.harness.processes import Host as Host
from benchmarks.harness.processes import LateError as LateError
from benchmarks.harness.processes import Remote as Remote
from benchmarks.harness.processes import apart as apart
from benchmarks.harness.processes import first_words as first_words
from benchmarks.harness.processes import in_concert as in_concert
from benchmarks.harness.processes import parallel as parallel
from benchmarks.harness.processes import together as together
from benchmarks.harness.race import rate as rate
from benchmarks.harness.race import take_turns as take_turns
from benchmarks.harness.race import warm_up as warm_up
from benchmarks.harness.results import RESULTS as RESULTS
from benchmarks.harness.results import prepare_output as prepare_output
from benchmarks.harness.results import publish as publish
from benchmarks.harness.results import replace_tables as replace_tables
from benchmarks.harness.results import result as result
from benchmarks.harness.results import say as say
from benchmarks.harness.results import with_other_parts as with_other_parts
from benchmarks.harness.results import write_json as write_json
from benchmarks.harness.results import write_text as write_text
from benchmarks.harness.statistics import median_interval as median_interval
from benchmarks.harness.statistics import quartiles as quartiles
from benchmarks.harness.statistics import ratios as ratios
from benchmarks.harness.statistics import spread as spread
from benchmarks.harness.statistics import whole_spread as whole_spread
