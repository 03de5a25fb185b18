"""Choose an algorithm and a plan for checked arguments, and cache them for the next call of its kind.

Only values that are equal on every rank decide what is sent: collective, bytes, operator, root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

from ..buffers.arguments import Arguments
from ..buffers.datatypes import TypeFacts
from ..buffers.operators import Operator, name_of, operator
from ..buffers.parse import kind
from ..compression.codecs import Codec
from ..engines.load import engine_named
from ..engines.protocol import Execution
from ..errors import ArgumentError, BufferAccessError, CodecError, OperatorError, PreconditionError
from ..plans import float32_sums
from ..plans.lowering import lower
from ..plans.plan import Counts, Shares, is_staged
from ..plans.rolled import RolledPlan, rolled
from ..runtime.channel import Channel
from ..schedules.collectives import BLOCKING, COLLECTIVES, PERSISTENT, base_collective, everybody
from ..schedules.registry import parse_spec
from ..schedules.schedule import Schedule, schedule
from ..selection.select import NATIVE, Choice, choose, native_choice
from . import sums
from .methods import Invocation

IDLE = 8  # executions kept for the next calls of a kind
IDLE_BYTES = 1 << 20  # the most that more than one of them may take
FLOAT_BYTES = 4
COUNT_BYTES = 40  # of one count in a tuple, and the place it takes there


class Call:
    """One call as every rank describes it: counts of `unit` bytes (see plan.layout), root and operator.

    commutative says whether operands may be combined in any order, missing why no kernel serves the operator (empty
    where one does), averages whether results are divided by the number of ranks. prepare() sets prepared, what serves
    the call; key is how the fast path finds what serves calls of its kind, None where it serves none of them.
    """

    __slots__ = (
        *("arguments", "averages", "collective", "commutative", "counts", "form", "invocation", "key", "missing"),
        *("operator", "prepared", "root", "unit"),
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
        self.missing = "" if operator is None else operator.missing
        self.averages = operator is not None and operator.averages

    @property
    def is_float32(self) -> bool:
        """Return whether the elements are float32, which codecs encode."""
        return self.facts is not None and self.facts.dtype == np.float32

    @property
    def facts(self) -> TypeFacts | None:
        """Return the facts about the elements' type, None if the call has no buffers."""
        buffer = (self.arguments.send or self.arguments.recv) if self.arguments is not None else None
        return buffer.facts if buffer is not None else None

    @property
    def name(self) -> str:
        """The method that the user called."""
        return self.invocation.method.spelled(self.form)

    def native(self, form: str, comm: MPI.Intracomm, *more: Any) -> Any:
        """Call MPI's own method in a form on the same arguments; more is what that form takes besides."""
        buffer = self.arguments.one if self.arguments is not None else None
        try:
            return self.invocation.native(buffer, self.facts, form, comm, *more)
        except MPI.Exception as error:
            # MPI has called the error handler, unless the communicator is a private one, which are mpi4py's plain class
            error.is_handled = type(comm) is not MPI.Intracomm  # type: ignore[attr-defined]
            raise

    def nbytes(self, p: int) -> int:
        """Return the bytes selection looks at: the whole vector, or one rank's send buffer for alltoall.

        Where ranks know only their own blocks: of those. No rule may look at them then.
        """
        if isinstance(self.counts, Shares):
            sent = sum(self.counts.sends)
            return sent if base_collective(self.collective) == "alltoall" else max(sent, sum(self.counts.receives))
        if isinstance(self.counts, tuple):
            return sum(self.counts) * self.unit
        shares = 1 if COLLECTIVES[self.collective].naming == "vector" else p
        return self.counts * self.unit * shares


