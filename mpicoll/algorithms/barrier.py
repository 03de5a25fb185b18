"""Barrier: no rank leaves before every rank has entered."""

from ..schedules.blocks import power_of_two_floor, powers_of_two
from ..schedules.combinators import embed, forward, mirror, then
from ..schedules.grids import over
from ..schedules.ir import Local, Recv, Send, Steps, Strands
from ..schedules.parameters import Radix
from ..schedules.registry import algorithm
from . import gather


def _tokens(part: Strands) -> Strands:
    """Return the same messages without their blocks."""
    return Strands(
        tuple(tuple(op._replace(blocks=()) for op in step if not isinstance(op, Local)) for step in strand)
        for strand in part
    )


@algorithm("barrier")
def linear(p: int, rank: int) -> Strands:
    """All ranks notify rank 0, which then notifies all.

    Steps: 2 * (p > 1)
    Bytes per rank: 0
    Scratch: 0
    Cost: 2 (p - 1) α
    Source: Mellor-Crummey, Scott, Algorithms for scalable synchronization on shared-memory multiprocessors, 1991

    >>> [op.peer for step in linear(3, 0)[0] for op in step]
    [1, 2, 1, 2]
    """
    up = _tokens(gather.linear(p, rank))
    return then(up, mirror(up))


@algorithm("barrier", grid=[over(range(1, 17), k=(3, 5, 8)), over((31, 64), k=(3, 8))])
def tree(p: int, rank: int, *, k: Radix = 2) -> Strands:
    """Gather arrivals up a k-ary tree, then broadcast the release down it.

    Steps: 2 * lg(p, k)
    Bytes per rank: 0
    Scratch: 0
    Cost: 2 lg(p, k) α
    Source: Mellor-Crummey, Scott, Algorithms for scalable synchronization on shared-memory multiprocessors, 1991

    >>> [[op.peer for op in step] for step in tree(7, 0, k=3)[0]]
    [[1, 2], [3, 6], [3, 6], [1, 2]]
    """
    up = _tokens(gather.knomial(p, rank, k=k))
    return then(up, mirror(up))


@algorithm("barrier")
def recursive_doubling(p: int, rank: int) -> Strands:
    """Exchange notifications with the rank 1, 2, 4 … away; extra ranks notify a neighbour first and hear from it last.

    Steps: lg(q) + 2 * (p > q)
    Bytes per rank: 0
    Scratch: 0
    Cost: lg(q) α, and 2 α where p is not a power of two
    Source: Pješivac-Grbović et al., Performance analysis of MPI collective operations, 2007

    >>> [op.peer for step in recursive_doubling(5, 1)[0] for op in step]
    [0, 0]
    """

    def swap(p: int, rank: int) -> Steps:
        for bit in powers_of_two(p):
            yield Send(rank ^ bit, ()), Recv(rank ^ bit, ())

    extra = p - power_of_two_floor(p)
    core = embed(swap, [*range(0, 2 * extra, 2), *range(2 * extra, p)], rank)
    if rank >= 2 * extra:
        return core
    low, high = rank & ~1, rank | 1
    return then(forward((), rank, high, low), core, forward((), rank, low, high))


@algorithm("barrier", uniform=True, grid=[over(range(1, 17), k=(3, 5, 8)), over((27, 31, 64), k=(3, 8))])
def dissemination(p: int, rank: int, *, k: Radix = 2) -> Steps:
    """In round i all ranks notify the ranks k^i, 2 k^i … further on, so that the known ranks grow k-fold each round.

    Steps: lg(p, k)
    Bytes per rank: 0
    Scratch: 0
    Cost: lg(p, k) α
    Source: Hensgen, Finkel, Manber, Two algorithms for barrier synchronization, 1988; for any k Hoefler et al., Fast \
barrier synchronization for InfiniBand, 2006

    >>> dissemination(3, 0)[0]
    ((Send(peer=1, blocks=(), buffer='value'), Recv(peer=2, blocks=(), buffer='value')), \
(Send(peer=2, blocks=(), buffer='value'), Recv(peer=1, blocks=(), buffer='value')))
    """
    reach = 1
    while reach < p:
        ahead = range(reach, min(k * reach, p), reach)
        yield *(Send((rank + i) % p, ()) for i in ahead), *(Recv((rank - i) % p, ()) for i in ahead)
        reach *= k


@algorithm("barrier")
def double_ring(p: int, rank: int) -> Strands:
    """A token goes twice round the ring: first to collect arrivals, then to release the ranks.

    Steps: 2 * p * (p > 1)
    Bytes per rank: 0
    Scratch: 0
    Cost: 2 p α
    Source: Pješivac-Grbović et al., Performance analysis of MPI collective operations, 2007

    >>> [type(op).__name__ for step in double_ring(3, 1)[0] for op in step]
    ['Recv', 'Send', 'Recv', 'Send']
    """
    if p == 1:
        return Strands(((),))
    on, back = [Send((rank + 1) % p, ())], [Recv((rank - 1) % p, ())]
    once = then(back, on) if rank else then(on, back)
    return then(once, once)
