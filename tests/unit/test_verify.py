"""The proof of schedules finds what is broken, and says where."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from fractions import Fraction

import pytest
from unit.every import EVERY, cases, served
from unit.mutants import adhoc, at_rank, op_mutants, receives_again

from mpicoll.algorithms import allgather, reduce_scatter
from mpicoll.errors import MpicollError, VerifyError
from mpicoll.proofs.check_plan import check_scratch
from mpicoll.proofs.check_schedule import measured_bytes, verify
from mpicoll.proofs.prove import prove, schedules, selected
from mpicoll.proofs.symbolic import Interval, combine, contributors, play, show
from mpicoll.schedules.combinators import parallel, then
from mpicoll.schedules.ir import INPUT, VALUE, Loc, Recv, RecvReduce, Reduce, Send, Strands, strands
from mpicoll.schedules.registry import find, registered
from mpicoll.schedules.schedule import Schedule, schedule


def refused(schedule, match=None):
    """The error of a schedule that must not pass."""
    with pytest.raises(VerifyError, match=match) as error:
        verify(schedule)
    return error.value


def claiming(entry, **claims):
    """The algorithm under other claims."""
    return replace(entry, claims=replace(entry.claims, **claims))


def where(error):
    return error.algorithm, error.p, error.rank, error.strand, error.step


# -- every single change is found ---------------------------------------------------------------------------


@pytest.mark.parametrize("entry", EVERY)
@pytest.mark.parametrize("p", [2, 3, 4, 5])
def test_every_mutant_is_caught(entry, p):
    """One operation changed: a message dropped or doubled, another peer, block, buffer, kind or side."""
    tried = 0
    for right in schedules(entry, p):
        if not right.parameters and right.root in (0, p // 2, p - 1):
            every = [mutant for rank in range(p) for mutant in op_mutants(right, rank)]
            assert survivors(right, every) == []
            tried += len(every)
    assert tried >= 2 * p or not entry.serves(p)


def survivors(right, mutants):
    """What of the broken schedules passes, although it is not as right as before."""
    found = []
    for what, broken, rank, place in mutants:
        try:
            verify(broken)
        except VerifyError as error:
            assert (error.algorithm, error.p) == (broken.title, broken.p)
            assert error.expected is not None and error.got is not None
        else:
            if not (what.endswith("another buffer") and receives_again(right, rank, place)):
                found.append(what)
    return found


@pytest.mark.parametrize("entry", cases(*(a for a in registered() if a.grid)))
def test_a_few_mutants_of_every_choice_are_caught(entry):
    """A number of ranks for each grid, parameters and roots as they are declared."""
    draw = random.Random(entry.title)
    for p in sorted({next((p for p in grid.ranks if p >= 6), max(grid.ranks)) for grid in entry.grid}):
        for right in schedules(entry, p):
            if right.parameters:
                every = [mutant for rank in range(p) for mutant in op_mutants(right, rank)]
                assert survivors(right, draw.sample(every, min(6, len(every)))) == []


# -- some of them, with their coordinates -------------------------------------------------------------------


def shifted_ring(p, rank):
    """Off by one: each rank folds the block it has just sent instead of the one before."""
    for s in range(1, p):
        yield Send((rank + 1) % p, ((rank - s) % p,)), RecvReduce((rank - 1) % p, ((rank - s) % p,), "left")


def test_off_by_one_ring():
    error = refused(adhoc("reduce_scatter", shifted_ring, 5))
    assert where(error)[1:] == (5, 1, 0, 0)
    assert error.op == RecvReduce(0, (0,), "left")
    assert (error.expected, error.got) == ("blocks (0,)", "rank 0 sent blocks (4,)")


def test_other_blocks_than_expected():
    def body(p, rank):
        yield Send(1, (0, 1)) if rank == 0 else Recv(0, (1, 0))

    error = refused(adhoc("bcast", body, 2, blocks=2))
    assert where(error)[1:] == (2, 1, 0, 0)
    assert (error.expected, error.got) == ("blocks (1, 0)", "rank 0 sent blocks (0, 1)")


def test_ring_that_ends_elsewhere():
    """Every message fits, but each block ends one rank before its owner."""

    def body(p, rank):
        for s in range(1, p):
            yield (
                Send((rank + 1) % p, ((rank - s + 1) % p,)),
                RecvReduce((rank - 1) % p, ((rank - s) % p,), "left"),
            )

    error = refused(adhoc("reduce_scatter", body, 4))
    assert (error.rank, error.op, error.expected, error.got) == (
        0,
        "the end of block 0",
        "{0, 1, 2, 3}",
        "{0}",
    )


def swapped_side(p, rank):
    if rank == 0:
        yield RecvReduce(1, (0,), "left")
    elif rank == 1:
        yield Send(0, (0,))


def test_swapped_operand():
    verify(adhoc("reduce", swapped_side, 2, ordered=True))
    error = refused(adhoc("reduce", swapped_side, 2, ordered=True, in_order=True))
    assert where(error) == ("reduce swapped_side in rank order", 2, 0, 0, 0)
    assert error.op == RecvReduce(1, (0,), "left")
    assert error.expected == "1..1 and 0..0 to combine in this order at Loc(buffer='value', block=0)"
    assert error.got == "1..1 before 0..0 is out of rank order"


def test_dropped_message():
    """Rank 2 of a chain sends nothing on: everybody below waits for ever."""
    broken = at_rank(find("reduce", "chain"), 2, lambda program: Strands((program[0][:1],)))
    error = refused(Schedule(broken, 4))
    assert where(error) == ("reduce chain", 4, 0, 0, 0)
    assert error.op == RecvReduce(1, (0,), "right")
    assert error.expected == "every message matched"
    assert error.got == "deadlock: 2 strands wait for ever (rank 1 in step 0)"


def test_send_before_receive_on_both_sides():
    def body(p, rank):
        yield Send(1 - rank, (0,))
        yield RecvReduce(1 - rank, (0,))

    error = refused(adhoc("allreduce", body, 2), "deadlock")
    assert (error.rank, error.step, error.op) == (0, 0, Send(1, (0,)))


def test_doubled_contribution():
    """Recursive doubling whose second round goes to the same neighbour again."""

    def body(p, rank):
        for _ in range(2):
            yield Send(rank ^ 1, (0,)), RecvReduce(rank ^ 1, (0,))

    error = refused(adhoc("allreduce", body, 4))
    assert (error.p, error.rank, error.strand, error.step) == (4, 1, 0, 1)
    assert error.got == "contribution {0, 1} would count twice"


def test_receive_into_what_the_step_sends():
    def body(p, rank):
        yield Send(1 - rank, (0,)), Recv(1 - rank, (0,))

    error = refused(adhoc("allreduce", body, 2))
    assert where(error)[1:] == (2, 0, 0, 0)
    assert error.op == Recv(1, (0,))
    assert (error.expected, error.got) == (
        "a target nothing else in this step uses",
        "Loc(buffer='value', block=0)",
    )


@pytest.mark.parametrize(
    "step",
    [
        (Recv(1, (0,)), Recv(2, (0,))),
        (Recv(1, (0,)), RecvReduce(2, (0,))),
        (RecvReduce(1, (0,)), Recv(2, (0,))),
    ],
)
def test_two_receives_into_one_block(step):
    def body(p, rank):
        yield step if rank == 0 else Send(0, (0,))

    error = refused(adhoc("reduce", body, 3))
    assert (error.rank, error.step) == (0, 0)


def test_two_folds_into_one_block_are_right():
    def body(p, rank):
        yield (RecvReduce(1, (0,)), RecvReduce(2, (0,))) if rank == 0 else Send(0, (0,))

    verify(adhoc("reduce", body, 3, ordered=True, in_order=True))


@pytest.mark.parametrize(("peer", "rank"), [(3, 1), (-1, 1), (1, 1), (0, 0)])
def test_peer_out_of_range(peer, rank):
    def body(p, own):
        if own == rank:
            yield Send(peer, (0,))

    error = refused(adhoc("allreduce", body, 3))
    assert (error.rank, error.step, error.op) == (rank, 0, Send(peer, (0,)))
    assert (error.expected, error.got) == ("another rank in 0..2 as the peer", f"peer {peer}")


def test_a_block_twice_in_a_message():
    def body(p, rank):
        yield Send(1, (0, 0)) if rank == 0 else Recv(0, (0, 0))

    assert refused(adhoc("bcast", body, 2)).expected == "each block once in a message"


@pytest.mark.parametrize("op", [Recv, RecvReduce])
def test_input_is_read_only(op):
    def body(p, rank):
        yield Send(1 - rank, (0,)), op(1 - rank, (0,), buffer=INPUT)

    error = refused(adhoc("allreduce", body, 2))
    assert (error.rank, error.got) == (0, "input")


def test_input_is_read_only_for_local_reductions_too():
    def body(p, rank):
        yield Send(1 - rank, (0,)), Recv(1 - rank, (0,), "got"), Reduce(Loc(INPUT, 0), Loc("got", 0))
        yield Send(1 - rank, (0,), INPUT), Recv(1 - rank, (0,))

    assert refused(adhoc("allreduce", body, 2)).rank == 0


def test_sending_what_was_never_received():
    def body(p, rank):
        if rank == 1:
            yield Send(2, (0,))
        elif rank == 2:
            yield Recv(1, (0,))

    error = refused(adhoc("bcast", body, 3))
    assert where(error)[1:] == (3, 1, 0, 0)
    assert (error.expected, error.got) == (
        "Loc(buffer='value', block=0) to hold something",
        "it was never written",
    )


@pytest.mark.parametrize("fold", [RecvReduce(1, (1,)), Reduce(Loc("a", 0), Loc(VALUE, 0))])
def test_no_reduction_where_data_only_moves(fold):
    def body(p, rank):
        if isinstance(fold, Reduce):
            yield fold
        else:
            yield fold if rank == 0 else Send(0, (1,))

    error = refused(adhoc("gather", body, 2))
    assert (error.rank, error.op, error.got) == (0, fold, "one")


@pytest.mark.parametrize("rank", range(4))
def test_a_wrong_result_at_one_rank_only(rank):
    """That rank gets its neighbour's vector back in the place of the result."""

    def body(p, own):
        program = find("allreduce", "recursive_doubling")(p, own)
        if own == rank:
            return then(program, [Recv(rank ^ 1, (0,))])
        return then(program, [Send(rank, (0,), INPUT)]) if own == rank ^ 1 else program

    error = refused(adhoc("allreduce", body, 4))
    assert (error.rank, error.op) == (rank, "the end of block 0")
    assert (error.expected, error.got) == ("{0, 1, 2, 3}", f"{{{rank ^ 1}}}")


