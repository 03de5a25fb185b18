"""The local work of plans: reductions of several operands, whole or strip by strip."""

from __future__ import annotations

import itertools
from functools import reduce as left_to_right

import numpy as np
import pytest
from ml_dtypes import bfloat16

from mpicoll.compression import parse
from mpicoll.engines import local_ops
from mpicoll.engines.kernel_args import KernelArgs
from mpicoll.kernels import lowp, reduce, scale
from mpicoll.kernels.rules import LOW
from mpicoll.plans.plan import CODED, IN, OUT, REDUCE, REDUCE_SCALE, SCRATCH

STRIP = local_ops.STRIP
SIZES = [0, 8, STRIP - 8, STRIP, STRIP + 8, 3 * STRIP + 24]


def reduced(kind, places, memory, nbytes, dtype="f8", op="SUM", divisor=1):
    """Run one row: destination, operands from left to right."""
    rows = np.array([[kind, 0, 0, len(places), -1, 0]])
    segments = np.array([[base, at, nbytes, 0] for base, at in places])
    kind_of = np.dtype(dtype)
    by = np.array([divisor], dtype)
    run(KernelArgs(reduce.address(op, kind_of), scale.address(kind_of) if kind_of.kind in "fc" else 0, by.ctypes.data),
        rows, segments, memory, kind_of.itemsize)


def run(work, rows, segments, memory, itemsize, group=1, group_bytes=0):
    """Run rows as one step of one lane."""
    geometry = np.array([1 << 40, 1, 1, 0, itemsize, group, group_bytes or itemsize, 1 << 40])
    bases = np.array([array.__array_interface__["data"][0] for array in memory])
    tables = local_ops.Tables(rows, segments, geometry, bases, np.array(work, np.int64))
    local_ops.finish_step(tables.address, 0, 0, len(rows), 0, 0, 0)


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("operands", [2, 3, 5])
@pytest.mark.parametrize("divisor", [0, 3])
def test_operands_from_left_to_right(operands, nbytes, divisor):
    """An element of any size is the same sum as in one pass, to the last bit."""
    rng, n = np.random.default_rng(nbytes), nbytes // 8
    values = [rng.standard_normal(n) * 10.0 ** rng.integers(-9, 9, n) for _ in range(operands)]
    memory = [values[0].copy(), np.full(n + 1, 7.0), np.concatenate(values[1:])]
    places = [(OUT, 0), (IN, 0), *((SCRATCH, i * nbytes) for i in range(operands - 1))]
    reduced(REDUCE_SCALE if divisor else REDUCE, places, memory, nbytes, divisor=divisor or 1)
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
    reduced(REDUCE, [(OUT, 0), *places], memory, nbytes)
    assert memory[1].tobytes() == left_to_right(np.add, values).tobytes()


@pytest.mark.parametrize("dtype", ["i1", "u2", "f4", "c8", "c16"])
def test_elements_are_not_cut(dtype, monkeypatch):
    n = 3 * STRIP // np.dtype(dtype).itemsize + 5
    values = [(np.arange(n) % 5 + i).astype(dtype) for i in range(4)]
    memory = [values[0], np.zeros(n, dtype), np.concatenate(values[1:])]
    nbytes = values[0].nbytes
    reduced(REDUCE, [(OUT, 0), (IN, 0), *((SCRATCH, i * nbytes) for i in range(3))], memory, nbytes, dtype)
    assert (memory[1] == left_to_right(np.add, values)).all()


