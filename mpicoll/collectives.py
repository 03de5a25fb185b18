"""What each collective means: which rank starts with which block, and which must end with it.

These few predicates are the whole specification the verifier proves schedules against and the
plan maps memory by. A block is named by what it is: a part of the vector (an int), the rank it
belongs to (an int), or a (source, destination) pair.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal

Block = Hashable
Where = Callable[[Block, int, int], bool]  # (block, rank, root)


def everywhere(block: Block, rank: int, root: int) -> bool:
    """True: every rank has every block."""
    return True


def at_root(block: Block, rank: int, root: int) -> bool:
    """The root has every block, the others none."""
    return rank == root


def at_namesake(block: Block, rank: int, root: int) -> bool:
    """Block b is at rank b."""
    return rank == block


def at_source(block: Block, rank: int, root: int) -> bool:
    """Block (s, d) is at rank s."""
    return rank == block[0]  # type: ignore[index]


def at_destination(block: Block, rank: int, root: int) -> bool:
    """Block (s, d) is at rank d."""
    return rank == block[1]  # type: ignore[index]


@dataclass(frozen=True)
class Collective:
    """The meaning of one collective.

    starts, ends: predicates (block, rank, root) on who has a block before and after.
    naming: what a block is: a part of the "vector", a "rank"'s share, a (source, destination) "pair", or "none".
    reduces: whether the blocks at the end hold every rank's contribution, combined.
    """

    name: str
    naming: Literal["vector", "rank", "pair", "none"]
    starts: Where
    ends: Where
    rooted: bool = False
    reduces: bool = False

    def source(self, block: Block, root: int) -> int:
        """The one rank a block comes from, in a collective that only moves data."""
        if self.starts is at_root:
            return root
        return block[0] if self.naming == "pair" else block  # type: ignore[index, return-value]


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
        Collective("alltoall", "pair", at_source, at_destination),
    )
}
