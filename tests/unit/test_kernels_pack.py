"""Packing: NumPy's and numba's, against loops over bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mpicoll import kernels

GUARD = 0xA5
RUNS = [(1, 1), (1, 2), (1, 4), (1, 8), (1, 16), (2, 8), (3, 4), (5, 1), (1, 24), (100, 8), (0, 8)]


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
