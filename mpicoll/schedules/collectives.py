"""The meaning of each collective: which rank starts with which block, and which must end with it.

These few functions are the whole specification the verifier proves schedules against and the
plan maps memory by. A block is named by what it is: a part of the vector (an int), the rank it
belongs to (an int; rank * parts + part if an algorithm cuts the ranks' shares in parts), a (source, destination)
pair, or an edge of the ranks' graph (see graphs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, overload

Block = Hashable
Where = Callable[[Sequence[Block], int, int, int], Sequence[Block]]  # (all blocks, p, rank, root) -> that rank's
Whose = Callable[[int, int], tuple[int, int]]  # (p, rank) -> first and end of the ranks combined there


def everywhere(blocks: Sequence[Block], p: int, rank: int, root: int) -> Sequence[Block]:
    """Return all blocks: every rank has every block."""
    return blocks


def at_root(blocks: Sequence[Block], p: int, rank: int, root: int) -> Sequence[Block]:
    """Return all blocks for the root, none for the others."""
    return blocks if rank == root else ()


def at_namesake(blocks: Sequence[Block], p: int, rank: int, root: int) -> Sequence[Block]:
    """Return a rank's own blocks: as many for each rank, in the order of ranks."""
    parts = len(blocks) // p
    return blocks[rank * parts : (rank + 1) * parts]


def at_source(blocks: Sequence[Block], p: int, rank: int, root: int) -> Sequence[Block]:
    """Return the blocks (s, d) of rank s."""
    return [(rank, d) for d in range(p)]


def at_destination(blocks: Sequence[Block], p: int, rank: int, root: int) -> Sequence[Block]:
    """Return the blocks (s, d) of rank d."""
    return [(s, rank) for s in range(p)]


def leaving(blocks: Sequence[Block], p: int, rank: int, root: int) -> Sequence[Block]:
    """Return the edges along which a rank sends; the blocks are a Graph."""
    edges: Sequence[Block] = blocks.leaving(rank)  # type: ignore[attr-defined]
    return edges


def entering(blocks: Sequence[Block], p: int, rank: int, root: int) -> Sequence[Block]:
    """Return the edges along which a rank receives; the blocks are a Graph."""
    edges: Sequence[Block] = blocks.entering(rank)  # type: ignore[attr-defined]
    return edges


def but_first(blocks: Sequence[Block], p: int, rank: int, root: int) -> Sequence[Block]:
    """Return all blocks, none for rank 0."""
    return blocks if rank else ()


def from_all_ranks(p: int, rank: int) -> tuple[int, int]:
    """Return all ranks' contributions."""
    return 0, p


def up_to_itself(p: int, rank: int) -> tuple[int, int]:
    """Return the contributions of the ranks up to this one."""
    return 0, rank + 1


def before_itself(p: int, rank: int) -> tuple[int, int]:
    """Return the contributions of the ranks before this one."""
    return 0, rank


class Pairs(Sequence[Block]):
    """The names of the blocks of p ranks by p ranks, row by row, each made on access."""

    def __init__(self, p: int) -> None:
        self.p = p

    def __len__(self) -> int:
        return self.p * self.p

    @overload
    def __getitem__(self, index: int) -> Block: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Block]: ...
    def __getitem__(self, index: int | slice) -> Block | Sequence[Block]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return divmod(range(len(self))[index], self.p)

    def __iter__(self) -> Iterator[Block]:
        return ((source, destination) for source in range(self.p) for destination in range(self.p))


