"""Tell all ranks of a collective on codes that one of them met NaN or infinity, where not all get what it sends."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from ..engines.load import engine_named
from ..kernels.codecs import PROBLEMS
from ..plans.plan import ALIGN
from ..runtime.operation import Running
from .count_exchange import plan_of_numbers
from .prepare import Call

_APART = ("reduce_scatter", "alltoall", "alltoallv", "alltoallw")  # of whose results each rank has its own part


def are_told(call: Call) -> bool:
    """Return whether ranks have to tell each other: in the other collectives the codes do."""
    return call.prepared.codec is not None and call.collective in _APART


class Telling(Running):
    """A stage behind the plan, on its communicator and tags: the first word of params is that of any rank then."""

    def __init__(self, comm: MPI.Comm, tags: int, call: Call, params: np.ndarray) -> None:
        self.params, self.mine = params, params[PROBLEMS : PROBLEMS + 1].copy()
        self.all = np.empty(comm.size, np.int64)
        plan = plan_of_numbers(comm.size, comm.rank, 1)
        self.scratch = np.empty(plan.scratch_bytes + ALIGN, np.uint8)
        at = [MPI.Get_address(x) for x in (self.mine, self.all, self.scratch)]
        super().__init__(engine_named(call.prepared.choice.engine).Execution(plan, comm))
        self.execution.bind(tags, (at[0], at[1], -(-at[2] // ALIGN) * ALIGN))

    def advance(self, seconds: float) -> bool:
        """Go on for at most so long; True when all have told."""
        if not self.execution.advance(seconds):
            return False
        self.over = True
        self.params[PROBLEMS] = self.all.any()
        return True
