"""Partial sums in float32: whether a call has them, and what they cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..buffers.operators import Operator
from ..plans import float32_sums
from ..plans.lowering import lower
from ..plans.rolled import rolled
from ..runtime.channel import Channel
from ..schedules.collectives import COLLECTIVES
from ..schedules.schedule import schedule
from ..selection.select import FLOAT32, Choice


def are_float32(channel: Channel, operator: Operator | None) -> bool:
    """Return whether partial sums of an operator are kept in float32: where its folds would round, and it is set."""
    how = channel.overrides.accumulate or channel.settings.accumulate
    return how == FLOAT32 and operator is not None and operator.rounds


def with_cost(channel: Channel, choice: Choice, nbytes: int, operator: Operator) -> Choice:
    """Return a choice that says what this rank receives of a call of nbytes, beside what it would without."""
    assert operator.dtype is not None
    counts, itemsize = nbytes // operator.dtype.itemsize, operator.dtype.itemsize
    if COLLECTIVES[choice.collective].naming == "rank":
        counts //= channel.size
    made = schedule(choice.collective, choice.algorithm, channel.size, nodes=channel.agreed.nodes)
    how: dict[str, Any] = {"chunk_bytes": choice.chunk_bytes, "window": choice.window, "averaged": operator.averages}
    narrow, wide = (
        rolled(each(made, channel.rank, counts, itemsize, **how)).received_bytes for each in (lower, float32_sums.lower)
    )
    what = "partial sums travel in float32 and are rounded once, at the end"
    return replace(choice, sums=f"{what}: this rank receives {wide:,} bytes instead of {narrow:,}")
