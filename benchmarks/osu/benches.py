"""Prepare a program's measurement: its communicators, and its contender, rehearsed before anything is printed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mpicoll.cli.names import split_names

from ..cases import contenders as who
from .collective import Collective
from .options import Options
from .pair import Pair
from .programs import COLLECTIVE, Program


def check(wanted: Program, asked: Options, p: int, algorithm: str, engine: str) -> None:
    """Raise ValueError, UnknownAlgorithm or ParameterError unless there is such a contender for a collective."""
    from mpicoll.schedules.registry import parse_spec

    collective, names = wanted.collective, split_names(algorithm)
    if len(names) != 1 or names == ["all"]:
        raise ValueError(f"--algorithms is {algorithm!r}; with {wanted.name} it takes one: native, auto or a name")
    if engine not in who.ENGINES:
        raise ValueError(f"--engine is {engine!r}; it takes one of {', '.join(who.ENGINES)}")
    if names[0] not in (who.NATIVE, who.AUTO):
        parse_spec(collective, names[0])
    for shape in asked.shapes(collective, asked.types[0], p):
        shape.check(p)


@contextmanager
def measuring(wanted: Program, asked: Options, world: Any, algorithm: str, engine: str) -> Iterator[Any]:
    """Provide the object that measures, on communicators that are freed at the end, but not after an error. Collective.

    Raises ParameterError, PreconditionError or EngineError for what these ranks or this MPI do not suit.
    """
    from mpi4py import MPI

    import mpicoll

    control, subject = (MPI.Intracomm(world.Dup()) for _ in range(2))
    if wanted.kind != COLLECTIVE:
        yield Pair(wanted, asked, subject, MPI, MPI.Wtime)
    else:
        if algorithm != who.NATIVE:
            subject = mpicoll.Comm(subject)
        (contender,) = who.line_up(wanted.collective, [algorithm], [engine], subject, subject)
        bench = Collective(wanted, asked, contender, control, MPI, MPI.Wtime)
        bench.rehearse(asked.types[0], asked.low)
        yield bench
    subject.Free()
    control.Free()