def test_two_strands_touching_one_block():
    def body(p, rank):
        ring = find("allgather", "ring")(p, rank)
        return parallel(ring, [Send(1, (0,))] if rank == 0 else [Recv(0, (0,))] if rank == 1 else [])

    error = refused(adhoc("allgather", body, 3))
    assert where(error)[1:] == (3, 1, 0, 1)
    assert (error.expected, error.got) == (
        "places strand 1 does not touch",
        "it writes Loc(buffer='value', block=0)",
    )


def test_barrier_that_misses_a_rank():
    """Two rounds are not enough for five ranks."""

    def body(p, rank):
        for distance in (1, 2):
            yield Send((rank + distance) % p, ()), Recv((rank - distance) % p, ())

    verify(adhoc("barrier", body, 4))
    error = refused(adhoc("barrier", body, 5))
    assert (error.rank, error.op) == (0, "leaving the barrier")
    assert (error.expected, error.got) == ("to have heard of every rank", "heard of {0, 2, 3, 4}")


def test_barrier_of_one_round():
    """Both rounds at once: what is heard in one is not passed on in the other."""

    def body(p, rank):
        yield [op for step in find("barrier", "dissemination")(p, rank)[0] for op in step]

    verify(adhoc("barrier", body, 2))
    assert refused(adhoc("barrier", body, 4)).op == "leaving the barrier"


