"""Gather what the jobs of a study left, each kind of job in its way."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from . import gather
from .errors import JobsError
from .kinds import KINDS
from .study import Study


def assemble(study: Study, directory: Path, output: Path | None, mixed: bool) -> None:
    """Gather what there is and say what there is not. Raises JobsError."""
    kind = KINDS[study.kind]
    here = gather.step_results(study, directory)
    usable = [result for result in here if result.rows]
    for result in here:
        if not result.whole:
            click.echo(f"{result.step.name}: {result.describe()}", err=True)
    if not usable:
        asked = f"mpicoll jobs status {shlex.quote(str(directory))}"
        raise JobsError(f"{directory} has no results yet; `{asked}` says what its jobs do")
    files = [result.file for result in usable if result.file]
    if len(origins := gather.origins(files)) > 1 and not mixed:
        of = "; ".join(f"{who}: {', '.join(names)}" for who, names in origins.items())
        raise JobsError(f"results of different code are no comparison: {of}. Measure again, or take them with --mixed")
    title = f"{kind.about[0].upper()}{kind.about[1:]}"
    kind.gathered(files, output or directory / kind.gathers, title)
    whole = sum(result.whole for result in here)
    parts = f", {len(usable) - whole} in part" if len(usable) > whole else ""
    click.echo(f"{whole} of {len(here)} steps are complete{parts}")
