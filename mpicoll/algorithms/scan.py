"""Scan and exscan: at every rank the vectors of the ranks up to it, or before it, combined."""

from ..schedules.blocks import powers_of_two
from ..schedules.ir import INPUT, VALUE, Loc, Op, Recv, RecvReduce, Reduce, Send, Steps
from ..schedules.registry import algorithm


@algorithm("scan", ordered=True)
def linear(p: int, rank: int) -> Steps:
    """Down the line of ranks, each folds its vector into what the ranks before it gave; pipelined by chunks.

    Steps: p - 1
    Bytes per rank: n * (p > 1)
    Scratch: n * (p > 1)
    Cost: (p - 2 + chunks) (α + n/chunks (β + γ))
    Source: the definition (MPI 1.1, 1995), carried out literally

    >>> [op.peer for step in linear(4, 2)[0] for op in step]
    [1, 3]
    """
    if rank > 0:
        yield RecvReduce(rank - 1, (0,), "left")
    if rank < p - 1:
        yield Send(rank + 1, (0,))


@algorithm("exscan", ordered=True, name="linear")
def exscan_linear(p: int, rank: int) -> Steps:
    """Down the line of ranks, each keeps what the ranks before it gave and passes it on with its own vector folded in.

    Steps: p - 1
    Bytes per rank: n * (p > 1)
    Scratch: n * (p > 2)
    Cost: (p - 2 + chunks) (α + n/chunks (β + γ))
    Source: the definition (MPI 2.0, 1997), carried out literally

    >>> [type(op).__name__ for step in exscan_linear(4, 2)[0] for op in step]
    ['Recv', 'Reduce', 'Reduce', 'Send']
    """
    if rank == 0:
        if p > 1:
            yield Send(1, (0,))
        return
    yield Recv(rank - 1, (0,))
    if rank < p - 1:
        onward = Loc("onward", 0)
        yield Reduce(onward, Loc(VALUE, 0)), Reduce(onward, Loc(INPUT, 0), "right")
        yield Send(rank + 1, (0,), "onward")


@algorithm("scan", ordered=True)
def recursive_doubling(p: int, rank: int) -> Steps:
    """Send the partial result to the rank 1, 2, 4 … further on; the ranks combined in it double each step.

    Steps: lg(p)
    Bytes per rank: n * lg(p)
    Scratch: n * (p > 1)
    Cost: lg(p) (α + n β + n γ)
    Source: Kogge, Stone, A parallel algorithm for the efficient solution of a general class of recurrence \
equations, 1973

    >>> [[op.peer for op in step] for step in recursive_doubling(5, 2)[0]]
    [[3, 1], [4, 0]]
    """
    for distance in powers_of_two(p):
        ahead = [Send(rank + distance, (0,))] if rank + distance < p else []
        behind = [RecvReduce(rank - distance, (0,), "left")] if rank >= distance else []
        if ahead or behind:
            yield *ahead, *behind


@algorithm("exscan", ordered=True, name="recursive_doubling")
def exscan_recursive_doubling(p: int, rank: int) -> Steps:
    """Scan's recursive doubling with two results: what came, and what came with one's own vector to send onward.

    Steps: lg(p)
    Bytes per rank: n * lg(p)
    Scratch: n * ((p > 2) + (p > 4))
    Cost: lg(p) (α + n β + 2 n γ)
    Source: Kogge, Stone, A parallel algorithm for the efficient solution of a general class of recurrence \
equations, 1973

    >>> [[type(op).__name__ for op in step] for step in exscan_recursive_doubling(5, 2)[0]]
    [['Send', 'Recv', 'Reduce', 'Reduce'], ['Send', 'Recv', 'Reduce']]
    """
    value, onward = Loc(VALUE, 0), Loc("onward", 0)
    for distance in powers_of_two(p):
        step: list[Op] = []
        came = Loc(f"came {distance}", 0)
        if rank + distance < p:
            step += [Send(rank + distance, (0,), "onward" if rank and distance > 1 else INPUT)]
        again = rank + 2 * distance < p  # what is sent onward is needed once more
        if rank >= distance == 1:
            step += [Recv(rank - 1, (0,)), *([Reduce(onward, value), Reduce(onward, Loc(INPUT, 0))] if again else [])]
        elif rank >= distance:
            step += [Recv(rank - distance, (0,), came.buffer), Reduce(value, came, "left")]
            step += [Reduce(onward, came, "left")] if again else []
        if step:
            yield step
