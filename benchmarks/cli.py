"""`mpicoll bench`: times a collective's algorithms beside MPI's own.

Every rank reads the same command line and comes to the same conclusion, so bad input ends them all at once,
with one line from rank 0 and exit status 2.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import IO, Any

import click

from mpicoll.errors import MpicollError, UnknownAlgorithm

from . import contenders as who
from .patterns import DTYPES, OPERATORS, REDUCES, ROOTED, WITHOUT_IN_PLACE, Shape
from .sizes import parse_size, parse_sizes
from .voice import WRONG, OneVoice, opened, world


@dataclass(frozen=True)
class Settings:
    """What was asked for, checked."""

    shape: Shape
    sizes: tuple[int, ...]
    algorithms: tuple[str, ...]
    engines: tuple[str, ...]
    seconds: float
    rounds: int | None
    memory: int
    seed: int


def settings(p: int, collective: str, **given: Any) -> Settings:
    """The settings for p ranks from the words of the command line. Raises ValueError or UnknownAlgorithm."""
    from mpicoll.schedule import algorithms

    known = algorithms()
    if collective not in known:
        raise UnknownAlgorithm("collective", collective, known)
    shape = Shape(collective, given["dtype"], given["op"].lower(), given["root"], given["in_place"])
    check_shape(shape, p)
    return Settings(
        shape,
        tuple(parse_sizes(given["sizes"])),
        check_algorithms(collective, given["algorithms"], known[collective]),
        check_engines(given["engines"]),
        positive("--seconds", given["seconds"]),
        given["iterations"] and int(positive("--iterations", given["iterations"])),
        parse_size(given["memory"]),
        given["seed"],
    )


def check_shape(shape: Shape, p: int) -> None:
    """Raises ValueError for a shape that MPI does not have."""
    if shape.dtype not in DTYPES:
        raise ValueError(f"no dtype is called {shape.dtype!r}; there is {', '.join(DTYPES)}")
    if shape.op not in OPERATORS:
        raise ValueError(f"no operator is called {shape.op!r}; there is {', '.join(OPERATORS)}")
    kind = DTYPES[shape.dtype]
    if shape.collective in REDUCES and kind not in OPERATORS[shape.op][1]:
        raise ValueError(f"MPI does not have the operator {shape.op} for {kind} types such as {shape.dtype}")
    if shape.in_place and shape.collective in WITHOUT_IN_PLACE:
        raise ValueError(f"{shape.collective} has no in-place form")
    if not 0 <= shape.root < p:
        raise ValueError(f"root is {shape.root}; with {p} rank{'s' * (p > 1)} it must be in 0..{p - 1}")
    if shape.root and shape.collective not in ROOTED:
        raise ValueError(f"{shape.collective} has no root")


def check_algorithms(collective: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The names; "all" is native, auto and every registered one. Raises ValueError for one there is not."""
    from mpicoll.schedule import parse_spec

    names: list[str] = []
    for name in who.split_names(text):
        names += [who.NATIVE, who.AUTO, *known] if name == "all" else [name]
    for name in names:
        if name.partition("(")[0].strip() not in (who.NATIVE, who.AUTO, *known):
            raise UnknownAlgorithm(f"{collective} algorithm", name, (who.NATIVE, who.AUTO, "all", *known))
        if name not in (who.NATIVE, who.AUTO):
            parse_spec(collective, name)
    if not names:
        raise ValueError("--algorithms names none")
    return tuple(dict.fromkeys(sorted(names, key=lambda name: name != who.NATIVE)))


def check_engines(text: str) -> tuple[str, ...]:
    """The names of engines. Raises ValueError."""
    names = who.split_names(text)
    if not names or not set(names) <= set(who.ENGINES):
        raise ValueError(f"--engines is {text!r}; it takes a list of {', '.join(who.ENGINES)}")
    return tuple(names)


def positive(name: str, value: float) -> float:
    """Raises ValueError unless above 0."""
    if not value > 0:
        raise ValueError(f"{name} is {value}; it must be above 0")
    return value


@click.command(cls=OneVoice, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.argument("collective")
@click.option("--sizes", default="8:4M:8", help="Bytes: a list of sizes and ranges FIRST:LAST[:FACTOR].")
@click.option("--algorithms", default="all", help="native, auto and names from `mpicoll list`, or all.")
@click.option("--engines", default=who.AUTO, help=f"Of {', '.join(who.ENGINES)}.")
@click.option("--dtype", default="float64", help="NumPy's name.")
@click.option("--op", default="sum", help="For reductions: sum, prod, max …")
@click.option("--root", default=0, help="For bcast, scatter, gather and reduce.")
@click.option("--in-place", is_flag=True, help="Use MPI.IN_PLACE.")
@click.option("--seconds", default=10.0, help="Time to spend in all, apart from checking and warming up.")
@click.option("--iterations", type=int, help="Rounds per size, instead of --seconds.")
@click.option("--memory", default="1G", help="Leave out sizes that need more for buffers on a rank.")
@click.option("--seed", default=0, help="Of the order within a round.")
@click.option("--json", "path", metavar="FILE", help="Write JSON lines, as results come.")
def bench(path: str | None, **given: Any) -> None:
    """Time COLLECTIVE's algorithms beside MPI's own: start it under mpiexec, on 2 or more ranks.

    A size is what the OSU benchmarks mean by it: the vector of bcast, reduce, allreduce and reduce_scatter;
    a rank's share in scatter, gather and allgather; what one rank sends another in alltoall. Answers are
    checked: a wrong one shows as NO and makes the exit status 1.
    """
    comm = world()
    try:
        wanted = settings(comm.size, **given)
    except (ValueError, MpicollError) as error:
        raise click.UsageError(str(error)) from None
    with opened(path, comm) as file:
        if not run(wanted, file):
            raise click.exceptions.Exit(WRONG)


def run(wanted: Settings, file: IO[str] | None) -> bool:
    """Measure and print; True if every answer was right."""
    from .session import Session

    with Session(file, asdict(wanted), seed=wanted.seed, memory=wanted.memory) as session:
        job = session.job(wanted.shape, wanted.sizes, wanted.algorithms, wanted.engines)
        return session.run([job], [wanted.seconds], wanted.rounds)
