"""The sparse exchange: arrays for some ranks, which do not know who sends to them."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import errors
from mpicoll.dispatch import personalized_exchange
from mpicoll.dispatch.personalized_exchange import PersonalizedExchange
from mpicoll.errors import MismatchError
from mpicoll.runtime.inbox import Inbox

FORMS = {
    "blocking": lambda comm, parts: comm.Sparse_alltoall(parts),
    "nonblocking": lambda comm, parts: complete(*comm.Isparse_alltoall(parts)),
    "Waitall": lambda comm, parts: complete(*comm.Isparse_alltoall(parts), wait=lambda q: MPI.Request.Waitall([q])),
}
SEVERAL = pytest.mark.mpi(min_size=2)


def complete(received, request, wait=mpicoll.Request.Wait):
    wait(request)
    return received


@pytest.fixture(params=[*FORMS, "many ranks"])
def exchange(request, monkeypatch):
    """Return each form; on many ranks the blocking one does what the others do."""
    if request.param == "many ranks":
        monkeypatch.setattr(personalized_exchange, "MOST_RANKS", 0)
    return FORMS.get(request.param, FORMS["blocking"])


def pattern(p, seed, share, most=3000):
    """Return who sends to whom and how many elements, the same on every rank."""
    draw = np.random.default_rng(seed)
    return draw.random((p, p)) < share, draw.integers(0, most, (p, p))


def parts_of(rank, sends, counts):
    return {to: np.full(counts[rank, to], 1000.0 * rank + to) for to in np.flatnonzero(sends[rank])}


def check(received, rank, sends, counts):
    assert list(received) == np.flatnonzero(sends[:, rank]).tolist()
    for source, array in received.items():
        assert array.dtype == np.float64 and array.shape == (counts[source, rank],)
        assert (array == 1000.0 * source + rank).all()


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
def test_random_patterns(ours, engine, exchange, share):
    """Nothing, few, most and all pairs, between other collectives."""
    with ours.using(engine=engine):
        for seed in range(5):
            sends, counts = pattern(ours.size, seed, share)
            check(exchange(ours, parts_of(ours.rank, sends, counts)), ours.rank, sends, counts)
            total = np.zeros(1)
            ours.Allreduce(np.ones(1), total)
            assert total == ours.size


def test_long_arrays(ours, exchange):
    sends, counts = pattern(ours.size, 7, 0.7, most=400_000)
    check(exchange(ours, parts_of(ours.rank, sends, counts)), ours.rank, sends, counts)


def test_ranks_that_send_much_make_all_use_nbx(ours):
    """The last rank alone sends more than 1 MiB."""
    is_last, p = ours.rank == ours.size - 1, ours.size
    with ours.trace() as records:
        received = ours.Sparse_alltoall({0: np.full(1 << 17, 7.0)} if is_last else {p - 1: [1]})
    assert [record.algorithm for record in records][1:] == ["nbx"]
    assert sorted(received) == [*([p - 1] if ours.rank == 0 else []), *(range(p - 1) if is_last else [])]


@pytest.mark.parametrize("array", [
    np.arange(6, dtype=np.int16).reshape(2, 3), np.float32(2.5), np.zeros((0, 4), np.complex128),
    np.array([True, False]), np.arange(12.0).reshape(3, 4).T[::2], np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
    np.arange(4, dtype=">i8"), np.array(["2026-01-02"], "M8[D]"), np.ones(3, ml_dtypes.bfloat16),
], ids=lambda array: f"{array.dtype.name}{array.shape}")  # fmt: skip
def test_arrays_arrive_as_they_were_sent(ours, exchange, array):
    """With dtype and shape, 0-dimensional and empty ones too; the layout is C's."""
    received = exchange(ours, {(ours.rank + 1) % ours.size: array})
    (source,) = received
    assert source == (ours.rank - 1) % ours.size
    assert received[source].dtype == array.dtype and received[source].shape == array.shape
    assert received[source].tobytes() == array.tobytes() and received[source].flags.c_contiguous


def test_values_that_may_be_sent(ours):
    """Lists, NumPy's integers as ranks, MPI.PROC_NULL, and this rank itself, which gets a copy."""
    mine = np.arange(3)
    received = ours.Sparse_alltoall({np.int32(ours.rank): mine, MPI.PROC_NULL: [1, 2]})
    assert list(received) == [ours.rank] and (received[ours.rank] == mine).all()
    mine[:] = 7
    assert (received[ours.rank] == [0, 1, 2]).all()
    assert (ours.Sparse_alltoall({ours.rank: [1.5]})[ours.rank] == [1.5]).all()


