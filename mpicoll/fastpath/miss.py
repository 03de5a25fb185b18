"""A call that the fast path did not serve, or not to its end: where every form of a call goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..dispatch.methods import Given
from ..dispatch.prepare import Call, Prepared
from ..runtime.operation import Operation


def _insert_nothing(call: Call, prepared: Prepared) -> None:
    """Have no call of this kind served by the fast path."""


@dataclass(frozen=True)
class Miss:
    """What is known of such a call.

    given is a snapshot of its arguments, where nothing of it was begun. begun is an operation that goes on with what
    the fast path began of it, True if that was all, False if it began nothing. insert is told what served the call, so
    that the fast path may serve the next one of its kind.
    """

    given: Given
    begun: Operation | bool = False
    insert: Callable[[Call, Prepared], None] = _insert_nothing
