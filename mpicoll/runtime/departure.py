"""Find out, without waiting, whether every rank has freed a communicator."""

from __future__ import annotations

from mpi4py import MPI


class Departure:
    """A barrier of the ranks that have left, on a private communicator. Nobody waits for it.

    A rank joins it when everything that it sent has arrived. So nothing is on its way when the barrier is over.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.barrier: MPI.Request | None = None
        self.is_in_vain = False  # whether it cannot end

    def is_over(self) -> bool:
        """Join, if this rank has not, and return whether every rank has. Return False for ever where that is in vain.

        It is, where a rank broke off a call of MPI's that another never made: the barrier of that one meets the call.
        """
        if self.comm.size == 1:
            return True
        if self.is_in_vain:
            return False
        try:
            if self.barrier is None:
                self.barrier = self.comm.Ibarrier()
            return self.barrier.Test()
        except MPI.Exception:
            self.is_in_vain = True
            return False
