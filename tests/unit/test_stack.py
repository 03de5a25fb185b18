"""Layers one after the other: parts of several strands, on some of the ranks, of some of the blocks."""

from __future__ import annotations

from math import lcm

import pytest
from unit.mutants import NOTHING, adhoc, documented, holds, refused

from mpicoll.proofs.check_schedule import verify
from mpicoll.schedules.collectives import COLLECTIVES
from mpicoll.schedules.combinators import Layer, Stack, mirror, parallel, relabel
from mpicoll.schedules.grouping import dealt, itself, uneven
from mpicoll.schedules.ir import Recv, RecvReduce, Send, Strands
from mpicoll.schedules.registry import Algorithm, Chosen, algorithm, find
from mpicoll.schedules.schedule import Schedule, schedule

CHAIN, BINOMIAL = find("reduce", "chain"), find("reduce", "binomial")


def twofold(p, rank):
    """Block 0 comes down a chain in strand 0, block 1 down a tree in strand 1."""
    return parallel(CHAIN(p, rank), relabel(BINOMIAL(p, rank), int, lambda _: (1,)))


def woven(p, rank):
    """A block per rank, the even ones down a chain in strand 0, the odd ones down a tree in strand 1."""
    return parallel(
        relabel(CHAIN(p, rank), int, lambda _: tuple(range(0, p, 2))),
        relabel(BINOMIAL(p, rank), int, lambda _: tuple(range(1, p, 2))),
    )


def reversed_in_time(body):
    return lambda p, rank: mirror(body(p, rank))


def odd(block):
    return block % 2


@pytest.fixture
def toys(registry) -> None:
    """Register reductions and broadcasts of several strands under the same names, for the test only."""
    for name, body, blocks, strand in (
        ("twofold", twofold, 2, odd),
        ("woven", woven, lambda p: p, odd),
        ("liar", twofold, 2, lambda block: 0),
        ("third", lambda p, rank: relabel(CHAIN(p, rank), int, lambda _: (0, 1, 2)), 3, lambda block: 0),
    ):
        for collective, moves in (("reduce", body), ("bcast", reversed_in_time(body))):
            algorithm(collective, name=name, blocks=blocks, strand=strand, ordered=True)(documented(moves))


def stacked(layers, p, blocks):
    """Return a reduction made of some layers."""
    entry = Algorithm(COLLECTIVES["reduce"], "stacked", lambda p: layers, NOTHING, lambda p: blocks, layered=True)
    return Schedule(entry, p)


