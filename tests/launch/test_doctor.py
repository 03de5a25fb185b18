"""`mpicoll info --check` as launchers start it: bound and crowded ranks, worlds of one, a rank that does not come."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

BIND = """\
import os, sys
from mpicoll.cli import rank
cpus = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cpus[rank() % min(int(sys.argv[1]), len(cpus))]})
os.execv(sys.executable, [sys.executable, "-m", "mpicoll", "info", "--check", *sys.argv[2:]])
"""
LATE = """\
import time
from mpi4py import MPI
from mpicoll import doctor
if MPI.COMM_WORLD.rank == 1:
    time.sleep(60)
doctor.examine(patience=2)
"""
AS_BOUND = {"I_MPI_PIN": "0", "OMP_NUM_THREADS": "1"}  # Intel MPI's library binds ranks itself
TASK = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
ENOUGH = len(os.sched_getaffinity(0)) > 1


@pytest.fixture
def bound(mpiexec, tmp_path):
    """Return a function that runs the check on 2 ranks, each bound to one of `cpus` CPUs."""
    script = tmp_path / "bind.py"
    script.write_text(BIND)
    return lambda cpus, *words, **env: mpiexec(2, "python", script, cpus, *words, env={**AS_BOUND, **env})


def test_ranks_on_cpus_of_their_own(bound):
    done = bound(2)
    assert done.status == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].startswith("2 ranks on 1 host, ")
    assert "wrong" not in done.output.replace("nothing wrong", "") and "not bound" not in done.output
    assert "could not" not in done.output and ("2 ranks and 1 CPU " in done.output) == (not ENOUGH)


def test_ranks_that_share_a_cpu_and_a_table_that_is_not_there(bound, tmp_path):
    done = bound(1, "--json", MPICOLL_TUNING=str(tmp_path / "none"))
    assert done.status == 1, done.output
    report = json.loads(done.output[done.output.index("{\n") : done.output.rindex("\n}") + 2])
    cpu = min(os.sched_getaffinity(0))
    expected = f"share CPU {cpu}, and " if ENOUGH else "has 2 ranks and 1 CPU "
    (crowd,) = (finding for finding in report["findings"] if expected in finding["what"])
    (table,) = (finding for finding in report["findings"] if finding["seen"].startswith("cannot read"))
    assert crowd["severity"] == ("wrong" if ENOUGH else "warning") and table["severity"] == "wrong"


def test_a_table_from_elsewhere(bound, tmp_path):
    table = tmp_path / "table.json"
    content = {"mpi": "MPICH 1.0.0", "nodes": ["0-1"], "rules": {}}
    table.write_text(json.dumps({"schema": "mpicoll-tuning-1", "tables": [content]}))
    done = bound(2, MPICOLL_TUNING=str(table))
    assert done.status == 0, done.output
    assert f"  seen: {table} is not for " in done.output and "it is for MPICH 1.0.0, 2 ranks on one node" in done.output


@pytest.mark.parametrize("task", [0, 1])
def test_a_task_that_is_a_world_of_its_own(task):
    """Check the report of each task where srun does not fit this MPI; one of them prints it."""
    done = subprocess.run(
        [sys.executable, "-m", "mpicoll", "info", "--check"],
        capture_output=True, text=True, timeout=50, env=os.environ | TASK | {"SLURM_PROCID": str(task)},
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert ("wrong: srun started 2 processes, and each is rank 0 of 1" in done.stdout) == (task == 0)
    assert task == 0 or not done.stdout


def test_a_rank_that_does_not_come(mpiexec, tmp_path):
    (tmp_path / "late.py").write_text(LATE)
    done = mpiexec(2, "python", tmp_path / "late.py")
    assert done.status not in (0, None), done.output
    assert "mpicoll: rank 0: not all ranks have answered for 2 s" in done.output
