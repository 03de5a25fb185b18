"""Tables of text, as a terminal and a page show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

ROWS = 12  # of a table in a terminal
WORDS = ("collective", "algorithms", "what", "in")  # columns that are aligned left


class Table(NamedTuple):
    """A title, the names of columns, and rows of text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def for_terminal(table: Table) -> Any:
    """Return the first rows of a table for rich."""
    from rich import box
    from rich.table import Table as Printed
    from rich.text import Text

    printed = Printed(box=box.SIMPLE_HEAD)
    for name in table.columns:
        printed.add_column(name, justify="left" if name in WORDS else "right", no_wrap=name != "algorithms")
    for row in table.rows[:ROWS]:
        printed.add_row(*map(Text, row))  # a file's names, which are no markup of rich's
    return printed


def format_time(microseconds: float) -> str:
    """Return a time with three digits.

    >>> [format_time(t) for t in (0.0, 12.34, 5678.0, 4.2e6)]
    ['0 µs', '12.3 µs', '5.68 ms', '4.2 s']
    """
    microseconds = round(microseconds, 3)
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds:.3g} µs"
