"""The docstring grammar of an algorithm, and its claims as formulas the verifier checks.

    One line that says the idea.

    Steps: p - 1
    Bytes per rank: n * (p - 1) / p
    Scratch: 2 * n / p
    Cost: (p - 1) α + n (p - 1)/p β
    Source: author, title, year

Steps is the longest chain of messages that wait for each other. Bytes per rank is the most any rank
sends or receives of an n-byte vector (the whole vector for scatter, gather, allgather and
reduce_scatter; one rank's send buffer for alltoall). Scratch is the most memory any rank needs beside
its buffers, of the same n, unchunked. They are Python expressions over p, n, q (the largest power of
two up to p), lg(x) (the ceiling of log2 x), ones(k) (how many of 0..p-1 have bit k), sum, min, max and
range. Cost is for people.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .blocks import power_of_two_floor

FIELDS = ("Steps", "Bytes per rank", "Scratch", "Cost", "Source")


def lg(x: int) -> int:
    """The ceiling of the binary logarithm.

    >>> [lg(x) for x in (1, 2, 3, 4, 5)]
    [0, 1, 2, 2, 3]
    """
    return (x - 1).bit_length()


@dataclass(frozen=True)
class Claims:
    """What a docstring says of its algorithm."""

    idea: str
    steps: str
    bytes_per_rank: str
    scratch: str
    cost: str
    source: str

    @classmethod
    def parse(cls, who: str, doc: str | None) -> Claims:
        """Read a docstring. Raises ValueError naming the fields that are missing."""
        found = dict(
            re.findall(r"^\s*([A-Z][a-z ]+): (.+(?:\n(?! *(?:[A-Z][a-z ]+: |>>>)) +.*\S)*)", doc or "", re.MULTILINE)
        )
        missing = [f for f in FIELDS if f not in found]
        if missing:
            raise ValueError(
                f"the docstring of {who} lacks {', '.join(missing)}; see mpicoll/claims.py for the grammar"
            )
        idea = (doc or "").strip().splitlines()[0]
        return cls(idea, *(re.sub(r"\s+", " ", found[f]).strip() for f in FIELDS))

    def evaluate(self, expression: str, p: int, n: int | Fraction = 1) -> Fraction:
        """The value of one of the formulas."""
        names: dict[str, Any] = {
            "p": p,
            "n": Fraction(n),
            "q": power_of_two_floor(p),
            "lg": lg,
            "sum": sum,
            "min": min,
            "max": max,
            "range": range,
            "ones": lambda k: sum(i >> k & 1 for i in range(p)),
        }
        return Fraction(eval(expression, {"__builtins__": {}, **names}))  # expressions of our own docstrings
