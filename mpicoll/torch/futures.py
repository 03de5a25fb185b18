"""Futures of operations, and the lanes that run their callbacks.

Callbacks may start collectives and wait for them, so every rank must run them in the same order. Operations complete in
an order of their own on each rank; but a program registers its callbacks in the same order on every rank.
"""

from __future__ import annotations

import functools
import queue
import threading
import traceback
from collections.abc import Callable
from typing import Any

import torch

from ..stderr import say

IDLE = 1.0  # seconds without a callback after which the thread of a lane ends
_local = threading.local()


class Lane:
    """Runs callbacks on a thread of its own, in the order in which they were registered.

    Each waits for its future. A callback that a callback of this lane registers runs on the next lane: its order
    among those of other threads would differ from rank to rank. Not in_order, callbacks run as their futures complete.
    """

    def __init__(self, name: str, in_order: bool = True, level: int = 1) -> None:
        """Take a name, which is the same on every rank."""
        self.in_order, self.level, self.base = in_order, level, name
        self.name = name if level == 1 else f"{name}, level {level}"
        self.waiting: queue.SimpleQueue[tuple[threading.Event, Callable[[], None]]] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None

    @functools.cached_property
    def next(self) -> Lane:
        """Return the lane of the callbacks that this one's callbacks register."""
        return Lane(self.base, level=self.level + 1)

    def put(self, is_complete: threading.Event, callback: Callable[[], None]) -> None:
        """Run a callback after those before it, when its future is complete."""
        with self.lock:
            self.waiting.put((is_complete, callback))
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="mpicoll-callbacks", daemon=True)
                self.thread.start()

    def _run(self) -> None:
        _local.lane = self
        while True:
            try:
                is_complete, callback = self.waiting.get(timeout=IDLE)
            except queue.Empty:
                with self.lock:
                    if self.waiting.empty():
                        self.thread = None
                        return
                continue
            is_complete.wait()
            callback()
            del is_complete, callback  # and what they hold


DEFAULT = Lane("callbacks of no group")


def current_lane() -> Lane | None:
    """Return the lane whose callback this thread runs, if it runs one."""
    return getattr(_local, "lane", None)


class FailedOperation(Exception):
    """The value of a future of an operation that raised: C++ takes it for a result, and prints it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error

    def __str__(self) -> str:
        return f"the result, since the operation failed ({type(self.error).__name__}: {self.error}),"


def _raise(failed: FailedOperation) -> None:
    raise failed.error


class Future(torch.futures.Future):  # type: ignore[misc]
    """A future whose callbacks run on a lane."""

    def __init__(self, lane: Lane = DEFAULT) -> None:
        super().__init__()
        self.lane = lane

    def then(self, callback: Callable[[Any], Any]) -> Future:
        """Return a future of what the callback returns when it is given this one, complete."""
        after = Future(self.lane)
        self.add_done_callback(lambda done: _complete(after, callback, done))
        return after

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Run a callback with this future when it is complete; what it raises is printed."""
        here, lane, is_complete = current_lane(), self.lane, threading.Event()
        run = functools.partial(_run, callback, self)
        if not lane.in_order:
            is_complete.set()
            self.when_done(lambda: lane.put(is_complete, run))
            return
        (lane if here is None else here.next).put(is_complete, run)
        self.when_done(is_complete.set)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Run a short callback on the thread that completes this future."""
        super().add_done_callback(lambda _: callback())

    def set_exception(self, error: BaseException) -> None:
        """Complete with an error, which `wait` and `value` raise."""
        self._set_unwrap_func(_raise)
        self.set_result(FailedOperation(error))

    def for_cpp(self, result: Callable[[], Any]) -> torch.futures.Future[Any]:
        """Return a future for C++ of what the function returns or raises, since C++ takes an exception for a value."""
        after: torch.futures.Future[Any] = super().then(lambda _: result())
        return after


def _run(callback: Callable[[Any], Any], future: Future) -> None:
    try:
        callback(future)
    except BaseException:  # the lane continues
        say(traceback.format_exc())


def _complete(after: Future, callback: Callable[[Any], Any], done: Future) -> None:
    try:
        result = callback(done)
    except BaseException as error:
        say(traceback.format_exc())  # C++ may wait for this future, and shows the message alone
        after.set_exception(error)
    else:
        after.set_result(result)
