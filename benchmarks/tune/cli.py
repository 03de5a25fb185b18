"""The command `mpicoll tune`, and what it asks for, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mpicoll.cli.names import canonical
from mpicoll.cli.sizes import parse_size, parse_sizes
from mpicoll.errors import MpicollError, UnknownAlgorithm
from mpicoll.schedules.collectives import COLLECTIVES
from mpicoll.schedules.registry import list_algorithms
from mpicoll.selection.rules import UNKNOWN_TO_ALL
from mpicoll.selection.tables import write

from ..cases.contenders import AUTO
from ..cases.patterns import Shape
from ..command.checks import ALL, listed, positive
from ..command.spmd import WRONG, SpmdCommand, world
from . import file
from .tuner import Tuner


class Tune(SpmdCommand):
    """Takes names by an option."""

    extra = "the collectives are --collectives NAME,…"


@click.command(cls=Tune, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--collectives", default=ALL, help="A list of names; or all whose ranks know the bytes of a call.")
@click.option("--sizes", default="8:16M:8", help="Bytes, as for mpicoll bench: a list and ranges FIRST:LAST[:FACTOR].")
@click.option("--seconds", default=120.0, help="Time to spend at most, apart from checking and warming up.")
@click.option("--all", "measures_all", is_flag=True, help="Measure also what the model puts far from its best.")
@click.option("--memory", default="1G", help="Leave out sizes that need more for buffers on a rank.")
@click.option("--seed", default=0, help="Of the order within a round.")
@click.option("-o", "--output", "path", default="tuning.json", metavar="FILE",
              help="Where the table goes, beside those of other MPIs and layouts that are there.")
def tune(
    collectives: str, sizes: str, seconds: float, measures_all: bool, memory: str, seed: int, path: str
) -> None:  # fmt: skip
    """Measure which algorithm serves which bytes on these ranks: start it under mpiexec as the program will be.

    Algorithms that the cost model puts at more than 3 times its best are left out, and so are those that send the same
    messages as another, so that it takes about half of --seconds.

    MPICOLL_TUNING=FILE then makes auto use it, on communicators whose ranks are on nodes as these are, with the same
    MPI library. The file is JSON, to be read and edited.
    """
    comm = world()
    try:
        options = {"collectives": collectives, "sizes": sizes, "seconds": seconds, "memory": memory}
        shapes, wanted, limit = check(options, comm.size)
        _only_auto()
        file.check(comm, Path(path))
    except (ValueError, MpicollError) as error:
        raise click.UsageError(str(error)) from None
    from ..bench.harness import Harness

    with Harness({}, seed=seed, memory=limit) as harness:
        tuner = Tuner(harness, measures_all=measures_all)
        choices = tuner.run(shapes, wanted, seconds)
        if tuner.wrong:
            harness.say(f"wrong answers, so nothing is written: {', '.join(tuner.wrong)}")
            raise click.exceptions.Exit(WRONG)
        if comm.rank == 0:
            write(Path(path), tuner.entry(choices))
        harness.say(f"written to {path}; it is used where MPICOLL_TUNING={path} is in the environment")


def check(options: Mapping[str, Any], p: int) -> tuple[list[Shape], list[int], int]:
    """Return shapes, sizes and bytes of memory that options mean on p ranks. Raises ValueError, MpicollError."""
    positive("--seconds", options["seconds"])
    shapes = [_shape(name, p) for name in _names(options["collectives"])]
    return shapes, parse_sizes(options["sizes"]), parse_size(options["memory"])


def _only_auto() -> None:
    """Check that what is measured is what auto would run. Raises ValueError for variables that say otherwise."""
    for name, usual in (("MPICOLL_ENGINE", AUTO), ("MPICOLL_CHECK", "0")):
        if (value := os.environ.get(name, usual)) != usual:
            raise ValueError(f"{name} is {value!r}; a table is measured without it")
    for name in ("MPICOLL_TUNING", "MPICOLL_LEARN", "MPICOLL_LOG"):  # the table is yet to come, and words take time
        os.environ.pop(name, None)


def _names(text: str) -> list[str]:
    """Return the collectives of a list. Raises UnknownAlgorithm, ValueError."""
    names = [canonical(name) for name in listed("--collectives", text)]
    for name in names:
        if name in UNKNOWN_TO_ALL:
            raise ValueError(f"{name} cannot be tuned: its ranks know only their own counts, so bytes decide nothing")
        if name != ALL and name not in list_algorithms():
            raise UnknownAlgorithm("collective", name, (*list_algorithms(), ALL))
    every = [collective for collective in COLLECTIVES if collective not in UNKNOWN_TO_ALL]
    return list(dict.fromkeys(collective for name in names for collective in (every if name == ALL else [name])))


def _shape(name: str, p: int) -> Shape:
    shape = Shape(name)
    shape.check(p)
    return shape
