"""Test, without blocking, whether every rank has freed a communicator."""

from __future__ import annotations

from mpi4py import MPI


class FreeBarrier:
    """A nonblocking barrier on a private communicator, which a rank enters after it has freed the user's communicator.

    A rank enters when all its messages have arrived, so no message is in flight when the barrier completes.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.request: MPI.Request | None = None
        self.failed = False

    def is_complete(self) -> bool:
        """Enter the barrier at the first call. Return whether every rank has entered; always False once it failed.

        It fails if a rank aborted a native collective that another rank never started: MPI matches the other rank's
        barrier with that collective.
        """
        if self.comm.size == 1:
            return True
        if self.failed:
            return False
        try:
            if self.request is None:
                self.request = self.comm.Ibarrier()
            return self.request.Test()
        except MPI.Exception:
            self.failed = True
            return False
