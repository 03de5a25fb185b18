"""The measured choice for calls of each size, and the rules of a table made from these choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from mpicoll.plans.plan import WINDOW

from ..cases.contenders import AUTO


@dataclass(frozen=True)
class Found:
    """The choice for a call of `nbytes`, as comm.explain() counts them; times in seconds.

    algorithm: auto where the rules' own choice stays, and rule names the algorithm that they choose. tried, of: how
    many algorithms were measured, of those that serve these ranks.
    """

    nbytes: int
    algorithm: str
    chunk_bytes: int | None
    seconds: float
    native: float
    by_rule: float
    rule: str = ""
    window: int = WINDOW
    tried: int = 0
    of: int = 0

    def is_as(self, other: Found) -> bool:
        """Return whether both sizes have the same choice."""
        choice_of = attrgetter("algorithm", "chunk_bytes", "window")
        return bool(choice_of(self) == choice_of(other))


def rules(choices: Sequence[Found]) -> list[dict[str, Any]]:
    """Return the rules for a table. Between neighbouring sizes with other choices, a rule begins at the geometric mean.

    Nothing was measured far beyond the last size, so the rules of auto hold there.
    """
    rows: list[dict[str, Any]] = []
    for before, here in zip((None, *choices), choices):
        row = {
            "from_bytes": 0 if before is None else math.isqrt(max(1, before.nbytes) * here.nbytes),
            "algorithm": here.algorithm,
            "chunk_bytes": here.chunk_bytes,
            **({} if here.chunk_bytes is None else {"window": here.window}),
            "at_bytes": here.nbytes,
            **{key: round(t * 1e6, 2) for key, t in (("us", here.seconds), ("native_us", here.native)) if t < math.inf},
        }
        if before is not None and here.is_as(before):
            row["from_bytes"] = rows.pop()["from_bytes"]
        rows.append(row)
    if rows[-1]["algorithm"] != AUTO:
        rows.append({"from_bytes": max(1, 2 * choices[-1].nbytes), "algorithm": AUTO})
    return rows
