"""Elements of 16 and 8 bits: against ml_dtypes and float64, exhaustively where there are few enough of them."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2

from mpicoll.kernels import lowp, plain, reduce, reference, rules, scale, serving

TYPES = {np.dtype(scalar).name: np.dtype(scalar) for scalar in (np.float16, bfloat16, float8_e4m3fn, float8_e5m2)}
SMALL = [name for name, dtype in TYPES.items() if dtype.itemsize == 1]
UFUNCS = {"SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum}
COMPILED = SimpleNamespace(  # serving would pass over what cannot be compiled
    address=reduce.address,
    scale_address=scale.address,
    widen_address=lowp.widen_address,
    narrow_address=lowp.narrow_address,
)
WAYS = {"compiled": COMPILED, "plain": plain}
each_type = pytest.mark.parametrize("name", TYPES)
each_way = pytest.mark.parametrize("way", WAYS)
each_place = pytest.mark.parametrize("place", ["apart", "first", "second"])
RANDOM = np.random.default_rng(1).integers(0, 1 << 32, 1_000_000, dtype=np.uint32).view(np.float32)


def at(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


def every(name: str) -> np.ndarray:
    dtype = TYPES[name]
    return np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)


def same(got: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether bits are equal, any NaN for a NaN."""
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
    got[:] = 7
    reference.widen(got, x.view(rules.LOW[name]))
    assert same(got, x.astype(np.float32))


@each_type
@each_way
def test_float32_are_rounded_to_nearest(name, way):
    values = every(name).astype(np.float32)
    values = np.sort(values[np.isfinite(values)].astype(np.float64))
    halves = (values[1:] + values[:-1]) / 2
    halves = halves.astype(np.float32)[halves.astype(np.float32) == halves]
    near = [halves, np.nextafter(halves, np.float32(np.inf)), np.nextafter(halves, np.float32(-np.inf))]
    x = np.concatenate([values.astype(np.float32), *near, RANDOM])
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
@each_place
def test_pairs_of_16_bits_in_place_or_not(name, op, place):
    draw, size = np.random.default_rng(2), bits(np.array(np.inf, TYPES[name])[None])[0]
    special = np.array([0, 1, 2, size >> 1, size - 1, size, size + 1, size | size >> 1], np.uint16)
    special = np.concatenate([special, special | 0x8000])
    ends = np.repeat(special, len(special)), np.tile(special, len(special))
    a, b = (np.concatenate([end, draw.integers(0, 1 << 16, 100_003, dtype=np.uint16)]) for end in ends)
    a, b = a.view(TYPES[name]), b.view(TYPES[name])
    with np.errstate(all="ignore"):
        expected = rounded(UFUNCS[op](a.astype(np.float32), b.astype(np.float32)), name)
    got = {"apart": np.empty_like(a), "first": a, "second": b}[place]
    reduce.call(reduce.address(op, TYPES[name]), at(got), at(a), at(b), len(a))
    zero = expected.astype(np.float32) == 0
    assert same(got[~zero], expected[~zero]) and (got[zero].astype(np.float32) == 0).all()


@pytest.mark.parametrize("name, quiet", [("float16", 0x200), ("bfloat16", 0x40), ("float8_e5m2", 2)])
@each_way
def test_a_nan_is_quiet_afterwards(name, quiet, way):
    x = every(name)
    nan = x[np.isnan(x.astype(np.float32))]
    ones, got = np.ones_like(nan), np.empty_like(nan)
    assert len(nan) > 4 and not (bits(nan) & quiet).all()
    for op in UFUNCS:
        for operands in ((nan, ones), (ones, nan)):
            reduce.call(WAYS[way].address(op, TYPES[name]), at(got), *map(at, operands), len(nan))
            assert np.isnan(got.astype(np.float32)).all() and (bits(got) & quiet).all()


@each_type
@each_way
@each_place
@pytest.mark.parametrize("n", [0, 1, 7, 1000])
def test_nothing_beyond_the_elements_is_touched(name, way, place, n):
    dtype = TYPES[name]
    memory = {where: np.full(n + 2, 0xA5, f"u{dtype.itemsize}") for where in ("apart", "first", "second")}
    first, second = np.resize([1, 2, 3], n).astype(dtype), np.resize([4, 5], n).astype(dtype)
    memory["first"][1:-1], memory["second"][1:-1] = bits(first), bits(second)
    starts = [at(memory[where]) + dtype.itemsize for where in (place, "first", "second")]
    reduce.call(WAYS[way].address("SUM", dtype), *starts, n)
    for where, values in {"first": first, "second": second, "apart": None}.items():
        assert memory[where][0] == memory[where][-1] == 0xA5
        if where == place:
            values = (first.astype(np.float32) + second.astype(np.float32)).astype(dtype)
        assert (memory[where][1:-1] == (0xA5 if values is None else bits(values))).all()


# Of float32, not of the type; by the first ones, times 1 / divisor rounds otherwise in some type.
DIVISORS = (1.0009765625 / 1.03759765625, 1.0078125 / 1.08984375, 1.125 / 1.8125, 3, 1000.7, 2**-9)


@each_type
@each_way
def test_a_division_rounds_once(name, way):
    for divisor in DIVISORS:
        x, by = every(name), np.array([divisor], np.float32)
        with np.errstate(all="ignore"):
            expected = rounded(x.astype(np.float32) / by, name)
        for got in (np.empty_like(x), x):
            reduce.call(WAYS[way].scale_address(TYPES[name]), at(got), at(x), at(by), len(x))
            assert same(got, expected)
        x = every(name)
        reference.scale(got, x, by)
        assert same(got, expected)


