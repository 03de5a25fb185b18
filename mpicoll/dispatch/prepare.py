"""Choose an algorithm and make a plan for a checked call, and cache both for later calls with equal arguments.

The choice depends only on values that are equal on every rank: collective, bytes, operator, root, agreed settings.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
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
from ..selection.uneven import EVEN
from . import sums
from .call import Call, Prepared
from .staging import result_blocks

FLOAT_BYTES = 4


def select(
    state: CommState,
    collective: str,
    nbytes: int,
    commutative: bool,
    no_kernel_reason: str = "",
    form: str = BLOCKING,
    float32_sums: bool = False,
    skew: int = EVEN,
) -> Choice:
    """Return the choice for a call. Raises PreconditionError if a choice forced by using() cannot run it.

    No table applies to persistent collectives, since MPI's own may be missing or wrong. Nor does a table apply to sums
    in float32, since MPI's own collectives round at every reduction.
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
        skew,
    )
    if float32_sums and choice.algorithm == NATIVE:
        raise PreconditionError(
            f"native was chosen by using() for {collective}, and MPI's own collectives round at every reduction; "
            'choose an algorithm or auto, or using(accumulate="none")'
        )
    if state.agreed.untuned and not choice.forced:
        choice = replace(choice, why=f"{choice.why} ({state.agreed.untuned})")
    if no_kernel_reason and choice.algorithm != NATIVE:
        if choice.forced:
            why = f"{choice.algorithm} was chosen by using(), but there is {no_kernel_reason}"
            raise PreconditionError(f"{why}; choose native")
        return native_choice(collective, no_kernel_reason)
    return choice


def check_choices(state: CommState, algorithms: Mapping[str, str]) -> None:
    """Check that these algorithms suit the number of ranks and the nodes. Raises ParameterError, PreconditionError."""
    for collective, spec in algorithms.items():
        if spec not in (NATIVE, "auto"):
            entry, parameters = parse_spec(collective, spec)
            Schedule(entry, state.size, nodes=state.agreed.nodes, **dict(parameters))


def graph_parameter(state: CommState, collective: str) -> dict[str, Any]:
    """Return {"graph": graph} for a neighbourhood collective, else {}. Raises CommError without a topology."""
    return {"graph": state.graph} if is_of_neighbours(collective) else {}


def prepare(state: CommState, call: Call) -> None:
    """Set call.prepared, from the cache if it has an entry for equal arguments.

    Raises PreconditionError, CodecError, BufferAccessError, ValueError.
    """
    in_place = is_in_place(call)
    key = (
        *(call.collective, call.counts, call.unit, call.root, call.commutative, call.averages, in_place),
        call.no_kernel_reason,
        call.form == PERSISTENT,
        call.is_float32,
        call.operator is not None and call.operator.is_low,
        sums.uses_float32_sums(state, call.operator),
    )
    prepared = state.prepared.get(key)
    if prepared is None:
        prepared = _choose_and_plan(state, call)
        state.remember(key, prepared, prepared.nbytes_kept(call.counts))
    if prepared.keeps_residual:
        _check_writable(call)
    call.prepared = prepared


def is_in_place(call: Call) -> bool:
    """Return whether contributions are in the memory of the results."""
    return call.arguments is not None and (call.arguments.in_place or call.collective == "bcast")


def switch_engine(call: Call, engine: str) -> None:
    """Have a persistent call use another engine, and the operator's current kernel; its plan stays."""
    op = call.invocation.op
    if call.operator is not None and call.operator.name != USER and call.facts is not None and op is not None:
        call.operator = operator(op, call.facts)
    choice = replace(call.prepared.choice, engine=engine)
    call.prepared = replace(call.prepared, choice=choice, engine=engine_named(engine), idle=[])


def _check_writable(call: Call) -> None:
    """Raise BufferAccessError if the send buffer is read-only, since the call writes a residual to it."""
    send = call.arguments.send if call.arguments is not None else None
    if send is not None and send.obj is not None and memoryview(send.obj).readonly:
        raise BufferAccessError(
            "feedback=yes writes the residual to the send buffer, which is read-only; pass a writable buffer"
        )


