"""Open MPI with fault tolerance: ranks are killed in collectives, and the others go on. `make test-survive` has all."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import launcher
import pytest

TESTS = Path(__file__).resolve().parents[1]
PROGRAMS = re.findall(r"```python\n(.*?)```", (TESTS.parent / "docs" / "SURVIVING.md").read_text(), re.DOTALL)
pytestmark = pytest.mark.skipif(launcher.flavour() != "openmpi", reason="group: needs Open MPI")
# Ranks are killed as KILLS says: {rank: (step, "before" or "after" its call)} or {rank: ("restore",)}.
FAULTS = """
import os, signal, sys
import numpy as np
from mpi4py import MPI
import mpicoll

world, kills, told, done = MPI.COMM_WORLD, KILLS, [], []

def die_at(*moment):
    if kills.get(world.rank) == moment:
        os.kill(os.getpid(), signal.SIGKILL)

def restore(comm, failed):
    told.append(failed)
    die_at("restore")
    comm.Barrier()

@mpicoll.resilient(world, restore)
def step(comm, number):
    die_at(number, "before")
    total = np.zeros(20_000)
    comm.Allreduce(np.ones(20_000), total)
    assert (total == comm.size).all()
    die_at(number, "after")
    return comm.size

for number in range(8):
    done.append(step(number))
print(world.rank, done, told, flush=True)
"""
ERRORS = """
import os, sys
from mpi4py import MPI
import mpicoll

world = MPI.COMM_WORLD
asked = []

@mpicoll.resilient(world, lambda comm, failed: asked.append(failed))
def step(comm, error):
    comm.Barrier()
    if error is not None and comm.rank == 1:
        raise error
    MPI.Request.Waitall([comm.Ibarrier(), comm.Ibarrier()])
    return comm.size

for error in (None, KeyError("of the program"), None, SystemExit(3), KeyboardInterrupt(), None):
    try:
        result = step(error)
    except BaseException as raised:
        result = type(raised).__name__
    print(world.rank, result, flush=True)
assert not asked, asked
MPI.COMM_WORLD.Barrier()        # the program's own is not revoked
"""
STALE = """
import os
from mpi4py import MPI
import mpicoll

stale = mpicoll.Comm(MPI.COMM_WORLD.Dup())
stale.Revoke()
try:
    mpicoll.resilient(MPI.COMM_WORLD).run(lambda comm: stale.Barrier())
except mpicoll.errors.RevokedError:
    print("given up", flush=True)
"""
REVOKED_AT_ONCE = """
import os
from mpi4py import MPI
import mpicoll

world = mpicoll.Comm(MPI.COMM_WORLD)
for _ in range(20):
    for made in (mpicoll.Comm(MPI.COMM_WORLD.Dup()), world.Dup(), world.Shrink()):
        made.Revoke()
late = MPI.COMM_WORLD.Dup()
world.Barrier()
late.Revoke()
try:
    mpicoll.Comm(late).Barrier()
except mpicoll.errors.RevokedError:
    print("revoked", flush=True)
"""
HOSTS = """
import os, signal, sys
from mpi4py import MPI
import mpicoll
from mpicoll.runtime import agreement

