"""Kill or stop ranks in other places than one call, and check that the other ranks continue: Open MPI with ULFM.

    mpiexec --with-ft ulfm -n 6 python tests/situations.py NAME SEED     # on every rank; tests/survive.py starts it

A situation is a function of all ranks. It returns on the ranks that are left, and raises where something is wrong.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from time import sleep
from typing import Any

import numpy as np
from mpi4py import MPI
from survive import SITUATION_RANKS as RANKS

import mpicoll
from mpicoll.diagnostics.fault_tolerance import agree_on, is_rank_failure
from mpicoll.errors import CommError, ProcFailedError, RevokedError
from mpicoll.runtime import agreement

SECONDS = 40.0  # until a rank that hangs prints where
CALLS = 2000  # at most until a killed rank is noticed
WORLD = MPI.COMM_WORLD
ME = WORLD.rank


def die(delay: float = 0.0) -> None:
    """Kill this rank after some seconds."""
    if delay:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def total(comm: Any, count: int = 1000) -> None:
    """Check the sum of all ranks' ones."""
    result = np.zeros(count)
    comm.Allreduce(np.ones(count), result)
    assert (result == comm.size).all(), (comm.size, result)


def failure_of(call: Callable[[], object]) -> ProcFailedError | RevokedError:
    """Return the error that a repeated call raises since ranks have failed."""
    for _ in range(CALLS):
        try:
            call()
        except (ProcFailedError, RevokedError) as error:
            return error
    raise AssertionError(f"no error in {CALLS} calls")


def node(draw: random.Random) -> None:
    """Kill all ranks of a node at once, in an algorithm for nodes."""
    agreement.node = lambda mpi: f"host{ME // 2} started"  # type: ignore[assignment]
    comm, lost, delay = mpicoll.Comm(WORLD), draw.randrange(3), draw.uniform(0.001, 0.02)
    with comm.using(allreduce="hierarchical"):
        total(comm)
        if lost == ME // 2:
            die(delay)
        error = failure_of(lambda: total(comm))
    assert {*error.ranks} <= {2 * lost, 2 * lost + 1} and {*error.hosts} <= {f"host{lost}"}, error
    comm = comm.Shrink()
    assert comm.size == 4 and comm._open().agreed.nodes == ((0, 1), (2, 3)), comm.size
    with comm.using(allreduce="hierarchical"):
        total(comm)


def chunks(draw: random.Random) -> None:
    """Kill a rank in the middle of a call of 1,000 chunks."""
    comm, victim, delay = mpicoll.Comm(WORLD), draw.randrange(RANKS), draw.uniform(0.001, 0.05)
    with comm.using(allreduce=draw.choice(("ring", "rabenseifner", "reduce_bcast")), chunk_bytes=64):
        total(comm, 8000)
        if victim == ME:
            die(delay)
        error = failure_of(lambda: total(comm, 8000))
        assert {*error.ranks} <= {victim}, error
    comm = comm.Shrink()
    with comm.using(allreduce="ring", chunk_bytes=64):
        total(comm, 8000)


def resilient_with(draw: random.Random, in_restore: bool) -> None:
    """Kill a rank in a step, and another in the recovery or in restore."""
    first, second = draw.sample(range(RANKS), 2)
    delay = draw.uniform(0.0001, 0.03)
    restored: list[list[int]] = []

    def restore(comm: mpicoll.Comm, failed: Any) -> None:
        restored.append(failed)
        if in_restore and second == ME:
            die(delay)
        for _ in range(20):
            total(comm)
        part = comm.Dup().Split(comm.rank % 2)
        total(part)

    @mpicoll.resilient(WORLD, restore)
    def step(comm: mpicoll.Comm, number: int) -> None:
        if number == 2 and first == ME:
            die()
        if number == 2 and second == ME and not in_restore:
            die(delay)
        total(comm)

    for number in range(CALLS):
        step(number)
        if step.resilient.comm.size == RANKS - 2:  # type: ignore[attr-defined]
            break
    assert {rank for failed in restored for rank in failed} == {first, second}, restored
    total(step.resilient.comm)  # type: ignore[attr-defined]


def shrink(draw: random.Random) -> None:
    """Kill a rank in a step, and another while the others raise, revoke, agree, shrink or restore."""
    resilient_with(draw, False)


def restore(draw: random.Random) -> None:
    """Kill a rank in a step, and another in the middle of restore."""
    resilient_with(draw, True)


