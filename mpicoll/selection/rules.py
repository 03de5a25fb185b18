"""The built-in rules of selection, used where no tuning table was measured.

A rule names the algorithm, the chunk size and the window for calls of at least so many bytes. There are rules per
collective; the ranks' distribution over hosts adds more, and the last rule that fits a call serves it.

On one host a processor both reduces and copies, so chunks cannot overlap: rings there run one chunk at a time, which
keeps it in the cache. Between hosts a second chunk in flight keeps the link busy while the first is reduced. More than
two were slower at 50 Mbit/s. The presumed reason: queued data delays the small messages that let a neighbour send.
"""

from __future__ import annotations

from typing import NamedTuple

from ..plans.plan import WINDOW
from ..schedules.collectives import NEIGHBORHOOD, PLAIN
from ..schedules.grouping import Partition
from ..schedules.registry import Chosen, parse_spec

KIB = 1024


class Rule(NamedTuple):
    """Serve calls of at least `above` bytes on at least `ranks` ranks with one algorithm.

    A rule with per_rank also wants at least that many bytes for each rank. chunk_bytes is None where blocks are sent
    whole; window is how many chunks are in flight.
    """

    above: int
    algorithm: str
    chunk_bytes: int | None
    why: str
    window: int = WINDOW
    only_powers_of_two: bool = False
    ranks: int = 1
    per_rank: int = 0

    def fits(self, nbytes: int, p: int) -> bool:
        """Return whether the rule may serve a call of nbytes on p ranks."""
        return nbytes >= self.least(p) and p >= self.ranks and (not self.only_powers_of_two or p & (p - 1) == 0)

    def least(self, p: int) -> int:
        """Return the least bytes of a call on p ranks that the rule serves."""
        return max(self.above, self.per_rank * p)


_FEW_ROUNDS, _PIPELINED = "few rounds: latency decides", "pipelined, every link carries the vector once"
_ONE_LINK = "ranks share hosts: across the links goes only what must"
_UNDER_WAY = "the fewest bytes, one chunk reduced while the next is on the wire"
_FEW_STARTS = 16 * KIB
_SMALL = 32 * KIB  # of a chunk between hosts: WINDOW of them keep a link of 50 Mbit/s busy
_SCAN = Rule(0, "recursive_doubling", None, _FEW_ROUNDS)
_RING = Rule(64 * KIB, "ring", 256 * KIB, "the fewest bytes, each chunk reduced while it is in the cache", window=1)
_REDUCE = (
    Rule(0, "binomial", None, _FEW_ROUNDS),
    Rule(64 * KIB, "chain", 128 * KIB, _PIPELINED, ranks=3),
    Rule(1024 * KIB, "chain", 128 * KIB, _PIPELINED),
)
RULES: dict[str, tuple[Rule, ...]] = {
    "barrier": (Rule(0, "dissemination", None, "fewest rounds for any p"),),
    "bcast": (
        Rule(0, "binomial", None, _FEW_ROUNDS),
        Rule(128 * KIB, "chain", 128 * KIB, _PIPELINED, ranks=3),
    ),
    "scatter": (
        Rule(0, "binomial", None, _FEW_ROUNDS),
        Rule(64 * KIB, "linear", None, "no block is sent twice"),
    ),
    "gather": (
        Rule(0, "binomial", None, _FEW_ROUNDS),
        Rule(64 * KIB, "linear", None, "no block is sent twice"),
    ),
    "allgather": (
        Rule(0, "bruck", None, _FEW_ROUNDS),
        Rule(64 * KIB, "ring", None, "neighbours only, nothing is copied"),
    ),
    "reduce": (
        *_REDUCE,
        Rule(1024 * KIB, "rabenseifner", 128 * KIB, "every rank reduces a part of it", only_powers_of_two=True),
    ),
    "reduce_scatter": (
        Rule(0, "recursive_halving", None, _FEW_ROUNDS),
        _RING,
    ),
    "allreduce": (
        Rule(0, "recursive_doubling", None, "fewest rounds: latency decides"),
        _RING._replace(above=96 * KIB),
        Rule(96 * KIB, "rabenseifner", None, "the least bytes in few rounds", only_powers_of_two=True),
        _RING._replace(above=2048 * KIB),
    ),
    "alltoall": (
        Rule(0, "bruck", None, _FEW_ROUNDS),
        Rule(4 * KIB, "linear", None, "no block is sent twice"),
    ),
    "scan": (_SCAN, Rule(64 * KIB, "linear", 128 * KIB, _PIPELINED)),
    "exscan": (_SCAN, Rule(64 * KIB, "linear", 128 * KIB, _PIPELINED, ranks=3)),
    # The ranks of these know only their own counts. A rule by bytes would differ between ranks, so there is one rule,
    # for an algorithm that needs no exchange of counts.
    "scatterv": (Rule(0, "linear", None, "only the root knows all counts, and this needs no others' counts"),),
    "gatherv": (Rule(0, "linear", None, "only the root knows all counts, and this needs no others' counts"),),
    "alltoallv": (Rule(0, "linear", None, "ranks know their own counts, and this needs no others' counts"),),
    "alltoallw": (Rule(0, "linear", None, "ranks know their own counts, and this needs no others' counts"),),
}
OF_NEIGHBOURS = (*NEIGHBORHOOD, *(name for name, plain in PLAIN.items() if plain in NEIGHBORHOOD))
for _name in OF_NEIGHBOURS:
    RULES[_name] = (Rule(0, "direct", None, "ranks know their own counts, and this needs no others' counts"),)
