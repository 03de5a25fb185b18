"""Every error mpicoll raises.

Each error is a `MpicollError` and also what mpi4py raises for the same mistake, so a program that already
catches `ValueError` or `MPI.Exception` around a collective keeps working.  In brackets: the other base
classes, and after the colon the MPI error class that `Get_error_class()` reports.

    MpicollError
        ArgumentError [TypeError]                     an argument of the wrong type: a root that is no integer
        BufferFormError                               a buffer argument mpi4py would refuse
            NotABufferError [TypeError]               neither a buffer nor a list or tuple describing one
            MessageSpecError [ValueError]             a list that does not add up: items, count, displacement
            TypecodeError [KeyError]                  no MPI datatype for this format or typecode
            BufferAccessError [BufferError, ValueError]   read-only, not contiguous, foreign byte order
            BufferTooSmallError [ValueError]          the memory ends before the elements do
        MPIError [MPI.Exception: ERR_OTHER]           an error that the MPI library would report
            RootError [: ERR_ROOT]                    a root that is not a rank of the communicator
                RootRangeError [OverflowError, ValueError: ERR_ROOT]   a root that is no C int: too large, or NaN
            RankError [: ERR_RANK]                    a rank that is not in the communicator
            OperatorError [: ERR_OP]                  an operator that does not take this datatype
            CommError [: ERR_COMM]                    a null, freed or otherwise unfit communicator
            RequestError [: ERR_REQUEST]              a request used in a way its state does not allow
            OverlapError [: ERR_BUFFER]               send and receive memory overlap without MPI.IN_PLACE
            InPlaceError [TypeError, ValueError: ERR_BUFFER]   MPI.IN_PLACE where MPI does not have it
            DatatypeError [ValueError: ERR_TYPE]      send and receive datatypes differ, or a null datatype
            CountMismatch [ValueError: ERR_TRUNCATE]  counts of one rank that do not fit together
            MessageLengthError [: ERR_TRUNCATE]       a message that another rank gave another length
            FaultToleranceError [NotImplementedError: ERR_UNSUPPORTED_OPERATION]   this run does not survive a rank
            ProcFailedError [: ERR_PROC_FAILED]       ranks have failed; says which, and on which hosts
            RevokedError [: ERR_REVOKED]              the communicator was revoked
        UnknownAlgorithm [LookupError, ValueError]    no algorithm of that name; says which names are near
        CodecError [ValueError]                       input a codec cannot encode: not float32, NaN, infinity
        ParameterError [ValueError]                   a parameter an algorithm does not have, or out of its range
        PreconditionError [ValueError]                an algorithm that cannot serve this call
        TuningError [ValueError]                      a tuning table that cannot be used; says where it is wrong
        TrainingError [ValueError]                    a model, a grid or a loss that cannot be trained with
        TimelineError [ValueError]                    a file that is no timeline of mpicoll's; says where it is wrong
        MismatchError [RuntimeError]                  check mode: the ranks called different things
        VerifyError [AssertionError]                  a schedule that is not a correct collective
        EngineError [RuntimeError]                    an engine that cannot run a plan
        StepError [RuntimeError]                      another rank's step raised an error: see mpicoll.resilient
        StallError [TimeoutError, RuntimeError]       an aborted call: timed out, or unable to complete

This module never imports mpi4py: proofs and pictures need no MPI.  `MPIError` is born a plain `RuntimeError`
(as is `MPI.Exception`); the modules that use MPI call `join_mpi`, which gives it `MPI.Exception` as a base.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar

__all__ = [
    "ArgumentError",
    "BufferAccessError",
    "BufferFormError",
    "BufferTooSmallError",
    "CodecError",
    "CommError",
    "CountMismatch",
    "DatatypeError",
    "EngineError",
    "FaultToleranceError",
    "InPlaceError",
    "MPIError",
    "MessageLengthError",
    "MessageSpecError",
    "MismatchError",
    "MpicollError",
    "NotABufferError",
    "OperatorError",
    "OverlapError",
    "ParameterError",
    "PreconditionError",
    "ProcFailedError",
    "RankError",
    "RequestError",
    "RevokedError",
    "RootError",
    "RootRangeError",
    "StallError",
    "StepError",
    "TimelineError",
    "TrainingError",
    "TuningError",
    "TypecodeError",
    "UnknownAlgorithm",
    "VerifyError",
]


class MpicollError(Exception):
    """Any error of mpicoll.  The callers that know them set `rank` and `operation`, which then lead the message."""

    rank: int | None = None
    operation: str | None = None

    def __init__(self, *args: object) -> None:
        Exception.__init__(self, *args)  # not super(): MPI.Exception takes an integer

    def message(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"rank {self.rank}: "
        operation = "" if self.operation is None else f"{self.operation}: "
        return f"{rank}{operation}{self.message()}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class ArgumentError(MpicollError, TypeError):
    """An argument of the wrong type."""


class BufferFormError(MpicollError):
    """A buffer argument mpi4py would refuse."""


class NotABufferError(BufferFormError, TypeError):
    """Neither a buffer nor a list or tuple describing one."""


class MessageSpecError(BufferFormError, ValueError):
    """A `[buffer, count, ...]` list that does not add up."""


class TypecodeError(BufferFormError, KeyError):
    """No MPI datatype for this format or typecode."""


class BufferAccessError(BufferFormError, BufferError, ValueError):
    """Memory that cannot be used: read-only, not contiguous, foreign byte order, not on the CPU."""


class BufferTooSmallError(BufferFormError, ValueError):
    """The memory ends before the elements do."""


class MPIError(MpicollError, RuntimeError):
    """An error that mpi4py leaves to the MPI library to report; an `MPI.Exception` once MPI is in use."""

    mpi_class: ClassVar[str] = "ERR_OTHER"

    def __int__(self) -> int:
        """Return the MPI error class, from which `MPI.Exception` derives everything else."""
        return int(getattr(sys.modules["mpi4py.MPI"], self.mpi_class))

    def __bool__(self) -> bool:
        return True


class RootError(MPIError):
    """A root that is not a rank of the communicator."""

    mpi_class = "ERR_ROOT"


class RootRangeError(RootError, OverflowError, ValueError):
    """A root that is no C int: too large, infinite or NaN."""


class RankError(MPIError):
    """A rank that is not in the communicator."""

    mpi_class = "ERR_RANK"


class OperatorError(MPIError):
    """An operator that does not take this datatype."""

    mpi_class = "ERR_OP"


class CommError(MPIError):
    """A null, freed or otherwise unfit communicator."""

    mpi_class = "ERR_COMM"


class RequestError(MPIError):
    """A request used in a way its state does not allow."""

    mpi_class = "ERR_REQUEST"


class OverlapError(MPIError):
    """Send and receive memory overlap without MPI.IN_PLACE."""

    mpi_class = "ERR_BUFFER"


class InPlaceError(MPIError, TypeError, ValueError):
    """MPI.IN_PLACE where MPI does not have it."""

    mpi_class = "ERR_BUFFER"


class DatatypeError(MPIError, ValueError):
    """Send and receive datatypes differ, or a null datatype."""

    mpi_class = "ERR_TYPE"


class CountMismatch(MPIError, ValueError):
    """Counts of one rank that do not fit together."""

    mpi_class = "ERR_TRUNCATE"


class MessageLengthError(MPIError):
    """A received message does not have the length that this rank expects."""

    mpi_class = "ERR_TRUNCATE"


class FaultToleranceError(MPIError, NotImplementedError):
    """A fault tolerance method was called, but this MPI or this run does not survive the failure of a rank."""

    mpi_class = "ERR_UNSUPPORTED_OPERATION"


class ProcFailedError(MPIError):
    """A call cannot complete since ranks have failed.

    `call` is in words. `ranks` are the failed ranks that this rank knows of, and `hosts` the name of the host of each,
    empty where unknown.
    """

    mpi_class = "ERR_PROC_FAILED"

    def __init__(self, call: str, ranks: Iterable[int], hosts: Iterable[str] = ()) -> None:
        self.call, self.ranks, self.hosts = call, tuple(ranks), tuple(hosts)
        super().__init__(call, self.ranks, self.hosts)

    def message(self) -> str:
        who = have_failed(self.ranks, self.hosts) if self.ranks else "a rank not named by MPI has failed"
        return f"{who}, which ended {self.call}; {_SHRINK}"


class RevokedError(MPIError):
    """A call cannot complete since the communicator was revoked, and this rank knows of no failed rank in it.

    `call` is in words. `ranks` are the ranks of MPI.COMM_WORLD that this rank knows to have failed, and `hosts` the
    name of the host of each, empty where unknown.
    """

    mpi_class = "ERR_REVOKED"

    def __init__(self, call: str, ranks: Iterable[int] = (), hosts: Iterable[str] = ()) -> None:
        self.call, self.ranks, self.hosts = call, tuple(ranks), tuple(hosts)
        super().__init__(call, self.ranks, self.hosts)

    def message(self) -> str:
        elsewhere = f"of MPI.COMM_WORLD {have_failed(self.ranks, self.hosts)}; " if self.ranks else ""
        return f"the communicator was revoked, which ended {self.call}; {elsewhere}{_SHRINK}"


MAX_HOSTS = 8  # that a message names
_SHRINK = "every further call on this communicator raises, and Shrink() makes one without them (docs/SURVIVING.md)"


def join_mpi(mpi_exception: type[Exception]) -> None:
    """Make `MPIError` and its heirs subclasses of `mpi_exception` (MPI.Exception) too; again is harmless."""
    if not issubclass(MPIError, mpi_exception):
        MPIError.__bases__ = (MpicollError, mpi_exception)


class UnknownAlgorithm(MpicollError, LookupError, ValueError):
    """No `what` ("allreduce algorithm") of that name; says which names are near, or else all of them."""

    def __init__(self, what: str, name: str, known: Iterable[str] = ()) -> None:
        self.what, self.name, self.known = what, name, tuple(known)
        super().__init__(what, name, self.known)

    @property
    def near(self) -> tuple[str, ...]:
        """Return the known names that look like the given one, best first."""
        return tuple(get_close_matches(str(self.name), self.known, n=3, cutoff=0.5))

    def message(self) -> str:
        text = f"no {self.what} is called {self.name!r}"
        if self.near:
            return f"{text}; did you mean {' or '.join(map(repr, self.near))}?"
        return f"{text}; there is {', '.join(map(repr, self.known)) or 'none at all'}"


class CodecError(MpicollError, ValueError):
    """Input that a codec cannot encode: another type than float32, NaN or infinity."""


class ParameterError(MpicollError, ValueError):
    """A parameter an algorithm does not have, or out of its range; says the range."""


class TrainingError(MpicollError, ValueError):
    """Training cannot start or continue: the ranks have different models, the grid does not fit, the loss is NaN."""


class TuningError(MpicollError, ValueError):
    """A tuning table that cannot be used; says where in the file it is wrong."""


class TimelineError(MpicollError, ValueError):
    """A file that is no timeline of mpicoll's, or a damaged one."""


