"""`mpicoll tune` and `calibrate` under mpiexec: they write what the next program goes by."""

from __future__ import annotations

import json
import re

PROGRAM = """\
import os
import numpy as np
from mpi4py import MPI
import mpicoll
comm = mpicoll.Comm(MPI.COMM_WORLD)
x, y = np.ones(512), np.zeros(512)
comm.Allreduce(x, y)
assert (y == comm.size).all()
os.write(1, f"{comm.explain('allreduce', 4096).measured}\\n".encode())     # at once, so that no rank tears it apart
"""
FEW = ("--collectives", "allreduce,barrier", "--sizes", "8,4K", "--seconds", "2")


def test_a_program_goes_by_what_was_measured(mpiexec, tmp_path):
    table, script = tmp_path / "t.json", tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = mpiexec(2, "mpicoll", "tune", *FEW, "-o", table)
    assert done.status == 0, done.output
    assert f"MPICOLL_TUNING={table}" in " ".join(done.output.split())
    output = " ".join(done.output.split())
    left_out, of = map(int, re.search(r"(\d+) of (\d+) candidates were left out", output).groups())
    assert 3 * left_out > of > 30        # on two ranks many send the same messages as another
    content = json.loads(table.read_text())
    (tuned,) = content["tables"]
    assert set(tuned["rules"]) == {"allreduce", "barrier"} and tuned["nodes"] == ["0-1"]
    tuned["rules"]["allreduce"][:] = [{"from_bytes": 0, "algorithm": "tree", "at_bytes": 8, "us": 1.5, "native_us": 2}]
    table.write_text(json.dumps(content))       # it may be edited
    done = mpiexec(2, "python", script, env={"MPICOLL_TUNING": str(table), "MPICOLL_LOG": "info"})
    assert (done.status, done.output.count("True\n")) == (0, 2), done.output
    (report,) = (line for line in done.output.splitlines() if line not in ("True", ""))
    assert report.startswith("mpicoll: call 1: blocking allreduce of 4096 bytes on 2 ranks: tree on the "), report
    assert report.endswith(": measured: 8 bytes took 1.5 µs, native's 2")
    done = mpiexec(3, "python", script, env={"MPICOLL_TUNING": str(table)})
    assert (done.status, done.output.count("False\n")) == (0, 3), done.output
    assert done.output.count("run mpicoll tune here") == 1, done.output


def test_all_candidates_may_be_measured(mpiexec, tmp_path):
    done = mpiexec(2, "mpicoll", "tune", "--collectives", "barrier", "--seconds", "1", "--all", "-o", tmp_path / "t")
    assert done.status == 0 and "all 5 candidates were measured" in done.output, done.output


def test_errors_are_one_line_before_anything_is_measured(mpiexec, tmp_path):
    table = tmp_path / "t.json"
    table.write_text('{"schema": "mpicoll-tuning-1"}')
    done = mpiexec(2, "mpicoll", "tune", *FEW, "-o", table)
    (message,) = done.own_lines
    assert done.status == 2 and message.startswith("mpicoll tune: ") and "'tables' is a required property" in message
    assert table.read_text() == '{"schema": "mpicoll-tuning-1"}'
    done = mpiexec(2, "mpicoll", "tune", "--collectives", "gatherv")
    assert done.status == 2 and "only their own counts" in done.own_lines[0]
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = mpiexec(2, "python", script, env={"MPICOLL_TUNING": str(table)})
    assert done.status not in (0, None) and "TuningError" in done.output, done.output


def test_a_program_goes_by_the_network_that_was_measured(mpiexec, tmp_path):
    described, script = tmp_path / "mine.json", tmp_path / "program.py"
    done = mpiexec(3, "mpicoll", "calibrate", "--seconds", "1", "-o", described)
    assert done.status == 0 and f"MPICOLL_NETWORK={described}" in "".join(done.output.split("\n")), done.output
    content = json.loads(described.read_text())
    assert content["source"] == "mpicoll calibrate, 3 ranks on 1 nodes; measured: node"
    script.write_text(PROGRAM.replace(".measured}", ".why}"))
    done = mpiexec(3, "python", script, env={"MPICOLL_NETWORK": str(described)})
    assert (done.status, done.output.count("the least time by the model of mine")) == (0, 3), done.output


def test_one_rank_has_no_network(mpiexec, tmp_path):
    done = mpiexec(1, "mpicoll", "calibrate", "-o", tmp_path / "n.json")
    assert done.status == 2 and "one rank has no network" in done.output and not list(tmp_path.iterdir())


LEARNS = """\
import os
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
x, y = np.ones(512), np.zeros(512)
for _ in range(50):
    comm.Allreduce(x, y)
assert (y == comm.size).all()
if comm.rank == 0:
    os.write(1, f"{comm.explain('allreduce', 4096).why}\\n".encode())
"""


def test_a_program_that_knows_nothing_learns_and_the_next_begins_with_it(mpiexec, tmp_path):
    """It is killed at its end: what was learned was written before."""
    table, script = tmp_path / "t.json", tmp_path / "program.py"
    script.write_text(f"{LEARNS}    os.kill(os.getpid(), 9)\n")
    done = mpiexec(3, "mpicoll", "run", script, env={"MPICOLL_TUNING": str(table)})
    assert done.status != 0 and "cannot read" in done.output, done.output    # what is learned may be absent, no more
    done = mpiexec(3, "mpicoll", "run", "--learn", script, env={"MPICOLL_TUNING": str(table)})
    assert done.status != 0 and "learned: calls of 4096 to 8191 bytes took" in done.output, done.output
    script.write_text(LEARNS)
    done = mpiexec(3, "mpicoll", "run", script, env={"MPICOLL_TUNING": str(table)})
    assert done.status == 0 and "as the tuning table says" in done.output, done.output
    done = mpiexec(2, "mpicoll", "run", "--using", "learn=any", "--summary", script)
    assert done.status == 0 and "native" in done.output and "learned:" in done.output, done.output
    done = mpiexec(2, "mpicoll", "run", "--using", "learn=much", script)
    assert done.status == 2 and "learn is 'much'; it must be one of bits, any, no" in done.output, done.output


def test_a_program_that_sets_nothing_goes_by_the_network_that_it_finds(mpiexec, tmp_path):
    script, env = tmp_path / "program.py", {"MPICOLL_NETWORK": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    script.write_text(PROGRAM.replace(".measured}", ".why}"))
    for _ in range(2):
        done = mpiexec(3, "python", script, env=env)
        assert done.status == 0, done.output
        assert len(set(done.output.split("\n")) - {""}) == 1, done.output    # the same on every rank
    assert len(list((tmp_path / "cache" / "mpicoll" / "networks").iterdir())) == 1
    done = mpiexec(2, "mpicoll", "info", env=env)
    assert done.status == 0 and "a model of the network as measured" in done.output, done.output
    done = mpiexec(2, "mpicoll", "info", env={"MPICOLL_NETWORK": "none"})
    assert done.status == 0 and "auto     fixed rules" in done.output, done.output
