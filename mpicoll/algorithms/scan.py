"""Scan and exscan: at every rank the vectors of the ranks up to it, or before it, combined."""

from functools import partial
from typing import NamedTuple

from ..schedules.blocks import powers_of_two
from ..schedules.combinators import embed, parallel
from ..schedules.grids import over
from ..schedules.ir import INPUT, VALUE, Loc, Op, Recv, RecvReduce, Reduce, Send, Steps, Strands
from ..schedules.parameters import Fanout
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


@algorithm(
    "exscan", ordered=True, name="recursive_doubling", grid=[over(range(1, 33), k=(1, 2, 3)), over((64,), k=(2,))]
)
def exscan_recursive_doubling(p: int, rank: int, *, k: Fanout = 32) -> Steps:
    """Send own vector and the sum of those before it in k rounds, that sum alone later: skips 1, 2, 3, 6, 12 with k=2.

    A round with the own vector takes two reductions, any other takes one. There are lg(p) rounds if all have it, and at
    most one more with k=2, which is 123-doubling; k=1 is a shift, then a scan.

    Steps: lg(p) if 2**k >= p else k + lg((p - 1) / (2**k - 1))
    Bytes per rank: n * (lg(p) if 2**k >= p else k + lg((p - 1) / (2**k - 1)))
    Scratch: n * (p > 2) + n * (p > 4) * (k > 1)
    Cost: lg(p) (α + n β + 2 n γ), with k=2 (2 + lg((p - 1)/3)) (α + n β + n γ)
    Source: Träff, Communication round and computation efficient exclusive prefix-sums algorithms (for MPI_Exscan), 2025

    >>> [[type(op).__name__ for op in step] for step in exscan_recursive_doubling(5, 2)[0]]
    [['Send', 'Recv', 'Reduce', 'Reduce'], ['Send', 'Recv', 'Reduce']]
    >>> [op.peer for step in exscan_recursive_doubling(30, 0, k=3)[0] for op in step]
    [1, 2, 4]
    """
    value, onward = Loc(VALUE, 0), Loc("onward", 0)
    skips = exclusive_skips(p, k)
    for i, skip in enumerate(skips):
        inclusive = i < k
        step: list[Op] = []
        if rank + skip < p and (inclusive or rank):
            step += [Send(rank + skip, (0,), VALUE if not inclusive else "onward" if rank and i else INPUT)]
        again = any(rank + later < p for later in skips[i + 1 : k])  # own vector and sum are sent once more
        source, came = rank - skip, Loc(f"came {i}", 0)
        if inclusive and source >= 0 == i:
            step += [Recv(source, (0,)), *([Reduce(onward, value), Reduce(onward, Loc(INPUT, 0))] if again else [])]
        elif inclusive and source >= 0:
            step += [Recv(source, (0,), came.buffer), Reduce(value, came, "left")]
            step += [Reduce(onward, came, "left")] if again else []
        elif source > 0:
            step += [RecvReduce(source, (0,), "left")]
        if step:
            yield step


def exclusive_skips(p: int, k: int) -> list[int]:
    """Return the distance of every round's peer: one more than the ranks already combined in k rounds, then as many.

    >>> exclusive_skips(25, 2), exclusive_skips(16, 4)
    ([1, 2, 3, 6, 12], [1, 2, 4, 8])
    """
    skips: list[int] = []
    while sum(skips) < p - 1:
        skips.append(sum(skips) + (len(skips) < k))
    return skips


class Place(NamedTuple):
    """A rank's place in the balanced tree over ranks in order: the ranks below it, and those next to it, if any."""

    first: int  # of the ranks below and itself
    left: int | None
    right: int | None
    parent: int | None
    wanted: bool  # whether the parent needs the sum of all ranks below


def middle(first: int, last: int, inner: int) -> int:
    """Return the rank in the middle of a run that is `inner` modulo 2, if there is one.

    >>> middle(0, 6, 1), middle(0, 6, 0), middle(5, 5, 0)
    (3, 4, 5)
    """
    near = (first + last + 1) // 2
    return near if near % 2 == inner or first == last else near + 1 if near < last else near - 1


