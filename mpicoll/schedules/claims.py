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
its buffers, of the same n, unchunked. They are Python expressions over p, n, the algorithm's parameters, len, sum,
min, max, range, and

    q, power(k)                          the largest power of two, or of k, up to p
    lg(x), lg(x, k)                      the ceiling of the logarithm, to base 2 or k
    ones(i), digit(k, i, z)              how many of 0..p-1 have bit i set, have z as digit i in base k
    steps(a, p), moved(a, p), scratch(a, p)    what another algorithm, a parameter, claims for p ranks and n bytes
    cut(a, p, b)                         n, or what it comes to if all of a's blocks were as large as the largest, where
                                         b equal blocks make them up
    largest(groups)                      the ranks of the largest group

A formula that begins "at most" is a bound, any other is exact. Cost is for people.

Where the number of messages or bytes is above that of the source, an optional line says by how much and why:

    Excess: n for every rank that folds, since p is no power of two
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .blocks import power_floor, power_of_two_floor

FIELDS = ("Steps", "Bytes per rank", "Scratch", "Cost", "Source")
OPTIONAL = ("Excess",)
AT_MOST = "at most "


def lg(x: int, k: int = 2) -> int:
    """Return the ceiling of the logarithm to base k: the digits it takes to count to x.

    >>> [lg(x) for x in (1, 2, 3, 4, 5)], [lg(x, 3) for x in (1, 3, 4, 9, 10)]
    ([0, 1, 2, 2, 3], [0, 1, 2, 2, 3])
    """
    digits, reach = 0, 1
    while reach < x:
        digits, reach = digits + 1, reach * k
    return digits


@dataclass(frozen=True)
class Claims:
    """What a docstring says of its algorithm."""

    idea: str
    steps: str
    bytes_per_rank: str
    scratch: str
    cost: str
    source: str
    excess: str = ""

    @classmethod
    def parse(cls, who: str, doc: str | None) -> Claims:
        """Read a docstring. Raises ValueError naming the fields that are missing."""
        found = dict(
            re.findall(r"^\s*([A-Z][a-z ]+): (.+(?:\n(?! *(?:[A-Z][a-z ]+: |>>>)) +.*\S)*)", doc or "", re.MULTILINE)
        )
        missing = [f for f in FIELDS if f not in found]
        if missing:
            raise ValueError(
                f"the docstring of {who} lacks {', '.join(missing)}; see mpicoll/schedules/claims.py for the grammar"
            )
        idea = (doc or "").strip().splitlines()[0]
        return cls(idea, *(re.sub(r"\s+", " ", found.get(f, "")).strip() for f in (*FIELDS, *OPTIONAL)))

    def evaluate(self, expression: str, p: int, n: int | Fraction = 1, /, **parameters: Any) -> Fraction:
        """Return the value of one of the formulas, for an algorithm's resolved parameters."""
        n = Fraction(n)
        names: dict[str, Any] = {
            "p": p,
            "n": n,
            "q": power_of_two_floor(p),
            "lg": lg,
            "power": lambda k: power_floor(p, k),
            "len": len,
            "largest": lambda groups: max(len(group) for group in groups),
            "sum": sum,
            "min": min,
            "max": max,
            "range": range,
            "ones": lambda k: sum(i >> k & 1 for i in range(p)),
            "digit": lambda k, i, z: sum(x // k**i % k == z for x in range(p)),
            "steps": lambda a, p, n=n: a.claim("steps", p, n),
            "cut": lambda a, p, b: n / b * a.blocks(range(p)) * -(-b // a.blocks(range(p))),
            "moved": lambda a, p, n=n: a.claim("bytes_per_rank", p, n),
            "scratch": lambda a, p, n=n: a.claim("scratch", p, n),
            **parameters,
        }
        expression = expression.removeprefix(AT_MOST)
        return Fraction(eval(expression, {"__builtins__": {}, **names}))  # expressions of our own docstrings

    def holds(self, expression: str, got: Fraction, p: int, n: int | Fraction = 1, /, **parameters: Any) -> bool:
        """Return whether a formula says what was measured."""
        claimed = self.evaluate(expression, p, n, **parameters)
        return got <= claimed if expression.startswith(AT_MOST) else got == claimed
