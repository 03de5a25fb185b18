"""Barrier: nobody leaves before everybody has come."""

from ..blocks import powers_of_two
from ..ir import Recv, Send, Steps
from ..schedule import algorithm


@algorithm("barrier")
def dissemination(p: int, rank: int) -> Steps:
    """In round k everybody tells the rank 2^k further on, so that what is known doubles each round.

    Steps: lg(p)
    Bytes per rank: 0
    Scratch: 0
    Cost: lg(p) α
    Source: Hensgen, Finkel, Manber, Two algorithms for barrier synchronization, 1988

    >>> dissemination(3, 0)[0]
    ((Send(peer=1, blocks=(), buffer='value'), Recv(peer=2, blocks=(), buffer='value')), \
(Send(peer=2, blocks=(), buffer='value'), Recv(peer=1, blocks=(), buffer='value')))
    """
    for distance in powers_of_two(p):
        yield Send((rank + distance) % p, ()), Recv((rank - distance) % p, ())
