"""The proof of schedules finds what is broken, and says where."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from unit.every import EVERY, cases, served
from unit.mutants import adhoc, at_rank, of_ranks, op_mutants, receives_again, refused

from mpicoll.errors import VerifyError
from mpicoll.proofs.check_plan import check_scratch
from mpicoll.proofs.check_schedule import measured_bytes, verify
from mpicoll.proofs.prove import prove, schedules, selected
from mpicoll.proofs.symbolic import execute
from mpicoll.proofs.values import contributors
from mpicoll.schedules.combinators import parallel
from mpicoll.schedules.ir import INPUT, VALUE, Loc, Recv, RecvReduce, Reduce, Send, Strands
from mpicoll.schedules.registry import find, registered
from mpicoll.schedules.schedule import Schedule, schedule

QUICK = 30  # mutants of a schedule


def claiming(entry, **claims):
    """Return the algorithm under other claims."""
    return replace(entry, claims=replace(entry.claims, **claims))


# -- every single change is found ---------------------------------------------------------------------------


@pytest.mark.parametrize("entry", EVERY)
@pytest.mark.parametrize("p", [2, 3, 4, 5])
def test_every_mutant_is_caught(entry, p, pytestconfig):
    """One operation changed: a message dropped or doubled, another peer, block, buffer, kind or side.

    With --quick QUICK of them at each root for more than 3 ranks; `tests/run.py --draw` draws others.
    """
    tried, draw = 0, random.Random(f"{pytestconfig.option.sample_seed} {entry.title} {p}")
    for right in schedules(entry, p):
        if not right.parameters and right.root in (0, p // 2, p - 1):
            every = [mutant for rank in range(p) for mutant in op_mutants(right, rank)]
            tried += len(every)
            if pytestconfig.option.quick and p > 3:
                every = draw.sample(every, min(QUICK, len(every)))
            assert survivors(right, every) == []
    assert tried >= 2 * p or not entry.serves(p)


def survivors(right, mutants):
    """Return the broken schedules that pass, without those that are as right as before."""
    missed = []
    for what, broken, rank, place in mutants:
        try:
            verify(broken)
        except VerifyError as error:
            assert (error.algorithm, error.p) == (broken.title, broken.p)
            assert error.expected is not None and error.got is not None
        else:
            if not (what.endswith("another buffer") and receives_again(right, rank, place)):
                missed.append(what)
    return missed


@pytest.mark.parametrize("entry", cases(*(a for a in registered() if a.grid)))
def test_a_few_mutants_of_every_choice_are_caught(entry, pytestconfig):
    """A number of ranks for each grid, parameters and roots as they are declared."""
    draw = random.Random(entry.title)
    for p in sorted({next((p for p in grid.ranks if p >= 6), max(grid.ranks)) for grid in entry.grid}):
        for right in schedules(entry, p):
            if right.parameters:
                few = 2 if pytestconfig.option.quick else 6
                ranks = draw.sample(range(p), min(few, p))
                every = [mutant for rank in ranks for mutant in op_mutants(right, rank)]
                assert survivors(right, draw.sample(every, min(few, len(every)))) == []


# -- some of them, with their coordinates -------------------------------------------------------------------


def shifted_ring(p, rank):
    """Off by one: each rank folds the block it has just sent instead of the one before."""
    for s in range(1, p):
        yield Send((rank + 1) % p, ((rank - s) % p,)), RecvReduce((rank - 1) % p, ((rank - s) % p,), "left")


def ring_that_ends_elsewhere(p, rank):
    """Every message fits, but each block ends one rank before its owner."""
    for s in range(1, p):
        yield Send((rank + 1) % p, ((rank - s + 1) % p,)), RecvReduce((rank - 1) % p, ((rank - s) % p,), "left")


def doubling_that_stays(p, rank):
    """Recursive doubling whose second round goes to the same neighbour again."""
    for _ in range(2):
        yield Send(rank ^ 1, (0,)), RecvReduce(rank ^ 1, (0,))


def two_rounds(p, rank):
    """A barrier of up to four ranks."""
    for distance in (1, 2):
        yield Send((rank + distance) % p, ()), Recv((rank - distance) % p, ())


def rounds_at_once(p, rank):
    """Run the rounds of dissemination at once, so that they do not forward what they receive."""
    yield [op for step in find("barrier", "dissemination")(p, rank)[0] for op in step]


def ring_and_more(p, rank):
    """Rank 1 receives in a second strand into what it has in the first."""
    ring = find("allgather", "ring")(p, rank)
    return parallel(ring, [Send(1, (0,))] if rank == 0 else [Recv(0, (0,))] if rank == 1 else [])


TO_0, TO_1 = (Send(peer, (0,)) for peer in range(2))
FROM_0, FROM_1, FROM_2 = (Recv(peer, (0,)) for peer in range(3))
REDUCE_0, REDUCE_1, REDUCE_2 = (RecvReduce(peer, (0,)) for peer in range(3))
LEFT, INTO, REDUCE_INTO = RecvReduce(1, (0,), "left"), Recv(1, (0,), INPUT), RecvReduce(1, (0,), buffer=INPUT)
REDUCE = Reduce(Loc(INPUT, 0), Loc("got", 0))
BLOCK = "Loc(buffer='value', block=0)"
PEER = "another rank in 0..2 as the peer"
ALONE = "a target nothing else in this step uses"
APART = "no block both received and reduced into in one step"
READ_ONLY = "a target other than the read-only input"
MOVED = "no reduction in a collective that only moves data"
BROKEN = {
    "blocks one rank off": (
        adhoc("reduce_scatter", shifted_ring, 5),
        (1, 0, 0), RecvReduce(0, (0,), "left"), "blocks (0,)", "rank 0 sent blocks (4,)"),
    "blocks in another order": (
        of_ranks("bcast", [Send(1, (0, 1))], [Recv(0, (1, 0))], blocks=2),
        (1, 0, 0), Recv(0, (1, 0)), "blocks (1, 0)", "rank 0 sent blocks (0, 1)"),
    "results elsewhere": (
        adhoc("reduce_scatter", ring_that_ends_elsewhere, 4),
        (0, None, None), "the end of block 0", "{0, 1, 2, 3}", "{0}"),
    "operands swapped": (
        of_ranks("reduce", [LEFT], [TO_0], ordered=True, in_order=True),
        (0, 0, 0), LEFT, f"1..1 and 0..0 to combine in this order at {BLOCK}", "1..1 before 0..0 is out of rank order"),
    "a message dropped, for which all below wait": (
        Schedule(at_rank(find("reduce", "chain"), 2, lambda program: Strands((program[0][:1],))), 4),
        (0, 0, 0), REDUCE_1, "every message matched", "deadlock: 2 strands wait forever (rank 1 in step 0)"),
    "both send before they receive": (
        of_ranks("allreduce", [TO_1, REDUCE_1], [TO_0, REDUCE_0]),
        (0, 0, 0), TO_1, "every message matched", "deadlock: 2 strands wait forever (rank 1 in step 0)"),
    "a contribution doubled": (
        adhoc("allreduce", doubling_that_stays, 4),
        (1, 0, 1), REDUCE_0, f"{{0, 1}} and {{0, 1}} to combine in this order at {BLOCK}",
        "contribution {0, 1} would count twice"),
    "received into what is sent": (
        of_ranks("allreduce", [(TO_1, FROM_1)], [(TO_0, FROM_0)]), (0, 0, 0), FROM_1, ALONE, BLOCK),
    "received twice into a block": (
        of_ranks("reduce", [(FROM_1, FROM_2)], [TO_0], [TO_0]), (0, 0, 0), FROM_2, ALONE, BLOCK),
    "received, then reduced into a block": (
        of_ranks("reduce", [(FROM_1, REDUCE_2)], [TO_0], [TO_0]), (0, 0, 0), (FROM_1, REDUCE_2), APART, BLOCK),
    "reduced, then received into a block": (
        of_ranks("reduce", [(REDUCE_1, FROM_2)], [TO_0], [TO_0]), (0, 0, 0), (REDUCE_1, FROM_2), APART, BLOCK),
    "a peer above all": (of_ranks("allreduce", [], [Send(3, (0,))], []), (1, 0, 0), Send(3, (0,)), PEER, "peer 3"),
    "a peer below all": (of_ranks("allreduce", [], [Send(-1, (0,))], []), (1, 0, 0), Send(-1, (0,)), PEER, "peer -1"),
    "itself as the peer": (of_ranks("allreduce", [TO_0], [], []), (0, 0, 0), TO_0, PEER, "peer 0"),
    "a block twice in a message": (
        of_ranks("bcast", [Send(1, (0, 0))], [Recv(0, (0, 0))]),
        (0, 0, 0), Send(1, (0, 0)), "each block once in a message", "blocks (0, 0)"),
    "received into the input": (
        of_ranks("allreduce", [(TO_1, INTO)], [(TO_0, REDUCE_0)]), (0, 0, 0), INTO, READ_ONLY, "input"),
    "reduced into the input": (
        of_ranks("allreduce", [(TO_1, REDUCE_INTO)], [(TO_0, REDUCE_0)]), (0, 0, 0), REDUCE_INTO, READ_ONLY, "input"),
    "reduced locally into the input": (
        of_ranks("allreduce", [(TO_1, Recv(1, (0,), "got"), REDUCE)], [(TO_0, REDUCE_0)]),
        (0, 0, 0), REDUCE, READ_ONLY, "input"),
    "sent without having come": (
        of_ranks("bcast", [], [Send(2, (0,))], [FROM_1]),
        (1, 0, 0), Send(2, (0,)), f"{BLOCK} to hold something", "it was never written"),
    "reduced where data only moves": (of_ranks("gather", [REDUCE_1], [TO_0]), (0, 0, 0), REDUCE_1, MOVED, "one"),
    "reduced locally where data only moves": (of_ranks("gather", [REDUCE], []), (0, 0, 0), REDUCE, MOVED, "one"),
    "two strands at one block": (
        adhoc("allgather", ring_and_more, 3),
        (1, 0, 1), (Recv(2, (0,)), Send(0, (2,))), "places strand 1 does not touch", f"it writes {BLOCK}"),
    "a round too few": (
        adhoc("barrier", two_rounds, 5),
        (0, None, None), "leaving the barrier", "to have heard of every rank", "heard of {0, 2, 3, 4}"),
    "what is heard not passed on": (
        adhoc("barrier", rounds_at_once, 4),
        (0, None, None), "leaving the barrier", "to have heard of every rank", "heard of {0, 2, 3}"),
}  # fmt: skip


@pytest.mark.parametrize(("broken", "where", "op", "expected", "got"), BROKEN.values(), ids=BROKEN)
def test_errors_name_the_broken_place(broken, where, op, expected, got):
    error = refused(broken)
    assert ((error.rank, error.strand, error.step), error.op, error.expected, error.got) == (where, op, expected, got)


def test_similar_schedules_that_are_right():
    """A side that matters in rank order only, two reductions into one block, barriers of few ranks."""
    verify(of_ranks("reduce", [LEFT], [TO_0], ordered=True))
    verify(of_ranks("reduce", [(REDUCE_1, REDUCE_2)], [TO_0], [TO_0], ordered=True, in_order=True))
    verify(adhoc("barrier", two_rounds, 4))
    verify(adhoc("barrier", rounds_at_once, 2))


# -- claims -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "what"), [("steps", "Steps"), ("bytes_per_rank", "Bytes per rank")])
@pytest.mark.parametrize("entry", EVERY)
def test_wrong_formula(entry, field, what):
    """One more than what is said to be exact; for a bound, one less than what it bounds."""
    p = served(entry, 5)
    right = Schedule(entry, p)
    trace = verify(right)
    got = trace.steps if field == "steps" else measured_bytes(right, trace)
    formula = getattr(entry.claims, field)
    wrong = f"at most n * {got} - n" if formula.startswith("at most ") else f"({formula}) + 1"
    error = refused(Schedule(claiming(entry, **{field: wrong}), p))
    value = entry.claims.evaluate(wrong, p, **right.resolved)
    assert (error.op, error.expected) == (f"the docstring's {what}", f"{wrong} = {value}")
    assert Fraction(error.got) == got == value + (1 if formula.startswith("at most ") else -1)


@pytest.mark.parametrize("entry", EVERY)
def test_wrong_scratch(entry):
    """One byte more than what is said to be exact; for a bound, less than nothing."""
    p, bound = served(entry, 5), entry.claims.scratch.startswith("at most ")
    wrong = claiming(entry, scratch="at most -1" if bound else f"({entry.claims.scratch}) + 1")
    with pytest.raises(VerifyError) as error:
        check_scratch(Schedule(wrong, p))
    assert (error.value.p, error.value.op) == (p, "the docstring's Scratch")
    with pytest.raises(VerifyError, match="the docstring's Scratch"):
        prove(wrong, p)


def test_a_bound_may_be_above_but_not_below():
    chain = find("reduce", "chain")
    for field in ("steps", "bytes_per_rank", "scratch"):
        prove(claiming(chain, **{field: f"at most {getattr(chain.claims, field)} + 1 / p"}), 5, {})
    with pytest.raises(VerifyError, match="Scratch: expected at most n / 2 = 32 for n = 64, got 64 bytes"):
        check_scratch(Schedule(claiming(chain, scratch="at most n / 2"), 5))


def test_claims_are_of_every_choice_of_parameters():
    """A formula that is right for the defaults is not thereby right for others."""
    broken = claiming(find("allreduce", "reduce_bcast"), steps="at most 2 * lg(p)")
    verify(Schedule(broken, 6))
    refused(Schedule(broken, 6, reduce="chain"), r"docstring's Steps: expected at most 2 \* lg\(p\) = 6, got 8")
    with pytest.raises(VerifyError, match=r"reduce=.*bcast=.*the docstring's Steps"):
        prove(broken, 6)
    assert prove(broken, 5, {"reduce": "binomial"}) == 1


# -- what a proof returns -----------------------------------------------------------------------------------


def test_trace():
    trace = execute(schedule("allgather", "ring", 3))
    assert trace.steps == 2
    assert trace.sent == trace.received == [2, 2, 2]
    assert {(m.source, m.destination) for m in trace.messages} == {(0, 2), (1, 0), (2, 1)}
    assert [m.start for m in trace.messages] == [0, 0, 0, 1, 1, 1]
    assert all(m.end == m.start + 1 and not m.reduces for m in trace.messages)
    assert trace.memory[1][VALUE][2] == 1 << 2
    ordered = execute(schedule("reduce", "chain", 3, commutative=False))
    assert contributors(ordered.memory[0][VALUE][0]) == [0, 1, 2]


def test_time_is_the_longest_chain():
    """A chain's last message starts when all before it are in, whatever order ranks are executed in."""
    trace = execute(schedule("reduce", "chain", 5))
    assert {m.source: m.start for m in trace.messages} == {4: 0, 3: 1, 2: 2, 1: 3}


def test_schedules_are_every_root_and_order():
    every = list(schedules(find("reduce", "chain"), 3))
    both = [(root, commutative) for root in (1, 2) for commutative in (False, True)]
    defaults = [(s.root, s.commutative) for s in every if not s.parameters]
    assert defaults == [(0, False), *both]  # at root 0 the programs are the same
    assert [(s.root, s.commutative) for s in schedules(find("reduce", "chain"), 3, {"k": 3})] == defaults
    chosen = [(s.parameters["k"], s.root, s.commutative) for s in every if s.parameters]
    assert chosen == [(k, *case) for k in (2, 3, 5) for case in ((0, False), (2, False), (2, True))]
    assert len({s.root for s in schedules(find("reduce", "chain"), 8)}) == 8
    assert {s.root for s in schedules(find("reduce", "chain"), 9)} == {0, 8}
    assert [s.commutative for s in schedules(find("allreduce", "ring"), 3)] == [True]
    assert [s.commutative for s in schedules(find("allreduce", "naive"), 3)] == [False]
    assert selected() == list(registered())