def place(p: int, rank: int, inner: int = 1) -> Place:
    """Return a rank's place in the tree in which no rank but those that are `inner` modulo 2 has ranks below it.

    Every rank is near the middle of those below it, so that a tree of p ranks is lg(p) high.

    >>> [place(7, rank).parent for rank in range(7)], place(7, 5)
    ([1, 3, 1, None, 5, 3, 5], Place(first=4, left=4, right=6, parent=3, wanted=False))
    >>> [place(7, rank, 0).parent for rank in range(7)]
    [2, 0, 4, 2, None, 6, 4]
    """
    first, last, parent, wanted = 0, p - 1, None, False
    while (top := middle(first, last, inner)) != rank:
        parent, wanted = top, wanted or rank < top
        first, last = (first, top - 1) if rank < top else (top + 1, last)
    left = middle(first, rank - 1, inner) if first < rank else None
    right = middle(rank + 1, last, inner) if rank < last else None
    return Place(first, left, right, parent, wanted)


@algorithm("scan", ordered=True)
def tree(p: int, rank: int) -> Steps:
    """Sums come up a binary tree over ranks in order, and what the ranks before give goes down; pipelined by chunks.

    Steps: at most 2 * lg(p)
    Bytes per rank: at most 3 * n
    Scratch: at most 2 * n
    Cost: (2 lg(p) + chunks) (α + 3 n/chunks (β + γ))
    Source: Sanders, Träff, Parallel prefix (scan) algorithms for MPI, 2006

    >>> [[(type(op).__name__, op.peer) for op in step if isinstance(op, Send)] for step in tree(7, 1)[0]]
    [[], [('Send', 3)], [('Send', 2)]]
    """
    return up_and_down(p, rank, 1)


@algorithm("scan", ordered=True, blocks=2, strand=lambda block: block)
def double_tree(p: int, rank: int) -> Strands:
    """Half of the vector goes up and down each of two trees in rank order; a rank has ranks below it in one of them.

    Odd ranks have others below them in the first tree, that of `tree`, and even ranks in the second.

    Steps: at most 2 * lg(p)
    Bytes per rank: at most 2 * n
    Scratch: at most 3 * n / 2
    Cost: (2 lg(p) + chunks) (α + 2 n/chunks (β + γ))
    Source: Sanders, Speck, Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009

    >>> [[[op.peer for op in step if isinstance(op, Send)] for step in strand] for strand in double_tree(7, 2)]
    [[[1], []], [[], [4], [3]]]
    """
    return parallel(up_and_down(p, rank, 1), embed(partial(up_and_down, inner=0), range(p), rank, lambda block: (1,)))


def up_and_down(p: int, rank: int, inner: int) -> Steps:
    """Return the steps of a scan of one block on the tree of `place`."""
    first, left, right, parent, wanted = place(p, rank, inner)
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
    Scratch: at most 2 * n
    Cost: (2 lg(p) + chunks) (α + 3 n/chunks (β + γ))
    Source: Sanders, Träff, Parallel prefix (scan) algorithms for MPI, 2006

    >>> [[(type(op).__name__, op.peer) for op in step if isinstance(op, Send)] for step in exscan_tree(7, 1)[0]]
    [[], [('Send', 3)], [], [('Send', 2)]]
    """
    return exclusive_up_and_down(p, rank, 1)


@algorithm("exscan", ordered=True, name="double_tree", blocks=2, strand=lambda block: block)
def exscan_double_tree(p: int, rank: int) -> Strands:
    """Scan's two trees, where a rank's own vector is in what goes up and on to its right, but not in its result.

    Steps: at most 2 * lg(p)
    Bytes per rank: at most 2 * n
    Scratch: at most 3 * n / 2
    Cost: (2 lg(p) + chunks) (α + 2 n/chunks (β + γ))
    Source: Sanders, Speck, Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009

    >>> [[[op.peer for op in step if isinstance(op, Send)] for step in strand] for strand in exscan_double_tree(7, 2)]
    [[[], [1], []], [[], [4], [], [3]]]
    """
    other = embed(partial(exclusive_up_and_down, inner=0), range(p), rank, lambda block: (1,))
    return parallel(exclusive_up_and_down(p, rank, 1), other)


def exclusive_up_and_down(p: int, rank: int, inner: int) -> Steps:
    """Return the steps of an exscan of one block on the tree of `place`."""
    first, left, right, parent, wanted = place(p, rank, inner)
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
