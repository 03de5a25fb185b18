"""`mpicoll status` beside runs that hang, and after a rank was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise

import launcher
import pytest

from mpicoll.doctor import flight

PROGRAM = """\
import ctypes, os, signal, sys, time
import numpy as np
from mpi4py import MPI
import mpicoll

comm = mpicoll.Comm(MPI.COMM_WORLD)
x, y = np.ones(10), np.empty(10)
for _ in range(7):
    comm.Allreduce(x, y)
time.sleep(0.5)                             # so that the records are written


def differ(how):
    if how == "sleeps":
        time.sleep(60)
    if how == "keeps the lock":
        ctypes.PyDLL(None).sleep(60)
    if how == "is stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "is killed":
        time.sleep(0.5)                     # the launcher kills the others then: they are in their call by now
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "calls another":
        comm.Bcast(x, root=2)               # rank 2 sends to rank 0 alone meanwhile
    if how == "receives":
        comm.recv(source=0)
    if how == "raises":
        raise ValueError("no data")
    if how == "another root":
        comm.Bcast(x, root=1)
    if how == "another operator":
        comm.Allreduce(x, y, MPI.MAX)


with comm.using(allreduce="ring", bcast="linear"):
    if comm.rank == 1:
        differ(sys.argv[1])
    elif sys.argv[1] == "another root":
        comm.Bcast(x, root=0)
    elif sys.argv[1] == "another operator":
        comm.Allreduce(x, y)
    while True:
        comm.Allreduce(x, y)
        if sys.argv[1] in ("moves", "another root", "another operator"):
            time.sleep(0.1)
"""
FIRST = "call 8 on ranks 0-2 is the first in which ranks differ: "
NOT_MADE = "rank 1 has not made this call: "
HOW = {
    "sleeps": ("stalled", NOT_MADE + "now at program.py, line 15, in differ"),
    "keeps the lock": ("stalled", NOT_MADE + "now at program.py, line "),
    "is stopped": ("stalled", NOT_MADE + "now at program.py, line "),
    "is killed": ("dead", NOT_MADE + "is gone: process "),
    "calls another": ("mismatch", "rank 1 has made another call here"),
    "receives": ("stalled", NOT_MADE + "now at program.py, line 26, in differ"),
    "raises": ("stalled", NOT_MADE + "ended with ValueError: no data"),
    "moves": ("moving", "calls begin and end"),
    "another root": ("moving", FIRST),
    "another operator": ("moving", FIRST),
}
REASONS = {
    "another root": f"{FIRST}ranks 0, 2 made Bcast of 80 bytes, root 0, by linear, at program.py, line 39, "
    "in <module>; rank 1 made Bcast of 80 bytes, root 1, by linear, at program.py, line 30, in differ",
    "another operator": f"{FIRST}ranks 0, 2 made Allreduce of 80 bytes, SUM, by ring, at program.py, line 41, "
    "in <module>; rank 1 made Allreduce of 80 bytes, MAX, by ring, at program.py, line 32, in differ",
    "calls another": f"{FIRST}ranks 0, 2 made Allreduce of 80 bytes, SUM, by ring, at program.py, line 43, "
    "in <module>; rank 1 made Bcast of 80 bytes, root 2, by linear, at program.py, line 24, in differ",
    "is killed": "; last in Allreduce (call 7 on ranks 0-2, done), at program.py, line 9, in <module>",
}


@pytest.fixture
def started(tmp_path):
    """Starts the program on three ranks, with records in a directory of the test."""
    (tmp_path / "program.py").write_text(PROGRAM)
    processes = []

    def start(how):
        command = launcher.command(3, ["python", str(tmp_path / "program.py"), how])
        environment = launcher.environment({"MPICOLL_RECORD": str(tmp_path / "records")})
        quiet = subprocess.DEVNULL
        processes.append(subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet, start_new_session=True))

    yield start
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with suppress(ValueError, OSError):  # mpiexec may have put the ranks into sessions of their own
        for rank in flight.read((tmp_path / "records").iterdir()):
            if rank.is_alive:
                os.kill(rank.pid, signal.SIGKILL)


def status(tmp_path):
    """Return the command's output and exit status."""
    directories = list((tmp_path / "records").glob("*")) if (tmp_path / "records").exists() else []
    command = [sys.executable, "-m", "mpicoll", "status", "--json", "--wait", "0.7"]
    command += [*map(str, directories), "--history", "2000"]
    done = subprocess.run(command, env=launcher.environment({}), capture_output=True, text=True, timeout=30)
    content = json.loads(done.stdout) if directories and done.stdout.startswith("{") else {"verdict": "", "reasons": []}
    return done.returncode, content


