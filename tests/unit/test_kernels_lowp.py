"""Elements of 16 and 8 bits: against ml_dtypes and float64, exhaustively where there are few enough of them."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2

from mpicoll.kernels import lowp, plain, reduce, reference, rules, scale, serving

TYPES = {np.dtype(each).name: np.dtype(each) for each in (np.float16, bfloat16, float8_e4m3fn, float8_e5m2)}
SMALL = [name for name, dtype in TYPES.items() if dtype.itemsize == 1]
UFUNCS = {"SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum}
WAYS = {"compiled": serving, "plain": plain}
each_type = pytest.mark.parametrize("name", TYPES)
each_way = pytest.mark.parametrize("way", WAYS)


def at(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


def every(name: str) -> np.ndarray:
    dtype = TYPES[name]
    return np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)


def same(got: np.ndarray, expected: np.ndarray) -> bool:
    """Equal bits, but any NaN for a NaN."""
    nan = np.isnan(expected.astype(np.float32))
    return bool(((bits(got) == bits(expected)) | (nan & np.isnan(got.astype(np.float32)))).all())


def rounded(x: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(np.float32).astype(TYPES[name])


@each_type
@each_way
def test_every_value_is_widened(name, way):
    x = every(name)
    got = np.empty(len(x), np.float32)
    reduce.call(WAYS[way].widen_address(TYPES[name]), at(got), at(x), 0, len(x))
    assert same(got, x.astype(np.float32))
    assert same(reference.widened(x, name), x.astype(np.float32))


@each_type
@each_way
def test_float32_are_rounded_to_nearest(name, way):
    values = every(name).astype(np.float32)
    values = np.sort(values[np.isfinite(values)].astype(np.float64))
    halves = (values[1:] + values[:-1]) / 2
    halves = halves.astype(np.float32)[halves.astype(np.float32) == halves]
    near = [halves, np.nextafter(halves, np.float32(np.inf)), np.nextafter(halves, np.float32(-np.inf))]
    random = np.random.default_rng(1).integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([values.astype(np.float32), *near, random])
    got = np.empty(len(x), TYPES[name])
    reduce.call(WAYS[way].narrow_address(TYPES[name]), at(got), at(x), 0, len(x))
    assert len(halves) > 100 and same(got, rounded(x, name))


@pytest.mark.parametrize("op", UFUNCS)
@pytest.mark.parametrize("name", SMALL)
@each_way
def test_all_pairs_of_small_values(name, op, way):
    x = every(name)
    a, b = np.repeat(x, len(x)), np.tile(x, len(x))
    with np.errstate(all="ignore"):
        exact = UFUNCS[op](a.astype(np.float64), b.astype(np.float64))
    got = np.empty_like(a)
    reduce.call(WAYS[way].address(op, TYPES[name]), at(got), at(a), at(b), len(a))
    expected = rounded(exact, name)
    zero = (a.astype(np.float32) == 0) & (b.astype(np.float32) == 0)  # which zero MAX and MIN give is left open
    assert same(got[~zero], expected[~zero]) and (got[zero].astype(np.float32) == 0).all()


@pytest.mark.parametrize("op", UFUNCS)
@pytest.mark.parametrize("name", [name for name in TYPES if name not in SMALL])
@pytest.mark.parametrize("place", ["apart", "first", "second"])
def test_pairs_of_16_bits_in_place_or_not(name, op, place):
    draw = np.random.default_rng(2)
    a, b = (draw.integers(0, 1 << 16, 200_003, dtype=np.uint16).view(TYPES[name]) for _ in range(2))
    with np.errstate(all="ignore"):
        expected = rounded(UFUNCS[op](a.astype(np.float32), b.astype(np.float32)), name)
    got = {"apart": np.empty_like(a), "first": a, "second": b}[place]
    reduce.call(serving.address(op, TYPES[name]), at(got), at(a), at(b), len(a))
    zero = expected.astype(np.float32) == 0
    assert same(got[~zero], expected[~zero]) and (got[zero].astype(np.float32) == 0).all()


@each_type
@pytest.mark.parametrize("n", [0, 1, 7, 33])
def test_nothing_beyond_the_elements_is_touched(name, n):
    dtype = TYPES[name]
    memory = np.full(n + 2, 0xA5, f"u{dtype.itemsize}")
    ones = np.ones(n, dtype)
    reduce.call(serving.address("SUM", dtype), at(memory) + dtype.itemsize, at(ones), at(ones), n)
    assert memory[0] == memory[-1] == 0xA5 and (memory[1:-1].view(dtype).astype(float) == 2).all()


@each_type
@each_way
def test_a_division_rounds_once(name, way):
    x, by = every(name), np.array([3], np.float32)
    got = np.empty_like(x)
    reduce.call(WAYS[way].scale_address(TYPES[name]), at(got), at(x), at(by), len(x))
    with np.errstate(all="ignore"):
        assert same(got, rounded(x.astype(np.float32) / by, name))


@each_type
def test_a_type_is_known_by_its_name(name):
    stands_for = rules.LOW[name]
    assert rules.low(TYPES[name]) == rules.low(stands_for) == name
    assert reduce.address("SUM", TYPES[name]) == reduce.address("SUM", stands_for)
    assert scale.address(TYPES[name]) == scale.address(stands_for)
    with pytest.raises(TypeError, match="does not take"):
        reduce.address("LAND", TYPES[name])


@each_type
def test_rounding_at_random_is_right_on_average_and_repeats(name):
    dtype, n = TYPES[name], 1 << 18
    kernel = lowp.narrow_address(dtype, stochastic=True)
    for low in (1.0, float(every(name).astype(np.float32)[3])):        # a normal number, and a subnormal one
        code = bits(np.array([low], np.float32).astype(dtype))
        high = float((code + 1).astype(code.dtype).view(dtype).astype(np.float32)[0])
        x = np.full(n, low + 0.25 * (high - low), np.float32)
        found = {}
        for seed in (1, 1, 2):
            got, word = np.empty(n, dtype), np.array([seed], np.int64)
            reduce.call(kernel, at(got), at(x), at(word), n)
            assert set(np.unique(got.astype(np.float64))) == {low, high}
            assert abs((got.astype(np.float64) == high).mean() - 0.25) < 5 * (0.25 * 0.75 / n) ** 0.5
            assert seed not in found or (bits(got) == found[seed]).all()
            found[seed] = bits(got)
        assert (found[1] != found[2]).any()


@each_type
def test_rounding_at_random_leaves_what_is_exact(name):
    x = every(name)
    wide, got, word = x.astype(np.float32), np.empty_like(x), np.array([7], np.int64)
    reduce.call(lowp.narrow_address(TYPES[name], stochastic=True), at(got), at(wide), at(word), len(x))
    assert same(got, x)
