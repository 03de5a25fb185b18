"""Make communicators with few messages, in time that does not grow with use."""

from __future__ import annotations

import time

import pytest
from mpi4py import MPI
from support.calls import works
from support.cases import Checks

import mpicoll
from mpicoll.benchmarks import communicators
from mpicoll.diagnostics.status import Answer
from mpicoll.errors import CommError
from mpicoll.runtime import agreement
from mpicoll.runtime.comm_state import CommState


class Counting:
    """A communicator that counts the messages that are sent by its small letters."""

    def __init__(self, comm):
        self.comm, self.rank, self.size, self.sent = comm, comm.rank, comm.size, 0

    def send(self, value, to, tag):
        self.sent += 1
        self.comm.send(value, to, tag)

    def recv(self, source, tag):
        return self.comm.recv(source=source, tag=tag)


def test_settings_come_down_a_tree(comm):
    """A rank sends to log2(p) others at most, and every rank gets the value of rank 0."""
    with Checks() as checks:
        for size in range(1, comm.size + 1):
            part = comm.Split(0 if comm.rank < size else 1)
            if comm.rank < size:
                counting = Counting(part)
                value = agreement._broadcast(counting, {"of": size} if part.rank == 0 else None)
                checks.equal(value, {"of": size}, size)
                checks.that(counting.sent <= (size - 1).bit_length(), counting.sent, "of", size)
                checks.equal(part.allreduce(counting.sent), size - 1, "in all")
            part.Free()


@pytest.mark.parametrize("name", [lambda rank: "one", lambda rank: f"host {rank}", lambda rank: f"host {rank % 3 * 7}",
                                  lambda rank: "odd" if rank % 2 else "a"])
def test_nodes_are_in_the_order_of_their_first_ranks(comm, monkeypatch, name):
    monkeypatch.setattr(agreement, "node", lambda mpi: name(comm.rank))
    expected = {}
    for rank in range(comm.size):
        expected.setdefault(name(rank), []).append(rank)
    assert agreement.nodes_of(MPI.Intracomm(comm)) == tuple(map(tuple, expected.values()))


def test_a_note_that_was_left_on_a_freed_communicator(comm, monkeypatch):
    """No communicator gets its context, on any rank: not one of fewer ranks either, without the one that sent it."""
    ours = mpicoll.Comm(comm)
    monkeypatch.setattr(CommState, "respond", lambda self: None)  # no rank receives the note
    asker, left = comm.size - 1, []
    asks, tells = lambda known: known.ask(1.0), lambda known: known.tell([0], Answer(7))
    for send in (asks, tells):
        part = ours.Dup()
        left.append(part._open())
        if part.rank == asker > 0:
            send(left[-1].peer_status)
        part.Free()
        comm.Barrier()
        for _ in range(6):
            new = MPI.Intracomm(comm).Split(0 if comm.rank < asker else MPI.UNDEFINED)
            if new != MPI.COMM_NULL:
                assert not any(new.Iprobe() for _ in range(4))
                works(mpicoll.Comm(new))
                new.Free()
    monkeypatch.undo()
    freed = lambda: all(state.comm == MPI.COMM_NULL for state in left)
    if comm.size > 1:
        assert not freed()
        make_and_free_until(lambda: left[0].comm == MPI.COMM_NULL, ours)   # the question is answered now
        assert left[1].comm != MPI.COMM_NULL     # no rank receives what it did not request
    else:
        assert freed()


def make_and_free_until(reached, ours):
    """Make communicators and free them, until all ranks have come to a point."""
    for _ in range(100):
        if ours.allreduce(int(reached()), MPI.MIN):
            return
        ours.Dup().Free()
        time.sleep(0.01)
    raise AssertionError("not reached")


def test_the_benchmark(comm):
    timings = communicators.measure(3)
    assert timings.ranks == comm.size and min(timings.comm_us, timings.dup_us, timings.first_us, timings.last_us) > 0


@pytest.mark.parametrize("hosts", [1, 2, 3])
@pytest.mark.parametrize("color", [lambda rank: 0, lambda rank: rank % 2, lambda rank: int(rank > 0)])
def test_a_child_has_what_its_ranks_would_agree_on(comm, monkeypatch, hosts, color):
    """The settings are right even if the child has the ranks in another order."""
    monkeypatch.setattr(agreement, "node", lambda mpi: f"host {comm.rank % hosts}")
    parent = agreement.agree(comm)
    for key in (comm.rank, -comm.rank):
        child = comm.Split(color(comm.rank), key)
        assert agreement.inherit(parent, comm, child) == agreement.agree(child)
        child.Free()


@pytest.mark.mpi(max_size=2)
def test_too_many_communicators(comm):
    """MPICH has 2,048; what there is no room for is said, and nothing is lost."""
    if not MPI.Get_library_version().startswith("MPICH"):
        return
    ours, plain = mpicoll.Comm(comm.Dup()), []
    try:
        with pytest.raises(MPI.Exception):
            while True:
                plain.append(comm.Dup())
        plain.pop().Free()
        for _ in range(2):
            with pytest.raises(CommError, match=r"cannot make the private .*2,048.*Free.*MPI: .*free on this process"):
                ours.Dup()
    finally:
        for duplicate in plain:
            duplicate.Free()
    works(ours.Dup())
    ours.Free()