# -- parts of several strands -------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 2, 3, 5, 6])
@pytest.mark.parametrize(
    ("reduce", "bcast", "strands", "blocks"),
    [
        ("twofold", "twofold", 2, 2),
        ("twofold", "binomial", 2, 2),
        ("chain", "twofold", 2, 2),
        ("third", "twofold", 2, 6),
        ("twofold", "woven", None, None),
        ("woven", "woven", None, None),
        ("woven", "third", None, None),
    ],
)
def test_a_strand_for_every_combination_of_strands(toys, p, reduce, bcast, strands, blocks):
    stack = schedule("allreduce", f"reduce_bcast(reduce={reduce}, bcast={bcast})", p)
    parts = find("reduce", reduce), find("bcast", bcast)
    total = lcm(*(part.blocks(p) for part in parts))
    assert len(stack.blocks) == total == (blocks or total)

    def way(block):
        return tuple(0 if x.strand is None else x.strand(block * x.blocks(p) // total) for x in parts)

    ways = {way(block) for block in stack.blocks}
    assert len(stack.program(0)) == len(ways) == (strands or len(ways))
    for block in stack.blocks:
        others = [b for b in stack.blocks if stack.strand(b) == stack.strand(block)]
        assert all(way(other) == way(block) for other in others)
    assert len({len(stack.program(rank)) for rank in range(p)}) == 1
    holds(stack)
    holds(schedule("allreduce", f"reduce_bcast(reduce={reduce}, bcast={bcast})", p, commutative=False))


def test_strands_cross(toys):
    """Three blocks of four go another way in the second layer than in the first: four strands of two."""
    stack = schedule("allreduce", "reduce_bcast(reduce=twofold, bcast=woven)", 4)
    assert [stack.strand(b) for b in stack.blocks] == [0, 1, 2, 3]
    assert [len(strand) for strand in stack.program(0)] == [1 + 1, 1 + 2, 2 + 1, 2 + 2]
    assert verify(stack).steps == 3 + 3


@pytest.mark.parametrize("groups", [1, 2, 3, 20, uneven, dealt], ids=lambda g: getattr(g, "__name__", str(g)))
@pytest.mark.parametrize("inner", ["twofold", "woven", "third", "chain"])
@pytest.mark.parametrize("middle", ["ring", "reduce_bcast(reduce=woven,bcast=twofold)"])
def test_unequal_groups(toys, groups, inner, middle):
    for p in (1, 2, 7):
        which = groups(p) if callable(groups) else groups
        holds(schedule("allreduce", f"hierarchical(inner={inner}, middle={middle}, groups={which})", p))


def test_layers_of_layers_of_layers(toys):
    inmost = "reduce_bcast(reduce=woven, bcast=twofold)"
    outer = f"hierarchical(groups=2, middle=hierarchical(groups=2, inner=woven, middle={inmost}))"
    holds(schedule("allreduce", outer, 9))


def test_a_part_whose_strands_are_not_as_declared(toys):
    """It is found on its own; a composition, which takes the strands that are declared, does not move the block."""
    for collective in ("reduce", "bcast"):
        refused(schedule(collective, "liar", 3), "expected block 1 in strand 0, as declared, got strand 1")
    for parts in ("reduce=liar", "bcast=liar", "reduce=liar, bcast=liar"):
        refused(schedule("allreduce", f"reduce_bcast({parts})", 3))
    refused(schedule("allreduce", "hierarchical(inner=liar, groups=2)", 4))


def test_a_stack_is_checked_as_others_are(toys):
    """A block that moves in another strand than the stack says."""
    stack = schedule("allreduce", "reduce_bcast(reduce=twofold, bcast=twofold)", 3)
    stack.make.strand = lambda block: 0
    refused(stack, "expected block 1 in strand 0, as declared, got strand 1")


# -- of some of the blocks, on some of the ranks ------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 2, 3, 6])
def test_a_layer_that_moves_some_of_the_blocks_only(p):
    low = Layer(CHAIN, range(p), lambda b: (0, 1))
    high = Layer(BINOMIAL, range(p), lambda b: (2, 3, 4))
    stack = stacked([low, high], p, 5)
    assert {stack.strand(b) for b in stack.blocks} == {0} and len(stack.program(0)) == 1
    holds(stack)
    if p > 1:
        refused(stacked([low], p, 5), "the end of block 2")
        refused(stacked([low, low, high], p, 5), "would count twice|deadlock")


def test_a_layer_sends_only_the_blocks_that_it_moves():
    def layer(*parts):
        return Layer(lambda p, rank: [Send(1, (0,))] if rank == 0 else [Recv(0, (0,))], (0, 1), lambda b: parts)

    assert Stack(range(3), [layer(1, 2)])(0) == Strands((((Send(1, (1, 2)),),),))
    assert Stack([0], [layer()])(0) == Strands(((),))
    assert Stack(range(3), [])(0) == Strands(((),))


def test_a_block_no_layer_moves_is_with_those_of_the_first_strands():
    up = Layer(twofold, range(3), itself, {0: 0, 1: 1})
    assert Stack(range(3), [up]).strands == {0: 0, 1: 1, 2: 0}
    assert Stack(range(3), [up, up]).strands == {0: 0, 1: 1, 2: 0}


def test_ranks_of_a_layer_of_fewer_strands():
    """A rank whose program has fewer strands than others has nothing to do in the rest."""

    def body(p, rank):
        return twofold(p, rank) if p > 1 else Strands(((),))

    groups = [(0,), (1, 2)]
    stack = Stack(range(2), [Layer(body, group, itself, {0: 0, 1: 1}) for group in groups])
    assert stack(0) == Strands(((), ()))
    assert stack(1) == Strands((((RecvReduce(2, (0,)),),), ((RecvReduce(2, (1,)),),)))


def test_chosen_is_what_it_names(toys):
    chosen = Chosen(find("allreduce", "reduce_bcast"), (("bcast", "twofold"), ("reduce", "woven")))
    assert (chosen.blocks(range(3)), chosen.blocks(range(4)), chosen.ordered(range(5))) == (6, 4, True)
    assert not Chosen(find("allreduce", "ring")).ordered(range(5))
    alone = Stack(range(4), [chosen.evenly(range(4), 4)])
    assert alone(1) == schedule("allreduce", "reduce_bcast(reduce=woven, bcast=twofold)", 4).program(1)


# -- roots --------------------------------------------------------------------------------------------------


def two_handed(p, rank):
    """Gather, ranks of odd number in a strand of their own."""
    if rank:
        return parallel(*([Send(0, (rank,))] if rank % 2 == s else [] for s in range(2)))
    return parallel(*([Recv(peer, (peer,)) for peer in range(1, p) if peer % 2 == s] for s in range(2)))


@pytest.mark.parametrize("p", [2, 3, 6])
def test_strands_of_blocks_named_after_ranks_turn_with_the_root(p):
    for root in range(p):
        holds(adhoc("gather", two_handed, p, root, strand=odd))
        holds(adhoc("scatter", reversed_in_time(two_handed), p, root, strand=odd))


@pytest.mark.parametrize("p", [2, 3, 6])
@pytest.mark.parametrize("in_order", [False, True])
def test_strands_of_parts_of_a_vector_do_not(p, in_order):
    for root in range(p):
        holds(adhoc("reduce", twofold, p, root, blocks=2, strand=odd, ordered=True, in_order=in_order))
