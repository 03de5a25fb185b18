"""Alltoall: a block from every rank to every rank."""

from collections.abc import Sequence
from functools import partial
from itertools import chain, product, repeat

from ..schedules.combinators import Layer
from ..schedules.grids import over
from ..schedules.grouping import dealt, leaders, uneven
from ..schedules.ir import Recv, Send, Steps
from ..schedules.nested import Alltoalling, Gathering, Scattering
from ..schedules.parameters import ALL, NODES, AtMost, Fanout, Grouping, Radix
from ..schedules.registry import algorithm, every


@algorithm("alltoall", uniform=True, direct=True, grid=[over(range(1, 17), k=(1, 3)), over((31,), k=(3, 64))])
def linear(p: int, rank: int, *, k: Fanout = 8) -> Steps:
    """Send to the k next ranks and receive from the k last ones at once, then the k after them, and so on.

    Steps: -(-(p - 1) // k)
    Bytes per rank: n * (p - 1) / p
    Scratch: 0
    Cost: (p - 1) α + n (p - 1)/p β
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005

    >>> [[op.peer for op in step] for step in linear(6, 0, k=3)[0]]
    [[1, 2, 3, 5, 4, 3], [4, 5, 2, 1]]
    """
    for first in range(1, p, k):
        window = range(first, min(first + k, p))
        ahead, behind = [(rank + i) % p for i in window], [(rank - i) % p for i in window]
        yield *(Send(to, ((rank, to),)) for to in ahead), *(Recv(source, ((source, rank),)) for source in behind)


@algorithm("alltoall", uniform=True, direct=True)
def pairwise(p: int, rank: int) -> Steps:
    """In step i send to the rank i further on and receive from the rank i back, so that no link is shared.

    Steps: p - 1
    Bytes per rank: n * (p - 1) / p
    Scratch: 0
    Cost: (p - 1) α + n (p - 1)/p β
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005

    >>> [op.blocks for step in pairwise(3, 0)[0] for op in step]
    [((0, 1),), ((2, 0),), ((0, 2),), ((1, 0),)]
    """
    for i in range(1, p):
        to, source = (rank + i) % p, (rank - i) % p
        yield Send(to, ((rank, to),)), Recv(source, ((source, rank),))


@algorithm(
    "alltoall",
    uniform=True,
    grid=[
        over(range(1, 17), k=(3, 5, 8)),
        over((27, 31), k=(3, 8)),
        over((3, 5, 8, 11, 16, 27, 31), k=(4, 64), ports=(1, 2)),
    ],
)
def bruck(p: int, rank: int, *, k: Radix = 2, ports: AtMost = ALL) -> Steps:
    """A block i ranks from home travels by the digits of i in base k: few large messages in the place of many.

    The messages of a digit, k - 1 or fewer, travel at once, or as many of them as there are ports. With ports=1 this
    is TuNA, a message for each digit and value. A block is in scratch only where a rank forwards it: the first rank
    sends it from its input, the last receives it in its place. As alltoallv it has two phases, as TuNA has: ranks
    exchange the counts of all blocks, then the blocks.

    Steps: sum(-(-min(k - 1, (p - 1) // k**i) // ports) for i in range(lg(p, k)))
    Bytes per rank: n / p * sum(p - digit(k, i, 0) for i in range(lg(p, k)))
    Scratch: n / p * max([0] + [sum(digit(k, j, z) for j in range(i) for z in range(1, k) if z * k**j + x * k**i < p)
        + sum(digit(k, i, z) for z in range(1, x) if z * k**i + k**(i + 1) < p)
        + 2 * sum(m for z in range(x, min(x + ports, k)) if (m := digit(k, i, z)) > 1)
        for i in range(lg(p, k)) for x in range(1, k, ports)])
    Cost: lg(p, k) ⌈(k - 1)/ports⌉ α + n (k - 1)/k lg(p, k) β
    Source: Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, \
1997; with ports=1 Fan et al., Configurable non-uniform all-to-all algorithms, 2024

    >>> [op.blocks for step in bruck(4, 0)[0] for op in step if isinstance(op, Send)]
    [((0, 1), (0, 3)), ((0, 2), (3, 2))]
    >>> [[op.peer for op in step if isinstance(op, Send)] for step in bruck(9, 0, k=4, ports=2)[0]]
    [[1, 2], [3], [4, 8]]
    """
    reach = 1
    while reach < p:

        def carried(holder: int, hop: int, reach: int = reach) -> tuple[tuple[int, int], ...]:
            sources = [(holder - came) % p for came in range(reach)]
            left = range(hop, p, k * reach)  # from the holder to destinations
            return tuple(chain.from_iterable(zip(sources[: p - far], repeat((holder + far) % p)) for far in left))

        hops = range(reach, min(k * reach, p), reach)
        for first in range(0, len(hops), ports):
            window = hops[first : first + ports]
            sends = [Send((rank + hop) % p, carried(rank, hop)) for hop in window]
            yield *sends, *(Recv((rank - hop) % p, carried((rank - hop) % p, hop)) for hop in window)
        reach *= k


@algorithm(
    "alltoall",
    layered=True,
    grid=[
        over(range(1, 14), groups=(3, uneven, dealt)),
        over(
            (5, 6, 7),
            paired=True,
            inner=every("gather"),
            middle=every("alltoall"),
            scatter=every("scatter"),
            groups=(uneven,),
        ),
    ],
)
def hierarchical(
    p: int,
    *,
    inner: Gathering = "binomial",
    middle: Alltoalling = "pairwise",
    scatter: Scattering = "binomial",
    groups: Grouping = NODES,
) -> list[Layer]:
    """Gather what a group sends at its first rank, alltoall among these, scatter what a group gets inside it.

    Steps: at most max(steps(inner, len(g)) + steps(scatter, len(g)) for g in groups) + steps(middle, len(groups))
    Bytes per rank: at most max(a + b + c - min(a, b, c) for g in groups
        for a in [moved(inner, len(g), n * (p - 1) / p * len(g))]
        for b in [moved(middle, len(groups), n / p * len(groups) * largest(groups) ** 2)]
        for c in [moved(scatter, len(g), n * (p - 1) / p * len(g))])
    Scratch: at most 2 * (moved(middle, len(groups), n / p * len(groups) * largest(groups) ** 2)
        + max(moved(inner, len(g), m) + moved(scatter, len(g), m) for g in groups for m in [n * (p - 1) / p * len(g)]))
    Cost: that of the parts; for nodes of m ranks (h - 1) α + m n (h - 1)/h β across h nodes with middle=pairwise
    Source: Kumar et al., Scaling alltoall collective on multi-core systems, 2008

    >>> [op.blocks for step in hierarchical(4, 1, groups=2)[0] for op in step]
    [((1, 0), (1, 2), (1, 3)), ((0, 1), (2, 1), (3, 1))]
    """
    layers = [middle.layer(leaders(groups), lambda pair: list(product(groups[pair[0]], groups[pair[1]])))]
    for group in groups:
        layers.insert(0, inner.layer(group, partial(_sent, p, group)))
        layers.append(scatter.layer(group, partial(_received, p, group)))
    return layers


def _sent(p: int, group: Sequence[int], place: int) -> list[tuple[int, int]]:
    """Return what the rank at a place in its group sends to others."""
    return [(group[place], other) for other in range(p) if other != group[place]]


def _received(p: int, group: Sequence[int], place: int) -> list[tuple[int, int]]:
    """Return what the rank at a place in its group receives from others."""
    return [(other, group[place]) for other in range(p) if other != group[place]]
