"""The command line, `mpicoll` or `python -m mpicoll`.

Errors are one line: exit status 2 for what was asked wrongly, 1 for what failed. MPI is imported only by the
commands that need it. Under mpiexec, commands that look at schedules run on one rank and the others leave.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context
from typing import Any, NamedTuple, NoReturn

import click

from .errors import MpicollError, UnknownAlgorithm, VerifyError, spans

FAILED, USAGE = 1, 2
RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID", "SLURM_PROCID")


class _Later(click.Command):
    """A command that is imported when it is used, so that a part that does not load spoils no other."""

    def __init__(self, name: str, place: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self.place = place

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of the real command, which is then what runs."""
        module, _, attribute = self.place.partition(":")
        try:
            command = getattr(import_module(module), attribute)
        except Exception as error:
            raise click.ClickException(f"{module} does not load: {type(error).__name__}: {error}") from None
        return command.make_context(info_name, args, parent, **extra)


class _OneLine(click.Group):
    """A group whose errors are one line, and which ends with the right status."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run, print what went wrong, and exit."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        try:
            status = super().main(*args, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            sys.exit(USAGE)
        except click.ClickException as error:
            _say(error)
            sys.exit(USAGE if isinstance(error, click.UsageError) else error.exit_code)
        except click.Abort:
            click.echo("mpicoll: interrupted", err=True)
            sys.exit(130)
        except MpicollError as error:
            click.echo(f"mpicoll: {error}", err=True)
            sys.exit(USAGE if isinstance(error, UnknownAlgorithm) else FAILED)
        sys.exit(status if isinstance(status, int) else 0)


def _say(error: click.ClickException) -> None:
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "mpicoll"
    click.echo(f"{where}: {' '.join(error.format_message().split())}", err=True)


@contextlib.contextmanager
def _asking() -> Iterator[None]:
    """What is wrong with what was asked becomes a usage error."""
    try:
        yield
    except (MpicollError, ValueError) as error:
        raise click.UsageError(str(error), click.get_current_context()) from None


def _rank(environ: Any = os.environ) -> int:
    """This process's rank as its launcher tells it, without starting MPI."""
    return next((int(environ[name]) for name in RANK_VARIABLES if environ.get(name, "").isdigit()), 0)


def _alone() -> None:
    """Leave, unless this is rank 0."""
    if _rank() > 0:
        click.get_current_context().exit(0)


def _console(stderr: bool = False, width: int | None = None) -> Any:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, width=width)


def _print_table(table: Any) -> None:
    """As wide as the terminal, or as wide as it wants to be where the output is no terminal."""
    console = _console()
    if not console.is_terminal:
        console = _console(width=max(console.measure(table).maximum, 80))
        console = _console(width=console.measure(table, options=console.options.update(max_width=400)).maximum)
    console.print(table)


@click.group(cls=_OneLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mpicoll", prog_name="mpicoll")
def main() -> None:
    """MPI collectives as data: list, see, prove and time their algorithms."""


main.add_command(
    _Later("bench", "mpicoll.benchmarks.cli:bench", "Time a collective's algorithms beside MPI's own, under mpiexec.")
)
