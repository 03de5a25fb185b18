"""What serves a call: from checked arguments to an algorithm and a plan, remembered for the next call of its kind.

Only values that are equal on every rank decide what is sent: collective, bytes, operator, root.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from .arguments import Arguments
from .channel import Channel
from .collectives import COLLECTIVES
from .engines import Execution, engine_named
from .errors import PreconditionError
from .lowering import is_staged, lower
from .operators import Operator, operator
from .plan import Plan
from .schedule import schedule
from .select import NATIVE, Choice, choose, native_choice


class Call:
    """One call as every rank describes it: counts of `unit` bytes (see plan.layout), root and operator."""

    __slots__ = ("arguments", "collective", "counts", "operator", "root", "unit")

    def __init__(
        self,
        collective: str,
        arguments: Arguments | None,
        counts: int | tuple[int, ...] = 0,
        unit: int = 1,
        root: int = 0,
        operator: Operator | None = None,
    ) -> None:
        self.collective, self.arguments, self.counts, self.unit = collective, arguments, counts, unit
        self.root, self.operator = root, operator

    @property
    def commutative(self) -> bool:
        """Whether operands may be combined in any order."""
        return self.operator is None or self.operator.commutative

    @property
    def missing(self) -> str:
        """Why no kernel serves the operator; empty where one does."""
        return self.operator.missing if self.operator is not None else ""

    def nbytes(self, p: int) -> int:
        """The bytes selection looks at: the whole vector, or one rank's send buffer for alltoall."""
        if isinstance(self.counts, tuple):
            return sum(self.counts) * self.unit
        shares = 1 if COLLECTIVES[self.collective].naming == "vector" else p
        return self.counts * self.unit * shares


@dataclass
class Prepared:
    """What serves calls of one kind: the choice, its plan (None for native), and idle executions to use again."""

    choice: Choice
    nbytes: int
    plan: Plan | None
    staged: bool
    engine: Any
    idle: list[Execution]

    def take(self, comm: MPI.Comm) -> Execution:
        """An execution to bind."""
        assert self.plan is not None
        return self.idle.pop() if self.idle else self.engine.Execution(self.plan, comm)


def describe(collective: str, arguments: Arguments | None, root: int = 0, op: MPI.Op | None = None) -> Call:
    """A call from its arguments. Raises OperatorError for an operator the datatype does not allow."""
    if arguments is None:
        return Call(collective, None)
    one = arguments.send if arguments.send is not None else arguments.recv
    assert one is not None
    if op is None:
        return Call(collective, arguments, one.packed_nbytes // one.blocks, 1, root)
    facts = one.facts
    counts = arguments.counts if arguments.counts is not None else one.count
    return Call(collective, arguments, counts, facts.extent, root, operator(op, facts))


def select(channel: Channel, collective: str, nbytes: int, commutative: bool, missing: str = "") -> Choice:
    """What runs such a call. Raises PreconditionError where what using() forced cannot."""
    engine = channel.overrides.engine or "auto"
    choice = choose(
        collective, nbytes, channel.size, commutative, channel.overrides, channel.engine if engine == "auto" else engine
    )
    if missing and choice.algorithm != NATIVE:
        if choice.forced:
            raise PreconditionError(f"{choice.algorithm} was chosen by using(), but there is {missing}; choose native")
        return native_choice(collective, missing)
    return choice


def prepare(channel: Channel, call: Call) -> Prepared:
    """What serves this call, from the channel's cache or made now. Raises PreconditionError, ValueError."""
    arguments = call.arguments
    in_place = arguments is not None and (arguments.in_place or call.collective == "bcast")
    key = (call.collective, call.counts, call.unit, call.root, call.commutative, call.missing, in_place)
    prepared = channel.prepared.get(key)
    if prepared is None:
        prepared = _prepare(channel, call, in_place)
        channel.remember(key, prepared)
    return prepared


def _prepare(channel: Channel, call: Call, in_place: bool) -> Prepared:
    nbytes = call.nbytes(channel.size)
    choice = select(channel, call.collective, nbytes, call.commutative, call.missing)
    if choice.algorithm == NATIVE:
        return Prepared(choice, nbytes, None, False, None, [])
    made = schedule(call.collective, choice.algorithm, channel.size, call.root, commutative=call.commutative)
    staged = in_place and is_staged(made, channel.rank)
    plan = lower(
        made,
        channel.rank,
        call.counts,
        call.unit,
        in_place=in_place and not staged,
        chunk_bytes=choice.chunk_bytes,
        window=choice.window,
    )
    return Prepared(choice, nbytes, plan, staged, engine_named(choice.engine), [])
