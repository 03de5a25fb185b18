"""Several hosts on one machine: who is where, what limits messages, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytestmark = pytest.mark.hosts
COMMAND = [sys.executable, "-m", "mpicoll.benchmarks.hosts"]
RATE, MESSAGE, BURST = 100_000_000, 1 << 20, 1 << 16
WIRE, TWICE = (8 * (n * MESSAGE - BURST) / RATE for n in (1, 2))  # seconds; the burst passes at once
GONE = 10.0  # seconds that the kernel may take

WHERE = """
import json, os, socket, sys, time
import numpy as np
from mpi4py import MPI
from mpicoll.benchmarks.hosts import RATE_VARIABLE

world = MPI.COMM_WORLD
name = MPI.Get_processor_name()
local = world.Split_type(MPI.COMM_TYPE_SHARED)
open(f"/dev/shm/rank{world.rank}", "x").close()
got = np.empty(1000)
world.Allreduce(np.full(1000, world.rank + 1.0), got)
world.Barrier()
facts = world.gather({
    "name": name, "peers": local.allgather(world.rank), "address": socket.gethostbyname(name),
    "shared": sorted(int(f[4:]) for f in os.listdir("/dev/shm") if f.startswith("rank")),
    "sum": sorted(set(got.tolist())), "rate": os.environ[RATE_VARIABLE],
})

def sent():
    counters = (open(f"/sys/class/net/{link}/statistics/tx_bytes") for link in ("lo", "eth0"))
    return np.array([int(each.read()) for each in counters])

def least(root, body):
    "The least seconds of three that a rank needs for it, and bytes that left its host on (lo, eth0) then."
    found = []
    for _ in range(3):
        world.Barrier()
        time.sleep(0.05)  # the links are idle and have their bursts again
        before, started = sent(), time.perf_counter()
        body()
        found.append((time.perf_counter() - started, *map(int, sent() - before)))
    return world.bcast(min(found), root)

def exchange(root, others, outwards):
    "A message between the root and each of the others; a word the other way says that it has come, or is to."
    at, words = (others if world.rank == root else [root] * (world.rank in others)), np.zeros((world.size, 1), "u1")
    messages = np.zeros((world.size, 1 << 20), "u1")
    def body():
        sends, receives = (messages, words) if outwards == (world.rank == root) else (words, messages)
        coming = [world.Irecv(receives[other], other) for other in at]
        if world.rank != root:
            MPI.Request.Waitall(coming)
        MPI.Request.Waitall([world.Isend(sends[other], other) for other in at] + coming)
    return least(root, body)

peers = local.allgather(world.rank)
mates = world.bcast(peers[1] if len(peers) > 1 else None)
others = [1, 2] if world.size > 2 and not mates else []
messages = {"far": exchange(0, [world.size - 1], True), "near": exchange(0, [mates], True) if mates else None,
            "out": exchange(0, others, True), "in": exchange(0, others, False)}
if world.rank == 0:
    print(json.dumps([facts, messages]))