@dataclass(frozen=True)
class Collective:
    """The meaning of one collective.

    starts, ends: which blocks a rank has before and after.
    naming: what a block is: a part of the "vector", a "rank"'s share, a (source, destination) "pair", an "edge" of the
    graph that is a parameter of the algorithm, or "none".
    reduces: whether the blocks at the end hold ranks' contributions, combined; covers says whose.
    repeats: whether all blocks that a rank starts with hold the same, and are one place of its send buffer.
    """

    name: str
    naming: Literal["vector", "rank", "pair", "edge", "none"]
    starts: Where
    ends: Where
    rooted: bool = False
    reduces: bool = False
    covers: Whose = from_all_ranks
    repeats: bool = False

    @property
    def is_divisible(self) -> bool:
        """Return whether algorithms say how many blocks the vector has, or a rank's share of it."""
        return self.naming == "vector" or (self.naming == "rank" and not self.rooted)

    def blocks(self, p: int, share: int) -> Sequence[Block]:
        """Return every block's name; share is how many blocks a vector has, or a rank's share of it."""
        match self.naming:
            case "vector":
                return range(share)
            case "rank":
                return range(p * share)
            case "pair":
                return Pairs(p)
        return ()

    def source(self, block: Block, root: int, parts: int = 1) -> int:
        """Return the rank that sends a block, in a collective that only moves data; parts: the blocks of a share."""
        if self.starts is at_root:
            return root
        return block[0] if self.naming in ("pair", "edge") else block // parts  # type: ignore[index, operator]

    def content(self, block: Block) -> Block:
        """Return a name for a block's contents: its source rank if all blocks of that rank have equal contents."""
        return block[0] if self.repeats else block  # type: ignore[index]


COLLECTIVES: dict[str, Collective] = {
    c.name: c
    for c in (
        Collective("barrier", "none", everywhere, everywhere),
        Collective("bcast", "vector", at_root, everywhere, rooted=True),
        Collective("scatter", "rank", at_root, at_namesake, rooted=True),
        Collective("gather", "rank", at_namesake, at_root, rooted=True),
        Collective("allgather", "rank", at_namesake, everywhere),
        Collective("reduce", "vector", everywhere, at_root, rooted=True, reduces=True),
        Collective("reduce_scatter", "rank", everywhere, at_namesake, reduces=True),
        Collective("allreduce", "vector", everywhere, everywhere, reduces=True),
        Collective("scan", "vector", everywhere, everywhere, reduces=True, covers=up_to_itself),
        Collective("exscan", "vector", everywhere, but_first, reduces=True, covers=before_itself),
        Collective("alltoall", "pair", at_source, at_destination),
        # No plan writes to the send buffer of a neighbor_allgather, so a proof with a place for each block holds for
        # one place too.
        Collective("neighbor_allgather", "edge", leaving, entering, repeats=True),
        Collective("neighbor_alltoall", "edge", leaving, entering),
    )
}

FORMS = BLOCKING, NONBLOCKING, PERSISTENT = "blocking", "nonblocking", "persistent"  # what a collective is called in

# Collectives with a count for each block, and the collective whose meaning and algorithms they share.
PLAIN = {
    "scatterv": "scatter",
    "gatherv": "gather",
    "allgatherv": "allgather",
    "alltoallv": "alltoall",
    "alltoallw": "alltoall",
    "neighbor_allgatherv": "neighbor_allgather",
    "neighbor_alltoallv": "neighbor_alltoall",
    "neighbor_alltoallw": "neighbor_alltoall",
}
# MPI's second name for a collective with equal blocks. A choice of algorithm is for both names.
ALIASES = {"reduce_scatter_block": "reduce_scatter"}


NEIGHBORHOOD = tuple(name for name, c in COLLECTIVES.items() if c.naming == "edge")  # of communicators with a topology


def is_of_neighbours(collective: str) -> bool:
    """Return whether a collective is one of neighbourhoods, which only a communicator with a topology has.

    >>> is_of_neighbours("neighbor_alltoallv"), is_of_neighbours("alltoallv")
    (True, False)
    """
    return base_collective(collective) in NEIGHBORHOOD


def canonical_name(collective: str) -> str:
    """Return the name under which using() and tuning tables have a collective.

    >>> canonical_name("reduce_scatter_block"), canonical_name("gatherv")
    ('reduce_scatter', 'gatherv')
    """
    return ALIASES.get(collective, collective)


def base_collective(collective: str) -> str:
    """Return the collective whose algorithms run this one: gather for gatherv, most collectives themselves.

    >>> base_collective("gatherv"), base_collective("bcast")
    ('gather', 'bcast')
    """
    return PLAIN.get(collective, canonical_name(collective))
