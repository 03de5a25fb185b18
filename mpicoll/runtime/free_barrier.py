"""Find out, without waiting, whether every rank has freed a communicator."""

from __future__ import annotations

from mpi4py import MPI


class FreeBarrier:
    """A nonblocking barrier on a private communicator, which each rank enters once it has freed the user's.

    A rank enters when everything that it sent has arrived, so no message is in flight when the barrier completes.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.request: MPI.Request | None = None
        self.failed = False

    def is_complete(self) -> bool:
        """Enter the barrier at the first call. Return whether every rank has entered, False for ever if it failed.

        It fails where a rank aborted a native collective that another rank never started: MPI matches that rank's
        barrier with the collective.
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
