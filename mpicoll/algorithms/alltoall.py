"""Alltoall: a block from every rank to every rank."""

from ..blocks import powers_of_two
from ..ir import Recv, Send, Steps
from ..schedule import algorithm


@algorithm("alltoall")
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


@algorithm("alltoall")
def bruck(p: int, rank: int) -> Steps:
    """A block i ranks from home travels by the bits of i, so that few large messages replace many small ones.

    Steps: lg(p)
    Bytes per rank: n / p * sum(ones(k) for k in range(lg(p)))
    Scratch: n / p * max([0] + [sum(ones(j) for j in range(k) if 2**k + 2**j < p) + 2 * ones(k)
        for k in range(lg(p)) if ones(k) > 1])
    Cost: lg(p) α + n/2 lg(p) β
    Source: Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, 1997

    >>> [op.blocks for step in bruck(4, 0)[0] for op in step if isinstance(op, Send)]
    [((0, 1), (0, 3)), ((0, 2), (3, 2))]
    """
    for bit in powers_of_two(p):
        leaving = [i for i in range(p) if i & bit]

        def carried(holder: int, leaving: list[int] = leaving, bit: int = bit) -> tuple[tuple[int, int], ...]:
            sources = [(holder - i % bit) % p for i in leaving]
            return tuple((s, (s + i) % p) for s, i in zip(sources, leaving, strict=True))

        yield Send((rank + bit) % p, carried(rank)), Recv((rank - bit) % p, carried((rank - bit) % p))
