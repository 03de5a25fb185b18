"""Decide whether a call keeps partial sums in float32, and compute the bytes that they cost."""

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


def reduction_operator(collective: str, op: MPI.Op, datatype: MPI.Datatype | str | None) -> Operator | None:
    """Return the operator of a reduction of this datatype; None if the collective does not reduce or has no datatype.

    Raises OperatorError, DatatypeError.
    """
    if datatype is None or not COLLECTIVES[base_collective(collective)].reduces:
        return None
    return operator(op, parse_datatype(datatype))


def uses_float32_sums(state: CommState, op: Operator | None) -> bool:
    """Return whether partial sums are float32: if the user requested that, and the operator's reductions round."""
    how = state.overrides.accumulate or state.settings.accumulate
    return how == FLOAT32 and op is not None and op.rounds


def with_received_bytes(state: CommState, choice: Choice, nbytes: int, op: Operator) -> Choice:
    """Add to a choice the bytes that this rank receives with float32 partial sums, and without."""
    assert op.dtype is not None
    counts, itemsize = nbytes // op.dtype.itemsize, op.dtype.itemsize
    if COLLECTIVES[choice.collective].naming == "rank":
        counts //= state.size
    chosen = schedule(choice.collective, choice.algorithm, state.size, nodes=state.agreed.nodes)
    if chosen.codec is not None:  # the call raises, since codecs encode only float32
        return choice
    how: dict[str, Any] = {"chunk_bytes": choice.chunk_bytes, "window": choice.window, "averaged": op.averages}
    narrow, wide = (
        rolled(lowering(chosen, state.rank, counts, itemsize, **how)).received_bytes
        for lowering in (lower, float32_sums.lower)
    )
    what = "partial sums travel in float32 and are rounded once, at the end"
    return replace(choice, sums=f"{what}: this rank receives {wide:,} bytes instead of {narrow:,}")
