"""The fast path of a call: kinds that were served before need no look at their arguments in Python.

entry.py has the function that a method tries first. What leaves the fast path comes back here: a call that is not
done after some milliseconds becomes an operation, one that somebody traces leaves its record. A kind of call is
inserted when it is served for the second time, from arguments that nobody can change (see buffers/snapshot.py), and if
what serves it is what served it the first time.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..dispatch import execute
from ..dispatch.methods import Method
from ..dispatch.prepare import Call, Prepared
from ..dispatch.staging import aligned
from ..engines import compiled
from ..plans.plan import ALIGN
from ..runtime import cache
from ..runtime.operation import Operation, Record, Running
from ..runtime.status import Standing
from ..schedules.collectives import BLOCKING
from ..selection.select import Choice, Overrides
from . import context as field
from . import entry as engine
from . import signature as keys
from .outcome import Outcome

if TYPE_CHECKING:
    from ..runtime.channel import Channel

BRIEF = 256 << 10  # bytes of a call up to which a nonblocking form stays for a moment: it may be over at once
MOMENT, BYTES_A_NANOSECOND = 20_000, 2  # how long that is: nanoseconds at least, and more for more bytes
LARGEST = 256 << 10  # bytes of a plan that is kept for one kind
MOST = 8 << 20  # and for all
SINGLE = 256  # the largest integer that Python has one object of
SEEN = 4 * keys.ROWS  # kinds that were served once, of which it is known what served them
_DATATYPES = {id(each): each for each in vars(MPI).values() if isinstance(each, MPI.Datatype)}
_let_go = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_DecRef", ctypes.pythonapi))


@dataclass(frozen=True)
class Miss:
    """What kind of call it is, as the beginning of the row that it has in the function's table, or would have."""

    row: int
    key: np.ndarray
    details: np.ndarray

    @property
    def digest(self) -> int:
        """A number that two kinds have in common only by a rare chance."""
        return hash((self.key.tobytes(), self.details.tobytes()))


Seen = tuple["weakref.ref[Prepared]", tuple[tuple[int, int], ...]]  # what served a call, and the sides of its buffers


@dataclass(frozen=True)
class Kind:
    """What serves a kind of call: an execution that only wants buffers and a tag; keep has the objects of its key."""

    execution: compiled.Execution
    choice: Choice
    record: Record
    method: Method
    nbytes: int
    details: np.ndarray
    keep: Any

    def is_of(self, miss: Miss, row: np.ndarray) -> bool:
        """Return whether that is what was asked for; row is its own."""
        return np.array_equal(row[: keys.KEYS], miss.key) and np.array_equal(self.details, miss.details)


class Stats(NamedTuple):
    """What a fast path holds: kinds of calls under the overrides in force, under all, for how many overrides, bytes."""

    kinds: int
    all_kinds: int
    overrides: int
    nbytes: int


class Table:
    """Kinds of calls by their row, as Python has them and as the function does."""

    def __init__(self) -> None:
        self.rows = np.zeros((keys.ROWS, engine.COLUMNS), np.int64)
        self.kinds: dict[int, tuple[Kind, np.ndarray]] = {}
        self.seen: OrderedDict[int, Seen] = OrderedDict()  # by a hash of the key and the details

    def was_seen(self, miss: Miss, served: Seen) -> bool:
        """Return whether the same served the last call of that kind; it is remembered for the next."""
        before, self.seen[miss.digest] = self.seen.get(miss.digest), served
        self.seen.move_to_end(miss.digest)
        if len(self.seen) > SEEN:
            self.seen.popitem(last=False)
        return before == served

    def put(self, at: int, kind: Kind, row: np.ndarray) -> None:
        """Have a kind in a row, in the place of what was there."""
        self.kinds[at] = kind, row
        self.rows[at] = row

    def clear(self) -> None:
        """Have none."""
        self.rows[:] = 0
        self.kinds.clear()
        self.seen.clear()

    def take(self, at: int) -> tuple[Kind, np.ndarray] | None:
        """Return what was in a row, which is empty from now on."""
        self.rows[at] = 0
        return self.kinds.pop(at, None)


