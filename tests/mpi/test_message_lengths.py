"""Ranks that give different counts: who gets a message of another length than it waits for raises."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.errors import MessageLengthError

BOTH, ROOT, OTHER = {0, 1}, {0}, {1}
# per call: its algorithm, which of two ranks get a message, and how it is called with n elements per rank
CALLS = {
    "allreduce ring": (BOTH, lambda comm, n: comm.Iallreduce(np.ones(2 * n), np.zeros(2 * n))),
    "allreduce recursive_doubling": (BOTH, lambda comm, n: comm.Iallreduce(np.ones(n), np.zeros(n))),
    "allgather ring": (BOTH, lambda comm, n: comm.Iallgather(np.ones(n), np.zeros(2 * n))),
    "alltoall pairwise": (BOTH, lambda comm, n: comm.Ialltoall(np.ones(2 * n), np.zeros(2 * n))),
    "reduce_scatter ring": (BOTH, lambda comm, n: comm.Ireduce_scatter_block(np.ones(2 * n), np.zeros(n))),
    "bcast binomial": (OTHER, lambda comm, n: comm.Ibcast(np.ones(n), 0)),
    "scatter linear": (OTHER, lambda comm, n: comm.Iscatter(np.ones(2 * n), np.zeros(n), 0)),
    "reduce binomial": (ROOT, lambda comm, n: comm.Ireduce(np.ones(n), np.zeros(n), MPI.SUM, 0)),
    "gather linear": (ROOT, lambda comm, n: comm.Igather(np.ones(n), np.zeros(2 * n), 0)),
}


@pytest.fixture
def two(comm):
    """Return a Comm of the first two ranks, None elsewhere."""
    pair = mpicoll.Comm(comm.Split(0 if comm.rank < 2 else MPI.UNDEFINED))
    return pair if pair != MPI.COMM_NULL else None


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("call", CALLS)
def test_whoever_gets_it_raises(two, engine, call, more):
    if two is None:
        return
    (collective, algorithm), (receivers, begin) = call.split(), CALLS[call]
    n = 8 if two.rank == more else 4
    with two.trace() as records, two.using(engine=engine, **{collective: algorithm}):
        begin(two, 4).Wait()    # the same everywhere
        request = begin(two, n)
    assert (records[0].algorithm, records[0].engine) == (algorithm, engine)
    if two.rank in receivers:
        with pytest.raises(MessageLengthError, match="received length differs from expected") as caught:
            request.Wait()
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    else:
        request.Wait()
