"""Manage the fast path of a communicator: insert kinds of calls, and complete calls that leave compiled code.

entry.py has the function that a method tries first. A call that is not done after some milliseconds becomes an
operation here, and a traced call gets its record. A kind of call is inserted when the slow path has run it twice with
the same plan, from a snapshot of the arguments (see buffers/snapshot.py).
"""

from __future__ import annotations

import ctypes
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ..diagnostics.history import FAILED, RowWords
from ..diagnostics.record import Record
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
from . import cached_calls, entry, signature, sites
from . import context as field
from .count_sources import Integers, UnknownCounts
from .outcome import Outcome
from .packed_buffers import PackedBuffers, are_packable, needs_packing
from .start import CompiledFastStart
from .table import CachedCall, Key, Stats, Table

if TYPE_CHECKING:
    from ..runtime.comm_state import CommState

MAX_PLAN_BYTES = 256 << 10  # of the plan of a cached call
MAX_CACHED_BYTES = 8 << 20  # of all cached calls
MAX_CACHED_INT = 256  # CPython has one object of every int up to this
_decref = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_DecRef", ctypes.pythonapi))


class CompiledFastPath:
    """The fast path of a communicator. fast_call(method, send, recv, op, root) returns 0 if it completed the call."""

    closed = ""

    def __init__(self, state: CommState) -> None:
        self.state: CommState = weakref.proxy(state)  # a cycle would delay the release of its memory
        capacity = min(signature.MAX_CAPACITY, 64 + 16 * state.size)  # words for details of both sides
        self.details = np.empty(capacity, np.int64)
        self.keep = state.needing_python, state.counters, self.details
        self.context = field.new_context(*self.keep)
        first = MPI.Get_address(self.context)
        held = field.HELD_SEND, field.HELD_RECV
        self.held = [(where, ctypes.py_object.from_address(first + 8 * where)) for where in held]
        self.tables: OrderedDict[Overrides, Table] = OrderedDict()
        self.activate(Overrides())
        self.context[field.OPEN] = True
        self.fast_call = entry.bind_to(self.context)

    def close(self) -> None:
        """Refuse all further calls."""
        self.context[field.OPEN] = False

    def activate(self, overrides: Overrides) -> None:
        """Serve the kinds of calls that were inserted under these overrides."""
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
        """Remove all cached calls."""
        for table in self.tables.values():
            table.clear()

    def forget(self) -> None:
        """Remove the cached calls that were inserted under the overrides in force."""
        self.table.clear()

    def stats(self) -> Stats:
        """Count the cached calls and their memory. Other threads may change them meanwhile."""
        all_cached = [cached for table in list(self.tables.values()) for cached, _ in list(table.kinds.values())]
        nbytes = sum(cached.nbytes for cached in all_cached)
        return Stats(len(self.table.kinds), len(all_cached), len(self.tables), nbytes)

    def key(self, call: Call) -> Key | None:
        """Return the key of a kind of call; None if fast_call cannot serve such calls, or does already.

        This is called before the call runs, while the arguments are those that were parsed.
        """
        if call.root > MAX_CACHED_INT or not execute.runs_in_compiled_code(call) or background.state.pending:
            return None  # the cached call would keep NumPy's kernel instead of one that is compiled now
        if not are_packable(call):
            return None
        if not self.fast_call(*call.invocation, None, None):
            return None  # a row matches: only scratch, tags or overlap prevented it
        if not self.context.item(field.KEY + signature.METHOD):
            return None
        words = self.context[field.KEY : field.KEY + signature.KEYS].copy()
        self.context[field.KEY + signature.METHOD] = 0
        row, any_row = self.context[[field.ROW, field.ANY_ROW]].tolist()
        return Key(row, any_row, words, self.details[: words[signature.LENGTH]].copy())

    def insert(self, call: Call) -> None:
        """Serve calls of this kind from now on, if it has a key and the last such call had the same plan.

        If the last one had other counts, serve calls of all counts that have the same choice and template. A key
        contains addresses of objects, so no dtype, datatype or root in the arguments may be freed while it is in use.
        """
        key, invocation, prepared = call.key, call.invocation, call.prepared
        if key is None:
            return
        plan = prepared.plan
        assert plan is not None
        if call.arguments and call.arguments.shared_buffer is not None and not key.words[signature.SAME_ADDRESS]:
            return  # a call with the same key need not be in place
        if plan.nbytes > MAX_PLAN_BYTES or not cached_calls.keep_dtypes(invocation):
            return
        if self._insert_any_counts(call, key):
            return
        sides = cached_calls.sides(call)
        if not self.table.was_served_alike(key, (weakref.ref(prepared), sides)):
            return
        self._put(key.row, *cached_calls.with_counts(self.state, call, sides))

    def _insert_any_counts(self, call: Call, key: Key) -> bool:
        """Serve such calls with any counts from now on, if the last one had other counts. Return whether that is so."""
        plan, choice, integers = call.prepared.plan, call.prepared.choice, Integers(call.invocation)
        assert plan is not None
        others = integers.without_integers(key.details)
        family = key.any_words.tobytes(), others, choice.algorithm, choice.chunk_bytes, plan.lanes > 1
        if not self.table.counts_vary(family, key):
            return False
        try:
            cached, row = cached_calls.with_any_counts(self.state, call, integers)
        except UnknownCounts:
            self.table.never_vary(family)
            return False
        if cached.nbytes > MAX_PLAN_BYTES:
            self.table.never_vary(family)
            return False
        self._put(key.any_row, cached, row)
        return True

    def _put(self, at: int, cached: CachedCall, row: np.ndarray) -> None:
        """Store a cached call, after removing all others if they would take too much memory together."""
        if self.stats().nbytes + cached.nbytes > MAX_CACHED_BYTES:
            self.clear()
        self.table.put(at, cached, row)
        self.context[field.INSERTIONS] += 1

    # -- calls that leave the fast path ---------------------------------------------------------------------

    def resume(self, method: Method, form: str) -> tuple[bool, Operation | None]:
        """Return (True, the operation that completes the call, None if it is complete), or (False, None).

        False: fast_call did not begin this call. Raises MPI.Exception, or the error of a user's operator.
        """
        outcome = self.context.item(field.OUTCOME)
        if outcome == Outcome.NOT_SERVED:
            return False, None
        sites.KNOWN.note(self.context)
        at = int(self.context[field.ROW])
        cached_and_row = self.table.kinds.get(at)
        # fast_call began another call, and an interrupt came before that was resumed
        if outcome == Outcome.ABANDONED or cached_and_row is None or cached_and_row[0].method is not method:
            self._leak()
            return False, None
        cached, row = cached_and_row
        sequence = self.state.sequence
        if outcome == Outcome.COMPLETED:
            self.context[field.OUTCOME] = Outcome.NOT_SERVED
            self.context[field.SCRATCH_SHARED] = 0
            self._take_buffers()
            if (error := cached.error()) is not None:
                self.state.history.end(self.context.item(field.LAST_ROW), FAILED)
                raise error
            self._record(cached, form, sequence, Clock(is_blocking=True))  # the program waited all the time
            return True, None
        if outcome != Outcome.IN_PROGRESS:
            self._leak()
            call_id = CallId(sequence, 0, method.spelled(form))
            error = cached.execution.error(-outcome)
            self.state.history.end(self.context.item(field.LAST_ROW), FAILED)
            self.state.fail(call_id, error)
            self.state.raise_if_ranks_failed(error, call_id, cached.choice)
            raise error
        return True, self._operation(at, cached, row, form)

    def note_line(self) -> None:
        """Write the program's line into the history row of the last call, for callers that are libraries themselves."""
        if row := self.context.item(field.LAST_ROW):
            self.state.history.set_line(row)

    def _operation(self, at: int, cached: CachedCall, row: np.ndarray, form: str) -> Operation:
        """Return the operation that completes a call that fast_call began."""
        table, sequence = self.table, self.state.sequence
        row_in_history = self.context.item(field.LAST_ROW)
        # first: after an interrupt, all memory to which MPI may write must be kept
        buffers: list[Any] = [self.state.scratch.array]
        try:
            table.take(at)
            cached.update_plan()
            buffers += self._take_buffers()
            scratch = self._scratch_in_use()
            self.context[field.OUTCOME] = Outcome.NOT_SERVED
        except BaseException:  # Ctrl-C
            self.state.leak((cached, buffers), sequence)
            raise

        clock = Clock(is_blocking=form == BLOCKING)

        def finish() -> None:
            nonlocal scratch
            if cached.packed is not None and scratch is not None:
                cached.packed.unpack()
            if (error := cached.error()) is None:
                self._record(cached, form, sequence, clock)
            if at not in table.kinds:  # in the table of the call, though other overrides may be in force by now
                table.put(at, cached, row)
            array, scratch = scratch, None  # once, as in ActiveCall.finish
            self.state.scratch.give_back(array)
            if error is not None:
                raise Raised(error)

        stages = [lambda: PlanStage(cached.execution)]
        name = cached.method.spelled(form)
        operation = Operation(cached.choice, sequence, stages, finish, (cached, buffers), form, name)
        operation.is_posted, operation.clock, operation.row = True, clock, row_in_history
        return operation

    def leak(self) -> None:
        """Abandon the call that fast_call began, if any. Its memory stays, since MPI may still write to it."""
        outcome = self.context.item(field.OUTCOME)
        if outcome == Outcome.COMPLETED:
            self.context[field.OUTCOME] = Outcome.NOT_SERVED
            self._take_buffers()
        elif outcome != Outcome.NOT_SERVED:
            self._leak()

    def _leak(self) -> None:
        cached_and_row = self.table.take(int(self.context[field.ROW]))
        self.state.leak(((cached_and_row, self._scratch_in_use()), self._take_buffers()), self.state.sequence)
        self.context[field.OUTCOME] = Outcome.NOT_SERVED

    def open_start(
        self, call: Call, execution: compiled.Execution, started: np.ndarray, words: RowWords, record: Record
    ) -> CompiledFastStart | None:
        """Return the fast path for the starts of a persistent collective.

        None until its functions are compiled, and if compiled code cannot pack the call's buffers.
        """
        if not are_packable(call):
            return None
        try:
            packed = PackedBuffers.of_starts(call, self.state.rank) if needs_packing(call) else None
            return CompiledFastStart(self.state, execution, started, words, record, packed)
        except background.NotCompiled:
            return None

    def share_scratch(self, scratch: np.ndarray) -> bool:
        """Let fast calls use this scratch. Return False if a fast call in flight uses the previous scratch."""
        if not self.reclaim_scratch():
            return False
        self.context[field.SCRATCH] = aligned(scratch)
        self.context[field.SCRATCH_BYTES] = len(scratch) - ALIGN
        return True

    def reclaim_scratch(self, in_use: bool = False) -> bool:
        """Stop fast calls from using the scratch. Return False if a fast call in flight uses it, unless in_use."""
        before = self.context.item(field.SCRATCH_BYTES)
        self.context[field.SCRATCH_BYTES] = 0  # first, so that no fast call begins to use the scratch meanwhile
        if self.context.item(field.SCRATCH_SHARED) and not in_use:
            self.context[field.SCRATCH_BYTES] = before
            return False
        self.context[field.SCRATCH_SHARED] = 0
        return True

    def _scratch_in_use(self) -> np.ndarray | None:
        """Take the scratch of the fast call in flight, so that no other call uses it; None if that has no scratch."""
        return self.state.scratch.take(0, in_use=True) if self.context.item(field.SCRATCH_SHARED) else None

    def _take_buffers(self) -> list[Any]:
        """Return the buffers to which fast_call has references; the list takes over the references."""
        buffers = []
        for where, word in self.held:
            if self.context.item(where):
                buffers.append(word.value)
                self.context[where] = 0
                _decref(buffers[-1])
        return buffers

    def _record(self, cached: CachedCall, form: str, sequence: int, clock: Clock) -> None:
        if self.state.sinks:
            cached.update_plan()
            messages, nbytes, _ = cached.execution.progress
            times = clock.times(cached.execution.events())
            did = {"sequence": sequence, "messages": messages, "bytes": nbytes, "times": times}
            self.state.sinks.append(cached.record_of_call(form=form, name=cached.method.spelled(form), **did))
