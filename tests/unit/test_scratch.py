"""The scratch that a communicator keeps from call to call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mpicoll.runtime.scratch import MAX_KEPT, Scratch


def scratch() -> Scratch:
    """Return scratch that no fast path shares."""
    fast_path: Any = SimpleNamespace(share_scratch=lambda array: True, reclaim_scratch=lambda in_use: True)
    return Scratch(fast_path)


@pytest.mark.parametrize("nbytes", [0, 1, 100, (MAX_KEPT >> 1) + 1, MAX_KEPT - 100])
def test_small_scratch_is_kept(nbytes):
    kept = scratch()
    array = kept.take(nbytes)
    kept.give_back(array)
    assert kept.take(nbytes) is array


def test_large_scratch_is_not_kept():
    kept = scratch()
    kept.give_back(kept.take(MAX_KEPT + 1))
    assert kept.array is None


def test_sizes_that_grow_need_few_arrays():
    kept, arrays = scratch(), set()
    for nbytes in range(1, 1 << 14, 7):
        array = kept.take(nbytes)
        arrays.add(len(array))
        kept.give_back(array)
    assert len(arrays) <= 15