class CompiledFastPath:
    """One communicator's fast path: `fast_call`, the function (method, send, recv, op, root) -> 0 where it served."""

    def __init__(self, channel: Channel) -> None:
        self.channel: Channel = weakref.proxy(channel)  # no cycle: what a channel has goes when it does
        room = min(keys.MOST_ROOM, 64 + 16 * channel.size)  # counts, displacements and datatypes of both sides
        self.details = np.empty(room, np.int64)
        self.keep = channel.how_busy, channel.numbers, self.details
        self.context = field.new(*self.keep)
        first = MPI.Get_address(self.context)
        held = field.HELD_SEND, field.HELD_RECV
        self.held = [(where, ctypes.py_object.from_address(first + 8 * where)) for where in held]
        self.tables: OrderedDict[Overrides, Table] = OrderedDict()
        self.under(Overrides())
        self.context[field.OPEN] = True
        self.fast_call = engine.bound_to(self.context)

    def close(self) -> None:
        """Serve nothing any more."""
        self.context[field.OPEN] = False

    def under(self, overrides: Overrides) -> None:
        """Serve calls by what was inserted under these overrides."""
        if self.context[field.OUTCOME] != Outcome.MISSED:
            self.leak()
        if overrides not in self.tables:
            self.tables[overrides] = Table()
        self.tables.move_to_end(overrides)
        self.table = self.tables[overrides]
        if len(self.tables) > cache.OVERRIDES:
            self.tables.popitem(last=False)[1].clear()
        self.context[field.TABLE] = MPI.Get_address(self.table.rows)

    def clear(self) -> None:
        """Forget every kind."""
        for table in self.tables.values():
            table.clear()

    def stats(self) -> Stats:
        """Return what it holds for calls of the kinds that it serves."""
        kinds = [kind for table in self.tables.values() for kind, _ in table.kinds.values()]
        return Stats(len(self.table.kinds), len(kinds), len(self.tables), sum(kind.nbytes for kind in kinds))

    def miss(self, method: Method, buffers: Sequence[Any], root: Any, op: MPI.Op | None) -> Miss | None:
        """Return what kind of call it is; None where the function could serve none of it.

        buffers: a snapshot, which says in insert() what it says here.
        """
        send, recv = [*[None] * (2 - len(buffers)), *buffers][:2]
        self.fast_call(method, send, recv, op, buffers[2] if len(buffers) > 2 else root, None, None)
        if not self.context[field.KEY + keys.METHOD]:
            return None
        key = self.context[field.KEY : field.KEY + keys.KEYS].copy()
        self.context[field.KEY + keys.METHOD] = 0
        return Miss(int(self.context[field.ROW]), key, self.details[: key[keys.LENGTH]].copy())

    def insert(
        self, miss: Miss, call: Call, prepared: Prepared, buffers: Sequence[Any], root: Any, op: MPI.Op | None
    ) -> None:
        """Serve calls of this kind from now on, if it may be, and the same served the last one.

        One that is known could not be served since its scratch was away, or too small, or its buffers overlap.
        Objects are known by their addresses: so those of dtypes, datatypes and roots must be such as there is one of.
        """
        plan, method = prepared.plan, call.method
        if root > SINGLE or not execute.may_take_the_fast_path(call, prepared):
            return
        assert plan is not None and method is not None
        if call.arguments and call.arguments.one is not None and not miss.key[keys.SAME]:
            return  # other arrays of this key are not in place
        known = self.table.kinds.get(miss.row)
        if plan.nbytes > LARGEST or (known is not None and known[0].is_of(miss, known[1])):
            return
        leaves, found = list(_leaves(buffers)), tuple(_sides(call, buffers))
        if not all(map(_is_single, leaves)) or not self.table.was_seen(miss, (weakref.ref(prepared), found)):
            return
        if self.stats().nbytes + plan.nbytes > MOST:
            self.clear()
        execution = compiled.Execution(plan, self.channel.comm)
        execution.bind(0, (0, 0, 0), *execute.kernels(call.operator, self.channel.size))
        tables = execution.addresses()
        sizes, offsets = zip(*((0, 0), (0, 0), *found)[-2:])
        more = moment(prepared.nbytes), plan.scratch_bytes, *map(MPI.Get_address, (tables, miss.details))
        row = np.array([*miss.key, *sizes, *offsets, *more], np.int64)
        record = execute.record(call, prepared, 0)
        strings = [leaf for leaf in leaves if isinstance(leaf, str)]
        nbytes = plan.nbytes + miss.details.nbytes
        kind = Kind(execution, prepared.choice, record, method, nbytes, miss.details, (tables, op, strings))
        self.table.put(miss.row, kind, row)
        self.context[field.TURN] += 1

    # -- what leaves the fast path --------------------------------------------------------------------------

    def resume(self, method: Method, form: str = BLOCKING) -> Operation | bool:
        """Return what becomes of a call of this method that the function began.

        It is True if the call is over, an operation if not.

        False where it began none. Raises MPI.Exception.
        """
        outcome = int(self.context[field.OUTCOME])
        if outcome == Outcome.MISSED:
            return False
        table, at = self.table, int(self.context[field.ROW])
        found = table.kinds.get(at)
        # another, interrupted on its way here
        if outcome == Outcome.STALE or found is None or found[0].method is not method:
            self._leak()
            return False
        kind, row = found
        sequence = self.channel.sequence
        if outcome == Outcome.RAN:
            self.context[field.OUTCOME] = Outcome.MISSED
            self.context[field.LENT] = 0
            self._held()
            self._record(kind, form, sequence)
            return True
        if outcome != Outcome.UNDER_WAY:
            self._leak()
            error = MPI.Exception(kind.execution.cause(-outcome))
            self.channel.fail(Standing(sequence, 0, method.spelled(form)), error)
            raise error
        buffers: list[Any] = [self.channel.scratch]  # first of all: an interrupt must find all that MPI may write to
        try:
            table.take(at)
            buffers += self._held()
            scratch = self._lent()
            self.context[field.OUTCOME] = Outcome.MISSED
        except BaseException:  # Ctrl-C
            self.channel.leak((kind, buffers), sequence)
            raise

        def finish() -> None:
            nonlocal scratch
            self._record(kind, form, sequence)
            if at not in table.kinds:  # in this one, though another may be in force by now
                table.put(at, kind, row)
            array, scratch = scratch, None  # last, and once, as in UnderWay.finish
            self.channel.give_scratch(array)

        stages = [lambda: Running(kind.execution)]
        name = method.spelled(form)
        operation = Operation(kind.choice, sequence, stages, finish, (kind, buffers), form, name)
        operation.is_begun = True
        return operation

    def leak(self) -> None:
        """Nobody goes on with what the function began, if it did. MPI may, in memory that stays."""
        outcome = self.context.item(field.OUTCOME)
        if outcome == Outcome.RAN:
            self.context[field.OUTCOME] = Outcome.MISSED
            self._held()
        elif outcome != Outcome.MISSED:
            self._leak()

    def _leak(self) -> None:
        found = self.table.take(int(self.context[field.ROW]))
        self.channel.leak(((found, self._lent()), self._held()), self.channel.sequence)
        self.context[field.OUTCOME] = Outcome.MISSED

    def lend(self, scratch: np.ndarray) -> bool:
        """Let calls of the fast path use this scratch; False where one that the function began uses the last."""
        if not self.withdraw():
            return False
        self.context[field.SCRATCH] = aligned(scratch)
        self.context[field.SCRATCH_BYTES] = len(scratch) - ALIGN
        return True

    def withdraw(self, lent: bool = False) -> bool:
        """Let no call use it; False where one does, unless that is who takes what it was lent."""
        before = self.context.item(field.SCRATCH_BYTES)
        self.context[field.SCRATCH_BYTES] = 0  # first, so that none begins to use it meanwhile
        if self.context.item(field.LENT) and not lent:
            self.context[field.SCRATCH_BYTES] = before
            return False
        self.context[field.LENT] = 0
        return True

    def _lent(self) -> np.ndarray | None:
        """Return the scratch that a call which the function began goes on with: nobody else has it until it is over."""
        return self.channel.take_scratch(0, lent=True) if self.context.item(field.LENT) else None

    def _held(self) -> list[Any]:
        """Return the buffers that the function held on to, now held by the list."""
        buffers = []
        for where, word in self.held:
            if self.context.item(where):
                buffers.append(word.value)
                self.context[where] = 0
                _let_go(buffers[-1])
        return buffers

    def _record(self, kind: Kind, form: str, sequence: int) -> None:
        if self.channel.traces:
            messages, nbytes, _ = kind.execution.progress
            record = replace(kind.record, form=form, sequence=sequence, fast_path=True)
            self.channel.record(replace(record, messages=messages, bytes=nbytes))