# -- claims -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "what"), [("steps", "Steps"), ("bytes_per_rank", "Bytes per rank")])
@pytest.mark.parametrize("entry", EVERY)
def test_wrong_formula(entry, field, what):
    """One more than what is said to be exact; for a bound, one less than what it bounds."""
    p = served(entry, 5)
    right = Schedule(entry, p)
    trace = verify(right)
    got = trace.steps if field == "steps" else measured_bytes(right, trace)
    said = getattr(entry.claims, field)
    wrong = f"at most n * {got} - n" if said.startswith("at most ") else f"({said}) + 1"
    error = refused(Schedule(claiming(entry, **{field: wrong}), p))
    assert (error.algorithm, error.p, error.op) == (entry.title, p, f"the docstring's {what}")
    value = entry.claims.evaluate(wrong, p, **right.resolved)
    assert error.expected == f"{wrong} = {value}"
    assert Fraction(error.got) == got == value + (1 if said.startswith("at most ") else -1)


@pytest.mark.parametrize(("field", "what"), [("steps", "Steps"), ("bytes_per_rank", "Bytes per rank")])
def test_a_bound_may_be_above_but_not_below(field, what):
    ring = find("allreduce", "ring")
    right = getattr(ring.claims, field)
    for more in ("0", "1 / p", "n * p"):
        verify(Schedule(claiming(ring, **{field: f"at most {right} + {more}"}), 5))
    error = refused(Schedule(claiming(ring, **{field: f"at most {right} - 1 / p"}), 5))
    assert error.op == f"the docstring's {what}"
    assert error.expected.startswith("at most ")


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