@SEVERAL
def test_exchanges_under_way_together(ours, engine):
    """Each gets its own, in whatever order they are waited for; one rank is behind the others."""
    with ours.using(engine=engine):
        patterns = [pattern(ours.size, seed, 0.7) for seed in range(6)]
        if ours.rank == 0:
            time.sleep(0.05)
        begun = [ours.Isparse_alltoall(parts_of(ours.rank, *parameters)) for parameters in patterns]
        for i in np.random.default_rng(ours.rank).permutation(len(begun)):
            begun[i][1].Wait()
        for (received, _), parameters in zip(begun, patterns):
            check(received, ours.rank, *parameters)


@SEVERAL
def test_arrays_of_a_later_exchange_are_kept_for_it(ours):
    """Rank 0 receives both arrays in its first exchange."""
    to = 0 if ours.rank == 1 else MPI.PROC_NULL
    first, earlier = ours.Isparse_alltoall({to: [1]})
    second, other = ours.Isparse_alltoall({to: [2, 2]})
    if ours.rank == 0:
        time.sleep(0.05)
    earlier.Wait(), other.Wait()
    arrays = [[array.tolist() for array in received.values()] for received in (first, second)]
    assert arrays == ([[[1]], [[2, 2]]] if ours.rank == 0 else [[], []])


@SEVERAL
def test_no_rank_leaves_before_all_have_sent(ours, exchange):
    """Rank 0 sends late, to one rank; the others do not know whether it will."""
    if ours.rank == 0:
        time.sleep(0.2)
    received = exchange(ours, {ours.size - 1: [4.0]} if ours.rank == 0 else {})
    assert {r: list(x) for r, x in received.items()} == ({0: [4.0]} if ours.rank == ours.size - 1 else {})


def test_the_first_message_is_sent_synchronously():
    """Else a rank might enter the barrier before its message is received, and its receiver leave it behind."""
    called = []
    comm = SimpleNamespace(Issend=lambda *_: called.append("Issend"), Isend=lambda *_: called.append("Isend"))
    Inbox(comm).send(1, {0: np.ones(3)})
    Inbox(comm).send(1, {0: np.ones(3000)})
    assert called == ["Issend", "Issend", "Isend"]


def alarm(*arguments):
    raise TimeoutError


