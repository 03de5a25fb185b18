"""Communicators: which keep the class, what their end leaves behind, and that nobody meets our messages."""

from __future__ import annotations

import threading

import mpi_cases as cases
import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import channel as channels
from mpicoll.errors import CommError

each = pytest.mark.parametrize
THREADED = MPI.Query_thread() == MPI.THREAD_MULTIPLE


class Mine(mpicoll.Comm):
    """A user's own class."""


@pytest.fixture(params=[mpicoll.Comm, Mine], ids=["Comm", "subclass"])
def ours(comm, request):
    return request.param(comm)


def works(comm, size=None):
    """A collective of ours gives what it should, on ours."""
    total, count = np.zeros(3), comm.size if size is None else size
    with comm.trace() as records:
        comm.Allreduce(np.full(3, comm.rank + 1.0), total)
    assert (total == count * (count + 1) / 2).all()
    assert [r.algorithm != "native" for r in records] == [True]


# -- a Comm is a communicator


def test_is_an_intracomm(ours):
    assert isinstance(ours, MPI.Intracomm) and isinstance(ours, mpicoll.Comm)
    assert ours.size == MPI.COMM_WORLD.size and ours.rank == MPI.COMM_WORLD.rank
    works(ours)


def test_equals_the_communicator_it_was_made_of(comm):
    ours = mpicoll.Comm(comm)
    assert ours == comm and MPI.Comm.Compare(ours, comm) == MPI.IDENT


def test_pickled_methods_and_messages_still_work(ours):
    p, rank = ours.size, ours.rank
    assert ours.allreduce(rank + 1) == p * (p + 1) // 2
    assert ours.bcast({"a": [1, 2]} if rank == 0 else None) == {"a": [1, 2]}
    assert ours.gather("x" * rank, root=p - 1) == (["x" * r for r in range(p)] if rank == p - 1 else None)
    assert ours.sendrecv(rank, (rank + 1) % p, source=(rank - 1) % p) == (rank - 1) % p


