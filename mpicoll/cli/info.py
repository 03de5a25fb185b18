"""The command `mpicoll info`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from ..launcher import rank
from .group import MpiCommand
from .names import UnderMpiexec


class Info(MpiCommand, UnderMpiexec):
    """Takes no name."""

    extra = "mpicoll list says what serves a collective, and comm.explain() what runs for a number of bytes"


@click.command(cls=Info, short_help="What runs where: MPI, ranks, engines, kernels.")
@click.option("--check", is_flag=True, help="Look for what goes wrong on clusters; exit status 1 if anything is wrong.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--facts", "path", metavar="FILE", help="Also write what --json prints to FILE.")
def info(check: bool, as_json: bool, path: str | None) -> int:
    """Show the MPI library, ranks and their binding, engines and kernels; alone or under mpiexec."""
    from .. import doctor
    from ..doctor import info as facts

    try:
        all_facts, findings, status = doctor.examine() if check else (facts.gather(), [], 0)
    except (ImportError, RuntimeError) as error:
        raise click.ClickException(f"MPI does not start: {error}") from None
    if all_facts is None or (status and len(all_facts["ranks"]) == 1 and rank() > 0):  # each is rank 0 of 1: one speaks
        return status
    every = json.dumps({**all_facts, "findings": list(map(asdict, findings))} if check else all_facts, indent=2)
    click.echo(every if as_json else doctor.lines(all_facts, findings) if check else facts.lines(all_facts))
    if path is not None:
        try:
            Path(path).write_text(f"{every}\n", encoding="utf-8")
        except OSError as error:
            click.echo(f"mpicoll info: cannot write {path}: {error.strerror}", err=True)  # nothing wrong with MPI
    return status