class CompiledFastStart:
    """The fast path of a persistent collective: functions of its request, which return 0 where that was all.

    `fast_call` starts it, and makes it complete; `finish` makes it inactive again.
    """

    def __init__(
        self, channel: Channel, execution: compiled.Execution, started: np.ndarray, nbytes: int
    ) -> None:
        """For an execution that is bound for good, of a call of nbytes; started is where the number of starts is."""
        self.keep = execution, started, channel.how_busy, channel.numbers, np.empty(0, np.int64)
        self.context = field.new(*self.keep[2:])
        self.tables = execution.addresses()
        self.context[field.TABLE], self.context[field.STARTED] = map(MPI.Get_address, (self.tables, started))
        self.context[field.MOMENT] = moment(nbytes)
        self.context[field.OPEN] = True
        self.fast_call = engine.bound_to(self.context, engine.fast_start)
        self.finish = engine.bound_to(self.context, engine.finish)

    def close(self) -> None:
        """Start nothing any more."""
        self.context[field.OPEN] = False

    def is_under_way(self) -> bool:
        """Return whether the last start has posted messages that nobody has gone on with."""
        return int(self.context[field.OUTCOME]) not in (Outcome.MISSED, Outcome.RAN)

    def outcome(self) -> int:
        """Return how far the last start came, asked once."""
        outcome = int(self.context[field.OUTCOME])
        self.context[field.OUTCOME] = Outcome.MISSED
        return outcome


