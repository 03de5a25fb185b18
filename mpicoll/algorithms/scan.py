"""Scan and exscan: at every rank the vectors of the ranks up to it, or before it, combined."""

from typing import NamedTuple

from ..schedules.blocks import powers_of_two
from ..schedules.ir import INPUT, VALUE, Loc, Op, Recv, RecvReduce, Reduce, Send, Steps
from ..schedules.registry import algorithm


@algorithm("scan", ordered=True)
def linear(p: int, rank: int) -> Steps:
    """Down the line of ranks, each adds its vector to the sum of the ranks before it; pipelined by chunks.

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
    """Down the line of ranks, each keeps the sum of the ranks before it, and sends it on with its own vector added.

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


class Place(NamedTuple):
    """A rank's place in the balanced tree over ranks in order: the ranks below it, and those next to it, if any."""

    first: int  # of the ranks below and itself
    left: int | None
    right: int | None
    parent: int | None
    wanted: bool  # whether the parent needs the sum of all ranks below


def place(p: int, rank: int) -> Place:
    """Return a rank's place: in the middle of the ranks below it, so that a tree of p ranks is lg(p + 1) high.

    >>> [place(7, rank).parent for rank in range(7)], place(7, 5)
    ([1, 3, 1, None, 5, 3, 5], Place(first=4, left=4, right=6, parent=3, wanted=False))
    """
    first, last, parent, wanted = 0, p - 1, None, False
    while (middle := (first + last + 1) // 2) != rank:
        parent, wanted = middle, wanted or rank < middle
        first, last = (first, middle - 1) if rank < middle else (middle + 1, last)
    left = (first + rank) // 2 if first < rank else None
    right = (rank + 2 + last) // 2 if rank < last else None
    return Place(first, left, right, parent, wanted)


@algorithm("scan", ordered=True)
def tree(p: int, rank: int) -> Steps:
    """Sums come up a binary tree over ranks in order, and what the ranks before give goes down; pipelined by chunks.

    Steps: at most 2 * lg(p)
    Bytes per rank: at most 3 * n
    Scratch: at most 3 * n
    Cost: (2 lg(p) + chunks) (α + 3 n/chunks (β + γ))
    Source: Sanders, Träff, Parallel prefix (scan) algorithms for MPI, 2006

    >>> [[(type(op).__name__, op.peer) for op in step if isinstance(op, Send)] for step in tree(7, 1)[0]]
    [[], [('Send', 3)], [('Send', 2)]]
    """
    first, left, right, parent, wanted = place(p, rank)
    value, up, before = Loc(VALUE, 0), Loc("up", 0), Loc("before", 0)
    from_left: list[Op] = [] if left is None else [RecvReduce(left, (0,), "left")]
    from_right: list[Op] = [Recv(right, (0,), up.buffer), Reduce(up, value, "left")] if wanted and right else []
    if from_left or from_right:
        yield *from_left, *from_right
    if wanted and parent is not None:
        yield Send(parent, (0,), up.buffer if right else VALUE)
    if parent is not None and first > 0:
        yield Recv(parent, (0,), before.buffer), Reduce(value, before, "left")
    sends = [Send(left, (0,), before.buffer)] if left is not None and first > 0 else []
    sends += [Send(right, (0,))] if right else []
    if sends:
        yield sends


@algorithm("exscan", ordered=True, name="tree")
def exscan_tree(p: int, rank: int) -> Steps:
    """Scan's tree, where a rank's own vector is in what goes up and on to its right, but not in its result.

    Steps: at most 2 * lg(p)
    Bytes per rank: at most 3 * n
    Scratch: at most 4 * n
    Cost: (2 lg(p) + chunks) (α + 3 n/chunks (β + γ))
    Source: Sanders, Träff, Parallel prefix (scan) algorithms for MPI, 2006

    >>> [[(type(op).__name__, op.peer) for op in step if isinstance(op, Send)] for step in exscan_tree(7, 1)[0]]
    [[], [('Send', 3)], [], [('Send', 2)]]
    """
    first, left, right, parent, wanted = place(p, rank)
    value, own, up, before, onward = (Loc(name, 0) for name in (VALUE, INPUT, "up", "before", "onward"))
    from_left: list[Op] = [] if left is None else [Recv(left, (0,))]
    from_right: list[Op] = [Recv(right, (0,), up.buffer)] if wanted and right else []
    below: list[Op] = [Reduce(up, own, "left"), *([] if left is None else [Reduce(up, value, "left")])]
    if step := [*from_left, *from_right, *(below if wanted else [])]:
        yield step
    if wanted and parent is not None:
        yield Send(parent, (0,), up.buffer)
    if parent is not None and first > 0:
        if left is None:
            yield Recv(parent, (0,))
        else:
            yield Recv(parent, (0,), before.buffer), Reduce(value, before, "left")
    sends = [Send(left, (0,), before.buffer)] if left is not None and first > 0 else []
    if right:
        yield *([Reduce(onward, value)] if rank > 0 else []), Reduce(onward, own)
        sends += [Send(right, (0,), onward.buffer)]
    if sends:
        yield sends
