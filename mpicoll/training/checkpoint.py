"""A checkpoint of sharded training in the memory of the ranks: each keeps its shares, and those of the rank before it.

If a rank fails, the next one has its shares, and the ranks that are left divide the whole among them. Shares are lost
if a rank and the next one fail together (Zheng, Shi, Kalé, FTC-Charm++: an in-memory checkpoint-based fault tolerant
runtime for Charm++ and MPI, 2004). Of n bytes of parameters and optimizer state a rank sends and receives n / p in a
save, and keeps 2 n / p of each of the last three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import TrainingError
from .modules import Array
from .zero import Zero

SaveId = tuple[int, int]  # of a save, the same on all its ranks: the steps before it, and the number of ranks
KEPT = 3  # the last saves: before and after a step, and on the ranks that were left


@dataclass(frozen=True)
class Saved:
    """One rank's part of a save: for each unit its own rows (see Zero.rows), and those of the rank before it."""

    steps: int
    size: int
    rank: int
    own: list[Array]
    before: list[Array]

    @property
    def save_id(self) -> SaveId:
        """Return the id of the save."""
        return self.steps, self.size


class Checkpoint:
    """The last saves of a Zero, on every rank."""

    def __init__(self) -> None:
        self.saved: list[Saved] = []

    def save(self, zero: Zero) -> None:
        """Keep the shares, and give them to the next rank. Collective.

        Make it a part of a step that may run again, its last: then the shares before that step are kept, too.
        """
        comm = zero.comm
        own = zero.rows()
        before = [np.empty_like(rows) for rows in own]
        for mine, theirs in zip(own, before):
            comm.Sendrecv(mine, (comm.rank + 1) % comm.size, recvbuf=theirs, source=(comm.rank - 1) % comm.size)
        now = Saved(zero.steps, comm.size, comm.rank, own, before)
        self.saved = [now, *(saved for saved in self.saved if saved.save_id != now.save_id)][:KEPT]

    def load(self, zero: Zero, steps: int) -> None:
        """Give a Zero on fewer ranks the shares after so many steps, and save them there. Collective.

        Raises TrainingError where they are lost.
        """
        comm = zero.comm
        saves_by_rank = comm.allgather([(saved.save_id, saved.rank) for saved in self.saved])
        chosen, why = _choose(saves_by_rank, steps)
        if chosen is None:
            raise TrainingError(f"the state after {steps} steps is lost: {why}")
        saved = next(saved for saved in self.saved if saved.save_id == chosen)
        ranks = [dict(saves)[chosen] for saves in saves_by_rank]
        holders = [ranks.index(rank if rank in ranks else (rank + 1) % saved.size) for rank in range(saved.size)]
        held = {saved.rank: saved.own}
        if (before := (saved.rank - 1) % saved.size) not in ranks:
            held[before] = saved.before
        units = []
        for i, length in enumerate(zero.lengths()):
            shares = [{rank: rows[i][j] for rank, rows in held.items()} for j in range(len(saved.own[i]))]
            units.append(np.array([_reshard(comm, row, holders, length) for row in shares]))
        zero.load(units, steps)
        self.save(zero)


def _choose(saves_by_rank: Sequence[Sequence[tuple[SaveId, int]]], steps: int) -> tuple[SaveId | None, str]:
    """Return the save after so many steps of which nothing is lost, that of the fewest ranks; else None, and why."""
    common = set.intersection(*({save_id for save_id, _ in saves} for saves in saves_by_rank))
    why = "no rank, or not every one, has saved it"
    for save_id in sorted(save_id for save_id in common if save_id[0] == steps):
        size, ranks = save_id[1], {dict(saves)[save_id] for saves in saves_by_rank}
        lost = [rank for rank in range(size) if not {rank, (rank + 1) % size} & ranks]
        if not lost:
            return save_id, ""
        why = f"rank {lost[0]} of {size} has failed, and so has rank {(lost[0] + 1) % size}, which kept its shares"
    return None, why


def _reshard(comm: Any, held: Mapping[int, Array], holders: Sequence[int], length: int) -> Array:
    """Return this rank's share of a vector that was divided into other equal shares before. Collective.

    held: the old shares that this rank has, by their numbers; holders: the rank that has each; length: of the vector.
    """
    old, new = len(next(iter(held.values()))), -(-length // comm.size)

    def overlap(share: int, rank: int, origin: int) -> slice:
        """Return what an old share and the new one of a rank have in common, counted from an origin."""
        first, end = max(share * old, rank * new), min((share + 1) * old, (rank + 1) * new, length)
        return slice(first - origin, max(first, end) - origin)

    parts = [[held[share][overlap(share, rank, share * old)] for share in sorted(held)] for rank in range(comm.size)]
    send = np.concatenate([part for of_rank in parts for part in of_rank])
    target = np.zeros(new, send.dtype)
    places: list[list[Array]] = [[] for _ in range(comm.size)]  # of the data of each rank
    for share, holder in enumerate(holders):
        places[holder].append(target[overlap(share, comm.rank, comm.rank * new)])
    counts = [[sum(map(len, of_rank)) for of_rank in lists] for lists in (parts, places)]
    received, at = np.empty(sum(counts[1]), send.dtype), 0
    comm.Alltoallv([send, counts[0]], [received, counts[1]])
    for place in (place for of_rank in places for place in of_rank):
        place[:] = received[at : at + len(place)]
        at += len(place)
    return target
