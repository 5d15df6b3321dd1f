"""What the user sees of a search under way, how Ctrl-C ends it, and of measuring before it."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextlib.contextmanager
def watched(budget_s: float | None, console: Console) -> Iterator[Callable[[float, int, float], bool]]:
    """A bar with the best time so far; what it gives is told how a search goes, and says whether it goes on.

    Ctrl-C ends the search, which then keeps the best strategy so far. Pressed again before the search has ended, it is
    a `KeyboardInterrupt`: a walk or a proof in this process keeps its best even so; who waits for walks in other
    processes, or makes starts for them, does not.
    """
    with _bar("searching", "{task.description}", console) as bar, _interruptible() as is_interrupted:
        task = bar.add_task("", total=budget_s)

        def tell(seconds: float, proposals: int, best_ns: float) -> bool:
            said = f"best {best_ns / 1e6:.3f} ms, {proposals:,} looked at"
            bar.update(task, completed=seconds, description=said)
            return not is_interrupted()

        yield tell


@contextlib.contextmanager
def measuring(console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar of tiles that are measured; what it gives is told how many are, and of how many."""
    how_far = "{task.completed:,.0f} of {task.total:,.0f} tiles"
    with _bar("measuring", how_far, console, auto_refresh=False) as bar:  # a thread that draws would be in their times
        task = bar.add_task("", total=0)

        def tell(measured: int, tiles: int) -> None:
            bar.update(task, completed=measured, total=tiles, refresh=True)

        yield tell


def _bar(what: str, how_far: str, console: Console, auto_refresh: bool = True) -> Progress:
    """A bar with the time that has passed, where somebody sees it; it goes away at its end."""
    return Progress(
        TextColumn(what),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        TextColumn(how_far),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        auto_refresh=auto_refresh,
    )


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed meanwhile; the second one raises `KeyboardInterrupt` as ever."""
    pressed = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if is_main else None
    if before is None:  # only the main thread has handlers, and one that is not Python's could not be put back
        yield pressed.is_set
        return

    def note(number: int, frame: FrameType | None) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
