"""Partial sums in float32: whether a call has them, and what they cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mpi4py import MPI

from ..buffers.operators import Operator, operator
from ..buffers.parse import parse_datatype
from ..plans import float32_sums
from ..plans.lowering import lower
from ..plans.rolled import rolled
from ..runtime.comm_state import CommState
from ..schedules.collectives import COLLECTIVES, base_collective
from ..schedules.schedule import schedule
from ..selection.select import FLOAT32, Choice


def reducing(collective: str, op: MPI.Op, datatype: MPI.Datatype | str | None) -> Operator | None:
    """Return the operator of a reduction of this datatype; None if the collective does not reduce or has no datatype.

    Raises OperatorError, DatatypeError.
    """
    if datatype is None or not COLLECTIVES[base_collective(collective)].reduces:
        return None
    return operator(op, parse_datatype(datatype))


def are_float32(state: CommState, op: Operator | None) -> bool:
    """Return whether partial sums are kept in float32: the operator's reductions round, and the user asked for it."""
    how = state.overrides.accumulate or state.settings.accumulate
    return how == FLOAT32 and op is not None and op.rounds


def with_cost(state: CommState, choice: Choice, nbytes: int, op: Operator) -> Choice:
    """Add to a choice how many bytes this rank receives with float32 partial sums, and how many without."""
    assert op.dtype is not None
    counts, itemsize = nbytes // op.dtype.itemsize, op.dtype.itemsize
    if COLLECTIVES[choice.collective].naming == "rank":
        counts //= state.size
    chosen = schedule(choice.collective, choice.algorithm, state.size, nodes=state.agreed.nodes)
    if chosen.codec is not None:  # which the call refuses, since it encodes float32
        return choice
    how: dict[str, Any] = {"chunk_bytes": choice.chunk_bytes, "window": choice.window, "averaged": op.averages}
    narrow, wide = (
        rolled(lowering(chosen, state.rank, counts, itemsize, **how)).received_bytes
        for lowering in (lower, float32_sums.lower)
    )
    what = "partial sums travel in float32 and are rounded once, at the end"
    return replace(choice, sums=f"{what}: this rank receives {wide:,} bytes instead of {narrow:,}")
