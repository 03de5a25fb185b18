"""A bcast as a program writes one outside mpicoll: the content of a file for `mpicoll --load`."""

MINE = '''\
from mpicoll import algorithm
from mpicoll.schedules.ir import Recv, Send


@algorithm("bcast")
def mine(p, rank):
    """The root sends to one after the other.

    Steps: p - 1
    Bytes per rank: n * (p - 1)
    Scratch: 0
    Cost: (p - 1) (α + n β)
    Source: none
    """
    if rank == 0:
        yield from (Send(peer, (0,)) for peer in range(1, p))
    else:
        yield Recv(0, (0,))
'''
