"""The steps of a schedule on its busiest ranks: messages, bytes and reductions, as shares of the vector.

A profile has the steps of a few ranks in place of those of all, since the ranks of most algorithms do alike. Of the
steps that other ranks take before or after them, it has the number: the claimed length of the longest chain of
messages, which is proved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import fsum
from typing import NamedTuple

import numpy as np

from ..garbage import collection_off
from ..schedules.collectives import Block
from ..schedules.grouping import Partition, by_blocks, homes
from ..schedules.ir import Copy, Recv, RecvReduce, Reduce, Send, Step
from ..schedules.registry import parse_spec
from ..schedules.schedule import Schedule

# The columns of a step: messages sent and received inside the node and between nodes, and shares of the vector.
SENDS, RECEIVES, FAR_SENDS, FAR_RECEIVES, SENT, RECEIVED, FAR_SENT, FAR_RECEIVED, REDUCED, COPIED = range(10)
COLUMNS = 10
MATES = 4  # the ranks of a node that are looked at, to find how many use its link
FEW_BLOCKS = 2  # of a step that has as few blocks on any number of ranks
EVERY_UP_TO = 32  # ranks of a node, all of which are looked at to find its load
FEW_RANKS = 8  # that show whether a scan's sums go one way only
WHOLE_UP_TO = 256  # ranks up to which every step is looked at, where there are as many steps as ranks


@dataclass(frozen=True, eq=False)
class Profile:
    """The steps of some ranks of a schedule.

    - ranks: for each, a table of distinct steps, and how often each occurs.
    - sharing: for each, the ranks of its node that use the node's link at once.
    - steps: the length of the longest chain of messages.
    - waits: whether the steps of other ranks may come between those of a rank, as where vectors go up a tree and down.
    - block: the share of the vector that its largest block is.
    """

    ranks: tuple[tuple[np.ndarray, np.ndarray], ...]
    sharing: tuple[float, ...]
    steps: float
    waits: bool
    block: float


@lru_cache(maxsize=512)
@collection_off()  # there may be millions of objects, none of them garbage
def profile(collective: str, spec: str, p: int, nodes: Partition | None = None, commutative: bool = True) -> Profile:
    """Return the profile of an algorithm on p ranks, which lie on these nodes, one on each if None.

    Where there are about as many steps as ranks, and many ranks, it is scaled up from fewer ranks on as many to a node.
    Raises PreconditionError where p will not do.
    """
    *_, whole = partial_profiles(collective, spec, p, nodes, commutative)
    return whole


def partial_profiles(
    collective: str, spec: str, p: int, nodes: Partition | None = None, commutative: bool = True
) -> Iterator[Profile]:
    """Yield profiles of more and more ranks, the last of them that of `profile`.

    By `cost` a call takes at least as long on the last one as on those before. Raises PreconditionError.
    """
    entry, parameters = parse_spec(collective, spec)
    schedule = Schedule(entry, p, commutative=commutative, nodes=nodes, **dict(parameters))
    steps = float(entry.claims.evaluate(entry.claims.steps, p, 1, **schedule.resolved))
    goes_round_nodes = _goes_round_nodes(schedule, nodes)
    scales = _per_node(nodes) is not None and ("groups" not in entry.parameters or goes_round_nodes)
    if p > WHOLE_UP_TO and steps >= p // 2 and scales:
        few = WHOLE_UP_TO - p % 2
        fewer = by_blocks(few, len(nodes[0])) if nodes is not None else None
        for small in partial_profiles(collective, spec, few, fewer, commutative):
            yield _scaled(small, few, p, nodes, steps, goes_round_nodes)
        return
    one_way = schedule.collective.rooted or (
        schedule.collective.name in ("scan", "exscan")
        and not _goes_back(Schedule(entry, min(p, FEW_RANKS), commutative=commutative, **dict(parameters)))
    )
    yield from _growing(schedule, nodes, steps, one_way)


@collection_off()
def profile_of(schedule: Schedule, nodes: Partition | None, steps: float, one_way: bool) -> Profile:
    """Return the profile of a schedule, whose longest chain of messages is known; see Profile.waits for one_way."""
    *_, whole = _growing(schedule, nodes, steps, one_way)
    return whole


def _growing(schedule: Schedule, nodes: Partition | None, steps: float, one_way: bool) -> Iterator[Profile]:
    """Yield profiles of rank 0, of it among the ranks of its node, and of all ranks that are looked at."""
    p, tables, block = schedule.p, _Tables(schedule, nodes), 1 / blocks_of(schedule)
    home = homes(nodes) if nodes is not None else {}
    by_node: dict[int, float] = {}
    has_rows = "dims" in schedule.algorithm.parameters  # which may end inside a node, for ranks between its ends
    looked_at = sorted({0, 1 % p, p // 2, p - 1})

    def of_first(sharing: float) -> Profile:
        return Profile((_distinct(tables[0]),), (sharing,), steps=0.0, waits=False, block=block)

    if p > FEW_RANKS:
        yield of_first(1.0)
    for rank in looked_at:
        if nodes and home[rank] not in by_node and tables[rank][:, [FAR_SENT, FAR_RECEIVED]].any():
            mates = nodes[home[rank]]
            others = () if has_rows else by_node
            alike = next((node for node in others if _ends_alike(nodes[node], mates, tables)), None)
            by_node[home[rank]] = by_node[alike] if alike is not None else _sharing(mates, tables)
            if rank == 0 and by_node[home[0]] > 1:
                yield of_first(by_node[home[0]])
    shares = [by_node.get(home.get(rank, rank), 1.0) for rank in looked_at]
    ranks, sharing = _different([(*_distinct(tables[rank]), share) for rank, share in zip(looked_at, shares)])
    yield Profile(ranks, sharing, steps, not one_way, block)


@lru_cache(maxsize=512)
def load(collective: str, spec: str, p: int, nodes: Partition, commutative: bool = True) -> np.ndarray:
    """Return the columns of a step, summed over all steps and ranks of the fullest node.

    Of a node with many ranks a few are looked at, and stand for the others.
    """
    entry, parameters = parse_spec(collective, spec)
    return load_of(Schedule(entry, p, commutative=commutative, nodes=nodes, **dict(parameters)), nodes)


def load_of(schedule: Schedule, nodes: Partition) -> np.ndarray:
    """Return the same for a schedule."""
    tables = _Tables(schedule, nodes)
    ranks = max(nodes, key=len)
    some = ranks if len(ranks) <= EVERY_UP_TO else ranks[:: -(-len(ranks) // EVERY_UP_TO)]
    total = sum((tables[rank].sum(axis=0) for rank in some), np.zeros(COLUMNS))
    columns: np.ndarray = total * (len(ranks) / len(some))
    return columns


def _goes_back(schedule: Schedule) -> bool:
    """Return whether a rank receives from one that it has sent to in a step before, as up a tree and down again."""
    for strand in (strand for rank in range(schedule.p) for strand in schedule.program(rank)):
        sent: set[int] = set()
        for step in strand:
            if any(isinstance(op, Recv | RecvReduce) and op.peer in sent for op in step):
                return True
            sent |= {op.peer for op in step if isinstance(op, Send)}
    return False


def _per_node(nodes: Partition | None) -> int | None:
    """Return the number of ranks on every node; None where nodes differ, or ranks do not lie on them by blocks."""
    if nodes is None:
        return 1
    size = len(nodes[0])
    even = all(len(ranks) == size and ranks[-1] - ranks[0] == size - 1 for ranks in nodes)
    return size if even and WHOLE_UP_TO % size == 0 else None


def _goes_round_nodes(schedule: Schedule, nodes: Partition | None) -> bool:
    """Return whether steps inside a node occur once per node, and the others cross from node to node."""
    if nodes is None or "middle" in schedule.algorithm.parameters or schedule.resolved.get("groups") != nodes:
        return False
    return 2 * len(nodes[0]) <= WHOLE_UP_TO


def _scaled(small: Profile, few: int, p: int, nodes: Partition | None, steps: float, goes_round_nodes: bool) -> Profile:
    """Return the profile of few ranks with its frequent steps scaled: as many more, of blocks as much smaller.

    For an algorithm that goes round nodes, all steps between nodes are scaled, by the number of crossings.
    """
    size = _per_node(nodes) or 1
    ranks = []
    for table, times in small.ranks:
        shares, few_blocks = table.copy(), table[:, SENT:].max(axis=1) * few <= FEW_BLOCKS
        shares[few_blocks, SENT:] *= few / p
        often, more = np.full(len(times), few // 8), np.full(len(times), (p - 1) / (few - 1))
        if goes_round_nodes:
            far = table[:, [FAR_SENDS, FAR_RECEIVES]].any(axis=1)
            often, more = np.where(far, 0, often), np.where(far, (p / size - 1) / (few / size - 1), p / few)
        ranks.append((shares, np.where(times >= often, times * more, times)))
    block = small.block * few / p if small.block < 0.5 else small.block
    return Profile(tuple(ranks), small.sharing, steps if small.steps else 0.0, small.waits, block)


def blocks_of(schedule: Schedule) -> int:
    """Return how many equal blocks the n bytes of a call are."""
    return schedule.p if schedule.collective.naming == "none" else schedule.blocks_of_n


class _Tables(dict[int, np.ndarray]):
    """The table of each rank, made on access: a row for every step, strands side by side."""

    def __init__(self, schedule: Schedule, nodes: Partition | None) -> None:
        super().__init__()
        self.schedule, self.home = schedule, np.arange(schedule.p)
        for number, ranks in enumerate(nodes or ()):
            self.home[list(ranks)] = number

    @cached_property
    def of_first(self) -> _Ops:
        """Return the ops of rank 0, which for a uniform algorithm are those of any rank."""
        return _ops(self.schedule, 0)

    def __missing__(self, rank: int) -> np.ndarray:
        turn = rank if self.schedule.algorithm.uniform else 0
        ops = self.of_first if turn == rank else _ops(self.schedule, rank)
        far = self.home[(ops.peers + turn) % self.schedule.p] != self.home[rank]
        at, size = ops.at + 2 * far, ops.local.size
        table: np.ndarray = ops.local + np.bincount(at, minlength=size)
        table += np.bincount(at + SENT, ops.blocks, size)
        table = self[rank] = table.reshape(-1, COLUMNS)
        table[:, SENT:] /= blocks_of(self.schedule)
        return table


class _Ops(NamedTuple):
    """The ops of a rank: of every message the place in the table of steps, the peer and the blocks; the local work."""

    at: np.ndarray
    peers: np.ndarray
    blocks: np.ndarray
    local: np.ndarray


def _ops(schedule: Schedule, rank: int) -> _Ops:
    strands, messages = schedule.program(rank), list[tuple[int, int, float]]()
    local = [0] * (COLUMNS * max(map(len, strands), default=0))
    for strand in strands:
        for row, step in zip(range(0, len(local), COLUMNS), strand):
            messages += [
                (row + (not isinstance(op, Send)), op.peer, schedule.blocks_moved(op))
                for op in step
                if not isinstance(op, (Reduce, Copy))
            ]
            reduced, copied = reduced_and_copied(step)
            local[row + REDUCED] += reduced
            local[row + COPIED] += copied
    at, peers, blocks = np.array(messages, float).reshape(-1, 3).T
    return _Ops(at.astype(int), peers.astype(int), blocks, np.array(local, float))


def reduced_and_copied(step: Step) -> tuple[int, int]:
    """Return how many blocks a step reduces, and how many it copies or packs."""
    reduced, copied = local_blocks(step)
    return sum(map(len, reduced)), sum(map(len, copied))


def local_blocks(step: Step) -> tuple[list[tuple[Block, ...]], list[tuple[Block, ...]]]:
    """Return the blocks that a step reduces, and those that it copies or packs, operation by operation."""
    reduced, copied = list[tuple[Block, ...]](), list[tuple[Block, ...]]()
    for op in step:
        if isinstance(op, (Reduce, Copy)):
            (reduced if isinstance(op, Reduce) else copied).append((op.dst.block,))
        else:
            if isinstance(op, RecvReduce):
                reduced.append(op.blocks)
            if len(op.blocks) > 1 and not _is_contiguous(op.blocks):
                copied.append(op.blocks)
    return reduced, copied


def _is_contiguous(blocks: tuple[Block, ...]) -> bool:
    """Return whether two or more blocks lie side by side, so that nothing is packed for a message."""
    first, last = blocks[0], blocks[-1]
    return isinstance(first, int) and isinstance(last, int) and last - first == len(blocks) - 1


def _different(
    lines: list[tuple[np.ndarray, np.ndarray, float]],
) -> tuple[tuple[tuple[np.ndarray, np.ndarray], ...], tuple[float, ...]]:
    """Return the tables of the ranks that differ, and their sharing: that of rank 0, and those of the others."""
    keys = [(table.tobytes(), times.tobytes(), sharing) for table, times, sharing in lines]
    others = dict(zip(keys[1:], lines[1:]))
    kept = [*lines[:1], *others.values()] if others.keys() != set(keys[:1]) else lines[:1]
    return tuple((table, times) for table, times, _ in kept), tuple(sharing for *_, sharing in kept)


def _distinct(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different rows of a table, and how often each occurs."""
    times = Counter(row.tobytes() for row in table)
    rows = np.frombuffer(b"".join(times)).reshape(-1, COLUMNS)
    return rows, np.array([*times.values()], float)