def moment(nbytes: int) -> int:
    """Nanoseconds that a nonblocking form stays for: what ranks of one machine need that are there together.

    Above BRIEF none. To leave costs time too, in Python: a call that stays in vain does not take many times as long.
    """
    return MOMENT + nbytes // BYTES_A_NANOSECOND if nbytes <= BRIEF else 0


def _sides(call: Call, buffers: Sequence[Any]) -> list[tuple[int, int]]:
    """For each buffer the bytes of its array, if it is used, and where in it the call's data begins."""
    if call.arguments is None:
        return []
    sides, given = [], (call.arguments.send, call.arguments.recv)
    for message, buffer in zip(buffers, given[-len(buffers) :]):
        array = message[0] if isinstance(message, (list, tuple)) else message
        nbytes = array.nbytes if isinstance(array, np.ndarray) and buffer is not None else 0
        sides.append((nbytes, buffer.address - MPI.Get_address(array) if buffer is not None and nbytes else 0))
    return sides


def _leaves(thing: Any) -> Iterator[Any]:
    """Yield what lists hold, and what lists in them do."""
    if isinstance(thing, (list, tuple)):
        for item in thing:
            yield from _leaves(item)
    else:
        yield thing


def _is_single(thing: Any) -> bool:
    """Return whether there is one object each of such: of NumPy's own dtypes, and of MPI's."""
    if isinstance(thing, np.ndarray):
        builtin: int = thing.dtype.isbuiltin
        return builtin == 1
    return not isinstance(thing, MPI.Datatype) or id(thing) in _DATATYPES