"""


@dataclass
class Bed:
    """Commands of one test, their descendants marked in their environment."""

    mark: str = field(default_factory=lambda: f"MPICOLL_TEST={uuid.uuid4().hex}")
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    networks: set[str] = field(default_factory=set)

    def start(self, *words: object, command: list[str] = COMMAND, **env: str) -> subprocess.Popen[str]:
        name, _, value = self.mark.partition("=")
        process = subprocess.Popen([*command, *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, start_new_session=True,
                                   env={**os.environ, **env, name: value})
        self.started.append(process)
        return process

    def run(self, *words: object, command: list[str] = COMMAND, **env: str) -> tuple[int, str, str]:
        """Exit status, output, errors."""
        process = self.start(*words, command=command, **env)
        out, err = process.communicate(timeout=45)
        return process.returncode, out, err

    def processes(self) -> list[int]:
        """Return the ids of the processes that have the mark in their environment."""
        pids = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
        return pids

    def look(self) -> None:
        """Remember the networks there are now."""
        with contextlib.suppress(OSError):
            self.networks |= {os.readlink(f"/proc/{pid}/ns/net") for pid in self.processes()}

    def left(self) -> list[object]:
        """Return the processes and networks that are left."""
        networks = self.networks - {os.readlink("/proc/self/ns/net")}
        held = set()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                held.add(os.readlink(entry / "ns" / "net"))
        mounted = Path("/proc/self/mountinfo").read_text()
        return [*self.processes(), *(n for n in networks if n in held or n in mounted)]


@pytest.fixture
def bed() -> Iterator[Bed]:
    """Make a test bed, and fail if a test leaves processes, links or namespaces behind."""
    links, names = set(os.listdir("/sys/class/net")), os.uname().nodename
    testbed = Bed()
    yield testbed
    until = time.monotonic() + GONE
    while testbed.left() and time.monotonic() < until:
        time.sleep(0.05)
    left = testbed.left()
    for pid in testbed.processes():
        os.kill(pid, signal.SIGKILL)
    for process in testbed.started:
        process.kill()
        process.communicate()
    assert left == []
    assert set(os.listdir("/sys/class/net")) == links and os.uname().nodename == names


@pytest.fixture
def script(tmp_path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        (tmp_path / "script.py").write_text(textwrap.dedent(text))
        return tmp_path / "script.py"

    return write


PLACES = {
    (4, 1, "block"): [0, 1, 2, 3],
    (4, 1, "cyclic"): [0, 1, 2, 3],
    (2, 2, "block"): [0, 0, 1, 1],
    (2, 2, "cyclic"): [0, 1, 0, 1],
}


@pytest.mark.parametrize(("count", "per_host", "placement"), PLACES)
def test_placement_of_ranks_and_limits_of_messages(bed, script, count, per_host, placement):
    status, out, err = bed.run("--hosts", count, "--ranks-per-host", per_host, "--placement", placement, "--rate",
                               f"{RATE}bit", "--timeout", 40, "python", script(WHERE))
    assert status == 0, out + err
    facts, messages = json.loads(out)
    places = PLACES[count, per_host, placement]
    for rank, fact in enumerate(facts):
        mates = [other for other, place in enumerate(places) if place == places[rank]]
        assert fact == {"name": f"host{places[rank]}", "peers": mates, "address": f"10.77.0.{places[rank] + 2}",
                        "shared": mates, "sum": [10.0], "rate": str(RATE)}
    seconds, _, wire = messages["far"]
    assert WIRE <= seconds <= 4 * WIRE and wire >= MESSAGE
    if per_host == 1:  # two links at one end, so it is the link of rank 0 that limits, outwards and inwards
        assert all(TWICE <= messages[direction][0] <= 4 * TWICE for direction in ("out", "in")), messages
    if per_host > 1:
        seconds, loopback, wire = messages["near"]
        assert seconds < WIRE / 2 and loopback + wire < MESSAGE / 2  # neither network: shared memory


def test_the_benchmark_knows_hosts_and_rate(bed, tmp_path):
    results = tmp_path / "results"
    words = ["barrier", "--algorithms", "native", "--iterations", 1, "--json", results]
    status, out, err = bed.run("--hosts", 2, "--rate", f"{RATE}bit", "mpicoll", "bench", *words)
    assert status == 0, out + err
    environment = json.loads(results.read_text().splitlines()[0])["environment"]
    assert (environment["rate"], environment["hosts"], environment["ranks"]) == (RATE, 2, 2)


def test_fewer_ranks_than_there_is_room_for(bed):
    program = "from mpi4py import MPI; w = MPI.COMM_WORLD; n = w.gather(MPI.Get_processor_name()); n and print(*n)"
    assert bed.run("--hosts", 3, "--ranks-per-host", 2, "-n", 3, "python", "-c", program)[1] == "host0 host0 host1\n"


def test_status_output_and_directory(bed, tmp_path):
    """Any program, here a shell, is started where the command was."""
    status, out, err = bed.run("--hosts", 1, "sh", "-c", 'pwd; hostname; echo "two  words" >&2; exit 7')
    assert (status, out.split()) == (7, [os.getcwd(), "host0"]) and "two  words" in err


def test_the_time_is_limited(bed):
    started = time.monotonic()
    status, _, err = bed.run("--hosts", 2, "--timeout", 1, "sleep", 60)
    assert status == 124 and "sleep had to be ended after 1 s" in err
    assert time.monotonic() - started < 20


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def named(bed: Bed, word: str) -> int:
    """Return one of the processes with this word in its command line."""
    return next(pid for pid in bed.processes()
                if word in Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0"))


# Who is killed, with which signal, and the exit status of the command.
ENDS = {
    "Ctrl-C": (lambda bed, outer: -outer, signal.SIGINT, 130),
    "interrupted": (lambda bed, outer: outer, signal.SIGINT, 130),
    "terminated": (lambda bed, outer: outer, signal.SIGTERM, 143),
    "hung up": (lambda bed, outer: outer, signal.SIGHUP, 129),
    "outer killed": (lambda bed, outer: outer, signal.SIGKILL, -9),
    "first killed": (lambda bed, outer: children(outer)[0], signal.SIGKILL, 137),
    "worker killed": (lambda bed, outer: children(children(outer)[0])[0], signal.SIGKILL, 137),
    "a rank killed": (lambda bed, outer: named(bed, "1000"), signal.SIGKILL, None),
    "launcher killed": (lambda bed, outer: children(children(children(outer)[0])[0])[-1], signal.SIGKILL, 137),
}


@pytest.mark.parametrize("how", ENDS)
def test_nothing_is_left_however_it_ends(bed, how):
    """The ranks ignore what they can."""
    whom, signum, status = ENDS[how]
    ranks = "trap '' INT TERM HUP; echo up; exec sleep 1000"
    process = bed.start("--hosts", 2, "sh", "-c", ranks)
    assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
    bed.look()
    assert len(bed.networks) == 4  # outside, the switch's, and two hosts'
    os.kill(whom(bed, process.pid), signum)
    _, err = process.communicate(timeout=20)
    assert process.returncode == status or (status is None and process.returncode), err
    assert "Traceback" not in err and (status != 130 or err.endswith(": interrupted\n"))


def test_a_second_signal_ends_what_ignores_the_first(bed, script):
    stubborn = script("""
        import signal, time
        from mpicoll.benchmarks import hosts

        hosts.enter()
        signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
        print("up", flush=True)
        while True:
            time.sleep(0.1)
    """)
    process = bed.start(command=[sys.executable, str(stubborn)])
    assert process.stdout.readline() == "up\n"
    process.terminate()
    assert process.stdout.readline() == "no\n"
    assert process.poll() is None
    process.terminate()
    assert process.wait(10) == 137


def test_two_beds_at_once(bed):
    """They have the same names and addresses, and nothing in common."""
    words = ("--hosts", 2, "python", "-c", "from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); print('well')")
    both = [bed.start(*words) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=40)
        assert (process.returncode, out.count("well")) == (0, 2), out + err


def test_from_python(bed, script):
    """One sandbox, beds of different sizes one after the other, launches that go well and that do not."""
    program = """
        import os, sys
        from pathlib import Path
        from mpicoll.benchmarks import hosts

        hosts.enter()
        worker = os.getpid()
        hosts.enter()
        assert os.getpid() == worker
        here = Path(sys.executable)
        for count in (1, 3):
            with hosts.Hosts(count, 200e6) as net:
                assert net.names == ("host0", "host1", "host2")[:count] and net.rate == 200_000_000
                done = net.launch(["sh", "-c", "echo $WORD $(hostname)"], 2, placement="cyclic", python=here,
                                  env={"WORD": "hello"})
                assert (done.status, done.timed_out) == (0, False), done
                # Open MPI's mpirun may warn there that another process was faster than it ("setpgid failed in parent")
                said = [line for line in done.output.splitlines() if "setpgid" not in line]
                assert sorted(said) == sorted(f"hello {name}" for name in net.names * 2), done
        with hosts.Hosts(2, 200e6) as net:
            for ranks in (0, 3):
                try:
                    net.launch(["true"], ranks=ranks)
                except hosts.LaunchError as error:
                    print(error)
            done = net.launch(["sh", "-c", "echo said; exec sleep 60"], timeout=1.5)
            assert (done.status, done.timed_out) == (None, True) and "said" in done.output, done
            assert net.launch(["sh", "-c", "exit 5"], ranks=1).status == 5
            net.launch(["echo", "passed on"], ranks=1, capture=False)
        print("end", os.listdir("/sys/class/net"), flush=True)
        sys.exit(9)
    """
    status, out, err = bed.run(command=[sys.executable, str(script(program))])
    assert status == 9, out + err
    assert "3 ranks do not fit on 2 hosts with 1 each" in out and "passed on\n" in out
    assert out.endswith("end ['lo']\n")


@pytest.mark.parametrize(("words", "says"), [
    (["--hosts", 2, "-n", 3, "true"], "3 ranks do not fit on 2 hosts with 1 each"),
    (["--hosts", 2, "no-such-program"], "no-such-program: neither in"),
    (["--hosts", 2, "--rate", "100Gbit", "true"], "is more than this machine moves between two hosts"),
])
def test_bad_input_is_one_line(bed, words, says):
    status, out, err = bed.run(*words)
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert says in err


def test_a_kernel_without_the_filter(bed, tmp_path):
    """The error quotes tc."""
    (tmp_path / "tc").write_text("#!/bin/sh\necho 'Error: Specified qdisc kind is unknown.' >&2\nexit 1\n")
    (tmp_path / "tc").chmod(0o755)
    status, _, err = bed.run("--hosts", 2, "true", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert status == 2 and err.count("\n") == 1 and "this kernel has no token bucket filter" in err


def test_a_program_ends_in_silence(tmp_path):
    """MPIs that send over a network complain of what is still under way when it ends: of barriers, for one."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent("""
        import numpy as np
        from mpi4py import MPI
        import mpicoll

        comm, got = mpicoll.Comm(MPI.COMM_WORLD), np.zeros(4)
        for each in (comm, comm.Dup()):
            each.Allreduce(np.ones(4), got)
        each.Free()
    """))
    command = [*COMMAND, "--hosts", "8", "--rate", "200Mbit", sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "WARN" not in done.stdout + done.stderr, done.stdout + done.stderr
