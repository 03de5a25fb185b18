"""Sums of float32 whose bits depend on no order: whole numbers of a unit that all ranks share.

Whole numbers are added without rounding, so every algorithm, chunk size, engine and order of ranks gives the same bits.
Demmel and Nguyen, Fast reproducible floating-point summation, 2013, have the idea with several units; here is one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from ..errors import CodecError
from .codecs import GROUPS, LEVELS, Codec, check_array, parse

__all__ = ["reproducible_sum", "shared_scale_sum"]

BITS = 62  # of a sum of int64, beside its sign and one to spare


def shared_scale_sum(comm: Any, x: np.ndarray, codec: Codec | str = "int8") -> np.ndarray:
    """Return the sum over the ranks of float32, each rounded to a whole number of its group's scale.

    Ranks agree first on each group's scale, its largest element on any rank divided by 127 (7 for int4). Then whole
    numbers travel: of 16 bits while p * 127 fits, else of 32. Each result is off by at most p / 2 scales, and one
    rounding to float32. Raises CodecError, on every rank for what is not finite on any.
    """
    codec = parse(codec) if isinstance(codec, str) else codec
    if codec.name not in LEVELS:
        raise CodecError(f"a scale is shared by {' and '.join(LEVELS)}; {codec} has none (groups: {GROUPS})")
    check_array(codec, x)
    levels, groups = LEVELS[codec.name], -(-x.size // codec.group)
    padded = np.zeros(groups * codec.group, np.float32)
    padded[: x.size] = x.ravel()
    rows = padded.reshape(groups, codec.group)
    largest = np.maximum(rows.max(axis=1, initial=0), -rows.min(axis=1, initial=0))
    comm.Allreduce(MPI.IN_PLACE, largest, op=MPI.MAX)
    _check_finite(largest)
    scale = (largest.astype(np.float64) / levels)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        numbers = np.where(scale > 0, np.rint(rows / scale), 0)
    whole = numbers.astype(np.int16 if comm.size * levels < 1 << 15 else np.int32)
    comm.Allreduce(MPI.IN_PLACE, whole)
    result: np.ndarray = (whole * scale).astype(np.float32).ravel()[: x.size]
    return result.reshape(x.shape)


def reproducible_sum(comm: Any, rows: np.ndarray) -> np.ndarray:
    """Return the sum over the ranks, and over the rows of each, of float32: (rows, n) or (n,) to (n,).

    The bits are equal for any way to share the same rows among any number of ranks, in any order, on any algorithm and
    MPI. They are not for other rows that have the same sum. Each element of a row is rounded to a whole number of
    2^(e - 62 + b): 2^e is above every element of any row, and 2^b above the number of all rows. So a result is off by
    at most half of that unit for each row, and one rounding to float32. Raises CodecError, on every rank for what is
    not finite on any.
    """
    if rows.dtype != np.float32 or rows.ndim not in (1, 2):
        raise CodecError(f"the rows are of {rows.dtype} with {rows.ndim} dimensions; pass float32 of (rows, n) or (n,)")
    rows = np.atleast_2d(rows)
    largest = np.array([np.abs(rows).max(initial=0)], np.float32)
    comm.Allreduce(MPI.IN_PLACE, largest, op=MPI.MAX)
    number = np.array([len(rows)], np.int64)
    comm.Allreduce(MPI.IN_PLACE, number)
    _check_finite(largest)
    power = int(np.frexp(largest[0])[1]) - BITS + int(number[0]).bit_length()
    whole = np.zeros(rows.shape[1], np.int64)
    for row in rows:
        whole += np.rint(np.ldexp(row.astype(np.float64), -power)).astype(np.int64)
    comm.Allreduce(MPI.IN_PLACE, whole)
    return _rounded(whole, power)


def _rounded(whole: np.ndarray, power: int) -> np.ndarray:
    """Return whole numbers times a power of two as float32, rounded once: int64 to float64 would round before."""
    sizes = np.abs(whole)
    spare = np.maximum(np.frexp(sizes.astype(np.float64))[1] - 53, 0).astype(np.int64)
    lost = (sizes & ((np.int64(1) << spare) - 1)) != 0
    odd = (sizes >> spare) | lost  # the last bit stands for all that is cut off: 53 bits are far more than 24
    exact = np.ldexp(odd.astype(np.float64), (spare + power).astype(np.int32))
    sums: np.ndarray = np.copysign(exact, np.where(whole < 0, -1.0, 1.0)).astype(np.float32)
    return sums


def _check_finite(largest: np.ndarray) -> None:
    if not np.isfinite(largest).all():
        raise CodecError("a rank has NaN or infinity in what is to be summed")
