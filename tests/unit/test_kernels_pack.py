"""Packing: NumPy's and numba's, against loops over bytes."""

from __future__ import annotations

import numpy as np
import pytest

from mpicoll import kernels

GUARD = 0xA5
LOOPS = [[], [(5, 40)], [(2, -500), (3, 60)], [(2, 900), (1, 7), (3, -50), (2, 20)], [(0, 9)]]
LENGTHS = [(5, 1), (-3, 2), (4, 4), (7, 8), (0, 16), (9, 7)]


class Reference:
    """Arrays and an index, as `reference` takes them."""

    def __getattr__(self, name):
        function = getattr(kernels.reference, name)
        return lambda packed, scattered, at, *layout: function(packed, scattered, *layout, at=at)


class Numba:
    """The same call on addresses."""

    def __getattr__(self, name):
        function = getattr(kernels.pack, name)

        def call(packed, scattered, at, n, extent, *vectors):
            layout = kernels.pack.Layout(*vectors)
            return function(packed.ctypes.data, scattered.ctypes.data + at, n, extent, layout.address)

        return call


IMPLEMENTATIONS = [pytest.param(Reference(), id="reference"), pytest.param(Numba(), id="numba")]


def round_trip(both, layout, places):
    """Pack, unpack elsewhere, and compare both with the list of byte positions relative to `at`."""
    pack, unpack = both
    random = np.random.default_rng(len(places))
    low, high = min(places, default=0), max(places, default=0) + 1
    at = 3 - low  # an odd address
    source = random.integers(0, 256, high - low + 8, np.uint8)
    packed = np.full(len(places) + 8, GUARD, np.uint8)
    moved = pack(packed[1:], source, at, *layout)
    assert moved == len(places)
    assert packed[1 : 1 + moved].tolist() == [source[at + place] for place in places]
    assert packed[0] == GUARD and (packed[1 + moved :] == GUARD).all()

    target = np.full(source.size, GUARD, np.uint8)
    want = target.copy()
    want[[at + place for place in places]] = source[[at + place for place in places]]
    assert unpack(packed[1:], target, at, *layout) == moved
    assert target.tolist() == want.tolist()


def element_bytes(n, extent, loops, segments):
    starts = [0]
    for count, stride in [(n, extent), *loops]:
        starts = [start + i * stride for start in starts for i in range(count)]
    return [start + offset + byte for start in starts for offset, length in segments for byte in range(length)]


@pytest.mark.parametrize("code", IMPLEMENTATIONS)
@pytest.mark.parametrize("n, extent", [(0, 8), (1, 0), (3, 3000), (4, -3001)])
@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("segments", [[], *([run] for run in LENGTHS), [(8, 4), (0, 8)], [(0, 1), (3, 16)]])
def test_elements(code, n, extent, loops, segments):
    counts, strides = np.array(loops, np.int64).reshape(-1, 2).T.copy()
    offsets, lengths = np.array(segments, np.int64).reshape(-1, 2).T.copy()
    layout = (n, extent, counts, strides, offsets, lengths)
    round_trip((code.pack_elements, code.unpack_elements), layout, element_bytes(n, extent, loops, segments))


@pytest.mark.parametrize("code", IMPLEMENTATIONS)
def test_elements_may_interleave(code):
    """Columns of a matrix: an extent smaller than what an element spans."""
    matrix = np.arange(12, dtype=np.uint8).reshape(3, 4)
    packed = np.zeros(12, np.uint8)
    column = np.array([3]), np.array([4]), np.array([0]), np.array([1])
    assert code.pack_elements(packed, matrix.ravel(), 0, 4, 1, *column) == 12
    assert packed.tolist() == matrix.T.ravel().tolist()


def test_elements_far_apart():
    """More than 2 GiB; memory that is never written takes no room."""
    memory = np.zeros((5 << 30) + 8, np.uint8)
    memory[[0, 1 << 30, 4 << 30, 5 << 30]] = 1, 2, 3, 4
    packed = np.zeros(4, np.uint8)
    up = np.array([2]), np.array([1 << 30]), np.array([0]), np.array([1])
    assert Numba().pack_elements(packed, memory, 0, 2, 4 << 30, *up) == 4
    assert packed.tolist() == [1, 2, 3, 4]
    down = np.array([2]), np.array([-(1 << 30)]), np.array([0]), np.array([1])
    assert Numba().unpack_elements(packed, memory, 5 << 30, 2, -(4 << 30), *down) == 4
    assert memory[[5 << 30, 4 << 30, 1 << 30, 0]].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("code", IMPLEMENTATIONS)
def test_large_blocks(code):
    source = np.random.default_rng(1).integers(0, 256, 1 << 22, np.uint8)
    packed = np.zeros(1 << 21, np.uint8)
    none = np.zeros(0, np.int64)
    assert code.pack_elements(packed, source, 0, 2, 1 << 21, none, none, np.array([0]), np.array([1 << 20])) == 1 << 21
    assert packed.tobytes() == source[: 1 << 20].tobytes() + source[1 << 21 : 3 << 20].tobytes()


@pytest.mark.parametrize("wrong", [np.zeros(2, np.int32), np.zeros(4, np.int64)[::2]])
def test_vectors_of_another_type_are_refused(wrong):
    two = np.zeros(2, np.int64)
    with pytest.raises(TypeError, match="contiguous and of int64"):
        kernels.pack.Layout(two, two, two, wrong)