def test_a_bound_of_scratch_may_be_above_but_not_below():
    chain = find("reduce", "chain")
    check_scratch(Schedule(claiming(chain, scratch="at most n"), 5))
    check_scratch(Schedule(claiming(chain, scratch="at most 2 * n"), 5))
    with pytest.raises(VerifyError, match="Scratch: expected at most n / 2 = 32 for n = 64, got 64 bytes"):
        check_scratch(Schedule(claiming(chain, scratch="at most n / 2"), 5))


def test_formula_right_at_powers_of_two_only():
    entry = find("barrier", "dissemination")
    broken = claiming(entry, steps="lg(q)")
    assert prove(broken, 8, {}) == 1
    with pytest.raises(VerifyError, match=r"lg\(q\) = 2, got 3"):
        prove(broken, 5, {})


def test_claims_are_of_every_choice_of_parameters():
    """A formula that is right for the defaults is not thereby right for others."""
    verify(schedule("allreduce", "reduce_bcast(reduce=chain)", 5))
    broken = claiming(find("allreduce", "reduce_bcast"), steps="at most 2 * lg(p)")
    verify(Schedule(broken, 6))
    error = refused(Schedule(broken, 6, reduce="chain"), r"expected at most 2 \* lg\(p\) = 6, got 8")
    assert error.op == "the docstring's Steps"
    with pytest.raises(VerifyError, match=r"reduce=.*bcast=.*the docstring's Steps"):
        prove(broken, 6)
    assert prove(broken, 5, {"reduce": "binomial"}) == 1


