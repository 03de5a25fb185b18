"""Run the steps of a program again, on the surviving ranks, when a rank has failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar, cast

from mpi4py import MPI

from ..diagnostics.fault_tolerance import agree_on, is_rank_failure, missing
from ..errors import FaultToleranceError, ProcFailedError, RevokedError, StepError
from .comm import Comm
from .lifetime import detach

LOG = logging.getLogger("mpicoll")
DONE, SOUND = 1, 2  # flags of a step on a rank: it completed; it raised no error of its own
MAX_IDLE_RECOVERIES = 2  # consecutive recoveries without a failed rank, after which the step's error is raised
Result = TypeVar("Result")
Restore = Callable[[Comm, Sequence[int]], object]


class Outcome(NamedTuple):
    """The outcome of a step: the flags that the ranks agree on, and this rank's result and error."""

    agreed: int
    result: Any
    error: BaseException | None


class resilient:
    """Run steps on a communicator; if a rank fails, run the step again on a communicator of the surviving ranks.

        @mpicoll.resilient(comm, restore)
        def step(comm, i):
            ...

    The constructor is collective, since it duplicates the communicator. Every rank calls step(i). When a step ends, the
    surviving ranks agree on whether it completed on all of them. If so, step(i) returns. Otherwise the ranks shrink the
    communicator, call restore(comm, failed) with the ranks of the first communicator that have failed since the last
    restore, and run the step again. So every rank returns from the same steps. A failure after a step has completed is
    handled in the next step. `step.resilient.comm` is the current communicator.

    If a step raises an error of its own on a rank, it ends on all ranks: that rank raises the error, the others raise
    StepError.

    If MPI does not survive failures, steps run without agreement; with `required` the constructor raises
    FaultToleranceError instead. The operations are those of ULFM (Bland et al., 2013).
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
        self.failed = set[int]()  # ranks of the first communicator that were not passed to restore yet
        self.idle_recoveries = 0

    def __call__(self, step: Callable[..., Result]) -> Callable[..., Result]:
        """Return a function that calls run() with this step."""

        @wraps(step)
        def running(*arguments: Any, **named: Any) -> Result:
            return self.run(step, *arguments, **named)

        running.resilient = self  # type: ignore[attr-defined]
        return running

    def run(self, step: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """Return step(comm, ...), run until it completes on every surviving rank. Collective.

        Raises StepError if another rank's step raised an error of its own, and the error of a step that fails
        repeatedly although no further rank fails.
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
        """Call restore until it completes on every surviving rank."""
        while self.restore is not None:
            if self._try(partial(self.restore, self.comm, sorted(self.failed))).agreed & DONE:
                break
            self._shrink()
        self.failed.clear()

    def _shrink(self) -> None:
        """Replace the communicator by one of the surviving ranks."""
        while True:
            smaller: Comm | None = None
            try:
                smaller = self.comm.Shrink()
            except MPI.Exception as error:  # a rank failed during Shrink, which may have succeeded elsewhere
                if not isinstance(error, (ProcFailedError, RevokedError)) and not is_rank_failure(error, self.comm):
                    raise
            if agree_on(self.comm, DONE if smaller is not None else 0) & DONE and smaller is not None:
                break
        self._note_failed(self.comm, smaller)
        with suppress(MPI.Exception):
            detach(self.comm)
        self.comm = smaller

    def _note_failed(self, before: Comm, after: Comm) -> None:
        """Add the ranks of `before` that are not in `after` to the failed ranks."""
        groups = before.Get_group(), after.Get_group()
        lost = MPI.Group.Difference(*groups)
        if lost.size:
            self.failed.update(MPI.Group.Translate_ranks(lost, None, self.first))
        for group in (*groups, lost):
            if group not in (MPI.GROUP_EMPTY, MPI.GROUP_NULL):
                group.Free()

    def _try(self, function: Callable[[], Any]) -> Outcome:
        """Call a function, and agree on its outcome. Raises the function's error or StepError, after shrinking."""
        flags, result = DONE | SOUND, None
        error: BaseException | None = None
        try:
            result = function()
            self.comm._open().queue.drain()  # operations that the step left in flight: other ranks may wait for them
        except (ProcFailedError, RevokedError) as failure:
            flags, error = SOUND, failure
        except BaseException as raised:  # Ctrl-C and sys.exit() too: other ranks would wait for this one
            flags, error = SOUND if is_rank_failure(raised, self.comm) else 0, raised
        if not flags & DONE:
            self.comm.Revoke()  # so that ranks that wait for this one leave the step
        agreed = agree_on(self.comm, flags)
        if not agreed & SOUND:
            self._shrink()
            try:
                if error is None or flags & SOUND:
                    raise StepError("another rank raised an error of its own in this step")
                raise error
            finally:
                del error  # its traceback refers to this frame, and so to the step's arguments
        return Outcome(agreed, result, error)
