"""Segments of circulant broadcasts: who gets which from whom, for numbers of ranks beyond those of the proofs.

And the order of operands, which no circulant reduction can keep.
"""

from dataclasses import replace

import pytest

from mpicoll.algorithms.circulant import arrivals, received, skips, turns
from mpicoll.errors import VerifyError
from mpicoll.proofs.symbolic import SymbolicExecution
from mpicoll.proofs.values import combine
from mpicoll.schedules.registry import find
from mpicoll.schedules.schedule import Schedule


@pytest.mark.parametrize("p", [2, 3, 33, 65, 66, 127, 128, 129, 331, 1000])
def test_every_rank_receives_every_segment_of_a_turn_once(p):
    rounds = len(skips(p)) - 1
    for rank in range(p):
        segments = [segment % rounds for segment in received(p, rank)]
        assert sorted(segments) == list(range(rounds)), rank
        assert sum(segment >= 0 for segment in received(p, rank)) == (rank > 0), rank


@pytest.mark.parametrize("p", [2, 3, 33, 65, 66, 127, 128, 129, 331])
@pytest.mark.parametrize("segments", [1, 2, 9, 20])
def test_senders_of_a_segment_have_it(p, segments):
    ascending = skips(p)[::-1]
    have = [set(range(segments)), *(set() for _ in range(1, p))]
    for i, (turn, _) in enumerate(turns(p, segments)):
        came = [(rank, arrivals(p, rank, segments)[i]) for rank in range(p) if i in arrivals(p, rank, segments)]
        for rank, segment in came:
            assert segment in have[(rank - ascending[turn]) % p], (rank, i)
        for rank, segment in came:
            assert segment not in have[rank], (rank, i)
            have[rank].add(segment)
    assert all(len(segments_here) == segments for segments_here in have)


def test_the_rounds_are_as_few_as_there_can_be():
    """A segment more takes a round more, and the last rank is reached after lg p rounds."""
    assert [len(turns(p, 1)) for p in (1, 2, 3, 4, 5, 9, 1000)] == [0, 1, 2, 2, 3, 4, 10]
    assert all(len(turns(p, n)) == n - 1 + len(turns(p, 1)) for p in (2, 5, 64, 100) for n in range(1, 40))


class OnTheRightSide(SymbolicExecution):
    """An execution in which a reduction has its operands on the sides that are in rank order, if there are such."""

    def _combine(self, left, right):
        try:
            return combine(left, right)
        except ValueError:
            return combine(right, left)


def on_the_right_sides(collective, name, p, **parameters):
    entry = replace(find(collective, name), ordered=True)
    return OnTheRightSide(Schedule(entry, p, commutative=False, **parameters)).execute()


@pytest.mark.parametrize("p", [*range(3, 18), 31, 32, 33, 64, 100])
@pytest.mark.parametrize(
    ("collective", "parameters"),
    [("reduce", {"segments": 1}), ("reduce", {"segments": 4}), ("reduce_scatter", {}), ("allreduce", {})],
)
def test_no_choice_of_sides_keeps_the_order_of_operands(collective, parameters, p):
    with pytest.raises(VerifyError, match="is out of rank order"):
        on_the_right_sides(collective, "circulant", p, **parameters)


def test_sides_alone_decide_for_two_ranks_and_in_algorithms_that_keep_the_order():
    for collective in ("reduce", "reduce_scatter", "allreduce"):
        on_the_right_sides(collective, "circulant", 2)
    on_the_right_sides("reduce", "in_order_binary", 7)
    on_the_right_sides("reduce_scatter", "butterfly", 8)
