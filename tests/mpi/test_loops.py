"""Steps that repeat stand in the tables of an engine once: loops do what the steps do, on either engine."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI
from support import cases, collectives
from support.cases import Case, Checks
from unit.conftest import registry as registry

import mpicoll
from mpicoll.dispatch import prepare
from mpicoll.plans import rolled
from mpicoll.schedules.ir import Recv, RecvReduce, Send
from mpicoll.schedules.registry import algorithm

parametrize = pytest.mark.parametrize
PIECES = 12
DOC = """One piece after the other, in steps of their own.

Steps: at most 100 * p
Bytes per rank: at most n * p
Scratch: at most n * p
Cost: none to speak of
Source: this test
"""


def down(p, rank):
    for piece in range(PIECES):
        if rank:
            yield Recv(rank - 1, (piece,))
        if rank + 1 < p:
            yield Send(rank + 1, (piece,))


def up(p, rank):
    for piece in range(PIECES):
        if rank + 1 < p:
            yield RecvReduce(rank + 1, (piece,))
        if rank:
            yield Send(rank - 1, (piece,))


@pytest.fixture
def loops(monkeypatch):
    """Return the list of the most turns of a loop, plan by plan."""
    turns = []

    def note(plan):
        turns.append(int((rolled_plan := rolled.rolled(plan)).steps[:, rolled.TURNS].max(initial=0)))
        return rolled_plan

    monkeypatch.setattr(prepare, "rolled", note)
    return turns


@pytest.mark.mpi(min_size=2)
@pytest.mark.unsampled(max_size=4)
@parametrize("engine", collectives.ENGINES)
@parametrize(("collective", "body"), [("bcast", down), ("reduce", up)])
def test_piece_by_piece(comm, registry, loops, engine, collective, body):
    """Offsets move from turn to turn; a rank in the middle has two steps a turn. Pieces are cut into chunks too."""
    body.__doc__ = DOC
    algorithm(collective, blocks=PIECES)(body)
    ours = mpicoll.Comm(comm)
    with Checks() as checks:
        for n, how in ((PIECES * 5, {}), (PIECES * 5 + 7, {}), (PIECES * 40, {"chunk_bytes": 96, "window": 3})):
            cases.check(checks, ours, Case(collective, n), body.__name__, engine, **how)
    assert loops[0] == PIECES and min(loops) >= PIECES // 2 - 1, loops


@pytest.mark.mpi(min_size=2)
@parametrize("engine", collectives.ENGINES)
def test_started_again_and_again(comm, registry, loops, engine):
    """A persistent collective has requests of its own for every turn."""
    down.__doc__ = DOC
    algorithm("bcast", blocks=PIECES)(down)
    ours, buffer = mpicoll.Comm(comm), np.zeros(PIECES * 3)
    with ours.using(bcast="down", engine=engine):
        request = ours.Bcast_init(buffer)
    for i in range(3):
        buffer[:] = np.arange(PIECES * 3) + i if comm.rank == 0 else -1
        request.Start()
        request.Wait()
        assert (buffer == np.arange(PIECES * 3) + i).all()
    request.Free()
    assert loops == [PIECES]


def one_by_one(p, rank):
    for peer in range(1, p):
        if rank == 0:
            yield Send(peer, (0,))
        elif rank == peer:
            yield Recv(0, (0,))


@pytest.mark.mpi(min_size=4)
@pytest.mark.unsampled(max_size=4)
@parametrize("engine", collectives.ENGINES)
def test_rank_by_rank(comm, registry, monkeypatch, loops, engine):
    """Peers move from turn to turn. Loops are looked for in few steps too here, as in the test below."""
    monkeypatch.setattr(rolled, "MIN_STEPS", 0)
    one_by_one.__doc__ = DOC
    algorithm("bcast")(one_by_one)
    with Checks() as checks:
        cases.check(checks, mpicoll.Comm(comm), Case("bcast", 9), "one_by_one", engine)
    assert max(loops) == (comm.size - 1 if comm.rank == 0 else 1)


@pytest.mark.mpi(min_size=5)
@parametrize("engine", collectives.ENGINES)
def test_every_algorithm(comm, monkeypatch, loops, engine):
    monkeypatch.setattr(rolled, "MIN_STEPS", 0)
    ours, longest = mpicoll.Comm(comm), {}
    with Checks() as checks:
        for collective, spec in collectives.specs():
            loops.clear()
            for n, how in ((comm.size * 4, {}), (comm.size * 40, {"chunk_bytes": 64})):
                case = Case(collective, n)
                cases.check(checks, ours, case, spec, engine, **how)
            longest[collective, spec] = comm.allreduce(max(loops), MPI.MAX)
    assert longest["alltoall", "pairwise"] > 2 and longest["bcast", "binomial"] == 1, longest
