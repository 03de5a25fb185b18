"""Describe a call by its checked arguments, and by the choice and plan that serve it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from mpi4py import MPI

from ..buffers.arguments import Arguments
from ..buffers.datatypes import TypeFacts
from ..buffers.memory import describe_type
from ..buffers.operators import Operator, name_of, operator
from ..compression.codecs import Codec
from ..engines.protocol import Execution
from ..errors import ArgumentError, CommError, OperatorError
from ..plans.plan import Counts, Shares
from ..plans.rolled import RolledPlan
from ..progress.operation import RecordedArguments
from ..progress.times import now
from ..schedules.collectives import (
    BLOCKING,
    COLLECTIVES,
    NEIGHBORHOOD,
    base_collective,
    from_all_ranks,
    is_of_neighbours,
)
from ..selection.select import Choice
from ..selection.uneven import COLLECTIVES as UNEVEN
from ..selection.uneven import EVEN, skew_class
from .methods import Invocation

MAX_IDLE = 8  # executions kept for the next calls with equal arguments
MAX_IDLE_BYTES = 1 << 20  # of them, if there is more than one
COUNT_BYTES = 40  # of an int and its reference in a tuple


class Call:
    """One call: counts of `unit` bytes (see plan.layout), root and operator.

    - commutative: whether operands may be combined in any order.
    - averages: whether results are divided by the number of ranks.
    - no_kernel_reason: why the operator has no kernel; empty if it has one.
    - prepared: the choice and plan, set by prepare().
    - key: the key of such calls on the fast path; None if that cannot serve them.
    """

    __slots__ = (
        *("arguments", "averages", "began", "collective", "commutative", "counts", "form", "invocation", "key"),
        *("no_kernel_reason", "operator", "prepared", "root", "unit"),
    )
    invocation: Invocation
    prepared: Prepared

    def __init__(
        self,
        invocation: Invocation,
        arguments: Arguments | None,
        counts: Counts = 0,
        unit: int = 1,
        operator: Operator | None = None,
        form: str = BLOCKING,
    ) -> None:
        self.invocation, self.collective, self.form = invocation, invocation.method.collective, form
        self.arguments, self.counts, self.unit = arguments, counts, unit
        self.root, self.operator = invocation.root_rank, operator
        self.key: Any = None
        self.commutative = operator is None or operator.commutative
        self.no_kernel_reason = "" if operator is None else operator.no_kernel_reason
        self.averages = operator is not None and operator.averages
        self.began = now()

    @property
    def skew(self) -> int:
        """Return the class of the ranks' shares by which selection chooses, equal on every rank: see uneven.py."""
        counts = self.counts.every if isinstance(self.counts, Shares) else self.counts
        return skew_class(counts) if isinstance(counts, tuple) and self.collective in UNEVEN else EVEN

    @property
    def is_float32(self) -> bool:
        """Return whether the elements are float32, the only type that codecs encode."""
        return self.facts is not None and self.facts.dtype == np.float32

    @property
    def keeps_output(self) -> bool:
        """Return whether data in the receive buffer is used or must stay: input, or blocks of absent neighbours."""
        return self.arguments is not None and (self.arguments.in_place or is_of_neighbours(self.collective))

    @property
    def facts(self) -> TypeFacts | None:
        """Return the facts about the datatype; None if the call has no buffers."""
        buffer = (self.arguments.send or self.arguments.recv) if self.arguments is not None else None
        return buffer.facts if buffer is not None else None

    @property
    def name(self) -> str:
        """Return the name of the method that the user called."""
        return self.invocation.method.spelled(self.form)

    @property
    def recorded_arguments(self) -> RecordedArguments:
        """Return the arguments for the call's history row, once it is prepared."""
        root = self.root if "root" in self.invocation.method.takes else -1
        return RecordedArguments(self.prepared.nbytes, root, self.operator.name if self.operator is not None else "")

    def native(self, form: str, comm: MPI.Intracomm, *more: Any) -> Any:
        """Call MPI's own method in a form with the same arguments; `more` are further arguments of that form."""
        if is_of_neighbours(self.collective) and comm.Get_topology() == MPI.UNDEFINED:
            raise CommError(
                "in check mode MPI's own neighbourhood collectives do not run on a communicator made by Idup; use Dup, "
                "or use an algorithm of mpicoll"
            )
        buffer = self.arguments.shared_buffer if self.arguments is not None else None
        try:
            return self.invocation.native(buffer, self.facts, form, comm, *more)
        except MPI.Exception as error:
            # MPI has called the error handler, except on a private communicator: those are of mpi4py's plain class
            error.is_handled = type(comm) is not MPI.Intracomm  # type: ignore[attr-defined]
            raise

    def nbytes(self, p: int) -> int:
        """Return the bytes by which selection chooses: of the whole vector; for alltoall, of a rank's send buffer.

        For neighbourhood collectives, of the block for a neighbour, or of all blocks if their sizes differ. If a rank
        knows only its own blocks, of those; then ranks differ, and no rule may use the number.
        """
        if isinstance(self.counts, Shares):
            sent = sum(self.counts.sends)
            if self.collective in NEIGHBORHOOD:
                return max((*self.counts.sends, *self.counts.receives), default=0)
            base = base_collective(self.collective)
            return sent if base in ("alltoall", *NEIGHBORHOOD) else max(sent, sum(self.counts.receives))
        if isinstance(self.counts, tuple):
            return sum(self.counts) * self.unit
        shares = 1 if COLLECTIVES[self.collective].naming == "vector" else p
        return self.counts * self.unit * shares


