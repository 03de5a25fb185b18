"""Injects faults into runs of four ranks, and checks what `mpicoll status` says of them within 10 s.

    python tests/faults.py                              # every fault 5 times; victims and calls vary
    python tests/faults.py --only stopped,killed --times 2 --seed 3
    .venv-openmpi/bin/python tests/faults.py          # on another MPI

All ranks make some collectives. Then one of them, the victim, does something else than the others, which go on. A fault
is named right if a report has the right verdict and the line of FAULTS within SECONDS, and blames no other rank.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve()
RANKS = 4
SECONDS = 10.0          # from the fault to the report that names it
LIMIT = 60.0            # seconds until the victim must have begun
COUNT, LARGE = 10, 100_000      # elements of a call
MOVING, STALLED, MISMATCH, DEAD = "moving", "stalled", "mismatch", "dead"


class Fault(NamedTuple):
    """A fault: what the victim and the other ranks do, and what the report says.

    verdict: the right one, or several.
    line: a regular expression for the beginning of a line, in which V is the victim and O the other ranks.
    blames_others: whether lines may blame ranks besides the victim. The others call Allreduce if nothing else is said.
    """

    verdict: str | tuple[str, ...]
    line: str
    victim: Callable[[Ranks], Any]
    others: Callable[[Ranks], Any] | None = None
    blames_others: bool = False


# -- on every rank ------------------------------------------------------------------------------------------------


class Ranks:
    """The communicators and buffers of a rank."""

    def __init__(self, victim: int) -> None:
        import numpy as np
        from mpi4py import MPI

        import mpicoll

        self.MPI, self.victim = MPI, victim
        self.comm = mpicoll.Comm(MPI.COMM_WORLD)
        self.second = self.comm.Dup()
        self.x, self.y = np.ones(LARGE), np.empty(LARGE)
        self.other = (victim + 1) % RANKS   # a rank that is not the victim

    def allreduce(self, count: int = COUNT, operator: Any = None) -> None:
        """Call Allreduce on the first communicator."""
        self.comm.Allreduce(self.x[:count], self.y[:count], operator or self.MPI.SUM)

    def forever(self) -> None:
        """Make calls until the end of the run."""
        while True:
            self.allreduce()
            time.sleep(0.05)


def calls_before(ranks: Ranks, seed: int) -> None:
    """Make some calls of some collectives, in some forms."""
    draw = random.Random(seed)
    comm, x, y = ranks.comm, ranks.x, ranks.y
    request = comm.Allreduce_init(x[:COUNT], y[:COUNT])
    calls = [ranks.allreduce, comm.Barrier, lambda: comm.Bcast(x[:COUNT], root=1),
             lambda: comm.Iallreduce(x[:COUNT], y[:COUNT]).Wait(), lambda: (request.Start(), request.Wait()),
             lambda: comm.Allgather(x[:COUNT], y[:COUNT * RANKS]), lambda: ranks.second.Barrier()]
    for _ in range(draw.randint(3, 20)):
        draw.choice(calls)()


def sleeping(ranks: Ranks) -> None:
    time.sleep(100)


def sleeping_with_the_lock(ranks: Ranks) -> None:
    ctypes.PyDLL(None).sleep(100)


def in_native_code(ranks: Ranks) -> None:
    ctypes.CDLL(None).sleep(100)


def in_a_native_loop(ranks: Ranks) -> None:
    re.match("(a+)+$", "a" * 40 + "b")      # tries 2 ** 40 ways, and keeps Python's lock


def stopped(ranks: Ranks) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def killed(ranks: Ranks) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crashing(ranks: Ranks) -> None:
    ctypes.string_at(0)


def raising(ranks: Ranks) -> None:
    raise ValueError("no data")


def ending(ranks: Ranks) -> None:
    sys.exit()


def other_collective(ranks: Ranks) -> None:
    ranks.comm.Gather(ranks.x[:COUNT], ranks.y[:COUNT * RANKS], root=ranks.victim)


def other_form(ranks: Ranks) -> None:
    with suppress(Exception):
        ranks.comm.Ibarrier().Wait()
    time.sleep(100)


def other_count(ranks: Ranks) -> None:
    with suppress(Exception):
        ranks.allreduce(COUNT + 1)
    time.sleep(100)


def much_larger_count(ranks: Ranks) -> None:
    with suppress(Exception):
        ranks.allreduce(LARGE)
    time.sleep(100)


def allreduce_and_sleep(ranks: Ranks) -> None:
    with suppress(Exception):
        ranks.allreduce()
    time.sleep(100)


def other_root(ranks: Ranks) -> None:
    ranks.comm.Bcast(ranks.x[:COUNT], root=ranks.victim)
    ranks.forever()


def other_operator(ranks: Ranks) -> None:
    ranks.allreduce(operator=ranks.MPI.MAX)
    ranks.forever()


def in_pickled_bcast(ranks: Ranks) -> None:
    ranks.comm.bcast(None, root=ranks.other)


def pickled_allgather(ranks: Ranks) -> None:
    ranks.comm.allgather("something")


def receiving(ranks: Ranks) -> None:
    ranks.comm.Recv(ranks.y, source=ranks.other)


def receiving_a_pickle(ranks: Ranks) -> None:
    ranks.comm.recv(source=ranks.other)


def waiting_for_a_message(ranks: Ranks) -> None:
    ranks.comm.Irecv(ranks.y, source=ranks.other).Wait()


def first_then_second(ranks: Ranks) -> None:
    ranks.comm.Allreduce(ranks.x[:COUNT], ranks.y[:COUNT])
    ranks.second.Allreduce(ranks.x[:COUNT], ranks.y[:COUNT])


def second_then_first(ranks: Ranks) -> None:
    ranks.second.Allreduce(ranks.x[:COUNT], ranks.y[:COUNT])
    ranks.comm.Allreduce(ranks.x[:COUNT], ranks.y[:COUNT])


def _in_a_thread(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work, name="loader", daemon=True)
    thread.start()
    thread.join()


def thread_that_sleeps(ranks: Ranks) -> None:
    def load() -> None:
        time.sleep(100)
        ranks.allreduce()

    _in_a_thread(load)


def thread_that_calls(ranks: Ranks) -> None:
    _in_a_thread(ranks.allreduce)


def _bcast(ranks: Ranks) -> None:
    ranks.comm.Bcast(ranks.x[:COUNT], root=ranks.other)


def _in_two_threads(ranks: Ranks, first: Callable[[], Any], second: Callable[[], Any]) -> None:
    """Call the second function once a thread is in the call that the first makes."""
    before, thread = ranks.comm._state.sequence, threading.Thread(target=first, daemon=True)
    thread.start()
    while ranks.comm._state.sequence == before:
        time.sleep(0.01)
    second()
    thread.join()


def threads_in_order(ranks: Ranks) -> None:
    _in_two_threads(ranks, ranks.allreduce, lambda: _bcast(ranks))


def threads_in_another_order(ranks: Ranks) -> None:
    _in_two_threads(ranks, lambda: _bcast(ranks), ranks.allreduce)


def nonblocking(ranks: Ranks) -> None:
    ranks.comm.Iallreduce(ranks.x[:COUNT], ranks.y[:COUNT]).Wait()


def starting(ranks: Ranks) -> None:
    request = ranks.comm.Allreduce_init(ranks.x[:COUNT], ranks.y[:COUNT])
    request.Start()
    request.Wait()


def making_only(ranks: Ranks) -> None:
    request = ranks.comm.Allreduce_init(ranks.x[:COUNT], ranks.y[:COUNT])
    time.sleep(100)
    request.Start()


def waiting_for_a_lock(ranks: Ranks) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


# -- the faults ---------------------------------------------------------------------------------------------------

MISSING = r"rank V has not made this call: "
AT = r"faults\.py, line \d+, in "
FIRST = r"call \d+ on ranks 0-3 is the first in which ranks differ: "
FAULTS = {
    "sleeps": Fault(STALLED, f"{MISSING}now at {AT}sleeping", sleeping),
    "sleeps, others nonblocking": Fault(STALLED, f"{MISSING}now at {AT}sleeping", sleeping, nonblocking),
    "waits for a lock": Fault(STALLED, f"{MISSING}now at {AT}waiting_for_a_lock", waiting_for_a_lock),
    "sleeps with Python's lock": Fault(STALLED, f"{MISSING}process \\d+ has not written for", sleeping_with_the_lock),
    "in native code": Fault(STALLED, f"{MISSING}now at {AT}in_native_code", in_native_code),
    "in native code with Python's lock": Fault(STALLED, f"{MISSING}process \\d+ has not written for", in_a_native_loop),
    "stopped": Fault(STALLED, f"{MISSING}process \\d+ is stopped", stopped),
    "killed": Fault(DEAD, f"{MISSING}is gone: process ", killed),
    "crashes": Fault(DEAD, f"{MISSING}is gone: process ", crashing),
    "raises": Fault(STALLED, f"{MISSING}ended with ValueError: no data", raising),
    "ends": Fault(STALLED, f"{MISSING}reached the end of the program", ending),
    "calls another collective": Fault(
        MISMATCH, f"{FIRST}.*rank V made Gather of .*root V.*in other_collective", other_collective),
    "calls another nonblocking one": Fault(MISMATCH, f"{FIRST}.*rank V made Ibarrier.*in other_form", other_form,
        allreduce_and_sleep, True),
    "another count": Fault(
        MISMATCH, f"{FIRST}.*rank V made Allreduce of 88 bytes", other_count, allreduce_and_sleep, True),
    # Open MPI 5.0.11 crashes when the longer message arrives, without mpicoll too.
    "a count of another algorithm": Fault(
        (MISMATCH, DEAD), f"{FIRST}.*rank V made Allreduce of 800,000 bytes", much_larger_count,
        allreduce_and_sleep, True),
    "another root": Fault(MOVING, f"{FIRST}.*rank V made Bcast of 80 bytes, root V", other_root, _bcast),
    "another operator": Fault(MOVING, f"{FIRST}.*rank V made Allreduce of 80 bytes, MAX", other_operator),
    "in a pickled collective": Fault(
        MISMATCH, "(?=.*rank V waits in pickled bcast)(?=.*ranks O wait in Allreduce).*calls in different order",
        in_pickled_bcast),
    "sleeps, others in a pickled collective": Fault(
        STALLED, f"{MISSING}now at {AT}sleeping \\(pickled allgather", sleeping, pickled_allgather),
    "in another pickled collective": Fault(
        MISMATCH, "rank V has made another call here: pickled bcast", in_pickled_bcast, pickled_allgather),
    "receives": Fault(STALLED, f"{MISSING}now at {AT}receiving", receiving),
    "receives a pickle": Fault(STALLED, f"{MISSING}now at {AT}receiving_a_pickle", receiving_a_pickle),
    "waits for a message": Fault(STALLED, f"{MISSING}now at {AT}waiting_for_a_message", waiting_for_a_message),
    "communicators in another order": Fault(
        MISMATCH, "(?=.*rank V waits in Allreduce [^:]* of ranks 0-3 \\(2\\))(?=.*ranks O wait in Allreduce)"
        ".*these ranks make their calls in different order",
        second_then_first, first_then_second, True),
    "a thread sleeps": Fault(STALLED, f"{MISSING}.*{AT}load", thread_that_sleeps, thread_that_calls),
    "threads in another order": Fault(
        MISMATCH, f"{FIRST}.*rank V made Bcast", threads_in_another_order, threads_in_order),
    "a persistent call is not started": Fault(
        STALLED, f"rank V has not started this call: now at {AT}making_only", making_only, starting),
}


# -- launches -----------------------------------------------------------------------------------------------------


def inject(name: str, victim: int, seed: int, when: Path) -> None:
    """Be one rank of a run with a fault; the victim writes the time of the fault to a file."""
    ranks, fault = Ranks(victim), FAULTS[name]
    calls_before(ranks, seed)
    if ranks.comm.rank != victim:
        (fault.others or Ranks.allreduce)(ranks)
        ranks.forever()
    when.with_suffix(".new").write_text(repr(time.time()))
    when.with_suffix(".new").rename(when)
    fault.victim(ranks)
    ranks.forever()


def run(name: str, seed: int, folder: Path) -> tuple[float, dict[str, Any]]:
    """Inject a fault; return after how many seconds it was named right, infinity if it was not, and the last report."""
    victim, when, records = seed % RANKS, folder / "when", folder / "records"
    process = start([sys.executable, str(HERE), "--inject", name, str(victim), str(seed), str(when)], records)
    try:
        began, last = _wait_for(when), dict[str, Any]()
        while time.time() < began + SECONDS:
            last = report(records)
            if is_right(FAULTS[name], victim, last):
                return time.time() - began, last
        return float("inf"), last
    finally:
        end(process, records)


def start(program: list[str], records: Path) -> subprocess.Popen[bytes]:
    """Start a program on RANKS ranks that keep records in a directory."""
    import launcher

    environment, quiet = launcher.environment({"MPICOLL_RECORD": str(records)}), subprocess.DEVNULL
    return subprocess.Popen(launcher.command(RANKS, program), env=environment, stdin=quiet, stdout=quiet, stderr=quiet,
                            start_new_session=True)


def _wait_for(when: Path) -> float:
    deadline = time.monotonic() + LIMIT
    while not when.exists():
        if time.monotonic() > deadline:
            raise SystemExit("the run did not come to its fault")
        time.sleep(0.05)
    return float(when.read_text())


def report(records: Path, *options: str) -> dict[str, Any]:
    """Return what `mpicoll status --json` prints about the records of a run."""
    from support import command

    shown = command.run("status", "--json", "--wait", "0.6", *options, *([*records.glob("*")] or [records]))
    content: dict[str, Any] = json.loads(shown.stdout) if shown.stdout.startswith("{") else {"error": shown.output}
    assert content.get("status", shown.exit_code) == shown.exit_code, content
    return content


def is_right(fault: Fault, victim: int, content: dict[str, Any]) -> bool:
    """Return whether a report names a fault, and the victim alone."""
    from mpicoll.errors import spans

    others = re.escape(spans([rank for rank in range(RANKS) if rank != victim]))
    line = re.sub(r"\bV\b", str(victim), re.sub(r"\bO\b", others, fault.line))
    reasons = content.get("reasons", ())
    named = [match[1] for reason in reasons if (match := re.match(r"ranks? ([0-9, -]+) (?:has|have) ", reason))]
    return (content.get("verdict", "none") in fault.verdict and any(re.match(line, reason) for reason in reasons)
            and (fault.blames_others or {*named} <= {str(victim)}))


def end(process: subprocess.Popen[bytes], records: Path) -> None:
    """End all processes of a run: mpiexec may have put the ranks into sessions of their own."""
    from mpicoll.diagnostics import flight_reader

    with suppress(ValueError, OSError):
        for rank in flight_reader.read(records.iterdir()):
            if rank.is_alive:
                os.kill(rank.pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> int:
    """Inject faults; return the exit status: 1 if one was not named right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", type=lambda text: text.split("+"), default=[*FAULTS], metavar="FAULT+…")
    parser.add_argument("--times", type=int, default=5, help="launches of each fault (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failed = 0
    for name in options.only:
        seconds = []
        for seed in range(options.seed, options.seed + options.times):
            with tempfile.TemporaryDirectory() as folder:
                took, last = run(name, seed, Path(folder))
            seconds.append(took)
            if took == float("inf"):
                failed += 1
                print(f"{name}, seed {seed}, victim {seed % RANKS}: {json.dumps(last.get('reasons', last))} "
                      f"({last.get('verdict')})", flush=True)
        named = [took for took in seconds if took < float("inf")]
        print(f"{name}: {len(named)} of {len(seconds)}, after {max(named, default=0.0):.1f} s at most", flush=True)
    print(f"{failed} faults were not named right")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inject"]:
        inject(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
    sys.exit(main())
