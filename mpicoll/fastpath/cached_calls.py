"""Make the cached calls of the fast path, and their rows in the function's table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from mpi4py import MPI

from ..buffers.buffer import Buffer
from ..buffers.datatypes import facts, recipe
from ..diagnostics.history import with_root
from ..diagnostics.ring import RING
from ..dispatch import execute
from ..dispatch.call import Call
from ..dispatch.methods import Invocation
from ..engines import compiled
from ..runtime.comm_state import CommState
from ..schedules.collectives import BLOCKING, NONBLOCKING
from . import recipe_table
from .any_counts import AnyCounts
from .context import DATATYPES
from .count_sources import Integers
from .packed_buffers import PackedBuffers, needs_packing
from .spin import spin_budget_ns
from .table import CachedCall

MAX_DTYPES = 256  # that are kept, other than NumPy's own
_kept_dtypes: dict[int, np.dtype] = {}
Sides = tuple[tuple[int, int], tuple[int, int]]
UNBOUND = (0,) * 6  # columns that bind_counts() sets, in a row for any counts


def with_counts(state: CommState, call: Call, sides: Sides) -> tuple[CachedCall, np.ndarray]:
    """Return a cached call for the counts of this one, and its row."""
    plan, packed = call.prepared.plan, None
    assert plan is not None
    execution = compiled.Execution(plan, state.comm)
    execution.bind(0, (0, 0, 0), execute.kernel_args(call, state.size))
    needed = plan.scratch_bytes
    if needs_packing(call):
        packed = PackedBuffers.of_arrays(call, state.rank, needed)
        needed = packed.nbytes
        state.scratch.give_back(state.scratch.take(needed))  # keep this much: the slow path packs into other memory
    sizes, offsets = zip(*sides)
    bound = *sizes, *offsets, spin_budget_ns(call.prepared.nbytes), needed
    return _make(state, call, call.key.words, bound, execution, plan.nbytes, packed=packed)


def with_any_counts(state: CommState, call: Call, integers: Integers) -> tuple[CachedCall, np.ndarray]:
    """Return a cached call for any counts, and its row. Raises UnknownCounts."""
    any_counts = AnyCounts(state, call, integers, call.key.details)
    packed = PackedBuffers.of_arrays(call, state.rank, 0) if call.prepared.staged else None
    nbytes = any_counts.nbytes
    return _make(state, call, call.key.any_words, UNBOUND, any_counts.execution, nbytes, any_counts, packed)


def _make(
    state: CommState,
    call: Call,
    words: np.ndarray,
    bound: Iterable[int],
    execution: compiled.Execution,
    nbytes: int,
    any_counts: AnyCounts | None = None,
    packed: PackedBuffers | None = None,
) -> tuple[CachedCall, np.ndarray]:
    """Return a cached call, and its row: the words of the key, columns that depend on counts, and addresses."""
    details, invocation, choice = call.key.details, call.invocation, call.prepared.choice
    operator = call.operator if call.operator is not None and call.operator.calls_python else None
    addresses = (part.at if part is not None else 0 for part in (any_counts, packed))
    own = *addresses, operator.errors.at if operator is not None and operator.errors is not None else 0
    passed, method = call.recorded_arguments, invocation.method
    of_history = *(
        state.history.ids(method.spelled(form), form, choice.algorithm, passed.operator)
        for form in (BLOCKING, NONBLOCKING)
    ), state.history.number, with_root(0, passed.root), passed.nbytes
    tables = map(MPI.Get_address, (execution.table, details))
    leaves = _leaves((invocation.send, invocation.recv, invocation.counts))
    kept = invocation.op, [_referenced(leaf) for leaf in leaves if isinstance(leaf, (str, MPI.Datatype))]
    if any_counts is not None:
        choice = replace(choice, why=choice.rule or choice.why)  # that do not mention the bytes of this call
    record, nbytes = execute.record(call, 0), nbytes + details.nbytes
    names = {form: method.spelled(form) for form in (BLOCKING, NONBLOCKING)}
    records = (record.with_values(fast_path=True, form=form, name=name) for form, name in names.items())
    kind, kinds = RING.add(execution.plan, *records)
    row = np.array([*words, *bound, *tables, *own, *of_history, kind], np.int64)
    cached = CachedCall(execution, choice, record, method, nbytes, details, kept, any_counts, packed, operator, kinds)
    return cached, row


def keep_dtypes(invocation: Invocation) -> bool:
    """Keep the dtypes in the arguments. Return whether no dtype, datatype or typecode there can be freed from now on.

    They are kept for good, and only MAX_DTYPES: if rows kept them, a program that makes a dtype for every call would
    insert a row in every call (600 µs instead of 160 to 190, measured).
    """
    return all(map(_lasts, (invocation.send, invocation.recv, invocation.counts)))


def sides(call: Call) -> Sides:
    """Return for both sides the bytes of the array, 0 if unused, and the offset of the call's data in it."""
    invocation = call.invocation
    if call.arguments is None:
        return (0, 0), (0, 0)
    return _side(invocation.send, call.arguments.send), _side(invocation.recv, call.arguments.recv)


def _side(message: Any, buffer: Buffer | None) -> tuple[int, int]:
    array = message[0] if isinstance(message, (list, tuple)) else message
    nbytes = array.nbytes if isinstance(array, np.ndarray) and buffer is not None else 0
    return nbytes, buffer.address - MPI.Get_address(array) if buffer is not None and nbytes else 0


def _leaves(thing: Any) -> Iterator[Any]:
    """Yield the items of nested lists and tuples."""
    if isinstance(thing, (list, tuple)):
        for item in thing:
            yield from _leaves(item)
    else:
        yield thing


def _referenced(leaf: str | MPI.Datatype) -> object:
    """Return the object whose address the key has for a typecode or datatype."""
    if isinstance(leaf, str) or id(leaf) in DATATYPES:
        return leaf
    known = facts(leaf)
    if (made_by := recipe(leaf)) is not None:
        recipe_table.add(made_by, known.alike or known)
    return known, known.alike


def _lasts(thing: Any) -> bool:
    """Keep the dtypes in an argument. Return whether they and its datatypes last as long as the process.

    NumPy's and MPI's predefined ones do. For a datatype that the program made, the key has its facts.
    """
    if isinstance(thing, np.ndarray):
        dtype = thing.dtype
        if dtype.isbuiltin == 0 or dtype is not np.dtype(dtype.type):
            if len(_kept_dtypes) < MAX_DTYPES:
                _kept_dtypes[id(dtype)] = dtype
            return id(dtype) in _kept_dtypes
        return True
    if isinstance(thing, (list, tuple)):
        return all(type(item) is int or _lasts(item) for item in thing)
    return not isinstance(thing, MPI.Datatype) or id(thing) in DATATYPES or not facts(thing).predefined
