"""The protocol of engines: an engine runs plans, and engines alone post messages.

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
    """A plan for compiled code: the addresses of function(argument, nanoseconds), and of three counters.

    The function returns 0 until the plan has ended, then 1, or minus an error code, for which `error` returns the
    exception. The sum of the counters grows when anything moves.
    """

    function: int
    argument: int
    counters: int
    error: Callable[[int], Exception]


class Waiting(NamedTuple):
    """The ranks whose messages one lane has yet to receive, and those that have yet to receive its messages."""

    strand: int
    chunk: int
    step: int
    receives: tuple[int, ...]
    sends: tuple[int, ...]


def waiting(plan: RolledPlan, strand: int, lane: int, step: int, turn: int, ended: Sequence[bool]) -> Waiting:
    """Return what a lane waits for; ended: whether each message of its step is complete, in the order of posting."""
    first, posts = plan.steps[step, :2].tolist()
    posted = [
        (row[0], row[1] + turn * row[PEER_STRIDE])
        for row in plan.rows[first:posts].tolist()
        if _is_posted(plan, row[0], row[2], row[3], lane)
    ]
    left = [who for who, over in zip(posted, ended, strict=True) if not over]
    return Waiting(strand, lane, plan.number(strand, step, turn), _peers(left, RECV), _peers(left, SEND))


def refused(code: int, in_statuses: Iterable[int] = ()) -> Exception:
    """Return the error of a code of MPI's, or of those in statuses where it says that it is in one of them.

    ERR_TRUNCATE stands for a message that is too short, too.
    """
    if MPI.Get_error_class(code) == MPI.ERR_IN_STATUS:
        code = next((error for error in in_statuses if error not in (MPI.SUCCESS, MPI.ERR_PENDING)), code)
    if MPI.Get_error_class(code) != MPI.ERR_TRUNCATE:
        return MPI.Exception(code)
    return MessageLengthError(
        "a message of another rank is longer or shorter than what this one waits for: they gave different counts; "
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
    """One plan under way."""

    def __init__(self, plan: RolledPlan, comm: MPI.Comm, repeated: bool = False) -> None:
        """Set up for a plan and a communicator. Repeated: it will often be bound to the same memory and tags."""

    def bind(self, sequence: int, bases: tuple[int, int, int], kernel_args: KernelArgs = NO_KERNELS) -> None:
        """Make ready to run: addresses of input, output and scratch, and what to compute with. Not while under way."""

    def advance(self, seconds: float) -> bool:
        """Progress for at most `seconds` (0: without waiting). Return True when done. Raises MPI.Exception."""

    def compiled_step(self) -> CompiledStep | None:
        """Return this plan for compiled code; None if only Python advances it."""

    def waiting(self) -> list[Waiting]:
        """Return what each unfinished lane waits for."""

    def record_events(self, on: bool) -> None:
        """Record events from the next message on, or no more."""

    def events(self) -> Events | None:
        """Return the events of the call, which is over; None if they are not recorded."""

    def free(self) -> None:
        """Give up what is held for the next time. Not while under way."""

    @property
    def progress(self) -> tuple[int, int, int]:
        """(messages posted, bytes sent, steps finished) so far."""