@pytest.mark.parametrize("how", [pytest.param(how, marks=pytest.mark.quick) if how == "sleeps" else how for how in HOW])
def test_status_names_the_rank(started, tmp_path, how):
    started(how)
    verdict, words = HOW[how]
    deadline = time.monotonic() + 30
    while True:
        code, content = status(tmp_path)
        if content["verdict"] == verdict and any(line.startswith(words) for line in content["reasons"]):
            break
        assert time.monotonic() < deadline, content
    assert code == ["moving", "stalled", "mismatch", "dead"].index(verdict)
    assert verdict == "dead" or {rank["is_alive"] for rank in content["ranks"]} == {True}
    assert len(content["ranks"]) == 3
    assert any(REASONS.get(how, "") in line for line in content["reasons"]), content
    calls = {rank["rank"]: [call["method"] for call in rank["history"]] for rank in content["ranks"]}
    assert verdict == "moving" or calls[0] == calls[2] == ["Allreduce"] * 8
    assert verdict == "moving" or calls[1] == ["Allreduce"] * 7 + ["Bcast"] * (how == "calls another")
    states = {call["state"] for rank in content["ranks"] for call in rank["history"][:7]}
    assert states == {"done"} or verdict == "moving"


def test_calls_that_no_interpreter_was_at(started, tmp_path):
    """A rank that is killed within compiled code leaves the call that it was in, the newest last."""
    started("moves fast")
    deadline = time.monotonic() + 30
    while True:
        code, content = status(tmp_path)
        calls = [rank["history"][-1]["call"] for rank in content.get("ranks", [])]
        if len(calls) == 3 and min(calls) > 2000:
            break
        assert time.monotonic() < deadline, content
    os.kill(content["ranks"][1]["process"], signal.SIGKILL)
    while content["verdict"] != "dead":
        code, content = status(tmp_path)
        assert time.monotonic() < deadline, content
    assert code == 3
    for rank in content["ranks"]:
        numbers = [call["call"] for call in rank["history"]]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) and len(numbers) > 1000
        assert {call["state"] for call in rank["history"][:-1]} == {"done"}
        assert {call["location"] for call in rank["history"]} == {"program.py, line 43, in <module>"}
        assert all(earlier["began"] < later["began"] for earlier, later in pairwise(rank["history"]))
    last = [rank["history"][-1]["call"] for rank in content["ranks"]]
    assert max(last) - min(last) <= 1  # a ring moves on together
    assert not any("differ" in line for line in content["reasons"])


def test_a_run_that_ends_leaves_no_record(mpiexec, tmp_path):
    code = "import mpicoll; from mpi4py import MPI; mpicoll.Comm(MPI.COMM_WORLD).Barrier()"
    done = mpiexec(3, "python", "-c", code, env={"MPICOLL_RECORD": str(tmp_path / "records")})
    assert done.status == 0 and not list((tmp_path / "records").iterdir()), done.output


def test_without_records_nothing_is_noted(mpiexec):
    code = (
        "import mpicoll, numpy as np; from mpi4py import MPI; from mpicoll.diagnostics.flight import RECORD\n"
        "from mpicoll.fastpath import context as field\n"
        "comm = mpicoll.Comm(MPI.COMM_WORLD); x, y = np.ones(4), np.empty(4)\n"
        "for _ in range(9): comm.Allreduce(x, y); comm.Iallreduce(x, y).Wait()\n"
        "request = comm.Allreduce_init(x, y); request.Start(); request.Wait()\n"
        "words = comm._state.fast_path.context[[field.HISTORY, field.LAST_ROW, field.UNKNOWN_SITE]].tolist()\n"
        "print(comm.gather((y.tolist()[0], words, RECORD.memory, RECORD.history.ids)) or '', end='')\n"
    )
    done = mpiexec(2, "python", "-c", code, env={"MPICOLL_RECORD": "0"})
    assert done.output == "[(2.0, [0, 0, 0], None, {}), (2.0, [0, 0, 0], None, {})]", done.output
