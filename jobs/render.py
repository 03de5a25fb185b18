"""Render a study to a directory with job scripts."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jinja2

import mpicoll
from mpicoll.benchmarks.results.environment import ROOT, commit, now

from .errors import JobsError
from .kinds import KINDS, Asked
from .site import Site
from .study import FILE, NOTICE, RESULTS, Job, Study, jobs

TEMPLATES = Path(__file__).resolve().parent / "templates"
BIND = {"cores": "core", "sockets": "socket", "threads": "hwthread"}  # as mpirun says it


def study(kind: str, asked: Asked, site: Site, nodes: Sequence[int], allocation: str) -> Study:
    """Return the study of such a kind. Raises ValueError for what its steps' commands would refuse."""
    planned_jobs = jobs(
        kind, lambda n: KINDS[kind].steps(asked, n, n * site.ranks_per_node), nodes, allocation, bool(site.stage)
    )
    facts = {"time": now(), "mpicoll": mpicoll.__version__, "commit": commit(), "modified": modified()}
    return Study(kind, planned_jobs, site.model_dump(by_alias=True), facts)


def modified(root: Path = ROOT) -> bool | None:
    """Return whether a checkout has changes that no commit holds; None where that is not known."""
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return bool(done.stdout.strip()) if done.returncode == 0 else None


def script(study: Study, job: Job, site: Site) -> str:
    """Return the text of a job's script."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True,
                                     lstrip_blocks=True, keep_trailing_newline=True,
                                     comment_start_string="{##", comment_end_string="##}")  # ${#x[@]} is bash's
    environment.filters |= {"quoted": shlex.quote, "words": shlex.join}
    template = environment.get_template(f"{study.kind}.sbatch.j2")
    python = Path(os.path.expandvars(site.python or sys.executable)).expanduser().absolute()
    return template.render(study=study, job=job, site=site, notice=NOTICE, python=str(python),
                           mpirun_options=shlex.join(mpirun(site)))


def mpirun(site: Site) -> list[str]:
    """Return what each MPI's own mpirun calls the ranks of a node and their binding."""
    ranks, cores, bind = site.ranks_per_node, site.cpus_per_rank, BIND.get(site.mpi.bind, site.mpi.bind)
    if site.mpi.kind == "openmpi":
        return ["--map-by", f"ppr:{ranks}:node{f':PE={cores}' if cores > 1 else ''}", "--bind-to", bind]
    if site.mpi.kind == "mpich":
        return ["-ppn", str(ranks), "-bind-to", f"{bind}:{cores}" if bind == "core" and cores > 1 else bind]
    return ["-ppn", str(ranks), "-genv", "I_MPI_PIN_DOMAIN" if bind != "none" else "I_MPI_PIN",
            f"{cores}:compact" if bind != "none" else "0"]  # fmt: skip


def write(study: Study, site: Site, directory: Path) -> None:
    """Make the directory, with scripts. Raises JobsError where there is a study already."""
    if (directory / FILE).exists():
        raise JobsError(f"{directory} holds a study already; name another directory with --output")
    try:
        (directory / RESULTS).mkdir(parents=True, exist_ok=True)
        for job in study.jobs:
            path = directory / job.script
            path.write_text(script(study, job, site), encoding="utf-8")
            path.chmod(0o755)
        study.write(directory)
    except OSError as error:
        raise JobsError(f"cannot write {error.filename}: {error.strerror}") from None
