"""The fast path of calls whose arguments are lists: [array, counts, displacements, datatype] and the shorter forms."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI
from support import vectors
from support.buffer_forms import BUFFER_FORMS
from support.calls import fill_fast_path, takes_fast_path
from support.cases import AGAIN, Case
from support.collectives import VECTOR

from mpicoll.errors import BufferTooSmallError, CountMismatch, MpicollError, OverlapError, TypecodeError
from mpicoll.fastpath import context as field
from mpicoll.fastpath import rows, signature

N = 3   # elements of a block


def uneven(p):
    """Return counts of p ranks, one of them 0 if there are more than two."""
    return [0 if r == 2 else N + r for r in range(p)]


def check_fast_path(ours, calls):
    """Make calls that have one key but memory of their own; the fast path serves them from the third on."""
    for turn, call in enumerate(calls):
        with ours.trace() as records:
            call.run(ours)
        assert not call.difference
        assert [record.fast_path for record in records] == [turn >= AGAIN - 1]
        for memory in (call.sent, call.received):
            if memory is not None:
                memory[:] = 0       # not to be sent again


LONG = ("memoryview", "no type for nothing")
FORMS = [(name, form) for name in VECTOR for form in vectors.forms_for(name) if form not in LONG]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_vector_forms(ours, name, form):
    """Each call has new lists and arrays."""
    placement = "packed" if form in vectors.PACKED_ONLY else "with gaps"
    case = vectors.VectorCase(name, "uneven", placement, ours.size - 1)
    check_fast_path(ours, [case.prepare(ours, vectors.forms_for(name)[form]) for _ in range(AGAIN + 2)])


@pytest.mark.parametrize("types", [list, tuple])
def test_alltoallw_of_other_types(ours, comm, types):
    p, rank, counts, places = comm.size, comm.rank, [2] * comm.size, [16 * r for r in range(comm.size)]
    for kind, code in ((MPI.DOUBLE, "d"), (MPI.FLOAT, "f"), (MPI.DOUBLE, "d")):
        for _ in range(AGAIN + 1):
            send, receive = np.zeros((2, 2 * p))
            send.view(code)[:] = rank + 1
            ours.Alltoallw(*[[array, (counts, places), types([kind] * p)] for array in (send, receive)])
            assert all((receive[2 * r : 2 * r + 2].view(code)[:2] == r + 1).all() for r in range(p))


@pytest.mark.parametrize("counts_type", ["list", "tuple", "int64", "int32"])
def test_reduce_scatter(ours, comm, counts_type):
    p, rank, counts = comm.size, comm.rank, uneven(comm.size)
    make = {"list": list, "tuple": tuple, "int64": np.array, "int32": lambda c: np.array(c, np.int32)}[counts_type]

    def carry_out(on, turn=0):
        result = np.zeros(counts[rank])
        on.Reduce_scatter(np.arange(float(sum(counts))) + rank + turn, result, make(counts))
        return result

    for turn in range(AGAIN):
        assert (carry_out(ours, turn) == carry_out(comm, turn)).all()
    assert takes_fast_path(ours, lambda: carry_out(ours))
    assert (carry_out(ours, 5) == carry_out(comm, 5)).all()
    with ours.trace() as records:
        for _ in range(AGAIN + 1):      # without counts the ranks ask each other, every time
            result = np.zeros(counts[rank])
            ours.Reduce_scatter(np.ones(sum(counts)), result)
            assert (result == p).all()
    last = [(record.name, record.fast_path) for record in records[-2:]]
    assert last == [("Allgather", True), ("Reduce_scatter", True)]


SHORT = ("array", "type", "typecode", "count", "count and type", "count, displacement, type", "both in a list", "four",
         "bytes of doubles")


@pytest.mark.parametrize("form", SHORT)
@pytest.mark.parametrize("name", ["Allreduce", "Bcast"])
def test_buffer_forms(ours, name, form):
    case = Case(name, root=ours.size - 1, form=BUFFER_FORMS[form])
    check_fast_path(ours, [case.prepare(ours) for _ in range(AGAIN + 2)])


def test_a_count_on_the_other_side_is_another_key(ours, comm):
    """A count in the receive message is not taken for the same count in the send message."""
    send, receive = np.ones(2 * N), np.zeros(N)
    fill_fast_path(lambda: ours.Allreduce([send, N], receive), AGAIN)
    with pytest.raises(CountMismatch):
        ours.Allreduce(send, [receive, N])
    assert takes_fast_path(ours, lambda: ours.Allreduce([send, N], receive))


@pytest.mark.parametrize("kind", ["list", "int64"])
def test_counts_that_change(ours, comm, kind):
    """The same list or array of counts may have other values, or wrong ones, in the next call."""
    p, rank = comm.size, comm.rank
    counts = np.full(p, 2) if kind == "int64" else [2] * p
    receive = np.zeros(4 * p)
    call = lambda: ours.Allgatherv(np.full(counts[rank], rank + 1.0), [receive, counts])
    fill_fast_path(call, AGAIN)
    assert takes_fast_path(ours, call)
    for n in (1, 3, 2):
        for r in range(p):
            counts[r] = n
        receive[:] = 0
        call()
        assert receive.tolist() == [r + 1.0 for r in range(p) for _ in range(n)] + [0] * (4 - n) * p
    counts[p - 1] = 3       # and no other
    receive[:] = 0
    call()
    assert receive.tolist() == [r + 1.0 for r in range(p) for _ in range(2 + (r == p - 1))] + [0] * (2 * p - 1)
    counts[p - 1] = 2
    own = np.ones(2)
    counts[rank] = 1
    with pytest.raises(CountMismatch):
        ours.Allgatherv(own, [receive, counts])
    counts[rank] = 2
    for r in range(p):
        counts[r] = 5
    with pytest.raises((BufferTooSmallError, CountMismatch)):
        ours.Allgatherv(np.ones(5), [receive, counts])
    for r in range(p):
        counts[r] = 2
    assert takes_fast_path(ours, call)


class Counts(list):
    """A subclass of list."""


OTHER_COUNTS = {    # counts that are as right, and cannot be known without Python
    "short numbers of NumPy's": lambda n, p: [np.int16(n)] * p,
    "a subclass": lambda n, p: Counts([n] * p),
    "a range": lambda n, p: range(n, n + 1) if p == 1 else [np.uint32(n)] * p,
    "bytes": lambda n, p: np.full(p, n, np.uint8),
    "strided": lambda n, p: np.full(2 * p, n)[::2] if p > 1 else np.full(1, n, np.int16),
    "swapped": lambda n, p: np.full(p, n, ">i8"),
    "bools": lambda n, p: [True] * p if n == 1 else [np.int8(n)] * p,
    "one for all": lambda n, p: np.int16(n),
    "an array of arrays": lambda n, p: list(np.full((p, 1), n, np.int8)[:, 0]),
}
SERVED_COUNTS = {
    "numbers of NumPy's": lambda n, p: [np.int64(n)] * p,
    "C's ints": lambda n, p: [np.int32(n)] * p,
    "one number for all": lambda n, p: np.int64(n),
}


@pytest.mark.parametrize("kind", [*OTHER_COUNTS, *SERVED_COUNTS])
@pytest.mark.parametrize("n", [1, 2])
def test_counts_of_other_types(ours, comm, kind, n):
    p, rank = comm.size, comm.rank
    with ours.trace() as records:
        for _ in range(AGAIN + 1):
            receive = np.zeros(n * p)
            ours.Allgatherv(np.full(n, rank + 1.0), [receive, (SERVED_COUNTS.get(kind) or OTHER_COUNTS[kind])(n, p)])
            assert receive.tolist() == [r + 1.0 for r in range(p) for _ in range(n)]
    if kind in SERVED_COUNTS:
        assert records[-1].fast_path
    else:
        assert not any(record.fast_path for record in records)


@pytest.mark.parametrize("counts", [-1, 2**70, -(2**70), "d", None, [1], [[1]], 1.0, "objects"])
def test_wrong_counts_raise_after_right_ones(ours, comm, counts):
    """Each wrong call raises the same error and leaves no state behind."""
    p = comm.size
    right = lambda: ours.Allgatherv(np.ones(1), [np.zeros(p), [1] * p])
    fill_fast_path(right, AGAIN)
    passed = {"objects": [object()] * p}.get(counts, counts) if isinstance(counts, str) else counts
    if not isinstance(passed, (list, str)) and passed is not None:
        passed = [passed] * p
    outcomes = set()
    for _ in range(AGAIN + 1):
        with ours.trace() as records:
            try:
                ours.Allgatherv(np.ones(1), [np.zeros(p), passed, None, MPI.DOUBLE])
                outcomes.add("")
            except (MpicollError, MPI.Exception, OverflowError) as error:
                outcomes.add(str(error))
        assert not records or records[0].fast_path in (passed is None, passed == [1] and p == 1)
        assert sys.exc_info() == (None, None, None)
    assert len(outcomes) == 1
    assert takes_fast_path(ours, right)


def test_user_datatypes(ours, comm):
    """MPI's own datatypes are identified by their objects, users' by their construction, since they may be freed."""
    p, seen = comm.size, set()
    for k in (2, 1, 2):
        several = MPI.DOUBLE.Create_contiguous(k).Commit()
        send, receive = [np.full(k, 2.0), 1, several], [np.zeros(k * p), [1] * p, None, several]
        for turn in range(AGAIN):
            assert takes_fast_path(ours, partial(ours.Allgatherv, send, receive)) == (turn == AGAIN - 1 or k in seen)
            assert (receive[0] == 2).all()
        several.Free()
        seen.add(k)
    copy = MPI.Datatype(MPI.DOUBLE)
    for _ in range(AGAIN):
        assert not takes_fast_path(ours, lambda: ours.Bcast([np.ones(2), copy]))
    with pytest.raises(TypecodeError):
        ours.Bcast([np.ones(2), "no typecode"])


def test_typecodes_that_are_other_objects(ours, comm):
    """The key has the address of a string, which is kept while the row is there."""
    for code in ("d", "i", "d"):
        for _ in range(AGAIN):
            code = "".join(["=", code])[1:]
            value = np.full(2, comm.rank, code)
            ours.Bcast([value, code], comm.size - 1)
            assert (value == comm.size - 1).all()
    code = "".join(["f", "8"])
    held = sys.getrefcount(code)
    fill_fast_path(lambda: ours.Bcast([np.ones(3), code]), AGAIN)
    assert sys.getrefcount(code) == held + 1


def test_blocks_that_overlap(ours, comm):
    """Arrays that share memory are checked in Python each time: blocks may lie in each other's gaps."""
    p = comm.size
    whole = np.zeros(4 * p)
    call = lambda: ours.Alltoallv([whole, [1] * p, [4 * r for r in range(p)], MPI.DOUBLE],
                                  [whole, [1] * p, [4 * r + 1 for r in range(p)], MPI.DOUBLE])
    for turn in range(AGAIN + 1):
        whole[:] = turn + comm.rank
        assert not takes_fast_path(ours, call)
        assert (whole[1::4] == turn + np.arange(p)).all() and (whole[2::4] == turn + comm.rank).all()
    with pytest.raises(OverlapError):
        ours.Alltoallv([whole, [1] * p], [whole, [1] * p])


