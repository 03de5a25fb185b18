"""Define collectives: a wrong scan, a wrong exscan and a false claim are caught."""

from __future__ import annotations

import pytest
from unit.mutants import adhoc, holds, refused

from mpicoll.proofs.check_schedule import verify
from mpicoll.schedules.combinators import mirror
from mpicoll.schedules.ir import INPUT, VALUE, Loc, Recv, RecvReduce, Reduce, Send
from mpicoll.schedules.registry import find

# -- scans --------------------------------------------------------------------------------------------------


def from_all(p, rank):
    """Every rank sends its vector to all after it, which fold the vectors in, the nearest first."""
    lower = [RecvReduce(peer, (0,), "left") for peer in range(rank - 1, -1, -1)]
    if p > 1:
        yield *(Send(peer, (0,), INPUT) for peer in range(rank + 1, p)), *lower


def messages_first(p, rank):
    """A scan that combines what comes from the ranks before in the order they are named: the wrong one."""
    if p > 1:
        lower = [RecvReduce(peer, (0,), "left") for peer in range(rank)]
        yield *(Send(peer, (0,), INPUT) for peer in range(rank + 1, p)), *lower


def own_before_others(p, rank):
    """An exscan that passes on its own before what came from the ranks before it."""
    if rank == 0:
        yield Send(1, (0,))
    else:
        yield Recv(rank - 1, (0,))
        if rank < p - 1:
            yield [Reduce(Loc("onward", 0), Loc(x, 0), "left") for x in (VALUE, INPUT)]
            yield Send(rank + 1, (0,), "onward")


@pytest.mark.parametrize("p", range(1, 7))
@pytest.mark.parametrize("in_order", [False, True])
def test_a_scan_straight_from_all(p, in_order):
    holds(adhoc("scan", from_all, p, ordered=True, in_order=in_order))


END = "the end of block 0"


@pytest.mark.parametrize(
    ("collective", "body", "in_order", "rank", "op", "expected", "got"),
    [
        ("scan", find("exscan", "linear"), False, 1, END, "{0, 1}", "{0}"),  # leaves out its own
        ("exscan", find("scan", "linear"), False, 1, END, "{0}", "{0, 1}"),  # includes its own
        ("exscan", find("scan", "linear"), True, 1, END, "0..0", "0..1"),
        ("exscan", lambda p, rank: [], False, 1, END, "{0}", "{1}"),
        ("scan", find("allreduce", "naive"), False, 0, END, "{0}", "{0, 1, 2}"),  # all ranks' contributions
        ("exscan", find("allreduce", "naive"), False, 1, END, "{0}", "{0, 1, 2}"),
    ],
)
def test_a_wrong_scan_is_found(collective, body, in_order, rank, op, expected, got):
    error = refused(adhoc(collective, body, 3, ordered=True, in_order=in_order))
    assert (error.rank, error.op, error.expected, error.got) == (rank, op, expected, got)


@pytest.mark.parametrize("p", [3, 5])
@pytest.mark.parametrize("collective", ["scan", "exscan"])
def test_a_scan_that_leaves_rank_order(collective, p):
    """Right where the operator commutes, and found where it does not."""
    body, rank = (messages_first, 2) if collective == "scan" else (own_before_others, 1)
    verify(adhoc(collective, body, p, ordered=True))
    error = refused(adhoc(collective, body, p, ordered=True, in_order=True))
    assert (error.rank, error.got) == (rank, "1..1 before 0..0 is out of rank order")


# -- direct -------------------------------------------------------------------------------------------------


def linear(p, rank):
    if rank:
        yield Send(0, (rank,))
    elif p > 1:
        yield [Recv(peer, (peer,)) for peer in range(1, p)]


def by_way_of_rank_1(p, rank):
    """Rank 1 forwards the vectors that the others sent it."""
    if rank == 1:
        yield from (Recv(peer, (peer,)) for peer in range(2, p))
        yield Send(0, tuple(range(1, p)))
    elif rank:
        yield Send(1, (rank,))
    elif p > 1:
        yield Recv(1, tuple(range(1, p)))


@pytest.mark.parametrize("p", [1, 2, 3, 6])
def test_direct_is_proved(p):
    for root in range(p):
        verify(adhoc("gather", linear, p, root, direct=True))
        verify(adhoc("gather", by_way_of_rank_1, p, root))


@pytest.mark.parametrize("p", [3, 6])
@pytest.mark.parametrize("root", [0, 2])
def test_an_algorithm_that_says_it_is_direct_and_is_not(p, root):
    error = refused(adhoc("gather", by_way_of_rank_1, p, root, direct=True))
    rank, other = (1 + root) % p, (2 + root) % p
    assert (error.rank, error.step, error.op) == (rank, 0, Recv(other, (other,)))
    assert error.expected == "only blocks this rank starts or ends with, as direct=True declares"
    assert error.got == f"block {other}"


def test_a_scatter_and_an_alltoall_that_say_so_falsely():
    message = "as direct=True declares, got block"
    refused(adhoc("scatter", lambda p, rank: mirror(by_way_of_rank_1(p, rank)), 3, direct=True), f"{message} 2")
    refused(adhoc("alltoall", find("alltoall", "bruck"), 4, direct=True), message)
    verify(adhoc("alltoall", find("alltoall", "bruck"), 4))
    verify(adhoc("alltoall", find("alltoall", "pairwise"), 4, direct=True))
