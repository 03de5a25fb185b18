"""The requests of collectives: handles of a request of MPI's that completes with the operation (see proxies.py).

So they work in MPI's own Waitall, Waitany and Testall, in lists mixed with plain requests, wherever the progress
thread runs (see progress/thread.py). Their own methods, Request.Waitall among them, advance the plans themselves.
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
Found = TypeVar("Found")
Handle = TypeVar("Handle", bound=MPI.Request)


class CollectiveRequest(MPI.Request):
    """Completion of what was started by mpicoll. Wait and Test raise what the collective raised."""

    _state: CommState
    _operation: Operation | None = None
    _since: float  # when it was started

    def _begin(self, state: CommState, operation: Operation) -> None:
        """Launch an operation, and make this the handle of a request that completes with it."""
        completion = CompletionRequest(operation)
        ctypes.memmove(MPI._addressof(self), MPI._addressof(completion.request), MPI._sizeof(MPI.Request))
        self._state, self._operation = state, operation
        operation.on_done = completion.complete
        self._since = state.queue.begin(operation)
        release.run_deferred_frees()

    def _be_complete(self) -> None:
        """Make this the handle of a complete request that is not null: an empty message to PROC_NULL."""
        nothing = MPI.COMM_SELF.Isend([bytearray(), MPI.BYTE], MPI.PROC_NULL)
        ctypes.memmove(MPI._addressof(self), MPI._addressof(nothing), MPI._sizeof(MPI.Request))
        self._operation = None

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait for the collective. Raises what it raised."""
        operation = self._operation
        if operation is not None and self._is_under_way():
            THREAD.wait_begins(self._since)
            try:
                self._state.queue.wait(operation)
            finally:
                THREAD.leave()
                if operation.done:  # else it was interrupted, and goes on
                    self._take_in(operation, status)
            return True
        MPI.Request.Wait(self, status)
        if status is not None:
            _empty([self], [status])
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the collective is complete. Raises what it raised."""
        operation = self._operation
        if operation is None or not self._is_under_way():
            done = super().Test(status)
            _empty([self], [status])
            return done
        advance_all()
        if not operation.done:
            return False
        self._take_in(operation, status)
        self._state.queue.raise_error(operation)
        return True

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Return whether the collective is complete; the request stays."""
        advance_all()
        return super().Get_status(status)

    def Cancel(self) -> None:
        """Raise RequestError: a collective cannot be cancelled."""
        raise RequestError("a collective cannot be cancelled; call Wait, or Test until it is complete")

    def _is_under_way(self) -> bool:
        return MPI._handleof(self) != MPI._handleof(MPI.REQUEST_NULL)

    def _announce(self, operation: Operation) -> None:
        """Complete MPI's request, if that failed when the operation ended. Raises the error if it fails again."""
        if operation.done and operation.on_done is not None:
            with self._state.queue.lock:
                operation.announce()

    def _take_in(self, operation: Operation, status: MPI.Status | None) -> None:
        """Return the request to MPI, which frees it.

        If another thread ended the operation, the request may complete a little later, so this polls: on Intel MPI
        two threads in Wait may sleep for ever.
        """
        operation.error_raised = True
        self._announce(operation)
        with suppress(MPI.Exception):  # the operation's error: Wait and Test raise the original
            while not super().Test(status):
                os.sched_yield()
        _empty([self], [status])
        self._operation = None

    def __del__(self) -> None:
        """Queue MPI's request to be freed: no caller can wait for it any more.

        This takes no lock and makes no MPI call that does, since it may run in any thread at any time.
        """
        operation = self._operation
        if operation is not None and not sys.is_finalizing() and self._is_under_way() and not MPI.Is_finalized():
            operation.error_raised = True
            release.defer_free(MPI.Request(self).Free)

    def wait(self, status: MPI.Status | None = None) -> None:
        """As Wait; there is no object to return."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """As Test, with the object that there is not."""
        return self.Test(status), None

    get_status: Any = Get_status
    cancel: Any = Cancel

    # -- lists, which may hold any requests; MPI.Request's own need the progress thread for ours -------------

    @classmethod
    def Testall(cls, requests: Requests, statuses: Statuses = None) -> bool:
        """As MPI.Request.Testall, and advances collectives.

        MPICH's own fails on persistent collectives of its own, its Waitall does not.
        """
        _advance(requests)
        done = all(map(_is_complete, requests)) and MPI.Request.Waitall(requests, statuses)
        if done:
            _empty(requests, statuses)
        return done

    @classmethod
    def Testany(cls, requests: Requests, status: MPI.Status | None = None) -> tuple[int, bool]:
        """As MPI.Request.Testany, and advances collectives."""
        _advance(requests)
        index, done = MPI.Request.Testany(requests, status)
        if done and index != MPI.UNDEFINED:
            _empty([requests[index]], [status])
        return index, done

    @classmethod
    def Testsome(cls, requests: Requests, statuses: Statuses = None) -> list[int] | None:
        """As MPI.Request.Testsome, and advances collectives."""
        _advance(requests)
        indices = MPI.Request.Testsome(requests, statuses)
        _empty([requests[index] for index in indices or ()], statuses)
        return indices

    @classmethod
    def Waitall(cls, requests: Requests, statuses: Statuses = None) -> Literal[True]:
        """As MPI.Request.Waitall, and advances collectives."""
        _until(requests, lambda: cls.Testall(requests, statuses), bool)
        return True

    @classmethod
    def Waitany(cls, requests: Requests, status: MPI.Status | None = None) -> int:
        """As MPI.Request.Waitany, and advances collectives."""
        return _until(requests, lambda: cls.Testany(requests, status), lambda outcome: outcome[1])[0]

    @classmethod
    def Waitsome(cls, requests: Requests, statuses: Statuses = None) -> list[int] | None:
        """As MPI.Request.Waitsome, and advances collectives."""
        return _until(requests, lambda: cls.Testsome(requests, statuses), lambda indices: indices is None or indices)

    # -- the same for requests of objects among them, whose messages are returned ---------------------------

    @classmethod
    def testall(cls, requests: Requests, statuses: Statuses = None) -> tuple[bool, list[Any] | None]:
        """As MPI.Request.testall, and advances collectives."""
        _advance(requests)
        return MPI.Request.testall(requests, statuses)

    @classmethod
    def testany(cls, requests: Requests, status: MPI.Status | None = None) -> tuple[int, bool, Any]:
        """As MPI.Request.testany, and advances collectives."""
        _advance(requests)
        return MPI.Request.testany(requests, status)

    @classmethod
    def testsome(cls, requests: Requests, statuses: Statuses = None) -> tuple[list[int] | None, list[Any] | None]:
        """As MPI.Request.testsome, and advances collectives."""
        _advance(requests)
        return MPI.Request.testsome(requests, statuses)

    @classmethod
    def waitall(cls, requests: Requests, statuses: Statuses = None) -> list[Any]:
        """As MPI.Request.waitall, and advances collectives."""
        outcome: Any = _until(requests, lambda: cls.testall(requests, statuses), lambda outcome: outcome[0])
        messages: list[Any] = outcome[1]
        return messages

    @classmethod
    def waitany(cls, requests: Requests, status: MPI.Status | None = None) -> tuple[int, Any]:
        """As MPI.Request.waitany, and advances collectives."""
        index, _, message = _until(requests, lambda: cls.testany(requests, status), lambda outcome: outcome[1])
        return index, message

    @classmethod
    def waitsome(cls, requests: Requests, statuses: Statuses = None) -> tuple[list[int] | None, list[Any] | None]:
        """As MPI.Request.waitsome, and advances collectives."""
        return _until(
            requests, lambda: cls.testsome(requests, statuses), lambda outcome: outcome[0] is None or outcome[0]
        )


def _advance(requests: Requests) -> None:
    """Advance all collectives. Raises if one of these has ended and MPI cannot complete its request."""
    advance_all()
    for request in requests:
        if isinstance(request, CollectiveRequest) and request._operation is not None:
            request._announce(request._operation)


def _empty(requests: Requests, statuses: Sequence[MPI.Status | None] | None) -> None:
    """Make statuses those of collectives, which have no source, no tag and no data, where the requests are ours."""
    for request, status in zip(requests, statuses or ()):
        if status is not None and isinstance(request, CollectiveRequest):
            status.source, status.tag, status.error = MPI.ANY_SOURCE, MPI.ANY_TAG, MPI.SUCCESS
            status.Set_elements(MPI.BYTE, 0)


def _until(requests: Requests, look: Callable[[], Found], enough: Callable[[Found], object]) -> Found:
    """Call `look` until its result is enough, and return that; the caller waits for these requests."""
    started = [request._since for request in requests if isinstance(request, CollectiveRequest) and request._operation]
    if started:
        THREAD.wait_begins(min(started))
    THREAD.add_waiter()
    try:
        while not enough(outcome := look()):
            os.sched_yield()
    finally:
        THREAD.remove_waiter()
        THREAD.leave()
    return outcome


class Request(CollectiveRequest):
    """An MPI.Request: a nonblocking collective under way."""

    @classmethod
    def of_nothing(cls) -> Request:
        """Return the request of a collective that is complete."""
        request = cls()
        request._be_complete()
        return request

    @classmethod
    def launch(cls, state: CommState, operation: Operation) -> Request:
        """Launch an operation, and return the request that completes with it."""
        request = cls()
        request._begin(state, operation)
        return request

    def Free(self) -> None:
        """Raise RequestError: MPI requires a Wait for a collective, after which there is nothing to free."""
        if self._is_under_way():
            raise RequestError("a collective under way cannot be freed; call Wait, or Test until it is complete")
        raise RequestError("the collective is complete, so there is nothing to free")

    free: Any = Free


def _is_complete(request: MPI.Request) -> bool:
    """Return whether a request is complete; for mpicoll's own, without raising its error."""
    operation = request._operation if isinstance(request, CollectiveRequest) else None
    return operation.done if operation is not None else request.Get_status()


class _Owner(np.ndarray[Any, Any]):
    """A buffer without elements that keeps what it belongs to alive."""

    call: object


def keep_buffers_alive(call: object, request: Handle) -> Handle:
    """Return a request of MPI's own that keeps the call's arguments alive until it is complete.

    A persistent request keeps them as long as the object exists. mpi4py 4.1 releases the buffers of reductions, and
    Ialltoall's send buffer, as soon as the call returns. It keeps the buffer of a message, so this exchanges the
    request's handle for that of a message that is never started.
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
