"""`mpicoll status` beside runs that hang, and after a rank was killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from itertools import pairwise

import faults
import pytest

PROGRAM = """\
import numpy as np
from mpi4py import MPI
import mpicoll

comm = mpicoll.Comm(MPI.COMM_WORLD)
x, y = np.ones(10), np.empty(10)
with comm.using(allreduce="ring"):
    while True:
        comm.Allreduce(x, y)
"""
SAMPLE = (
    "sleeps", "sleeps with Python's lock", "stopped", "killed", "raises", "calls another collective", "another root",
    "another operator", "another count", "sleeps, others in a pickled collective", "receives",
    "communicators in another order", "a thread sleeps", "threads in another order",
    "a persistent call is not started",
)  # fmt: skip


QUICK = pytest.param("sleeps", marks=pytest.mark.quick)


@pytest.mark.parametrize("name", [QUICK, *SAMPLE[1:]])
def test_a_fault_is_named_and_its_rank(tmp_path, name):
    seconds, last = faults.run(name, 2 + SAMPLE.index(name), tmp_path)
    assert seconds < faults.SECONDS, last


def test_a_report_that_blames_another_rank_is_not_right():
    fault, line = faults.FAULTS["sleeps"], "rank 1 has not made this call: now at faults.py, line 9, in sleeping (…)"
    content = {"verdict": "stalled", "reasons": ["nothing moves", line]}
    assert faults.is_right(fault, 1, content) and not faults.is_right(fault, 2, content)
    assert not faults.is_right(fault, 1, content | {"verdict": "moving"})
    assert not faults.is_right(fault, 1, {**content, "reasons": [line, "rank 2 has not made this call: now at b.py"]})


def test_calls_that_no_interpreter_was_at(tmp_path):
    """A rank that is killed within compiled code leaves the call that it was in, the newest last."""
    (tmp_path / "program.py").write_text(PROGRAM)
    records = tmp_path / "records"
    process = faults.start([sys.executable, str(tmp_path / "program.py")], records)
    try:
        _check_histories(records)
    finally:
        faults.end(process, records)


def _check_histories(records):
    deadline = time.monotonic() + 30
    while True:
        content = faults.report(records, "--history", "2000")
        calls = [rank["history"][-1]["call"] for rank in content.get("ranks", [])]
        if len(calls) == faults.RANKS and min(calls) > 2000:
            break
        assert time.monotonic() < deadline, content
    os.kill(content["ranks"][1]["process"], signal.SIGKILL)
    while content["verdict"] != "dead":
        content = faults.report(records, "--history", "2000")
        assert time.monotonic() < deadline, content
    assert content["status"] == 3
    for rank in content["ranks"]:
        numbers = [call["call"] for call in rank["history"]]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) and len(numbers) > 1000
        assert {call["state"] for call in rank["history"][:-1]} == {"done"}
        assert {call["location"] for call in rank["history"]} == {"program.py, line 9, in <module>"}
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
