"""The command that OMB's words are for.

Every rank reads the same command line and makes the same decision, so bad input ends them all at once,
with one line from rank 0 and exit status 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.core import ParameterSource

from mpicoll.errors import EngineError, MpicollError, ParameterError, PreconditionError

from ..cases import contenders as who
from ..cases.forms import BLOCKING, FORMS
from ..command.spmd import WRONG, SpmdCommand, world
from . import layout, options
from .benches import check, measuring
from .options import Options
from .programs import COLLECTIVE, Program, program
from .run import run


class GetoptLike(SpmdCommand):
    """A command of which -z has a value only if that is attached, as getopt has it: -z50,99 or --tail-lat=50,99."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [attached(word) for word in args])


def attached(word: str) -> str:
    """Return a word of the command line, with the usual percentiles if it ends in a bare -z.

    >>> attached("-fz"), attached("--tail-lat"), attached("-z5"), attached("-m")
    ('-fz50,90,99', '--tail-lat=50,90,99', '-z5', '-m')
    """
    if re.fullmatch("-[fcl]*z", word):
        return word + options.PERCENTILES
    return f"{word}={options.PERCENTILES}" if word == "--tail-lat" else word


@click.command(
    "bench", cls=GetoptLike, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]}
)
@click.argument("benchmark", metavar="COLLECTIVE|latency|bw|bibw")
@click.option("--form", default=BLOCKING, help=f"Of a collective: {', '.join(FORMS)}.")
@click.option("--algorithms", help="One: native, auto or a name from `mpicoll list`.  [default: auto]")
@click.option("--engine", "--engines", default=who.AUTO, help=f"Of {', '.join(who.ENGINES)}.")
@click.option("-v", "--version", is_flag=True, help="Print the title and leave.")
@click.option("-m", "--message-size", metavar="[MIN:]MAX", help="Bytes.  [default: 1:1048576, latency, bw 1:4194304]")
@click.option("-i", "--iterations", type=click.IntRange(1), metavar="N", help="Timed, for small and large messages.")
@click.option("-x", "--warmup", type=click.IntRange(0), metavar="N", help="Iterations before them.")
@click.option("-f", "--full", is_flag=True, help="Minimum and maximum over ranks too, and the iterations.")
@click.option("-z", "--tail-lat", metavar="[P,P…]", help="Percentiles too, -z is -z50,90,99.")
@click.option("-c", "--validation", is_flag=True, help="Check what is received in every iteration.")
@click.option("-u", "--validation-warmup", type=click.IntRange(0, 10), default=5, help="With -c, before each call.")
@click.option("-M", "--mem-limit", type=int, default=options.MEMORY, help="Bytes of a buffer on a rank.")
@click.option("-W", "--window-size", type=click.IntRange(1), default=64, help="Messages before they are awaited.")
@click.option("-t", "--num-test-calls", type=click.IntRange(0), default=0, help="MPI_Test while computing.")
@click.option("-T", "--type", "types", multiple=True, metavar="TYPE", help="mpi_char, mpi_int, mpi_float or all.")
@click.option("-l", "--in-place", is_flag=True, help="Use MPI_IN_PLACE.")
@click.option("-k", "--root-rank", default="fixed:0", help="fixed:RANK or rotate, iteration by iteration.")
@click.option("-b", "--buffer-num", type=click.Choice(["single", "multiple"]), default="single", help="For a window.")
@click.pass_context
def osu(context: click.Context, /, benchmark: str, **arguments: Any) -> None:
    """Measure as the OSU micro-benchmarks do, and print what they print: start it under mpiexec.

    One collective, called in one form by one algorithm, or MPI's messages between two ranks. Each program
    takes the options of its namesake in OMB 7.4.
    """
    comm = world()
    algorithm, engine = arguments["algorithms"] or who.AUTO, arguments["engine"]
    with asking(ValueError, MpicollError):
        wanted = program(benchmark, arguments["form"])
        only_its_own(context, wanted)
        if arguments["version"]:
            click.echo(layout.title(wanted))
            return
        wanted.refuse(comm.size)
        asked = read(wanted, comm, **arguments)
        if wanted.collective:
            check(wanted, asked, comm.size, algorithm, engine)
    unable = ParameterError, PreconditionError, EngineError  # the same on all ranks
    with asking(*unable), measuring(wanted, asked, comm, algorithm, engine) as bench:
        right = run(wanted, asked, bench)
    if not right:
        raise click.exceptions.Exit(WRONG)


@contextmanager
def asking(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into usage errors."""
    try:
        yield
    except kinds as error:
        raise click.UsageError(str(error)) from None


def only_its_own(context: click.Context, wanted: Program) -> None:
    """Raise ValueError for an option that the program does not take."""
    for parameter in context.command.params:
        if context.get_parameter_source(parameter.name or "") is not ParameterSource.COMMANDLINE:
            continue
        letter = min(parameter.opts, key=len)
        if len(letter) == 2 and letter[1] not in wanted.letters + "hv":
            raise ValueError(f"{wanted.name} has no {', '.join(parameter.opts)}")
        if letter in ("--algorithms", "--engine") and wanted.kind != COLLECTIVE:
            raise ValueError(f"{wanted.name} times MPI's own messages; leave out {letter}")


def read(wanted: Program, comm: Any, **arguments: Any) -> Options:
    """Return the options' values, checked; rank 0 says where memory makes one smaller. Raises ValueError."""
    memory, raised = options.read_memory(arguments["mem_limit"])
    low, asked = options.read_range(arguments["message_size"], options.MOST[wanted.kind])
    high, lowered = options.limited(wanted, asked, memory, comm.size)
    for line in filter(None, (raised, lowered)):
        if comm.rank == 0:
            click.echo(line, err=True)
    return Options(
        low,
        high,
        iterations=arguments["iterations"],
        warmup=arguments["warmup"],
        full=arguments["full"],
        percentiles=options.read_percentiles(arguments["tail_lat"]),
        validate=arguments["validation"],
        validation_warmup=arguments["validation_warmup"],
        window=arguments["window_size"],
        tests=arguments["num_test_calls"],
        types=options.read_types(arguments["types"]),
        in_place=arguments["in_place"],
        root=options.read_root(arguments["root_rank"]),
        multiple=arguments["buffer_num"] == "multiple",
    )
