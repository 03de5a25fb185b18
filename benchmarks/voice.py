"""Commands that all ranks run, and of which rank 0 speaks."""

from __future__ import annotations

import contextlib
import io
import sys
import traceback
from collections.abc import Iterator
from typing import IO, Any

import click

WRONG = 1  # exit status when an answer was wrong; 2 is bad input


class OneVoice(click.Command):
    """A command that all ranks run and of which rank 0 speaks."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with one_voice(self.name or ""):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with one_voice(self.name or ""):
            return super().invoke(ctx)


@contextlib.contextmanager
def one_voice(name: str) -> Iterator[None]:
    """Bad input becomes one line on rank 0 and exit status 2; any other error ends all ranks at once."""
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
    except Exception:
        if comm.size == 1:
            raise
        print(f"rank {comm.rank}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        comm.Abort(WRONG)


class Alone:
    """The world without MPI: enough to print --help."""

    rank, size = 0, 1


def world() -> Any:
    """All ranks."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return Alone()
    return MPI.COMM_WORLD


@contextlib.contextmanager
def opened(path: str | None, comm: Any) -> Iterator[IO[str] | None]:
    """The file on rank 0, None elsewhere; a path that cannot be written ends all ranks."""
    with contextlib.ExitStack() as stack:
        file, trouble = None, None
        if path is not None and comm.rank == 0:
            try:
                file = stack.enter_context(open(path, "w", encoding="utf-8"))
            except OSError as error:
                trouble = f"--json {path}: {error.strerror}"
        trouble = comm.bcast(trouble)
        if trouble:
            raise click.UsageError(trouble)
        yield file