@pytest.mark.parametrize("in_place", [MPI.IN_PLACE, None])
def test_in_place(ours, comm, in_place):
    p, rank = comm.size, comm.rank
    for turn in range(AGAIN):
        receive = np.zeros(2 * p)
        receive[2 * rank : 2 * rank + 2] = rank + turn
        ours.Allgatherv(in_place, [receive, [2] * p])
        assert receive.tolist() == [r + turn for r in range(p) for _ in range(2)]
    assert takes_fast_path(ours, lambda: ours.Allgatherv(in_place, [receive, [2] * p]))
    if comm.rank == 0:
        call = lambda: ours.Scatterv([np.arange(2.0 * p), [2] * p], in_place, 0)
    else:
        receive = np.zeros(2)
        call = lambda: ours.Scatterv(None, receive, 0)
    fill_fast_path(call)
    assert takes_fast_path(ours, call)
    assert rank == 0 or receive.tolist() == [2.0 * rank, 2.0 * rank + 1]


def test_details_longer_than_their_array(ours, comm):
    """A call whose details do not fit takes the slow path, and memory behind the array is not written."""
    p = comm.size
    fast_path = ours._state.fast_path
    call = lambda: ours.Allgatherv(np.ones(2), [np.zeros(2 * p), np.full(p, 2)])
    fill_fast_path(call, AGAIN)
    (kind,) = [kind for kind, _ in fast_path.table.kinds.values()]
    needed = len(kind.details)
    fast_path.details[:] = 77
    for room in range(needed):
        fast_path.context[field.CAPACITY] = room
        assert not takes_fast_path(ours, call)
        assert (fast_path.details[room:] == 77).all()
    fast_path.context[field.CAPACITY] = needed
    assert takes_fast_path(ours, call)
    assert fast_path.details[needed:].tolist() == [77] * (len(fast_path.details) - needed)


