"""A progress bar in a notebook: one output that is drawn anew, and taken away at the end."""

import html
import time
from typing import Any

EVERY_S = 0.2


class NotebookBar:
    """What `ProgressBar` uses of rich's bar, which a notebook shows with an extension only."""

    def __init__(self, total: float | None) -> None:
        from IPython.display import HTML, DisplayHandle

        self._html, self._handle, self._total, self._shown_at = HTML, DisplayHandle(), total, 0.0
        self._handle.display(HTML("<progress></progress>"))

    def update(self, task: Any, *, completed: float, text: str) -> None:
        """Draw it, a few times a second."""
        if time.perf_counter() - self._shown_at < EVERY_S:
            return
        self._shown_at = time.perf_counter()
        where = f' value="{completed:g}" max="{self._total:g}"' if self._total else ""
        share = f"{100 * completed / self._total:3.0f} % " if self._total else ""
        self._handle.update(self._html(f"<pre>{share}<progress{where}></progress> {html.escape(text)}</pre>"))

    def stop(self) -> None:
        self._handle.update(self._html(""))
