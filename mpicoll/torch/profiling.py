"""Ranges in torch's profiles and in timelines: each operation has one, from its call until it is complete on this rank.

torch's profiler leaves a range open that another thread exits, up to the end of the profile. It closes ranges that end
with a future on any thread, but these have no shapes. So a synchronous call exits its range on the thread that began
it, and the range of an asynchronous call ends with a future.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.autograd import _record_function_with_args_enter, _record_function_with_args_exit
from torch.profiler import record_function

from ..timeline import spans


def nothing() -> None:
    """Return at once: there is no range to end."""


class Range:
    """An open range, which the first call ends. Where a thread is given, calls on other threads do nothing."""

    def __init__(self, end: Callable[[], object], thread: int | None = None) -> None:
        self._end: Callable[[], object] | None = end
        self._thread = thread

    def __call__(self) -> None:
        if self._end is not None and self._thread in (None, threading.get_ident()):
            end, self._end = self._end, None
            end()


def begin(operation: str, tensor: Tensor | None, is_asynchronous: bool) -> Callable[[], None]:
    """Begin the range of an operation on a tensor, and return what ends it."""
    is_profiled = torch.autograd._profiler_enabled()
    end_range = _begin_in_profile(f"mpicoll:{operation}", tensor, is_asynchronous) if is_profiled else nothing
    if not spans.SINKS:
        return end_range
    end_span = Range(spans.begin(f"torch:{operation}"))

    def end() -> None:
        end_span()
        end_range()

    return end


def _begin_in_profile(name: str, tensor: Tensor | None, is_asynchronous: bool) -> Callable[[], None]:
    if not is_asynchronous:
        begun = _record_function_with_args_enter(name, *([] if tensor is None else [tensor]))
        return Range(partial(_record_function_with_args_exit, begun), threading.get_ident())
    complete: torch.futures.Future[None] = torch.futures.Future()
    with record_function(name) as recorded:
        recorded._call_end_callbacks_on_future(complete)
    return Range(partial(complete.set_result, None))