def test_long_lists(ours, comm):
    """A list of datatypes for more ranks than the communicator has is refused, whatever its length."""
    p = comm.size
    with pytest.raises(MpicollError):
        ours.Alltoallw([np.ones(p), ([1] * p, [8] * p), [MPI.DOUBLE] * 100_000],
                       [np.ones(p), ([1] * p, [8 * r for r in range(p)]), [MPI.DOUBLE] * p])
    with pytest.raises(MpicollError):
        ours.Reduce_scatter(np.ones(p), np.ones(1), np.ones(100_000, np.int64))


@pytest.mark.parametrize("column", range(4))
def test_details_of_another_key_are_not_used(ours, comm, column):
    p = comm.size
    call = lambda: ours.Allgatherv(np.ones(2), [np.zeros(2 * p), [2] * p])
    fill_fast_path(call, AGAIN)
    ((kind, _),) = ours._state.fast_path.table.kinds.values()
    kind.details[column] += 1
    assert not takes_fast_path(ours, call)
    assert takes_fast_path(ours, call)


def test_details_of_another_key_in_each_row_of_a_key(ours, comm):
    """One of the cached calls is removed."""
    p, fast_path = comm.size, ours._state.fast_path

    def call(shift):
        ours.Allgatherv(np.ones(1), [np.zeros(9 * p), [1] * p, [r + shift for r in range(p)], MPI.DOUBLE])

    fill_fast_path(lambda: call(0), AGAIN)
    (row,) = fast_path.table.kinds
    kind, words = fast_path.table.take(row)
    call(1)
    first = int(fast_path.context[field.ROW])
    for way in range(rows.WAYS):
        fast_path.table.put((first + way) % signature.ROWS, kind, words)
    fill_fast_path(lambda: call(1))
    assert takes_fast_path(ours, lambda: call(1))


