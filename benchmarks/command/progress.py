"""A bar with the time left: on rank 0, on a terminal, and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

REDRAW = 0.1  # seconds; only when told how far it is: a thread that redraws would disturb what is timed


class Bar:
    """Counts parts, for instance sizes, and how far the current one is."""

    def __init__(self, progress: Progress | None, parts: int) -> None:
        self.progress, self.parts, self.done = progress, parts, 0
        self.task = progress.add_task("", total=parts) if progress else None
        self.title, self.drawn = "", 0.0

    def begin(self, title: str) -> None:
        """Name the part that starts now."""
        self.title = title
        self.within(0.0)

    def within(self, fraction: float) -> None:
        """Show how far the current part is, from 0 to 1."""
        if self.progress is None or self.task is None:
            return
        self.progress.update(self.task, completed=self.done + min(fraction, 1.0), description=self.title)
        if time.monotonic() - self.drawn > REDRAW:
            self.progress.refresh()
            self.drawn = time.monotonic()

    def end(self) -> None:
        """Note that the current part is over."""
        self.done += 1
        self.within(0.0)


@contextmanager
def bar(console: Console, parts: int, here: bool) -> Iterator[Bar]:
    """Provide a bar on the console if `here` and if it is a terminal; else one that shows nothing."""
    if not (here and console.is_terminal and parts):
        yield Bar(None, parts)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, auto_refresh=False
    ) as progress:
        yield Bar(progress, parts)