rank = MPI.COMM_WORLD.rank
agreement.node = lambda mpi: f"host{rank // 2} and what its start has"
comm = mpicoll.Comm(MPI.COMM_WORLD).Split(0, -rank)     # rank 0 is the last of the program's
half = comm.Split(rank // 2)
comm.Barrier()
if rank in (2, 3):
    os.kill(os.getpid(), signal.SIGKILL)

def say(call):
    try:
        while True:
            call()
    except mpicoll.errors.MPIError as error:
        sys.stdout.write(f"{type(error).__name__} {error.ranks} {error.hosts} {error}\\n")
        sys.stdout.flush()

say(comm.Barrier)
comm = comm.Shrink()        # since then this rank knows of both
half.Revoke()
say(half.Barrier)
"""
# Ranks of KILLED are killed; the others know of that then.
FAIL = """\
if comm.rank in KILLED:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while KILLED:
        comm.Barrier()
except mpicoll.errors.ProcFailedError:
    pass
"""
FENCE = f"""
import atexit, ctypes, os, signal, sys
from mpi4py import MPI

leaves_out = lambda: ctypes.c_bool.in_dll(ctypes.CDLL(MPI.__file__), "ompi_async_mpi_finalize").value
atexit.register(lambda: print("leaves the fence out:", leaves_out(), flush=True))   # runs after mpicoll's
import mpicoll

comm = mpicoll.Comm(MPI.COMM_WORLD)
{FAIL}"""
IAGREE = 'comm.Iagree(memoryview(bytearray(4)).cast("i"))'
REQUESTS = f"""
import os, signal
from mpi4py import MPI
import mpicoll

comm = mpicoll.Comm(MPI.COMM_WORLD)
flag = memoryview(bytearray(b"\\7\\0\\0\\0")).cast("i")
new, request = comm.Ishrink()
request.Wait()
assert mpicoll.Comm(new).allreduce(1) == 4
{FAIL}comm.Shrink()                   # since then every rank knows of the failure
comm.Ack_failed()
flag[0] = 6 - comm.rank % 2
assert MPI.Request.Waitall([comm.Iagree(flag)]) and flag[0] == 4
try:
    comm.Ishrink()[1].Wait()
except mpicoll.errors.FaultToleranceError as error:
    print(error, flush=True)
"""
WAITING = f"""
import os, signal, time
from mpi4py import MPI
import mpicoll

os.environ["MPICOLL_TIMEOUT"] = "2"
rank, comm = MPI.COMM_WORLD.rank, mpicoll.Comm(MPI.COMM_WORLD)

def load():
    time.sleep(60)

{FAIL}if rank == 1:
    load()
CALL
"""


def run(program: str, tmp_path: Path, ranks: int = 4, status: int = 0) -> str:
    """Run a program with fault tolerance, and return what it printed; it may not hang nor print a traceback."""
    script = tmp_path / "script.py"
    script.write_text(program)
    mpiexec, *rest = launcher.command(ranks, ["python", str(script)])
    ended, text = launcher.output_of([mpiexec, "--with-ft", "ulfm", *rest], 60)
    assert "Traceback" not in text and "Signal" not in text and ended == status, (ended, text)
    return text


@pytest.mark.timeout(180)
@pytest.mark.parametrize("forms", ["blocking,waitall", "nonblocking,persistent"])
def test_ranks_are_killed_in_calls(forms):
    command = [sys.executable, str(TESTS / "survive.py"), "--forms", forms, "--most", "1", "--ranks", "8"]
    status, text = launcher.output_of(command, 150)
    assert status == 0 and text.endswith(" passed, 0 failed\n"), text


@pytest.mark.timeout(240)
@pytest.mark.parametrize("situations", ["node,chunks,shrink,restore", "split,comm,idup_revoked,stopped"])
def test_ranks_are_killed_elsewhere(situations):
    """Once in each situation of tests/survive.py but those in which Open MPI itself crashes often."""
    command = [sys.executable, str(TESTS / "survive.py"), "--situations", situations]
    status, text = launcher.output_of(command, 220)
    assert status == 0 and text.endswith("0 situations failed\n"), text


def test_a_rank_that_is_killed_is_named(tmp_path):
    text = run(PROGRAMS[0], tmp_path)
    assert text.count("failed: (1,)") == 3, text


def test_hosts_of_failed_ranks_are_named(tmp_path):
    """In the error of their communicator, and of one without them that was revoked."""
    text = run(HOSTS, tmp_path)
    failed = re.findall(r"^ProcFailedError \((.*)\) \((.*)\) ranks? (.*) ha(?:s|ve) failed, which", text, re.MULTILINE)
    both = ("0, 1", "'host1', 'host1'", "0-1 on host host1")
    first = [(f"{rank},", "'host1',", f"{rank} on host host1") for rank in (0, 1)]
    assert len(failed) == 2 and set(failed) <= {both, *first}, text
    revoked = "RevokedError (2, 3) ('host1', 'host1') the communicator was revoked, which ended Barrier "
    assert text.count(revoked) == 2 and text.count("of MPI.COMM_WORLD ranks 2-3 on host host1 have failed;") == 2, text


def test_training_goes_on(tmp_path):
    text = run(PROGRAMS[1], tmp_path)
    assert text.count("trained on 3 ranks") == 3, text


@pytest.mark.parametrize("program", PROGRAMS[2:4], ids=["zero", "parameter_server"])
def test_training_goes_on_from_copies(program, tmp_path):
    """The losses equal those of a run in which no rank is killed."""
    runs = [run(f"import sys; sys.argv.append({word!r})\n{program}", tmp_path) for word in ("", "kill")]
    losses = [re.findall(r"loss after (\d+) steps on (\d) ranks: (\S+)", text) for text in runs]
    assert [[ranks for _, ranks, _ in of] for of in losses] == [["4"] * 4, ["4", "4", "3", "3"]], runs
    assert [loss for *_, loss in losses[1]] == [loss for *_, loss in losses[0]] and len({*losses[0]}) == 4, runs


@pytest.mark.parametrize(("call", "killed"), [("Agree(1)", []), ("Agree(1)", [2]), ("Shrink()", []), ("Shrink()", [2])])
def test_a_recovery_that_waits_is_reported(call, killed, tmp_path):
    """By every rank that waits. Then MPICOLL_TIMEOUT ends the run, as for other calls."""
    first = f"{call.partition('(')[0]} has not returned for SECONDS s: it waits for every rank"
    check_reports(WAITING.replace("CALL", f"comm.{call}"), killed, first, "has not called it", tmp_path)


@pytest.mark.parametrize("wait", [
    "request.Wait()", "MPI.Request.Waitall([request])", "MPI.Request.Waitany([request])",
    "while not request.Test(): time.sleep(0.01)", "while not MPI.Request.Testall([request]): time.sleep(0.01)",
])  # fmt: skip
@pytest.mark.parametrize(("call", "killed"), [
    (IAGREE, []), (IAGREE, [2]), ("comm.Ishrink()[1]", []),
])  # fmt: skip
def test_a_request_of_a_recovery_that_waits_is_reported(call, killed, wait, tmp_path):
    """A program may wait in Wait or by Test, as for requests of collectives."""
    first = f"{call[5:].partition('(')[0]} (call CALLS, recovery) has not moved for SECONDS s"
    program = WAITING.replace("CALL", f"request = {call}\n{wait}")
    check_reports(program, killed, first, "has not made this call", tmp_path)


def check_reports(program: str, killed: list[int], first: str, missing: str, tmp_path: Path) -> None:
    """Run WAITING, and check that every rank that waits prints such a first line, which ranks are missing, and why."""
    output = run(program.replace("KILLED", str(killed)), tmp_path, status=86)
    first = re.escape(first).replace("CALLS", r"\d+").replace("SECONDS", "[2-9]")  # a busy machine reports later
    lines = [rf"rank 1 {missing}: now at script.py, line 10, in load"]
    if killed:
        lines = [r"rank 2 on host \S+ has failed", "after a failure the ranks cannot ask each other"]
    for rank in {0, 2, 3} - {*killed}:
        assert re.search(f"mpicoll: rank {rank}: {first}", output), output
        assert all(re.search(f"mpicoll: rank {rank}:   {line}", output) for line in lines), output
    assert "MPICOLL_TIMEOUT=2 is over, aborting" in output, output


@pytest.mark.parametrize("kill", [False, True])
def test_the_end_of_a_program_does_not_wait_for_failed_ranks(kill, tmp_path):
    """A hang of MPI_Finalize is rare, so this looks at the parameter that avoids it."""
    text = run(FENCE.replace("KILLED", str([2] * kill)), tmp_path)
    assert text.count(f"leaves the fence out: {kill}") == 4 - kill


def test_requests_of_a_recovery_end(tmp_path):
    """Iagree gives the flag of all; Ishrink works while no rank has failed, and then raises an error with a remedy."""
    assert run(REQUESTS.replace("KILLED", "[2]"), tmp_path).count("call Shrink") == 3


@pytest.mark.parametrize(("kills", "ends"), [
    ({2: (3, "before")}, dict.fromkeys((0, 1, 3), ([4] * 3 + [3] * 5, [[2]]))),
    ({1: (2, "after"), 3: (5, "before")}, dict.fromkeys((0, 2))),
    ({2: (3, "before"), 0: ("restore",)}, dict.fromkeys((1, 3), ([4] * 3 + [2] * 5, [[2], [0, 2]]))),
])  # fmt: skip
def test_every_rank_returns_from_the_same_steps(kills, ends, tmp_path):
    text = run(FAULTS.replace("KILLS", repr(kills)), tmp_path).strip().splitlines()
    rows = {int(rank): rest for rank, _, rest in (line.partition(" ") for line in sorted(text))}
    assert rows.keys() == ends.keys() and len(set(rows.values())) == 1, text
    expected = next(iter(ends.values()))
    assert expected is None or next(iter(rows.values())) == f"{expected[0]} {expected[1]}", text


def test_an_error_of_a_step_ends_it_on_every_rank(tmp_path):
    text = run(ERRORS, tmp_path, ranks=3).splitlines()
    others = ["3", "StepError", "3", "StepError", "StepError", "3"]
    own = ["3", "KeyError", "3", "SystemExit", "KeyboardInterrupt", "3"]
    for rank, expected in enumerate((others, own, others)):
        assert [line[2:] for line in text if line.startswith(f"{rank} ")] == expected, text


def test_a_step_that_fails_without_a_failed_rank_is_given_up(tmp_path):
    assert run(STALE, tmp_path).count("given up") == 4


def test_a_communicator_may_be_revoked_as_soon_as_it_is_made(tmp_path):
    assert run(REVOKED_AT_ONCE, tmp_path).count("revoked") == 4


def test_the_page_is_read_whole():
    """Four programs here; those of torch are run by torch_programs/test_shrink.py."""
    assert ["torch" in program for program in PROGRAMS] == [False, False, False, False, True, True]
