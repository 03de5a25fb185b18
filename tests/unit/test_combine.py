"""Combinators: schedules as data, and schedules out of schedules that hold."""

from __future__ import annotations

import itertools

import pytest
from unit.every import EVERY, MOVING, served
from unit.mutants import adhoc, holds, of_ranks, refused

from mpicoll.proofs.check_plan import check_tables
from mpicoll.proofs.check_schedule import verify
from mpicoll.proofs.symbolic import execute
from mpicoll.schedules.combinators import embed, fold, forward, mirror, parallel, relabel, rotate, then
from mpicoll.schedules.ir import INPUT, VALUE, Copy, Loc, Recv, RecvReduce, Reduce, Send, Strands, strands
from mpicoll.schedules.registry import find

# -- as data ------------------------------------------------------------------------------------------------


def test_then_goes_strand_by_strand():
    a, b, c = Send(1, (0,)), Send(2, (0,)), Send(3, (0,))
    assert then([a], [b]) == Strands((((a,), (b,)),))
    assert then(parallel([a], [b]), [c]) == Strands((((a,), (c,)), ((b,),)))
    assert then([c], parallel([a], [b])) == Strands((((c,), (a,)), ((b,),)))
    assert then() == Strands()


def test_parallel_keeps_strands_apart():
    a, b = Send(1, (0,)), Send(2, (1,))
    assert parallel([a], [b]) == Strands((((a,),), ((b,),)))
    assert parallel(parallel([a], [b]), [a]) == Strands((((a,),), ((b,),), ((a,),)))


@pytest.mark.parametrize("entry", [collective for collective in MOVING if collective.values[0].is_exact])
@pytest.mark.parametrize("p", [1, 2, 5, 8])
def test_mirror_twice_is_nothing(entry, p):
    p = served(entry, p)
    programs = [entry(p, rank) for rank in range(p)]
    if any(isinstance(op, Copy) for program in programs for strand in program for step in strand for op in step):
        with pytest.raises(ValueError, match=r"Copy\(.*cannot be mirrored"):
            list(map(mirror, programs))
        return
    assert [mirror(mirror(program)) for program in programs] == programs


def test_mirror_reverses_time_and_turns_every_message_round():
    program = [(Send(1, (0,), "b"), Recv(2, (1,), "a")), RecvReduce(3, (2,), "left")]
    assert mirror(program) == Strands((((Send(3, (2,)),), (Recv(1, (0,), "b"), Send(2, (1,), "a"))),))


def test_mirror_refuses_a_local_reduction():
    with pytest.raises(ValueError, match=r"Reduce\(.*cannot be mirrored: a local operation has no reverse"):
        mirror([Reduce(Loc("a", 0), Loc(VALUE, 0))])


def test_rotate_turns_peers_and_blocks_named_after_ranks():
    gather = find("gather", "linear")
    assert rotate(gather, 5, 3, 2, blocks_turn=True) == Strands((((Send(2, (3,)),),),))
    assert rotate(gather, 5, 3, 2, blocks_turn=False) == Strands((((Send(2, (1,)),),),))


@pytest.mark.parametrize("entry", EVERY)
def test_rotate_right_round_is_nothing(entry):
    p = served(entry, 5)
    for rank, turns in itertools.product(range(p), (True, False)):
        if not turns or (entry.collective.naming == "rank" and not entry.cuts_shares):
            assert rotate(entry, p, rank, p, turns) == rotate(entry, p, rank, 0, turns) == entry(p, rank)


def test_relabel_spreads_a_block_over_several():
    program = [(Send(0, (0, 1)), RecvReduce(1, (1,), "left")), Reduce(Loc("a", 1), Loc(INPUT, 1), "left")]
    relabelled = relabel(program, lambda r: r + 5, lambda b: (10 * b, 10 * b + 1))
    assert relabelled == Strands(
        (
            (
                (Send(5, (0, 1, 10, 11)), RecvReduce(6, (10, 11), "left")),
                (Reduce(Loc("a", 10), Loc(INPUT, 10), "left"), Reduce(Loc("a", 11), Loc(INPUT, 11), "left")),
            ),
        )
    )


def test_forward():
    assert strands(forward([0, 1], 2, 2, 3)) == Strands((((Send(3, (0, 1)),),),))
    assert strands(forward([0, 1], 3, 2, 3)) == Strands((((Recv(2, (0, 1)),),),))
    assert strands(forward([0, 1], 1, 2, 3)) == Strands(((),))


def test_embed_names_the_ranks_and_leaves_others_alone():
    chain = find("reduce", "chain")
    assert embed(chain, (7, 3, 5), 3) == Strands((((RecvReduce(5, (0,)),), (Send(7, (0,)),)),))
    assert embed(chain, (7, 3, 5), 3, lambda b: (b + 1, b + 2))[0][1] == (Send(7, (1, 2)),)
    assert embed(chain, (7, 3, 5), 4) == Strands(((),))


