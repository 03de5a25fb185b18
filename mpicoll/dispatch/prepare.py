"""Choose an algorithm and a plan for checked arguments, and cache them for the next call of its kind.

Only values that are equal on every rank decide what is sent: collective, bytes, operator, root.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from ..buffers.operators import USER, operator
from ..engines.load import engine_named
from ..errors import BufferAccessError, CodecError, PreconditionError
from ..plans import float32_sums
from ..plans.lowering import Lowering, lower
from ..plans.plan import Counts, Shares, is_staged
from ..plans.rolled import RolledPlan, rolled
from ..plans.template import Template
from ..runtime.comm_state import CommState
from ..schedules.collectives import BLOCKING, NEIGHBORHOOD, PERSISTENT, is_of_neighbours
from ..schedules.registry import parse_spec
from ..schedules.schedule import Schedule, schedule
from ..selection.select import NATIVE, Choice, choose, native_choice
from . import sums
from .call import Call, Prepared

FLOAT_BYTES = 4


def select(
    state: CommState,
    collective: str,
    nbytes: int,
    commutative: bool,
    missing: str = "",
    form: str = BLOCKING,
    float32_sums: bool = False,
) -> Choice:
    """Return what runs such a call. Raises PreconditionError where what using() forced cannot.

    Persistent collectives go by the rules, not by a table: not every MPI's own are right, or there. So do sums in
    float32, for MPI's own collectives round at every reduction.
    """
    choice = choose(
        collective,
        nbytes,
        state.size,
        commutative,
        state.overrides,
        state.engine,
        state.agreed.nodes,
        state.measured(collective) if form != PERSISTENT and not float32_sums else (),
        state.agreed.network,
        state.graph if is_of_neighbours(collective) else None,
    )
    if float32_sums and choice.algorithm == NATIVE:
        raise PreconditionError(
            f"native was chosen by using() for {collective}, and MPI's own collectives round at every reduction; "
            'choose an algorithm or auto, or using(accumulate="none")'
        )
    if state.agreed.untuned and not choice.forced:
        choice = replace(choice, why=f"{choice.why} ({state.agreed.untuned})")
    if missing and choice.algorithm != NATIVE:
        if choice.forced:
            raise PreconditionError(f"{choice.algorithm} was chosen by using(), but there is {missing}; choose native")
        return native_choice(collective, missing)
    return choice


def check_choices(state: CommState, algorithms: Mapping[str, str]) -> None:
    """Check that each algorithm suits the ranks here. Raises ParameterError, PreconditionError."""
    for collective, spec in algorithms.items():
        if spec not in (NATIVE, "auto"):
            entry, parameters = parse_spec(collective, spec)
            Schedule(entry, state.size, nodes=state.agreed.nodes, **dict(parameters))


def graph_of(state: CommState, collective: str) -> dict[str, Any]:
    """Return the parameter of neighbourhood collectives: the graph of the communicator. Raises CommError."""
    return {"graph": state.graph} if is_of_neighbours(collective) else {}


def prepare(state: CommState, call: Call) -> None:
    """Set call.prepared, from the communicator's cache or newly made.

    Raises PreconditionError, CodecError, BufferAccessError, ValueError.
    """
    in_place = is_in_place(call)
    key = (
        *(call.collective, call.counts, call.unit, call.root, call.commutative, call.averages, in_place),
        call.no_kernel_reason,
        call.form == PERSISTENT,
        call.is_float32,
        call.operator is not None and call.operator.is_low,
        sums.are_float32(state, call.operator),
    )
    prepared = state.prepared.get(key)
    if prepared is None:
        prepared = _prepare(state, call)
        state.remember(key, prepared, prepared.nbytes_kept(call.counts))
    if prepared.keeps_residual:
        _check_writable(call)
    call.prepared = prepared


def is_in_place(call: Call) -> bool:
    """Return whether contributions lie in the memory of results."""
    return call.arguments is not None and (call.arguments.in_place or call.collective == "bcast")


def prepare_again(call: Call, engine: str) -> None:
    """Have a persistent call use another engine, and the kernel that serves now; its plan stays."""
    op = call.invocation.op
    if call.operator is not None and call.operator.name != USER and call.facts is not None and op is not None:
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


def _prepare(state: CommState, call: Call) -> Prepared:
    nbytes, wide = call.nbytes(state.size), sums.are_float32(state, call.operator)
    choice = select(state, call.collective, nbytes, call.commutative, call.no_kernel_reason, call.form, wide)
    return prepare_by(state, call, choice)


def prepare_by(state: CommState, call: Call, choice: Choice) -> Prepared:
    """Return what serves a call by a choice, newly made. Raises PreconditionError, CodecError, ValueError."""
    nbytes, in_place, wide = call.nbytes(state.size), is_in_place(call), sums.are_float32(state, call.operator)
    if choice.algorithm == NATIVE:
        return Prepared(choice, nbytes)
    chosen = chosen_schedule(state, call, choice)
    if chosen.codec is not None and not call.is_float32:
        what = call.facts.name if call.facts is not None else "nothing"
        raise CodecError(f"{chosen.title} encodes float32, and the buffers are of {what}; convert them")
    staged = in_place and is_staged(chosen, state.rank)
    counts, needs_counts = call.counts, False
    if isinstance(counts, Shares) and counts.every is None and not chosen.algorithm.direct:
        if call.collective in NEIGHBORHOOD:
            counts = replace(counts, every=nbytes)
        else:
            needs_counts = True
    plan = None if needs_counts else _lowered(state, call, chosen, choice, counts, in_place, staged, wide)
    keeps_residual = chosen.parameters.get("feedback") == "yes"
    seed = state.overrides.seed if call.operator is not None and call.operator.is_low else None
    engine = engine_named(choice.engine)
    return Prepared(choice, nbytes, plan, staged, engine, needs_counts, chosen.codec, keeps_residual, seed, wide)


def resolve(state: CommState, call: Call) -> None:
    """Set call.prepared after a count exchange, now that the counts of all ranks are known."""
    asked = call.prepared
    choice, arguments = asked.choice, call.arguments
    assert arguments is not None
    key = (choice, call.counts, call.root, arguments.in_place)  # other overrides may be in force by now
    serves = state.prepared.get(key)
    if serves is None:
        chosen = chosen_schedule(state, call, choice)
        plan = _lowered(state, call, chosen, choice, call.counts, arguments.in_place, asked.staged)
        serves = Prepared(choice, asked.nbytes, plan, asked.staged, asked.engine, codec=asked.codec)
        state.remember(key, serves, serves.nbytes_kept(call.counts))
    call.prepared = serves


def chosen_schedule(state: CommState, call: Call, choice: Choice) -> Schedule:
    """Return the schedule of the algorithm that was chosen for a call."""
    return schedule(
        call.collective,
        choice.algorithm,
        state.size,
        call.root,
        commutative=call.commutative,
        nodes=state.agreed.nodes,
        **graph_of(state, call.collective),
    )


def template_of_any_counts(state: CommState, call: Call) -> tuple[Schedule, Template]:
    """Return the schedule of a prepared call, and the template of plans for it and for calls of other counts.

    In the template of a vector form blocks have places of their own, even where they lie one behind the other here.
    """
    prepared = call.prepared
    assert prepared.plan is not None
    chosen = chosen_schedule(state, call, prepared.choice)
    has_places, averages = isinstance(call.counts, Shares), call.averages and state.size > 1
    how = is_in_place(call) and not prepared.staged, has_places, prepared.plan.lanes == 1, averages, False
    key = *_key_of_schedule(call, prepared.choice), Lowering, *how
    return chosen, _template(state, key, lambda: Lowering(chosen, state.rank, *how).template())


def _key_of_schedule(call: Call, choice: Choice) -> tuple[Hashable, ...]:
    return call.collective, choice.algorithm, call.root, call.commutative


def _lowered(
    state: CommState,
    call: Call,
    chosen: Schedule,
    choice: Choice,
    counts: Counts,
    in_place: bool,
    staged: bool,
    wide: bool = False,
) -> RolledPlan:
    if staged and isinstance(counts, Shares):
        counts = _staged(counts, state.rank)
    unit = call.unit
    if chosen.codec is not None and unit == 1:  # counted in bytes, since nothing is reduced
        counts, unit = counts // FLOAT_BYTES if isinstance(counts, int) else counts, FLOAT_BYTES
    of_schedule = _key_of_schedule(call, choice)
    how: dict[str, Any] = {
        "in_place": in_place and not staged,
        "chunk_bytes": choice.chunk_bytes,
        "window": choice.window,
        "averaged": call.averages,
        "remember": lambda key, make: _template(state, (*of_schedule, *key), make),
    }
    if wide:
        return rolled(float32_sums.lower(chosen, state.rank, counts, unit, **how))
    return rolled(lower(chosen, state.rank, counts, unit, codec=chosen.codec, **how))


def _template(state: CommState, key: Hashable, make: Callable[[], Template]) -> Template:
    """Return a template that plans of calls with other counts were bound from, or a new one."""
    cache = state.cache
    template: Template | None = cache.templates.get(key)
    if template is None:
        template = make()
        cache.add(cache.templates, key, template, template.nbytes)
    return template


def _staged(shares: Shares, rank: int) -> Shares:
    """Input where the receive buffer has it, output one block behind the other in memory of its own."""
    own = shares.recv_at if len(shares.sends) == len(shares.receives) else shares.recv_at[rank : rank + 1]
    return replace(shares, send_at=own, recv_at=tuple(accumulate(shares.receives, initial=0))[:-1])