@SEVERAL
@pytest.mark.parametrize("form", ["blocking", "nonblocking"])
def test_an_interrupt_ends_nothing_but_the_wait(ours, engine, form):
    """The exchange goes on; a blocking one completes in later calls, so the ranks that wait for it are served."""
    # MPI holds back messages of this length until they are received
    sends, counts = pattern(ours.size, 3, 1.0, most=100_000 // ours.size)
    parts = parts_of(ours.rank, sends, counts)
    with ours.using(engine=engine):
        if ours.rank == 0:
            before = signal.signal(signal.SIGALRM, alarm)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            received, request = ours.Isparse_alltoall(parts) if form == "nonblocking" else ({}, None)
            try:
                with pytest.raises(TimeoutError):
                    ours.Sparse_alltoall(parts) if request is None else request.Wait()
            finally:
                signal.signal(signal.SIGALRM, before)
            if request is not None:
                check(complete(received, request), ours.rank, sends, counts)
        else:
            time.sleep(0.3)
            check(FORMS[form](ours, parts), ours.rank, sends, counts)
        check(ours.Sparse_alltoall(parts), ours.rank, sends, counts)


@SEVERAL
@pytest.mark.parametrize("most", [3000, 300_000], ids=["alltoallv", "nbx"])
def test_an_interrupt_between_sizes_and_arrays(ours, engine, monkeypatch, most):
    """The arrays follow by themselves, so the ranks that wait for them are served."""
    sends, counts = pattern(ours.size, 3, 1.0, most)
    parts = parts_of(ours.rank, sends, counts)
    with ours.using(engine=engine), monkeypatch.context() as broken:
        if ours.rank == 0:
            def interrupted(self):
                broken.undo()
                raise KeyboardInterrupt

            broken.setattr(PersonalizedExchange, "read_sizes", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ours.Sparse_alltoall(parts)
        else:
            check(ours.Sparse_alltoall(parts), ours.rank, sends, counts)
    with ours.using(engine=engine):
        check(ours.Sparse_alltoall(parts), ours.rank, sends, counts)


@SEVERAL
@pytest.mark.parametrize("where", ["_send", "_receive"])
def test_an_interrupt_that_loses_messages_is_told(comm, where, monkeypatch):
    """Later exchanges on this communicator raise too, on this rank; another communicator serves."""
    ours, other = mpicoll.Comm(comm.Dup()), mpicoll.Comm(comm.Dup())
    if ours.rank == 0:
        def interrupted(*arguments):
            raise KeyboardInterrupt

        with monkeypatch.context() as broken:
            broken.setattr(Inbox, where, interrupted)
            with pytest.raises(KeyboardInterrupt):
                ours.Isparse_alltoall({1: [1], 0: [2]})[1].Wait()
        for _ in range(2):
            with pytest.raises(errors.RequestError, match="use another communicator"):
                ours.Isparse_alltoall({})[1].Wait()
    sends, counts = pattern(other.size, 3, 0.5)
    check(other.Sparse_alltoall(parts_of(other.rank, sends, counts)), other.rank, sends, counts)


def test_in_threads_on_communicators_of_their_own(ours):
    comms = [ours, ours.Dup(), ours.Dup()]

    def work(comm):
        for seed in range(20):
            sends, counts = pattern(comm.size, seed, 0.5, most=200)
            check(comm.Sparse_alltoall(parts_of(comm.rank, sends, counts)), comm.rank, sends, counts)

    with ThreadPoolExecutor(len(comms)) as threads:
        list(threads.map(work, comms))


def test_the_trace(ours, monkeypatch):
    with ours.trace() as records:
        ours.Sparse_alltoall({0: np.zeros(5)})
        with monkeypatch.context() as changed:
            changed.setattr(personalized_exchange, "MOST_RANKS", 0)
            ours.Sparse_alltoall({0: np.zeros(5)})
        ours.Isparse_alltoall({})[1].Wait()
        with ours.using(alltoall="bruck"):
            ours.Sparse_alltoall({})
    *both, first, second, forced = records
    assert [(r.collective, r.form) for r in both] == [("alltoall", "blocking"), ("alltoallv", "blocking")]
    assert both[1].messages == (1 if ours.rank else ours.size - 1)
    assert (first.collective, first.algorithm, first.form) == ("sparse_alltoall", "nbx", "blocking")
    assert (first.bytes, first.received) == (40, 40 * ours.size if ours.rank == 0 else 0)
    assert (second.form, second.bytes, second.received) == ("nonblocking", 0, 0)
    assert forced.algorithm == "nbx" and first.messages - second.messages == 1 and second.sequence == first.sequence + 1


class Zero:
    """An integer that is no int."""

    def __index__(self):
        return 0


WRONG = {
    "no dict": (lambda p: [np.ones(1)] * p, errors.ArgumentError, "a dict of arrays"),
    "a rank that is no integer": (lambda p: {0.5: [1]}, errors.ArgumentError, "0.5 is no integer"),
    "two for one rank": (lambda p: {0: [1], Zero(): [2]}, errors.ArgumentError, "two arrays for rank 0"),
    "a rank that is not there": (lambda p: {p: [1]}, errors.RankError, "not in this communicator of"),
    "a negative rank": (lambda p: {-7: [1]}, errors.RankError, "rank -7"),
    "objects": (lambda p: {0: np.array([object()])}, errors.DatatypeError, "Python objects"),
    "a ragged list": (lambda p: {0: [[1], [2, 3]]}, errors.MessageSpecError, "the value for rank 0 is no array: "),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_raise_before_anything_is_sent(ours, exchange, what):
    parts, error, words = WRONG[what]
    with pytest.raises(error, match=words):
        exchange(ours, parts(ours.size))
    assert exchange(ours, {ours.rank: [1]})[ours.rank].tolist() == [1]


def test_a_rank_error_is_what_mpi_calls_it(ours):
    with pytest.raises(MPI.Exception) as raised:
        ours.Sparse_alltoall({ours.size: [1]})
    assert raised.value.Get_error_class() == MPI.ERR_RANK


@SEVERAL
@pytest.mark.parametrize("other", ["another collective", "wrong arguments"])
@pytest.mark.parametrize("form", ["blocking", "nonblocking"])  # Waitall raises an error without words
def test_check_mode_tells_who_does_something_else(comm, form, monkeypatch, other):
    exchange = FORMS[form]
    monkeypatch.setenv("MPICOLL_CHECK", "1")
    ours = mpicoll.Comm(comm)
    is_odd = comm.rank == comm.size - 1
    raises = errors.RankError if is_odd and other == "wrong arguments" else MismatchError
    with pytest.raises(raises):
        if is_odd and other == "another collective":
            ours.Barrier()
        else:
            exchange(ours, {99: [1]} if is_odd else {0: [1]})
    received = exchange(ours, {0: np.full(2, comm.rank)})
    assert [x.tolist() for x in received.values()] == ([[r, r] for r in range(comm.size)] if comm.rank == 0 else [])


def test_a_freed_communicator(comm):
    ours = mpicoll.Comm(comm.Dup())
    ours.Free()
    with pytest.raises(errors.CommError):
        ours.Sparse_alltoall({})