RULES["allgatherv"] = RULES["allgather"]  # every rank knows all counts, so rules may go by their sum
UNKNOWN_TO_ALL = ("scatterv", "gatherv", "alltoallv", "alltoallw", *OF_NEIGHBOURS)  # ranks know only their own counts
ORDERED_RULES: dict[str, tuple[Rule, ...]] = {
    "reduce": _REDUCE,
    "scan": RULES["scan"],
    "exscan": RULES["exscan"],
    "allreduce": (
        Rule(0, "recursive_doubling", None, "keeps operand order in the fewest rounds"),
        Rule(64 * KIB, "reduce_bcast", None, "keeps operand order, the vector crosses each link twice"),
        Rule(64 * KIB, "butterfly", None, "keeps operand order with the least bytes", only_powers_of_two=True),
    ),
    "reduce_scatter": (Rule(0, "butterfly", None, "keeps operand order with few rounds and the least bytes"),),
}
# For ranks on several hosts: appended to RULES, so that they win wherever they fit.
LINK_RULES: dict[str, tuple[Rule, ...]] = {
    "bcast": (Rule(_FEW_STARTS, "chain", _SMALL, _PIPELINED, ranks=3, per_rank=8 * KIB),),
    "reduce": (Rule(_FEW_STARTS, "chain", _SMALL, _PIPELINED, per_rank=8 * KIB),),
    "allgather": (Rule(64 * KIB, "ring", _SMALL, "neighbours only, nothing is copied"),),
    "reduce_scatter": (Rule(64 * KIB, "ring", _SMALL, _UNDER_WAY),),
    "allreduce": (
        Rule(_FEW_STARTS, "ring", _SMALL, _UNDER_WAY, per_rank=2 * KIB),
        Rule(_FEW_STARTS, "rabenseifner", _SMALL, "the least bytes in few rounds", only_powers_of_two=True),
        Rule(_FEW_STARTS, "ring", _SMALL, _UNDER_WAY, per_rank=8 * KIB),
    ),
    "alltoall": (Rule(64 * KIB, "linear", _SMALL, "no block is sent twice, and links' queues stay short"),),
    "scan": (Rule(64 * KIB, "linear", _SMALL, _PIPELINED),),
    "exscan": (Rule(64 * KIB, "linear", _SMALL, _PIPELINED),),
}
LINK_RULES["allgatherv"] = LINK_RULES["allgather"]
for _name in ("alltoallv", "alltoallw"):
    LINK_RULES[_name] = (RULES[_name][0]._replace(chunk_bytes=_SMALL),)
# For several hosts with several ranks each: appended to both, so that they win over both.
HOST_RULES: dict[str, tuple[Rule, ...]] = {
    "allreduce": (Rule(_FEW_STARTS, "hierarchical", _SMALL, _ONE_LINK),),
    "bcast": (
        Rule(_FEW_STARTS, "hierarchical", None, _ONE_LINK),
        Rule(64 * KIB, "hierarchical(middle=chain)", _SMALL, _ONE_LINK),
    ),
    "reduce": (
        Rule(_FEW_STARTS, "hierarchical", None, _ONE_LINK),
        Rule(64 * KIB, "hierarchical(middle=chain)", _SMALL, _ONE_LINK),
    ),
    "allgather": (
        Rule(_FEW_STARTS, "hierarchical", None, _ONE_LINK),
        Rule(256 * KIB, "hierarchical", _SMALL, _ONE_LINK),
    ),
    "reduce_scatter": (Rule(64 * KIB, "hierarchical", _SMALL, _ONE_LINK),),
}


def rules(collective: str, p: int, commutative: bool, nodes: Partition | None) -> tuple[Rule, ...]:
    """Return the rules of a collective on p ranks, which lie on these nodes; the last rule that fits serves."""
    if not commutative:
        return ORDERED_RULES[collective]
    shared = HOST_RULES.get(collective, ()) if nodes is not None and 1 < len(nodes) < p else ()
    return *RULES[collective], *_across(collective, nodes), *shared


MOVES_ALIKE = ("ring", "linear", "pairwise", "chain")  # as blocks go in direct algorithms, and in those on codes


def forced_rules(collective: str, spec: str, nodes: Partition | None) -> tuple[Rule, ...]:
    """Return a rule with the chunks of the fixed rule that names a forced algorithm; none if no rule does.

    An algorithm on codes has as many bytes of codes in a chunk as others have of data.
    """
    entry, parameters = parse_spec(collective, spec)
    everything = *HOST_RULES.get(collective, ()), *RULES[collective], *_across(collective, nodes)
    known = {rule.algorithm: rule for rule in everything}
    names = spec, entry.name, *(MOVES_ALIKE if entry.direct or not entry.is_exact else ())
    usual = next((known[name] for name in names if name in known), None)
    if usual is None:
        return ()
    codec = entry.codec(Chosen(entry, parameters).parts())
    chunk = usual.chunk_bytes
    if chunk is not None and codec is not None and not entry.is_exact:
        chunk = int(chunk / codec.share)
    return (Rule(0, spec, chunk, "", usual.window),)


def _across(collective: str, nodes: Partition | None) -> tuple[Rule, ...]:
    """Return the rules for ranks on several hosts; none for ranks on one."""
    return LINK_RULES.get(collective, ()) if nodes is not None and len(nodes) > 1 else ()
