"""Run the steps of a program again, on the ranks that are left, when a rank has failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, TypeVar, cast

from mpi4py import MPI

from ..errors import FaultToleranceError, ProcFailedError, RevokedError, StepError
from ..runtime.fault_tolerance import failed_ranks, is_rank_failure, missing
from .comm import Comm

LOG = logging.getLogger("mpicoll")
DONE, SOUND, WHOLE = 1, 2, 4  # a step that was completed, that raised no error of its own, and met no failed rank
Result = TypeVar("Result")
Restore = Callable[[Comm, Sequence[int]], object]


class resilient:
    """Run steps on a communicator, and where a rank fails, again on a communicator of the ranks that are left.

        @mpicoll.resilient(comm, restore)
        def step(comm, i):
            ...

    Every rank calls step(i), and `step.resilient.comm` is the communicator in force. When a step ends, the ranks agree
    on whether it was completed on each of them that is left. Where a rank has failed, they shrink the communicator and
    call restore(comm, failed) with it and the ranks, of the first communicator, that have failed since the last time.
    Then a step that was not completed everywhere runs again. So every rank returns from the same steps.

    A step that raises an error of its own on a rank ends on all: there the error is raised, elsewhere StepError.

    Where the MPI does not go on after a failure, steps run as they are; `required` raises FaultToleranceError instead.
    The operations are those of ULFM (Bland et al., 2013).
    """

    def __init__(self, comm: MPI.Intracomm, restore: Restore | None = None, required: bool = False) -> None:
        self.first: MPI.Intracomm = comm
        self.comm = comm if isinstance(comm, Comm) else Comm(comm)
        self.restore = restore
        self.survives = not missing()
        if not self.survives and required:
            raise FaultToleranceError(f"no step can run again after a rank has failed: {missing()}")
        if not self.survives and comm.rank == 0:
            LOG.warning("a rank that fails ends this program: %s", missing())

    def __call__(self, step: Callable[..., Result]) -> Callable[..., Result]:
        """Return a function that runs a step by run()."""

        @wraps(step)
        def running(*arguments: Any, **named: Any) -> Result:
            return self.run(step, *arguments, **named)

        running.resilient = self  # type: ignore[attr-defined]
        return running

    def run(self, step: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """Return step(comm, ...), run until it is completed on every rank that is left. Collective.

        Raises StepError where another rank's step raised an error of its own.
        """
        if not self.survives:
            return step(self.comm, *arguments, **named)
        while True:
            agreed, result = self._try(lambda: step(self.comm, *arguments, **named))
            if not (agreed & DONE and agreed & WHOLE):
                self._recover()
            if agreed & DONE:
                return cast(Result, result)

    def _recover(self) -> None:
        """Shrink the communicator and restore, until that is done without another failure."""
        before = self.comm.Get_group()
        while True:
            self.comm = self.comm.Shrink()
            failed = self._gone_since(before)
            if self.restore is None:
                break
            agreed, _ = self._try(partial(self.restore, self.comm, failed))
            if agreed & DONE and agreed & WHOLE:
                break
        before.Free()

    def _gone_since(self, before: MPI.Group) -> list[int]:
        """Return the ranks of a group that are not in the communicator any more, as ranks of the first one."""
        now, first = self.comm.Get_group(), self.first.Get_group()
        gone = MPI.Group.Difference(before, now)
        ranks = sorted(MPI.Group.Translate_ranks(gone, None, first)) if gone.size else []
        for group in (now, first, gone):
            group.Free()
        return ranks

    def _try(self, function: Callable[[], Result]) -> tuple[int, Result | None]:
        """Call a function; return the flags that the ranks agree on, and its result. Raises its error, or StepError."""
        flags = DONE | SOUND | WHOLE
        result: Result | None = None
        error: Exception | None = None
        try:
            result = function()
        except (ProcFailedError, RevokedError):
            flags &= ~DONE
        except Exception as raised:
            flags &= ~DONE if is_rank_failure(raised, self.comm) else ~(DONE | SOUND)
            error = raised
        if not flags & DONE:
            self.comm.Revoke()  # ranks that still wait for this one go on
        if failed_ranks(self.comm):
            flags &= ~WHOLE
        agreed = self._agree(flags)
        if agreed & SOUND:
            return agreed, result
        if error is not None:
            raise error
        raise StepError("another rank raised an error in this step, which is printed or handled there")

    def _agree(self, flags: int) -> int:
        """Return the bits that all ranks which are left have set."""
        while True:
            self.comm.Ack_failed()
            try:
                return self.comm.Agree(flags)
            except MPI.Exception as error:  # one has failed meanwhile: that error is the same on every rank
                if not is_rank_failure(error, self.comm):
                    raise
                flags &= ~WHOLE
