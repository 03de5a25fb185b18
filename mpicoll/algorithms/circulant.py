"""Algorithms on the circulant graph: rank r sends to r + s for the skips s = ⌈p/2⌉, ⌈p/4⌉ … 1, whatever p is.

The reductions are for operators that commute. From 3 ranks on each of them combines sums of ranks that do not follow
each other, so that no choice of sides would keep the order of operands. `butterfly` keeps it.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

from ..schedules.combinators import mirror, then
from ..schedules.grids import over
from ..schedules.ir import Recv, RecvReduce, Send, Steps, Strands
from ..schedules.parameters import Fanout, Radix
from ..schedules.registry import algorithm


def skips(p: int, k: int = 2) -> list[int]:
    """Return p, ⌈p/k⌉, ⌈p/k²⌉ … 1.

    >>> skips(13), skips(13, 3)
    ([13, 7, 4, 2, 1], [13, 5, 2, 1])
    """
    out = [p]
    while out[-1] > 1:
        out.append(-(-out[-1] // k))
    return out


def runs(p: int, first: int, count: int) -> list[tuple[int, ...]]:
    """Return so many blocks from the first one on, cut where they go round the end, so that nothing is packed.

    >>> runs(5, 3, 4)
    [(3, 4), (0, 1)]
    """
    first %= p
    return [part for part in (tuple(range(first, min(first + count, p))), tuple(range(first + count - p))) if part]


PORTS = [over(range(3, 14), k=(3, 4)), over((27, 31, 64), k=(3, 8))]


@algorithm("reduce_scatter", name="circulant", grid=PORTS)
def reduce_scatter(p: int, rank: int, *, k: Radix = 2) -> Steps:
    """Half of the blocks go half the ranks further on and are reduced there, then half of the rest, for any p.

    With k > 2 there are k - 1 messages at once, and a k-th of the blocks is left for the next round.

    Steps: lg(p, k)
    Bytes per rank: n * (p - 1) / p
    Scratch: at most n
    Cost: lg(p, k) α + n (p - 1)/p (β + γ)
    Source: Träff, Optimal, non-pipelined reduce-scatter and allreduce algorithms, 2024; for k > 2 Bruck et al., \
