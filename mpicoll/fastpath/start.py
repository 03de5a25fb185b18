"""Start and finish persistent collectives on the fast path, without Python before the first message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from ..diagnostics.ring import RING
from ..engines import compiled
from . import context as field
from . import entry, sites
from .outcome import Outcome
from .spin import spin_budget_ns

if TYPE_CHECKING:
    from ..diagnostics.history import RowWords
    from ..diagnostics.record import Record
    from ..runtime.comm_state import CommState
    from .packed_buffers import PackedBuffers


class CompiledFastStart:
    """The fast path of a persistent collective.

    fast_call(request) starts it, and returns 0 if it is complete. finish(request) makes a complete request inactive
    again, and returns 0 if it was complete.
    """

    def __init__(
        self,
        state: CommState,
        execution: compiled.Execution,
        started: np.ndarray,
        words: RowWords,
        record: Record,
        packed: PackedBuffers | None,
    ) -> None:
        """Make the functions for an execution that stays bound; `started` has one word, the number of starts.

        record: what the records of all starts have in common. packed: packs and unpacks buffers with holes.
        """
        self.packed = packed
        self.keep = execution, started, state.needing_python, state.counters, np.empty(0, np.int64)
        self.context = field.new_context(*self.keep[2:])
        self.tables = execution.table
        self.context[field.TABLE], self.context[field.STARTED] = map(MPI.Get_address, (self.tables, started))
        self.context[field.PACKS] = packed.at if packed is not None else 0
        self.context[field.SPIN_NS] = spin_budget_ns(words.nbytes)
        self.context[field.ROW_WORDS : field.ROW_WORDS + len(words)] = words
        self.context[field.KIND], self.kinds = RING.add(execution.plan, record.with_values(fast_path=True))
        self.context[field.OPEN] = True
        self.fast_call = entry.bind_to(self.context, entry.fast_start)
        self.finish = entry.bind_to(self.context, entry.finish)

    @property
    def row(self) -> int:
        """Return the serial of the last start's row in the history of calls."""
        return int(self.context[field.LAST_ROW])

    def open(self) -> None:
        """Serve starts again."""
        self.context[field.OPEN] = True

    def close(self) -> None:
        """Serve no start until open() is called."""
        self.context[field.OPEN] = False

    def is_in_progress(self) -> bool:
        """Return whether the last start posted messages and no operation completes it yet."""
        return int(self.context[field.OUTCOME]) not in (Outcome.NOT_SERVED, Outcome.COMPLETED)

    def outcome(self) -> int:
        """Return the outcome of the last start, and reset it."""
        outcome = int(self.context[field.OUTCOME])
        sites.KNOWN.note(self.context)
        self.context[field.OUTCOME] = Outcome.NOT_SERVED
        return outcome