@pytest.mark.parametrize("p", range(1, 40))
def test_fold_runs_its_core_on_a_power_of_two(p):
    asked = []

    def core(q, virtual):
        asked.append((q, virtual))
        return []

    for rank in range(p):
        fold(core, p, rank, (0,))
    q = 1 << (p.bit_length() - 1)
    assert asked == [(q, v) for v in range(q)]


# -- strands ------------------------------------------------------------------------------------------------


def chains(p, rank):
    """Block 0 is reduced to rank 0 and block 1 to the last, both go back the way they came."""
    reduce = find("reduce", "chain")

    def flip(x):
        return p - 1 - x

    first, second = reduce(p, rank), relabel(reduce(p, flip(rank)), flip, lambda b: (1,))
    return parallel(then(first, mirror(first)), then(second, mirror(second)))


@pytest.mark.parametrize("p", [*range(1, 9), 13])
def test_two_strands_hold_and_run_side_by_side(p):
    schedule = adhoc("allreduce", chains, p, blocks=2, strand=int)
    holds(schedule)
    assert verify(schedule).steps == 2 * (p - 1)


@pytest.mark.parametrize("p", [2, 3, 8])
def test_a_block_moves_in_the_strand_declared(p):
    """Compositions count on it; where there is but one strand there is nothing to declare."""
    for strand in (lambda b: 0, lambda b: 1, lambda b: 1 - b, lambda b: b + 1):
        schedule = adhoc("allreduce", chains, p, blocks=2, strand=strand)
        refused(schedule, r"expected block \d in strand \d, as declared, got strand \d")
    verify(adhoc("allreduce", find("allreduce", "naive"), p, strand=lambda b: 5))


@pytest.mark.parametrize("p", [4, 5, 8])
def test_the_same_in_one_sequence_deadlocks(p):
    """A step of each strand in turn."""

    def body(p, rank):
        return [step for row in itertools.zip_longest(*chains(p, rank), fillvalue=()) for step in row if step]

    assert refused(adhoc("allreduce", body, p, blocks=2), "deadlock").strand == 0


def test_strands_may_read_the_same_block_but_not_move_it():
    """Side by side they could; but of a block that moves in two strands a composition would take one only."""
    schedule = of_ranks(
        "bcast",
        parallel([Send(1, (0,))], [Send(2, (0,))]),
        parallel([Recv(0, (0,))], []),
        parallel([], [Recv(0, (0,))]),
    )
    assert execute(schedule).memory == [{VALUE: {0: 1}, INPUT: own} for own in ({0: 1}, {}, {})]
    check_tables(schedule)
    refused(schedule, "expected block 0 in strand 0, as declared, got strand 1")


# -- accumulators -------------------------------------------------------------------------------------------


def scan_then_bcast(p, rank):
    """For p = 2^k, fold each message into what is passed on and into the prefix; the last one is of all."""
    yield Reduce(Loc("total", 0), Loc(INPUT, 0))
    bit = 1
    while bit < p:
        peer = rank ^ bit
        below = [Reduce(Loc(VALUE, 0), Loc("got", 0), "left")] if peer < rank else []
        side = "left" if peer < rank else "right"
        yield (
            Send(peer, (0,), "total"),
            Recv(peer, (0,), "got"),
            Reduce(Loc("total", 0), Loc("got", 0), side),
            *below,
        )
        bit *= 2
    if rank < p - 1:
        yield Recv(p - 1, (0,))
    elif p > 1:
        yield [Send(peer, (0,)) for peer in range(p - 1)]


@pytest.mark.parametrize("p", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("in_order", [False, True])
def test_one_message_reduced_into_two_accumulators(p, in_order):
    schedule = adhoc("allreduce", scan_then_bcast, p, ordered=True, in_order=in_order)
    holds(schedule)
    assert {"total", VALUE} <= set(execute(schedule).memory[0])


def test_reduce_into_what_is_undefined_copies():
    schedule = of_ranks("allreduce", [(Reduce(Loc("a", 0), Loc(INPUT, 0)), Reduce(Loc("b", 0), Loc("a", 0)))])
    assert execute(schedule).memory == [{buffer: {0: 1} for buffer in (VALUE, INPUT, "a", "b")}]


def test_reduce_of_what_is_undefined_is_refused():
    refused(of_ranks("allreduce", [Reduce(Loc(VALUE, 0), Loc("nothing", 0))]), "it was never written")


# -- fold ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [3, 5, 6, 7])
def test_fold_with_what_was_kept_missing_is_found(p):
    """The extra ranks get only the first block back."""
    core = find("allreduce", "ring")

    def body(p, rank):
        q = 1 << (p.bit_length() - 1)
        return fold(core, p, rank, range(q), keep=lambda low: (0,))

    error = refused(adhoc("allreduce", body, p, blocks=1 << (p.bit_length() - 1)))
    assert (error.rank, error.op) == (0, "the end of block 1")
