"""Persistent requests that learn, by their first starts, which algorithm is the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpi4py import MPI

from ..dispatch.call import Call
from ..dispatch.overlapping import OverlappingLesson
from ..progress.operation import Operation
from ..runtime.comm_state import CommState
from . import release
from .persistent import PersistentCall, Prequest

if TYPE_CHECKING:
    from ..fastpath.start import CompiledFastStart


class PersistentTurns:
    """A persistent call that takes turns: a PersistentCall for each candidate, of which the fastest stays."""

    def __init__(self, lesson: OverlappingLesson, calls: Sequence[PersistentCall]) -> None:
        self.lesson, self.calls, self.call = lesson, calls, calls[0]
        self.is_settled = False

    @property
    def sequence(self) -> int:
        """The number of the call that was started last."""
        return self.call.sequence

    @property
    def name(self) -> str:
        """The method that was called."""
        return self.call.name

    @property
    def fast_start(self) -> CompiledFastStart | None:
        """The fast path of starts, once there are no turns any more."""
        return self.call.fast_start if self.is_settled else None

    def update_kernels(self) -> bool:
        """As PersistentCall's; the first start after the last turn settles which call stays."""
        if self.is_settled:
            return self.call.update_kernels()
        if not self.lesson.is_over:
            for call in self.calls:
                call.update_kernels()
            return False
        self.is_settled, self.call = True, self.calls[self.lesson.best]
        self._free_others()
        self.call.update_kernels()
        return self.call.fast_start is not None

    def next_start(self) -> Operation | None:
        """As PersistentCall's."""
        if self.is_settled:
            return self.call.next_start()
        self.call = self.calls[self.lesson.calls % len(self.calls)]
        operation = self.call.next_start()
        assert operation is not None  # the fast path is not open yet
        return self.lesson.turn(operation, self.call.state.follows_kernels)

    def free(self) -> None:
        """As PersistentCall's."""
        self._free_others()
        self.call.free()

    def _free_others(self) -> None:
        for call in self.calls:
            if call is not self.call:
                call.free()
        self.calls = [self.call]


def prepare_turns(state: CommState, lesson: OverlappingLesson, calls: Sequence[Call]) -> MPI.Prequest:
    """Return a request that takes turns among a call as prepared by each candidate. Collective."""
    release.run_deferred_frees()
    persistent = [PersistentCall(state, call, state.next_sequence()) for call in calls]
    return Prequest.prepare(state, PersistentTurns(lesson, persistent))