@dataclass(eq=False)
class Prepared:
    """The choice for calls with equal arguments, its plan, and idle executions for reuse.

    - plan: None if MPI's own collective runs (is_native), or if the plan needs the counts of other ranks
      (needs_counts): then every call gets another Prepared by all ranks' counts, see prepare_with_counts().
    - staged: whether the result is computed in separate memory and copied to the receive buffer.
    - is_compiled: whether compiled code can run the plan.
    - codec: the codec of messages, None for none.
    - keeps_residual: whether the call writes the error of its codes to the send buffer.
    - seed: the seed of stochastic rounding, None for rounding to nearest.
    - float32_sums: whether partial sums are float32.
    """

    choice: Choice
    nbytes: int
    plan: RolledPlan | None = None
    staged: bool = False
    engine: Any = None
    needs_counts: bool = False
    codec: Codec | None = None
    keeps_residual: bool = False
    seed: int | None = None
    float32_sums: bool = False
    idle: list[Execution] = field(default_factory=list)
    is_native: bool = field(init=False)
    is_compiled: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_native = self.plan is None and not self.needs_counts
        self.is_compiled = self.plan is not None and self.choice.engine == "compiled"

    def take(self, comm: MPI.Comm) -> Execution:
        """Return an idle execution, or a new one, for the caller to bind."""
        assert self.plan is not None
        return self.idle.pop() if self.idle else self.engine.Execution(self.plan, comm)

    def give_back(self, execution: Execution) -> None:
        """Keep an execution for the next call."""
        if len(self.idle) < self.max_idle:
            self.idle.append(execution)

    @cached_property
    def max_idle(self) -> int:
        """Return how many idle executions may be kept."""
        return 0 if self.plan is None else max(1, min(MAX_IDLE, MAX_IDLE_BYTES // self.plan.nbytes))

    def nbytes_kept(self, counts: Counts) -> int:
        """Return the bytes that a cache entry takes, with these counts in its key."""
        shares = 0 if isinstance(counts, int) else len(counts) if isinstance(counts, tuple) else _count_numbers(counts)
        plan = 0 if self.plan is None else self.plan.nbytes * (1 + self.max_idle)
        return plan + shares * COUNT_BYTES


def describe_call(invocation: Invocation, arguments: Arguments | None, form: str = BLOCKING) -> Call:
    """Return the call of an invocation and its parsed arguments.

    Raises OperatorError for an operator that the datatype does not allow, ArgumentError for one that is no MPI.Op.
    """
    op, collective = invocation.op, invocation.method.collective
    if arguments is None:
        return Call(invocation, None, form=form)
    buffer = arguments.send if arguments.send is not None else arguments.recv
    assert buffer is not None
    if "op" not in invocation.method.takes:
        if arguments.counts is not None:
            return Call(invocation, arguments, arguments.counts, form=form)
        return Call(invocation, arguments, buffer.packed_nbytes // buffer.blocks, form=form)
    if not isinstance(op, MPI.Op):
        raise ArgumentError(f"op is {op!r:.60}, {describe_type(op)}; pass an MPI.Op, such as MPI.SUM")
    if COLLECTIVES[collective].covers is not from_all_ranks and name_of(op) == "AVG":
        raise OperatorError(
            f"mpicoll.AVG does not {collective}: each rank's result is of another number of ranks; "
            "use MPI.SUM and divide by that"
        )
    facts = buffer.facts
    counts = buffer.count if arguments.counts is None else arguments.counts
    if not facts.size:  # elements of size 0 have no data, whatever their extent
        counts = tuple([0] * len(counts)) if isinstance(counts, tuple) else 0
    return Call(invocation, arguments, counts, facts.extent if facts.size else 1, operator(op, facts), form)


def _count_numbers(shares: Shares) -> int:
    """Return how many counts and displacements Shares contain."""
    every = shares.every if isinstance(shares.every, tuple) else ()
    return sum(map(len, (shares.sends, shares.receives, shares.send_at, shares.recv_at, every)))