@each_type
def test_served_types_are_compiled(name):
    dtype = TYPES[name]
    assert serving.address("SUM", dtype) == reduce.address("SUM", dtype)
    assert serving.scale_address(dtype) == scale.address(dtype)
    assert serving.widen_address(dtype) == lowp.widen_address(dtype)
    for stochastic in (False, True):
        assert serving.narrow_address(dtype, stochastic) == lowp.narrow_address(dtype, stochastic)


@each_type
def test_a_type_is_known_by_its_name(name):
    stands_for = rules.LOW[name]
    assert rules.low(TYPES[name]) == rules.low(stands_for) == name
    assert reduce.address("SUM", TYPES[name]) == reduce.address("SUM", stands_for)
    assert scale.address(TYPES[name]) == scale.address(stands_for)
    with pytest.raises(TypeError, match="does not take"):
        reduce.address("LAND", TYPES[name])


def at_random(way: str, x: np.ndarray, name: str, seed: int) -> np.ndarray:
    got, word = np.empty(len(x), TYPES[name]), np.array([seed], np.int64)
    reduce.call(WAYS[way].narrow_address(TYPES[name], True), at(got), at(x), at(word), len(x))
    return got


@each_type
@each_way
@pytest.mark.parametrize("share", [0.25, 0.9])
def test_rounding_at_random_is_right_on_average_and_repeats(name, way, share):
    n = 1 << 15
    codes = every(name)[[3, int(bits(np.ones(1, TYPES[name]))[0])]]  # a subnormal number, and a normal one
    for lower, upper in zip(codes, (bits(codes) + 1).astype(bits(codes).dtype).view(TYPES[name])):
        low, high = float(lower), float(upper)
        for sign in (1, -1):
            x = np.full(n, sign * (low + share * (high - low)), np.float32)
            got = at_random(way, x, name, 1)
            assert set(np.unique(got.astype(np.float64))) == {sign * low, sign * high}
            rate = (got.astype(np.float64) == sign * high).mean()
            assert abs(rate - share) < 5 * (share * (1 - share) / n) ** 0.5
            assert (bits(got) == bits(at_random(way, x, name, 1))).all()
            for other in (2, -1, 1 + (1 << 32)):  # a seed has 64 bits
                differ = (bits(got) != bits(at_random(way, x, name, other))).mean()
                assert abs(differ - 2 * share * (1 - share)) < 0.02, "drawn anew"


@each_type
@each_way
def test_rounding_at_random_leaves_what_is_exact(name, way):
    x = every(name)
    assert same(at_random(way, x.astype(np.float32), name, 7), x)


@each_type
@each_way
def test_no_chance_makes_a_number_too_large(name, way):
    finite = every(name).astype(np.float32)
    largest = finite[np.isfinite(finite)].max()
    beyond = np.linspace(np.float64(largest), min(1.2 * np.float64(largest), np.finfo("f4").max), 10_000)
    tie = np.float64(largest) + (np.float64(largest) - np.sort(finite[np.isfinite(finite)].astype(float))[-2]) / 2
    ties = np.full(100, tie, np.float32)
    ties[1::2] = np.nextafter(ties[0], np.float32(0))
    x = np.concatenate([beyond, -beyond, ties, [np.inf, -np.inf, np.nan]]).astype(np.float32)
    got = at_random(way, x, name, 7)
    assert same(got, rounded(x, name)) and not np.isfinite(got.astype(np.float32)).all()
    inside = np.full(10_000, np.nextafter(largest, np.float32(0)))
    assert np.isfinite(at_random(way, inside, name, 7).astype(np.float32)).all()


@each_type
@pytest.mark.parametrize("seed", [None, 0, 1, -5, 1 << 40])
def test_numpy_rounds_as_compiled_code_does(name, seed):
    x = RANDOM[:200_000]
    got, word = np.empty(len(x), TYPES[name]), np.array([seed or 0], np.int64)
    reduce.call(lowp.narrow_address(TYPES[name], seed is not None), at(got), at(x), at(word), len(x))
    expected = np.empty_like(got)
    reference.narrow(expected.view(rules.LOW[name]), x, seed)
    assert same(got, expected)


ELSEWHERE = """
import sys
sys.modules["ml_dtypes"] = None
import numpy as np
from mpicoll.kernels import lowp, reduce, rules
for name in ("float16", "float8_e5m2"):
    dtype = rules.LOW[name]
    x = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}")
    wide, total, back = np.empty(len(x), np.float32), np.empty_like(x), np.empty_like(x)
    at = [each.ctypes.data for each in (wide, total, back, x)]
    reduce.call(lowp.widen_address(dtype), at[0], at[3], 0, len(x))
    reduce.call(reduce.address("SUM", dtype), at[1], at[3], at[3], len(x))
    reduce.call(lowp.narrow_address(dtype), at[2], at[0], 0, len(x))
    for each in (wide, total, back):
        sys.stdout.buffer.write(each.tobytes())
"""


def test_a_processor_without_float16_computes_the_same_and_needs_no_ml_dtypes():
    plainest = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    run = subprocess.run([sys.executable, "-c", ELSEWHERE], env=plainest, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode()
    output = run.stdout
    for name in ("float16", "float8_e5m2"):
        x, wide = every(name), every(name).astype(np.float32)
        with np.errstate(all="ignore"):
            expected = wide, rounded(wide + wide, name), x
        for values in expected:
            got, output = np.frombuffer(output[: values.nbytes], values.dtype), output[values.nbytes :]
            assert same(got, values)
    assert not output