Efficient algorithms for all-to-all communications in multiport message-passing systems, 1997

    >>> [(op.peer, op.blocks) for step in reduce_scatter(5, 0)[0] for op in step if isinstance(op, Send)]
    [(3, (3, 4)), (2, (2,)), (1, (1,))]
    >>> [[op.peer for op in step if isinstance(op, Send)] for step in reduce_scatter(9, 0, k=3)[0]]
    [[3, 6], [1, 2]]
    """
    for end, skip in pairwise(skips(p, k)):
        counts = [(hop, min(skip, end - hop)) for hop in range(skip, end, skip)]
        yield (
            *(Send((rank + hop) % p, run) for hop, count in counts for run in runs(p, rank + hop, count)),
            *(RecvReduce((rank - hop) % p, run, "left") for hop, count in counts for run in runs(p, rank, count)),
        )


@algorithm("allgather", name="circulant", grid=PORTS)
def allgather(p: int, rank: int, *, k: Radix = 2) -> Strands:
    """Every round about doubles the blocks that a rank has, with k > 2 k-fold: reduce_scatter's reversed in time.

    Steps: lg(p, k)
    Bytes per rank: n * (p - 1) / p
    Scratch: n / p * sum(m for s in [-(-p // k)] for z in range(s, p, s) if (m := min(s, p - z)) > 1)
    Cost: lg(p, k) α + n (p - 1)/p β
    Source: Träff, Optimal, non-pipelined reduce-scatter and allreduce algorithms, 2024; for k > 2 Bruck et al., \
Efficient algorithms for all-to-all communications in multiport message-passing systems, 1997

    >>> [(step[0].peer, step[1].peer, step[0].blocks) for step in allgather(5, 0)[0]]
    [(1, 4, (1,)), (2, 3, (2,)), (3, 2, (3, 4))]
    """
    return mirror(reduce_scatter(p, rank, k=k))


@algorithm("allreduce", name="circulant", blocks=lambda p, k: p, divides_at_owner=True, grid=PORTS)
def allreduce(p: int, rank: int, *, k: Radix = 2) -> Strands:
    """Reduce-scatter and allgather on the circulant graph: the least bytes in 2 lg p steps, for any p.

    With k > 2 it takes 2 lg_k p steps, of k - 1 messages at once each.

    Steps: 2 * lg(p, k)
    Bytes per rank: 2 * n * (p - 1) / p
    Scratch: n / p * (p - -(-p // k) + (k == 2 and p % 4 == 3 and p > 3))
    Cost: 2 lg(p, k) α + 2 n (p - 1)/p β + n (p - 1)/p γ
    Source: Träff, Optimal, non-pipelined reduce-scatter and allreduce algorithms, 2024; for k > 2 Bruck et al., \
Efficient algorithms for all-to-all communications in multiport message-passing systems, 1997

    >>> [len(step[0].blocks) for step in allreduce(13, 0)[0]]
    [6, 3, 2, 1, 1, 2, 3, 6]
    """
    return then(reduce_scatter(p, rank, k=k), allgather(p, rank, k=k))


@algorithm("alltoall", uniform=True, name="circulant")
def alltoall(p: int, rank: int) -> Steps:
    """Blocks travel as reduce_scatter's do, and are kept apart: by the largest skip first, in lg p messages for any p.

    No p needs more bytes than bruck with k=2, and those a little above a power of two fewer.

    Steps: lg(p)
    Bytes per rank: at most n * lg(p) / 2
    Scratch: at most n * 3 / 4 * lg(p)
    Cost: lg(p) α + n/2 lg(p) β
    Source: Träff, Optimal, non-pipelined reduce-scatter and allreduce algorithms, 2024

    >>> [op.blocks for step in alltoall(5, 0)[0] for op in step if isinstance(op, Send)]
    [((0, 3), (0, 4)), ((0, 2),), ((0, 1), (2, 1))]
    """
    left = list(range(p))  # distances from where blocks are to their destinations, by those from their sources
    for skip in skips(p)[1:]:
        moving = [i for i in range(p) if left[i] >= skip]
        sent, received = (
            tuple([((holder + left[i] - i) % p, (holder + left[i]) % p) for i in moving])
            for holder in (rank, rank - skip)
        )
        yield Send((rank + skip) % p, sent), Recv((rank - skip) % p, received)
        left = [distance - skip if distance >= skip else distance for distance in left]


# -- segments one behind the other --------------------------------------------------------------------------

PROVED = [over(range(1, 17), segments=(1, 3)), over((31, 33, 64), segments=(5,))]


@lru_cache(maxsize=4096)
def received(p: int, rank: int) -> tuple[int, ...]:
    """Return which segment a rank receives in each of the lg p rounds of a turn, in a broadcast from rank 0.

    In round i it comes from the rank skips[i] back, with the skips in ascending order. The next turn's numbers are
    higher by lg p; a negative one is a segment of the turn before.

    >>> [received(5, rank) for rank in range(5)]
    [(-3, -1, -2), (0, -1, -2), (-3, 1, -1), (-2, -3, 2), (-1, -2, 0)]
    """
    ends = skips(p)[::-1]
    rounds = len(ends) - 1
    first, rest = rounds, rank
    for i in reversed(range(rounds)):  # the smallest skip of the greedy sum that makes up the rank
        if rest and ends[i] <= rest:
            first, rest = i, rest - ends[i]
    left = [i for i in reversed(range(rounds + 1)) if i != first]
    taken: list[int] = []
    limit = 2 * p  # each rank that is met is below the one before

    def search(reach: int, skip: int) -> None:
        """Take, from a rank met, every skip up to this one that leads to a rank from which the next round can come."""
        nonlocal limit
        for e in [e for e in left if e <= skip]:
            met = reach + ends[e]
            if e not in left or len(taken) == rounds or met > p + rank - ends[len(taken)] or met >= limit:
                continue
            if met <= p + rank - ends[len(taken) + 1]:
                search(met, e)
            if len(taken) == rounds or reach > p + rank - ends[len(taken) + 1]:
                return
            limit = met
            taken.append(e)
            left.remove(e)

    search(0, rounds)
    return tuple(first if e == rounds else e - rounds for e in taken)


def turns(p: int, segments: int) -> list[tuple[int, int]]:
    """Return (index of the skip, what to add to the numbers of `received`) for every round of a broadcast.

    A turn uses every skip once. The first turn is cut short where need be, so that the last round ends a turn.

    >>> turns(5, 3)
    [(1, -1), (2, -1), (0, 2), (1, 2), (2, 2)]
    """
    length = len(skips(p)) - 1
    rounds = segments - 1 + length if length else 0
    idle = -rounds % length if length else 0
    return [(i % length, i // length * length - idle) for i in range(idle, idle + rounds)]


@lru_cache(maxsize=4096)
def arrivals(p: int, rank: int, segments: int) -> dict[int, int]:
    """Return {round: segment} of what a rank gets in a broadcast from rank 0 in segments - 1 + lg p rounds.

    >>> arrivals(5, 4, 3)
    {2: 1, 3: 0, 4: 2}
    """
    out: dict[int, int] = {}
    for i, (turn, before) in enumerate(turns(p, segments) if rank else []):
        segment = min(received(p, rank)[turn] + before, segments - 1)
        if segment >= 0 and segment not in out.values():
            out[i] = segment
    return out


@lru_cache(maxsize=8)
def all_arrivals(p: int, segments: int) -> list[list[int]]:
    """Return for each round the blocks that rank 0 gets when all ranks broadcast at once.

    >>> all_arrivals(5, 2)
    [[4], [9, 2], [8, 7], [6, 5, 3]]
    """
    rounds: list[list[int]] = [[] for _ in turns(p, segments)]
    for distance in range(1, p):
        for i, segment in arrivals(p, distance, segments).items():
            rounds[i].append((p - distance) * segments + segment)
    return rounds


def broadcasts_reversed(p: int, rank: int, segments: int, blocks: Callable[[int, int], tuple[int, ...]]) -> Steps:
    """Yield a rank's rounds of broadcasts reversed in time; blocks(rank, i) are what a rank gets in round i."""
    ascending = skips(p)[::-1]
    for i, (turn, _) in reversed(list(enumerate(turns(p, segments)))):
        to, back = (rank - ascending[turn]) % p, (rank + ascending[turn]) % p
        mine, theirs = blocks(rank, i), blocks(back, i)
        sends = [Send(to, mine)] if mine else []
        receives = [RecvReduce(back, theirs, "left")] if theirs else []
        if sends or receives:
            yield *sends, *receives


@algorithm(
    "reduce",
    name="circulant",
    blocks=lambda p, segments: segments,
    grid=PROVED,
)
def reduce(p: int, rank: int, *, segments: Fanout = 8) -> Steps:
    """In every round a rank sends a segment on and reduces another: bcast's circulant reversed in time.

    Steps: at most segments - 1 + lg(p) if p > 1 else 0
    Bytes per rank: at most n * lg(p)
    Scratch: at most n / segments + n * (p > 1)
    Cost: (segments - 1 + lg(p)) (α + n/segments (β + γ))
    Source: Träff, Optimal broadcast schedules in logarithmic time with applications, 2024

    >>> [len(reduce(p, 1, segments=4)[0]) for p in (2, 5, 16)]
    [4, 5, 4]
    """

    def blocks(holder: int, i: int) -> tuple[int, ...]:
        segment = arrivals(p, holder, segments).get(i)
        return () if segment is None else (segment,)

    return broadcasts_reversed(p, rank, segments, blocks)


@algorithm(
    "bcast",
    name="circulant",
    blocks=lambda p, segments: segments,
    grid=PROVED,
)
def bcast(p: int, rank: int, *, segments: Fanout = 8) -> Strands:
    """Every rank receives a segment and sends another in every round, in the least rounds that there can be, for any p.

    Steps: at most segments - 1 + lg(p) if p > 1 else 0
    Bytes per rank: at most n * lg(p)
    Scratch: 0
    Cost: (segments - 1 + lg(p)) (α + n/segments β)
    Source: Träff, Optimal broadcast schedules in logarithmic time with applications, 2024

    >>> [len(bcast(p, 1, segments=4)[0]) for p in (2, 5, 16)]
    [4, 5, 4]
    """
    return mirror(reduce(p, rank, segments=segments))


@algorithm("reduce_scatter", name="circulant_segments", blocks=lambda p, segments: segments, grid=PROVED)
def reduce_scatter_segments(p: int, rank: int, *, segments: Fanout = 8) -> Steps:
    """The reductions to all ranks at once, each by reduce's circulant: a message has a segment of every rank's block.

    So all messages are about as long, even if one rank's block is most of the vector; there circulant sends that block
    whole in each of its rounds. With equal blocks circulant sends the same bytes in fewer rounds.

    Steps: segments - 1 + lg(p) if p > 1 else 0
    Bytes per rank: n * (p - 1) / p
    Scratch: at most n
    Cost: (segments - 1 + lg(p)) α + n (p - 1)/p (β + γ)
    Source: Träff, Optimal broadcast schedules in logarithmic time with applications, 2024

    >>> [len(step[0].blocks) for step in reduce_scatter_segments(5, 0, segments=2)[0]]
    [3, 2, 2, 1]
    """
    arriving = all_arrivals(p, segments)

    def blocks(holder: int, i: int) -> tuple[int, ...]:
        return tuple([(block + holder * segments) % (p * segments) for block in arriving[i]])

    return broadcasts_reversed(p, rank, segments, blocks)


@algorithm("allgather", name="circulant_segments", blocks=lambda p, segments: segments, grid=PROVED)
def allgather_segments(p: int, rank: int, *, segments: Fanout = 8) -> Strands:
    """The broadcasts of all ranks at once, each by bcast's circulant: a message has a segment of every rank's block.

    So all messages are about as long, even if one rank's block is most of the vector; there circulant sends that block
    whole in each of its rounds. With equal blocks circulant sends the same bytes in fewer rounds.

    Steps: segments - 1 + lg(p) if p > 1 else 0
    Bytes per rank: n * (p - 1) / p
    Scratch: at most n
    Cost: (segments - 1 + lg(p)) α + n (p - 1)/p β
    Source: Träff, Optimal broadcast schedules in logarithmic time with applications, 2024

    >>> [len(step[0].blocks) for step in allgather_segments(5, 0, segments=2)[0]]
    [1, 2, 2, 3]
    """
    return mirror(reduce_scatter_segments(p, rank, segments=segments))
