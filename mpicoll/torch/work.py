"""The Work objects that torch gets for mpicoll's operations.

A thread that waits advances the operation, or the progress thread does, which completes the future too.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work as TorchWork

from ..errors import MessageLengthError, MismatchError
from ..progress.operation import Operation
from ..progress.queue import advance_all
from ..progress.thread import THREAD, ProgressThread
from ..runtime.comm_state import CommState
from . import profiling
from .callers import is_backward
from .futures import DEFAULT, Future
from .tensors import Finish

_NO_TIMEOUT = timedelta(0)


class Done(TorchWork):  # type: ignore[misc]
    """Work that is complete."""

    is_synchronous = False  # whether it is to be waited for before the call returns
    lane = DEFAULT  # of the callbacks of its futures

    def __init__(self, result: list[Tensor]) -> None:
        super().__init__()
        self._result = result

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True."""
        return True

    def exception(self) -> BaseException | None:
        """Return None."""
        return None

    def synchronize(self) -> None:
        """Return at once."""

    def result(self) -> list[Tensor]:
        """Return the tensors that hold the result."""
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that is complete."""
        future = Future(self.lane)
        future.set_result(self._result)
        return future


SYNCHRONOUS = Done([])
"""The Work of all synchronous calls, which are complete when they return; it has no result."""


class Work(TorchWork):  # type: ignore[misc]
    """An operation in flight on a communicator; finish completes it on this rank."""

    is_synchronous = False
    lane = DEFAULT
    describe: Callable[[], str] | None = None  # names the call in errors

    def __init__(self, state: CommState, operation: Operation, result: list[Tensor], finish: Finish | None) -> None:
        super().__init__()
        self._state, self._operation, self._result, self._finish = state, operation, result, finish
        self._error: BaseException | None = None
        self._futures: list[Future] = []  # that wait for the end
        self._once = threading.RLock()
        self._over = False
        self.end_range = profiling.nothing  # in a profile

    def launch(self, seconds: float) -> Work:
        """Start the operation. It fails by a StallError after so many seconds, or once waiting cannot help."""
        operation = self._operation
        operation.raises_on_stall, operation.deadline = True, time.monotonic() + seconds
        operation.on_done = self._end
        self._state.queue.begin(operation)
        return self

    def _end(self) -> None:
        """Store how the operation ended, once, in the first thread that sees the end."""
        with self._once:
            if self._over:
                return
            self._error = self._operation.error
            if self.describe is not None and isinstance(self._error, (MismatchError, MessageLengthError)):
                self._error.operation = self.describe()
            if self._error is None and self._finish is not None:
                try:
                    self._finish()
                except Exception as error:
                    self._error = error
            self._finish, self._over = None, True
            self.end_range()
            for future in self._futures:
                self._tell(future)
            self._futures.clear()

    def _tell(self, future: Future) -> None:
        if self._error is None:
            future.set_result(self._result)
        elif isinstance(self._error, Exception):
            future.set_exception(self._error)

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for the operation, for that long if a timeout is given. Raises what it raised, StallError at the end."""
        operation = self._operation
        if not self._over:
            if timeout > _NO_TIMEOUT:
                operation.deadline = min(operation.deadline, time.monotonic() + timeout.total_seconds())
            self._state.queue.advance_until_done(operation)
            self._end()
        self.end_range()  # that of a synchronous call, if another thread saw the end
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Return whether the operation is over, with or without an error."""
        if not self._over:
            advance_all()
        return self._over

    def is_success(self) -> bool:
        """Return whether the operation is over, and did what it was to do."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Return what the operation raised, if it is over and did."""
        return self._error

    def synchronize(self) -> None:
        """Wait, as `wait` does."""
        self.wait()

    def result(self) -> list[Tensor]:
        """Return the tensors that hold the result, or will."""
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that is complete when the operation is: of the tensors that hold the result."""
        with self._once:
            future = Future(self.lane)
            if self._over:
                self._tell(future)
            else:
                self._futures.append(future)
        if not (self._state.settings.progress and ProgressThread.is_supported()):  # no other thread would complete it
            with contextlib.suppress(Exception):
                self.wait()
        elif not self._over:
            THREAD.poll_now()
        return future.for_cpp(self._result_or_error) if is_backward() else future

    def _result_or_error(self) -> list[Tensor]:
        if self._error is not None:
            raise self._error
        return self._result

    def abort(self) -> None:
        """Raise, since no operation of mpicoll's can be called back."""
        raise NotImplementedError("an operation in flight cannot be aborted; destroy the process group")


class Several(Done):
    """Work that is complete when all its parts are."""

    def __init__(self, parts: list[TorchWork], result: list[Tensor]) -> None:
        super().__init__(result)
        self.parts = parts
        if parts:
            self.lane = parts[0].lane

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for every part. Raises what the first of them raised."""
        for part in self.parts:
            part.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Return whether every part is over."""
        return all(part.is_completed() for part in self.parts)

    def is_success(self) -> bool:
        """Return whether every part is over without an error."""
        return all(part.is_success() for part in self.parts)

    def exception(self) -> BaseException | None:
        """Return what the first of them raised."""
        return next((error for part in self.parts if (error := part.exception()) is not None), None)

    def synchronize(self) -> None:
        """Wait, as `wait` does."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that is complete when all are."""
        future, left = Future(self.lane), len(self.parts)
        counting = threading.Lock()

        def ended(_: Any) -> None:
            nonlocal left
            with counting:
                left -= 1
                if left:
                    return
            error = self.exception()
            if error is None:
                future.set_result(self._result)
            else:
                future.set_exception(error)

        for part in self.parts:
            torch._C.Future.add_done_callback(part.get_future(), ended)  # at once, on no lane
        return future
