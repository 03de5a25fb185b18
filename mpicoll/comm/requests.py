"""Define the requests of collectives, handles of MPI requests that complete with an operation (see proxies.py).

So MPI's own Waitall, Waitany and Testall accept them, mixed with plain requests, if the progress thread runs (see
progress/thread.py). Their own methods, such as Request.Waitall, advance the plans and need no thread.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar

import numpy as np
from mpi4py import MPI

from ..errors import RequestError
from ..progress.operation import Operation
from ..progress.queue import advance_all
from ..progress.thread import THREAD
from ..runtime.comm_state import CommState
from . import release
from .proxies import CompletionRequest

Requests = Sequence[MPI.Request]
Statuses = list[MPI.Status] | None
Outcome = TypeVar("Outcome")
Handle = TypeVar("Handle", bound=MPI.Request)


class CollectiveRequest(MPI.Request):
    """The request of a collective of mpicoll. Wait and Test raise the errors of the collective."""

    _state: CommState
    _operation: Operation | None = None
    _started_at: float  # the time of the start

    def _begin(self, state: CommState, operation: Operation) -> None:
        """Launch an operation, and make this request the handle of an MPI request that completes with it."""
        completion = CompletionRequest(operation)
        ctypes.memmove(MPI._addressof(self), MPI._addressof(completion.request), MPI._sizeof(MPI.Request))
        self._state, self._operation = state, operation
        operation.on_done = completion.complete
        self._started_at = state.queue.begin(operation)
        release.run_deferred_frees()

    def _set_complete(self) -> None:
        """Make this request the handle of a complete request that is not null: an empty message to PROC_NULL."""
        nothing = MPI.COMM_SELF.Isend([bytearray(), MPI.BYTE], MPI.PROC_NULL)
        ctypes.memmove(MPI._addressof(self), MPI._addressof(nothing), MPI._sizeof(MPI.Request))
        self._operation = None

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait until the collective is complete. Raises the errors of the collective."""
        operation = self._operation
        if operation is not None and self._is_active():
            THREAD.wait_begins(self._started_at)
            try:
                self._state.queue.wait(operation)
            finally:
                THREAD.leave()
                if operation.done:  # else an interrupt ended the wait, and the operation continues
                    self._release(operation, status)
            return True
        MPI.Request.Wait(self, status)
        if status is not None:
            _clear_statuses([self], [status])
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the collective is complete. Raises the errors of the collective."""
        operation = self._operation
        if operation is None or not self._is_active():
            done = super().Test(status)
            _clear_statuses([self], [status])
            return done
        advance_all()
        if not operation.done:
            return False
        self._release(operation, status)
        self._state.queue.raise_error(operation)
        return True

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Return whether the collective is complete, without freeing the request."""
        advance_all()
        return super().Get_status(status)

    def Cancel(self) -> None:
        """Raise RequestError: a collective cannot be cancelled."""
        raise RequestError("a collective cannot be cancelled; call Wait, or Test until it is complete")

    def _is_active(self) -> bool:
        return MPI._handleof(self) != MPI._handleof(MPI.REQUEST_NULL)

    def _complete_mpi_request(self, operation: Operation) -> None:
        """Complete the MPI request, if that failed when the operation ended. Raises the error if it fails again."""
        if operation.done and operation.on_done is not None:
            with self._state.queue.lock:
                operation.announce()

    def _release(self, operation: Operation, status: MPI.Status | None) -> None:
        """Test the completed MPI request until MPI has freed it.

        If another thread ended the operation, the request may complete a little later. This polls, since on Intel MPI
        two threads in Wait may sleep forever.
        """
        operation.error_raised = True
        self._complete_mpi_request(operation)
        with suppress(MPI.Exception):  # a form of the operation's error, which Wait and Test raise
            while not super().Test(status):
                os.sched_yield()
        _clear_statuses([self], [status])
        self._operation = None

    def __del__(self) -> None:
        """Defer the free of the MPI request, for which no caller can wait any more.

        Garbage collection may call this in any thread at any time, so it takes no lock and calls no MPI function that
        does.
        """
        operation = self._operation
        if operation is not None and not sys.is_finalizing() and self._is_active() and not MPI.Is_finalized():
            operation.error_raised = True
            release.defer_free(MPI.Request(self).Free)

    def wait(self, status: MPI.Status | None = None) -> None:
        """Call Wait. A collective of buffers has no object to return."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """Return (Test(), None): a collective of buffers has no object to return."""
        return self.Test(status), None

    get_status: Any = Get_status
    cancel: Any = Cancel

    # -- lists of any requests ------------------------------------------------------------------------------

    @classmethod
    def Testall(cls, requests: Requests, statuses: Statuses = None) -> bool:
        """Do as MPI.Request.Testall, and advance collectives.

        This calls Waitall once all are complete, since MPICH's Testall fails on its own persistent collectives.
        """
        _advance(requests)
        done = all(map(_is_complete, requests)) and MPI.Request.Waitall(requests, statuses)
        if done:
            _clear_statuses(requests, statuses)
        return done

    @classmethod
    def Testany(cls, requests: Requests, status: MPI.Status | None = None) -> tuple[int, bool]:
        """Do as MPI.Request.Testany, and advance collectives."""
        _advance(requests)
        index, done = MPI.Request.Testany(requests, status)
        if done and index != MPI.UNDEFINED:
            _clear_statuses([requests[index]], [status])
        return index, done

    @classmethod
    def Testsome(cls, requests: Requests, statuses: Statuses = None) -> list[int] | None:
        """Do as MPI.Request.Testsome, and advance collectives."""
        _advance(requests)
        indices = MPI.Request.Testsome(requests, statuses)
        _clear_statuses([requests[index] for index in indices or ()], statuses)
        return indices

    @classmethod
    def Waitall(cls, requests: Requests, statuses: Statuses = None) -> Literal[True]:
        """Do as MPI.Request.Waitall, and advance collectives."""
        _wait_until(requests, lambda: cls.Testall(requests, statuses), bool)
        return True

    @classmethod
    def Waitany(cls, requests: Requests, status: MPI.Status | None = None) -> int:
        """Do as MPI.Request.Waitany, and advance collectives."""
        return _wait_until(requests, lambda: cls.Testany(requests, status), lambda outcome: outcome[1])[0]

    @classmethod
    def Waitsome(cls, requests: Requests, statuses: Statuses = None) -> list[int] | None:
        """Do as MPI.Request.Waitsome, and advance collectives."""
        test = lambda: cls.Testsome(requests, statuses)
        return _wait_until(requests, test, lambda indices: indices is None or indices)

    # -- the same, for lists with requests of objects, which are returned -----------------------------------

    @classmethod
    def testall(cls, requests: Requests, statuses: Statuses = None) -> tuple[bool, list[Any] | None]:
        """Do as MPI.Request.testall, and advance collectives."""
        _advance(requests)
        return MPI.Request.testall(requests, statuses)

    @classmethod
    def testany(cls, requests: Requests, status: MPI.Status | None = None) -> tuple[int, bool, Any]:
        """Do as MPI.Request.testany, and advance collectives."""
        _advance(requests)
        return MPI.Request.testany(requests, status)

    @classmethod
    def testsome(cls, requests: Requests, statuses: Statuses = None) -> tuple[list[int] | None, list[Any] | None]:
        """Do as MPI.Request.testsome, and advance collectives."""
        _advance(requests)
        return MPI.Request.testsome(requests, statuses)

    @classmethod
    def waitall(cls, requests: Requests, statuses: Statuses = None) -> list[Any]:
        """Do as MPI.Request.waitall, and advance collectives."""
        outcome: Any = _wait_until(requests, lambda: cls.testall(requests, statuses), lambda outcome: outcome[0])
        messages: list[Any] = outcome[1]
        return messages

    @classmethod
    def waitany(cls, requests: Requests, status: MPI.Status | None = None) -> tuple[int, Any]:
        """Do as MPI.Request.waitany, and advance collectives."""
        index, _, message = _wait_until(requests, lambda: cls.testany(requests, status), lambda outcome: outcome[1])
        return index, message

    @classmethod
    def waitsome(cls, requests: Requests, statuses: Statuses = None) -> tuple[list[int] | None, list[Any] | None]:
        """Do as MPI.Request.waitsome, and advance collectives."""
        return _wait_until(
            requests, lambda: cls.testsome(requests, statuses), lambda outcome: outcome[0] is None or outcome[0]
        )


def _advance(requests: Requests) -> None:
    """Advance all collectives, and complete the MPI requests of those in the list. Raises if MPI cannot."""
    advance_all()
    for request in requests:
        if isinstance(request, CollectiveRequest) and request._operation is not None:
            request._complete_mpi_request(request._operation)


def _clear_statuses(requests: Requests, statuses: Sequence[MPI.Status | None] | None) -> None:
    """Set the statuses of mpicoll's requests to those of collectives: any source, any tag, and no data."""
    for request, status in zip(requests, statuses or ()):
        if status is not None and isinstance(request, CollectiveRequest):
            status.source, status.tag, status.error = MPI.ANY_SOURCE, MPI.ANY_TAG, MPI.SUCCESS
            status.Set_elements(MPI.BYTE, 0)


