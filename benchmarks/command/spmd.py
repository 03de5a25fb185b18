"""Commands that all ranks run, and of which rank 0 speaks."""

from __future__ import annotations

import contextlib
import io
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import click

from mpicoll.cli.names import UnderMpiexec

WRONG = 1  # exit status when an answer was wrong; 2 is bad input


class SpmdCommand(UnderMpiexec):
    """A command that all ranks run and of which rank 0 speaks."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with rank0_speaks(self.name or ""):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with rank0_speaks(self.name or ""):
            compile_first()
            return super().invoke(ctx)


def compile_first() -> None:
    """Have this process wait for compiled kernels from here on: NumPy's are not what is timed."""
    from mpicoll.engines import selftest
    from mpicoll.kernels import background

    try:
        selftest.check(wait=False)
    except background.NotCompiled:
        if world().rank == 0:
            click.echo("mpicoll: compiling kernels first, once per machine; this can take a minute", err=True)
    background.wait()


@contextlib.contextmanager
def rank0_speaks(name: str) -> Iterator[None]:
    """Turn bad input into one line on rank 0 and exit status 2; abort all ranks at any other error."""
    comm = world()
    quiet = contextlib.redirect_stdout(io.StringIO()) if comm.rank else contextlib.nullcontext()
    try:
        with quiet:
            yield
    except click.UsageError as error:
        if comm.rank == 0:
            click.echo(f"mpicoll {name}: {error.format_message()}", err=True)
        raise click.exceptions.Exit(2) from None
    except (click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        if comm.size == 1:
            raise
        # what is wrong comes first: launchers lose the end of what a rank printed before it aborted
        what = "".join(traceback.format_exception_only(error)).strip()
        print(f"rank {comm.rank}: {what}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        comm.Abort(WRONG)


class Alone:
    """The world without MPI: enough to print --help."""

    rank, size = 0, 1


def world() -> Any:
    """Return the communicator of all ranks."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return Alone()
    return MPI.COMM_WORLD
