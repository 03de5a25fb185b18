"""PowerSGD: a gradient as a matrix of low rank, sent as two thin factors, with error feedback.

Vogels, Karimireddy, Jaggi, PowerSGD: practical low-rank gradient compression for distributed optimization, 2019.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from mpi4py import MPI

from ..errors import CodecError, ParameterError
from ..kernels.memory import address_of

__all__ = ["PowerSGD"]


class PowerSGD:
    """Sum float32 over the ranks by factors of a rank: `reduce = PowerSGD(comm, rank=2)`, then reduce(gradient).

    A buffer of two dimensions is a matrix; any other of n elements is one of about sqrt(n) rows. Each call sends rank
    columns and rank rows of it, or all of it where that is no more than twice as much. The error of one call has no
    bound, since it depends on the matrix. What was not sent is added in the next call. A buffer is known by its
    address. comm: any communicator with Allreduce.
    """

    def __init__(self, comm: Any, rank: int = 2, seed: int = 1) -> None:
        if type(rank) is not int or rank < 1:
            raise ParameterError(f"rank is {rank!r}; it must be a whole number of at least 1")
        self.comm, self.rank, self.seed = comm, rank, seed
        self.kept: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by address: the second factor and the residual

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes that stand for a buffer of a shape."""
        rows, columns = _matrix(shape)
        factors = self.rank * (rows + columns)
        n = prod(shape)
        return 4 * (n if n <= 2 * factors else factors)

    def __call__(self, buffer: np.ndarray, average: bool = False) -> np.ndarray:
        """Put the sum over the ranks in the place of each rank's buffer, and return it; or the average.

        Raises CodecError for other arrays than contiguous float32, and for a buffer whose size has changed.
        """
        if buffer.dtype != np.float32 or not buffer.flags.c_contiguous:
            raise CodecError(f"PowerSGD takes contiguous float32, and the array is {buffer.dtype}; convert it first")
        n, address = buffer.size, address_of(buffer)
        rows, columns = _matrix(buffer.shape)
        if self.nbytes(buffer.shape) == 4 * n:
            self.comm.Allreduce(MPI.IN_PLACE, buffer)
            buffer /= np.float32(self.comm.size if average else 1)
            return buffer
        if address not in self.kept:
            start = np.random.default_rng(self.seed).standard_normal((columns, self.rank)).astype(np.float32)
            self.kept[address] = start, np.zeros(n, np.float32)
        second, residual = self.kept[address]
        if residual.size != n:
            raise CodecError(f"the buffer has {n} elements and its residual {residual.size}; make another PowerSGD")
        residual += buffer.ravel()
        matrix: np.ndarray = np.zeros((rows, columns), np.float32)
        matrix.reshape(-1)[:n] = residual
        first = self._averaged(matrix @ second)
        first = np.ascontiguousarray(np.linalg.qr(first)[0])
        second = self._averaged(matrix.T @ first)
        result = (first @ second.T).ravel()[:n]
        residual -= result
        self.kept[address] = second, residual
        buffer.reshape(-1)[:] = result if average else result * np.float32(self.comm.size)
        return buffer

    def _averaged(self, factor: np.ndarray) -> np.ndarray:
        total = np.ascontiguousarray(factor)
        self.comm.Allreduce(MPI.IN_PLACE, total)
        total /= np.float32(self.comm.size)
        return total


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the rows and columns of the matrix that a buffer is taken for, the last row padded."""
    if len(shape) == 2:
        return shape[0], shape[1]
    n = prod(shape)
    rows = max(1, round(n**0.5))
    return rows, max(1, -(-n // rows))
