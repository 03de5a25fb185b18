"""What serves a call: from checked arguments to an algorithm and a plan, remembered for the next call of its kind.

Only values that are equal on every rank decide what is sent: collective, bytes, operator, root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from mpi4py import MPI

from .arguments import Arguments
from .channel import Channel
from .collectives import COLLECTIVES, everybody, plain
from .engines import Execution, engine_named
from .errors import OperatorError, PreconditionError
from .lowering import is_staged, lower
from .operators import Operator, name_of, operator
from .plan import Counts, Plan, Shares
from .registry import parse_spec
from .schedule import Schedule, schedule
from .select import NATIVE, Choice, choose, native_choice

SETTLED = 16  # plans kept for one rank's counts, by those of the others


class Call:
    """One call as every rank describes it: counts of `unit` bytes (see plan.layout), root and operator."""

    __slots__ = ("arguments", "collective", "counts", "operator", "root", "unit")

    def __init__(
        self,
        collective: str,
        arguments: Arguments | None,
        counts: Counts = 0,
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

    @property
    def averages(self) -> bool:
        """Whether results are divided by the number of ranks."""
        return self.operator is not None and self.operator.averages

    def nbytes(self, p: int) -> int:
        """The bytes selection looks at: the whole vector, or one rank's send buffer for alltoall.

        Where ranks know only their own blocks: of those. No rule may look at them then.
        """
        if isinstance(self.counts, Shares):
            sent = sum(self.counts.sends)
            return sent if plain(self.collective) == "alltoall" else max(sent, sum(self.counts.receives))
        if isinstance(self.counts, tuple):
            return sum(self.counts) * self.unit
        shares = 1 if COLLECTIVES[self.collective].naming == "vector" else p
        return self.counts * self.unit * shares


@dataclass
class Prepared:
    """What serves calls of one kind: the choice, its plan, and idle executions to use again.

    plan is None for native, and where it asks: a plan can only be made once the counts of other ranks are known.
    Then settled has what serves, by all ranks' counts.
    """

    choice: Choice
    nbytes: int
    plan: Plan | None
    staged: bool
    engine: Any
    idle: list[Execution]
    asks: bool = False
    settled: dict[Counts, Prepared] = field(default_factory=dict)

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
    if op is None and arguments.counts is not None:
        return Call(collective, arguments, arguments.counts, 1, root)
    if op is None:
        return Call(collective, arguments, one.packed_nbytes // one.blocks, 1, root)
    if COLLECTIVES[collective].covers is not everybody and name_of(op) == "AVG":
        raise OperatorError(
            f"mpicoll.AVG does not {collective}: each rank's result is of another number of ranks; "
            "use MPI.SUM and divide by that"
        )
    facts = one.facts
    counts = one.count if arguments.counts is None else arguments.counts
    return Call(collective, arguments, counts, facts.extent, root, operator(op, facts))


def select(channel: Channel, collective: str, nbytes: int, commutative: bool, missing: str = "") -> Choice:
    """What runs such a call. Raises PreconditionError where what using() forced cannot."""
    engine = channel.overrides.engine or "auto"
    choice = choose(
        collective,
        nbytes,
        channel.size,
        commutative,
        channel.overrides,
        channel.engine if engine == "auto" else engine,
        channel.nodes,
    )
    if missing and choice.algorithm != NATIVE:
        if choice.forced:
            raise PreconditionError(f"{choice.algorithm} was chosen by using(), but there is {missing}; choose native")
        return native_choice(collective, missing)
    return choice


def check_choices(channel: Channel, algorithms: Mapping[str, str]) -> None:
    """Whether each algorithm suits the ranks here; finds out which share a node where one needs to know (collective).

    Raises ParameterError, PreconditionError.
    """
    for collective, spec in algorithms.items():
        if spec not in (NATIVE, "auto"):
            entry, given = parse_spec(collective, spec)
            if entry.asks_for_nodes(**dict(given)):
                channel.find_nodes()
            Schedule(entry, channel.size, nodes=channel.nodes, **dict(given))


def prepare(channel: Channel, call: Call) -> Prepared:
    """What serves this call, from the channel's cache or made now. Raises PreconditionError, ValueError."""
    arguments = call.arguments
    in_place = arguments is not None and (arguments.in_place or call.collective == "bcast")
    key = (call.collective, call.counts, call.unit, call.root, call.commutative, call.averages, call.missing, in_place)
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
    made = schedule(
        call.collective,
        choice.algorithm,
        channel.size,
        call.root,
        commutative=call.commutative,
        nodes=channel.nodes,
    )
    staged = in_place and is_staged(made, channel.rank)
    serves = Prepared(choice, nbytes, None, staged, engine_named(choice.engine), [])
    serves.asks = isinstance(call.counts, Shares) and call.counts.every is None and not made.algorithm.direct
    if not serves.asks:
        serves.plan = _lowered(channel, call, made, choice, in_place, staged)
    return serves


def settle(channel: Channel, call: Call, asked: Prepared) -> Prepared:
    """What serves a call that asked, now that its counts are those of all ranks."""
    serves = asked.settled.get(call.counts)
    if serves is None:
        choice, arguments = asked.choice, call.arguments
        assert arguments is not None
        made = schedule(call.collective, choice.algorithm, channel.size, call.root, nodes=channel.nodes)
        plan = _lowered(channel, call, made, choice, arguments.in_place, asked.staged)
        serves = Prepared(choice, asked.nbytes, plan, asked.staged, asked.engine, [])
        if len(asked.settled) >= SETTLED:
            asked.settled.clear()
        asked.settled[call.counts] = serves
    return serves


def _lowered(channel: Channel, call: Call, made: Schedule, choice: Choice, in_place: bool, staged: bool) -> Plan:
    counts = call.counts
    if staged and isinstance(counts, Shares):
        counts = _staged(counts, channel.rank)
    return lower(
        made,
        channel.rank,
        counts,
        call.unit,
        in_place=in_place and not staged,
        chunk_bytes=choice.chunk_bytes,
        window=choice.window,
        averaged=call.averages,
    )


def _staged(shares: Shares, rank: int) -> Shares:
    """Input where the receive buffer has it, output one block behind the other in memory of its own."""
    own = shares.recv_at if len(shares.sends) == len(shares.receives) else shares.recv_at[rank : rank + 1]
    return replace(shares, send_at=own, recv_at=tuple(accumulate(shares.receives, initial=0))[:-1])
