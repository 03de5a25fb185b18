"""The fast path of a persistent collective: a start, and its end, without Python before its first message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from ..engines import compiled
from . import context as field
from . import entry, sites
from .outcome import Outcome
from .spin import spin_budget_ns

if TYPE_CHECKING:
    from ..diagnostics.history import RowWords
    from ..runtime.comm_state import CommState


class CompiledFastStart:
    """The fast path of a persistent collective: functions of its request, which return 0 if nothing is left to do.

    `fast_call` starts and completes it; `finish` makes it inactive again.
    """

    def __init__(self, state: CommState, execution: compiled.Execution, started: np.ndarray, words: RowWords) -> None:
        """For an execution that is bound for good; started is where the number of starts is."""
        self.keep = execution, started, state.needing_python, state.counters, np.empty(0, np.int64)
        self.context = field.new(*self.keep[2:])
        self.tables = execution.table
        self.context[field.TABLE], self.context[field.STARTED] = map(MPI.Get_address, (self.tables, started))
        self.context[field.SPIN_NS] = spin_budget_ns(words.nbytes)
        self.context[field.ROW_WORDS : field.ROW_WORDS + len(words)] = words
        self.context[field.OPEN] = True
        self.fast_call = entry.bound_to(self.context, entry.fast_start)
        self.finish = entry.bound_to(self.context, entry.finish)

    @property
    def row(self) -> int:
        """The serial of the row that the last start has in the history of calls."""
        return int(self.context[field.LAST_ROW])

    def open(self) -> None:
        """Serve starts again."""
        self.context[field.OPEN] = True

    def close(self) -> None:
        """Serve no start until open() is called."""
        self.context[field.OPEN] = False

    def is_under_way(self) -> bool:
        """Return whether the last start has posted messages that no operation has taken over."""
        return int(self.context[field.OUTCOME]) not in (Outcome.NOT_SERVED, Outcome.COMPLETED)

    def outcome(self) -> int:
        """Return the outcome of the last start, and reset it."""
        outcome = int(self.context[field.OUTCOME])
        sites.KNOWN.note(self.context)
        self.context[field.OUTCOME] = Outcome.NOT_SERVED
        return outcome
