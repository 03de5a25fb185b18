"""Which algorithm serves a call, and why.

The rules look at the collective, the bytes, p and whether the operator commutes: values MPI makes equal on
every rank, so every rank chooses the same without a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from .errors import ArgumentError
from .parameters import Partition
from .registry import check_order, find, parse_spec

NATIVE = "native"
WINDOW = 4
KIB = 1024


class Rule(NamedTuple):
    """From this many bytes on, this algorithm in chunks of that size (None: whole blocks); the last that fits."""

    above: int
    algorithm: str
    chunk_bytes: int | None
    why: str
    only_powers_of_two: bool = False

    def fits(self, nbytes: int, p: int) -> bool:
        """Whether the rule speaks of such a call."""
        return nbytes >= self.above and (not self.only_powers_of_two or p & (p - 1) == 0)


_SCAN = (
    Rule(0, "recursive_doubling", None, "few rounds: latency decides"),
    Rule(64 * KIB, "linear", 128 * KIB, "every link carries the vector once, pipelined"),
)
RULES: dict[str, tuple[Rule, ...]] = {
    "barrier": (Rule(0, "dissemination", None, "fewest rounds for any p"),),
    "bcast": (
        Rule(0, "binomial", None, "few rounds: latency decides"),
        Rule(128 * KIB, "chain", 128 * KIB, "pipelined, every link carries the vector once"),
    ),
    "scatter": (
        Rule(0, "binomial", None, "few rounds: latency decides"),
        Rule(64 * KIB, "linear", None, "no block is sent twice"),
    ),
    "gather": (
        Rule(0, "binomial", None, "few rounds: latency decides"),
        Rule(64 * KIB, "linear", None, "no block is sent twice"),
    ),
    "allgather": (
        Rule(0, "bruck", None, "few rounds: latency decides"),
        Rule(64 * KIB, "ring", None, "neighbours only, nothing is copied"),
    ),
    "reduce": (
        Rule(0, "binomial", None, "few rounds: latency decides"),
        Rule(64 * KIB, "chain", 128 * KIB, "pipelined, every link carries the vector once"),
    ),
    "reduce_scatter": (
        Rule(0, "recursive_halving", None, "few rounds: latency decides"),
        Rule(64 * KIB, "ring", 256 * KIB, "the least bytes, folded while the next chunk is on the wire"),
    ),
    "allreduce": (
        Rule(0, "recursive_doubling", None, "fewest rounds: latency decides"),
        Rule(96 * KIB, "ring", 256 * KIB, "the least bytes for any p"),
        Rule(96 * KIB, "rabenseifner", None, "the least bytes in few rounds", only_powers_of_two=True),
        Rule(2048 * KIB, "ring", 256 * KIB, "the least bytes, folded while the next chunk is on the wire"),
    ),
    "alltoall": (
        Rule(0, "bruck", None, "few rounds: latency decides"),
        Rule(4 * KIB, "pairwise", None, "no block is sent twice"),
    ),
    "scan": _SCAN,
    "exscan": _SCAN,
    # Where ranks know only their own counts, bytes decide nothing: one rule, and no exchange of counts before it.
    "scatterv": (Rule(0, "linear", None, "only the root knows all counts, and this needs no others' counts"),),
    "gatherv": (Rule(0, "linear", None, "only the root knows all counts, and this needs no others' counts"),),
    "alltoallv": (Rule(0, "pairwise", None, "ranks know their own counts, and this needs no others' counts"),),
    "alltoallw": (Rule(0, "pairwise", None, "ranks know their own counts, and this needs no others' counts"),),
}
RULES["allgatherv"] = RULES["allgather"]  # every rank has all counts, so their sum is a value to go by
ORDERED_RULES: dict[str, tuple[Rule, ...]] = {
    "reduce": RULES["reduce"],
    "scan": RULES["scan"],
    "exscan": RULES["exscan"],
    "allreduce": (
        Rule(0, "recursive_doubling", None, "keeps operand order in the fewest rounds"),
        Rule(64 * KIB, "reduce_bcast", None, "keeps operand order, the vector crosses each link twice"),
        Rule(64 * KIB, "butterfly", None, "keeps operand order with the least bytes", only_powers_of_two=True),
    ),
    "reduce_scatter": (Rule(0, "butterfly", None, "keeps operand order with few rounds and the least bytes"),),
}


@dataclass(frozen=True)
class Choice:
    """What runs a call and why. chunk_bytes None means whole blocks."""

    collective: str
    algorithm: str
    chunk_bytes: int | None
    window: int
    engine: str
    why: str
    forced: bool = False

    def __str__(self) -> str:
        chunks = (
            "whole blocks"
            if self.chunk_bytes is None
            else f"chunks of {self.chunk_bytes} bytes, {self.window} in flight"
        )
        how = "" if self.algorithm == NATIVE else f" on the {self.engine} engine, {chunks}"
        return f"{self.collective}: {self.algorithm}{how}: {self.why}"


@dataclass(frozen=True)
class Overrides:
    """What using() has set: algorithms by collective, chunk, window and engine (None: not set)."""

    algorithms: tuple[tuple[str, str], ...] = ()
    chunk_bytes: int | None = None
    window: int | None = None
    engine: str | None = None

    def merged(
        self, algorithms: Mapping[str, str], chunk_bytes: int | None, window: int | None, engine: str | None
    ) -> Overrides:
        """These with others laid over them, checked."""
        for collective, spec in algorithms.items():
            if not isinstance(spec, str):
                raise ArgumentError(f"{collective} is {spec!r}; it must be the name of an algorithm")
            if spec not in (NATIVE, "auto"):
                parse_spec(collective, spec)
            elif collective not in RULES:
                find(collective, spec)
        for what, value in (("chunk_bytes", chunk_bytes), ("window", window)):
            if value is not None and (type(value) is not int or value < 1):
                raise ArgumentError(f"{what} is {value!r}; it must be an integer of at least 1")
        return Overrides(
            tuple({**dict(self.algorithms), **algorithms}.items()),
            chunk_bytes or self.chunk_bytes,
            window or self.window,
            engine or self.engine,
        )


def choose(
    collective: str,
    nbytes: int,
    p: int,
    commutative: bool,
    overrides: Overrides,
    engine: str,
    nodes: Partition | None = None,
) -> Choice:
    """The choice for a call of nbytes (see Claims for whose bytes).

    Raises PreconditionError when what is forced cannot serve.
    """
    spec = dict(overrides.algorithms).get(collective, "auto")
    window = overrides.window or WINDOW
    if spec == "auto":
        rules = RULES[collective] if commutative else ORDERED_RULES[collective]
        rule = next(r for r in reversed(rules) if r.fits(nbytes, p))
        found = Choice(
            collective, rule.algorithm, rule.chunk_bytes, window, engine, f"{nbytes} bytes on {p} ranks: {rule.why}"
        )
    elif spec == NATIVE:
        return Choice(collective, NATIVE, None, window, NATIVE, "chosen by using()", forced=True)
    else:
        entry, given = parse_spec(collective, spec)
        if not commutative:
            check_order(entry, p, nodes, **dict(given))
        chunk = next((r.chunk_bytes for r in RULES[collective] if r.algorithm == entry.name), None)
        found = Choice(collective, spec, chunk, window, engine, "chosen by using()", forced=True)
    return replace(found, chunk_bytes=overrides.chunk_bytes) if overrides.chunk_bytes else found


def native_choice(collective: str, why: str) -> Choice:
    """MPI's own collective, and the reason."""
    return Choice(collective, NATIVE, None, WINDOW, NATIVE, why)