@pytest.fixture
def switch_interval():
    """Set the seconds for which a thread runs before another may, unless it waits."""
    before = sys.getswitchinterval()
    yield sys.setswitchinterval
    sys.setswitchinterval(before)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("after", [0.002, 0.05])     # seconds: within the function, and when it has given up waiting
@pytest.mark.parametrize("form", ["blocking", "nonblocking"])
def test_a_list_that_another_thread_clears(ours, comm, form, after, switch_interval):
    """The call keeps the array of a list until it completes."""
    p, n = comm.size, 1 << 16
    mine = np.full(n, comm.rank + 1.0)

    def call(message, wait=True):
        if form == "blocking":
            ours.Allgatherv(mine, message)
        else:
            request = ours.Iallgatherv(mine, message)
            return request.Wait() if wait else request

    fill_fast_path(lambda: call([np.zeros(n * p), [n] * p]), AGAIN)
    message, seen = [np.zeros(n * p), [n] * p], []
    array = weakref.ref(message[0])
    begins = threading.Lock()
    begins.acquire()

    def empty():
        begins.acquire()
        time.sleep(after)
        message[0] = None
        seen.append(array() is not None)

    thread = threading.Thread(target=empty, daemon=True)
    thread.start()
    comm.Barrier()
    if comm.rank == 0:
        time.sleep(0.3)
    used = message if comm.rank else [np.zeros(n * p), [n] * p]
    with ours.trace() as records:
        switch_interval(1000.0)         # the other thread runs where this one waits, not before the call
        begins.release()
        request = call(used, wait=False)
        thread.join()
        if request is not None:
            request.Wait()
    assert records[0].fast_path
    assert comm.rank == 0 or seen == [True]
    gc.collect()
    assert array() is None


@pytest.mark.parametrize("field", ["TYPE", "DATA", "NDIM", "DIMENSIONS", "DTYPE", "FLAGS"])
def test_layouts_are_checked(monkeypatch, field):
    """If an object's layout is another than expected, the fast path is closed and gives the reason."""
    assert signature.check_layouts() is None
    where = getattr(signature, field)
    others = [at for at in range(0, 80, 4) if at != where]
    for wrong in (*others, 1 << 20, 1 << 40, -(1 << 40)):   # of other fields, of other objects, and where nothing is
        monkeypatch.setattr(signature, field, wrong)
        signature.check_layouts.cache_clear()
        assert "not laid out" in (signature.check_layouts() or ""), (field, wrong)
        monkeypatch.undo()
    signature.check_layouts.cache_clear()
    assert signature.check_layouts() is None
