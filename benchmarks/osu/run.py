"""Type after type, size after size: what is measured is printed at once."""

from __future__ import annotations

from typing import Protocol

import click

from . import layout
from .layout import Row
from .options import Options, Pace, Repeats, itemsize
from .programs import Program


class Measures(Protocol):
    """An object that makes a program's timed calls."""

    def measure(self, kind: str, size: int, repeats: Repeats) -> Row: ...


def run(program: Program, options: Options, bench: Measures) -> bool:
    """Measure and print everything; False, and at once, if an answer was wrong. Collective."""
    pace = Pace(program, options)
    say(layout.preamble(program))
    if not program.sized:
        say(layout.header(program, options))
        return _size(program, options, bench, options.types[0], 0, pace)
    for kind in options.types:
        say(layout.datatype(kind) + layout.header(program, options))
        for size in options.sizes():
            if size >= itemsize(kind) and not _size(program, options, bench, kind, size, pace):
                return False
    return True


def _size(program: Program, options: Options, bench: Measures, kind: str, size: int, pace: Pace) -> bool:
    row = bench.measure(kind, size, pace.at(size))
    say(layout.line(program, options, size, row))
    if options.validate and not row[layout.VALIDATION]:
        say(layout.failure(program, size))
        return False
    return True


def say(text: str) -> None:
    """Print, and flush; heard on rank 0 alone, since the other ranks' standard output goes nowhere."""
    click.echo(text, nl=False)
