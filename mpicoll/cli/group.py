"""Parts that the commands share: errors of one line, one rank that speaks, a console."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from .. import stderr
from ..errors import MpicollError, UnknownAlgorithm
from ..launcher import rank

FAILED, USAGE = 1, 2
REPORT = "pip install 'mpicoll[report]'"


class MpiCommand(click.Command):
    """A command whose ranks all use MPI afterwards, so that they can exchange earlier errors."""


def uses_mpi(command: click.Command | None) -> bool:
    """Return whether all ranks use MPI in a command."""
    return isinstance(command, MpiCommand) or (isinstance(command, Later) and command.uses_mpi)


class Later(click.Command):
    """A command of mpicoll's package at place, imported when it is used: a part that does not load breaks no other."""

    def __init__(self, name: str, place: str, short_help: str, *, uses_mpi: bool = False) -> None:
        super().__init__(name, short_help=short_help)
        self.place, self.uses_mpi = f"mpicoll.{place}", uses_mpi

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the real command, which is then what runs."""
        try:
            command = self.load()
        except Exception as error:
            module = self.place.partition(":")[0]
            raise click.ClickException(f"{module} does not load: {type(error).__name__}: {error}") from None
        return command.make_context(info_name, args, parent, **extra)

    def load(self) -> click.Command:
        """Import the real command."""
        module, _, attribute = self.place.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


class _OneLine:
    """Commands whose errors are one line, and which end with the right status."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command, print any error, and exit."""
        run: Any = super().main  # type: ignore[misc]
        if not standalone_mode:
            return run(*args, standalone_mode=False, **extra)
        try:
            status = run(*args, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            sys.exit(USAGE)
        except click.ClickException as error:
            if rank() == 0 or not isinstance(error, click.UsageError):  # all ranks got the same arguments
                _say(error)
            else:
                stderr.listen()
            sys.exit(USAGE if isinstance(error, click.UsageError) else error.exit_code)
        except click.Abort:
            click.echo("mpicoll: interrupted", err=True)
            sys.exit(130)
        except MpicollError as error:
            click.echo(f"mpicoll: {error}", err=True)
            sys.exit(USAGE if isinstance(error, UnknownAlgorithm) else FAILED)
        sys.exit(status if isinstance(status, int) else 0)


class OneLine(_OneLine, click.Group):
    """A group whose errors are one line."""


class OneLineCommand(_OneLine, click.Command):
    """A command without subcommands, whose errors are one line."""


def _say(error: click.ClickException) -> None:
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "mpicoll"
    click.echo(f"{where}: {' '.join(error.format_message().split())}", err=True)



@contextlib.contextmanager
def asking() -> Iterator[None]:
    """Turn an error about the arguments into a usage error."""
    try:
        yield
    except (MpicollError, ValueError) as error:
        raise click.UsageError(str(error), click.get_current_context()) from None


@contextlib.contextmanager
def extra(needs: str, install: str = REPORT) -> Iterator[None]:
    """Turn a missing package of an extra, which an option needs, into an error of one line."""
    try:
        yield
    except ImportError as error:
        raise click.ClickException(f"{needs} needs {error.name or error}, which is not installed: {install}") from None


def unwritable(path: str | Path) -> str:
    """Return why a file cannot be written, before work whose results it is for; empty if it can be."""
    path = Path(path)
    if not path.parent.is_dir():
        return "its directory does not exist"
    is_writable = os.access(path if path.exists() else path.parent, os.W_OK) and not path.is_dir()
    return "" if is_writable else "cannot be written"


def refuse(trouble: str, together: bool = False) -> None:
    """Raise a usage error if there is trouble.

    together: whether all ranks call this and use MPI; trouble on any rank then ends all of them.
    """
    if together:
        trouble = _first(trouble)
    if trouble:
        raise click.UsageError(trouble, click.get_current_context())


def _first(trouble: str) -> str:
    """Return the trouble of the lowest rank that has any."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return trouble
    every = MPI.COMM_WORLD.allgather(trouble)
    troubles = [(at, message) for at, message in enumerate(every) if message]
    if not troubles:
        return ""
    at, message = troubles[0]
    return message if len(troubles) == len(every) else f"on rank {at}: {message}"


def alone() -> None:
    """Leave, unless this is rank 0."""
    if rank() > 0:
        click.get_current_context().exit(0)


def console(stderr: bool = False) -> Any:
    """Return a console as wide as the terminal, or 120 characters wide where there is none."""
    from rich.console import Console

    output = Console(stderr=stderr, highlight=False)
    return output if output.is_terminal else Console(stderr=stderr, highlight=False, width=120)
