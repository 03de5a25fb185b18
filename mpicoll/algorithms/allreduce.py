"""Allreduce: everybody's vectors combined, everywhere."""

from ..blocks import power_of_two_floor, powers_of_two
from ..combine import Program, fold, mirror, then
from ..ir import RecvReduce, Send, Steps, Strands
from ..schedule import algorithm, find
from . import allgather, reduce_scatter


@algorithm("allreduce", ordered=True)
def naive(p: int, rank: int) -> Steps:
    """Everybody sends its whole vector to everybody, and folds all it gets in rank order.

    Steps: p > 1
    Bytes per rank: n * (p - 1)
    Scratch: n * (p - 1)
    Cost: (p - 1) (α + n β + n γ)
    Source: the definition (MPI 1.1, 1995), carried out literally

    >>> [type(op).__name__ for op in naive(3, 1)[0][0]]
    ['Send', 'Send', 'RecvReduce', 'RecvReduce']
    """
    if p > 1:
        lower = [RecvReduce(peer, (0,), "left") for peer in range(rank - 1, -1, -1)]
        upper = [RecvReduce(peer, (0,), "right") for peer in range(rank + 1, p)]
        yield *(Send(peer, (0,)) for peer in range(p) if peer != rank), *lower, *upper


@algorithm("allreduce", blocks=lambda p: p)
def ring(p: int, rank: int) -> Strands:
    """Each block goes round the ring twice: folded by every rank, then handed to every rank.

    Steps: 2 * (p - 1)
    Bytes per rank: 2 * n * (p - 1) / p
    Scratch: n / p * (p > 1)
    Cost: 2 (p - 1) α + 2 n (p - 1)/p β + n (p - 1)/p γ
    Source: Patarasu, Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009

    >>> len(ring(5, 0)[0])
    8
    """
    return then(reduce_scatter.ring(p, rank), allgather.ring(p, rank))


def exchange(p: int, rank: int) -> Steps:
    """The power-of-two core: swap whole vectors with the rank one bit away, the lowest bit first."""
    for bit in powers_of_two(p):
        peer = rank ^ bit
        yield Send(peer, (0,)), RecvReduce(peer, (0,), "left" if peer < rank else "right")


@algorithm("allreduce", ordered=True)
def recursive_doubling(p: int, rank: int) -> Strands:
    """Swap whole vectors with the rank 1, 2, 4 … away; extra ranks fold into a neighbour first.

    Steps: lg(q) + 2 * (p > q)
    Bytes per rank: n * (lg(q) + (p > q))
    Scratch: n * (p > 1)
    Cost: lg(q) (α + n β + n γ), and 2 α + 2 n β + n γ where p is not a power of two
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005

    >>> [step[0].peer for step in recursive_doubling(8, 0)[0]]
    [1, 2, 4]
    """
    return fold(exchange, p, rank, (0,))


def _halve_and_double(p: int, rank: int) -> Strands:
    return then(reduce_scatter.halving(p, rank), mirror(reduce_scatter.halving(p, rank)))


@algorithm("allreduce", blocks=power_of_two_floor)
def rabenseifner(p: int, rank: int) -> Strands:
    """Reduce-scatter by recursive halving, then allgather by the same steps reversed in time.

    Steps: 2 * lg(q) + 2 * (p > q)
    Bytes per rank: 2 * n * (q - 1) / q + n * (p > q)
    Scratch: n if p > q else n / 2 * (p > 1)
    Cost: 2 lg(q) α + 2 n (q - 1)/q β + n (q - 1)/q γ, and 2 α + 2 n β + n γ where p is not a power of two
    Source: Rabenseifner, Optimization of collective reduction operations, 2004

    >>> [len(step[0].blocks) for step in rabenseifner(8, 0)[0]]
    [4, 2, 1, 1, 2, 4]
    """
    return fold(_halve_and_double, p, rank, range(power_of_two_floor(p)))


@algorithm("allreduce", ordered=lambda reduce, bcast: find("reduce", reduce).keeps_order())
def reduce_bcast(p: int, rank: int, *, reduce: str = "binomial", bcast: str = "binomial") -> Strands:
    """Reduce to rank 0, then broadcast, each by any registered algorithm of one block.

    Steps: 2 * lg(p)
    Bytes per rank: n * lg(p)
    Scratch: n * (p > 1)
    Cost: 2 lg(p) (α + n β) + lg(p) n γ
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005

    >>> [step[0].peer for step in reduce_bcast(4, 0)[0]]
    [1, 2, 2, 1]
    """
    first: Program = find("reduce", reduce)
    second: Program = find("bcast", bcast)
    return then(first(p, rank), second(p, rank))
