"""The rules for calls in which ranks' shares of the vector differ, and all ranks know all counts, as in allgatherv.

Calls are in classes by their skew, the largest count over the mean of counts: below 1.5 the shares are called even, and
the rules for equal shares serve. Class k holds skews from 1.5 * 2^(k-1) to 1.5 * 2^k. For a class, the model simulates
calls in which one rank has 2^k times the mean, and the other ranks have equal shares. So rules depend on the class
only, and compiled code can check the class of a call from two numbers (fastpath/rebind.py). Where ranks share
processors, messages decide and not bytes, and all calls are even.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..cost import event_loop
from ..cost.model import WHOLE
from ..cost.network import Network, two_level
from ..cost.simulation import Simulation
from ..garbage import collection_off
from ..schedules.collectives import base_collective
from ..schedules.grouping import Partition
from ..schedules.schedule import Schedule, schedule
from .modelled import CHUNKS, by_size, candidates, has_too_much_scratch, is_crowded, modelled_rules
from .rules import Rule

Line = tuple[str, int | None, int, np.ndarray]  # algorithm, bytes of a chunk, chunks in flight, µs for every size

COLLECTIVES = ("allgatherv", "reduce_scatter")  # with a count for every rank, which every rank knows
EVEN = 0  # the class of equal shares
RANKS = range(3, 33)  # numbers of ranks with these rules: two send the same by all algorithms, more take seconds
SIZES = 4 ** np.arange(7, 13)  # bytes at which times are compared, 16 KiB to 16 MiB; a rule serves from half of that
ANCHORS = SIZES[1::3]  # of these, at which all algorithms are compared
NEARLY = 1.3  # times the least at one of ANCHORS: such algorithms are compared at all sizes
MESSAGES = 10_000  # of a simulation, at most: algorithms and chunks that send more are left out


def skew_limits(skew: int) -> tuple[int, int]:
    """Return (low, high): a call of p ranks is of a class if low * total <= 2 * largest * p < max(1, high * total).

    >>> skew_limits(EVEN), skew_limits(1), skew_limits(2)
    ((0, 3), (3, 6), (6, 12))
    """
    return (3 << skew - 1 if skew else 0), 3 << skew


def skew_class(counts: Sequence[int]) -> int:
    """Return the class of a call with these counts of all ranks, in any unit.

    >>> [skew_class(counts) for counts in ([5, 5, 5], [0, 0, 0], [1, 1, 2], [0, 9, 0], [1, 1, 1, 1, 96, 1, 1, 1])]
    [0, 0, 1, 2, 3]
    """
    if len(counts) not in RANKS:
        return EVEN
    peak, total, skew = 2 * max(counts) * len(counts), sum(counts), EVEN
    while peak >= max(1, skew_limits(skew)[1] * total):
        skew += 1
    return skew


def has_classes(network: Network | None, nodes: Partition | None) -> bool:
    """Return whether skew decides anything: not by fixed rules, nor where ranks share processors."""
    return network is not None and not is_crowded(network, nodes)


def typical_shares(skew: int, p: int) -> list[int]:
    """Return the shares of a call of a class, for which the model chooses: one rank in the middle has the largest.

    >>> typical_shares(1, 4), typical_shares(2, 4)
    ([2, 2, 6, 2], [0, 0, 12, 0])
    """
    most = min(1 << skew, p)
    return [most * (p - 1) if rank == p // 2 else p - most for rank in range(p)]


@collection_off()
def uneven_rules(
    network: Network, collective: str, p: int, commutative: bool, nodes: Partition | None, skew: int
) -> tuple[Rule, ...]:
    """Return the rules of a collective of COLLECTIVES for a class, as modelled_rules() does for equal shares.

    Those rules stay below half of the least of SIZES, where latency decides, and on a rough network where they are
    nearly as fast.
    """
    even = modelled_rules(network, collective, p, commutative, nodes)
    event_loop.is_ready(wait=True)  # the loop in Python would take many seconds
    shares = typical_shares(skew, p)
    case = network, collective, p, commutative, nodes
    lines = uneven_costs(*case, ANCHORS.tolist(), shares)
    least = np.min([us for *_, us in lines], axis=0)
    near = dict.fromkeys(name for name, *_, us in lines if (us <= NEARLY * least).any())
    lines = uneven_costs(*case, SIZES.tolist(), shares, [*near])
    usual = []
    for rule in even if network.rough else ():
        planned = schedule(base_collective(collective), rule.algorithm, p, commutative=commutative, nodes=nodes)
        us = [uneven_us(network, planned, nodes, n, shares, rule.chunk_bytes, rule.window) for n in SIZES.tolist()]
        usual.append((rule, np.array(us)))
    why = f"the least time by the model of {network.name} if one rank has {min(1 << skew, p)} times the mean"
    first, *others = by_size(lines, usual, SIZES, p, why)
    least = int(SIZES[0]) // 2
    small = [rule for rule in even if rule.above < least]
    return *small, first._replace(above=least), *(rule._replace(above=rule.above // 2) for rule in others)


def uneven_costs(
    network: Network,
    collective: str,
    p: int,
    commutative: bool,
    nodes: Partition | None,
    sizes: Sequence[int],
    shares: Sequence[int],
    specs: Sequence[str] = (),
) -> list[Line]:
    """Return what `costs` does, for these shares of the vector, by simulation; infinite for too many messages too.

    specs: the algorithms; none: all that may serve.
    """
    base, lines = base_collective(collective), list[Line]()
    for spec in specs or candidates(collective, p, commutative, nodes, cuts_shares=True):
        planned = schedule(base, spec, p, commutative=commutative, nodes=nodes)
        messages = sum(len(strand) for strand in planned.program(p // 2)) * p  # about as many as steps
        largest = max(shares) / sum(shares) / planned.parts
        is_left_out = has_too_much_scratch(base, spec, p, nodes, np.array(sizes))
        for chunk, window in ((None if chunk == WHOLE else int(chunk), window) for chunk, window in CHUNKS):
            lanes = [1 if chunk is None else -(-largest * n // chunk) for n in sizes]
            times = [
                np.inf
                if left_out or lanes_of_size * messages > MESSAGES or (chunk is not None and lanes_of_size < 2)
                else uneven_us(network, planned, nodes, n, shares, chunk, window)
                for n, lanes_of_size, left_out in zip(sizes, lanes, is_left_out)
            ]
            if np.isfinite(times).any():
                lines.append((spec, chunk, window, np.array(times)))
    return lines


def uneven_us(
    network: Network,
    planned: Schedule,
    nodes: Partition | None,
    nbytes: int,
    shares: Sequence[int],
    chunk_bytes: int | None,
    window: int,
) -> float:
    """Return the µs that a schedule takes for a call of nbytes, of which each rank has a share, by simulation."""
    net = two_level(network, planned.p if nodes is None else len(nodes))
    return Simulation(planned, net, nbytes, nodes, chunk_bytes, window, shares=shares).us