def test_formulas_know_the_parameters():
    entry = claiming(find("allreduce", "hierarchical"), steps="at most 2 * len(groups) + largest(groups)")
    verify(Schedule(entry, 12, groups=6))
    error = refused(Schedule(entry, 12, groups=6, inner="chain"))
    assert (error.expected, error.got) == (f"{entry.claims.steps} = 10", "12")


# -- what a proof returns -----------------------------------------------------------------------------------


def test_trace():
    trace = play(schedule("allgather", "ring", 3))
    assert trace.steps == 2
    assert trace.sent == trace.received == [2, 2, 2]
    assert {(m.source, m.destination) for m in trace.messages} == {(0, 2), (1, 0), (2, 1)}
    assert [m.start for m in trace.messages] == [0, 0, 0, 1, 1, 1]
    assert all(m.end == m.start + 1 and not m.folds for m in trace.messages)
    assert trace.state[1][Loc(VALUE, 2)] == 1 << 2


def test_time_is_the_longest_chain():
    """A chain's last message starts when all before it are in, whatever order ranks are played in."""
    trace = play(schedule("reduce", "chain", 5))
    assert [(m.source, m.start) for m in sorted(trace.messages, key=lambda m: m.start)] == [
        (4, 0),
        (3, 1),
        (2, 2),
        (1, 3),
    ]


def test_schedules_are_every_root_and_order():
    every = list(schedules(find("reduce", "chain"), 3))
    both = [(root, commutative) for root in (1, 2) for commutative in (False, True)]
    defaults = [(s.root, s.commutative) for s in every if not s.parameters]
    assert defaults == [(0, False), *both]  # at root 0 the programs are the same
    assert [(s.root, s.commutative) for s in schedules(find("reduce", "chain"), 3, {"k": 3})] == defaults
    chosen = [(s.parameters["k"], s.root, s.commutative) for s in every if s.parameters]
    assert chosen == [(k, *case) for k in (2, 3, 5) for case in ((0, False), (2, False), (2, True))]
    assert len({s.root for s in schedules(find("reduce", "chain"), 16)}) == 16
    assert {s.root for s in schedules(find("reduce", "chain"), 17)} == {0, 1, 8, 16}
    assert [s.commutative for s in schedules(find("allreduce", "ring"), 3)] == [True]
    assert [s.commutative for s in schedules(find("allreduce", "naive"), 3)] == [False]
    assert selected() == list(registered())


def test_error_is_an_assertion_with_everything_in_its_text():
    error = refused(adhoc("reduce_scatter", shifted_ring, 5))
    assert isinstance(error, MpicollError) and isinstance(error, AssertionError)
    assert str(error) == (
        "rank 1: reduce_scatter shifted_ring on p=5, strand 0, step 0, op RecvReduce(peer=0, "
        "blocks=(0,), side='left', buffer='value'): expected blocks (0,), got rank 0 sent blocks (4,)"
    )


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [(0b1, 0b110, 0b111), (Interval(0, 2), Interval(2, 5), Interval(0, 5))],
)
def test_combine(left, right, expected):
    assert combine(left, right) == expected
    assert contributors(expected) == sorted(contributors(left) + contributors(right))


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (0b11, 0b110, "{1} would count twice"),
        (Interval(2, 3), Interval(0, 2), "2..2 before 0..1 is out of rank order"),
        (Interval(0, 2), Interval(3, 4), "0..1 before 3..3"),
        (Interval(0, 2), Interval(1, 3), "0..1 before 1..2"),
    ],
)
def test_combine_refuses(left, right, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        combine(left, right)


def test_show():
    assert [show(v) for v in (None, 0b101, Interval(0, 4))] == ["nothing", "{0, 2}", "0..3"]


def test_rings_fit_together():
    """What the mutants are mutants of."""
    for rank in range(5):
        assert strands(reduce_scatter.ring.body(5, rank)) == reduce_scatter.ring(5, rank)
        assert len(allgather.ring(5, rank)[0]) == 4
