"""The characters that OMB prints: a preamble, a line of headings for each type, a line for each size.

A row has the measurements at one size: a value for each heading that the program can have, and for each percentile.
"""

from __future__ import annotations

from collections.abc import Mapping

from .options import Options
from .programs import BANDWIDTH, VERSION, Program

FIELD, SIZE, COUNT = 18, 10, 12  # widths
OVERALL, COMPUTE, INIT, TEST, WAIT = "Overall(us)", "Compute(us)", "Coll. Init(us)", "MPI_Test(us)", "MPI_Wait(us)"
PURE, LEAST_PURE, MOST_PURE, OVERLAP = "Pure Comm.(us)", "Min Comm.(us)", "Max Comm.(us)", "Overlap(%)"
AVERAGE, LEAST, MOST, ITERATIONS = "Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "Iterations"
SPEED, VALIDATION = "Bandwidth (MB/s)", "Validation"
Row = Mapping["str | int", "float | int | bool"]


def headings(program: Program, options: Options) -> list[str]:
    """Return the columns, without the percentiles."""
    if program.overlaps:
        few, full = [OVERALL, COMPUTE, PURE, OVERLAP], [
            OVERALL, COMPUTE, INIT, TEST, WAIT, PURE, LEAST_PURE, MOST_PURE, OVERLAP,
        ]  # fmt: skip
    elif program.kind == BANDWIDTH:
        few = full = [SPEED]
    else:
        few, full = [AVERAGE], [AVERAGE, LEAST, MOST, ITERATIONS]
    return (full if options.full else few) + [VALIDATION] * options.validate


def preamble(program: Program) -> str:
    """Return the lines before the table."""
    sum_of = "# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait\n\n" * program.overlaps
    return f"\n{title(program)}\n{sum_of}"


def title(program: Program) -> str:
    """Return the program's name for people, and the version."""
    return f"# OSU MPI {program.title} v{VERSION}"


def datatype(name: str) -> str:
    """Return the line that names a type, of which name is one of -T's words."""
    return f"# Datatype: {name.upper()}.\n"


def header(program: Program, options: Options) -> str:
    """Return the line of headings."""
    first, *others = headings(program, options)
    begin = f"{'# Size':<{SIZE}}{first:>{FIELD}}" if program.sized else f"# {first}"
    rest = "".join(f"{word:>{COUNT if word == ITERATIONS else FIELD}}" for word in others)
    return begin + rest + "".join(_tail(program, percent) for percent in options.percentiles) + "\n"


def _tail(program: Program, percent: int) -> str:
    """Return the heading of a percentile, padded for one digit or two, so that three are one too many."""
    what = " Tail BW(MB/s)" if program.kind == BANDWIDTH else " Tail Lat(us)"
    return f"{'':{FIELD - len('Px' + what) - (percent > 9)}}P{percent}{what}"


def line(program: Program, options: Options, size: int, row: Row) -> str:
    """Return the line of one size."""
    first, *others = headings(program, options)
    unsized = 13 if program.overlaps else 17
    begin = f"{size:<{SIZE}d}{row[first]:{FIELD}.2f}" if program.sized else f"{row[first]:{unsized}.2f}"
    keys: list[str | int] = [*others, *options.percentiles]
    return begin + "".join(_cell(row[key]) for key in keys) + "\n"


def _cell(value: float | bool) -> str:
    if isinstance(value, bool):
        return f"{'Pass' if value else 'Fail':>{FIELD}}"
    return f"{value:{COUNT}d}" if isinstance(value, int) else f"{value:{FIELD}.2f}"


def failure(program: Program, size: int) -> str:
    """Return the line after a row whose validation failed."""
    return f"DATA VALIDATION ERROR: {program.name} exited with status 1 on message size {size}.\n"
