"""The local work of plans: folds of several operands, whole or strip by strip."""

from __future__ import annotations

import itertools
from functools import reduce as left_to_right

import numpy as np
import pytest

from mpicoll.engines import local_ops
from mpicoll.kernels import reduce, scale
from mpicoll.plans.plan import FOLD, IN, LAST, OUT, SCRATCH

STRIP = local_ops.STRIP
SIZES = [0, 8, STRIP - 8, STRIP, STRIP + 8, 3 * STRIP + 24]


def folded(kind, places, memory, nbytes, dtype="f8", op="SUM", divisor=1):
    """Run one row: destination, operands from left to right."""
    rows = np.array([[kind, 0, 0, len(places), -1, 0]])
    segments = np.array([[base, at, nbytes, 0] for base, at in places])
    kind_of = np.dtype(dtype)
    geometry = np.array([1 << 40, 1, 1, 0, kind_of.itemsize])
    by = np.array([divisor], dtype)
    kernels = reduce.address(op, kind_of), scale.address(kind_of) if kind_of.kind in "fc" else 0, by.ctypes.data
    bases = np.array([each.ctypes.data for each in memory])
    tables = local_ops.Tables(rows, segments, geometry, bases)
    local_ops.finish_step(tables.address, 0, 0, 1, 0, 0, 0, *kernels)


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("operands", [2, 3, 5])
@pytest.mark.parametrize("divisor", [0, 3])
def test_operands_from_left_to_right(operands, nbytes, divisor):
    """Whatever the size, an element is the same sum as in one go, to the last bit."""
    rng, n = np.random.default_rng(nbytes), nbytes // 8
    values = [rng.standard_normal(n) * 10.0 ** rng.integers(-9, 9, n) for _ in range(operands)]
    memory = [values[0].copy(), np.full(n + 1, 7.0), np.concatenate(values[1:])]
    places = [(OUT, 0), (IN, 0), *((SCRATCH, i * nbytes) for i in range(operands - 1))]
    folded(LAST if divisor else FOLD, places, memory, nbytes, divisor=divisor or 1)
    want = left_to_right(np.add, values)
    assert memory[1][:n].tobytes() == (want / divisor if divisor else want).tobytes() and memory[1][n] == 7
    assert memory[0].tobytes() == values[0].tobytes()


@pytest.mark.parametrize(("operands", "which"), [(k, i) for k in (2, 3, 4) for i in range(k)])
@pytest.mark.parametrize("nbytes", SIZES)
def test_a_destination_that_is_an_operand(operands, which, nbytes):
    """It is read before it is written, and the first operand, which is scratch then, may be written over."""
    rng, n = np.random.default_rng(operands), nbytes // 8
    values = [rng.standard_normal(n) for _ in range(operands)]
    memory = [np.zeros(n), values[which].copy(), np.concatenate(values)]
    places = [(SCRATCH, i * nbytes) for i in range(operands)]
    places[which] = OUT, 0
    folded(FOLD, [(OUT, 0), *places], memory, nbytes)
    assert memory[1].tobytes() == left_to_right(np.add, values).tobytes()


@pytest.mark.parametrize("dtype", ["i1", "u2", "f4", "c8", "c16"])
def test_elements_are_not_cut(dtype, monkeypatch):
    n = 3 * STRIP // np.dtype(dtype).itemsize + 5
    values = [(np.arange(n) % 5 + i).astype(dtype) for i in range(4)]
    memory = [values[0], np.zeros(n, dtype), np.concatenate(values[1:])]
    nbytes = values[0].nbytes
    folded(FOLD, [(OUT, 0), (IN, 0), *((SCRATCH, i * nbytes) for i in range(3))], memory, nbytes, dtype)
    assert (memory[1] == left_to_right(np.add, values)).all()


def test_each_operand_is_read_once(monkeypatch):
    """Of more than two, strip by strip: what is between them is written over while it is in the cache."""
    seen = []
    monkeypatch.setattr(local_ops, "call_address", lambda kernel, to, left, right, n: seen.append((to, n)))
    monkeypatch.setattr(local_ops, "fold_strip", local_ops.fold_strip.py_func)
    monkeypatch.setattr(local_ops, "place", lambda segments, geometry, bases, s, lane, slot, turn: 1 << 20 * s)
    monkeypatch.setattr(local_ops, "length", lambda segments, geometry, s, lane: 2 * STRIP + 16)
    local_ops.fold.py_func(None, [0, 0, 0, 0, 8], None, 0, 4, 0, 0, 0, 0, 0, 0)
    strips = [(at, min(STRIP, 2 * STRIP + 16 - at) // 8) for at in range(0, 2 * STRIP + 16, STRIP)]
    assert seen == list(itertools.chain.from_iterable([(1 + at, n)] * 2 for at, n in strips))
