"""Derive a reduction's bits: the order in which contributions are combined, and whether all ranks have the same.

Floating-point addition is not associative, so a result's bits follow from its reduction tree: the order in which
contributions are combined. The schedule alone fixes the tree of every block. Chunks slice blocks and never move their
boundaries, and both engines run the same rows with the same kernels. Here schedules are executed with trees in the
place of contributions, so that statements about bits are derived, not declared. check_reduction_order compares lowered
tables with the trees of their schedule.

left∘right and right∘left are one tree, since MPI's operators commute bit by bit; the rules of kernels/ name the
exceptions. Non-commutative operators reduce in rank order, in which no two trees differ by a swap alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from ..errors import PreconditionError, spans
from ..plans.plan import Plan
from ..schedules.collectives import Block, everywhere, from_all_ranks
from ..schedules.ir import VALUE
from ..schedules.registry import Algorithm
from ..schedules.schedule import Schedule
from .cases import Case
from .check_plan import Lowered
from .interpreter import DIVIDED, Cell, Machine, Pieces
from .symbolic import SymbolicExecution
from .values import Value

ALWAYS = ("from run to run", "for any chunk size", "on either engine")  # by construction, for every algorithm
LOOKED_AT = range(2, 14)  # ranks an algorithm's bits are compared on


class Forest:
    """Reduction trees, each with a number: equal numbers are equal trees. Tree r is rank r's contribution."""

    def __init__(self, p: int) -> None:
        self.parts: list[tuple[int, int] | None] = [None] * p
        self._known: dict[tuple[int, int], int] = {}

    def combine(self, left: int, right: int) -> int:
        """Return the number of left∘right."""
        key = (left, right) if left < right else (right, left)
        if (tree := self._known.get(key)) is None:
            tree = self._known[key] = len(self.parts)
            self.parts.append((left, right))
        return tree

    def text(self, tree: int) -> str:
        """Return a tree as a formula of ranks.

        >>> forest = Forest(3)
        >>> forest.text(forest.combine(forest.combine(1, 0), 2))
        '(1∘0)∘2'
        """
        if (parts := self.parts[tree]) is None:
            return str(tree)
        return "∘".join(self.text(x) if self.parts[x] is None else f"({self.text(x)})" for x in parts)

    def evaluate(self, tree: int, reduce: Any, contributions: Any) -> Any:
        """Evaluate a tree on the ranks' contributions, with a function of two operands."""
        if (parts := self.parts[tree]) is None:
            return contributions[tree]
        left, right = (self.evaluate(x, reduce, contributions) for x in parts)
        return reduce(left, right)


class ReductionTrees(SymbolicExecution):
    """A symbolic execution on reduction trees, which gives the tree of every rank's result."""

    def __init__(self, schedule: Schedule) -> None:
        self.forest = Forest(schedule.p)
        super().__init__(schedule)
        self.execute()

    def _contribution(self, rank: int) -> Value:
        return rank

    def _combine(self, left: Value, right: Value) -> Value:
        assert isinstance(left, int) and isinstance(right, int)
        return self.forest.combine(left, right)

    def tree(self, rank: int, block: Block) -> int:
        """Return the tree of one rank's result."""
        tree = self.trace.memory[rank][VALUE][block]
        assert isinstance(tree, int)
        return tree

    def ranks_by_tree(self, block: Block) -> dict[int, list[int]]:
        """Return the trees of one block, each with the ranks that end with it."""
        ranks: dict[int, list[int]] = defaultdict(list)
        for rank in range(self.schedule.p):
            if block in self.schedule.ends(rank):
                ranks[self.tree(rank, block)].append(rank)
        return ranks


# -- the same on all ranks ------------------------------------------------------------------------------------


def same_on_all_ranks(schedule: Schedule) -> bool | None:
    """Return whether ranks that end with the same block have the same bits in it; True if only one rank has it.

    The answer is None for barrier, scan and exscan, in which no two ranks have the same result.
    """
    what = schedule.collective
    if what.naming == "none" or what.covers is not from_all_ranks:
        return None
    if not what.reduces or what.ends is not everywhere:
        return True
    trees = ReductionTrees(schedule)
    return all(len(trees.ranks_by_tree(block)) == 1 for block in schedule.blocks)


