"""The partition of elements into blocks, and of blocks into chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.schedules import blocks

COUNTS = st.integers(0, 10_000)
FEW = st.integers(1, 300)


@given(COUNTS, FEW)
def test_sizes_share_all_and_differ_by_one_at_most(n, k):
    sizes = blocks.sizes(n, k)
    assert len(sizes) == k
    assert sum(sizes) == n
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@given(st.lists(st.integers(0, 50)))
def test_offsets_leave_no_gap(lengths):
    at = blocks.offsets(lengths)
    assert [a + n for a, n in zip(at, lengths)] == [*at[1:], sum(lengths)][: len(lengths)]
    assert at[:1] in ([], [0])


@given(COUNTS, FEW, COUNTS)
def test_chunks_make_up_their_block(largest, slice_, shorter):
    """The largest block sets the number of chunks; the last chunks of a shorter block are empty."""
    lanes = blocks.chunks(largest, slice_)
    for length in (largest, min(largest, shorter)):
        pieces = [blocks.chunk_length(length, slice_, lane) for lane in range(lanes)]
        assert sum(pieces) == length
        assert all(0 <= piece <= slice_ for piece in pieces)
        assert pieces == sorted(pieces, reverse=True)
    assert lanes == 1 or blocks.chunk_length(largest, slice_, lanes - 1) > 0


@pytest.mark.parametrize("p", range(1, 70))
def test_powers_of_two(p):
    below = blocks.powers_of_two(p)
    assert below == [x for x in (1, 2, 4, 8, 16, 32, 64) if x < p]
    assert blocks.power_of_two_floor(p) == max(x for x in (1, 2, 4, 8, 16, 32, 64) if x <= p)