def _ends_alike(node: tuple[int, ...], other: tuple[int, ...], tables: dict[int, np.ndarray]) -> bool:
    """Return whether the first ranks of two nodes of one size take the same steps, and the last ranks too."""
    ends = [(node[end], other[end]) for end in (0, -1)]
    return len(node) == len(other) and all(np.array_equal(tables[rank], tables[mate]) for rank, mate in ends)


def _sharing(mates: tuple[int, ...], tables: dict[int, np.ndarray]) -> float:
    """Return how many ranks of a node use its link as much as the busiest one, step by step; at least 1."""
    if len(mates) == 1:
        return 1.0
    some = sorted({mates[round(i * (len(mates) - 1) / (MATES - 1))] for i in range(MATES)})
    far = [tables[mate][:, [FAR_SENT, FAR_RECEIVED]] for mate in some]
    loads = np.zeros((len(far), max(map(len, far)), 2))
    for load, own in zip(loads, far, strict=True):
        load[: len(own)] = own
    inner = loads[1:-1].mean(axis=0) * (len(mates) - 2) if len(mates) > 2 else 0.0
    total = loads[0] + inner + loads[-1]
    busiest = fsum(loads.max(axis=(0, 2)).tolist())  # to the same bit on every processor, since ranks choose by it
    return max(1.0, fsum(total.max(axis=1).tolist()) / busiest) if busiest else 1.0
