"""Commands that all ranks run, and of which rank 0 speaks."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import click

KEPT = 100  # files of results that nobody asked to keep
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
    """Return the communicator of all ranks."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return Alone()
    return MPI.COMM_WORLD


@contextlib.contextmanager
def opened(path: str | None, comm: Any, name: str) -> Iterator[IO[str] | None]:
    """Provide the file on rank 0, None elsewhere; a path that cannot be written ends all ranks.

    Without a path it is a new file for the benchmark of that name in the user's state directory, which rank 0
    names at the end: no run is lost because nobody thought of keeping it.
    """
    with contextlib.ExitStack() as stack:
        file, trouble = None, None
        if comm.rank == 0:
            try:
                where = kept(name) if path is None else Path(path)
                file = stack.enter_context(where.open("w", encoding="utf-8"))
            except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
                why = getattr(error, "strerror", None) or error
                if path is None:
                    click.echo(f"results are kept nowhere, {why}; --json FILE keeps them", err=True)
                else:
                    trouble = f"--json {path}: {why}"
        trouble = comm.bcast(trouble)
        if trouble:
            raise click.UsageError(trouble)
        try:
            yield file
        finally:
            if path is None and file is not None:
                click.echo(f"results: {file.name}")


def kept(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return where to make a new file in the user's state directory, of which the KEPT newest stay. Raises OSError."""
    state = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = Path(state) / "mpicoll"
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.glob("*.jsonl"), key=lambda file: file.stat().st_mtime)[: -KEPT + 1]:
        old.unlink(missing_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return folder / f"{name}-{stamp}-{os.getpid()}.jsonl"
