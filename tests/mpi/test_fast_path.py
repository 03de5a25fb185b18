"""The fast path of calls: what takes it, what does not, and that nothing else is different on it."""

from __future__ import annotations

import array
import gc
import sys
import threading
import time
from typing import Any, NamedTuple

import numpy as np
import pytest
from mpi4py import MPI
from support import vectors
from support.buffer_forms import DLPack
from support.calls import complete, fill_fast_path, takes_fast_path, together
from support.cases import AGAIN

import mpicoll
from mpicoll.dispatch.methods import METHODS
from mpicoll.errors import (
    CommError,
    CountMismatch,
    DatatypeError,
    MessageLengthError,
    MismatchError,
    OverlapError,
    RequestError,
    RootError,
)
from mpicoll.fastpath import cached_calls, compiled_path, entry, rows, signature, spin
from mpicoll.fastpath import context as field
from mpicoll.plans import plan
from mpicoll.runtime import cache
from mpicoll.runtime.comm_state import LEAKED
from mpicoll.schedules.collectives import BLOCKING, NONBLOCKING, PERSISTENT


@pytest.fixture
def two(comm):
    """Return a Comm of the first two ranks, None elsewhere."""
    pair = mpicoll.Comm(comm.Split(0 if comm.rank < 2 else MPI.UNDEFINED))
    return pair if pair != MPI.COMM_NULL else None


def allreduce(comm, send, receive=None, op=MPI.SUM):
    """Return the result of a call."""
    receive = np.zeros_like(send) if receive is None else receive
    comm.Allreduce(send, receive, op)
    return receive


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("form", [BLOCKING, NONBLOCKING])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods(ours, name, form, late):
    """Every method is served from the third call on, also if rank 0 is late and the call becomes an operation."""
    for turn in range(AGAIN + 1):
        call = vectors.prepare(name, ours)
        if late and ours.rank == 0:
            time.sleep(0.01)
        with ours.trace() as records:
            complete(call.start(ours, form))
        assert not call.difference
        assert [record.fast_path for record in records] == [turn >= AGAIN - 1]


@pytest.mark.parametrize("dtype", ["b", "B", "h", "i", "l", "Q", "f", "d", "F", "D", "?", "g"])
def test_datatypes(ours, comm, dtype):
    op = MPI.LOR if dtype == "?" else MPI.SUM
    for i in range(AGAIN + 1):
        send = (np.arange(7) + comm.rank + i).astype(dtype)
        assert (allreduce(ours, send, op=op) == allreduce(comm, send, op=op)).all()
    assert takes_fast_path(ours, lambda: allreduce(ours, send, op=op))


