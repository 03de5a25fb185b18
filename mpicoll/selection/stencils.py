"""The rules of neighbourhood collectives on a stencil: by the cost model, since all ranks know the bytes of a block."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..cost.model import cost, crowded_cost
from ..cost.network import Network, two_level
from ..cost.profile import load_of, profile_of
from ..schedules.grouping import Partition
from ..schedules.registry import exact_algorithms
from ..schedules.schedule import schedule
from ..schedules.stencils import Stencil
from .modelled import MARGIN, ROUGHLY, SIZES, is_crowded
from .rules import RULES, Rule


@lru_cache(maxsize=64)
def stencil_rules(network: Network, collective: str, graph: Stencil, nodes: Partition | None) -> tuple[Rule, ...]:
    """Return for every number of bytes of a block the algorithm with the least time by the model.

    The algorithm that serves all other graphs stays where it is nearly as fast.
    """
    usual = RULES[collective][0]
    names = [usual.algorithm, *(name for name in exact_algorithms(collective) if name != usual.algorithm)]
    times = np.array([_us(network, collective, name, graph, nodes) for name in names])
    margin = ROUGHLY if network.rough and not is_crowded(network, nodes) else MARGIN
    best = np.where(times[0] <= margin * times.min(axis=0), 0, times.argmin(axis=0)).tolist()
    why = f"the least time by the model of {network.name}"
    chosen = [
        Rule(size, names[at], None, usual.why if at == 0 else why)
        for at, before, size in zip(best, [-1, *best], SIZES.tolist())
        if at != before
    ]
    return chosen[0]._replace(above=0), *chosen[1:]


def _us(network: Network, collective: str, name: str, graph: Stencil, nodes: Partition | None) -> np.ndarray:
    """Return the µs that the model gives an algorithm for blocks of SIZES bytes."""
    network = two_level(network, graph.p if nodes is None else len(nodes))
    planned = schedule(collective, name, graph.p, graph=graph)
    claims = planned.algorithm.claims
    chain = float(claims.evaluate(claims.steps, graph.p, 1, **planned.resolved))
    steps = profile_of(planned, nodes, chain, one_way=True)
    if nodes is None or not is_crowded(network, nodes):
        return cost(steps, network, SIZES)
    return crowded_cost(steps, load_of(planned, nodes), max(map(len, nodes)), network, SIZES)
