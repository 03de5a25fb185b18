"""Broadcast a NaN/Inf flag for quantized collectives whose results differ by rank."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from ..engines.load import engine_named
from ..kernels.codecs import PROBLEMS
from ..plans.plan import ALIGN
from ..progress.stages import Running
from .call import Call
from .count_exchange import plan_of_numbers

_RESULTS_DIFFER = ("reduce_scatter", "alltoall", "alltoallv", "alltoallw")  # from rank to rank


def needs_nonfinite_exchange(call: Call) -> bool:
    """Return whether a call needs the exchange. In other collectives the codes carry the flag to every rank."""
    return call.prepared.codec is not None and call.collective in _RESULTS_DIFFER


class NonFiniteExchange(Running):
    """A stage after the plan, on its communicator and tags. It ORs the first word of params over all ranks."""

    def __init__(self, comm: MPI.Comm, tags: int, call: Call, params: np.ndarray) -> None:
        self.params, self.mine = params, params[PROBLEMS : PROBLEMS + 1].copy()
        self.all = np.empty(comm.size, np.int64)
        plan = plan_of_numbers(comm.size, comm.rank, 1)
        self.scratch = np.empty(plan.scratch_bytes + ALIGN, np.uint8)
        at = [MPI.Get_address(x) for x in (self.mine, self.all, self.scratch)]
        super().__init__(engine_named(call.prepared.choice.engine).Execution(plan, comm))
        self.execution.bind(tags, (at[0], at[1], -(-at[2] // ALIGN) * ALIGN))

    def advance(self, seconds: float) -> bool:
        """Progress for at most so many seconds; return whether it is complete."""
        if not self.execution.advance(seconds):
            return False
        self.over = True
        self.params[PROBLEMS] = self.all.any()
        return True
