"""When every rank has left a communicator: by a barrier that nobody waits for."""

import pytest
from mpi4py import MPI

from mpicoll.runtime.departure import Departure


class Barrier:
    """A communicator of some ranks whose barrier answers what it is told."""

    def __init__(self, size, *answers):
        self.size, self.answers, self.begun = size, list(answers), 0

    def Ibarrier(self):
        self.begun += 1
        return self

    def Test(self):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_rank_alone_waits_for_nobody():
    comm = Barrier(1)
    assert Departure(comm).is_over() and not comm.begun


def test_all_ranks_have_left_when_the_barrier_is_over():
    comm = Barrier(3, False, False, True)
    departure = Departure(comm)
    assert [departure.is_over() for _ in range(3)] == [False, False, True] and comm.begun == 1


@pytest.mark.parametrize("where", ["Ibarrier", "Test"])
def test_a_barrier_that_fails_is_in_vain(where, monkeypatch):
    """After an error a request is null, and would say that it is over."""
    comm = Barrier(2, True)

    def fail(self):
        raise MPI.Exception(MPI.ERR_TRUNCATE)

    departure = Departure(comm)
    with monkeypatch.context() as patch:
        patch.setattr(Barrier, where, fail)
        assert not departure.is_over()
    assert not departure.is_over()
