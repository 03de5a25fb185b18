"""`mpicoll run`: an unmodified mpi4py program whose MPI.COMM_WORLD is mpicoll's."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ..launcher import rank
from ..stderr import keep_stderr
from .group import MpiCommand, asking, console, refuse
from .program import STDIN, Program, own_frames
from .start import MODULE, WhenInitialized

if TYPE_CHECKING:
    from ..diagnostics.trace import Tally
    from ..selection.select import Overrides

INTERRUPTED = 130


class Runs(MpiCommand):
    """A command whose options end where the program is named, so that what follows is the program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Mark where the program is named: a word that is no option of ours, or -m, -c, -."""
        take_value = {o for p in self.params if isinstance(p, click.Option) and not p.is_flag for o in p.opts}
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] != "-" and args[at][:2] not in ("-m", "-c"):
            if args[at] == "--":
                return super().parse_args(ctx, args)
            at += 2 if args[at] in take_value else 1
        return super().parse_args(ctx, [*args[:at], "--", *args[at:]] if at < len(args) else args)


@click.command(cls=Runs, short_help="Run an unmodified mpi4py program on mpicoll's collectives.")
@click.option(
    "--using",
    "chosen",
    multiple=True,
    metavar="NAME=VALUE",
    help="As comm.using(): COLLECTIVE=ALGORITHM, engine=, chunk_bytes=, window= or learn=; may be repeated.",
)
@click.option("--learn", is_flag=True, help="As MPICOLL_LEARN=1: find out which algorithms are the fastest.")
@click.option("--timeline", metavar="FILE", help="As MPICOLL_TIMELINE: write when each message of each call was sent.")
@click.option("--summary", is_flag=True, help="At the end, a table of what ran on rank 0, on standard error.")
@click.option(
    "--torch",
    "with_torch",
    is_flag=True,
    help="Make torch.distributed's backends gloo and mpi mean mpicoll; needs mpicoll[torch].",
)
@click.argument("words", nargs=-1, metavar="SCRIPT | -m MODULE | -c CODE | - [ARGUMENT]...")
def run(
    chosen: Sequence[str], learn: bool, timeline: str | None, summary: bool, with_torch: bool, words: Sequence[str]
) -> None:
    """Run a Python program as `python` does, with an mpicoll.Comm as its MPI.COMM_WORLD and MPI.COMM_SELF.

    \b
        mpiexec -n 4 mpicoll run script.py --its-own options
        mpiexec -n 4 mpicoll run --using allreduce=ring --using engine=mpi4py --summary script.py
        mpiexec -n 4 mpicoll run --torch --summary train.py

    Communicators made from these two are mpicoll's too. What --using says holds on every communicator of the
    program, except where the program itself says other by comm.using(). It must suit the ranks of COMM_WORLD; a call
    on a communicator whose ranks an algorithm does not suit raises PreconditionError.

    With --learn the first calls of a size take turns among algorithms that give the same bits, and later ones use the
    fastest; MPICOLL_TUNING names the file in which that is kept for the next run.

    With --timeline rank 0 writes, as the program ends, what the collectives of all ranks did, and when; `mpicoll
    timeline FILE` says where the time went.

    With --torch a program that trains by init_process_group("gloo") runs on mpicoll too, with rank and size from MPI
    where the environment has no MASTER_ADDR; --summary then counts torch's operations.

    The program initializes MPI, when it imports mpi4py.MPI or, with mpi4py.rc.initialize = False, by MPI.Init or
    MPI.Init_thread; MPI.COMM_WORLD is mpicoll's from then on. With --torch, or where the program is standard input,
    which rank 0 reads for all, MPI is initialized before it starts. A rank that ends by an exception, or an exit status
    that is not 0, ends all, as under `python -m mpi4py`, two seconds later: meanwhile ranks that wait for it in a
    collective say so.
    """
    with asking():
        overrides, program = parse_using(chosen), Program.parse(words)
    if learn:
        os.environ["MPICOLL_LEARN"] = "1"
    if timeline:
        os.environ["MPICOLL_TIMELINE"] = timeline
    context = click.get_current_context()
    tallies: list[Tally] = []

    def prepare() -> None:
        with context.scope(cleanup=False):  # the program may be in another thread
            tally = _prepare(program, overrides, summary, with_torch)
        if tally is not None:
            tallies.append(tally)

    if with_torch or program.kind == STDIN or program.trouble() or MODULE in sys.modules:
        prepare()
    else:
        sys.meta_path.insert(0, WhenInitialized(prepare))
    try:
        _run(program)
    finally:
        if summary and rank() == 0:
            _show(tallies[0] if tallies else None)


def parse_using(chosen: Sequence[str]) -> Overrides:
    """Return what --using says. Raises ArgumentError, UnknownAlgorithm, ParameterError, ValueError."""
    from ..selection.select import Overrides
    from ..selection.settings import ENGINES

    choices: dict[str, str] = {}
    for text in chosen:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ValueError(f"--using {text!r} is not NAME=VALUE; write allreduce=ring or engine=mpi4py")
        if choices.setdefault(name, value) != value:
            raise ValueError(f"--using {name} is given twice, as {choices[name]!r} and {value!r}")
    engine, accumulate, learn = (choices.pop(name, None) for name in ("engine", "accumulate", "learn"))
    if engine not in (None, *ENGINES):
        raise ValueError(f"engine is {engine!r}; it must be one of {', '.join(ENGINES)}")
    numbers = {name: _number(name, choices.pop(name, None)) for name in ("chunk_bytes", "window")}
    return Overrides().merged(
        choices, numbers["chunk_bytes"], numbers["window"], engine, accumulate=accumulate, learn=learn
    )


def _number(name: str, text: str | None) -> int | None:
    if text is not None and not text.isdecimal():
        raise ValueError(f"{name} is {text!r}; it must be an integer of at least 1")
    return None if text is None else int(text)


def _prepare(program: Program, overrides: Overrides, summary: bool, with_torch: bool) -> Tally | None:
    """Make the world mpicoll's; on all ranks, or a usage error on all. Return the counter of calls, if requested."""
    try:
        from ..comm import world
    except (ImportError, RuntimeError) as error:
        raise click.ClickException(f"MPI does not start: {error}") from None
    from ..diagnostics.trace import Tally
    from ..errors import MpicollError

    trouble = program.trouble()
    try:
        if with_torch:
            from .. import torch
        world.check(overrides)
    except ImportError as error:
        trouble = trouble or str(error)
    except MpicollError as error:
        trouble = trouble or str(error)
    refuse(trouble, together=True)
    if program.kind == STDIN:
        program.what = world.COMM_WORLD.bcast(sys.stdin.buffer.read() if world.COMM_WORLD.rank == 0 else b"")
    tally = Tally() if summary else None
    with asking():
        world.replace(overrides, tally)
    if with_torch:
        torch.alias()
    return tally


