"""Broadcast a NaN/Inf flag for quantized collectives whose results differ by rank."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from ..kernels.codecs import PROBLEMS
from .call import Call
from .count_exchange import NumbersExchange

_RESULTS_DIFFER = ("reduce_scatter", "alltoall", "alltoallv", "alltoallw")  # from rank to rank


def needs_nonfinite_exchange(call: Call) -> bool:
    """Return whether a call needs the exchange. In other collectives every rank receives codes with the flag."""
    return call.prepared.codec is not None and call.collective in _RESULTS_DIFFER


def exchange_nonfinite(comm: MPI.Comm, tags: int, call: Call, params: np.ndarray) -> NumbersExchange:
    """Return a stage after the plan, on its communicator and tags, that ORs the first word of params over all ranks."""

    def set_flag(flags: np.ndarray) -> None:
        params[PROBLEMS] = flags.any()

    return NumbersExchange(comm, tags, call.prepared.choice.engine, params[PROBLEMS : PROBLEMS + 1].copy(), set_flag)
