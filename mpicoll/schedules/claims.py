"""Parse an algorithm's docstring, and evaluate the formulas in it, which the verifier checks.

The grammar of such a docstring:

    One line that states the idea.

    Steps: p - 1
    Bytes per rank: n * (p - 1) / p
    Scratch: 2 * n / p
    Cost: (p - 1) α + n (p - 1)/p β
    Source: author, title, year

n is the size of the vector in bytes. For scatter, gather, allgather and reduce_scatter that is the whole vector, for
alltoall one rank's send buffer, for neighbourhood collectives what one neighbour gets.

Steps           the length of the longest chain of messages, each of which waits for the one before
Bytes per rank  the most that any rank sends or receives
Scratch         the most memory that any rank needs beside its buffers, without chunks
Cost            the time in the α–β model; nothing checks it

The first three are Python expressions over p, n, the algorithm's parameters, len, sum, min, max, range, and

    q, power(k)                          the largest power of two, or of k, up to p
    lg(x), lg(x, k)                      the ceiling of the logarithm, to base 2 or k
    ones(i)                              how many numbers of 0..p-1 have bit i set
    digit(k, i, z)                       how many numbers of 0..p-1 have z as digit i in base k
    steps(a, p), moved(a, p), scratch(a, p)    the claims of algorithm a, a parameter, for p ranks and n bytes
    cut(a, p, b)                         the size of a's vector if each of its blocks were as large as the largest one,
                                         where n bytes are b equal units and a block is a whole number of them
    largest(groups)                      the number of ranks of the largest group
    degree(graph)                        the most messages that a rank sends, or receives, along the edges of a graph
    dimensions(graph), hops(graph)       of a stencil: the dimensions of its grid; the dimensions in which neighbours
                                         are away, summed over all neighbours
    branches(graph)                      of a stencil: the ranks that a block passes on its routes to all neighbours,
                                         along one dimension after the other, each counted once

A formula that begins with "at most" is an upper bound; any other is exact.

An optional line states by how much messages or bytes exceed those of the source, and why:

    Excess: n for every rank that reduces, since p is no power of two

Another states how often a contribution is encoded at most, if messages are codes. The verifier proves this too:

    Encoded: 2 * (p > 1)

A codec has `share`, the bytes of codes for each byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from types import CodeType
from typing import Any

from .blocks import power_floor, power_of_two_floor

FIELDS = ("Steps", "Bytes per rank", "Scratch", "Cost", "Source")
OPTIONAL = ("Excess", "Encoded")
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


def digit(p: int, k: int, i: int, z: int) -> int:
    """Return how many numbers of 0..p-1 have z as digit i in base k.

    >>> [digit(12, 3, 1, z) for z in range(3)]
    [6, 3, 3]
    """
    reach: int = k**i
    turns, rest = divmod(p, k * reach)
    return turns * reach + min(max(rest - z * reach, 0), reach)


@cache
def _code(expression: str) -> CodeType:
    return compile(expression, "a formula of a docstring", "eval")


@dataclass(frozen=True)
class Claims:
    """The fields of an algorithm's docstring."""

    idea: str
    steps: str
    bytes_per_rank: str
    scratch: str
    cost: str
    source: str
    excess: str = ""
    encoded: str = ""

    @classmethod
    def parse(cls, title: str, doc: str | None) -> Claims:
        """Parse the docstring of the algorithm `title`. Raises ValueError naming the missing fields."""
        fields = dict(
            re.findall(r"^\s*([A-Z][a-z ]+): (.+(?:\n(?! *(?:[A-Z][a-z ]+: |>>>)) +.*\S)*)", doc or "", re.MULTILINE)
        )
        missing = [f for f in FIELDS if f not in fields]
        if missing:
            raise ValueError(
                f"the docstring of {title} lacks {', '.join(missing)}; see mpicoll/schedules/claims.py for the grammar"
            )
        idea = (doc or "").strip().splitlines()[0]
        return cls(idea, *(re.sub(r"\s+", " ", fields.get(f, "")).strip() for f in (*FIELDS, *OPTIONAL)))

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
            "degree": lambda graph: graph.degree,
            "dimensions": lambda graph: len(graph.dims),
            "hops": lambda graph: sum(sum(map(bool, offset)) for offset in graph.offsets),
            "branches": lambda graph: len({o[:d] for o in graph.offsets for d in range(1, len(o) + 1) if o[d - 1]}),
            "sum": sum,
            "min": min,
            "max": max,
            "range": range,
            "ones": lambda k: digit(p, 2, k, 1),
            "digit": lambda k, i, z: digit(p, k, i, z),
            "steps": lambda a, p, n=n: a.claim("steps", p, n),
            "cut": lambda a, p, b: n / b * a.blocks(range(p)) * -(-b // a.blocks(range(p))),
            "moved": lambda a, p, n=n: a.claim("bytes_per_rank", p, n),
            "scratch": lambda a, p, n=n: a.claim("scratch", p, n),
            **parameters,
        }
        expression = expression.removeprefix(AT_MOST)
        return Fraction(eval(_code(expression), {"__builtins__": {}, **names}))  # expressions of our own docstrings

    def holds(self, expression: str, got: Fraction, p: int, n: int | Fraction = 1, /, **parameters: Any) -> bool:
        """Return whether a measured value is what a formula claims."""
        claimed = self.evaluate(expression, p, n, **parameters)
        return got <= claimed if expression.startswith(AT_MOST) else got == claimed
