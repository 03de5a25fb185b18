"""Carry out the operations of a process group: begin each in the order of calls, then wait for it here or by its Work.

Collectives that a callback of a future starts have a communicator for each lane of callbacks: their order is the same
on every rank, but not their order among the calls of other threads.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
from mpi4py import MPI
from torch import Tensor
from torch.distributed import Work as TorchWork

from ..comm.comm import Comm
from ..dispatch import check_mode
from ..dispatch.methods import Method
from ..errors import CommError, MessageLengthError, MismatchError, MpicollError, StallError
from ..schedules.collectives import BLOCKING, NONBLOCKING
from ..selection.select import Choice
from . import profiling
from .futures import Lane, current_lane
from .messages import Message, monitored_barrier
from .served import TALLY, Kind, log
from .tensors import Finish
from .work import SYNCHRONOUS, Done, Work

COMPARED = 64  # the first calls of a group, in which its ranks compare what they give: most mistakes are made there
_ALL = 1 << 60
Function = TypeVar("Function", bound=Callable[..., Any])


class Calls:
    """The calls of one group on its communicator. Several threads may make them; they are numbered as they come."""

    def __init__(self, comm: Comm, name: str, timeout: timedelta) -> None:
        self.comm, self.name, self.timeout = comm, name, timeout
        self.lock, self.local = threading.Lock(), threading.local()
        self.followers: list[Calls] = []  # which end with this group
        self.state = comm._open()
        debugs = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"
        self.state.check_next_calls(_ALL if debugs else COMPARED)
        self.logs = self.state.settings.log and comm.rank == 0
        self.over = False
        self.of_lanes: dict[str, Calls] = {}  # those that callbacks make, by their lane
        self.where = ""  # of these calls, in errors

    @functools.cached_property
    def lane(self) -> Lane:
        """Return the lane of callbacks on futures of operations."""
        return Lane(f"callbacks of process group {self.name}")

    @functools.cached_property
    def message_lane(self) -> Lane:
        """Return the lane of callbacks on futures of messages, which complete in any order."""
        return Lane(f"callbacks of messages of process group {self.name}", in_order=False)

    def _here(self) -> Calls:
        """Return the calls of this thread: those of a lane where a callback makes them. Raises as `_for_lane` does."""
        lane = current_lane()
        if lane is None:
            return self
        calls = self.of_lanes.get(lane.name)
        if calls is None:
            calls = self.of_lanes[lane.name] = self._for_lane(lane)
        calls.timeout = self.timeout
        return calls

    def _for_lane(self, lane: Lane) -> Calls:
        """Return calls on a new communicator. Collective: every rank comes here by the same callback.

        Making a communicator cannot time out, so the ranks wait for each other before. Raises StallError at the
        timeout, CommError where the group is over.
        """
        if self.over:
            raise CommError(f"process group {self.name} was destroyed")
        largest: Any = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
        tag = zlib.crc32(lane.name.encode()) % (largest // 2)
        try:
            monitored_barrier(self.state.check_comm, self.timeout.total_seconds(), True, (2 * tag, 2 * tag + 1))
        except RuntimeError as error:
            raise StallError(f"a collective in {lane.name}: {error}") from None
        group = self.comm.Get_group()
        comm = self.comm.Create_group(group, tag)
        group.Free()
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        calls = Calls(comm, self.name, self.timeout)
        calls.local, calls.lane, calls.where = self.local, self.lane, f", in {lane.name}"
        with self.lock:
            self.followers.append(calls)
        return calls

    def seconds(self, timeout: timedelta) -> float:
        """Return a timeout in seconds: the group's own where the options of a call have none."""
        return (timeout if timeout > timedelta(0) else self.timeout).total_seconds()

    def run(
        self,
        what: str,
        options: Any,
        method: Method,
        send: Any,
        recv: Any,
        op: MPI.Op | None = None,
        root: Any = 0,
        *,
        tensor: Tensor | None = None,
        result: list[Tensor],
        finish: Finish | None = None,
    ) -> TorchWork:
        """Begin a collective. `collective` below waits for it where the options say that the caller would.

        tensor is what it is counted by; finish is called when it is over. Raises what was wrong with the arguments.
        """
        return self._here()._run(what, options, method, send, recv, op, root, tensor, result, finish)

    def _run(
        self,
        what: str,
        options: Any,
        method: Method,
        send: Any,
        recv: Any,
        op: MPI.Op | None,
        root: Any,
        tensor: Tensor | None,
        result: list[Tensor],
        finish: Finish | None,
    ) -> TorchWork:
        is_asynchronous = getattr(options, "asyncOp", True)
        end_range = profiling.begin(what, tensor, is_asynchronous)  # what raises here drops it, which ends it too
        with self._entered():
            form = NONBLOCKING if is_asynchronous else BLOCKING
            algorithm, accumulate = getattr(self.local, "forced", ("", None))
            chosen: Any = {method.collective: algorithm} if algorithm else {}
            with self.comm.using(accumulate=accumulate, **chosen) if algorithm or accumulate else nullcontext():
                learns = self.state.overrides.learns and not (algorithm or accumulate)
                kind = self._count(what, method, tensor, op, form, algorithm, learns)
                operation = self.comm.begin(form, method, send, recv, op, root)
            if operation is not None:
                work = Work(self.state, operation, result, finish)
                work.end_range, work.lane = end_range, self.lane
                work.describe = functools.partial(self._describe, kind, operation.sequence)
                work.launch(self.seconds(options.timeout))
        if operation is None:
            if finish is not None:
                finish()
            end_range()
            if not is_asynchronous:
                return SYNCHRONOUS
            done = Done(result)
            done.lane = self.lane
            return done
        work.is_synchronous = not is_asynchronous
        return work

    @contextmanager
    def forced(self, algorithm: str = "", accumulate: str | None = None) -> Iterator[None]:
        """Within the block, run the collectives that this thread calls by an algorithm, or as Comm.using says."""
        self.local.forced = algorithm, accumulate
        try:
            yield
        finally:
            self.local.forced = "", None

    def message(self, what: str, tensor: Tensor, make: Callable[[], Message]) -> Message:
        """Launch a message."""
        with self._entered():
            TALLY.add(Kind(self.name, what, _name(tensor.dtype), tensor.nbytes), lambda: None)
            work = make()
            work.end_range, work.lane = profiling.begin(what, tensor, True), self.message_lane
            work.launch(self.timeout.total_seconds())
        return work

    def _count(
        self,
        what: str,
        method: Method,
        tensor: Tensor | None,
        op: MPI.Op | None,
        form: str,
        algorithm: str,
        learns: bool,
    ) -> Kind:
        nbytes, bucket = tensor.nbytes if tensor is not None else 0, None
        if form == NONBLOCKING and what == "allreduce" and tensor is not None:
            bucket = TALLY.bucket(self.name, tensor.data_ptr(), nbytes)
        kind = Kind(self.name, what, _name(tensor.dtype) if tensor is not None else "-", nbytes, bucket, algorithm)
        TALLY.add(kind, functools.partial(_explain, weakref.ref(self), method, nbytes, op or MPI.SUM), learns)
        if self.logs:
            log(kind, self.state.sequence + 1)
        return kind

    def _describe(self, kind: Kind, sequence: int) -> str:
        return (
            f"{kind.operation} of {kind.nbytes:,} bytes of {kind.dtype}, call {sequence} of process group {self.name}"
            f"{self.where}"
        )

    def refuse(self, error: MpicollError, name: str) -> None:
        """Tell the other ranks that this one has raised an error instead of making a call."""
        if not self.over and not isinstance(error, StallError):
            with suppress(StallError):  # the others do not come either
                self._here()._refuse(error, name)

    def _refuse(self, error: MpicollError, name: str) -> None:
        with self.lock:
            made_it = isinstance(error, (MismatchError, MessageLengthError))  # it went wrong later, on other ranks too
            if error.rank is None and not made_it and not self.over:
                error.rank = self.state.rank
                check_mode.report_refusal(self.state, error, NONBLOCKING, name)

    def close(self) -> None:
        """Make no more calls, and free the communicator unless an operation is in flight on it, which then stays."""
        with self.lock:
            if self.over:
                return
            self.over = True
            for follower in self.followers:
                follower.close()
            TALLY.forget(self.name)
            if not (self.state.queue.in_flight or self.state.rank_failure.is_known):
                self.comm.Free()

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Within the block, begin a call. Raises CommError where the group is over.

        A status answer sent meanwhile says that this rank is inside a call, though no operation is in flight yet.
        """
        with self.lock:
            if self.over:
                raise CommError(f"process group {self.name} was destroyed")
            self.state.entered += 1
            try:
                yield
            finally:
                self.state.entered -= 1


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _explain(calls: weakref.ref[Calls], method: Method, nbytes: int, op: MPI.Op) -> Choice | None:
    """Return what runs such a call of a group; None if that is gone."""
    alive = calls()
    return alive.comm.explain(method.collective, nbytes, op) if alive is not None else None


def collective(function: Function) -> Function:
    """Decorate a method of a process group: wait for synchronous calls, and report refused arguments.

    The other ranks get the report, so that they do not wait for this one.
    """

    @functools.wraps(function)
    def called(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            work = function(self, *arguments, **options)
        except MpicollError as error:
            self.calls.refuse(error, function.__name__)
            raise
        if not work.is_synchronous:
            return work
        work.wait()
        return SYNCHRONOUS

    return called  # type: ignore[return-value]
