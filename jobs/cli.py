"""`mpicoll jobs`: scaling runs under Slurm, from the script to the report."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mpicoll.benchmarks.cases.scaling import OSU, SCALINGS
from mpicoll.benchmarks.results.environment import now
from mpicoll.cli.group import alone, asking, console

from . import assemble, gather, render, site, slurm, stage, study
from .errors import JobsError, NoSlurm
from .kinds import KINDS, Asked

DIRECTORY = click.argument("directory", default=".", type=click.Path(path_type=Path))
HELP = {"help_option_names": ["-h", "--help"]}
POLL = 2.0  # seconds between two questions to Slurm


@click.group(context_settings=HELP)
def jobs() -> None:
    """Scaling runs under Slurm: write job scripts, submit them, see how far they are, gather what they measured."""
    alone()


@jobs.command("render", context_settings={"show_default": True, "ignore_unknown_options": False, **HELP})
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("extra", nargs=-1, metavar="[-- OPTIONS...]")
@click.option("--site", "path", metavar="FILE", help="TOML; `mpicoll jobs site` prints what can be in it.")
@click.option("--nodes", help="Numbers of nodes: a list, and ranges that double, such as 1:8.  [default: by kind]")
@click.option("--ranks-per-node", type=click.IntRange(1), help="Instead of the site's.")
@click.option("--allocation", type=click.Choice(study.ALLOCATIONS), default=study.TOGETHER,
              help="One job, in which smaller steps run on its first nodes; or a job for each number.")
@click.option("--scaling", type=click.Choice(SCALINGS), default=OSU,
              help="What stays the same: sizes as OSU's benchmarks mean them, all ranks' blocks together, or a rank's.")
@click.option("--collectives", help="A list of names.")
@click.option("--sizes", help="Bytes: a list and ranges FIRST:LAST[:FACTOR].")
@click.option("--algorithms", help="As for `mpicoll bench`.")
@click.option("--patterns", help="To train by; `mpicoll train --list` has them.")
@click.option("--seconds", type=float, help="Of each step.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The directory to make.  [default: KIND]")
def render_(kind: str, extra: tuple[str, ...], path: str | None, nodes: str | None, ranks_per_node: int | None,
            allocation: str, output: Path | None, **options: Any) -> None:
    """Write job scripts of a KIND: sweep, tune, train, torch, sanity. OPTIONS after -- go to the command of each step.

    The scripts are to be read, and may be edited. Nothing is submitted.
    """
    with asking():
        for name, value in options.items():
            if value not in (None, OSU) and name not in KINDS[kind].options:
                raise JobsError(f"--{name} is nothing to {kind}")
        where = site.read(path)
        if ranks_per_node:
            where = where.model_copy(update={"ranks_per_node": ranks_per_node})
        asked = Asked(**options, extra=extra)
        plan = render.study(kind, asked, where, study.numbers(nodes or KINDS[kind].nodes), allocation)
        directory = output or Path(kind)
        render.write(plan, where, directory)
    for job in plan.jobs:
        click.echo(f"{directory / job.script}: {_estimate(job)}")
    if plan.origin["modified"]:
        click.echo("mpicoll's checkout has changes that no commit holds; results will name its last commit", err=True)
    if len(plan.jobs) > 1 or len({step.nodes for step in plan.steps}) > 1:
        click.echo(f"{plan.node_hours:.2g} node-hours in all")
    click.echo(f"mpicoll jobs submit {shlex.quote(str(directory))}")


def _estimate(job: study.Job) -> str:
    count = len(job.steps)
    size = f"{job.nodes} node{'s' * (job.nodes > 1)}, {count} step{'s' * (count > 1)}"
    return f"{size}, about {max(1, round(job.seconds / 60))} min (limit {job.minutes}), {job.node_hours:.2g} node-hours"


@jobs.command(context_settings=HELP)
@DIRECTORY
@click.option("--dry-run", is_flag=True, help="Print the command and the script of each job, and submit nothing.")
@click.option("--again", is_flag=True, help="Also jobs that are queued or running already.")
def submit(directory: Path, dry_run: bool, again: bool) -> None:
    """Submit the jobs of DIRECTORY that have steps left to do, after a look at what this Slurm has to offer."""
    with asking():
        todo = _left(directory)
        if dry_run:
            where = shlex.quote(str(directory.resolve()))
            for job in todo:
                click.echo(f"cd {where} && sbatch --parsable {job.script}    # {_estimate(job)}")
                click.echo(_script(directory, job).read_text(encoding="utf-8"))
            return
        for job in todo:
            slurm.check(_script(directory, job))
        known = {entry.job: entry.script for entry in gather.submitted(directory)}
        busy = {known[job]: job for job, state in slurm.states(list(known)).items() if slurm.under_way(state)}
        if not again and (twice := [job.script for job in todo if job.script in busy]):
            raise JobsError(f"{twice[0]} is job {busy[twice[0]]}, which is not over; --again submits it once more")
        for job in todo:
            number = slurm.submit(directory / job.script)
            taken = gather.Submitted(job.script, number, now())
            with (directory / study.SUBMITTED).open("a", encoding="utf-8") as file:
                file.write(json.dumps(taken._asdict()) + "\n")
            click.echo(f"{job.script}: job {number}")
    if not todo:
        click.echo(f"all steps are complete: mpicoll jobs collect {shlex.quote(str(directory))}")


def _left(directory: Path) -> list[study.Job]:
    """Return the jobs with steps that are not complete."""
    plan = study.read(directory)
    whole = {result.step.name for result in gather.step_results(plan, directory) if result.whole}
    return [job for job in plan.jobs if any(step.name not in whole for step in job.steps)]


def _script(directory: Path, job: study.Job) -> Path:
    path = directory / job.script
    if not path.is_file():
        raise JobsError(f"{path} is gone")
    return path


@jobs.command(context_settings=HELP)
@DIRECTORY
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--wait", is_flag=True, help="Wait until no job is queued or running.")
def status(directory: Path, as_json: bool, wait: bool) -> None:
    """Show how far the jobs of DIRECTORY are: what Slurm says of them, and which steps are complete."""
    with asking():
        plan, sent = study.read(directory), gather.submitted(directory)
        doing = _doing(sent)
        while wait and any(map(slurm.under_way, doing.values())):
            time.sleep(POLL)
            doing = _doing(sent)
        steps = gather.step_results(plan, directory)
    running = [job for job, state in doing.items() if state.startswith(slurm.RUNNING)]
    if as_json:
        click.echo(json.dumps({
            "jobs": [{**entry._asdict(), "state": doing[entry.job]} for entry in sent],
            "steps": [{"step": result.step.name, "nodes": result.step.nodes, "ranks": result.step.ranks,
                       "state": result.state(running), "results": result.rows} for result in steps],
        }, indent=2))  # fmt: skip
        return
    for job in plan.jobs:
        mine = [entry for entry in sent if entry.script == job.script]
        states = ", ".join(f"job {entry.job} {doing[entry.job]}" for entry in mine)
        click.echo(f"{job.script}: {states or 'not submitted'}")
    show(steps, running)


def _doing(sent: Sequence[gather.Submitted]) -> dict[int, str]:
    """Return the state of every job; where Slurm does not tell, that."""
    jobs = [entry.job for entry in sent]
    try:
        return slurm.states(jobs)
    except NoSlurm as error:
        return dict.fromkeys(jobs, f"({error})")
    except JobsError as error:
        return dict.fromkeys(jobs, f"{slurm.UNKNOWN} ({error})")


def show(steps: Sequence[gather.Found], running: Sequence[int]) -> None:
    """Print a table of the steps, where some jobs are running."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, side in (("step", "left"), ("nodes", "right"), ("ranks", "right"), ("", "left")):
        table.add_column(title, justify=side)  # type: ignore[arg-type]
    for result in steps:
        table.add_row(result.step.name, str(result.step.nodes), str(result.step.ranks), result.describe(running))
    console().print(table)


@jobs.command(context_settings=HELP)
@DIRECTORY
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file to write.  [default: in DIRECTORY]")
@click.option("--mixed", is_flag=True, help="Although results are of different commits.")
def collect(directory: Path, output: Path | None, mixed: bool) -> None:
    """Gather what the jobs of DIRECTORY measured: a report as one page, of `tune` one file of tables.

    Stopped steps count with the results that they have; the command names the missing ones.
    """
    with asking():
        assemble.assemble(study.read(directory), directory, output, mixed)


@jobs.command("site", context_settings=HELP)
def site_() -> None:
    """Print what a site's file can have, every key with its meaning and default."""
    click.echo(site.described())


@jobs.command("stage", context_settings=HELP)
@click.argument("target", type=click.Path(path_type=Path))
def stage_(target: Path) -> None:
    """Copy this environment to TARGET, compile the kernels in it, and pack it as TARGET.tar.

    Jobs do so by themselves where the site names a directory `stage`.
    """
    with asking():
        archive = stage.stage(target.absolute())
    click.echo(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB")
