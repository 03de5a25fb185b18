"""The graphs of neighbourhood collectives: edges of grids and lists, and what proofs notice of a wrong order."""

from __future__ import annotations

import pytest

import mpicoll
from mpicoll.algorithms.neighbor_alltoall import along_edges
from mpicoll.errors import ParameterError, PreconditionError, VerifyError
from mpicoll.plans.lowering import lower
from mpicoll.plans.plan import REDUCE, Shares
from mpicoll.proofs.check_schedule import verify
from mpicoll.runtime.topology import _graph_of_own_edges
from mpicoll.schedules import registry
from mpicoll.schedules.collectives import COLLECTIVES
from mpicoll.schedules.graphs import cartesian, line, mixed, several, torus
from mpicoll.schedules.ir import Recv, Send
from mpicoll.schedules.registry import Algorithm
from mpicoll.schedules.schedule import Schedule, schedule
from mpicoll.schedules.stencils import Stencil, bounded_moore, far, moore

GRIDS = [((1,), (True,)), ((2,), (True,)), ((3, 1), (True, True)), ((2, 2, 2), (True, False, True)), ((4,), (False,))]


@pytest.mark.parametrize(("dims", "periods"), GRIDS)
def test_blocks_sent_one_way_arrive_from_the_other(dims, periods):
    """In every dimension, of 1 and 2 ranks too."""
    graph = cartesian(dims, periods)
    for rank in range(graph.p):
        for place, edge in enumerate(graph.ends(rank).receives):
            if edge is not None:
                assert edge[1] == rank
                assert graph.ends(edge[0]).sends[place ^ 1] == edge


def test_a_rank_of_a_distributed_graph_knows_its_own_edges_only():
    graph = _graph_of_own_edges(0, 3, [1], [2])
    assert (graph.leaving(0), graph.entering(0)) == (((0, 2, 0),), ((1, 0, 0),))
    with pytest.raises(PreconditionError, match=r"know the neighbours of rank 1, .*use direct, or Create_sten"):
        graph.leaving(1)
    assert line(3).most_sent == 2


@pytest.mark.parametrize("make", [line, mixed, torus, several, moore, bounded_moore, far])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 8, 12])
def test_every_edge_has_two_ends(make, p):
    """Give each edge a sender and a receiver, once."""
    graph = make(p)
    sent = [edge for rank in range(p) for edge in graph.leaving(rank)]
    received = [edge for rank in range(p) for edge in graph.entering(rank)]
    assert len(set(sent)) == len(sent) == len(graph) and sorted(sent) == sorted(received)


@pytest.mark.parametrize(("offsets", "alike"), [
    ([(1, 0), (0, -1)], True), ([(1, 0), (1, 1)], False), ([(1, 1), (-1, -1)], False), ([(2, 0), (0, 1)], False),
    ([], False),
])  # fmt: skip
def test_stencils_with_equal_blocks(offsets, alike):
    """Those with a nearest neighbour along every dimension, which connects all ranks."""
    assert Stencil((3, 4), (True, False), offsets).has_equal_blocks == alike
    assert Stencil((1, 1), (True, False), offsets).has_equal_blocks


@pytest.mark.parametrize(("make", "p"), [(moore, 25), (bounded_moore, 45), (far, 15)])
def test_a_block_for_all_neighbours_reaches_every_rank_once(make, p):
    """In a neighbor_allgather; on grids that are large enough, with as many bytes as there are ranks to pass."""
    combining = schedule("neighbor_allgather", "combining", p, graph=make(p))
    received = [
        (rank, block[0])
        for rank in range(p) for step in combining.program(rank)[0] for op in step if isinstance(op, Recv)
        for block in op.blocks
    ]  # fmt: skip
    assert len(set(received)) == len(received)
    most = max(sum(to == rank for to, _ in received) for rank in range(p))
    assert most == combining.algorithm.claims.evaluate("branches(graph)", p, graph=combining.blocks)


def test_receives_must_be_in_the_order_of_sends():
    """Two blocks between one pair of ranks: the proof fails where the receiver takes the second for the first."""
    direct = registry.find("neighbor_alltoall", "direct")

    def backwards(p, rank, *, graph):
        return [tuple(sorted(step, key=lambda op: op.blocks[0][2] * (1 if isinstance(op, Send) else -1)))
                for step in along_edges(graph, rank)]

    wrong = Algorithm(COLLECTIVES["neighbor_alltoall"], "wrong", backwards, direct.claims, direct=True,
                      parameters=direct.parameters)
    verify(Schedule(direct, 2))
    with pytest.raises(VerifyError, match="sent blocks"):
        verify(Schedule(wrong, 2))


def test_a_plan_of_one_block_for_all():
    """The send side of a neighbor_allgather: every message is of one place, and what a rank keeps is copied."""
    graph = cartesian((2, 1), (True, True))
    direct = schedule("neighbor_allgather", "direct", 2, graph=graph)
    plan = lower(direct, 0, Shares((8,) * 4, (8,) * 4, (0,) * 4, (0, 8, 16, 24)), 1)
    assert [row for row in plan.rows[:, 0].tolist() if row == REDUCE] == [REDUCE, REDUCE]
    sent = {tuple(segment) for segment in plan.segments.tolist() if segment[0] == 0}
    assert sent == {(0, 0, 8)} and plan.scratch_bytes == 0


def test_the_graph_is_the_communicators():
    """A user cannot write one, nor is one of another number of ranks taken."""
    for spec in ("direct(graph=3)", "direct(graph=ring)"):
        with pytest.raises(ParameterError, match="it must be the topology of the communicator"):
            schedule("neighbor_alltoall", spec, 4)
    with pytest.raises(ParameterError):
        schedule("neighbor_alltoall", "direct", 4, graph=line(5))


def test_an_algorithm_needs_the_graph():
    """Without it, it would not know between which ranks blocks travel."""

    def body(p: int, rank: int):
        """Nothing.

        Steps: 0
        Bytes per rank: 0
        Scratch: 0
        Cost: 0
        Source: none
        """
        return [Recv(0, ())]

    with pytest.raises(ValueError, match="needs a parameter graph"):
        mpicoll.algorithm("neighbor_alltoall", name="strange")(body)
