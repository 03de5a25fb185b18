"""Segments of circulant broadcasts: who gets which from whom, for numbers of ranks beyond those of the proofs."""

import pytest

from mpicoll.algorithms.circulant import arrivals, received, skips, turns


@pytest.mark.parametrize("p", [2, 3, 33, 65, 66, 127, 128, 129, 331, 1000])
def test_every_rank_receives_every_segment_of_a_turn_once(p):
    rounds = len(skips(p)) - 1
    for rank in range(p):
        segments = [segment % rounds for segment in received(p, rank)]
        assert sorted(segments) == list(range(rounds)), rank
        assert sum(segment >= 0 for segment in received(p, rank)) == (rank > 0), rank


@pytest.mark.parametrize("p", [2, 3, 33, 65, 66, 127, 128, 129, 331])
@pytest.mark.parametrize("segments", [1, 2, 9, 20])
def test_who_sends_a_segment_has_it(p, segments):
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
