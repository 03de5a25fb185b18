"""The fast path of a call: Python does not inspect the arguments of kinds that were served before.

entry.py has the function that a method tries first. This module handles the calls that leave the fast path: a call
that is not done after some milliseconds becomes an operation, and a traced call leaves its record. A kind of call is
inserted when it is served for the second time, from a snapshot of its arguments (see buffers/snapshot.py), and if the
same plan served it the first time.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ..diagnostics.history import FAILED, RowWords
from ..dispatch import execute
from ..dispatch.call import Call
from ..dispatch.methods import Method
from ..dispatch.staging import aligned
from ..engines import compiled
from ..kernels import background
from ..plans.plan import ALIGN
from ..progress.operation import CallId, Operation, Raised
from ..progress.stages import PlanStage
from ..progress.times import Clock
from ..runtime import cache
from ..schedules.collectives import BLOCKING
from ..selection.select import Overrides
from . import context as field
from . import entry, kinds, signature, sites
from .described import Integers, UnknownCounts
from .outcome import Outcome
from .packs import are_packable
from .start import CompiledFastStart
from .table import Key, Kind, Stats, Table

if TYPE_CHECKING:
    from ..runtime.comm_state import CommState

LARGEST = 256 << 10  # bytes of a plan that is kept for one kind
MOST = 8 << 20  # and for all
SINGLE = 256  # the largest integer that Python has one object of
_let_go = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_DecRef", ctypes.pythonapi))


class CompiledFastPath:
    """One communicator's fast path: `fast_call`, the function (method, send, recv, op, root) -> 0 where it served."""

    closed = ""

    def __init__(self, state: CommState) -> None:
        self.state: CommState = weakref.proxy(state)  # no cycle: it ends with the communicator
        room = min(signature.MAX_CAPACITY, 64 + 16 * state.size)  # counts, displacements and datatypes of both sides
        self.details = np.empty(room, np.int64)
        self.keep = state.needing_python, state.counters, self.details
        self.context = field.new(*self.keep)
        first = MPI.Get_address(self.context)
        held = field.HELD_SEND, field.HELD_RECV
        self.held = [(where, ctypes.py_object.from_address(first + 8 * where)) for where in held]
        self.tables: OrderedDict[Overrides, Table] = OrderedDict()
        self.activate(Overrides())
        self.context[field.OPEN] = True
        self.fast_call = entry.bound_to(self.context)

    def close(self) -> None:
        """Serve no more calls."""
        self.context[field.OPEN] = False

    def activate(self, overrides: Overrides) -> None:
        """Serve calls by what was inserted under these overrides."""
        if self.context[field.OUTCOME] != Outcome.NOT_SERVED:
            self.leak()
        if overrides not in self.tables:
            self.tables[overrides] = Table()
        self.tables.move_to_end(overrides)
        self.table = self.tables[overrides]
        if len(self.tables) > cache.MAX_OVERRIDES:
            self.tables.popitem(last=False)[1].clear()
        self.context[field.TABLE] = MPI.Get_address(self.table.rows)

    def clear(self) -> None:
        """Forget every kind."""
        for table in self.tables.values():
            table.clear()

    def forget(self) -> None:
        """Forget every kind that was inserted under the overrides in force."""
        self.table.clear()

    def stats(self) -> Stats:
        """Return what it holds for calls of the kinds that it serves. Other threads may change it meanwhile."""
        kinds = [kind for table in list(self.tables.values()) for kind, _ in list(table.kinds.values())]
        return Stats(len(self.table.kinds), len(kinds), len(self.tables), sum(kind.nbytes for kind in kinds))

    def key(self, call: Call) -> Key | None:
        """Compute the key of a kind of call; return None if the function cannot serve such calls.

        This runs before the call does, while the arguments still say what was parsed.
        """
        if call.root > SINGLE or not execute.is_run_by_compiled_code(call) or background.state.pending:
            return None  # of a pending kernel the table would keep NumPy's
        if not are_packable(call):
            return None
        if not self.fast_call(*call.invocation, None, None):
            return None  # a row serves it already, but for scratch, tags or buffers that overlap
        if not self.context.item(field.KEY + signature.METHOD):
            return None
        words = self.context[field.KEY : field.KEY + signature.KEYS].copy()
        self.context[field.KEY + signature.METHOD] = 0
        row, any_row = self.context[[field.ROW, field.ANY_ROW]].tolist()
        return Key(row, any_row, words, self.details[: words[signature.LENGTH]].copy())

    def insert(self, call: Call) -> None:
        """Serve calls of this kind from now on, if it has a key, and the same served the last one.

        If the last one had other counts, serve calls of all counts for which the choice and the template are the same.
        The key has the addresses of objects, so every dtype, datatype and root in the arguments must be the only object
        of its value.
        """
        key, invocation, prepared = call.key, call.invocation, call.prepared
        if key is None:
            return
        plan = prepared.plan
        assert plan is not None
        if call.arguments and call.arguments.shared_buffer is not None and not key.words[signature.SAME]:
            return  # other arrays of this key are not in place
        if plan.nbytes > LARGEST or not kinds.are_single(invocation):
            return
        if self._insert_any_counts(call, key):
            return
        sides = kinds.sides(call)
        if not self.table.was_seen(key, (weakref.ref(prepared), sides)):
            return
        self._put(key.row, *kinds.exact(self.state, call, sides))

    def _insert_any_counts(self, call: Call, key: Key) -> bool:
        """Serve calls like this one whatever their counts, if the last one had others. Return whether it does."""
        plan, choice, integers = call.prepared.plan, call.prepared.choice, Integers(call.invocation)
        assert plan is not None
        others = integers.others(key.details)
        alike = key.any_words.tobytes(), others, choice.algorithm, choice.chunk_bytes, plan.lanes > 1
        if not self.table.varies(alike, key):
            return False
        try:
            kind, row = kinds.of_any_counts(self.state, call, integers)
        except UnknownCounts:
            self.table.give_up(alike)
            return False
        if kind.nbytes > LARGEST:
            self.table.give_up(alike)
            return False
        self._put(key.any_row, kind, row)
        return True

    def _put(self, at: int, kind: Kind, row: np.ndarray) -> None:
        """Store a kind, and forget all others if they take too much memory."""
        if self.stats().nbytes + kind.nbytes > MOST:
            self.clear()
        self.table.put(at, kind, row)
        self.context[field.TURN] += 1

    # -- what leaves the fast path --------------------------------------------------------------------------

    def resume(self, method: Method, form: str) -> tuple[bool, Operation | None]:
        """Return whether the function began this call, and the operation that completes it, None if it is complete.

        Raises MPI.Exception.
        """
        outcome = self.context.item(field.OUTCOME)
        if outcome == Outcome.NOT_SERVED:
            return False, None
        sites.KNOWN.note(self.context)
        at = int(self.context[field.ROW])
        kind_and_row = self.table.kinds.get(at)
        # the function began another call, which was interrupted on its way here
        if outcome == Outcome.ABANDONED or kind_and_row is None or kind_and_row[0].method is not method:
            self._leak()
            return False, None
        kind, row = kind_and_row
        sequence = self.state.sequence
        if outcome == Outcome.COMPLETED:
            self.context[field.OUTCOME] = Outcome.NOT_SERVED
            self.context[field.SCRATCH_SHARED] = 0
            self._held()
            if (error := kind.error()) is not None:
                self.state.history.end(self.context.item(field.LAST_ROW), FAILED)
                raise error
            self._record(kind, form, sequence, Clock(is_blocking=True))  # the program was in it to its end
            return True, None
        if outcome != Outcome.IN_PROGRESS:
            self._leak()
            call_id = CallId(sequence, 0, method.spelled(form))
            error = kind.execution.error(-outcome)
            self.state.history.end(self.context.item(field.LAST_ROW), FAILED)
            self.state.fail(call_id, error)
            self.state.raise_if_ranks_failed(error, call_id, kind.choice)
            raise error
        return True, self._operation(at, kind, row, form)

    def note_line(self) -> None:
        """Note the program's line of the last call in its row, where other libraries are between it and the method."""
        if row := self.context.item(field.LAST_ROW):
            self.state.history.set_line(row)

    def _operation(self, at: int, kind: Kind, row: np.ndarray, form: str) -> Operation:
        """Return the operation that completes the call of a kind that the function began."""
        table, sequence = self.table, self.state.sequence
        row_in_history = self.context.item(field.LAST_ROW)
        # first: after an interrupt, everything that MPI may write to must be kept
        buffers: list[Any] = [self.state.scratch.array]
        try:
            table.take(at)
            kind.settle()
            buffers += self._held()
            scratch = self._lent()
            self.context[field.OUTCOME] = Outcome.NOT_SERVED
        except BaseException:  # Ctrl-C
            self.state.leak((kind, buffers), sequence)
            raise

        clock = Clock(is_blocking=form == BLOCKING)

        def finish() -> None:
            nonlocal scratch
            if kind.packs is not None and scratch is not None:
                kind.packs.unpack()
            if (error := kind.error()) is None:
                self._record(kind, form, sequence, clock)
            if at not in table.kinds:  # of these overrides, though others may be in force by now
                table.put(at, kind, row)
            array, scratch = scratch, None  # last, and once, as in ActiveCall.finish
            self.state.scratch.give(array)
            if error is not None:
                raise Raised(error)

        stages = [lambda: PlanStage(kind.execution)]
        operation = Operation(kind.choice, sequence, stages, finish, (kind, buffers), form, kind.method.spelled(form))
        operation.is_posted, operation.clock, operation.row = True, clock, row_in_history
        return operation

    def leak(self) -> None:
        """Abandon what the function began, if anything. Its memory stays allocated, since MPI may still write to it."""
        outcome = self.context.item(field.OUTCOME)
        if outcome == Outcome.COMPLETED:
            self.context[field.OUTCOME] = Outcome.NOT_SERVED
            self._held()
        elif outcome != Outcome.NOT_SERVED:
            self._leak()

    def _leak(self) -> None:
        kind_and_row = self.table.take(int(self.context[field.ROW]))
        self.state.leak(((kind_and_row, self._lent()), self._held()), self.state.sequence)
        self.context[field.OUTCOME] = Outcome.NOT_SERVED

    def open_start(
        self, execution: compiled.Execution, started: np.ndarray, words: RowWords
    ) -> CompiledFastStart | None:
        """Return the fast path of a persistent collective's starts; None until its functions are compiled."""
        try:
            return CompiledFastStart(self.state, execution, started, words)
        except background.NotCompiled:
            return None

    def share_scratch(self, scratch: np.ndarray) -> bool:
        """Let fast calls use this scratch. Return False if a call that the function began uses the previous one."""
        if not self.reclaim_scratch():
            return False
        self.context[field.SCRATCH] = aligned(scratch)
        self.context[field.SCRATCH_BYTES] = len(scratch) - ALIGN
        return True

    def reclaim_scratch(self, in_use: bool = False) -> bool:
        """Stop fast calls from using the scratch. Return False if a fast call in flight uses it, unless in_use."""
        before = self.context.item(field.SCRATCH_BYTES)
        self.context[field.SCRATCH_BYTES] = 0  # first, so that no call begins to use it meanwhile
        if self.context.item(field.SCRATCH_SHARED) and not in_use:
            self.context[field.SCRATCH_BYTES] = before
            return False
        self.context[field.SCRATCH_SHARED] = 0
        return True

    def _lent(self) -> np.ndarray | None:
        """Return the scratch of a call that the function began; no other call may use it before that call ends."""
        return self.state.scratch.take(0, in_use=True) if self.context.item(field.SCRATCH_SHARED) else None

    def _held(self) -> list[Any]:
        """Return the buffers to which the function holds references; the list takes these over."""
        buffers = []
        for where, word in self.held:
            if self.context.item(where):
                buffers.append(word.value)
                self.context[where] = 0
                _let_go(buffers[-1])
        return buffers

    def _record(self, kind: Kind, form: str, sequence: int, clock: Clock) -> None:
        if self.state.traces:
            kind.settle()
            messages, nbytes, _ = kind.execution.progress
            times = clock.times(kind.execution.events())
            did = {"sequence": sequence, "messages": messages, "bytes": nbytes, "times": times}
            self.state.record(kind.record_of_call(form=form, name=kind.method.spelled(form), **did))
