"""A call that the fast path did not serve, or not to its end: where every form of a call goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..dispatch.methods import Invocation
from ..dispatch.prepare import Call, Prepared
from ..runtime.operation import Operation


def _insert_nothing(call: Call, prepared: Prepared) -> None:
    """Have no call of this kind served by the fast path."""


@dataclass(frozen=True)
class Miss:
    """What is known of such a call.

    operation goes on with a call that the fast path began, and is_over says that it has ended by now. Otherwise the
    fast path began nothing: invocation is a snapshot then, and insert is to be called with what serves the call, so
    that the fast path may serve the next one of its kind.
    """

    invocation: Invocation
    operation: Operation | None = None
    is_over: bool = False
    insert: Callable[[Call, Prepared], None] = _insert_nothing
