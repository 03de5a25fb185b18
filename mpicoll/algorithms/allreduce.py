"""Allreduce: the vectors of all ranks reduced, at every rank."""

from math import lcm
from typing import Annotated

from ..schedules.blocks import consecutive, power_floor, power_of_two_floor
from ..schedules.combinators import Layer, embed, fold, mirror, parallel, relabel, then
from ..schedules.grids import over
from ..schedules.grouping import dealt, in_order, leaders, uneven
from ..schedules.ir import Recv, RecvReduce, Send, Steps, Strands, strands
from ..schedules.nested import Allreducing, Broadcasting, Reducing
from ..schedules.parameters import NODES, Grouping, OneOf, Radix, Share
from ..schedules.registry import algorithm, every
from . import allgather, reduce_scatter
from .reduce import common_blocks


@algorithm("allreduce", ordered=True)
def naive(p: int, rank: int) -> Steps:
    """Every rank sends its whole vector to every other, and reduces all vectors in rank order.

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


@algorithm("allreduce", uniform=True, blocks=lambda p: p, divides_at_owner=True)
def ring(p: int, rank: int) -> Strands:
    """Each block goes round the ring twice: every rank reduces into it, then every rank receives the result.

    Steps: 2 * (p - 1)
    Bytes per rank: 2 * n * (p - 1) / p
    Scratch: n / p * (p > 1)
    Cost: 2 (p - 1) α + 2 n (p - 1)/p β + n (p - 1)/p γ
    Source: Patarasu, Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009

    >>> len(ring(5, 0)[0])
    8
    """
    return then(reduce_scatter.ring(p, rank), allgather.ring(p, rank))


@algorithm("allreduce", blocks=lambda p: 2 * p, strand=lambda block: block % 2, divides_at_owner=True)
def ring_bidirectional(p: int, rank: int) -> Strands:
    """Half of the vector goes round the ring one way, half the other way, so that links work in both directions.

    Steps: 2 * (p - 1)
    Bytes per rank: 2 * n * (p - 1) / p
    Scratch: n / p * (p > 1)
    Cost: 2 (p - 1) α + 2 n (p - 1)/p β + n (p - 1)/p γ, β half of the ring's where a link carries both directions
    Source: Jain, Sabharwal, Optimal bucket algorithms for large MPI collectives on torus interconnects, 2010

    >>> [strand[0][0].peer for strand in ring_bidirectional(5, 0)]
    [1, 4]
    """
    there = relabel(ring(p, rank), lambda r: r, lambda b: (2 * b,))
    back = relabel(ring(p, -rank % p), lambda r: -r % p, lambda b: (2 * b + 1,))
    return parallel(there, back)


def exchange(p: int, rank: int, k: int = 2) -> Steps:
    """The core for a power of k: swap whole vectors with the ranks that differ in one digit, the lowest digit first."""
    stride = 1
    while stride < p:
        digit = rank // stride % k
        peers = [rank + (other - digit) * stride for other in range(k) if other != digit]
        lower = [RecvReduce(peer, (0,), "left") for peer in reversed(peers) if peer < rank]
        upper = [RecvReduce(peer, (0,), "right") for peer in peers if peer > rank]
        yield *(Send(peer, (0,)) for peer in peers), *lower, *upper
        stride *= k


@algorithm("allreduce", ordered=True, divides_at_owner=True)
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


@algorithm(
    "allreduce",
    ordered=True,
    divides_at_owner=True,
    grid=[over(range(1, 28), k=(2, 3, 5, 8)), over((31, 49, 64), k=(3, 4, 7))],
)
def recursive_multiplying(p: int, rank: int, *, k: Radix = 4) -> Strands:
    """Swap whole vectors with k - 1 ranks at once, 1, k, k² … apart; extra ranks fold into a neighbour first.

    Steps: lg(power(k), k) + 2 * (p > power(k))
    Bytes per rank: n * ((k - 1) * lg(power(k), k) + (p - 1) // power(k))
    Scratch: n * (k - 1 if p >= k else p - 1)
    Cost: log_k(p) (α + (k - 1) (n β + n γ)), and 2 α + 2 n β + n γ for every rank folded in
    Source: Wilkins et al., Generalized collective algorithms for the exascale era, 2023

    >>> [op.peer for op in recursive_multiplying(9, 1, k=3)[0][0] if isinstance(op, Send)]
    [0, 2]
    """
    return fold(lambda p, rank: exchange(p, rank, k), p, rank, (0,), core=power_floor(p, k))


def _halve_and_double(p: int, rank: int) -> Strands:
    halving = strands(reduce_scatter.halving(p, rank))
    return then(halving, mirror(halving))


@algorithm("allreduce", blocks=power_of_two_floor, divides_at_owner=True)
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
    return fold(_halve_and_double, p, rank, consecutive(0, power_of_two_floor(p)))


def _binary_blocks(p: int, rank: int) -> Steps | Strands:
    """Runs of 8, 4, 1 ranks (for 13) halve on their own; the shares go up from run to run, and back before doubling."""
    q = power_of_two_floor(p)
    runs = [range(p >> bit + 1 << bit + 1, p >> bit << bit) for bit in reversed(range(p.bit_length())) if p >> bit & 1]
    own = next(i for i, run in enumerate(runs) if rank in run)

    def shares(i: int, member: int) -> range:
        return range(member * q // len(runs[i]), (member + 1) * q // len(runs[i]))

    def meet(other: int) -> list[tuple[int, tuple[int, ...]]]:
        """The ranks of another run that have blocks of ours, and those blocks."""
        mine = set(shares(own, rank - runs[own][0]))
        held = [(peer, tuple(sorted(mine & set(shares(other, m))))) for m, peer in enumerate(runs[other])]
        return [(peer, blocks) for peer, blocks in held if blocks]

    core = embed(reduce_scatter.halving, runs[own], rank, lambda b: tuple(shares(own, b)))
    up = [tuple(RecvReduce(peer, b, "right") for peer, b in meet(own + 1))] if own + 1 < len(runs) else []
    on = [tuple(Send(peer, b) for peer, b in meet(own - 1))] if own else []
    return then(core, up, on, mirror(then(core, up, on)))


@algorithm(
    "allreduce",
    blocks=lambda p, form: power_of_two_floor(p),
    divides_at_owner=True,
    grid=[over(form=("fold", "binary_blocks"))],
)
def halving_doubling(p: int, rank: int, *, form: Annotated[str, OneOf(("fold", "binary_blocks"))] = "fold") -> Strands:
    """Reduce-scatter by halving, allgather by doubling; the p - q extra ranks fold into the first, or halve in blocks.

    form=fold: rank q + i hands its vector to rank i and gets the result back (8 + 5 for 13 ranks). form=binary_blocks:
    runs of 8, 4 and 1 ranks halve on their own and hand their shares on to the next larger run.

    Steps: 2 * lg(q) + 2 * (p > q)
    Bytes per rank: 2 * n * (q - 1) / q + (n if form == "fold" else n / q if (p - q) & (p - q - 1) == 0
        else 2 * n / q) * (p > q)
    Scratch: n if form == "fold" and p > q else n / 2 * (p > 1)
    Cost: 2 lg(p) α + 2 n β + n γ, and with form=fold n (β + γ) and n β more where p is not a power of two
    Source: Rabenseifner, Optimization of collective reduction operations, 2004

    >>> [op.peer for op in halving_doubling(13, 12)[0][0]], [op.peer for op in halving_doubling(13, 12, \
form="binary_blocks")[0][0]]
    ([4], [8, 9, 10, 11])
    """
    if form == "binary_blocks":
        return strands(_binary_blocks(p, rank))
    q = power_of_two_floor(p)
    everything, extra = consecutive(0, q), rank + q
    if rank >= q:
        return then([Send(rank - q, everything)], [Recv(rank - q, everything)])
    core = _halve_and_double(q, rank)
    return then([RecvReduce(extra, everything)], core, [Send(extra, everything)]) if extra < p else core


@algorithm(
    "allreduce",
    blocks=lambda p, servers: servers,
    ordered=True,
    divides_at_owner=True,
    grid=[over(servers=lambda p: sorted({1, min(2, p), p // 2 or 1, p}))],
)
def parameter_server(p: int, rank: int, *, servers: Share = 1) -> Steps:
    """Each of the first ranks, the servers, owns an equal part of the vector, reduces all ranks' and returns the sum.

    Steps: 2 * (p > 1)
    Bytes per rank: n * (p + servers - 2) / servers
    Scratch: n * (p - 1) / servers
    Cost: 2 α + 2 n (p - 1)/servers β + n (p - 1)/servers γ
    Source: Li et al., Scaling distributed machine learning with the parameter server, 2014

    >>> [op.peer for op in parameter_server(4, 3, servers=2)[0][0]]
    [0, 1]
    """
    own = (rank,) if rank < servers else ()
    others = [peer for peer in range(p) if peer != rank]
    mine = [peer for peer in range(servers) if peer != rank]
    lower = [RecvReduce(peer, own, "left") for peer in reversed(others) if own and peer < rank]
    upper = [RecvReduce(peer, own, "right") for peer in others if own and peer > rank]
    if p > 1:
        yield *(Send(peer, (peer,)) for peer in mine), *lower, *upper
        yield *(Send(peer, own) for peer in others if own), *(Recv(peer, (peer,)) for peer in mine)


@algorithm(
    "allreduce",
    layered=True,
    blocks=lambda p, reduce, bcast: lcm(reduce.blocks(range(p)), bcast.blocks(range(p))),
    ordered=lambda p, reduce, bcast: reduce.ordered(range(p)),
    grid=[over((1, 2, 3, 6, 8, 11), paired=True, reduce=every("reduce"), bcast=every("bcast"))],
)
def reduce_bcast(p: int, *, reduce: Reducing = "binomial", bcast: Broadcasting = "binomial") -> list[Layer]:
    """Reduce to rank 0, then broadcast, each by any registered algorithm.

    Steps: at most steps(reduce, p) + steps(bcast, p)
    Bytes per rank: at most moved(reduce, p) + moved(bcast, p)
    Scratch: at most scratch(reduce, p) + scratch(bcast, p)
    Cost: 2 lg(p) (α + n β) + lg(p) n γ with binomial trees
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005

    >>> [step[0].peer for step in reduce_bcast(4, 0)[0]]
    [1, 2, 2, 1]
    """
    total = lcm(reduce.blocks(range(p)), bcast.blocks(range(p)))
    return [reduce.evenly(range(p), total), bcast.evenly(range(p), total)]


@algorithm("allreduce", layered=True, ordered=True, divides_at_owner=True)
def tree(p: int) -> list[Layer]:
    """Up a binomial tree and down again: reduce_bcast with binomial trees both ways, by its common name.

    Steps: 2 * lg(p)
    Bytes per rank: n * lg(p)
    Scratch: n * (p > 1)
    Cost: 2 lg(p) (α + n β) + lg(p) n γ
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005

    >>> [step[0].peer for step in tree(4, 0)[0]]
    [1, 2, 2, 1]
    """
    layers: list[Layer] = reduce_bcast.body(p, **reduce_bcast.resolve(p))
    return layers


@algorithm("allreduce", layered=True, blocks=2, strand=lambda block: block % 2, divides_at_owner=True)
def double_tree(p: int) -> list[Layer]:
    """Each half of the vector goes up and down a binary tree of its own; a rank has children in one of the two only.

    Steps: 2 * lg(p)
    Bytes per rank: n * min(p, 4) / 2 * (p > 1)
    Scratch: n * (p > 1)
    Cost: 2 (lg(p) + chunks) (2 α + n/chunks β) + n γ, both ways at once where chunks follow each other
    Source: Sanders, Speck, Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009

    >>> len(double_tree(8, 3))
    2
    """
    resolved = reduce_bcast.resolve(p, reduce="double_tree", bcast="double_tree")
    layers: list[Layer] = reduce_bcast.body(p, **resolved)
    return layers


@algorithm(
    "allreduce",
    layered=True,
    blocks=common_blocks,
    ordered=in_order,
    grid=[
        over(groups=(3, uneven, dealt)),
        over(
            (6, 7, 11),
            paired=True,
            inner=every("reduce", "hierarchical"),
            middle=every("allreduce", "hierarchical"),
            groups=(uneven,),
        ),
    ],
)
def hierarchical(
    p: int, *, inner: Reducing = "binomial", middle: Allreducing = "ring", groups: Grouping = NODES
) -> list[Layer]:
    """Reduce inside every node to its first rank, allreduce among those, broadcast inside by the same steps reversed.

    Steps: at most 2 * max(steps(inner, len(g)) for g in groups) + steps(middle, len(groups))
    Bytes per rank: at most 2 * max(moved(inner, len(g)) for g in groups) + moved(middle, len(groups))
    Scratch: at most n + 2 * max(scratch(inner, len(g)) for g in groups) + scratch(middle, len(groups))
    Cost: that of the parts; across nodes 2 n (h - 1)/h β for h nodes and middle=ring, whatever the placement
    Source: Karonis et al., Exploiting hierarchy in parallel computer networks to optimize collective operation \
performance, 2000

    >>> len(hierarchical(6, 1, groups=3)[0])
    2
    """
    total = common_blocks(p, inner, middle, groups)
    inside = [inner.evenly(group, total) for group in groups]
    outside = [inner.evenly(group, total, mirrored=True) for group in groups]
    return [*inside, middle.evenly(leaders(groups), total), *outside]