@pytest.mark.parametrize("other", [0, 1])
def test_calls_with_different_keys_do_not_share_a_row(ours, comm, other):
    """More keys than the table has rows replace each other, and each call has its own result.

    The counts are the same in all calls, or differ from turn to turn.
    """
    p, rank, kinds = comm.size, comm.rank, 0
    for turn in range(AGAIN):
        for kind, dtype in enumerate("bBhHiIlLqQfd"):
            n = 3 + kind + turn * other
            send = np.full(n, rank + 1, dtype)
            for op, right in ((MPI.SUM, p * (p + 1) // 2), (MPI.MAX, p), (MPI.MIN, 1), (MPI.BAND, None)):
                if op == MPI.BAND and dtype in "fd":
                    continue
                right = np.bitwise_and.reduce(np.arange(1, p + 1)) if right is None else right
                assert (allreduce(ours, send, op=op) == right).all()
                for root in range(p):
                    receive = np.zeros_like(send)
                    ours.Reduce(send, receive, op, root)
                    assert (receive == (right if rank == root else 0)).all()
                assert (allreduce(ours, send.repeat(p), op=op) == right).all()
                block = np.zeros_like(send)
                ours.Reduce_scatter_block(send.repeat(p), block, op)
                assert (block == right).all()
                for scan in (ours.Scan, ours.Exscan):
                    scan(send, np.zeros_like(send), op)
                kinds += turn == 0 and 4 + p
            for root in range(p):
                receive = np.zeros((p, n), dtype)
                ours.Gather(send, receive, root)
                assert rank != root or (receive == np.arange(1, p + 1)[:, None]).all()
                shape = np.full((2, n), n + (rank == root), dtype)
                ours.Bcast(shape, root)
                assert (shape == n + 1).all()
                kinds += turn == 0 and 2
    stats = ours._state.fast_path.stats()
    assert kinds > signature.ROWS - 20
    assert 0 < stats.kinds <= 2 * signature.ROWS and 0 < stats.nbytes <= compiled_path.MAX_CACHED_BYTES


@pytest.mark.parametrize("column", range(signature.KEYS))
def test_a_row_with_another_key_is_not_used(ours, column):
    """A row is served only if all words of its key match."""
    call = lambda: ours.Reduce(np.ones(5), np.zeros(5), MPI.SUM, 0)
    fill_fast_path(call, AGAIN)
    fast_path = ours._state.fast_path
    (row,) = fast_path.table.kinds
    fast_path.table.rows[row, column] += 1
    assert not takes_fast_path(ours, call)
    assert takes_fast_path(ours, call)


def test_keys_that_collide_on_a_row(ours):
    """A key has WAYS rows to be in; if all are taken, one of the cached calls is removed."""
    call = lambda: ours.Reduce(np.ones(5), np.zeros(5), MPI.SUM, 0)
    fill_fast_path(call, AGAIN)
    fast_path = ours._state.fast_path
    (row,) = fast_path.table.kinds
    kind, words = fast_path.table.take(row)
    foreign = words.copy()
    foreign[signature.METHOD] = 1
    taken: set[int] = set()
    for way in range(rows.WAYS):
        if way:
            assert takes_fast_path(ours, call)
            (other,) = set(fast_path.table.kinds) - taken
            assert other == (row + way) % signature.ROWS
            fast_path.table.take(other)
        fast_path.table.put((row + way) % signature.ROWS, kind, foreign)
        taken = set(fast_path.table.kinds)
        assert not takes_fast_path(ours, call)
    homes = set()
    for _ in range(2 * rows.WAYS):
        assert takes_fast_path(ours, call)
        (own,) = [at for at in taken if fast_path.table.rows[at, signature.METHOD] != 1]
        homes.add(own)
        fast_path.table.put(own, kind, foreign)
        assert not takes_fast_path(ours, call)
    assert homes == taken


def test_cached_bytes_are_limited(ours, monkeypatch):
    monkeypatch.setattr(compiled_path, "MAX_CACHED_BYTES", 30_000)
    for dtype in "bBhHiIlL":
        for op in (MPI.SUM, MPI.MAX, MPI.MIN):
            fill_fast_path(lambda dtype=dtype, op=op: allreduce(ours, np.ones(9, dtype), op=op))
            fill_fast_path(lambda dtype=dtype, op=op: allreduce(ours, np.ones(8, dtype), op=op))
            assert ours._state.fast_path.stats().nbytes <= 30_000
    monkeypatch.setattr(compiled_path, "MAX_PLAN_BYTES", 10)
    for n in (98, 99, 99, 99):
        assert not takes_fast_path(ours, lambda n=n: allreduce(ours, np.ones(n)))


def test_large_vectors_share_the_scratch(ours, comm):
    """Calls share the largest scratch. While a persistent request has it, a call takes the slow path once."""
    p, n = comm.size, 150_000
    large, small = (lambda n=n: allreduce(ours, np.full(n, comm.rank + 1.0)) for n in (n, n // 2))
    right = p * (p + 1) / 2
    with ours.using(allreduce="ring"):
        fill_fast_path(large, AGAIN)
        fill_fast_path(small, AGAIN)
        assert takes_fast_path(ours, large) and takes_fast_path(ours, small)
        kinds = ours._state.fast_path.table.kinds
        before = {at: kind for at, (kind, _) in kinds.items()}
        address = None if ours._state.scratch.array is None else ours._state.scratch.array.ctypes.data
        repeated = ours.Allreduce_init(np.full(n, 1.0), np.zeros(n))     # takes it
        assert takes_fast_path(ours, large) == (p == 1)
        assert takes_fast_path(ours, large) and (large() == right).all() and (small() == right).all()
        assert {at: kind for at, (kind, _) in kinds.items()} == before   # nothing is learnt twice
        repeated.Start()
        repeated.Wait()
        repeated.Free()
        assert (large() == right).all()
        assert p == 1 or ours._state.scratch.array.ctypes.data != address


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("form", ["blocking", "nonblocking"])
def test_scratch_in_use_is_not_replaced(ours, comm, form):
    """Another thread gives larger scratch back while a call of the fast path, or its operation, uses the old one."""
    n = 40_000
    with ours.using(allreduce="ring"):
        fill_fast_path(lambda: allreduce(ours, np.ones(n)), AGAIN)
        state, arrays = ours._state, [np.full(k << 20, 7, np.uint8) for k in range(1, 41)]
        got = np.zeros(n)

        def gives():
            for array in arrays:
                time.sleep(0.001)
                state.scratch.give_back(array)

        thread = threading.Thread(target=gives)
        thread.start()
        time.sleep(0.1 * (comm.rank == 1))
        request = ours.Allreduce(np.ones(n), got) if form == "blocking" else ours.Iallreduce(np.ones(n), got)
        thread.join()
        if request is not None:
            request.Wait()
        assert (got == comm.size).all() and not state.fast_path.context[field.SCRATCH_SHARED]
        assert (allreduce(ours, np.ones(n)) == comm.size).all()


def test_scratch_is_replaced_only_while_unused(ours):
    state = ours._state
    context, (first, second) = state.fast_path.context, (np.zeros(n << 20, np.uint8) for n in (1, 2))
    state.scratch.give_back(first)
    context[field.SCRATCH_SHARED] = 1
    state.scratch.give_back(second)
    assert state.scratch.array is first and context[field.SCRATCH_BYTES] == len(first) - plan.ALIGN
    assert state.scratch.take(1) is not first and state.scratch.array is first
    context[field.SCRATCH_SHARED] = 0
    state.scratch.give_back(second)
    assert state.scratch.array is second and context[field.SCRATCH_BYTES] == len(second) - plan.ALIGN
    assert 0 <= context[field.SCRATCH] - second.ctypes.data < plan.ALIGN
    context[field.SCRATCH_SHARED] = 1
    assert state.scratch.take(1, in_use=True) is second and state.scratch.array is None
    assert not context[field.SCRATCH_SHARED] and context[field.SCRATCH_BYTES] == 0


def test_objects_that_change(ours, comm):
    """An array may have another shape, datatype or permission in the next call."""
    p = comm.size
    send, receive = np.ones(8), np.zeros(8)
    fill_fast_path(lambda: ours.Allreduce(send, receive))
    assert takes_fast_path(ours, lambda: ours.Allreduce(send, receive))
    send.resize(4, refcheck=False)
    with pytest.raises(CountMismatch):
        ours.Allreduce(send, receive)
    receive.resize(4, refcheck=False)
    assert (allreduce(ours, send, receive) == p).all()
    send.dtype = np.int64
    with pytest.raises(DatatypeError):
        ours.Allreduce(send, receive)
    send.dtype = np.float64
    fill_fast_path(lambda: ours.Allreduce(send, receive))
    receive.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        ours.Allreduce(send, receive)
    receive.flags.writeable = True
    receive.shape = send.shape = (2, 2)
    assert (allreduce(ours, send, receive) == p).all()


class Special(np.ndarray):
    """A subclass of ndarray."""


NUMBERS = np.arange(1.0, 5.0)


class Message(NamedTuple):
    """A tuple's subclass."""

    buffer: Any
    datatype: MPI.Datatype


ODD = {     # buffers with these numbers, which are taken the slow path, or refused
    "named tuple": lambda: Message(bytearray(NUMBERS.tobytes()), MPI.DOUBLE),
    "strided": lambda: np.repeat(NUMBERS, 2)[::2],
    "swapped": lambda: NUMBERS.astype(">f8"),
    "unaligned": lambda: np.frombuffer(bytearray(b"." + NUMBERS.tobytes()), "d", offset=1),
    "metadata": lambda: NUMBERS.view(np.dtype("d", metadata={"unit": "m"})),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_buffers_take_the_slow_path(ours, comm, kind):
    """They take it also after a plain array of that size; MPI gives the same result for them."""
    fill_fast_path(lambda: allreduce(ours, np.ones(4)), AGAIN)

    def outcome(on, send):
        receive = np.zeros(4)
        try:
            on.Allreduce(send, receive)
        except Exception as error:
            return type(error).__mro__[-3:]
        return receive.tobytes()

    with ours.trace() as records:
        outcomes = {outcome(ours, ODD[kind]()) for _ in range(AGAIN + 1)}
    assert len(outcomes) == 1 and not any(record.fast_path for record in records)
    if kind != "unaligned":     # which mpi4py does not take
        assert outcomes == {outcome(comm, ODD[kind]())}


def _filled(memory, numbers):
    memory[:] = numbers.tobytes()
    return memory


BUFFERS = {     # objects with these numbers whose memory can be an array
    "subclass": lambda numbers: numbers.view(Special),
    "bytearray": lambda numbers: [bytearray(numbers.tobytes()), MPI.DOUBLE],
    "tuple": lambda numbers: (bytearray(numbers.tobytes()), MPI.DOUBLE),
    "memoryview": memoryview,
    "two dimensions": lambda numbers: memoryview(numbers.reshape(2, -1)),
    "array.array": lambda numbers: array.array("d", numbers),
    "MPI's memory": lambda numbers: [_filled(MPI.Alloc_mem(numbers.nbytes), numbers), MPI.DOUBLE],
    "DLPack": DLPack,
}


def _memory(buffer):
    buffer = buffer[0] if isinstance(buffer, (list, tuple)) else buffer
    return np.asarray(getattr(buffer, "data", buffer) if isinstance(buffer, DLPack) else buffer).tobytes()


@pytest.mark.parametrize("form", [BLOCKING, NONBLOCKING])
@pytest.mark.parametrize("kind", BUFFERS)
def test_other_buffers_take_the_fast_path_as_arrays(ours, comm, kind, form):
    """Sent and received into; what is sent may be bytes, which are read-only."""
    make, rank, everyone = BUFFERS[kind], comm.rank, np.repeat(NUMBERS, comm.size)

    def call(on, send, receive):
        if form == BLOCKING:
            on.Allgather(send, receive)
        else:
            on.Iallgather(send, receive).Wait()
        return _memory(receive)

    with ours.trace() as records:
        got = [call(ours, make(NUMBERS * (rank + i)), make(everyone)) for i in range(AGAIN + 1)]
        got += [call(ours, [NUMBERS.tobytes(), MPI.DOUBLE], make(everyone)) for _ in range(AGAIN + 1)]
    wanted = [call(comm, make(NUMBERS * (rank + i)), make(everyone)) for i in range(AGAIN + 1)]
    wanted += [call(comm, [NUMBERS.tobytes(), MPI.DOUBLE], make(everyone)) for _ in range(AGAIN + 1)]
    assert got == wanted
    may_be_written = kind != "DLPack" or np.from_dlpack(np.zeros(1)).flags.writeable    # not in old NumPy
    if may_be_written and (form == BLOCKING or comm.size == 1):     # else the call before may be in flight
        assert records[AGAIN].fast_path and records[-1].fast_path


@pytest.mark.parametrize("kind", BUFFERS)
def test_one_other_buffer_takes_the_fast_path_too(ours, comm, kind):
    """A broadcast has no second buffer, and ranks other than the root of a gather none to receive."""
    may_be_written = kind != "DLPack" or np.from_dlpack(np.zeros(1)).flags.writeable
    with ours.trace() as records:
        for i in range(AGAIN + 1):
            sent = BUFFERS[kind](NUMBERS * i if comm.rank == 0 else np.zeros(4))
            if may_be_written:
                ours.Bcast(sent)
                assert _memory(sent) == (NUMBERS * i).tobytes()
    assert records[-1].fast_path if may_be_written else not records
    with ours.trace() as records:
        for i in range(AGAIN + 1):
            gathered = np.zeros(4 * comm.size) if comm.rank == 0 else None
            ours.Gather(BUFFERS[kind](NUMBERS * (comm.rank + i)), gathered)
            if gathered is not None:
                assert (gathered.reshape(-1, 4) == [NUMBERS * (rank + i) for rank in range(comm.size)]).all()
    assert records[-1].fast_path


def references(*things):
    """Return how many references there are to objects."""
    gc.collect()
    return [sys.getrefcount(thing) for thing in things]


@pytest.mark.parametrize("form", [BLOCKING, NONBLOCKING])
def test_other_buffers_are_released_after_the_call(ours, comm, form):
    """A bytearray can be resized again, and the array that a DLPack object returned is freed."""
    send, receive, tensor = bytes(8), bytearray(8 * comm.size), DLPack(NUMBERS.copy())

    def calls():
        for _ in range(AGAIN + 2):
            if form == BLOCKING:
                ours.Allgather(send, receive)
                ours.Gather(tensor, np.zeros(4 * comm.size))
            else:
                MPI.Request.Waitall([ours.Iallgather(send, receive)])
                MPI.Request.Waitall([ours.Igather(tensor, np.zeros(4 * comm.size))])
            comm.Barrier()  # so that no rank is late

    calls()
    before = references(send, receive, tensor, tensor.data)
    for _ in range(20):
        calls()
    after = references(send, receive, tensor, tensor.data)     # not in the assertion, which would add some
    assert before == after
    receive.append(0)   # which raises BufferError while an array uses the memory


def test_other_buffers_that_overlap_are_refused(ours, comm):
    """On the fast path too, where an array stands for each."""
    memory = memoryview(bytearray(8 * (comm.size + 1)))
    fill_fast_path(lambda: ours.Allgather(memory[:8], memory[8:]), AGAIN)
    assert takes_fast_path(ours, lambda: ours.Allgather(memory[:8], memory[8:]))
    with pytest.raises(OverlapError):
        ours.Allgather(memory[8:16], memory[8:])


class Calling(DLPack):
    """An object whose __dlpack__ makes another call on a communicator, or is interrupted."""

    comm, interrupted = None, False

    def __dlpack__(self, **options):
        if self.interrupted:
            raise KeyboardInterrupt
        self.comm.Allreduce(np.ones(3), np.empty(3))
        self.comm.Allgather(bytes(1), bytearray(self.comm.size))
        return super().__dlpack__(**options)


def test_a_buffer_that_makes_a_call(ours, comm):
    """The call inside is complete before the call begins that needs the buffer's memory."""
    buffer, results = Calling(NUMBERS * (comm.rank + 1)), np.zeros((comm.size, 4))
    buffer.comm = ours
    fill_fast_path(lambda: buffer.__dlpack__(), AGAIN)
    for _ in range(AGAIN + 2):
        results[:] = 0
        ours.Allgather(buffer, results)
        assert (results == NUMBERS * np.arange(1, comm.size + 1)[:, None]).all()


def test_an_interrupt_while_an_array_is_made(ours, comm):
    """The call is not begun, and the next one is right."""
    buffer, receive = Calling(NUMBERS), np.zeros(4 * comm.size)
    buffer.comm = ours
    for _ in range(AGAIN):
        ours.Allgather(buffer, receive)
    buffer.interrupted = True
    with ours.trace() as records:
        for message in (buffer, [buffer, MPI.DOUBLE]):
            with pytest.raises(KeyboardInterrupt):
                ours.Allgather(message, receive)
    assert not records
    buffer.interrupted = False
    ours.Allgather(buffer, receive)
    assert (receive.reshape(-1, 4) == NUMBERS).all()


PAIRS = np.dtype([("value", "d"), ("place", "i")], align=True)


@pytest.mark.parametrize(
    ("dtype", "datatype", "op"),
    [("i4,f8", MPI.BYTE, MPI.BOR), (">f8", MPI.BYTE, MPI.BOR), (PAIRS, MPI.DOUBLE_INT, MPI.MAXLOC)],
    ids=["structured", "big-endian", "pairs"],
)
def test_arrays_of_other_dtypes_with_a_datatype(ours, comm, dtype, datatype, op):
    """Structured arrays take the fast path, sent as bytes or as MPI's pairs."""
    dtype, rng = np.dtype(dtype), np.random.default_rng(comm.rank)
    with ours.trace() as records:
        for n in (5, 5, 5, 5, 7, 3, 4):
            send, results = np.zeros(n, dtype), [np.zeros(n, dtype) for _ in range(2)]
            if dtype.names == PAIRS.names:
                send["value"], send["place"] = rng.integers(0, 3, n), comm.rank
            else:
                send.view(np.uint8)[:] = rng.integers(0, 255, send.nbytes)
            for on, result in zip((ours, comm), results):
                on.Allreduce([send, datatype], [result, datatype], op)
            assert results[0].tobytes() == results[1].tobytes()
    assert records[3].fast_path and (records[-1].fast_path or datatype != MPI.BYTE)


def test_dtypes_that_are_made_for_every_call(ours, monkeypatch):
    """Each is another object; those that are kept for the fast path are a limited number."""
    monkeypatch.setattr(cached_calls, "_kept_dtypes", {})   # so that other tests have room
    for _ in range(300):
        data = np.full(4, 7, [("a", "i4"), ("b", "i4")])
        ours.Bcast([data, MPI.BYTE])
        assert data["a"].tolist() == [7] * 4
    assert len(cached_calls._kept_dtypes) == cached_calls.MAX_DTYPES
    fill_fast_path(lambda: ours.Bcast(NUMBERS.copy()), AGAIN)
    assert takes_fast_path(ours, lambda: ours.Bcast(NUMBERS.copy()))
    ours._state.fast_path.clear()   # whose rows have dtypes that are freed now


def test_buffers_without_a_type_have_the_builtins(ours, comm):
    """Bytes and arrays of numbers without a datatype; what cannot be an array is refused as ever."""
    for send in (b"12345678", array.array("h", [1, 2]), memoryview(b"12"), NUMBERS.view(Special)):
        nbytes = memoryview(send).nbytes
        with ours.trace() as records:
            for _ in range(AGAIN + 1):
                results = [bytearray(nbytes * comm.size) for _ in range(2)]
                for on, result in zip((ours, comm), results):
                    on.Allgather(send, [result, MPI.BYTE])
                assert results[0] == results[1]
        assert records[-1].fast_path
    for wrong in (bytes(comm.size), 5, "text", [bytes(comm.size), MPI.BYTE]):
        with pytest.raises((TypeError, BufferError)):
            ours.Allgather(b"1", wrong)


def test_wrong_arguments_raise_after_right_ones(ours, comm):
    p = comm.size
    both = np.ones(8)
    fill_fast_path(lambda: ours.Allreduce(both[:4], both[4:]))
    assert takes_fast_path(ours, lambda: ours.Allreduce(both[:4], both[4:]))
    for send, receive, error in (
        (both[:4], both[3:7], OverlapError), (both[:4], both[:3], CountMismatch), (both[:4], both[4:7], CountMismatch),
    ):
        with pytest.raises(error):
            ours.Allreduce(send, receive)
    fill_fast_path(lambda: ours.Bcast(both, 0), AGAIN)
    for root in (p, -1):
        with pytest.raises(RootError):
            ours.Bcast(both, root)


def test_roots_and_operators_that_are_other_objects(ours, comm):
    """A root may be any integer; an operator may be another handle of the same one, or a user's."""
    p, last = comm.size, comm.size - 1
    for root in (last, np.int64(last), float(last)):
        for _ in range(AGAIN):
            value = np.full(3, float(comm.rank))
            ours.Bcast(value, root)
            assert (value == last).all()
    same = MPI.Op(MPI.SUM)
    product = MPI.Op.Create(lambda a, b, t: np.multiply(np.frombuffer(a), np.frombuffer(b), out=np.frombuffer(b)), True)
    for _ in range(AGAIN + 1):
        assert (allreduce(ours, np.full(3, 2.0), op=same) == 2 * p).all()
        assert (allreduce(ours, np.full(3, 2.0), op=product) == 2.0**p).all()
    assert takes_fast_path(ours, lambda: allreduce(ours, np.full(3, 2.0), op=product))
    product.Free()
    assert (allreduce(ours, np.full(3, 2.0), op=mpicoll.AVG) == 2).all()


def test_using_applies_to_cached_calls(ours, comm):
    call = lambda: allreduce(ours, np.ones(5))
    fill_fast_path(call, AGAIN)
    for algorithm, wanted in (("ring", "compiled"), ("native", "native")):
        with ours.using(allreduce=algorithm), ours.trace() as records:
            fill_fast_path(call, AGAIN)
        assert {(r.algorithm, r.engine) for r in records} == {(algorithm, wanted)}
    with ours.using(engine="mpi4py"), ours.trace() as records:
        fill_fast_path(call, AGAIN)
    assert {(r.engine, r.fast_path) for r in records} == {("mpi4py", False)}
    assert takes_fast_path(ours, call)
    with ours.using(allreduce="ring"):      # what was learnt under it is still there
        assert takes_fast_path(ours, call)


def test_a_call_that_completes_under_another_choice(ours, comm):
    """A nonblocking call that completes outside of its using() is not cached for the choice then in force."""
    send = np.ones(5)
    call = lambda: allreduce(ours, send)
    with ours.using(allreduce="ring"):
        fill_fast_path(call, AGAIN)
        if comm.rank:
            comm.recv(source=0)
        request = ours.Iallreduce(send, np.zeros(5))
        if comm.rank == 0:
            for rank in range(1, comm.size):
                comm.send(None, rank)
    request.Wait()
    with ours.trace() as records:
        fill_fast_path(call, AGAIN)
    assert {record.algorithm for record in records} == {"recursive_doubling"}


def test_tables_of_choices_are_limited(ours, monkeypatch):
    """The fast path has a table for each of the last MAX_OVERRIDES choices; the least recently used one is removed."""
    monkeypatch.setattr(cache, "MAX_OVERRIDES", 3)
    call = lambda: allreduce(ours, np.ones(5))
    fill_fast_path(call, AGAIN)
    for window in (1, 2, 3, 4, 5, 1):
        with ours.using(window=window):
            fill_fast_path(call, AGAIN)
            assert takes_fast_path(ours, call)
        assert takes_fast_path(ours, call)  # without a choice, as after each of the others
        stats = ours._state.fast_path.stats()
        assert stats.overrides <= 3 and stats.kinds == 1
    for window, short in ((5, True), (4, False)):
        with ours.using(window=window):
            assert takes_fast_path(ours, call) == short


@pytest.mark.parametrize("engine", ["compiled", "mpi4py"])
def test_a_call_beside_an_operation_in_flight(ours, comm, engine):
    """Compiled code advances a compiled operation beside the call. For any other the call takes the slow path."""
    call = lambda: allreduce(ours, np.ones(5))
    fill_fast_path(call, AGAIN)
    other = ours.Dup()
    with other.using(engine=engine, barrier="dissemination"):
        request = other.Ibarrier() if comm.rank == 0 else None
        assert takes_fast_path(ours, call) == (comm.rank != 0 or comm.size == 1 or engine == "compiled")
        (request or other.Ibarrier()).Wait()
    assert takes_fast_path(ours, call)
    other.Free()


def test_a_call_advances_operations_in_flight(ours, comm):
    """Ranks but 0 enter the call after they completed the operation, so the call on rank 0 has to advance it."""
    call = lambda: allreduce(ours, np.ones(5))
    fill_fast_path(call, AGAIN)
    other = ours.Dup()
    x, y = np.full(50_000, comm.rank + 1.0), np.zeros(50_000)
    with other.using(allreduce="ring", chunk_bytes=4096):
        for _ in range(20):
            request = other.Iallreduce(x, y)
            if comm.rank:
                request.Wait()
            assert takes_fast_path(ours, call)
            request.Wait()
            assert (y == comm.size * (comm.size + 1) / 2).all()
    other.Free()


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [("MPICOLL_CHECK", "1", "check mode compares every call"), ("MPICOLL_ENGINE", "mpi4py", "the mpi4py engine runs")],
)
def test_closed_in_check_mode_and_on_the_reference_engine(ours, comm, monkeypatch, variable, value, why):
    """explain() gives the reason."""
    assert "slow path" not in str(ours.explain("allreduce", 40))
    monkeypatch.setenv(variable, value)
    closed = mpicoll.Comm(comm.Dup())
    call = lambda: allreduce(closed, np.ones(5))
    fill_fast_path(call)
    assert not takes_fast_path(closed, call)
    assert f"every call takes the slow path: {why}" in str(closed.explain("allreduce", 40))
    if variable == "MPICOLL_CHECK" and comm.size > 1:
        with pytest.raises(MismatchError):
            closed.Allreduce(np.ones(5 + comm.rank), np.ones(5 + comm.rank))


def test_closed_if_object_layouts_are_unknown(comm, monkeypatch, caplog):
    """The reason is logged once, and explain() gives it."""
    monkeypatch.setattr(signature, "check_layouts", lambda: "another Python")
    with caplog.at_level("WARNING", "mpicoll"):
        ours, other = mpicoll.Comm(comm), mpicoll.Comm(comm.Dup())
    messages = [record.message for record in caplog.records if "another Python" in record.message]
    assert messages == ["every call takes the slow path: another Python"] * (comm.rank == 0)
    for communicator in (ours, other):
        fill_fast_path(lambda caller=communicator: allreduce(caller, np.ones(5)))
        assert not takes_fast_path(communicator, lambda caller=communicator: allreduce(caller, np.ones(5)))
        assert str(communicator.explain("allreduce", 40)).endswith("; every call takes the slow path: another Python")


@pytest.mark.mpi(min_size=2)
def test_a_late_rank(ours, comm):
    """Calls of ranks that wait for a late one become operations; the next calls are served again."""
    for turn in range(3):
        fill_fast_path(lambda: allreduce(ours, np.ones(5)), AGAIN)
        if comm.rank == turn % 2:
            time.sleep(0.1)
        with ours.trace() as records:
            got = allreduce(ours, np.full(5, turn + 1.0))
        assert (got == (turn + 1) * comm.size).all()
        assert [record.fast_path for record in records] == [True]
        assert takes_fast_path(ours, lambda: allreduce(ours, np.ones(5)))


@pytest.mark.mpi(min_size=2)
def test_a_message_that_does_not_fit(two):
    """The call raises MPI's error. Its memory is leaked, and the next calls use another plan."""
    if two is None:
        return
    for n in (4, 8):
        fill_fast_path(lambda n=n: allreduce(two, np.ones(n)), AGAIN)
    n = 8 if two.rank else 4
    with pytest.raises(MessageLengthError) as caught:   # too long on rank 0, too short on rank 1
        allreduce(two, np.ones(n))
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    assert len(two._state.leaked) == 1


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("sent", ["before", "after"])
def test_a_message_that_does_not_fit_a_persistent_collective(two, sent):
    """Start or Wait raises MPI's error. Tags stay in use and Start is refused from then on: messages may be left."""
    if two is None:
        return
    n = 8 if two.rank else 4
    request = two.Allreduce_init(np.ones(n), np.zeros(n))
    assert request._persistent.fast_start is not None
    if two.rank:
        if sent == "after":
            two.recv(source=0)
        request.Start()
        two.send("started", 0)
        with pytest.raises(MessageLengthError):     # its messages are too short
            request.Wait()
        request.Free()
        return
    if sent == "before":
        two.recv(source=1)      # so its message is here
    request.Start()
    if sent == "after":
        two.send("started", 1)
        two.recv(source=1)
    with pytest.raises(MessageLengthError) as caught:
        request.Wait()
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    for _ in range(2):
        with pytest.raises(RequestError, match="failed with messages in flight"):
            request.Start()
    slot = request._persistent.slot
    request.Free()
    assert slot.used[slot.sequence]


def interrupted_call(pair, send, receive):
    """Begin an allreduce on rank 0 while rank 1 is late, and do not record it, as if the caller was interrupted."""
    fill_fast_path(lambda: pair.Allreduce(send, receive), AGAIN)
    pair.Barrier()
    if pair.rank == 0:
        assert pair._fast_call(mpicoll.dispatch.methods.ALLREDUCE, send, receive, MPI.SUM, 0) == 1
    else:
        time.sleep(0.2)
        assert (allreduce(pair, np.full(6, 4.0)) == 7).all()


@pytest.mark.mpi(min_size=2)
def test_an_interrupt_before_the_call_is_recorded(two):
    """The call completes later: its buffers are kept, and the next call does not resume it."""
    if two is None:
        return
    send, receive = np.full(6, 3.0), np.zeros(6)
    counted = sys.getrefcount(send)
    interrupted_call(two, send, receive)
    assert sys.getrefcount(send) == counted + (two.rank == 0)
    assert (allreduce(two, np.full(6, two.rank + 1.0)) == 3).all()
    if two.rank == 0:
        ((_, buffers),) = two._state.leaked
        assert buffers[0] is send and buffers[1] is receive
        assert sys.getrefcount(send) == counted + 1
    fill_fast_path(lambda: allreduce(two, np.ones(6)), AGAIN)
    assert takes_fast_path(two, lambda: allreduce(two, np.ones(6)))


# -- nonblocking and persistent forms


def begun(ours, form, send, receive):
    """Start an allreduce in a form; return its request."""
    if form == NONBLOCKING:
        return ours.Iallreduce(send, receive)
    request = ours.Allreduce_init(send, receive)
    request.Start()
    return request


COMPLETED = {       # whether it is, by each way to ask
    "Wait": lambda request, status: request.Wait(status),
    "Test": lambda request, status: request.Test(status),
    "Waitany": lambda request, status: MPI.Request.Waitany([MPI.REQUEST_NULL, request]) == 1,
    "Waitall": lambda request, status: MPI.Request.Waitall([request, MPI.REQUEST_NULL]),
    "Testsome": lambda request, status: MPI.Request.Testsome([request]) == [0],
    "wait": lambda request, status: request.wait() is None,
}


@pytest.mark.parametrize("form", [NONBLOCKING, PERSISTENT])
def test_requests_that_complete_as_they_begin(ours, comm, form):
    """The request is complete but not null until Wait, and MPI's own functions find it complete."""
    fill_fast_path(lambda: allreduce(ours, np.ones(5)))
    short = 0
    for way in [*COMPLETED] * 20:
        send, receive = np.ones(5), np.zeros(5)
        comm.Barrier()      # so that it may be over in a moment
        with ours.trace() as records:
            request = begun(ours, form, send, receive)
        assert request != MPI.REQUEST_NULL and bool(request)
        if form == PERSISTENT:
            with pytest.raises(RequestError):
                request.Start()
        if records:     # else it is under way
            assert records[0].form == form and records[0].fast_path and (receive == comm.size).all()
            short += 1
        status = MPI.Status()
        assert COMPLETED[way if records else "Wait"](request, status)
        assert (receive == comm.size).all() and status.count == 0
        assert status.source == MPI.ANY_SOURCE and status.tag == MPI.ANY_TAG
        assert request.Test() and bool(request) == (form == PERSISTENT)
        if form == PERSISTENT:
            request.Free()
    assert short == 120 if comm.size == 1 else short > 0 or comm.size > 2


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("form", [NONBLOCKING, PERSISTENT])
def test_a_late_rank_in_other_forms(ours, comm, form):
    """A call that does not complete while it spins becomes an operation, which the driver or Wait advances."""
    fill_fast_path(lambda: allreduce(ours, np.ones(5)))
    for turn in range(4):
        send, receive = np.full(5, turn + 1.0), np.zeros(5)
        others = [rank for rank in range(comm.size) if rank != turn % 2]
        request = ours.Allreduce_init(send, receive) if form == PERSISTENT else None
        if comm.rank == turn % 2:
            for rank in others:     # which do not wait in their calls
                assert comm.recv(source=rank) == turn
        with ours.trace() as records:
            if form == PERSISTENT:
                request.Start()
            else:
                request = ours.Iallreduce(send, receive)
            if comm.rank in others:
                comm.send(turn, turn % 2)
            other = allreduce(ours, send)
            request.Wait()
        assert (receive == (turn + 1) * comm.size).all() and (other == receive).all()
        assert [record.form for record in records if record.form != "blocking"] == [form]
        if form == PERSISTENT:
            send += 1
            request.Start()
            request.Wait()
            assert (receive == (turn + 2) * comm.size).all()
            request.Free()


@pytest.mark.mpi(min_size=2)
def test_wait_tells_a_completed_start_from_the_next(ours, comm):
    """Wait completes the latest Start, whichever path completed the one before."""
    send, receive = np.ones(5), np.zeros(5)
    request = ours.Allreduce_init(send, receive)
    for turn in range(6):
        request.Start()
        if turn % 2:
            MPI.Request.Waitall([request])
        assert request.Wait() and request.Test() and (receive == comm.size).all()
        receive[:] = -1
    request.Start()
    MPI.Request.Waitall([request])      # and no Wait of ours
    other = ours.Dup()
    barrier = other.Ibarrier() if comm.rank else None       # so these ranks go the slow path
    receive[:] = -1
    if comm.rank == 0:
        time.sleep(0.1)
    request.Start()
    request.Wait()
    assert (receive == comm.size).all()
    (barrier or other.Ibarrier()).Wait()
    other.Free()


def test_nonblocking_calls_spin_by_their_bytes(ours, comm):
    """A nonblocking call spins longer the more bytes it has, and beyond SPIN_MAX_BYTES not at all."""
    longest, budget = spin.SPIN_MAX_BYTES, spin.spin_budget_ns
    assert budget(longest) > 2 * budget(8) > 0 == budget(longest + 1)
    n = longest // 8
    for length, short in ((n, True), (n + 1, False), (n, True)):  # a kind of one length, and then of any
        fill_fast_path(lambda length=length: ours.Bcast(np.ones(length)), AGAIN)
        assert takes_fast_path(ours, lambda length=length: ours.Bcast(np.ones(length)))
        fast_path = ours._state.fast_path
        row = fast_path.table.rows[fast_path.context[field.ROW]]
        assert row[rows.SPIN_NS] == (spin.spin_budget_ns(8 * length) if short else 0)
        with ours.trace() as records:
            ours.Ibcast(np.ones(length)).Wait()
        assert records[0].fast_path
        request = ours.Bcast_init(np.ones(length))
        assert request._persistent.fast_start.context[field.SPIN_NS] == row[rows.SPIN_NS]
        request.Free()


@pytest.mark.parametrize("arguments", ["in place", "user", "engine"])
def test_persistent_collectives_on_the_slow_path(ours, comm, arguments):
    numbers = np.arange(10.0)
    product = MPI.Op.Create(lambda a, b, t: np.multiply(np.frombuffer(a), np.frombuffer(b), out=np.frombuffer(b)), True)
    with ours.using(engine="mpi4py" if arguments == "engine" else "compiled"):
        request = {
            "in place": lambda: ours.Allreduce_init(MPI.IN_PLACE, numbers, MPI.MAX),
            "user": lambda: ours.Allreduce_init(np.full(10, 2.0), numbers, product),
            "engine": lambda: ours.Allreduce_init(np.full(10, 2.0), numbers),
        }[arguments]()
    assert (request._persistent.fast_start is None) == (arguments != "in place")
    for _ in range(3):
        with ours.trace() as records:
            request.Start()
            request.Wait()
        assert len(records) == 1 and (arguments == "in place" or not records[0].fast_path)
        assert (numbers == {"user": 2.0**comm.size, "engine": 2.0 * comm.size}.get(arguments, np.arange(10.0))).all()
    request.Free()
    product.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("again", [True, False], ids=["started again", "freed at once"])
def test_an_interrupted_start_is_not_repeated(two, again):
    """The state of an interrupted Start is unknown, so the request does not start again.

    MPI may still write to its scratch and buffers, and its tags may still be in use.
    """
    if two is None:
        return
    send, receive = np.ones(4), np.zeros(4)
    request = two.Allreduce_init(send, receive)
    persistent, slot = request._persistent, request._persistent.slot
    two.Barrier()
    if two.rank:            # knows nothing of it
        time.sleep(0.2)
        request.Start()
        request.Wait()
        assert (receive == 2).all()
    else:
        assert request._fast_call(request) == 1     # rank 1 is not there
        if again:
            with pytest.raises(RequestError, match="interrupted"):
                request.Start()
            posted = persistent.own_execution.progress
            send[:] = 99
            with pytest.raises(RequestError, match="interrupted"):
                request.Start()
            assert request._fast_call(request) == 1 and persistent.own_execution.progress == posted
        request.Free()
        assert slot.used[slot.sequence] and request._persistent is None
        assert again or persistent in two._state.leaked
    two.Barrier()


@pytest.mark.mpi(min_size=2)
def test_buffers_of_an_interrupted_call_outlive_the_communicator(two):
    """MPI may still write to them."""
    if two is None:
        return
    other, receive, kept = two.Dup(), np.zeros(6), len(LEAKED)
    state = other._state
    interrupted_call(other, np.full(6, 3.0), receive)
    other.Free()
    while not two.allreduce(int(state.queue.closed), MPI.MIN):     # its end comes when both ranks have left it
        two.Dup().Free()
    assert two.rank or any(buffer is receive for _, buffers in LEAKED[kept:] for buffer in buffers)
    two.Barrier()


def test_trace_numbers_a_call_that_completes_late(two):
    """A record has the number of its own call, not of the last one."""
    if two is None:
        return
    begin = lambda: two.Iallreduce(np.ones(5), np.zeros(5))
    fill_fast_path(lambda: begin().Wait(), AGAIN)
    with two.trace() as records:
        if two.rank == 0:
            time.sleep(0.1)
        first = begin()
        second = two.Ibcast(np.zeros(5))
        first.Wait()
        second.Wait()
    numbers = {record.collective: record.sequence for record in records}
    assert numbers["bcast"] == numbers["allreduce"] + 1


def test_a_freed_persistent_request(ours):
    request = ours.Allreduce_init(np.ones(3), np.zeros(3))
    request.Start()
    request.Wait()
    again = request._fast_call
    request.Free()
    assert again(request) == 1
    with pytest.raises(RequestError):
        request.Start()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("then", ["another method", "another choice"])
def test_an_interrupted_call_is_not_resumed_as_another(two, then):
    """The next call finds the interrupted one, also if it has another method, or another choice in force."""
    if two is None:
        return
    with two.using(window=3):
        interrupted_call(two, np.full(6, 3.0), np.zeros(6))
        broken = list(two._state.fast_path.table.kinds)
        if then == "another method":
            gathered = np.zeros(4)
            two.Allgatherv(np.full(2, two.rank + 1.0), gathered)
            assert gathered.tolist() == [1, 1, 2, 2]
    assert (allreduce(two, np.full(6, two.rank + 1.0)) == 3).all()
    with two.using(window=3):
        if two.rank == 0:
            assert len(two._state.leaked) == 1 and len(broken) > len(two._state.fast_path.table.kinds)
        for _ in range(AGAIN):
            assert (allreduce(two, np.full(6, two.rank + 1.0)) == 3).all()


def test_no_references_are_kept(ours, comm):
    """The fast path holds no buffer, list or count after a call, and no further reference to shared objects."""
    send, receive, counts = np.ones(5), np.zeros(5), np.full(comm.size, 5)
    message = [np.zeros(5 * comm.size), counts, None, MPI.DOUBLE]
    call = lambda: (ours.Allreduce(send, receive), ours.Allreduce(MPI.IN_PLACE, receive), ours.Bcast(send),
                    ours.Allgatherv([send, "d"], message))
    fill_fast_path(call, AGAIN)
    gc.collect()
    own, shared = [send, receive, counts, *message[:1]], [MPI.IN_PLACE, MPI.SUM, MPI.DOUBLE, send.dtype, counts.dtype]
    before = [sys.getrefcount(held) for held in [*own, message, *shared]]
    for _ in range(300):
        call()
    gc.collect()
    after = [sys.getrefcount(held) for held in [*own, message, *shared]]
    assert all(abs(a - b) < 100 for a, b in zip(after, before))
    assert after[:5] == before[:5]


def test_a_freed_communicator(comm):
    """No handle of a freed communicator is served."""
    plain = comm.Dup()
    first, second = mpicoll.Comm(plain), mpicoll.Comm(plain)
    for freed in (first, second):
        fill_fast_path(lambda caller=freed: allreduce(caller, np.ones(5)), AGAIN)
    first.Free()
    with pytest.raises(CommError):
        allreduce(first, np.ones(5))
    # the other handle is of nothing now, which MPI may not be asked about; nothing of ours serves it
    assert second._fast_call(mpicoll.dispatch.methods.ALLREDUCE, np.ones(5), np.ones(5), MPI.SUM, 0) == 1


def test_concurrent_first_calls_share_a_definition(monkeypatch):
    """Python keeps the address of the definition it got first, so threads must not make several."""
    monkeypatch.setattr(entry, "_defined", {})
    definitions = []
    together(*[lambda: definitions.append(entry._definition(entry.finish))] * 4)
    assert len(definitions) == 4 and len({id(definition) for definition in definitions}) == 1