def test_each_operand_is_read_once(monkeypatch):
    """Of more than two, strip by strip: what is between them is written over while it is in the cache."""
    seen = []
    monkeypatch.setattr(local_ops, "call_address", lambda kernel, to, left, right, n: seen.append((to, n)))
    monkeypatch.setattr(local_ops, "reduce_strip", local_ops.reduce_strip.py_func)
    monkeypatch.setattr(local_ops, "place", lambda segments, geometry, bases, s, lane, slot, turn: 1 << 20 * s)
    monkeypatch.setattr(local_ops, "length", lambda segments, geometry, s, lane: 2 * STRIP + 16)
    local_ops.reduce.py_func(None, [0, 0, 0, 0, 8], None, 0, 4, 0, 0, 0, KernelArgs(), False)
    strips = [(at, min(STRIP, 2 * STRIP + 16 - at) // 8) for at in range(0, 2 * STRIP + 16, STRIP)]
    assert seen == list(itertools.chain.from_iterable([(1 + at, n)] * 2 for at, n in strips))


# -- in float32: narrow elements, and codes -------------------------------------------------------------------

COUNTS = [0, 1, 5, local_ops.WIDE_STRIP - 1, local_ops.WIDE_STRIP, 2 * local_ops.WIDE_STRIP + 3]
FLOAT = np.dtype(np.float32)


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("operands", [2, 3, 5])
@pytest.mark.parametrize("divisor", [0, 3])
@pytest.mark.parametrize("at_random", [False, True])
def test_narrow_elements_are_rounded_once(operands, n, divisor, at_random):
    dtype, rng = np.dtype(bfloat16), np.random.default_rng(n)
    values = [rng.standard_normal(n).astype(dtype) for _ in range(operands)]
    if at_random:                                          # sums that are exact, which no rounding changes
        values = [np.round(value.astype(FLOAT)).astype(dtype) for value in values]
        divisor = divisor and 2
    memory = [values[0], np.zeros(n + 1, dtype), np.concatenate(values[1:])]
    places = [(OUT, 0), (IN, 0), *((SCRATCH, i * 2 * n) for i in range(operands - 1))]
    by, seed = np.array([divisor], FLOAT), np.array([5], np.int64)
    work = KernelArgs(0 if at_random else reduce.address("SUM", dtype), scale.address(dtype), by.ctypes.data,
                reduce.address("SUM", FLOAT), scale.address(FLOAT), lowp.widen_address(dtype),
                lowp.narrow_address(dtype, at_random), seed.ctypes.data, True)
    rows = np.array([[REDUCE_SCALE if divisor else REDUCE, 0, 0, len(places), -1, 0]])
    run(work, rows, np.array([[base, at, 2 * n, 0] for base, at in places]), memory, 2)
    total = left_to_right(np.add, [value.astype(FLOAT) for value in values])
    expected = (total / FLOAT.type(divisor) if divisor else total).astype(dtype)
    assert (memory[1][:n].view(np.uint16) == expected.view(np.uint16)).all() and memory[1][n] == 0


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("spec", ["int8", "int4(group=32)", "cast(bfloat16)", "topk(k=2, group=16)"])
@pytest.mark.parametrize("divisor", [0, 3])
def test_codes_are_made_and_reduced(spec, n, divisor):
    codec, rng = parse(spec), np.random.default_rng(n)
    x, y, z = (rng.standard_normal(n).astype(FLOAT) for _ in range(3))
    size = codec.nbytes(n)
    codes = np.concatenate([codec.encode(y), np.zeros(size, np.uint8), codec.encode(z)])
    memory = [x, np.zeros(n + 1, FLOAT), codes]
    params, by = codec.params(), np.array([divisor], FLOAT)
    encode, decode = codec.addresses
    add, by_three = reduce.address("SUM", FLOAT), scale.address(FLOAT)
    work = KernelArgs(add, by_three, by.ctypes.data, add, by_three, decode, encode, params.ctypes.data)
    segments = [
        (CODED, size, size), (IN, 0, 4 * n),                                             # encode x
        (OUT, 0, 4 * n), (CODED, 0, size), (IN, 0, 4 * n), (CODED, 2 * size, size),      # y + x + z
    ]
    rows = np.array([[REDUCE, 0, 0, 2, -1, 0], [REDUCE_SCALE if divisor else REDUCE, 0, 2, 6, -1, 0]])
    run(work, rows, np.array([[*segment, 0] for segment in segments]), memory, 4, codec.group,
        codec.nbytes(codec.group))
    assert (codes[size : 2 * size] == codec.encode(x)).all()
    total = codec.decode(codes[:size].copy(), n) + x + codec.decode(codes[2 * size :].copy(), n)
    assert (memory[1][:n] == (total / FLOAT.type(divisor) if divisor else total)).all() and memory[1][n] == 0
    assert not params[0] and set(LOW) > {"bfloat16"}