class PreconditionError(MpicollError, ValueError):
    """An algorithm that cannot serve this call: the number of ranks, a non-commutative operator."""


class MismatchError(MpicollError, RuntimeError):
    """Check mode: the ranks called different things.  `values` holds one value per rank, in rank order."""

    def __init__(self, what: str, values: Iterable[Hashable]) -> None:
        self.what, self.values = what, tuple(values)
        super().__init__(what, self.values)

    @property
    def groups(self) -> Mapping[Hashable, list[int]]:
        """Return the ranks that gave each value."""
        groups: dict[Hashable, list[int]] = {}
        for rank, value in enumerate(self.values):
            groups.setdefault(value, []).append(rank)
        return groups

    def message(self) -> str:
        gave = "; ".join(f"{value!r} on rank {spans(ranks)}" for value, ranks in self.groups.items())
        return f"the ranks differ in {self.what}: {gave}; every rank must pass the same"


class VerifyError(MpicollError, AssertionError):
    """A schedule that is not a correct collective: where it breaks, what should be there and what is."""

    FIELDS: ClassVar[tuple[str, ...]] = ("algorithm", "p", "rank", "strand", "step", "op", "expected", "got")

    def __init__(
        self,
        algorithm: str,
        p: int,
        rank: int | None = None,
        strand: int | None = None,
        step: int | None = None,
        op: Any = None,
        expected: Any = None,
        got: Any = None,
    ) -> None:
        self.algorithm, self.p, self.rank, self.strand, self.step = algorithm, p, rank, strand, step
        self.op, self.expected, self.got = op, expected, got
        super().__init__(algorithm, p, rank, strand, step, op, expected, got)

    def message(self) -> str:
        places = [("strand", self.strand), ("step", self.step), ("op", self.op)]
        where = "".join(f", {name} {value}" for name, value in places if value is not None)
        return f"{self.algorithm} on p={self.p}{where}: expected {self.expected}, got {self.got}"