def _run(program: Program) -> None:
    """Run it to its end; one that fails ends all ranks when this one exits."""
    keep_stderr()
    try:
        program.run()
    except click.ClickException:
        raise  # a usage error that appears only when the program initializes MPI
    except SystemExit as error:
        _abort_at_exit(error, error)
        raise
    except KeyboardInterrupt as error:
        _fail(error, INTERRUPTED)
    except BaseException as error:
        _fail(error, 1)


def _fail(error: BaseException, status: int) -> NoReturn:
    """Print the traceback as the interpreter would have, and exit."""
    traceback = own_frames(error.__traceback__, __file__)
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)
    _abort_at_exit(error, status)
    sys.exit(status)


def _abort_at_exit(error: BaseException, status: Any) -> None:
    """Let all ranks end with this one, once they were told why; one that is alone just exits."""
    if not _active():
        return
    from mpi4py.run import set_abort_status

    from ..comm.world import COMM_WORLD
    from ..diagnostics.status_thread import STATUS_THREAD

    if COMM_WORLD.size > 1:
        set_abort_status(status)
        if not isinstance(error, SystemExit) or error.code not in (None, 0):
            STATUS_THREAD.fatal = error


def _active() -> bool:
    mpi: Any = sys.modules.get(MODULE)
    return mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()


def _show(tally: Tally | None) -> None:
    to = console(stderr=True)
    if tally is not None and tally.counts:
        to.print(tally.table())
    else:
        to.print("mpicoll: no collective of mpicoll's ran on rank 0")
    if (served := sys.modules.get("mpicoll.torch.served")) is not None:
        to.print(served.table())