def _wait_until(requests: Requests, test: Callable[[], Outcome], is_enough: Callable[[Outcome], object]) -> Outcome:
    """Call `test` until is_enough(result), and return that result; the program waits for these requests."""
    collectives = [request for request in requests if isinstance(request, CollectiveRequest) and request._operation]
    if collectives:
        THREAD.wait_begins(min(request._started_at for request in collectives))
    THREAD.add_waiter()
    try:
        while not is_enough(outcome := test()):
            os.sched_yield()
    finally:
        THREAD.remove_waiter()
        THREAD.leave()
    return outcome


class Request(CollectiveRequest):
    """An MPI.Request for a nonblocking collective."""

    @classmethod
    def completed(cls) -> Request:
        """Return a request that is complete already."""
        request = cls()
        request._set_complete()
        return request

    @classmethod
    def launch(cls, state: CommState, operation: Operation) -> Request:
        """Launch an operation, and return the request that completes with it."""
        request = cls()
        request._begin(state, operation)
        return request

    def Free(self) -> None:
        """Raise RequestError: MPI allows no Free before a collective completes, and Wait frees its request."""
        if self._is_active():
            raise RequestError("a collective in flight cannot be freed; call Wait, or Test until it is complete")
        raise RequestError("the collective is complete, so there is nothing to free")

    free: Any = Free


