"""Test the compiled engine on this MPI before it is used, with messages of a rank to itself."""

from __future__ import annotations

import threading
import time
from functools import lru_cache

import numpy as np
from mpi4py import MPI

from ..kernels import serving
from ..kernels.background import NotCompiled, Request, instead_of
from ..plans.plan import IN, OUT, RECV, REDUCE, SCRATCH, SEND, WHOLE, Plan
from ..plans.rolled import RolledPlan, rolled
from .kernel_args import KernelArgs
from .load import engine_named

_TIMEOUT = 5.0  # seconds
_comm_lock = threading.Lock()


def _plan(rows: list[tuple[int, ...]], segments: list[tuple[int, ...]], posts: int) -> RolledPlan:
    plan = Plan(
        np.array(rows, np.int64),
        np.array(segments, np.int64),
        np.array([[0, posts, len(rows)]], np.int64),
        np.array([[0, 1]], np.int64),
        slice=WHOLE,
        lanes=1,
        window=1,
        lane_scratch=64,
        most_messages=posts,
        itemsize=8,
    )
    return rolled(plan)


def check(wait: bool = True) -> str | None:
    """Return None if the engine works, else why it does not.

    wait: compile the engine if necessary; otherwise raise NotCompiled.
    """
    if not wait:
        try:
            compiled = engine_named("compiled")
            with instead_of(Request(compiled.__name__, "advance")):
                compiled.advance.prepare()
        except NotCompiled:
            raise
        except Exception as error:
            serving.address("SUM", np.dtype(float))  # sets the reason of serving.why_plain(), too
            return f"it does not load: {error}"
    return _check()


@lru_cache(maxsize=1)
def _check() -> str | None:
    """Test the engine, once per process, in about a millisecond once it is compiled."""
    try:
        compiled = engine_named("compiled")
    except Exception as error:  # an incompatible numba or C library
        return f"it does not load: {error}"
    comm = create_self_comm()
    try:
        return (
            _check_exchange(compiled, comm)
            or _check_length_error(compiled, comm, 16, 8)
            or _check_length_error(compiled, comm, 8, 16)
        )
    except Exception as error:
        return f"its self-test raised {type(error).__name__}: {error}"
    finally:
        comm.Free()


def create_self_comm() -> MPI.Intracomm:
    """Return a new communicator of this rank alone that returns errors.

    The lock is needed since Split is collective: only one thread may call it on COMM_SELF at a time.
    """
    with _comm_lock:
        comm = MPI.Intracomm(MPI.Intracomm.Split(MPI.COMM_SELF))  # without attributes of COMM_SELF, which a Dup copies
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        return comm


def _start(compiled, plan: RolledPlan, comm: MPI.Comm, send: np.ndarray, receive: np.ndarray, kernel: int):  # type: ignore[no-untyped-def]
    scratch = np.empty(64, np.uint8)
    bases = tuple(MPI.Get_address(x) for x in (send, receive, scratch))
    execution = compiled.Execution(plan, comm)
    execution.bind(0, bases, KernelArgs(kernel))
    return execution, scratch


def _check_exchange(compiled, comm: MPI.Comm) -> str | None:  # type: ignore[no-untyped-def]
    """Send two numbers from this rank to itself, and add what arrives to what was sent."""
    plan = _plan(
        [(RECV, 0, 0, 1, -1), (SEND, 0, 1, 2, -1), (REDUCE, 0, 2, 5, -1)],
        [(SCRATCH, 0, 16), (IN, 0, 16), (OUT, 0, 16), (SCRATCH, 0, 16), (IN, 0, 16)],
        posts=2,
    )
    send, receive = np.array([3.0, 4.0]), np.zeros(2)
    execution, _scratch = _start(compiled, plan, comm, send, receive, serving.address("SUM", send.dtype))
    until = time.monotonic() + _TIMEOUT
    while not execution.advance(0.01):
        if time.monotonic() > until:
            return "a message of the rank to itself did not arrive"
    if receive.tolist() != [6.0, 8.0] or execution.progress != (2, 16, 1):
        return f"a message of the rank to itself gave {receive.tolist()} and {execution.progress}"
    return None


def _check_length_error(compiled, comm: MPI.Comm, sent: int, expected: int) -> str | None:  # type: ignore[no-untyped-def]
    """Check that a message that is longer or shorter than its receive raises an error.

    The send is posted first: Open MPI misses the truncation of a rank's message to itself if the receive is posted.
    """
    plan = _plan([(SEND, 0, 0, 1, -1), (RECV, 0, 1, 2, -1)], [(IN, 0, sent), (OUT, 0, expected)], posts=2)
    send, receive = np.zeros(2), np.zeros(2)
    execution, _scratch = _start(compiled, plan, comm, send, receive, 0)
    case, until = f"a message of {sent} bytes where {expected} were expected", time.monotonic() + _TIMEOUT
    try:
        while not execution.advance(0.01):
            if time.monotonic() > until:
                return f"{case} neither arrived nor raised"
    except MPI.Exception as error:
        return None if error.Get_error_class() == MPI.ERR_TRUNCATE else f"{case} raised {error}"
    return f"{case} raised no error"
