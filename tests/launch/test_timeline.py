"""Timelines of whole programs: `mpicoll run --timeline` and MPICOLL_TIMELINE."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import launcher
import pytest
from support import command
from support.trace_events import check_format

from mpicoll.timeline import read, waits
from mpicoll.timeline.threads import progress

ROUNDING = 0.01  # microseconds, of two times in a file
SOME, MUCH = 1_000, 15_000  # microseconds; the latter is half of what drift of a quarter second makes
PROGRAM = """\
import sys
import numpy as np
from mpi4py import MPI
if "Comm" in sys.argv:
    import mpicoll
    world = mpicoll.Comm(MPI.COMM_WORLD)
else:
    world = MPI.COMM_WORLD
x, y = np.ones(1000), np.empty(1000)
for _ in range(5):
    world.Allreduce(x, y)
half = world.Split(world.rank % 2)
half.Bcast(y)
if "fails" in sys.argv and world.rank == 1:
    sys.exit("rank 1 has no data")
"""


OVERLAP = """\
import time
import numpy as np
from mpi4py import MPI
import mpicoll
comm = mpicoll.Comm(MPI.COMM_WORLD)
x, y = np.ones(30_000), np.empty(30_000)
with comm.using(allreduce="ring"):
    for _ in range(3):
        time.sleep(0.05 * (comm.rank == comm.size - 1))
        request = comm.Iallreduce(x, y)
        time.sleep(0.1)
        request.Wait()
"""


@pytest.fixture
def program(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    return str(script)


def checked(path):
    """Return a timeline after checking its format."""
    check_format(json.loads(path.read_text()))
    return read.read(path)


@pytest.mark.quick
def test_the_program_of_the_page(mpiexec, tmp_path):
    page = Path(__file__).resolve().parents[2] / "docs" / "TIMELINES.md"
    (tmp_path / "step.py").write_text(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)[1])
    path = tmp_path / "run.json"
    done = mpiexec(2, "python", tmp_path / "step.py", env={"MPICOLL_TIMELINE": str(path)})
    assert done.status == 0, done.output
    recorded = checked(path)
    assert len(recorded.calls) == 100 and waits.stragglers(recorded)


@pytest.mark.quick
def test_run_writes_a_timeline_of_an_unmodified_program(mpiexec, program, tmp_path):
    path = tmp_path / "t.json"
    done = mpiexec(3, "python", "-m", "mpicoll", "run", "--timeline", str(path), program)
    assert done.status == 0, done.output
    recorded = checked(path)
    assert recorded.facts["ranks"] == 3 and recorded.facts["unmatched_messages"] == 0
    assert sorted(parts[0].name for parts in recorded.calls.values()) == ["Allreduce"] * 5 + ["Bcast"] * 2
    assert "Allreduce" in command.run("timeline", str(path)).output


def test_training_on_digits(mpiexec, tmp_path):
    """The file has every step by the name of its pattern, and every message from its send to its receive."""
    path = tmp_path / "t.json"
    run = ("python", "-m", "mpicoll", "run", "--timeline", path, "-m", "mpicoll", "train")
    done = mpiexec(3, *run, "data_parallel,zero3", "--steps", 2, "--width", 32, limit=120)
    assert done.status == 0, done.output
    content, recorded = json.loads(path.read_text()), checked(path)
    assert check_format(content) == recorded.facts["messages"] > 50 and recorded.facts["unmatched_messages"] == 0
    steps = [part for part in recorded.program if part.name == "zero3, step 1"]
    assert len(steps) == 3
    of_rank_0 = next(part for part in steps if part.rank == 0)
    inside = [part.name for parts in recorded.calls.values() for part in parts
              if part.rank == 0 and of_rank_0.began <= part.began and part.ended <= of_rank_0.ended]
    assert {"Iallgather", "Ireduce_scatter_block", "Allreduce"} <= set(inside), inside


def early(content):
    """Return the most microseconds by which a message arrived before it was sent, less than 0 if none did."""
    ends = {ph: {e["id"]: e["ts"] for e in content["traceEvents"] if e["ph"] == ph} for ph in ("s", "f")}
    assert len(ends["s"]) > 10
    return max(sent - ends["f"][message] for message, sent in ends["s"].items())


def on_hosts(path, *command_line, env=None):
    """Run a program on three hosts with a rank each; return the content of its timeline."""
    hosts = [sys.executable, "-m", "mpicoll.benchmarks.hosts", "--hosts", "3", "--timeout", "60", *command_line]
    done = subprocess.run(hosts, env=launcher.environment(env or {}), capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert checked(path).facts["unmatched_messages"] == 0
    return json.loads(path.read_text())


@pytest.mark.hosts
def test_ranks_of_several_hosts_are_on_one_clock(program, tmp_path):
    """Rank 0 gathers and writes: hosts need no directory in common. No message arrives before it is sent."""
    path = tmp_path / "t.json"
    content = on_hosts(path, sys.executable, "-m", "mpicoll", "run", "--timeline", str(path), program)
    hosts = [event["args"]["name"] for event in content["traceEvents"] if event["name"] == "process_name"]
    assert hosts == [f"rank {rank} on host{rank}" for rank in range(3)]
    assert early(content) < content["otherData"]["clock_error_us"] + ROUNDING


OWN_CLOCK = """\
n=$(hostname | tr -dc 0-9)  # of host0, host1, host2
export CLOCK_DRIFT=$(echo "0 0.1 -0.1" | cut -d " " -f $((n + 1))) LD_PRELOAD=$0.so
exec unshare --time --monotonic $((n * 1000)) --fork "$@"
"""
FOR_A_SECOND = """\
import time, numpy as np, mpicoll
from mpi4py import MPI
comm = mpicoll.Comm(MPI.COMM_WORLD)
x, y = np.ones(1000), np.empty(1000)
for _ in range(100):
    comm.Allreduce(x, y)
    time.sleep(0.01)
