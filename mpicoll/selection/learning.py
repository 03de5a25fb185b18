"""Learn from a program's own calls, while it runs, which of a few algorithms is the fastest for a size class.

The calls of a class take turns among candidates, each of which runs a few times untimed and then a few times timed.
After a number of calls that every rank knows, the ranks compare the times of the slowest rank, and the class uses
the fastest from then on. What was learned has the form of a tuning table. Others did this in C: Faraj, Yuan,
Lowenthal, STAR-MPI: self tuned adaptive routines for MPI collective operations, 2006.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..cost.network import Network
from ..schedules.collectives import COLLECTIVES, base_collective
from ..schedules.grouping import Partition
from ..schedules.schedule import schedule
from .modelled import costs
from .rules import Rule
from .select import AUTO, BITS, NATIVE, NO, Choice

UNTIMED, TIMED = 2, 9  # turns of a candidate
SURE = 7  # timed turns in which another must be faster than what auto chooses
MOST = 3  # candidates beside MPI's own collective
MARGIN = 1.03  # by how much another must be faster than what auto chooses
MOST_RANKS = 32  # on which reduction trees are compared


class Candidate(NamedTuple):
    """An algorithm as using() takes it, and how its blocks are cut."""

    algorithm: str
    chunk_bytes: int | None
    window: int


def size_class(nbytes: int) -> tuple[int, int]:
    """Return the least and the most bytes of calls that are learned together.

    >>> size_class(0), size_class(1), size_class(1000)
    ((0, 0), (1, 1), (512, 1023))
    """
    least = 1 << nbytes.bit_length() >> 1
    return least, max(0, 2 * least - 1)


class Kind(NamedTuple):
    """The calls that a lesson is of: a collective, the least bytes of the class, and what is learned from."""

    collective: str
    least: int
    learns: str
    overlapping: bool  # calls that return before they are complete, so that several may be in flight


class Lesson:
    """The turns of one class of calls; is_in_doubt: whether later calls will be faster, since kernels still compile."""

    def __init__(self, kind: Kind, candidates: Sequence[Candidate]) -> None:
        self.kind, self.candidates = kind, candidates
        self.begin()

    def begin(self) -> None:
        """Begin with the first turn."""
        self.calls, self.is_in_doubt = 0, False
        self.seconds = np.full((len(self.candidates), UNTIMED + TIMED), np.inf)

    @property
    def current(self) -> Candidate:
        """Return the candidate whose turn it is; the first when the lesson is over."""
        return self.candidates[self.calls % len(self.candidates)]

    @property
    def is_over(self) -> bool:
        """Return whether every candidate had its turns."""
        return self.calls >= (UNTIMED + TIMED) * len(self.candidates)

    def take_turn(self, is_in_doubt: bool = False) -> int:
        """Count a call that the current candidate carries out, and return the number of its turn."""
        self.is_in_doubt |= is_in_doubt
        self.calls += 1
        return self.calls - 1

    def note(self, turn: int, seconds: float) -> None:
        """Keep how long a turn took."""
        self.seconds[turn % len(self.candidates), turn // len(self.candidates)] = seconds

    def measured(self) -> np.ndarray:
        """Return the µs of every timed turn on this rank, a line for each candidate."""
        return 1e6 * self.seconds[:, UNTIMED:]

    def fastest(self, us: np.ndarray) -> int:
        """Return which candidate is the fastest, by the µs of the slowest rank in every turn.

        The first stays unless another is faster by the median, and in most rounds.
        """
        medians = np.median(us, axis=1)
        sure = (us < us[0]).sum(axis=1) >= SURE
        faster = [i for i in range(len(us)) if sure[i] and MARGIN * medians[i] < medians[0]]
        return min(faster, key=lambda i: medians[i], default=0)

    def rule(self, us: np.ndarray) -> Rule:
        """Return the rule of the fastest candidate, by the µs of the slowest rank in every turn."""
        medians, best = np.median(us, axis=1), self.fastest(us)
        algorithm, chunk, window = self.candidates[best]
        native = [medians[i] for i, other in enumerate(self.candidates) if other.algorithm == NATIVE]
        beside = f", native's {native[0]:.3g}" if native else ""
        least, most = size_class(self.kind.least)
        why = f"learned: calls of {least} to {most} bytes took {medians[best]:.3g} µs{beside}"
        return Rule(least, algorithm, chunk, why, window)


class Lessons:
    """The lessons of a communicator, in progress and ended; the same on every rank, since all make the same calls.

    - under_way: what takes turns, by kind; None where there is no choice.
    - learned: rules by the least bytes of their classes, by collective and by what was learned from.
    - sure: those of them that are not in doubt.
    """

    def __init__(self) -> None:
        self.active: dict[Kind, Lesson | None] = {}
        self.learned: dict[tuple[str, str], dict[int, Rule]] = {}
        self.sure: dict[tuple[str, str], dict[int, Rule]] = {}

    def measured(self, collective: str, learns: str | None, table: Sequence[Rule]) -> Sequence[Rule]:
        """Return the rules of a table, and what was learned in their place."""
        learned = self.learned.get((collective, learns or NO))
        return overlaid(table, learned) if learned else table

    def to_keep(self, collective: str, learns: str | None, table: Sequence[Rule]) -> Sequence[Rule]:
        """Return the same for later runs: without what is in doubt."""
        return overlaid(table, self.sure.get((collective, learns or NO), {}))

    def end(self, lesson: Lesson, rule: Rule) -> None:
        """End a lesson with its rule."""
        kind = lesson.kind
        del self.active[kind]
        for rules in (self.learned, *([] if lesson.is_in_doubt else [self.sure])):
            rules.setdefault((kind.collective, kind.learns), {})[kind.least] = rule


def overlaid(table: Sequence[Rule], learned: Mapping[int, Rule]) -> tuple[Rule, ...]:
    """Return the rules of a table with those of classes, by their least bytes, in their place.

    >>> [rule[:2] for rule in overlaid([Rule(0, "ring", None, "")], {4: Rule(4, "tree", None, "")})]
    [(0, 'ring'), (4, 'tree'), (8, 'ring')]
    """
    table = table or [Rule(0, AUTO, None, "")]
    steps = {rule.above for rule in table} | set(learned) | {size_class(least)[1] + 1 for least in learned}
    rules = []
    for step in sorted(steps):
        own = learned.get(size_class(step)[0])
        rules.append((own or next(rule for rule in reversed(table) if rule.above <= step))._replace(above=step))
    return tuple(rules)


def candidates(
    choice: Choice, nbytes: int, p: int, nodes: Partition, network: Network, learns: str, overlapping: bool = False
) -> tuple[Candidate, ...]:
    """Return what takes turns: what auto chooses first, then what the model likes best, and MPI's own collective.

    With learns="bits", of reductions only what gives the same bits as auto's choice. Overlapping calls leave out MPI's
    own collective: some begin before the ranks have agreed, and MPI's own must begin in the order of calls.
    """
    first = Candidate(choice.algorithm, choice.chunk_bytes, choice.window)
    reduces = COLLECTIVES[base_collective(choice.collective)].reduces
    lines = costs(network, choice.collective, p, True, nodes, np.array([nbytes]))
    every = [Candidate(*line[:3]) for line in sorted(lines, key=lambda line: float(line[3][0]))]
    best = dict[str, Candidate]()  # of each algorithm
    for line in every:
        best.setdefault(line.algorithm, line)
    different = [line for line in best.values() if line.algorithm != first.algorithm]
    if reduces and learns == BITS:
        different = [
            line for line in different if same_bits(choice.collective, first.algorithm, line.algorithm, p, nodes)
        ]
    cut = [line for line in every if line.algorithm == first.algorithm and line != first]
    native = [] if overlapping or (reduces and learns == BITS) else [Candidate(NATIVE, None, 1)]
    return (first, *(different + cut)[: MOST - 1], *native)


def same_bits(collective: str, spec: str, other: str, p: int, nodes: Partition) -> bool:
    """Return whether two algorithms combine the contributions to each element in the same order, on every rank."""
    if p > MOST_RANKS:
        return spec == other
    trees = [_trees(collective, name, p, nodes) for name in (spec, other)]
    return trees[0] == trees[1] or len({tree for blocks in trees for tree in blocks.values()}) == 1


def _trees(collective: str, spec: str, p: int, nodes: Partition) -> dict[Hashable, Hashable]:
    """Return what each rank's blocks are made of: a rank's number, or the set of two such parts."""
    from ..proofs.determinism import ReductionTrees  # here, since it loads what proves schedules

    trees = ReductionTrees(schedule(base_collective(collective), spec, p, nodes=nodes))

    def made_of(tree: int) -> Any:
        parts = trees.forest.parts[tree]
        return tree if parts is None else frozenset(map(made_of, parts))

    own = trees.schedule
    return {(rank, block): made_of(trees.tree(rank, block)) for rank in range(p) for block in own.ends(rank)}
