"""Run the steps of a program again, on the ranks that are left, when a rank has failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar, cast

from mpi4py import MPI

from ..diagnostics.fault_tolerance import is_rank_failure, missing
from ..errors import FaultToleranceError, ProcFailedError, RevokedError, StepError
from .comm import Comm
from .lifetime import detach

LOG = logging.getLogger("mpicoll")
DONE, SOUND = 1, 2  # flags of a step on a rank: it was completed; it raised no error of its own
MAX_IDLE_RECOVERIES = 2  # recoveries in a row that found no failed rank: the step would fail for ever
Result = TypeVar("Result")
Restore = Callable[[Comm, Sequence[int]], object]


class Outcome(NamedTuple):
    """The outcome of a step: the flags that the ranks agree on, and this rank's result and error."""

    agreed: int
    result: Any
    error: BaseException | None


class resilient:
    """Run steps on a communicator, and where a rank fails, again on a communicator of the ranks that are left.

        @mpicoll.resilient(comm, restore)
        def step(comm, i):
            ...

    Making it is collective, since it duplicates the communicator. Every rank calls step(i). When a step ends, the ranks
    agree on whether it was completed on each of them that is left. If it was, it returns on all. Otherwise they shrink
    the communicator, call restore(comm, failed) with the ranks of the first communicator that have failed since the
    last time, and run the step again. So every rank returns from the same steps. A failure that comes after a step was
    completed is met in the next. `step.resilient.comm` is the current communicator.

    A step that raises an error of its own on a rank ends on all: there the error is raised, elsewhere StepError.

    Where the MPI does not survive a failure, steps run as they are, without agreement; with `required` the constructor
    raises FaultToleranceError instead. The operations are those of ULFM (Bland et al., 2013).
    """

    def __init__(self, comm: MPI.Intracomm, restore: Restore | None = None, required: bool = False) -> None:
        self.survives = not missing()
        if not self.survives and required:
            raise FaultToleranceError(f"no step can run again after a rank has failed: {missing()}")
        if not self.survives and comm.rank == 0:
            LOG.warning("a rank that fails ends this program: %s", missing())
        first = comm if isinstance(comm, Comm) else Comm(comm)
        self.comm: Comm = first.Dup() if self.survives else first  # the program's own is never revoked
        self.first = first.Get_group()
        self.restore = restore
        self.failed = set[int]()  # of which restore does not know yet, as ranks of the first communicator
        self.idle_recoveries = 0

    def __call__(self, step: Callable[..., Result]) -> Callable[..., Result]:
        """Return a function that runs a step by run()."""

        @wraps(step)
        def running(*arguments: Any, **named: Any) -> Result:
            return self.run(step, *arguments, **named)

        running.resilient = self  # type: ignore[attr-defined]
        return running

    def run(self, step: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """Return step(comm, ...), run until it is completed on every rank that is left. Collective.

        Raises StepError where another rank's step raised an error of its own; and the error of a step that fails again
        though no further rank has.
        """
        if not self.survives:
            return step(self.comm, *arguments, **named)
        while True:
            if self.failed:
                self._restore()
            outcome = self._try(lambda: step(self.comm, *arguments, **named))
            if outcome.agreed & DONE:
                self.idle_recoveries = 0
                return cast(Result, outcome.result)
            self._shrink()
            self.idle_recoveries = 0 if self.failed else self.idle_recoveries + 1
            if self.idle_recoveries == MAX_IDLE_RECOVERIES:
                self.idle_recoveries = 0
                try:
                    raise outcome.error or StepError("another rank's step fails though no further rank has")
                finally:
                    del outcome  # as in _try

    def _restore(self) -> None:
        """Call restore until it is completed on every rank that is left."""
        while self.restore is not None:
            if self._try(partial(self.restore, self.comm, sorted(self.failed))).agreed & DONE:
                break
            self._shrink()
        self.failed.clear()

    def _shrink(self) -> None:
        """Replace the communicator by one of the ranks that are left."""
        while True:
            smaller: Comm | None = None
            try:
                smaller = self.comm.Shrink()
            except MPI.Exception as error:  # a rank has failed in it: not every rank need have met that
                if not isinstance(error, (ProcFailedError, RevokedError)) and not is_rank_failure(error, self.comm):
                    raise
            if self._agree(DONE if smaller is not None else 0) & DONE and smaller is not None:
                break
        self._note_failed(self.comm, smaller)
        with suppress(MPI.Exception):
            detach(self.comm)
        self.comm = smaller

    def _note_failed(self, before: Comm, after: Comm) -> None:
        """Add the ranks that are not there any more."""
        groups = before.Get_group(), after.Get_group()
        gone = MPI.Group.Difference(*groups)
        if gone.size:
            self.failed.update(MPI.Group.Translate_ranks(gone, None, self.first))
        for group in (*groups, gone):
            if group not in (MPI.GROUP_EMPTY, MPI.GROUP_NULL):
                group.Free()

    def _try(self, function: Callable[[], Any]) -> Outcome:
        """Call a function, and agree on how it ended. Raises its own error, or StepError, on a new communicator."""
        flags, result = DONE | SOUND, None
        error: BaseException | None = None
        try:
            result = function()
            self.comm._open().queue.drain()  # what it left in flight: other ranks may need this one for it
        except (ProcFailedError, RevokedError) as failure:
            flags, error = SOUND, failure
        except BaseException as raised:  # Ctrl-C and sys.exit() too: the others would wait for this rank
            flags, error = SOUND if is_rank_failure(raised, self.comm) else 0, raised
        if not flags & DONE:
            self.comm.Revoke()  # ranks that wait for this one in the step leave it
        agreed = self._agree(flags)
        if not agreed & SOUND:
            self._shrink()
            try:
                if error is None or flags & SOUND:
                    raise StepError("another rank raised an error of its own in this step")
                raise error
            finally:
                del error  # its traceback holds this frame, and so the step's arguments
        return Outcome(agreed, result, error)

    def _agree(self, flags: int) -> int:
        """Return the flags that all ranks which are left have set."""
        while True:
            self.comm.Ack_failed()
            try:
                return self.comm.Agree(flags)
            except MPI.Exception as error:  # a rank has failed meanwhile: this error is the same on every rank
                if not is_rank_failure(error, self.comm):
                    raise