starts = comm.gather(time.monotonic())
assert starts is None or starts[1] - starts[0] > 500 and starts[2] - starts[0] > 1500, starts
"""


@pytest.mark.hosts
@pytest.mark.parametrize("turn", [{}, {"CLOCK_TURN": "0.25"}], ids=["even", "uneven"])
def test_clocks_that_are_apart_and_drift(tmp_path, turn):
    """By a thousand seconds, and by a tenth of the time. The error covers what uneven drift does to messages."""
    script, source = tmp_path / "clock", Path(__file__).resolve().parents[1] / "support" / "clock.c"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", f"{script}.so", source, "-ldl"], check=True, timeout=60)
    script.write_text(OWN_CLOCK)
    (tmp_path / "program.py").write_text(FOR_A_SECOND)
    path = tmp_path / "t.json"
    run = (sys.executable, "-m", "mpicoll", "run", "--timeline", str(path), str(tmp_path / "program.py"))
    content = on_hosts(path, "sh", str(script), *run, env=turn)
    error = content["otherData"]["clock_error_us"]
    assert early(content) < error + ROUNDING
    assert error > SOME if turn else error < MUCH, error  # messages correct a part of uneven drift


def test_the_environment_asks_for_a_timeline(mpiexec, program, tmp_path):
    path = tmp_path / "t.json"
    done = mpiexec(2, "python", program, "Comm", "fails", env={"MPICOLL_TIMELINE": str(path)})
    assert done.status != 0 and "rank 1 has no data" in done.output
    assert len(checked(path).calls) == 7  # of a rank that ended with an error, too


def test_a_file_that_cannot_be_written_is_refused_at_the_start(mpiexec, program, tmp_path):
    path = tmp_path / "nowhere" / "t.json"
    done = mpiexec(2, "python", "-m", "mpicoll", "run", "--timeline", str(path), program)
    assert done.status == 2 and "which cannot be written" in done.output, done.output


@pytest.mark.parametrize("threads", ["0", "1"])
def test_turns_need_the_progress_threads(mpiexec, tmp_path, threads):
    """Without them, only Wait and Test advance a call."""
    (tmp_path / "overlap.py").write_text(OVERLAP)
    path = tmp_path / "run.json"
    env = {"MPICOLL_TIMELINE": str(path), "MPICOLL_PROGRESS": threads}
    done = mpiexec(2, "python", tmp_path / "overlap.py", env=env)
    assert done.status == 0, done.output
    recorded = checked(path)
    assert len(recorded.calls) == 3 and bool(recorded.turns) == bool(progress(recorded)) == (threads == "1")
    assert ("turns of threads" in command.good("timeline", path)) == (threads == "1")