@dataclass(eq=False)
class Prepared:
    """The choice for calls with equal arguments, its plan, and idle executions for reuse.

    - plan: None if MPI's own collective runs (is_native), or if the plan needs the counts of other ranks
      (needs_counts): then each call looks up another Prepared by all ranks' counts.
    - staged: whether the result is computed in memory of its own and copied.
    - is_compiled: whether compiled code can run the plan on the caller's buffers.
    - codec: what encodes messages; keeps_residual: whether the call leaves what the codes lack in the send buffer.
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
        self.is_compiled = self.plan is not None and self.choice.engine == "compiled" and not self.staged

    def take(self, comm: MPI.Comm) -> Execution:
        """Return an execution to bind."""
        assert self.plan is not None
        return self.idle.pop() if self.idle else self.engine.Execution(self.plan, comm)

    def give(self, execution: Execution) -> None:
        """Keep an execution for the next call."""
        if len(self.idle) < self.most_idle:
            self.idle.append(execution)

    @cached_property
    def most_idle(self) -> int:
        """Return how many executions are kept."""
        return 0 if self.plan is None else max(1, min(IDLE, IDLE_BYTES // self.plan.nbytes))

    def nbytes_kept(self, counts: Counts) -> int:
        """Return the memory it takes while it is kept, found by these counts."""
        shares = 0 if isinstance(counts, int) else len(counts) if isinstance(counts, tuple) else _numbers(counts)
        plan = 0 if self.plan is None else self.plan.nbytes * (1 + self.most_idle)
        return plan + shares * COUNT_BYTES


def describe(invocation: Invocation, arguments: Arguments | None, form: str = BLOCKING) -> Call:
    """Return a call from its arguments, as they were passed and as they were parsed.

    Raises OperatorError for an operator the datatype does not allow, ArgumentError.
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
        raise ArgumentError(f"op is {op!r:.60}, {kind(op)}; pass an MPI.Op, such as MPI.SUM")
    if COLLECTIVES[collective].covers is not everybody and name_of(op) == "AVG":
        raise OperatorError(
            f"mpicoll.AVG does not {collective}: each rank's result is of another number of ranks; "
            "use MPI.SUM and divide by that"
        )
    facts = buffer.facts
    counts = buffer.count if arguments.counts is None else arguments.counts
    if not facts.size:  # elements without data, of whatever extent, are none
        counts = tuple([0] * len(counts)) if isinstance(counts, tuple) else 0
    return Call(invocation, arguments, counts, facts.extent if facts.size else 1, operator(op, facts), form)


def select(
    channel: Channel,
    collective: str,
    nbytes: int,
    commutative: bool,
    missing: str = "",
    form: str = BLOCKING,
    float32_sums: bool = False,
) -> Choice:
    """Return what runs such a call. Raises PreconditionError where what using() forced cannot.

    Persistent collectives go by the rules, not by a table: not every MPI's own are right, or there. So do sums in
    float32, for MPI's own collectives round at every fold.
    """
    engine = channel.overrides.engine or "auto"
    choice = choose(
        collective,
        nbytes,
        channel.size,
        commutative,
        channel.overrides,
        channel.agreed.engine if engine == "auto" else engine,
        channel.agreed.nodes,
        channel.agreed.measured(collective) if form != PERSISTENT and not float32_sums else (),
    )
    if float32_sums and choice.algorithm == NATIVE:
        raise PreconditionError(
            f"native was chosen by using() for {collective}, and MPI's own collectives round at every fold; choose an "
            'algorithm or auto, or using(accumulate="none")'
        )
    if channel.agreed.untuned and not choice.forced:
        choice = replace(choice, why=f"{choice.why} ({channel.agreed.untuned})")
    if missing and choice.algorithm != NATIVE:
        if choice.forced:
            raise PreconditionError(f"{choice.algorithm} was chosen by using(), but there is {missing}; choose native")
        return native_choice(collective, missing)
    return choice


def check_choices(channel: Channel, algorithms: Mapping[str, str]) -> None:
    """Check that each algorithm suits the ranks here. Raises ParameterError, PreconditionError."""
    for collective, spec in algorithms.items():
        if spec not in (NATIVE, "auto"):
            entry, parameters = parse_spec(collective, spec)
            Schedule(entry, channel.size, nodes=channel.agreed.nodes, **dict(parameters))


def prepare(channel: Channel, call: Call) -> None:
    """Set call.prepared, from the channel's cache or newly made.

    Raises PreconditionError, CodecError, BufferAccessError, ValueError.
    """
    arguments = call.arguments
    in_place = arguments is not None and (arguments.in_place or call.collective == "bcast")
    key = (
        *(call.collective, call.counts, call.unit, call.root, call.commutative, call.averages, call.missing, in_place),
        call.form == PERSISTENT,
        call.is_float32,
        call.operator is not None and call.operator.is_low,
        sums.are_float32(channel, call.operator),
    )
    prepared = channel.prepared.get(key)
    if prepared is None:
        prepared = _prepare(channel, call, in_place)
        channel.remember(key, prepared, prepared.nbytes_kept(call.counts))
    if prepared.keeps_residual:
        _check_writable(call)
    call.prepared = prepared


