"""Reductions: NumPy's and numba's against the operators' definitions, written out in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from mpicoll import kernels

rules = kernels.rules
GUARD = 0xA5
INTEGERS: list[np.dtype] = [np.dtype(f"{letter}{size}") for letter in "iu" for size in (1, 2, 4, 8)]
X87 = np.finfo("g").nmant == 63
FLOATS: list[np.dtype] = [np.dtype(code) for code in ["f4", "f8", *["g"] * X87]]
COMPLEX: list[np.dtype] = [np.dtype(code) for code in ["c8", "c16", *["G"] * X87]]
UNSUPPORTED = [*["g", "G"] * (not X87), ">i4", "O", "S1", "U1", "M8[s]", "V2", "i4,i4,i4", "i8,i4"]
DTYPES: list[np.dtype] = [*INTEGERS, *FLOATS, *COMPLEX, np.dtype(bool), np.dtype("V1"), *rules.PAIRS.values()]

# The standard's table (section 6.9.2 of MPI 4.1), a second time: the code's own is not trusted here.
LOGICAL = {"LAND", "LOR", "LXOR"}
BITWISE = {"BAND", "BOR", "BXOR"}
STANDARD = {
    "integer": {"MAX", "MIN", "SUM", "PROD"} | LOGICAL | BITWISE,
    "floating": {"MAX", "MIN", "SUM", "PROD"},
    "complex": {"SUM", "PROD"},
    "logical": LOGICAL,
    "byte": BITWISE,
    "pair": {"MAXLOC", "MINLOC"},
}
OPERATORS = sorted(set().union(*STANDARD.values()))


def kind(dtype: np.dtype) -> str:
    names = {"i": "integer", "u": "integer", "f": "floating", "c": "complex", "b": "logical", "V": "byte"}
    return "pair" if dtype.names else names[dtype.kind]


ALLOWED = [(op, dtype) for dtype in DTYPES for op in sorted(STANDARD[kind(dtype)])]
DISALLOWED = [(op, dtype) for dtype in DTYPES for op in OPERATORS if op not in STANDARD[kind(dtype)]]


def name(value: object) -> str:
    if isinstance(value, np.dtype):
        formats = [format for format, *_ in value.fields.values()] if value.fields else [value]
        return "".join(format.str[1:] for format in formats)
    return str(value)


# The definitions, on Python numbers.


def extreme(x: float, y: float, better: Callable[[float, float], float]) -> float:
    return math.nan if x != x or y != y else better(x, y)


def located(x: tuple, y: tuple, better: Callable) -> tuple:
    (u, i), (v, j) = x, y
    if (u != u and v != v) or u == v:
        return u, min(i, j)
    if u != u or v != v:
        return x if u != u else y
    return x if better(u, v) == u else y


DEFINITIONS: dict[str, Callable] = {
    "SUM": lambda x, y: x + y,
    "PROD": lambda x, y: x * y,
    "MAX": lambda x, y: extreme(x, y, max),
    "MIN": lambda x, y: extreme(x, y, min),
    "LAND": lambda x, y: bool(x) and bool(y),
    "LOR": lambda x, y: bool(x) or bool(y),
    "LXOR": lambda x, y: bool(x) != bool(y),
    "BAND": lambda x, y: x & y,
    "BOR": lambda x, y: x | y,
    "BXOR": lambda x, y: x ^ y,
    "MAXLOC": lambda x, y: located(x, y, max),
    "MINLOC": lambda x, y: located(x, y, min),
}


def special(dtype: np.dtype) -> list:
    """Return special values: extremes, zeros, NaN, infinities."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return [0, 1, 2, limits.max, limits.min, limits.max - 1, limits.min + 1, 3, limits.max // 2 + 1]
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        return [0.0, 1.5, -1.5, math.nan, math.inf, -math.inf, float(limits.max), float(limits.tiny), -3.25]
    if dtype.kind == "c":  # whole numbers, on which a fused multiply-add is exact as well
        return [0, 1, 1j, -1, -1j, 3 - 4j, -1000 + 999j]
    return [False, True]


