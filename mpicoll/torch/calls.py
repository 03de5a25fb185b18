"""How a process group carries out an operation: begun in the order of calls, then waited for here or by its Work."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch
from mpi4py import MPI
from torch import Tensor
from torch.distributed import Work as TorchWork

from ..comm.comm import Comm
from ..dispatch import check_mode
from ..dispatch.methods import Method
from ..errors import CommError, MessageLengthError, MismatchError, MpicollError
from ..schedules.collectives import BLOCKING, NONBLOCKING
from . import profiling
from .messages import Message
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
        self.channel = comm._open()
        debugs = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"
        self.channel.compare_first(_ALL if debugs else COMPARED)
        self.logs = self.channel.settings.log and comm.rank == 0
        self.over = False

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
        is_asynchronous = getattr(options, "asyncOp", True)
        end_range = profiling.begin(what, tensor)  # what raises here drops it, which ends it too
        with self._entered():
            form = NONBLOCKING if is_asynchronous else BLOCKING
            algorithm, accumulate = getattr(self.local, "forced", ("", None))
            chosen: Any = {method.collective: algorithm} if algorithm else {}
            with self.comm.using(accumulate=accumulate, **chosen) if algorithm or accumulate else nullcontext():
                self._count(what, method, tensor, op, form, algorithm)
                operation = self.comm.begin(form, method, send, recv, op, root)
            if operation is not None:
                work = Work(self.channel, operation, result, finish)
                work.end_range = end_range
                work.launch(self.seconds(options.timeout))
        if operation is None:
            if finish is not None:
                finish()
            end_range()
            return Done(result) if is_asynchronous else SYNCHRONOUS
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
            work.end_range = profiling.begin(what, tensor)
            work.launch(self.timeout.total_seconds())
        return work

    def _count(
        self, what: str, method: Method, tensor: Tensor | None, op: MPI.Op | None, form: str, algorithm: str
    ) -> None:
        nbytes, bucket = tensor.nbytes if tensor is not None else 0, None
        if form == NONBLOCKING and what == "allreduce" and tensor is not None:
            bucket = TALLY.bucket(self.name, tensor.data_ptr(), nbytes)
        kind = Kind(self.name, what, _name(tensor.dtype) if tensor is not None else "-", nbytes, bucket, algorithm)
        TALLY.add(kind, functools.partial(self.comm.explain, method.collective, nbytes, op or MPI.SUM))
        if self.logs:
            log(kind, self.channel.sequence + 1)

    def refuse(self, error: MpicollError, name: str) -> None:
        """Tell the other ranks that this one has raised an error instead of making a call."""
        with self.lock:
            made_it = isinstance(error, (MismatchError, MessageLengthError))  # it went wrong later, on other ranks too
            if error.rank is None and not made_it and not self.over:
                error.rank = self.channel.rank
                check_mode.refuse(self.channel, error, NONBLOCKING, name)

    def close(self) -> None:
        """Make no more calls, and free the communicator unless something is under way on it, which then stays."""
        with self.lock:
            if self.over:
                return
            self.over = True
            for each in self.followers:
                each.close()
            TALLY.forget(self.name)
            if not self.channel.in_flight:
                self.comm.Free()

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Within the block, begin a call. Raises CommError where the group is over.

        Ranks that ask meanwhile are not told that this one is elsewhere, though no call is in flight yet.
        """
        with self.lock:
            if self.over:
                raise CommError(f"process group {self.name} was destroyed")
            self.channel.entered += 1
            try:
                yield
            finally:
                self.channel.entered -= 1


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def collective(function: Function) -> Function:
    """Decorate a method of a process group: it waits where the caller would.

    Where arguments are refused the other ranks are told, and do not wait for this one.
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