class Agreement(NamedTuple):
    """The answer of same_on_all_ranks for an algorithm; unless: for which choices bits differ, or why it is unknown."""

    same: bool | None
    unless: str = ""


def agreement(entry: Algorithm) -> Agreement:
    """Combine same_on_all_ranks over the defaults and the proved parameters, for each p in LOOKED_AT.

    If the algorithm fails, the answer is None, and `unless` refers to `mpicoll verify`.
    """
    apart: dict[str, list[int]] = defaultdict(list)
    for p in filter(entry.serves, LOOKED_AT):
        for schedule in _chosen(entry, p):
            try:
                same = same_on_all_ranks(schedule)
            except Exception:  # a user's algorithm may raise anything
                return Agreement(None, f"not known, since it fails at p = {p}; see mpicoll verify")
            if same is None:
                return Agreement(None)
            if not same:
                apart[", ".join(f"{k}={v}" for k, v in schedule.parameters.items())].append(p)
    words = [
        f"{choice} with p = {spans(ranks)}" if choice else f"p = {spans(ranks)}" for choice, ranks in apart.items()
    ]
    return Agreement(not words, "; ".join(words))


def _chosen(entry: Algorithm, p: int) -> Iterator[Schedule]:
    for choice, _ in entry.choices(p):
        with suppress(PreconditionError):
            yield Schedule(entry, p, **choice)


def describe_reduction(schedule: Schedule, most: int = 60) -> str:
    """Describe the reduction tree of a block, one on which ranks differ if there is any.

    The text is empty if the collective reduces nothing.

    >>> from mpicoll.schedules.schedule import schedule
    >>> describe_reduction(schedule("allreduce", "recursive_doubling", 4))
    'Block 0 is (0∘1)∘(2∘3) on ranks 0-3: the same bits on all.'
    """
    if not schedule.collective.reduces:
        return ""
    trees = ReductionTrees(schedule)
    own = schedule.collective.covers is not from_all_ranks
    apart = [block for block in schedule.blocks if len(trees.ranks_by_tree(block)) > 1]
    block = apart[0] if apart else schedule.blocks[0]
    descriptions = [
        f"{_clipped(trees.forest.text(tree), most)} on rank{'s' * (len(who) > 1)} {spans(who)}"
        for tree, who in trees.ranks_by_tree(block).items()
    ]
    if own or not apart:
        same = ": the same bits on all" * (schedule.collective.ends is everywhere and not own)
        return f"Block {block} is {descriptions[-1]}{same}." if descriptions else ""
    return f"Block {block} is {descriptions[0]} but {descriptions[1]}: not the same bits on all."


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


# -- lowered tables -------------------------------------------------------------------------------------------


class _TreeMachine(Machine):
    """All ranks' tables, run on reduction trees and compared with those of the schedule."""

    def __init__(self, trees: ReductionTrees, case: Case, in_place: bool, lowered: list[Plan]) -> None:
        self.trees = trees
        super().__init__(trees.schedule, case, in_place, lowered)

    def _contribution(self, block: Block, rank: int) -> list[Cell]:
        return self._cells(block, rank, 0)

    def _combined(self, lane: Any, pieces: Pieces, left: list[Cell], right: list[Cell]) -> list[Cell]:
        combine = self.trees.forest.combine
        return [(x[0], combine(x[1], y[1]), 0) for x, y in zip(left, right)]

    def _divided(self, lane: Any, pieces: Pieces, cells: list[Cell]) -> list[Cell]:
        return [(x[0], x[1], x[2] | DIVIDED) for x in cells]

    def _expected(self, rank: int, block: Block) -> list[Cell]:
        return self._cells(block, self.trees.tree(rank, block), self._marks(rank, block))


def check_reduction_order(schedule: Schedule, lowered: Lowered | None = None) -> None:
    """Prove that plans reduce in the order of their schedule, in all cases. Raises VerifyError."""
    trees, lowered = ReductionTrees(schedule), lowered or Lowered(schedule)
    for case, in_place, plans in lowered.in_all_cases():
        run_on_trees(trees, case, in_place, plans)


def run_on_trees(trees: ReductionTrees, case: Case, in_place: bool, lowered: list[Plan]) -> None:
    """Run all ranks' tables on reduction trees. Raises VerifyError for a tree that differs from the schedule's."""
    _TreeMachine(trees, case, in_place, lowered).run()
