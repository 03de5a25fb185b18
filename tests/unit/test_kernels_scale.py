"""Scaling: NumPy's and numba's against correctly rounded division, worked out in fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from unit.test_kernels_reduce import DTYPES, UNSUPPORTED, X87, Guarded, name, same

from mpicoll import kernels

SCALABLE = [np.dtype(code) for code in ("fdFDgG" if X87 else "fdFD")]
DIVISORS = [1, 2, 3, 5, 7, 10, 49, 641]  # 49: x * (1 / 49) is not x / 49 for many small x


def by_reference(dst, a, b):
    kernels.reference.scale(dst, a, b)


def by_numba(dst, a, b):
    kernel = kernels.scale.address(dst.dtype)
    kernels.reduce.call(kernel, dst.ctypes.data, a.ctypes.data, b.ctypes.data, dst.size)


IMPLEMENTATIONS = [pytest.param(by_reference, id="reference"), pytest.param(by_numba, id="numba")]


def rounded(x: np.floating, by: int) -> np.floating:
    """Return the number of x's dtype nearest to x / by, among the neighbours of a guess; ties do not occur here."""
    if not np.isfinite(x):
        return x
    of_dtype = type(x)
    guess = x / of_dtype(by)
    near = [guess, np.nextafter(guess, of_dtype(math.inf)), np.nextafter(guess, of_dtype(-math.inf))]
    exact = Fraction(*x.as_integer_ratio()) / by
    return min(near, key=lambda y: abs(Fraction(*y.as_integer_ratio()) - exact))


def numbers(dtype: np.dtype, n: int) -> np.ndarray:
    """Return small whole numbers, others, and values that are not numbers."""
    random = np.random.default_rng(20261121)
    parts = np.concatenate([np.arange(-n, n), random.standard_normal(2 * n) * 1e5, [math.inf, -math.inf, math.nan]])
    parts = parts.astype(np.zeros(0, dtype).real.dtype)
    return np.stack([parts, parts[::-1]], 1).ravel().view(dtype) if dtype.kind == "c" else parts


@pytest.mark.parametrize("scale", IMPLEMENTATIONS)
@pytest.mark.parametrize("by", DIVISORS)
@pytest.mark.parametrize("dtype", SCALABLE, ids=name)
def test_divides_and_rounds_correctly(scale, by, dtype):
    a = numbers(dtype, 60)
    parts = a.view(a.real.dtype)
    want = np.array([rounded(x, by) for x in parts], parts.dtype).view(dtype)
    for n in (0, 1, 7, a.size):
        for in_place in (False, True):
            x, divisor = Guarded(a[:n], front=1), Guarded(np.array([by], dtype), front=2)
            out = x if in_place else Guarded(np.zeros(n, dtype), front=3)
            scale(out.array, x.array, divisor.array)
            assert same(out.array, want[:n]), (n, in_place)
            assert in_place or same(x.array, a[:n])
            assert all(v.intact() for v in (x, out, divisor))


@pytest.mark.parametrize("scale", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in SCALABLE], ids=name)
def test_types_without_an_average_are_refused(scale, dtype):
    vector = np.zeros(2, dtype)
    with pytest.raises(TypeError, match="cannot be averaged; floating and complex ones can"):
        scale(vector, vector, vector)


@pytest.mark.parametrize("scale", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", UNSUPPORTED)
def test_dtypes_without_kernels(scale, dtype):
    vector = np.zeros(2, dtype)
    with pytest.raises(LookupError, match="no reduction kernel for dtype"):
        scale(vector, vector, vector)


@pytest.mark.parametrize("code", "gG")
def test_the_reference_divides_long_doubles_too(code):
    a, out = np.arange(1, 9).astype(code), np.zeros(8, code)
    kernels.reference.divide(out, a, 3)
    assert (out.real == np.arange(1, 9) / np.longdouble(3)).all()