class EngineError(MpicollError, RuntimeError):
    """An engine that cannot run a plan."""


class StallError(MpicollError, TimeoutError, RuntimeError):
    """An aborted call: it timed out, or other ranks will never join it. The message says why."""


class StepError(MpicollError, RuntimeError):
    """Another rank raised an error of its own in a step of mpicoll.resilient, so the step ends on every rank."""


def spans(ranks: Iterable[int]) -> str:
    """Return sorted ranks in short form.

    >>> spans([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def have_failed(ranks: Sequence[int], hosts: Sequence[str] = ()) -> str:
    """Return the words for failed ranks, and the hosts where they ran; a host is empty where it is unknown.

    >>> have_failed([0, 1, 4], ["a", "a", "b"])
    'ranks 0-1 on host a, 4 on host b have failed'
    """
    ranks_by_host: dict[str, list[int]] = {}
    for rank, host in zip(ranks, [*hosts] or [""] * len(ranks)):
        ranks_by_host.setdefault(host, []).append(rank)
    words = [f"{spans(on_host)}{host and f' on host {host}'}" for host, on_host in ranks_by_host.items()]
    if len(words) > MAX_HOSTS:
        words[MAX_HOSTS:] = [f"and those of {len(words) - MAX_HOSTS} more hosts"]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(words)} {'have' if len(ranks) > 1 else 'has'} failed"
