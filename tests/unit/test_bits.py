"""Derive the bits of a reduction: trees, what follows from them, and what they rest on."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from unit.every import REDUCING, served
from unit.mutants import adhoc, of_ranks

from mpicoll.describe.catalogue import facts, same_bits, same_bits_words
from mpicoll.errors import VerifyError
from mpicoll.kernels import reduce as kernels
from mpicoll.plans import lowering
from mpicoll.proofs import check_plan, determinism
from mpicoll.proofs.check_plan import lower_all
from mpicoll.proofs.check_schedule import verify
from mpicoll.proofs.determinism import (
    ALWAYS,
    LOOKED_AT,
    Forest,
    ReductionTrees,
    agreement,
    check_reduction_order,
    describe_reduction,
    same_on_all_ranks,
)
from mpicoll.proofs.prove import ORDERED, prove, schedules
from mpicoll.schedules.ir import INPUT, Loc, Recv, RecvReduce, Reduce, Send
from mpicoll.schedules.registry import find, registered
from mpicoll.schedules.schedule import schedule

ROUNDING = [*product(("SUM", "PROD"), "fdFD"), *product(("MAX", "MIN"), "fd")]
ALLREDUCE = [entry for entry in registered() if entry.collective.name == "allreduce"]


def from_itself(p, rank):
    """A right allreduce whose ranks do not agree: every rank sends to all others, and begins with its own vector."""
    others = [(rank + i) % p for i in range(1, p)]
    if others:
        yield *(Send(peer, (0,)) for peer in others), *(RecvReduce(peer, (0,), "right") for peer in others)


def tree(schedule, rank=0, block=0):
    trees = ReductionTrees(schedule)
    return trees.forest.text(trees.tree(rank, block))


# -- trees


def test_swapped_operands_are_one_tree_and_other_brackets_are_another():
    forest = Forest(3)
    left = forest.combine(forest.combine(0, 1), 2)
    assert left == forest.combine(2, forest.combine(1, 0)) != forest.combine(0, forest.combine(1, 2))
    assert forest.evaluate(left, lambda x, y: f"({x}{y})", "abc") == "((ab)c)"


@pytest.mark.parametrize(
    ("collective", "spec", "p", "expected"),
    [
        ("allreduce", "ring", 4, "((1∘2)∘3)∘0"),
        ("allreduce", "recursive_doubling", 4, "(0∘1)∘(2∘3)"),
        ("allreduce", "recursive_doubling", 3, "(0∘1)∘2"),
        ("allreduce", "rabenseifner", 4, "(0∘2)∘(1∘3)"),
        ("allreduce", "naive", 4, "((0∘1)∘2)∘3"),
        ("allreduce", "recursive_multiplying(k=4)", 4, "((0∘1)∘2)∘3"),
        ("reduce", "chain", 4, "0∘(1∘(2∘3))"),
        ("reduce_scatter", "ring", 4, "((1∘2)∘3)∘0"),
    ],
)
def test_trees_of_algorithms_that_are_known(collective, spec, p, expected):
    assert tree(schedule(collective, spec, p)) == expected


def test_scan_has_a_tree_for_every_rank():
    linear = schedule("scan", "linear", 4)
    assert [tree(linear, rank) for rank in range(4)] == ["0", "0∘1", "(0∘1)∘2", "((0∘1)∘2)∘3"]


def test_reductions_of_a_step_go_from_left_to_right():
    """The own contribution may stand anywhere among those that are received."""

    other = [Send(2, (0,)), Recv(2, (0,))]
    receives = RecvReduce(1, (0,), "left"), RecvReduce(3, (0,), "right"), RecvReduce(0, (0,), "left")
    own_step = [receives, tuple(Send(peer, (0,)) for peer in (0, 1, 3))]
    for in_order in (False, True):
        naive = of_ranks("allreduce", other, other, own_step, other, ordered=True, in_order=in_order)
        verify(naive)
        assert tree(naive) == "((0∘1)∘2)∘3"
        check_reduction_order(naive)


# -- the same on all ranks


@pytest.mark.parametrize("entry", ALLREDUCE, ids=lambda entry: entry.name)
def test_every_allreduce_agrees(entry):
    assert agreement(entry) == (True, "")
    for p in (*range(1, 14), 24, 32):
        if entry.serves(p):
            assert same_on_all_ranks(next(schedules(entry, p))), p


def test_ranks_that_begin_with_their_own_do_not_agree():
    """Two do: what they do differs by a swap."""
    for p in range(1, 9):
        chain = adhoc("allreduce", from_itself, p)
        verify(chain)
        check_reduction_order(chain)
        assert same_on_all_ranks(chain) == (p < 3)
    chain = adhoc("allreduce", from_itself, 3)
    assert [tree(chain, rank) for rank in range(3)] == ["(0∘1)∘2", "(1∘2)∘0", "(2∘0)∘1"]
    assert describe_reduction(chain) == "Block 0 is (0∘1)∘2 on rank 0 but (1∘2)∘0 on rank 1: not the same bits on all."


def test_one_block_on_one_rank_is_enough_to_differ():
    """Rank 2 reduces block 1 itself, in an order of its own; all else comes from rank 0."""
    exchange = of_ranks(
        "allreduce",
        [(RecvReduce(1, (0, 1)), RecvReduce(2, (0, 1)), Send(2, (1,))), (Send(1, (0, 1)), Send(2, (0,)))],
        [(Send(0, (0, 1)), Send(2, (1,))), Recv(0, (0, 1))],
        [(Send(0, (0, 1)), RecvReduce(1, (1,), "left"), RecvReduce(0, (1,))), Recv(0, (0,))],
        blocks=2,
    )
    verify(exchange)
    trees = ReductionTrees(exchange)
    assert [list(trees.ranks_by_tree(block).values()) for block in (0, 1)] == [[[0, 1, 2]], [[0, 1], [2]]]
    assert not same_on_all_ranks(exchange)
    assert describe_reduction(exchange).startswith("Block 1 is (0∘1)∘2 on ranks 0-1 but (1∘2)∘0 on rank 2")


def test_agreement_names_the_ranks_and_the_choices():
    entry = adhoc("allreduce", from_itself, 3).algorithm
    assert agreement(entry) == (False, f"p = 3-{LOOKED_AT[-1]}")
    mixed = replace(
        find("allreduce", "recursive_multiplying"),
        body=lambda p, rank, k: from_itself(p, rank) if k == 5 and p > 8 else find("allreduce", "naive").body(p, rank),
    )
    assert agreement(mixed) == (False, f"k=5 with p = 9-{LOOKED_AT[-1]}")
    assert same_bits_words(facts(mixed)) == f"{', '.join(ALWAYS)}; on all ranks unless k=5 with p = 9-{LOOKED_AT[-1]}"


def test_bits_on_all_ranks_of_each_collective():
    expected = {"barrier": None, "scan": None, "exscan": None}
    for entry in registered():
        assert same_on_all_ranks(next(schedules(entry, served(entry, 4)))) is expected.get(entry.collective.name, True)


def test_a_schedule_that_does_not_run_has_no_bits():
    def body(p, rank):
        if p == 4:
            raise IndexError
        yield from from_itself(p, rank) if p == 2 else find("allreduce", "naive").body(p, rank)

    result = same_bits(adhoc("allreduce", body, 2).algorithm)
    assert result["on_all_ranks"] is None
    assert result["unless"] == "not known, since it fails at p = 4; see mpicoll verify"
    assert "on all ranks: not known" in same_bits_words({"same_bits": result})


@pytest.mark.parametrize("entry", REDUCING)
def test_facts(entry):
    result = facts(entry)["same_bits"]
    assert result["on_all_ranks"] is (None if "scan" in entry.collective.name else True)
    assert all(result[words.replace(" ", "_")] is True for words in ALWAYS) and len(result) == 2 + len(ALWAYS)
    words = same_bits_words({"same_bits": result})
    assert ("on all ranks" in words) == bool(result["on_all_ranks"]) and all(x in words for x in ALWAYS)


def test_told():
    for nothing in (schedule("bcast", "chain", 4), schedule("exscan", "linear", 1)):
        assert describe_reduction(nothing) == ""
    assert describe_reduction(schedule("reduce", "linear", 3, 1)).endswith(" on rank 1.")
    assert describe_reduction(schedule("scan", "linear", 3)) == "Block 0 is (0∘1)∘2 on rank 2."
    long = describe_reduction(schedule("allreduce", "naive", 60), 20)
    assert long.startswith("Block 0 is (((((") and long.endswith("… on ranks 0-59: the same bits on all.")


# -- lowered tables


@pytest.mark.parametrize("entry", REDUCING)
@pytest.mark.parametrize("p", [2, 3, 5, *(pytest.param(p, marks=pytest.mark.slow) for p in (ORDERED, 13))])
def test_tables_reduce_as_schedules_do(entry, p):
    """Every root and form, chunked and not, in place and not, averaged and not."""
    for variant in schedules(entry, served(entry, p), {}):
        if variant.root in (0, 1, p - 1):
            check_reduction_order(variant)


def test_tables_with_other_brackets_are_refused():
    """Operands of one row in another order, which the proof of contributions takes for as good."""
    chain = adhoc("allreduce", from_itself, 3)
    for case, in_place in product(check_plan.cases(chain), (False, True)):
        plans = lower_all(chain, case, in_place)
        plan = plans[1]
        first = [a for _, _, a, b, _ in plan.rows.tolist() if b - a == 4]
        segments = plan.segments.copy()
        for a in first:
            segments[[a + 2, a + 3]] = segments[[a + 3, a + 2]]
        plans[1] = replace(plan, segments=segments)
        check_plan.run(chain, case, in_place, plans)
        if first and case.counts:
            with pytest.raises(VerifyError, match="block 0 whole"):
                determinism.run_on_trees(ReductionTrees(chain), case, in_place, plans)


def test_prove_holds_tables_to_their_schedule(monkeypatch):
    reduce = lowering.Lowering._reduce_received
    entry = adhoc("allreduce", from_itself, 3).algorithm
    prove(entry, 3)

    def rotated(self, place, of):
        return reduce(self, place, of[1:] + of[:1])

    monkeypatch.setattr(lowering.Lowering, "_reduce_received", rotated)
    with pytest.raises(VerifyError, match="block 0 whole"):
        prove(entry, 3)


def test_local_reductions_have_trees_too():
    """Into an accumulator, the first time a copy."""
    start, end = Reduce(Loc("a", 0), Loc(INPUT, 0)), Reduce(Loc("a", 0), Loc(INPUT, 0), "left")
    programs = [[start, (Send(peer, (0,)), RecvReduce(peer, (0,), buffer="a")), end] for peer in (1, 0)]
    trees = ReductionTrees(of_ranks("allreduce", *programs))
    assert [trees.forest.text(memory["a"][0]) for memory in trees.trace.memory] == ["0∘(1∘0)", "1∘(1∘0)"]


# -- kernels, on which all of it rests


def numbers(n, dtype, seed):
    """Return numbers of very different size, so that any other rounding shows."""
    draw = np.random.default_rng(seed)
    parts = draw.standard_normal(2 * n) * 2.0 ** draw.integers(-20, 20, 2 * n)
    return parts.view("c16").astype(dtype) if np.dtype(dtype).kind == "c" else parts[:n].astype(dtype)


@pytest.mark.parametrize(("op", "code"), ROUNDING, ids=map(" ".join, ROUNDING))
def test_kernels_give_an_element_the_same_bits_anywhere(op, code):
    """Any length and place of the slice, either operand overwritten, and left and right swapped."""
    kernel, n = kernels.address(op, np.dtype(code)), 70
    a, b = numbers(n, code, 1), numbers(n, code, 2)
    whole = np.empty_like(a)
    kernels.call(kernel, whole.ctypes.data, a.ctypes.data, b.ctypes.data, n)
    for first, length in product(range(9), (1, 2, 3, 5, 8, 17, 33, 61)):
        part = slice(first, first + length)
        for x, y in ((a, b), (b, a)):
            left, right, fresh = x.copy(), y.copy(), np.empty_like(x)
            for to in (fresh, left, right):
                left[:], right[:] = x, y
                kernels.call(kernel, *(v[part].ctypes.data for v in (to, left, right)), length)
                assert to[part].tobytes() == whole[part].tobytes(), (first, length)
