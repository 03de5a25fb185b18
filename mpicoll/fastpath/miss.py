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

    invocation is a snapshot, where the fast path began nothing of the call. operation goes on with what it began;
    None if nothing is left to do. is_over says that the call was served to its end after all. insert is called with
    what served the call, so that the fast path may serve the next one of its kind.
    """

    invocation: Invocation
    operation: Operation | None = None
    is_over: bool = False
    insert: Callable[[Call, Prepared], None] = _insert_nothing
