"""Packing: NumPy's and numba's, against loops over bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mpicoll import kernels

GUARD = 0xA5
RUNS = [(1, 1), (1, 2), (1, 4), (1, 8), (1, 16), (2, 8), (3, 4), (5, 1), (1, 24), (100, 8), (0, 8)]

LOOPS = [[], [(5, 40)], [(2, -500), (3, 60)], [(2, 900), (1, 7), (3, -50), (2, 20)], [(0, 9)]]
LENGTHS = [(5, 1), (-3, 2), (4, 4), (7, 8), (0, 16), (9, 7)]


class Reference:
    """Arrays and an index, as `reference` takes them."""

    def __getattr__(self, name: str) -> Callable:
        function = getattr(kernels.reference, name)
        return lambda packed, scattered, at, *layout: function(packed, scattered, *layout, at=at)


class Numba:
    """The same call on addresses."""

    def __getattr__(self, name: str) -> Callable:
        function = getattr(kernels.pack, name)

        def call(packed: np.ndarray, scattered: np.ndarray, at: int, *layout: object) -> int:
            return function(packed.ctypes.data, scattered.ctypes.data + at, *layout)

        return call


IMPLEMENTATIONS = [pytest.param(Reference(), id="reference"), pytest.param(Numba(), id="numba")]


def strided_bytes(count: int, run: int, stride: int) -> list[int]:
    return [i * stride + byte for i in range(count) for byte in range(run)]


def round_trip(both: tuple[Callable, Callable], layout: tuple, places: list[int]) -> None:
    """Packs, unpacks elsewhere, and holds both to the list of byte positions relative to `at`."""
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


@pytest.mark.parametrize("code", IMPLEMENTATIONS)
@pytest.mark.parametrize("length, size", RUNS)
@pytest.mark.parametrize("gap", [0, 1, 8, "backwards"])
def test_strided(code: Reference | Numba, length: int, size: int, gap: int | str) -> None:
    run = length * size
    stride = -run - 3 if gap == "backwards" else run + int(gap)
    for count in (0, 1, 2, 33):
        layout = (count, length, stride, size)
        round_trip((code.pack_strided, code.unpack_strided), layout, strided_bytes(count, run, stride))


@pytest.mark.parametrize("code", IMPLEMENTATIONS)
@pytest.mark.parametrize("seed", range(20))
def test_segments(code: Reference | Numba, seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.choice([0, 1, 2, 3, 4, 7, 8, 16, 17, 64, 1000], random.integers(0, 40))
    gaps = random.integers(0, 9, lengths.size)
    offsets = np.cumsum(lengths + gaps) - lengths - random.integers(0, 500)  # before the base too
    order = random.permutation(lengths.size)
    offsets, lengths = offsets[order].astype(np.int64), lengths[order].astype(np.int64)
    if seed % 2:
        offsets.flags.writeable = lengths.flags.writeable = False
    places = [first + i for first, length in zip(offsets.tolist(), lengths.tolist()) for i in range(length)]
    round_trip((code.pack_segments, code.unpack_segments), (offsets, lengths), places)


def element_bytes(n: int, extent: int, loops: list[tuple[int, int]], segments: list[tuple[int, int]]) -> list[int]:
    starts = [0]
    for count, stride in [(n, extent), *loops]:
        starts = [start + i * stride for start in starts for i in range(count)]
    return [start + offset + byte for start in starts for offset, length in segments for byte in range(length)]


@pytest.mark.parametrize("code", IMPLEMENTATIONS)
@pytest.mark.parametrize("n, extent", [(0, 8), (1, 0), (3, 3000), (4, -3001)])
@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("segments", [[], *([run] for run in LENGTHS), [(8, 4), (0, 8)], [(0, 1), (3, 16)]])
def test_elements(
    code: Reference | Numba, n: int, extent: int, loops: list[tuple[int, int]], segments: list[tuple[int, int]]
) -> None:
    counts, strides = np.array(loops, np.int64).reshape(-1, 2).T.copy()
    offsets, lengths = np.array(segments, np.int64).reshape(-1, 2).T.copy()
    layout = (n, extent, counts, strides, offsets, lengths)
    round_trip((code.pack_elements, code.unpack_elements), layout, element_bytes(n, extent, loops, segments))


@pytest.mark.parametrize("code", IMPLEMENTATIONS)
def test_elements_may_interleave(code: Reference | Numba) -> None:
    """Columns of a matrix: an extent smaller than what an element spans."""
    matrix = np.arange(12, dtype=np.uint8).reshape(3, 4)
    packed = np.zeros(12, np.uint8)
    column = np.array([3]), np.array([4]), np.array([0]), np.array([1])
    assert code.pack_elements(packed, matrix.ravel(), 0, 4, 1, *column) == 12
    assert packed.tolist() == matrix.T.ravel().tolist()


def test_elements_far_apart() -> None:
    """More than 2 GiB; memory that is never written takes no room."""
    memory = np.zeros((5 << 30) + 8, np.uint8)
    memory[[0, 1 << 30, 4 << 30, 5 << 30]] = 1, 2, 3, 4
    packed = np.zeros(4, np.uint8)
    layout = np.array([2]), np.array([1 << 30]), np.array([0]), np.array([1])
    assert kernels.pack.pack_elements(packed.ctypes.data, memory.ctypes.data, 2, 4 << 30, *layout) == 4
    assert packed.tolist() == [1, 2, 3, 4]
    down = np.array([2]), np.array([-(1 << 30)]), np.array([0]), np.array([1])
    assert kernels.pack.unpack_elements(packed.ctypes.data, memory.ctypes.data + (5 << 30), 2, -(4 << 30), *down) == 4
    assert memory[[5 << 30, 4 << 30, 1 << 30, 0]].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("code", IMPLEMENTATIONS)
def test_large_blocks(code: Reference | Numba) -> None:
    source = np.random.default_rng(1).integers(0, 256, 1 << 22, np.uint8)
    packed = np.zeros(1 << 21, np.uint8)
    assert code.pack_strided(packed, source, 0, 2, 1 << 20, 1 << 21, 1) == 1 << 21
    assert packed.tobytes() == source[: 1 << 20].tobytes() + source[1 << 21 : 3 << 20].tobytes()


def test_offsets_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError):
        kernels.pack.pack_segments(0, 0, np.zeros(1, np.int32), np.zeros(1, np.int32))
    with pytest.raises(TypeError):
        kernels.pack.pack_segments(0, 0, np.zeros(4, np.int64)[::2], np.zeros(2, np.int64))
