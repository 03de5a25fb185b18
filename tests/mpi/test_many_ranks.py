"""The core on many ranks: every collective as `auto` chooses, and by an algorithm that is forced, on either engine.

`tests/run.py --full` runs this file alone on 16, 32 and 64 ranks. It has few tests, since so many ranks share some
cores.
"""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI
from support import collectives
from support.cases import AGAIN, Case, Checks

import mpicoll

FORCED = {
    "barrier": "double_ring", "bcast": "scatter_allgather", "scatter": "binomial", "gather": "knomial(k=3)",
    "allgather": "bruck(k=3)", "reduce": "double_tree", "reduce_scatter": "ring", "allreduce": "rabenseifner",
    "scan": "recursive_doubling", "exscan": "linear", "alltoall": "bruck",
}  # fmt: skip
HIERARCHICAL = [name for name in FORCED if "hierarchical" in mpicoll.list_algorithms()[name]]


def check(comm, collective, spec, **how):
    """Make calls of small and larger blocks, from the first and the last rank, and check memory and records."""
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks, ours.using(**{collective: spec}, **how):
        for n in (1, p + 1, 500) if collective != "barrier" else (0,):
            for root in collectives.roots(collective, 0, p - 1):
                case = Case(collective, n, root)
                with ours.trace() as records:
                    for _ in range(AGAIN):
                        checks.call(case.run(ours), case, spec)
                for record in records:
                    checks.equal(record.collective, collective, case)
                    checks.equal(record.algorithm, spec if spec != "auto" else record.algorithm, case)
                    checks.equal(record.engine, how.get("engine", record.engine), case)
                checks.equal(len(records), AGAIN, case)


@pytest.mark.parametrize("collective", FORCED)
def test_as_auto_chooses(comm, collective):
    check(comm, collective, "auto")


@pytest.mark.parametrize("engine", collectives.ENGINES)
@pytest.mark.parametrize(("collective", "spec"), FORCED.items(), ids=map(" ".join, FORCED.items()))
def test_forced(comm, collective, spec, engine):
    check(comm, collective, spec, engine=engine, chunk_bytes=1024)


@pytest.mark.parametrize("collective", HIERARCHICAL)
def test_by_hosts(comm, collective):
    """By the hosts that there are; on one, by groups of four ranks."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    one_host = host.size == comm.size
    host.Free()
    check(comm, collective, "hierarchical(groups=4)" if one_host else "hierarchical")


def test_in_flight_at_once(comm):
    """Nonblocking collectives of all sorts, completed in another order than they were begun."""
    ours, p, rank = mpicoll.Comm(comm), comm.size, comm.rank
    sums, rows, word = np.zeros(p), np.zeros((p, 3)), np.full(5, float(rank))
    mine, sent, got = np.full(3, rank + 0.5), np.arange(p) + 100.0 * rank, np.zeros(p)
    requests = [ours.Iallreduce(np.full(p, rank + 1.0), sums), ours.Iallgather(mine, rows), ours.Ibcast(word, p - 1),
                ours.Ialltoall(sent, got), ours.Ibarrier()]  # fmt: skip
    for request in reversed(requests):
        request.Wait()
    assert (sums == p * (p + 1) / 2).all() and (rows == np.arange(p)[:, None] + 0.5).all()
    assert (word == p - 1).all() and (got == 100.0 * np.arange(p) + rank).all()


def test_persistent(comm):
    ours, total = mpicoll.Comm(comm), np.zeros(7)
    mine = np.zeros(7)
    request = ours.Allreduce_init(mine, total)
    for i in range(3):
        mine[:] = comm.rank + i
        request.Start()
        request.Wait()
        assert (total == comm.size * (comm.size - 1) / 2 + i * comm.size).all()
    request.Free()


def test_parts(comm):
    """Rows and columns of a grid, each with collectives of its own."""
    ours = mpicoll.Comm(comm)
    width = max(w for w in range(1, comm.size + 1) if comm.size % w == 0 and w * w <= comm.size)
    row, column = divmod(comm.rank, width)
    for color, key, members in (
        (row, column, range(row * width, (row + 1) * width)),
        (column, row, range(column, comm.size, width)),
    ):
        part, total = ours.Split(color, key), np.zeros(1)
        part.Allreduce(np.array([float(comm.rank)]), total)
        assert part.rank == key and total == sum(members)
        part.Free()