def shrink_alone(draw: random.Random) -> None:
    """Kill a rank, and another while the others are in Shrink; a rank that gets an error shrinks again."""
    comm = mpicoll.Comm(WORLD)
    first, second = draw.sample(range(RANKS), 2)
    delay = draw.uniform(0.0001, 0.02)
    if first == ME:
        die()
    failure_of(lambda: total(comm))
    if second == ME:
        die(delay)
    while True:
        smaller = None
        try:
            smaller = comm.Shrink()
        except MPI.Exception as error:
            assert is_rank_failure(error, comm), error
        agreed = agree_on(comm, int(smaller is not None))
        if agreed and smaller is not None:
            break
    if smaller.size == RANKS - 1:
        failure_of(lambda: total(smaller))
        smaller = smaller.Shrink()
    assert smaller.size == RANKS - 2, smaller.size
    total(smaller)


def split(draw: random.Random) -> None:
    """Kill a rank in one part of a Split: the other part continues, and the whole raises."""
    comm = mpicoll.Comm(WORLD)
    half, victim, delay = comm.Split(ME % 2), draw.randrange(RANKS), draw.uniform(0.0001, 0.02)
    total(half)
    if victim == ME:
        die(delay)
    if victim % 2 == ME % 2:
        error = failure_of(lambda: total(half))
        assert {*error.ranks} <= {victim // 2}, error
        half = half.Shrink()
        assert half.size == 2, half.size
    else:
        for _ in range(200):
            total(half)
        assert half.size == 3, half.size
    total(half)
    error = failure_of(lambda: total(comm))
    assert {*error.ranks} <= {victim}, error
    total(comm.Shrink())


def comm(draw: random.Random) -> None:
    """Kill a rank while Comm() agrees on settings: it raises on every rank, or the next call does."""
    base, copies = mpicoll.Comm(WORLD), [MPI.Intracomm.Dup(WORLD) for _ in range(100)]
    victim, delay = draw.randrange(RANKS), draw.uniform(0.0001, 0.2)
    total(base)
    if victim == ME:
        die(delay)
    try:
        for copy in copies:
            mpicoll.Comm(copy)
        failure_of(lambda: total(base))
    except ProcFailedError as error:
        assert {*error.ranks} <= {victim}, error
    total(base.Shrink())


def idup(draw: random.Random) -> None:
    """Kill a rank while duplicates are made by Idup: every rank's Wait raises, or its next call.

    Then both the communicator and another with a higher id shrink.
    """
    comm, victim, delay = mpicoll.Comm(WORLD).Dup(), draw.randrange(RANKS), draw.uniform(0.0001, 0.1)
    later = comm.Dup()
    total(later)
    if victim == ME:
        die(delay)

    def duplicate() -> None:
        comm.Idup()[1].Wait()

    error = failure_of(duplicate)
    assert {*error.ranks} <= {victim}, error
    if draw.random() < 0.5:
        total(comm.Shrink())
    total(later.Shrink())


def idup_revoked(draw: random.Random) -> None:
    """Revoke duplicates before they are complete, which raises, and as soon as a rank's request is complete."""
    comm, first = mpicoll.Comm(WORLD), draw.randrange(RANKS)
    for _ in range(20):
        copy, request = comm.Idup()
        try:
            copy.Revoke()
        except CommError:
            pass
        else:
            assert request.Test(), "revoked before it was complete"
        if first != ME:
            sleep(draw.uniform(0, 0.003))
        request.Wait()
        copy.Revoke()
        failure_of(copy.Barrier)


def stop(comm: mpicoll.Comm, victim: int, seconds: float) -> None:
    """Stop a rank for some seconds from now on; another rank's thread continues it."""
    processes = comm.allgather(os.getpid())
    if (victim + 1) % RANKS == ME:
        os.kill(processes[victim], signal.SIGSTOP)
        threading.Timer(seconds, os.kill, (processes[victim], signal.SIGCONT)).start()


def stopped(draw: random.Random) -> None:
    """Stop a rank for 8 s: the others wait and report it, and the call completes when it continues."""
    comm, victim = mpicoll.Comm(WORLD), draw.randrange(RANKS)
    state = comm._open()
    state.settings = replace(state.settings, timeout=1.0)  # of the report, without the abort
    stop(comm, victim, 8)
    for _ in range(20):
        total(comm)


def main() -> None:
    name, seed = sys.argv[1:3]
    WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    faulthandler.dump_traceback_later(SECONDS, file=sys.stdout)  # where a rank hangs
    globals()[name](random.Random(f"{name} {seed}"))
    os.write(1, f"end of {ME}\n".encode())


if __name__ == "__main__":
    main()
