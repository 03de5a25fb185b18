"""Define the protocol of engines, which run plans; only engines post messages.

An engine is a module with `name` and `Execution`, one plan in progress. Executions are resumable: advance()
progresses as far as it can without blocking, so blocking, nonblocking and concurrent calls are the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from mpi4py import MPI

from ..errors import MessageLengthError, join_mpi
from ..plans.plan import RECV, REDUCE, SEND
from ..plans.rolled import PEER_STRIDE, RolledPlan
from ..schedules.blocks import chunk_length
from .events import Events
from .kernel_args import NO_KERNELS, KernelArgs

join_mpi(MPI.Exception)


class CompiledStep(NamedTuple):
    """A plan for compiled code: the addresses of function(argument, nanoseconds) and of three counters.

    The function returns 1 when the plan is done, 0 before, or minus an error code; `error` returns its exception. The
    sum of the counters grows whenever anything moves.
    """

    function: int
    argument: int
    counters: int
    error: Callable[[int], Exception]


class PendingMessages(NamedTuple):
    """The ranks whose messages one lane has yet to receive, and those that have yet to receive its messages."""

    strand: int
    chunk: int
    step: int
    receives: tuple[int, ...]
    sends: tuple[int, ...]


def pending_messages(
    plan: RolledPlan, strand: int, lane: int, step: int, turn: int, completed: Sequence[bool]
) -> PendingMessages:
    """Return a lane's incomplete messages; completed: whether each message of its step is, in the order of posting."""
    first, posts = plan.steps[step, :2].tolist()
    posted = [
        (row[0], row[1] + turn * row[PEER_STRIDE])
        for row in plan.rows[first:posts].tolist()
        if _is_posted(plan, row[0], row[2], row[3], lane)
    ]
    pending = [message for message, is_complete in zip(posted, completed, strict=True) if not is_complete]
    return PendingMessages(strand, lane, plan.number(strand, step, turn), _peers(pending, RECV), _peers(pending, SEND))


def mpi_error(code: int, in_statuses: Iterable[int] = ()) -> Exception:
    """Return the exception for an MPI error code; in_statuses: the codes to use if it is ERR_IN_STATUS.

    Engines use ERR_TRUNCATE also for a message that is too short.
    """
    if MPI.Get_error_class(code) == MPI.ERR_IN_STATUS:
        code = next((error for error in in_statuses if error not in (MPI.SUCCESS, MPI.ERR_PENDING)), code)
    if MPI.Get_error_class(code) != MPI.ERR_TRUNCATE:
        return MPI.Exception(code)
    return MessageLengthError(
        "received length differs from expected: ranks passed different counts; "
        "MPICOLL_CHECK=1 compares them before anything is sent"
    )


def _is_posted(plan: RolledPlan, kind: int, first: int, end: int, lane: int) -> bool:
    slices = plan.slice, plan.slice, plan.slice, plan.code_slice
    pieces = plan.segments[first:end, [0, 2]].tolist()
    lengths = [chunk_length(n, slices[base], lane) for base, n in pieces]
    return kind != REDUCE and (first == end or sum(lengths) > 0)


def _peers(messages: Sequence[tuple[int, int]], kind: int) -> tuple[int, ...]:
    return tuple(sorted({peer for k, peer in messages if k == kind}))


class Execution(Protocol):
    """One plan in progress."""

    def __init__(self, plan: RolledPlan, comm: MPI.Comm, repeated: bool = False) -> None:
        """Allocate what a plan needs. repeated: bind() will often get the same memory and tags."""

    def bind(self, sequence: int, bases: tuple[int, int, int], kernel_args: KernelArgs = NO_KERNELS) -> None:
        """Prepare to run with these addresses of input, output and scratch. Do not call while in progress."""

    def advance(self, seconds: float) -> bool:
        """Progress until done, or until nothing moves and `seconds` have passed; return True when done.

        Raises MPI.Exception.
        """

    def compiled_step(self) -> CompiledStep | None:
        """Return the addresses by which compiled code advances this plan; None if only Python can."""

    def pending(self) -> list[PendingMessages]:
        """Return each unfinished lane's incomplete messages."""

    def record_events(self, on: bool) -> None:
        """Start or stop recording events, from the next message on."""

    def events(self) -> Events | None:
        """Return the events of the completed call; None if they are not recorded."""

    def free(self) -> None:
        """Free persistent requests. Do not call while in progress."""

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return (messages posted, bytes sent, steps finished) so far."""
