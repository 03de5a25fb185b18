"""The rules that the cost model gives on a network: for every size, the algorithm and chunk with the least time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial

import numpy as np
from numpy.typing import ArrayLike

from ..cost.model import WHOLE, cost, crowded_cost
from ..cost.network import Network, two_level
from ..cost.profile import WHOLE_UP_TO, Profile, load, partial_profiles, profile
from ..errors import MpicollError
from ..garbage import collection_off
from ..plans.plan import WINDOW
from ..schedules.claims import AT_MOST
from ..schedules.collectives import NEIGHBORHOOD, base_collective
from ..schedules.grouping import Partition
from ..schedules.nested import Of
from ..schedules.parameters import Groups
from ..schedules.registry import Algorithm, Chosen, exact_algorithms, find, parse_spec
from .rules import KIB, UNKNOWN_TO_ALL, Rule, forced_rules, rules

SIZES = np.unique((2.0 ** np.arange(0, 30, 0.5)).astype(np.int64))  # bytes at which costs are compared
CHUNKS = ((WHOLE, WINDOW), (8 * KIB, 2), (32 * KIB, 2), (128 * KIB, 2), (512 * KIB, 2))  # (bytes, in flight)
MARGIN = 1.03  # by how much another choice must be faster to take the place of the one for fewer bytes
LONG = 1 << 20  # bytes of a block that chunks shall suit where ranks do not know how long others' blocks are
ROUGHLY = 4 / 3  # the same, to take the place of a fixed rule's, where the network was measured in passing
MOST_SCRATCH, FREE_SCRATCH = 4, 1 << 20  # times the vector, and bytes beyond: an algorithm that needs more is left out
OWN = "mpicoll.algorithms."  # where mpicoll's own algorithms are
VARIANTS = {  # of algorithms whose parameters matter, beside the defaults
    "bine": ("remap=yes",),
    "knomial": ("k=8",),
    "bruck": ("k=4", "k=8, ports=1"),
    "recursive_doubling": ("k=2",),
    "recursive_multiplying": ("k=8",),
    "dissemination": ("k=4",),
    "scatter_allgather": ("allgather=recursive_doubling", "allgather=bruck"),
    "circulant": ("k=4", "segments=32"),
    "circulant_segments": ("segments=32",),
    "split_rail": ("middle=recursive_doubling", "middle=rabenseifner", "middle=circulant", "middle=bruck"),
    "torus": ("dims=3", "form=swing"),
    "hierarchical": ("middle=chain", "middle=ring", "middle=recursive_doubling", "middle=rabenseifner"),
}


@lru_cache(maxsize=256)
def modelled_rules(
    network: Network, collective: str, p: int, commutative: bool, nodes: Partition | None, forced: str = ""
) -> tuple[Rule, ...]:
    """Return the rules of a collective on p ranks, which lie on these nodes.

    forced: an algorithm, of which the rules choose the chunks; "" to choose the algorithm too.
    Where ranks know only their own counts they cannot agree on a size, so the algorithm is that of the fixed rule, and
    the chunks are those for LONG blocks, which cut no short ones. On a network measured in passing, fixed rules that
    are nearly as fast stay; not where ranks take turns, of which these rules know nothing.
    """
    if collective in UNKNOWN_TO_ALL:
        fixed, base = rules(collective, p, commutative, nodes)[-1], base_collective(collective)
        if network.rough or base in NEIGHBORHOOD:
            return (fixed,)
        lines = costs(network, base, p, commutative, nodes, np.array([LONG * p]), fixed.algorithm)
        _, chunk, window, _ = min(lines, key=lambda line: float(line[-1][0]))
        return (fixed._replace(chunk_bytes=chunk, window=window),)
    lines = costs(network, collective, p, commutative, nodes, SIZES, forced, fastest=True)
    why = f"the least time by the model of {network.name}"
    usual = usual_rules(network, collective, p, commutative, nodes, forced)
    us = partial(_us_of_rule, network, base_collective(collective), p, commutative, nodes)
    return by_size(lines, [(rule, us(rule)) for rule in usual], SIZES, p, why)


def by_size(
    lines: Sequence[tuple[str, int | None, int, np.ndarray]],
    usual: Sequence[tuple[Rule, np.ndarray]],
    sizes: np.ndarray,
    p: int,
    why: str,
) -> tuple[Rule, ...]:
    """Return the rules that take the least of these times for every size, or a usual rule that is nearly as fast.

    lines: of `costs`. usual: fixed rules, and the µs that they take for every size.
    """
    times = np.array([us for *_, us in lines])
    least = times.min(axis=0)
    chosen: list[Rule] = []
    current = -1
    for i, size in enumerate(sizes.tolist()):
        fixed = next((line for line in reversed(usual) if line[0].fits(size, p)), None)
        if fixed is not None and fixed[1][i] <= ROUGHLY * least[i]:
            rule, current = fixed[0]._replace(above=size, per_rank=0), -1
        elif current < 0 or times[current, i] > MARGIN * least[i]:
            current = int(times[:, i].argmin())
            algorithm, chunk, window, _ = lines[current]
            rule = Rule(size, algorithm, chunk, why, window)
        else:
            continue
        if not chosen or chosen[-1]._replace(above=size) != rule:
            chosen.append(rule if chosen else rule._replace(above=0))
    return tuple(chosen)


def usual_rules(
    network: Network, collective: str, p: int, commutative: bool, nodes: Partition | None, forced: str = ""
) -> list[Rule]:
    """Return the fixed rules, or that of a forced algorithm, which stay if nearly as fast; none if none stays."""
    if not network.rough or is_crowded(network, nodes):
        return []
    fixed = forced_rules(collective, forced, nodes) if forced else rules(collective, p, commutative, nodes)
    return [rule for rule in fixed if rule.fits(sys.maxsize, p)]


def _us_of_rule(
    network: Network, collective: str, p: int, commutative: bool, nodes: Partition | None, rule: Rule
) -> np.ndarray:
    """Return the µs that the model gives a rule for SIZES."""
    how = rule.chunk_bytes or WHOLE, rule.window
    return model_us(network, collective, rule.algorithm, p, commutative, nodes, SIZES, *how)


@collection_off()  # there may be millions of objects, none of them garbage
def costs(
    network: Network,
    collective: str,
    p: int,
    commutative: bool,
    nodes: Partition | None,
    sizes: np.ndarray,
    forced: str = "",
    fastest: bool = False,
) -> list[tuple[str, int | None, int, np.ndarray]]:
    """Return (algorithm, chunk_bytes, window, µs for every size) of all that may serve; infinite for too much scratch.

    Of a chunk that cuts no block at any size there is none. forced: the only algorithm, whatever scratch it takes.
    fastest: leave out algorithms that are the fastest at no size, which saves most of their profiles.
    """
    base = base_collective(collective)
    specs = [forced] if forced else candidates(collective, p, commutative, nodes)
    if not forced and nodes is not None and len(nodes) == p:
        nodes = None  # every rank has a node; no candidate groups them, so that costs are the same
    grows = fastest and not is_crowded(network, nodes)

    def stages(spec: str) -> Iterator[tuple[float, np.ndarray]]:
        """Yield the share of the largest block, and µs that the algorithm takes at least, then those that it takes."""
        case = base, spec, p, nodes, commutative
        if grows and p > WHOLE_UP_TO:
            yield 0.0, _at_least(network, base, spec, p, nodes, sizes)
        for steps in partial_profiles(*case) if grows else [profile(*case)]:
            yield steps.block, _of_chunks(partial(_us, network, steps, *case), steps.block, sizes)

    rest = {spec: stages(spec) for spec in specs}
    looked_at = {spec: next(own) for spec, own in rest.items()}
    left = {spec: float(np.log1p(us.min(axis=0)).sum()) for spec, (_, us) in looked_at.items()}
    least = np.full(len(sizes), np.inf)
    while left:
        spec = min(left, key=left.__getitem__)
        us = looked_at[spec][1]
        if fastest and (us > least).all():
            del left[spec], looked_at[spec]
        elif following := next(rest[spec], None):
            looked_at[spec] = following
            left[spec] = float(np.log1p(following[1].min(axis=0)).sum())
        else:
            del left[spec]
            if not forced:
                us[:, has_too_much_scratch(base, spec, p, nodes, sizes)] = np.inf
            least = np.minimum(least, us.min(axis=0))
    return [
        (spec, None if chunk == WHOLE else int(chunk), window, times)
        for spec, (block, us) in looked_at.items()
        for (chunk, window), times in zip(CHUNKS, us)
        if chunk == WHOLE or block * sizes[-1] > chunk
    ]


def _at_least(
    network: Network, collective: str, spec: str, p: int, nodes: Partition | None, sizes: np.ndarray
) -> np.ndarray:
    """Return µs that an algorithm takes at least by the formulas of its docstring, for every size, shape (1, sizes).

    If s steps combine what p ranks have, or spread it to them, a rank has p^(1/s) - 1 messages in one of them. p ranks
    reduce p - 1 vectors together. MARGIN is taken off, since the busiest rank may be none of those in a profile.
    """
    entry, parameters = parse_spec(collective, spec)
    resolved, claims = entry.resolve(p, nodes, **dict(parameters)), entry.claims
    if any(isinstance(value, Chosen) for value in resolved.values()):  # formulas of parts take as long as a profile
        return np.zeros((1, len(sizes)))
    levels = [network.links] if nodes is None else [network.node, network.links]
    steps = float(claims.evaluate(claims.steps, p, 1, **resolved))
    upper = claims.bytes_per_rank.startswith(AT_MOST)
    moved = 0.0 if upper else float(claims.evaluate(claims.bytes_per_rank, p, 1, **resolved))
    rate = max(level.ports * max(level.rate, level.short_rate) for level in levels)
    latency, gap = (min(getattr(level, name) for level in levels) for name in ("latency", "gap"))
    at_once = max(0.0, p ** (1 / steps) - 1 - len(levels))
    reduced = (p - 1) / p if entry.collective.reduces and not upper else 0.0
    bytes_us: np.ndarray = sizes * (moved / rate + reduced / network.fold_rate)
    bound: np.ndarray = (steps * latency + at_once * gap + bytes_us[None]) / MARGIN
    return bound


def _of_chunks(us: Callable[..., np.ndarray], block: float, sizes: np.ndarray) -> np.ndarray:
    """Return the µs for each of CHUNKS and every size; those that cut no block take as long as whole blocks."""
    chunk_bytes, windows = map(np.array, zip(*CHUNKS))
    cut = block * sizes > chunk_bytes[:, None]
    chunk, size = np.nonzero(cut)
    times = us(
        np.append(sizes, sizes[size]),
        np.append(np.full(len(sizes), WHOLE), chunk_bytes[chunk]),
        np.append(np.ones(len(sizes), int), windows[chunk]),
    )
    every = np.tile(times[: len(sizes)], (len(CHUNKS), 1))
    every[cut] = times[len(sizes) :]
    return every


def ranking(lines: Sequence[tuple[str, int | None, int, np.ndarray]], at: int) -> list[tuple[float, str]]:
    """Return (µs, algorithm) for one of the sizes of `costs`, each algorithm in its best chunks, the fastest first."""
    times: dict[str, float] = {}
    for algorithm, *_, us in lines:
        times[algorithm] = min(times.get(algorithm, np.inf), float(us[at]))
    return sorted((us, algorithm) for algorithm, us in times.items())


def model_us(
    network: Network,
    collective: str,
    spec: str,
    p: int,
    commutative: bool,
    nodes: Partition | None,
    nbytes: ArrayLike,
    chunk_bytes: ArrayLike = WHOLE,
    window: ArrayLike = 1,
) -> np.ndarray:
    """Return the µs that the model gives an algorithm for calls of nbytes; see `cost`, for topologies `two_level`."""
    case = collective, spec, p, nodes, commutative
    return _us(network, profile(*case), *case, nbytes, chunk_bytes, window)


def _us(
    network: Network,
    steps: Profile,
    collective: str,
    spec: str,
    p: int,
    nodes: Partition | None,
    commutative: bool,
    nbytes: ArrayLike,
    chunk_bytes: ArrayLike,
    window: ArrayLike,
) -> np.ndarray:
    """Return the same for an algorithm of this profile."""
    network = two_level(network, p if nodes is None else len(nodes))
    if nodes is None or not is_crowded(network, nodes):
        return cost(steps, network, nbytes, chunk_bytes, window)
    work, most = load(collective, spec, p, nodes, commutative), max(map(len, nodes))
    return crowded_cost(steps, work, most, network, nbytes, chunk_bytes, window)


def is_crowded(network: Network, nodes: Partition | None) -> bool:
    """Return whether a node has more ranks than processors, so that they take turns."""
    return nodes is not None and 0 < network.cores < max(map(len, nodes))


def candidates(
    collective: str, p: int, commutative: bool, nodes: Partition | None, cuts_shares: bool = False
) -> list[str]:
    """Return the algorithms that may serve, some with several parameters.

    They are mpicoll's own: one that a program registers may not be there on every rank when a choice is made. Those
    that cut ranks' shares are left out unless cuts_shares: with equal shares they take more rounds for the same bytes.
    """
    base = base_collective(collective)
    specs = [
        spec
        for name in exact_algorithms(base)
        if is_own(find(base, name)) and (cuts_shares or not find(base, name).cuts_shares)
        for spec in (name, *(f"{name}({words})" for words in VARIANTS.get(name, ())))
    ]
    return [spec for spec in specs if _serves(base, spec, p, commutative, nodes)]


def is_own(entry: Algorithm) -> bool:
    """Return whether an algorithm comes with mpicoll, rather than from a program."""
    return entry.body.__module__.startswith(OWN)


def _serves(collective: str, spec: str, p: int, commutative: bool, nodes: Partition | None) -> bool:
    """Return whether an algorithm suits these ranks; one that groups them by nodes does where nodes have several."""
    try:
        entry, parameters = parse_spec(collective, spec)
        kinds = {name: parameter.kind for name, parameter in entry.parameters.items()}
        if any(isinstance(kind, Groups) for kind in kinds.values()) and (nodes is None or not 1 < len(nodes) < p):
            return False
        for name, value in parameters:
            if isinstance(kind := kinds[name], Of):
                parse_spec(kind.collective, value)  # before resolve, whose error takes long to word
        entry.resolve(p, nodes, **dict(parameters))
        return commutative or entry.keeps_order(p, nodes, **dict(parameters))
    except MpicollError:
        return False


def has_too_much_scratch(
    collective: str, spec: str, p: int, nodes: Partition | None, sizes: np.ndarray
) -> np.ndarray:
    """Return for every size whether a rank needs too much scratch for an algorithm."""
    entry, parameters = parse_spec(collective, spec)
    resolved = entry.resolve(p, nodes, **dict(parameters))
    share = float(entry.claims.evaluate(entry.claims.scratch, p, 1, **resolved))  # of the vector, at most
    return share * sizes > MOST_SCRATCH * sizes + FREE_SCRATCH
