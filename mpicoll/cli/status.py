"""`mpicoll status`: where the ranks of a run are, and which of them the others wait for."""

from __future__ import annotations

import json
import re
import socket
import time
from pathlib import Path

import click

from .group import asking


@click.command(short_help="Where the ranks of a run are, beside it or after it.")
@click.argument("directories", nargs=-1, metavar="[DIRECTORY]...")
@click.option("--job", help="The run of this job's number or launcher's process; else the last one on this host.")
@click.option("--wait", default=1.0, show_default=True, help="Seconds between two looks, which show what moves.")
@click.option("--history", "calls", type=int, is_flag=False, flag_value=10, default=0, metavar="[N]",
              help="Print the last N calls of each rank too, 10 without N.")  # fmt: skip
@click.option("--torch", "folder", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Write the last calls as torch's flight recorder does, for torchfrtrace FOLDER.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON, for supervisors.")
def status(
    directories: tuple[str, ...], job: str | None, wait: float, calls: int, folder: Path | None, as_json: bool
) -> None:
    """Say where the ranks of a run are: moving, stalled, in different calls, or gone.

    \b
        mpicoll status                      the last run of yours on this host, while it runs or after it
        mpicoll status --job 1234           of a job, on one of its nodes
        mpicoll status DIRECTORY...         records that MPICOLL_RECORD=DIRECTORY named, or that were copied from hosts

    Every process that uses mpicoll keeps a record in memory, in a file of the host's /dev/shm that its user and root
    alone can read, and removes it as it ends. It says how many calls the rank has begun on each communicator, which are
    in flight, which line its program is at, and what its last 1,024 calls were; a rank that is killed or stuck leaves
    it as it was. MPICOLL_RECORD=0 turns it off.

    Exit status: 0 if calls move or none is in flight, 1 if they have stalled, 2 if the ranks made different calls, 3 if
    a rank is gone.
    """
    import mpi4py

    mpi4py.rc.initialize = False  # only modules that import it are needed
    from ..diagnostics import flight_reader
    from ..diagnostics.flight import bases
    from ..doctor import history, torch_dump, verdict

    with asking():
        try:
            places = [Path(name) for name in directories]
            places = places or [_run(bases() if job else bases()[:1], job)]
            before = flight_reader.read(places)
            time.sleep(wait)
            report = verdict.judge(before, flight_reader.read(places))
            histories = {process.rank: process.history for process in report.processes}
            if folder is not None:
                torch_dump.write(histories, folder)
        except OSError as error:
            raise ValueError(f"{error.filename} cannot be used: {error.strerror}") from None
    if as_json:
        ranks = [
            {"rank": p.rank, "host": p.host, "process": p.pid, "is_alive": p.is_alive, "ended": p.ended}
            | {"location": p.location, "seconds_ago": round(p.age, 3), "calls": p.calls}
            | ({"history": [row._asdict() for row in p.history[-calls:]]} if calls > 0 else {})
            for p in report.processes
        ]
        content = {"verdict": report.verdict.name.lower(), "status": int(report.verdict), "reasons": report.lines}
        click.echo(json.dumps(content | {"ranks": ranks}, indent=1))
    else:
        where = f"{socket.gethostname()}, {', '.join(map(str, places))}"
        click.echo(f"{where}: {report.verdict.name.lower()}: {report.lines[0]}")
        for line in report.lines[1:]:
            click.echo(f"  {line}")
        if calls > 0:
            click.echo("\n".join(history.table(histories, calls)))
    click.get_current_context().exit(int(report.verdict))


def _run(directories: list[Path], job: str | None) -> Path:
    """Return the run of a job, or the last one, in these directories. Raises ValueError if there is none."""
    from ..diagnostics import flight_reader

    runs = flight_reader.runs(directories)
    is_wanted = re.compile(f"(parent-)?{re.escape(job or '')}(-.*)?").fullmatch
    chosen = [run for run in runs if job is None or is_wanted(run.name)]
    if not chosen:
        others = f"; there are {', '.join(run.name for run in runs)}" if runs else ""
        whose = f"{job} has records that you may read" if job else "of yours has records"
        where = f", in {', '.join(map(str, directories))}" if directories else ": MPICOLL_RECORD turns them off"
        raise ValueError(f"no run {whose} on this host{where}{others}")
    return chosen[0]