def skew_of(state: CommState, call: Call) -> int:
    """Return the class of the ranks' shares by which auto chooses; EVEN where they do not count."""
    return call.skew if state.agreed.chooses_by_skew else EVEN


def _choose_and_plan(state: CommState, call: Call) -> Prepared:
    nbytes, wide = call.nbytes(state.size), sums.uses_float32_sums(state, call.operator)
    how = call.commutative, call.no_kernel_reason, call.form, wide, skew_of(state, call)
    choice = select(state, call.collective, nbytes, *how)
    return prepare_with(state, call, choice)


def prepare_with(state: CommState, call: Call, choice: Choice) -> Prepared:
    """Return a new Prepared for a call with this choice. Raises PreconditionError, CodecError, ValueError."""
    nbytes, in_place, wide = call.nbytes(state.size), is_in_place(call), sums.uses_float32_sums(state, call.operator)
    if choice.algorithm == NATIVE:
        return Prepared(choice, nbytes)
    chosen = chosen_schedule(state, call, choice)
    if chosen.codec is not None and not call.is_float32:
        datatype = call.facts.name if call.facts is not None else "nothing"
        raise CodecError(f"{chosen.title} encodes float32, and the buffers are of {datatype}; convert them")
    staged = in_place and is_staged(chosen, state.rank)
    counts, needs_counts = call.counts, False
    if isinstance(counts, Shares) and counts.every is None and not chosen.algorithm.direct:
        if call.collective in NEIGHBORHOOD:
            counts = replace(counts, every=nbytes)
        else:
            needs_counts = True
    plan = None if needs_counts else _lower(state, call, chosen, choice, counts, in_place, staged, wide)
    keeps_residual = chosen.parameters.get("feedback") == "yes"
    seed = state.overrides.seed if call.operator is not None and call.operator.is_low else None
    engine = engine_named(choice.engine)
    return Prepared(choice, nbytes, plan, staged, engine, needs_counts, chosen.codec, keeps_residual, seed, wide)


def prepare_with_counts(state: CommState, call: Call) -> None:
    """Set call.prepared again, after a count exchange has set the counts of all ranks."""
    before = call.prepared
    choice, arguments = before.choice, call.arguments
    assert arguments is not None
    key = (choice, call.counts, call.root, arguments.in_place)  # the choice: other overrides may be in force by now
    prepared = state.prepared.get(key)
    if prepared is None:
        chosen = chosen_schedule(state, call, choice)
        plan = _lower(state, call, chosen, choice, call.counts, arguments.in_place, before.staged)
        prepared = Prepared(choice, before.nbytes, plan, before.staged, before.engine, codec=before.codec)
        state.remember(key, prepared, prepared.nbytes_kept(call.counts))
    call.prepared = prepared


def chosen_schedule(state: CommState, call: Call, choice: Choice) -> Schedule:
    """Return the schedule of a choice for a call."""
    return schedule(
        call.collective,
        choice.algorithm,
        state.size,
        call.root,
        commutative=call.commutative,
        nodes=state.agreed.nodes,
        **graph_parameter(state, call.collective),
    )


def template_of_any_counts(state: CommState, call: Call) -> tuple[Schedule, Template]:
    """Return the schedule of a prepared call, and the template of its plan for any counts.

    The template of a vector form places every block independently, even if the blocks of this call are contiguous.
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


def _lower(
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
        counts = _staged_shares(call, counts, state.rank)
    unit = call.unit
    if chosen.codec is not None and unit == 1:  # counts are in bytes if the collective does not reduce
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
    """Return the cached template for a key, or make and cache it. Plans of calls with other counts share it."""
    cache = state.cache
    template: Template | None = cache.templates.get(key)
    if template is None:
        template = make()
        cache.add(cache.templates, key, template, template.nbytes)
    return template


def _staged_shares(call: Call, shares: Shares, rank: int) -> Shares:
    """Return shares whose input is in the receive buffer, and whose output blocks are in separate memory."""
    own = shares.recv_at if len(shares.sends) == len(shares.receives) else shares.recv_at[rank : rank + 1]
    return replace(shares, send_at=own, recv_at=tuple([at for at, _, _ in result_blocks(call, rank)]))
