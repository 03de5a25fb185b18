"""What collectives mean: who covers whom, and that a wrong scan, a wrong exscan or a liar is caught."""

from __future__ import annotations

import doctest

import pytest
from unit.mutants import adhoc

from mpicoll.errors import VerifyError
from mpicoll.proofs.check_plan import check_tables
from mpicoll.proofs.check_schedule import verify
from mpicoll.schedules import collectives
from mpicoll.schedules.collectives import COLLECTIVES, PLAIN, plain
from mpicoll.schedules.combinators import mirror
from mpicoll.schedules.ir import INPUT, VALUE, Loc, Recv, RecvReduce, Reduce, Send
from mpicoll.schedules.registry import find


def test_examples():
    found = doctest.testmod(collectives)
    assert (found.failed, found.attempted) == (0, 2)


def test_forms_with_counts_are_no_collectives_of_their_own():
    assert not set(PLAIN) & set(COLLECTIVES)
    assert {plain(name) for name in PLAIN} <= set(COLLECTIVES)
    assert all(plain(name) == name for name in COLLECTIVES)


@pytest.mark.parametrize("name", [name for name, c in COLLECTIVES.items() if c.reduces])
def test_whose_contributions_are_combined(name):
    first = {"scan": lambda rank: rank + 1, "exscan": lambda rank: rank}.get(name, lambda rank: 5)
    assert [COLLECTIVES[name].covers(5, rank) for rank in range(5)] == [(0, first(rank)) for rank in range(5)]


def test_rank_0_of_an_exscan_ends_with_nothing():
    exscan = COLLECTIVES["exscan"]
    assert [list(exscan.ends((0, 1), 3, rank, 0)) for rank in range(3)] == [[], [0, 1], [0, 1]]


def refused(collective, body, p, in_order=False):
    with pytest.raises(VerifyError) as error:
        verify(adhoc(collective, body, p, ordered=True, in_order=in_order))
    return error.value


def right(collective, body, p):
    for in_order in (False, True):
        made = adhoc(collective, body, p, ordered=True, in_order=in_order)
        verify(made)
        check_tables(made)


# -- scans --------------------------------------------------------------------------------------------------


def from_all(p, rank):
    """Everybody sends its vector to all after it, which fold them in, the nearest first."""
    lower = [RecvReduce(peer, (0,), "left") for peer in range(rank - 1, -1, -1)]
    if p > 1:
        yield *(Send(peer, (0,), INPUT) for peer in range(rank + 1, p)), *lower


def messages_first(p, rank):
    """A scan that combines what comes from the ranks before in the order they are named: the wrong one."""
    if p > 1:
        lower = [RecvReduce(peer, (0,), "left") for peer in range(rank)]
        yield *(Send(peer, (0,), INPUT) for peer in range(rank + 1, p)), *lower


@pytest.mark.parametrize("p", range(1, 7))
def test_scans_of_two_kinds(p):
    right("scan", from_all, p)
    right("scan", find("scan", "linear"), p)
    right("exscan", find("exscan", "linear"), p)


@pytest.mark.parametrize("p", [2, 3, 5])
def test_a_scan_that_leaves_out_its_own(p):
    error = refused("scan", find("exscan", "linear"), p)
    assert (error.rank, error.op, error.expected, error.got) == (1, "the end of block 0", "{0, 1}", "{0}")


@pytest.mark.parametrize("p", [2, 3, 5])
def test_an_exscan_that_includes_its_own(p):
    error = refused("exscan", find("scan", "linear"), p)
    assert (error.rank, error.op, error.expected, error.got) == (1, "the end of block 0", "{0}", "{0, 1}")
    error = refused("exscan", find("scan", "linear"), p, in_order=True)
    assert (error.expected, error.got) == ("0..0", "0..1")


@pytest.mark.parametrize("p", [3, 5])
def test_a_scan_that_leaves_rank_order(p):
    """Right where the operator commutes, and found where it does not."""
    verify(adhoc("scan", messages_first, p, ordered=True))
    error = refused("scan", messages_first, p, in_order=True)
    assert (error.rank, error.got) == (2, "1..1 before 0..0 is out of rank order")


@pytest.mark.parametrize("p", [3, 5])
def test_an_exscan_that_leaves_rank_order(p):
    """Its own before what came from the ranks before it, on the way to the next."""

    def body(p, rank):
        if rank == 0:
            yield Send(1, (0,))
        else:
            yield Recv(rank - 1, (0,))
            if rank < p - 1:
                yield [Reduce(Loc("onward", 0), Loc(x, 0), "left") for x in (VALUE, INPUT)]
                yield Send(rank + 1, (0,), "onward")

    verify(adhoc("exscan", body, p, ordered=True))
    error = refused("exscan", body, p, in_order=True)
    assert (error.rank, error.got) == (1, "1..1 before 0..0 is out of rank order")


@pytest.mark.parametrize("collective", ["scan", "exscan"])
def test_all_of_everybody_is_no_scan(collective):
    error = refused(collective, find("allreduce", "naive"), 3)
    assert error.op == "the end of block 0" and error.got == "{0, 1, 2}"


def test_an_exscan_in_which_a_rank_gets_nothing():
    error = refused("exscan", lambda p, rank: [], 2)
    assert (error.rank, error.expected) == (1, "{0}")


# -- direct -------------------------------------------------------------------------------------------------


def linear(p, rank):
    if rank:
        yield Send(0, (rank,))
    elif p > 1:
        yield [Recv(peer, (peer,)) for peer in range(1, p)]


def by_way_of_rank_1(p, rank):
    """Rank 1 hands on what the others sent it."""
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
    with pytest.raises(VerifyError) as error:
        verify(adhoc("gather", by_way_of_rank_1, p, root, direct=True))
    rank, other = (1 + root) % p, (2 + root) % p
    assert (error.value.rank, error.value.step, error.value.op) == (rank, 0, Recv(other, (other,)))
    assert error.value.expected == "only blocks this rank starts or ends with, as direct=True declares"
    assert error.value.got == f"block {other}"


def test_a_scatter_and_an_alltoall_that_say_so_falsely():
    with pytest.raises(VerifyError, match="as direct=True declares, got block 2"):
        verify(adhoc("scatter", lambda p, rank: mirror(by_way_of_rank_1(p, rank)), 3, direct=True))
    verify(adhoc("alltoall", find("alltoall", "bruck"), 4))
    with pytest.raises(VerifyError, match="as direct=True declares, got block"):
        verify(adhoc("alltoall", find("alltoall", "bruck"), 4, direct=True))
    verify(adhoc("alltoall", find("alltoall", "pairwise"), 4, direct=True))
