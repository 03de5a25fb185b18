"""The barrier of the ranks that have freed a communicator."""

import pytest
from mpi4py import MPI

from mpicoll.runtime.free_barrier import FreeBarrier


class Barrier:
    """A communicator of some ranks whose barrier returns what a test sets."""

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


def test_one_rank_needs_no_barrier():
    comm = Barrier(1)
    assert FreeBarrier(comm).is_complete() and not comm.begun


def test_it_completes_when_every_rank_has_entered():
    comm = Barrier(3, False, False, True)
    free_barrier = FreeBarrier(comm)
    assert [free_barrier.is_complete() for _ in range(3)] == [False, False, True] and comm.begun == 1


@pytest.mark.parametrize("where", ["Ibarrier", "Test"])
def test_a_failed_barrier_stays_incomplete(where, monkeypatch):
    """After an error the request is null, and its Test would return True."""
    comm = Barrier(2, True)

    def fail(self):
        raise MPI.Exception(MPI.ERR_TRUNCATE)

    free_barrier = FreeBarrier(comm)
    with monkeypatch.context() as patch:
        patch.setattr(Barrier, where, fail)
        assert not free_barrier.is_complete()
    assert not free_barrier.is_complete()