@cache
def operands(dtype: np.dtype, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of special values first, as far as n goes, then random ones."""
    random = np.random.default_rng(20261120)
    if dtype.names:
        a, b = np.zeros(n, dtype), np.zeros(n, dtype)
        value, index = dtype.names
        a[value], b[value] = operands(dtype[value], n)
        a[index], b[index] = random.integers(-2, 3, n), random.integers(-2, 3, n)
        ties = random.random(n) < 0.3
        b[value][ties] = a[value][ties]
        return a, b
    if dtype.kind == "V":
        return tuple(random.integers(0, 256, n, np.uint8).view(dtype) for _ in "ab")  # type: ignore
    values = special(dtype)
    pairs = [(x, y) for x in values for y in values][:n]
    a, b = random_values(dtype, n, random), random_values(dtype, n, random)
    if pairs:
        a[: len(pairs)], b[: len(pairs)] = zip(*pairs)
    return a, b


def random_values(dtype: np.dtype, n: int, random: np.random.Generator) -> np.ndarray:
    if dtype.kind in "iub":
        raw = dtype if dtype.kind != "b" else np.dtype("u1")
        return np.frombuffer(random.bytes(n * dtype.itemsize), raw).astype(dtype)
    if dtype.kind == "f":
        return random.standard_normal(n).astype(dtype)
    return (random.integers(-99, 99, n) + 1j * random.integers(-99, 99, n)).astype(dtype)


@cache
def expected(op: str, dtype: np.dtype, n: int) -> np.ndarray:
    a, b = operands(dtype, n)
    if dtype.kind == "V" and not dtype.names:
        return expected_of(op, np.dtype("u1"), a.view("u1"), b.view("u1")).view(dtype)
    return expected_of(op, dtype, a, b)


def expected_of(op: str, dtype: np.dtype, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # items of long doubles are NumPy's
        results = [DEFINITIONS[op](x, y) for x, y in zip(a.tolist(), b.tolist())]
    if dtype.kind in "iu":
        bits, low = 8 * dtype.itemsize, int(np.iinfo(dtype).min)
        results = [(int(result) - low) % (1 << bits) + low for result in results]
    with np.errstate(over="ignore"):  # the sum or product of two float32, rounded from float64, is exact
        return np.array(results, dtype)


# The two implementations, called alike.


def by_reference(op: str, dst: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    kernels.reference.reduce(op, dst, a, b)


def by_numba(op: str, dst: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    kernel = kernels.reduce.address(op, dst.dtype)
    kernels.reduce.call(kernel, dst.ctypes.data, a.ctypes.data, b.ctypes.data, dst.size)


IMPLEMENTATIONS = [pytest.param(by_reference, id="reference"), pytest.param(by_numba, id="numba")]


class Guarded:
    """A vector among bytes that no kernel may write: before it, after it and between the fields of a pair."""

    def __init__(self, values: np.ndarray, front: int) -> None:
        self.dtype, self.n = values.dtype, values.size
        self.bytes = np.full((front + self.n + 2) * self.dtype.itemsize, GUARD, np.uint8)
        self.array = self.bytes.view(self.dtype)[front : front + self.n]
        self.written = np.zeros(self.bytes.size, bool)
        fields = self.dtype.fields or {"": (self.dtype, 0)}
        for format, offset, *_ in fields.values():
            for byte in range(offset, offset + format.itemsize):
                self.written[front * self.dtype.itemsize + byte :: self.dtype.itemsize][: self.n] = True
        for field in self.dtype.names or [...]:
            self.array[field] = values[field]

    def intact(self) -> bool:
        return bool((self.bytes[~self.written] == GUARD).all())


def same(got: np.ndarray, want: np.ndarray) -> bool:
    if got.dtype.names:
        return all(same(got[field], want[field]) for field in got.dtype.names)
    if got.dtype.kind in "fc":
        return np.array_equal(got, want, equal_nan=True)
    return got.tobytes() == want.tobytes()


@pytest.mark.parametrize("reduce", IMPLEMENTATIONS)
@pytest.mark.parametrize("op, dtype", ALLOWED, ids=name)
def test_reduces(reduce: Callable, op: str, dtype: np.dtype) -> None:
    for n in (0, 1, 7, 1000):
        a, b = operands(dtype, n)
        want = expected(op, dtype, n)
        for alias in ("none", "a", "b"):
            x, y = Guarded(a, front=1), Guarded(b, front=2)
            out = {"none": Guarded(np.zeros(n, dtype), front=3), "a": x, "b": y}[alias]
            reduce(op, out.array, x.array, y.array)
            assert same(out.array, want), (n, alias)
            assert out.intact(), (n, alias)
            for vector, values in ((x, a), (y, b)):
                assert vector is out or same(vector.array, values), (n, alias, "operand changed")
                assert vector.intact(), (n, alias)


@pytest.mark.parametrize("reduce", IMPLEMENTATIONS)
@pytest.mark.parametrize("op, dtype", DISALLOWED, ids=name)
def test_refuses_what_the_standard_does_not_allow(reduce: Callable, op: str, dtype: np.dtype) -> None:
    vector = np.zeros(2, dtype)
    assert not kernels.reduce.allowed(op, kind(dtype))
    with pytest.raises(TypeError) as raised:
        reduce(op, vector, vector, vector)
    message = str(raised.value)
    assert op in message and repr(dtype) in message
    assert all(allowed in message for allowed in STANDARD[kind(dtype)])


@pytest.mark.parametrize("reduce", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", UNSUPPORTED)
def test_dtypes_without_kernels(reduce: Callable, dtype: str) -> None:
    vector = np.zeros(2, dtype)
    with pytest.raises(LookupError, match="no reduction kernel for dtype"):
        reduce("SUM", vector, vector, vector)


def test_the_table_is_the_standards() -> None:
    assert {known: set(ops) for known, ops in rules.ALLOWED.items()} == STANDARD
    assert [kernels.reduce.kind_of(dtype) for dtype in DTYPES] == [kind(dtype) for dtype in DTYPES]
    assert not kernels.reduce.allowed("REPLACE", "integer")


def test_pairs_are_the_c_structs() -> None:
    extents = {"FLOAT_INT": 8, "DOUBLE_INT": 16, "LONG_INT": 16, "2INT": 8, "SHORT_INT": 8}
    assert {pair: dtype.itemsize for pair, dtype in rules.PAIRS.items()} == extents
    renamed = np.dtype([("height", "f8"), ("rank", "i4")], align=True)
    address = kernels.reduce.address
    assert address("MAXLOC", renamed) == address("MAXLOC", rules.PAIRS["DOUBLE_INT"])


def test_kernels_are_shared_and_memoised() -> None:
    address = kernels.reduce.address
    assert address("SUM", np.dtype("i4")) == address("SUM", np.dtype("u4")) == address("SUM", np.dtype("=i4"))
    assert address("MAX", np.dtype("i4")) != address("MAX", np.dtype("u4"))
    assert address("LAND", np.dtype("?")) == address("LAND", np.dtype("u1"))


def test_nonzero_bytes_of_a_bool_are_true() -> None:
    a, b = np.array([2, 2, 0], "u1").view(bool), np.array([1, 4, 8], "u1").view(bool)
    out = np.zeros(3, bool)
    by_numba("LAND", out, a, b)
    assert out.view("u1").tolist() == [1, 1, 0]
