"""Progress bars of a search and of measurements."""

import contextlib
import signal
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from bow.interruption import Interruption


@contextlib.contextmanager
def watched(budget_s: float | None, console: Console) -> Iterator[Callable[[float, int, float], bool]]:
    """Show a bar with the best time so far; yield a callback that updates it and returns False after Ctrl-C."""
    interruption = Interruption([signal.SIGINT])
    with _bar("searching", "{task.description}", console) as bar, interruption.watched():
        task = bar.add_task("", total=budget_s)

        def tell(seconds: float, proposals: int, best_ns: float) -> bool:
            said = f"best {best_ns / 1e6:.3f} ms, {proposals:,} examined"
            bar.update(task, completed=seconds, description=said)
            return interruption.signal is None

        yield tell


@contextlib.contextmanager
def measuring(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Show a bar of measured tiles; yield a callback that receives the measured and the total number."""
    how_far = "{task.completed:,.0f} of {task.total:,.0f} tiles"
    with _bar("measuring", how_far, console, auto_refresh=False) as bar:  # a refresh thread would disturb them
        task = bar.add_task("", total=0)

        def tell(measured: int, tiles: int) -> None:
            bar.update(task, completed=measured, total=tiles, refresh=True)

        yield tell


def _bar(what: str, how_far: str, console: Console, auto_refresh: bool = True) -> Bar:
    """Make a transient bar with the elapsed time, shown on terminals only."""
    return Bar(
        TextColumn(what),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        TextColumn(how_far),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        auto_refresh=auto_refresh,
    )
