"""Runs that stand still, are killed or abort: what they print, and that they end."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from textwrap import dedent

import launcher
import pytest

HEAD = """\
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
import mpicoll
from mpicoll import settings
world = MPI.COMM_WORLD
rank, p, engine = world.rank, world.size, sys.argv[1]
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())     # at once, so that no rank tears it apart
"""
ENGINES = ("mpi4py", "compiled")


@pytest.fixture
def run(mpiexec, tmp_path):
    """Runs a script on some ranks."""

    def run(code: str, *arguments: str, ranks: int = 3, **variables: str):
        script = tmp_path / "script.py"
        script.write_text(HEAD + dedent(code))
        return mpiexec(ranks, "python", script, *arguments, env=variables)

    return run


LATE = """
comm = mpicoll.Comm(world)
with comm.using(engine=engine, allreduce="ring"):
    comm.Barrier()
    if rank == 0:
        time.sleep(15)
    comm.{call}
say("end of", rank)
"""
CALLS = {
    "blocking": "Allreduce(np.ones(30), np.zeros(30))",
    "waited for": "Iallreduce(np.ones(30), np.zeros(30)).Wait()",
    "by the progress thread": "Iallreduce(np.ones(30), np.zeros(30)); time.sleep(15)",
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("call", CALLS)
def test_a_rank_that_never_joins(run, engine, call):
    """Every rank that waits says in what, and the run ends."""
    started = time.monotonic()
    done = run(LATE.format(call=CALLS[call]), engine, MPICOLL_TIMEOUT="2")
    assert done.status not in (0, None), done.output
    assert time.monotonic() - started < 14
    assert "MPICOLL_TIMEOUT=2 is over, aborting" in done.output
    report = f"allreduce (call 2, ring, {engine} engine) has not moved for 2 s"
    assert "rank 0: allreduce" not in done.output
    for r in (1, 2):
        assert f"mpicoll: rank {r}: {report}" in done.output, done.output
        (step,) = re.findall(rf"mpicoll: rank {r}:   (.*)", done.output)
        assert re.match(rf"step \d of chunk 0, strand 0, waits .*rank.* {r - 1}", step), step
    assert "MPICOLL_CHECK=1" in done.output and "end of" not in done.output


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_is_late_is_only_told_of(run, engine):
    """Without MPICOLL_TIMEOUT nothing is aborted."""
    done = run("""
        settings.REPORT_AFTER = 1.0
        comm = mpicoll.Comm(world)
        got = np.zeros(30)
        with comm.using(engine=engine, allreduce="ring", chunk_bytes=16):
            comm.Barrier()
            if rank == 0:
                time.sleep(3)
            comm.Allreduce(np.ones(30), got)
        assert (got == p).all()
        say("end of", rank)
    """, engine)
    assert done.status == 0, done.output
    assert all(f"end of {r}" in done.output for r in range(3))
    for r in (1, 2):
        said = f"mpicoll: rank {r}: allreduce (call 2, ring, {engine} engine) has not moved for 1 s"
        assert done.output.count(said) == 1, done.output
    assert "aborting" not in done.output


def test_a_call_that_moves_is_not_told_of(run):
    """Longer than the time, but never still for so long."""
    done = run("""
        settings.REPORT_AFTER = 1.0
        comm = mpicoll.Comm(world)
        with comm.using(engine=engine):
            request = comm.Iallreduce(np.ones(3), np.zeros(3))
            request.Wait()
            for _ in range(4):
                time.sleep(0.5)
                comm.Allreduce(np.ones(3), np.zeros(3))
        say("end of", rank)
    """, "compiled")
    assert done.status == 0 and "has not moved" not in done.output, done.output


def test_check_mode_says_that_it_waits_for_signatures(run):
    done = run(LATE.format(call=CALLS["blocking"]), "mpi4py", MPICOLL_TIMEOUT="2", MPICOLL_CHECK="1")
    assert done.status not in (0, None), done.output
    assert "waits for the signatures of all ranks" in done.output


def test_reduce_scatter_without_counts_is_told_of(run):
    """The counts are asked for before the call proper."""
    call = "Reduce_scatter(np.ones(2 * p), np.zeros(2))"
    done = run(LATE.format(call=call), "mpi4py", MPICOLL_TIMEOUT="2")
    assert done.status not in (0, None), done.output
    assert "has not moved" in done.output and "aborting" in done.output, done.output


KILLED = """
comm = mpicoll.Comm(world)
say("pid", os.getpid())
world.Barrier()
time.sleep(0.3)
with comm.using(engine=engine, allreduce="ring", chunk_bytes=4096):
    if rank == 1:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, 1.0)
    while True:
        comm.Allreduce(np.ones(1 << 16), np.zeros(1 << 16))
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_is_killed_ends_the_run(tmp_path, engine):
    """In the middle of a collective; the others do not stay behind, and nobody has to end them."""
    script = tmp_path / "script.py"
    script.write_text(HEAD + KILLED)
    command = launcher.command(3, ["python", str(script), engine])
    done = subprocess.run(command, env=launcher.environment({"MPICOLL_TIMEOUT": "5"}), timeout=40, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode != 0, done.stdout
    pids = [int(pid) for pid in re.findall(r"pid (\d+)", done.stdout)]
    assert len(pids) == 3, done.stdout
    until = time.monotonic() + 5
    while any(map(is_python, pids)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not [pid for pid in pids if is_python(pid)]


def is_python(pid: int) -> bool:
    """Whether a process of that number lives and is one of ours."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return status != "Z" and b"script.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize("engine", ENGINES)
def test_an_exception_in_a_user_operator_ends_the_run_with_its_words(run, engine):
    """mpi4py prints it and aborts, since no exception can pass through MPI; with ours it is the same."""
    done = run("""
        def refuse(a, b, datatype):
            raise RuntimeError("words of the operator")
        comm = mpicoll.Comm(world)
        op = MPI.Op.Create(refuse, True)
        with comm.using(engine=engine, allreduce="ring"):
            comm.Allreduce(np.ones(5), np.zeros(5), op)
    """, engine, ranks=2)
    assert done.status not in (0, None), done.output
    assert "words of the operator" in done.output


@pytest.mark.parametrize("engine", ENGINES)
def test_a_program_that_ends_with_communicators_alive(run, engine):
    """Comms that nobody freed and a thread that has run do not disturb MPI_Finalize."""
    done = run("""
        kept = [mpicoll.Comm(world), mpicoll.Comm(world).Dup(), mpicoll.Comm(world).Split(rank % 2)]
        for comm in kept:
            with comm.using(engine=engine):
                comm.Iallreduce(np.ones(5), np.zeros(5)).Wait()
        say("end of", rank)
    """, engine)
    assert done.status == 0, done.output
    assert all(f"end of {r}" in done.output for r in range(3)) and "Traceback" not in done.output