def _is_complete(request: MPI.Request) -> bool:
    """Return whether a request is complete, without raising an error of mpicoll's."""
    operation = request._operation if isinstance(request, CollectiveRequest) else None
    return operation.done if operation is not None else request.Get_status()


class _Owner(np.ndarray[Any, Any]):
    """An array without elements that keeps another object alive."""

    call: object


def keep_buffers_alive(call: object, request: Handle) -> Handle:
    """Return an equivalent of an MPI request that keeps the call's arguments alive until it is complete.

    A persistent request keeps them as long as it exists. mpi4py 4.1 releases the buffers of reductions, and Ialltoall's
    send buffer, when the call returns. But a request of a message keeps its buffer. So this makes a persistent message
    that is never started, and swaps its handle with the request's.
    """
    owner = np.empty(0, np.uint8).view(_Owner)
    owner.call = call, request  # mpi4py's request keeps the counts
    message = MPI.COMM_SELF.Send_init([owner, MPI.BYTE], 0)
    kept: Any = message if isinstance(request, MPI.Prequest) else MPI.Request(message)
    here, there, size = MPI._addressof(kept), MPI._addressof(request), MPI._sizeof(MPI.Request)
    handle = ctypes.string_at(here, size)
    ctypes.memmove(here, there, size)
    ctypes.memmove(there, handle, size)
    request.Free()
    same: Handle = kept
    return same