def test_methods_that_are_not_ours_still_work(ours):
    p, rank = ours.size, ours.rank
    got, counts = np.zeros(p * (p + 1) // 2), [r + 1 for r in range(p)]
    ours.Allgatherv(np.full(rank + 1, float(rank)), [got, counts])
    assert got.tolist() == [float(r) for r in range(p) for _ in range(r + 1)]
    request, total = ours.Ibarrier(), np.zeros(1)
    request.Wait()
    ours.Scan(np.ones(1), total)
    assert total[0] == rank + 1


def test_two_objects_on_one_communicator_share_their_channel(comm):
    first, live = mpicoll.Comm(comm), len(channels._live)
    second = mpicoll.Comm(comm)
    assert first._channel is second._channel and len(channels._live) == live
    with first.trace() as records:
        works(second)
    assert len(records) == 1


def test_shared_choice(comm):
    """What using() says holds for the communicator."""
    first, second = mpicoll.Comm(comm), mpicoll.Comm(comm)
    with first.using(allreduce="naive"):
        assert second.explain("allreduce", 1 << 20).algorithm == "naive"
    assert second.explain("allreduce", 1 << 20).algorithm != "naive"


def test_one_rank(comm):
    alone = mpicoll.Comm(MPI.COMM_SELF)
    with cases.Checks() as checks:
        for collective, spec in cases.specs():
            for engine in cases.ENGINES:
                case = cases.Case(collective, 4)
                with alone.using(engine=engine, **{collective: spec}), alone.trace() as records:
                    got = case.run(alone).result
                want = case.run(MPI.COMM_SELF).result
                checks.that((got is None and want is None) or np.array_equal(got, want), collective, spec, engine)
                checks.equal([(r.algorithm, r.messages) for r in records], [(spec, 0)], collective)


# -- communicators out of communicators


@each("method", ["Dup", "Clone"])
def test_copies(ours, method):
    copy = getattr(ours, method)()
    assert type(copy) is type(ours) and MPI.Comm.Compare(copy, ours) == MPI.CONGRUENT
    assert copy._channel is not ours._channel
    works(copy)
    copy.Free()
    works(ours)


def test_dup_with_info(ours):
    info = MPI.Info.Create()
    copy = ours.Dup(info)
    assert type(copy) is type(ours)
    works(copy)
    copy.Free()
    info.Free()


@each("method", ["Idup", "Idup_with_info"])
def test_nonblocking_copies(ours, method):
    arguments = [MPI.INFO_NULL] if method == "Idup_with_info" else []
    copy, request = getattr(ours, method)(*arguments)
    request.Wait()
    assert type(copy) is type(ours)
    works(copy)
    copy.Free()


def test_parts(ours):
    color, p = ours.rank % 2, ours.size
    part = ours.Split(color, -ours.rank)
    assert type(part) is type(ours)
    assert part.size == (p + 1 - color) // 2 and part.rank == part.size - 1 - ours.rank // 2
    works(part)
    part.Free()


def test_parts_that_some_are_not_in(ours):
    part = ours.Split(MPI.UNDEFINED if ours.rank else 0)
    assert type(part) is type(ours)
    if ours.rank:
        assert part == MPI.COMM_NULL
        with pytest.raises(CommError):
            part.Allreduce(np.zeros(1), np.zeros(1))
    else:
        works(part, 1)
        part.Free()
    works(ours)


def test_parts_by_type(ours):
    part = ours.Split_type(MPI.COMM_TYPE_SHARED)
    assert type(part) is type(ours) and part.size == ours.size
    works(part)
    part.Free()
    nothing = ours.Split_type(MPI.UNDEFINED)
    assert type(nothing) is type(ours) and nothing == MPI.COMM_NULL


@each("method", ["Create", "Create_group"])
def test_groups(ours, method):
    """The even ranks, backwards."""
    members = list(range(0, ours.size, 2))[::-1]
    group = ours.Get_group().Incl(members)
    if method == "Create" or ours.rank in members:
        part = getattr(ours, method)(group)
        assert type(part) is type(ours)
        if ours.rank in members:
            assert part.rank == members.index(ours.rank)
            works(part, len(members))
            part.Free()
        else:
            assert part == MPI.COMM_NULL
    works(ours)
    group.Free()


def test_merged_and_cartesian_communicators_can_be_made_ours(comm):
    """What mpi4py returns as another class stays that; Comm() takes it."""
    ours = mpicoll.Comm(comm)
    grid = ours.Create_cart([comm.size])
    assert isinstance(grid, MPI.Cartcomm)
    on_grid = mpicoll.Comm(grid)
    works(on_grid)
    grid.Free()


# -- the end of a communicator


@each("call", [
    lambda c: c.Barrier(),
    lambda c: c.Bcast(np.zeros(1)),
    lambda c: c.Allreduce(np.zeros(1), np.zeros(1)),
    lambda c: c.Iallreduce(np.zeros(1), np.zeros(1)),
    lambda c: c.explain("allreduce"),
    lambda c: c.using(allreduce="ring").__enter__(),
], ids=["Barrier", "Bcast", "Allreduce", "Iallreduce", "explain", "using"])
def test_a_freed_communicator_is_refused(comm, call):
    ours = mpicoll.Comm(comm).Dup()
    ours.Free()
    assert ours == MPI.COMM_NULL
    with pytest.raises(CommError) as caught:
        call(ours)
    assert caught.value.Get_error_class() == MPI.ERR_COMM and isinstance(caught.value, MPI.Exception)


def test_a_null_communicator_is_refused(comm):
    null = mpicoll.Comm(MPI.COMM_NULL)
    assert null == MPI.COMM_NULL
    with pytest.raises(CommError):
        null.Barrier()


def test_another_object_of_a_freed_communicator_is_refused(comm):
    """The other handle does not know; the channel does."""
    first = comm.Dup()
    second = mpicoll.Comm(first)
    channel = second._channel
    first.Free()
    assert channel.freed and channel.comm == MPI.COMM_NULL


@pytest.mark.mpi(min_size=2)
def test_intercommunicators_are_refused(comm):
    half = comm.Split(comm.rank % 2)
    inter = half.Create_intercomm(0, comm, 1 - comm.rank % 2)
    with pytest.raises(CommError, match="intercommunicator") as caught:
        mpicoll.Comm(inter)
    assert caught.value.Get_error_class() == MPI.ERR_COMM
    merged = mpicoll.Comm(inter.Merge())
    works(merged)
    merged.Free()
    inter.Free()
    half.Free()


def test_cycles_leave_nothing_behind(comm):
    """More of them than there can be communicators: MPICH has 2,046."""
    ours, live = mpicoll.Comm(comm), len(channels._live)
    for _ in range(1_100 if ours.size < 5 else 300):
        copy = ours.Dup()
        copy.Free()
    for _ in range(30):
        copy = ours.Dup()
        works(copy)
        copy.Free()
    assert len(channels._live) == live


def test_cycles_of_the_users_own_communicator(comm):
    live = len(channels._live)
    for _ in range(50):
        plain = comm.Dup()
        works(mpicoll.Comm(plain))
        plain.Free()
    assert len(channels._live) == live


# -- private messages


@each("engine", cases.ENGINES)
def test_user_messages_do_not_meet_ours(comm, engine):
    """Receives from anybody with any tag wait, before, while and after our messages travel."""
    plain = comm.Dup()       # MPI's own collectives need not be so careful, and on one rank of MPICH they hang
    ours, p = mpicoll.Comm(comm), comm.size
    waiting = [np.zeros(1) for _ in range(8)]
    requests = [comm.Irecv(buffer, MPI.ANY_SOURCE, MPI.ANY_TAG) for buffer in waiting]
    with cases.Checks() as checks:
        for collective, spec in cases.specs():
            cases.check(checks, ours, plain, cases.Case(collective, 3 if collective != "barrier" else 0), spec, engine)
        flight = ours.Iallreduce(np.ones(5), np.zeros(5))
        checks.that(not any(r.Test() for r in requests), "a message of ours reached the user")
        flight.Wait()
        checks.that(not any(r.Test() for r in requests), "a message of ours reached the user")
    plain.Barrier()
    for i in range(8):
        comm.Send(np.full(1, float(i)), (comm.rank + 1) % p, 50 + i)
    MPI.Request.Waitall(requests)
    assert sorted(buffer[0] for buffer in waiting) == list(range(8))
    plain.Free()


@each("engine", cases.ENGINES)
def test_user_messages_wait_for_their_receive(comm, engine):
    """Sent before, received after our collectives."""
    ours, p = mpicoll.Comm(comm), comm.size
    requests = [comm.Isend(np.full(1, 7.0 + tag), (comm.rank + 1) % p, tag) for tag in range(4)]
    with ours.using(engine=engine):
        works(ours)
        ours.Barrier()
    for tag in range(4):
        got = np.zeros(1)
        comm.Recv(got, (comm.rank - 1) % p, tag)
        assert got[0] == 7.0 + tag
    MPI.Request.Waitall(requests)


# -- threads


@pytest.mark.skipif(not THREADED, reason="needs MPI_THREAD_MULTIPLE")
@each("engine", cases.ENGINES)
def test_two_communicators_in_two_threads(comm, engine):
    wrong: list[object] = []

    def work(ours, n):
        try:
            for i in range(30):
                got = np.zeros(n)
                ours.Allreduce(np.full(n, float(i + ours.rank)), got)
                if not (got == ours.size * i + ours.size * (ours.size - 1) / 2).all():
                    wrong.append((n, i, got))
                ours.Iallreduce(MPI.IN_PLACE, got).Wait()
        except BaseException as error:
            wrong.append(error)

    both = [mpicoll.Comm(comm), mpicoll.Comm(comm).Dup()]
    with both[0].using(engine=engine), both[1].using(engine=engine):
        threads = [threading.Thread(target=work, args=(c, n)) for c, n in zip(both, (3, 5_000))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    both[1].Free()
    assert not wrong
