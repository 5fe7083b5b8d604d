"""Progress of a run: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column


class Display:
    """Shows how far a run is. ``steps`` counts checks and rounds of all competitors."""

    def __init__(self, steps: int) -> None:
        self._steps, self._done = max(1, steps), 0
        self._begin = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            # On a narrow terminal it is the title that is cut, never the count and the time.
            title = Column(ratio=1, no_wrap=True, overflow="ellipsis")
            self._bar = Progress(
                TextColumn("{task.description}", markup=False, table_column=title),
                BarColumn(bar_width=16),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                expand=True,
            )
            self._task = self._bar.add_task("", total=self._steps)

    def __enter__(self) -> Display:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def group(self, title: str) -> None:
        """A new group begins."""
        if self._bar is not None:
            self._bar.update(self._task, description=title)
        else:
            self.note(f"{title}   ({self._left()})")

    def _left(self) -> str:
        if not self._done:
            return "time left not known yet"
        spent = time.monotonic() - self._begin
        left = spent / self._done * (self._steps - self._done)
        return f"{self._done}/{self._steps} steps, about {left / 60:.0f} min left" if left > 90 else f"about {left:.0f} s left"

    def step(self, count: int = 1) -> None:
        """``count`` steps are done."""
        self._done = min(self._steps, self._done + count)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)

    def note(self, text: str) -> None:
        """One line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)
