"""Define persistent requests that find the fastest algorithm by their first starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpi4py import MPI

from ..dispatch.call import Call
from ..dispatch.overlapping import OverlappingLesson
from ..progress.operation import Operation
from ..runtime.comm_state import CommState
from . import release
from .persistent import PersistentCall
from .prequest import Prequest

if TYPE_CHECKING:
    from ..fastpath.start import CompiledFastStart


class PersistentTurns:
    """A persistent call that takes turns among candidates, one PersistentCall for each; then it keeps the fastest."""

    def __init__(self, lesson: OverlappingLesson, calls: Sequence[PersistentCall]) -> None:
        self.lesson, self.calls, self.call = lesson, calls, calls[0]
        self.is_settled = False

    @property
    def sequence(self) -> int:
        """Return the number of the call that was started last."""
        return self.call.sequence

    @property
    def name(self) -> str:
        """Return the name of the method that was called."""
        return self.call.name

    @property
    def fast_start(self) -> CompiledFastStart | None:
        """Return the fast path of starts; None until the turns are over."""
        return self.call.fast_start if self.is_settled else None

    def update_kernels(self) -> bool:
        """Use newly compiled kernels. The first start after the last turn frees all calls but the fastest."""
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
        """Return the operation of one start, of the candidate whose turn it is; None if it is complete."""
        if self.is_settled:
            return self.call.next_start()
        self.call = self.calls[self.lesson.calls % len(self.calls)]
        operation = self.call.next_start()
        assert operation is not None  # the request does not use the fast path yet
        return self.lesson.turn(operation, self.call.state.follows_kernels)

    def free(self) -> None:
        """Free all calls, now or when their starts in flight complete."""
        self._free_others()
        self.call.free()

    def _free_others(self) -> None:
        for call in self.calls:
            if call is not self.call:
                call.free()
        self.calls = [self.call]


def prepare_turns(state: CommState, lesson: OverlappingLesson, calls: Sequence[Call]) -> MPI.Prequest:
    """Return a request that takes turns among calls prepared with the candidates of a lesson. Collective."""
    release.run_deferred_frees()
    persistent = [PersistentCall(state, call, state.next_sequence()) for call in calls]
    return Prequest.prepare(state, PersistentTurns(lesson, persistent))