def prepare_again(call: Call, engine: str) -> None:
    """Have a persistent call use another engine, and the kernel that serves now; its plan stays."""
    op = call.invocation.op
    if call.operator is not None and call.operator.name != "user" and call.facts is not None and op is not None:
        call.operator = operator(op, call.facts)
    choice = replace(call.prepared.choice, engine=engine)
    call.prepared = replace(call.prepared, choice=choice, engine=engine_named(engine), idle=[])


def _check_writable(call: Call) -> None:
    """Raise BufferAccessError for a read-only send buffer, which the residual cannot be written to."""
    send = call.arguments.send if call.arguments is not None else None
    if send is not None and send.obj is not None and memoryview(send.obj).readonly:
        raise BufferAccessError(
            "with feedback=yes the send buffer is left as what codes lack, and it is read-only; pass a writable one"
        )


def _prepare(channel: Channel, call: Call, in_place: bool) -> Prepared:
    nbytes, wide = call.nbytes(channel.size), sums.are_float32(channel, call.operator)
    choice = select(channel, call.collective, nbytes, call.commutative, call.missing, call.form, wide)
    if choice.algorithm == NATIVE:
        return Prepared(choice, nbytes)
    chosen = schedule(
        call.collective,
        choice.algorithm,
        channel.size,
        call.root,
        commutative=call.commutative,
        nodes=channel.agreed.nodes,
    )
    if chosen.codec is not None and not call.is_float32:
        what = call.facts.name if call.facts is not None else "nothing"
        raise CodecError(f"{chosen.title} encodes float32, and the buffers are of {what}; convert them")
    staged = in_place and is_staged(chosen, channel.rank)
    needs_counts = isinstance(call.counts, Shares) and call.counts.every is None and not chosen.algorithm.direct
    plan = None if needs_counts else _lowered(channel, call, chosen, choice, in_place, staged, wide)
    keeps_residual = chosen.parameters.get("feedback") == "yes"
    seed = channel.overrides.seed if call.operator is not None and call.operator.is_low else None
    engine = engine_named(choice.engine)
    return Prepared(choice, nbytes, plan, staged, engine, needs_counts, chosen.codec, keeps_residual, seed, wide)


def resolve(channel: Channel, call: Call) -> None:
    """Set call.prepared after a count exchange, now that the counts of all ranks are known."""
    asked = call.prepared
    choice, arguments = asked.choice, call.arguments
    assert arguments is not None
    key = (choice, call.counts, call.root, arguments.in_place)  # other overrides may be in force by now
    serves = channel.prepared.get(key)
    if serves is None:
        chosen = schedule(call.collective, choice.algorithm, channel.size, call.root, nodes=channel.agreed.nodes)
        plan = _lowered(channel, call, chosen, choice, arguments.in_place, asked.staged)
        serves = Prepared(choice, asked.nbytes, plan, asked.staged, asked.engine, codec=asked.codec)
        channel.remember(key, serves, serves.nbytes_kept(call.counts))
    call.prepared = serves


def _lowered(
    channel: Channel,
    call: Call,
    chosen: Schedule,
    choice: Choice,
    in_place: bool,
    staged: bool,
    wide: bool = False,
) -> RolledPlan:
    counts = call.counts
    if staged and isinstance(counts, Shares):
        counts = _staged(counts, channel.rank)
    unit = call.unit
    if chosen.codec is not None and unit == 1:  # counted in bytes, since nothing is folded
        counts, unit = counts // FLOAT_BYTES if isinstance(counts, int) else counts, FLOAT_BYTES
    how: dict[str, Any] = {
        "in_place": in_place and not staged,
        "chunk_bytes": choice.chunk_bytes,
        "window": choice.window,
        "averaged": call.averages,
    }
    if wide:
        return rolled(float32_sums.lower(chosen, channel.rank, counts, unit, **how))
    return rolled(lower(chosen, channel.rank, counts, unit, codec=chosen.codec, **how))


def _numbers(shares: Shares) -> int:
    """Return how many counts and places there are."""
    return sum(map(len, (shares.sends, shares.receives, shares.send_at, shares.recv_at, shares.every or ())))


def _staged(shares: Shares, rank: int) -> Shares:
    """Input where the receive buffer has it, output one block behind the other in memory of its own."""
    own = shares.recv_at if len(shares.sends) == len(shares.receives) else shares.recv_at[rank : rank + 1]
    return replace(shares, send_at=own, recv_at=tuple(accumulate(shares.receives, initial=0))[:-1])
