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
    """Sum float32 over the ranks by factors of a low rank: `reduce = PowerSGD(comm, rank=2)`, then reduce(gradient).

    A buffer of two dimensions is a matrix. Another one of n elements becomes a matrix of about sqrt(n) rows. Each call
    sends two factors of `rank` columns, or the whole buffer if that has at most twice their elements. The error of a
    call has no bound, since it depends on the matrix. The next call of the buffer, known by its address, adds it.
    comm: any communicator with Allreduce. Raises ParameterError for a rank below 1.
    """

    def __init__(self, comm: Any, rank: int = 2, seed: int = 1) -> None:
        if type(rank) is not int or rank < 1:
            raise ParameterError(f"rank is {rank!r}; it must be a whole number of at least 1")
        self.comm, self.rank, self.seed = comm, rank, seed
        self.kept: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by address: the second factor and the residual

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes that a call sends for a buffer of this shape."""
        rows, columns = _matrix(shape)
        factors = self.rank * (rows + columns)
        n = prod(shape)
        return 4 * (n if n <= 2 * factors else factors)

    def __call__(self, buffer: np.ndarray, average: bool = False) -> np.ndarray:
        """Replace the buffer by the sum over the ranks, or by the average, and return it.

        Raises CodecError for other arrays than contiguous float32, and for a buffer whose size has changed.
        """
        if buffer.dtype != np.float32 or not buffer.flags.c_contiguous:
            raise CodecError(f"PowerSGD takes contiguous float32, and the array is {buffer.dtype}; convert it first")
        if self.nbytes(buffer.shape) == buffer.nbytes:
            self.comm.Allreduce(MPI.IN_PLACE, buffer)
            buffer /= np.float32(self.comm.size if average else 1)
            return buffer
        mean = self._approximate_mean(buffer)
        buffer.reshape(-1)[:] = mean if average else mean * np.float32(self.comm.size)
        return buffer

    def _approximate_mean(self, buffer: np.ndarray) -> np.ndarray:
        """Return the mean over the ranks of buffer and residual, as a product of two factors.

        It takes one step of power iteration from the buffer's last second factor, and keeps factor and residual.
        """
        n, address = buffer.size, address_of(buffer)
        rows, columns = _matrix(buffer.shape)
        if address not in self.kept:
            start = np.random.default_rng(self.seed).standard_normal((columns, self.rank)).astype(np.float32)
            self.kept[address] = start, np.zeros(n, np.float32)
        second, residual = self.kept[address]
        if residual.size != n:
            raise CodecError(f"the buffer has {n} elements and its residual {residual.size}; make another PowerSGD")
        residual += buffer.ravel()
        matrix: np.ndarray = np.zeros((rows, columns), np.float32)
        matrix.reshape(-1)[:n] = residual
        first = np.ascontiguousarray(np.linalg.qr(self._averaged(matrix @ second))[0])
        second = self._averaged(matrix.T @ first)
        mean: np.ndarray = (first @ second.T).ravel()[:n]
        residual -= mean
        self.kept[address] = second, residual
        return mean

    def _averaged(self, factor: np.ndarray) -> np.ndarray:
        total = np.ascontiguousarray(factor)
        self.comm.Allreduce(MPI.IN_PLACE, total)
        total /= np.float32(self.comm.size)
        return total


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the rows and columns of the matrix of a buffer's elements; its last row may be padded."""
    if len(shape) == 2:
        return shape[0], shape[1]
    n = prod(shape)
    rows = max(1, round(n**0.5))
    return rows, max(1, -(-n // rows))
