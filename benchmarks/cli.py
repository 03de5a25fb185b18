"""`mpicoll bench`: times a collective's algorithms beside MPI's own.

Every rank reads the same command line and comes to the same conclusion, so bad input ends them all at once,
with one line from rank 0 and exit status 2.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import IO, Any, TypeVar

import click

from mpicoll.errors import MpicollError, ParameterError, PreconditionError, UnknownAlgorithm

from . import contenders as who
from .osu.either import FLAG, OrOSU
from .patterns import Shape
from .shares import EVEN
from .sizes import format_size, parse_size, parse_sizes
from .voice import WRONG, opened, world

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Settings:
    """What was asked for, checked."""

    shape: Shape
    sizes: tuple[int, ...]
    algorithms: tuple[str, ...]
    left_out: dict[str, str]
    engines: tuple[str, ...]
    chunk_bytes: int | None
    window: int | None
    seconds: float
    rounds: int | None
    memory: int
    seed: int

    @property
    def notes(self) -> list[str]:
        """What the reader of the table must know, a line each."""
        limits = [f"chunks of {format_size(self.chunk_bytes)}"] if self.chunk_bytes else []
        limits += [f"{self.window} chunks in flight"] if self.window else []
        left_out = [f"{name} left out: {why}" for name, why in self.left_out.items()]
        return [", ".join(limits) + ", wherever mpicoll runs"] * bool(limits) + ["; ".join(left_out)] * bool(left_out)


def settings(p: int, collective: str, **given: Any) -> Settings:
    """The settings for p ranks from the words of the command line. Raises ValueError or UnknownAlgorithm."""
    from mpicoll.registry import algorithms

    known = algorithms()
    if collective not in known:
        raise UnknownAlgorithm("collective", collective, known)
    chunk, window, rounds = given["chunk_bytes"], given["window"], given["iterations"]
    words = (given["dtype"], given["op"].lower(), given["root"], given["in_place"], given["counts"])
    shape = Shape(collective, *words)
    shape.check(p)
    return Settings(
        shape,
        tuple(parse_sizes(given["sizes"])),
        *check_algorithms(collective, given["algorithms"], p),
        check_engines(given["engines"]),
        None if chunk is None else positive("--chunk-bytes", parse_size(chunk)),
        None if window is None else positive("--window", window),
        positive("--seconds", given["seconds"]),
        None if rounds is None else positive("--iterations", rounds),
        parse_size(given["memory"]),
        given["seed"],
    )


def check_algorithms(collective: str, text: str, p: int) -> tuple[tuple[str, ...], dict[str, str]]:
    """The names, and why which are left out: "all" is native, auto and every one that suits p ranks.

    Whether those named suit them is seen when there is a communicator. Raises UnknownAlgorithm, ParameterError,
    ValueError.
    """
    from mpicoll.registry import algorithms, find, parse_spec

    known, names, left_out = algorithms()[collective], list[str](), dict[str, str]()
    for name in who.split_names(text):
        if name != "all":
            names.append(name)
            continue
        entries = [find(collective, each) for each in known]
        names += [who.NATIVE, who.AUTO, *(entry.name for entry in entries if entry.serves(p))]
        left_out = {e.name: f"needs {e.requires.words}" for e in entries if e.requires and not e.serves(p)}
    for name in names:
        if name.partition("(")[0].strip() not in (who.NATIVE, who.AUTO, *known):
            raise UnknownAlgorithm(f"{collective} algorithm", name, (who.NATIVE, who.AUTO, "all", *known))
        if name not in (who.NATIVE, who.AUTO):
            parse_spec(collective, name)
    if not names:
        raise ValueError("--algorithms names none")
    return tuple(dict.fromkeys(sorted(names, key=lambda name: name != who.NATIVE))), left_out


def check_engines(text: str) -> tuple[str, ...]:
    """The names of engines. Raises ValueError."""
    names = who.split_names(text)
    if not names or not set(names) <= set(who.ENGINES):
        raise ValueError(f"--engines is {text!r}; it takes a list of {', '.join(who.ENGINES)}")
    return tuple(names)


def positive(name: str, value: Number) -> Number:
    """Raises ValueError unless above 0."""
    if not value > 0:
        raise ValueError(f"{name} is {value}; it must be above 0")
    return value


@click.command(cls=OrOSU, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.argument("collective")
@click.option("--sizes", default="8:4M:8", help="Bytes: a list of sizes and ranges FIRST:LAST[:FACTOR].")
@click.option("--algorithms", default="all", help="native, auto, names from `mpicoll list`; or all that suit.")
@click.option("--engines", default=who.AUTO, help=f"Of {', '.join(who.ENGINES)}.")
@click.option("--dtype", default="float64", help="NumPy's name.")
@click.option("--op", default="sum", help="For reductions: sum, prod, max …")
@click.option("--root", default=0, help="For bcast, scatter, gather, reduce, scatterv and gatherv.")
@click.option("--in-place", is_flag=True, help="Use MPI.IN_PLACE.")
@click.option("--counts", default=EVEN, help="Of scatterv and its like: even or uneven, 0 to twice the size.")
@click.option("--chunk-bytes", metavar="SIZE", help="For ours: the most of each block in one message, such as 256K.")
@click.option("--window", type=int, help="For ours: how many chunks are in flight.")
@click.option("--seconds", default=10.0, help="Time to spend in all, apart from checking and warming up.")
@click.option("--iterations", type=int, help="Rounds per size, instead of --seconds.")
@click.option("--memory", default="1G", help="Leave out sizes that need more for buffers on a rank.")
@click.option("--seed", default=0, help="Of the order within a round.")
@click.option(FLAG, is_flag=True, expose_value=False, help="Print as the OSU benchmarks do, whose options follow.")
@click.option("--json", "path", metavar="FILE", help="Write JSON lines, as results come.")
def bench(path: str | None, **given: Any) -> None:
    """Time COLLECTIVE's algorithms beside MPI's own: start it under mpiexec, on 2 or more ranks.

    A size is what the OSU benchmarks mean by it: the vector of bcast, scan and reductions; a rank's share in
    scatter, gather and allgather; what one rank sends another in alltoall; the average of it where ranks have
    counts of their own. Answers are checked: a wrong one shows as NO and makes the exit status 1.
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
    """Measure and print; True if every answer was right. Raises UsageError for algorithms these ranks do not suit."""
    from .session import Session

    shape, names = wanted.shape, wanted.algorithms
    with Session(file, asdict(wanted), seed=wanted.seed, memory=wanted.memory) as session:
        try:
            session.check(shape.collective, names)
        except (ParameterError, PreconditionError) as error:
            raise click.UsageError(str(error)) from None
        limits = {"chunk_bytes": wanted.chunk_bytes, "window": wanted.window}
        job = session.job(shape, wanted.sizes, names, wanted.engines, **limits)
        return session.run([job], [wanted.seconds], wanted.rounds, wanted.notes)
