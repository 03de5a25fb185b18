"""Plan which collectives and sizes are measured on which layouts, and estimate how long that takes.

Sizes are given as n, the bytes of the whole vector, since that is what the limits are about: of allgather and
scatter and gather the shares of all ranks together, of alltoall what one rank sends to all. `mpicoll bench` and
the peers are given what their sizes mean, n/p in whole elements there.

The wire decides how long a call takes, so rounds are planned by it: a call is taken for SLOW times the time that
the bytes of the whole vector need on one link, twice that for an allreduce.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mpicoll.errors import ParameterError, PreconditionError, UnknownAlgorithm
from mpicoll.schedules.registry import list_algorithms, parse_spec
from mpicoll.selection.select import Overrides, choose

from ..cases.contenders import AUTO, NATIVE, base_name
from ..hosts import parse_rate
from ..hosts.network import MOST
from ..launch import PLACEMENTS
from ..measure.stats import FEWEST
from ..peers import Call, Peer

ELEMENT = 8  # bytes of a float64, which is what is sent
SHARES = ("allgather", "alltoall", "gather", "scatter")  # whose size is n/p
# Those measured, and of each the algorithm that is expected to be good with large vectors.
LARGE = {
    "allreduce": "ring",
    "reduce_scatter": "ring",
    "allgather": "ring",
    "bcast": "chain",
    "reduce": "chain",
    "alltoall": "pairwise",
    "gather": "linear",
    "scatter": "linear",
}
STANDARD = ("allreduce", "reduce_scatter", "allgather", "bcast", "reduce", "alltoall")
PASSES = {"allreduce": 2}  # times that the vector crosses a link; 1 for the others
SLOW = 1.5
ROUNDS = 3  # of a peer in one launch, of the largest size; it is launched twice in a cycle
CALLS = 8  # expected calls that fill a size's seconds
LOOK = 4 * FEWEST  # rounds after which `mpicoll bench` may find medians known well enough
OVERHEAD = 3  # calls of each contender that check and warm up
STARTING = 6.0  # seconds until `mpicoll bench` makes its first call


@dataclass(frozen=True)
class Layout:
    """So many hosts with so many ranks each, and how ranks are dealt out."""

    hosts: int
    ranks_per_host: int
    placement: str = PLACEMENTS[0]

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_per_host

    @property
    def name(self) -> str:
        """Return hosts × ranks, and the placement if there is a choice.

        >>> Layout(8, 1).name, Layout(4, 2, "cyclic").name
        ('8x1', '4x2-cyclic')
        """
        shape = f"{self.hosts}x{self.ranks_per_host}"
        return f"{shape}-{self.placement}" if self.ranks_per_host > 1 else shape


_LAYOUT = re.compile(r"(\d+)[x×](\d+)(?:[-:](\w+))?")


def parse_layouts(text: str) -> list[Layout]:
    """Return layouts from "8x1,4x2-cyclic". Raises ValueError.

    >>> [layout.name for layout in parse_layouts("6x1, 4x2, 4x2-cyclic")]
    ['6x1', '4x2-block', '4x2-cyclic']
    """
    layouts = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        match = _LAYOUT.fullmatch(word)
        if not match or int(match[1]) < 2 or int(match[2]) < 1 or (match[3] or PLACEMENTS[0]) not in PLACEMENTS:
            raise ValueError(
                f"the layout {word!r} is none; write HOSTSxRANKS, 2 hosts or more, and -block or -cyclic: 4x2-cyclic"
            )
        if int(match[1]) > MOST:
            raise ValueError(f"the layout {word!r} has {match[1]} hosts; there can be {MOST}")
        layouts.append(Layout(int(match[1]), int(match[2]), match[3] or PLACEMENTS[0]))
    if not layouts:
        raise ValueError("--layouts names none; write HOSTSxRANKS, as 8x1")
    return list(dict.fromkeys(layouts))


def size_of(collective: str, n: int, p: int) -> int:
    """Return what `mpicoll bench` calls the size, in bytes, for n bytes in all.

    >>> size_of("allreduce", 1 << 20, 6), size_of("alltoall", 1 << 20, 6)
    (1048576, 174760)
    """
    return max(ELEMENT, n // p // ELEMENT * ELEMENT) if collective in SHARES else n


def algorithms_of(collective: str, n: int, p: int, named: Sequence[str] = ()) -> list[str]:
    """Return who takes part: native, and those named that the collective has and that suit p ranks.

    Where none does: auto and, where
    auto takes another for n bytes between p hosts, the one for large vectors.

    >>> algorithms_of("bcast", 1 << 22, 8), algorithms_of("bcast", 1 << 22, 8, ["ring", "knomial(k=4)"])
    (['native', 'auto'], ['native', 'knomial(k=4)'])
    """
    if named:
        known = (name for name in named if is_known(collective, name) and not unsuited(collective, name, p))
        return list(dict.fromkeys([NATIVE, *known]))
    hosts = tuple((rank,) for rank in range(p))
    chosen = choose(collective, n, p, True, Overrides(), AUTO, hosts).algorithm
    return [NATIVE, AUTO, *{LARGE[collective]} - {chosen}]


def is_known(collective: str, spec: str) -> bool:
    """Return whether a collective has it."""
    return base_name(spec) in (NATIVE, AUTO, *list_algorithms()[collective])


def unsuited(collective: str, spec: str, p: int) -> str:
    """Return why an algorithm of a collective does not suit p ranks; empty if it does."""
    if spec in (NATIVE, AUTO):
        return ""
    entry, parameters = parse_spec(collective, spec)
    try:
        entry.resolve(p, None, **dict(parameters))
    except (PreconditionError, ParameterError) as error:
        return str(error)
    return ""


def check_algorithms(named: Iterable[str], collectives: Iterable[str]) -> tuple[str, ...]:
    """Raise UnknownAlgorithm for one that none of the collectives has, ParameterError for bad parameters."""
    names = list_algorithms()
    known = {name: [c for c in collectives if name in names[c]] for c in collectives for name in names[c]}
    for spec in named:
        name = base_name(spec)
        if name not in (NATIVE, AUTO, *known):
            raise UnknownAlgorithm("algorithm of these collectives", spec, (NATIVE, AUTO, *known))
        for collective in known.get(name, ()):
            parse_spec(collective, spec)
    return tuple(named)


@dataclass(frozen=True)
class Plan:
    """The measurements on every layout. sizes: n, in bytes; rate: bits per second; seconds: of a case, in a launch."""

    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    rate: str
    cycles: int = 1
    algorithms: tuple[str, ...] = ()
    seconds: float | None = None

    @property
    def largest(self) -> int:
        return max(self.sizes)

    def expected(self, collective: str, n: int) -> float:
        """Return the seconds that a call is expected to take."""
        return SLOW * PASSES.get(collective, 1) * n * 8 / parse_rate(self.rate)

    def seconds_of(self, collective: str, p: int) -> float:
        """Return the seconds for a size of a collective in a launch of `mpicoll bench`: sizes get equal parts.

        The largest has time for an interval, however many take part.
        """
        calls = max(CALLS, (FEWEST + 1) * len(self.contenders(collective, p)))
        return self.seconds or calls * self.expected(collective, self.largest)

    def contenders(self, collective: str, p: int) -> list[str]:
        """Return who takes part in it."""
        return algorithms_of(collective, self.largest, p, self.algorithms)

    def left_out(self, p: int) -> list[str]:
        """Return why algorithms that were named and that a collective has take no part in it, a line each."""
        known = ((c, spec) for c in self.collectives for spec in self.algorithms if is_known(c, spec))
        return [f"{spec} left out: {why}" for c, spec in known if (why := unsuited(c, spec, p))]

    def calls(self, p: int) -> dict[Call, int]:
        """Return what is timed on p ranks, and its n."""
        return {Call(name, size_of(name, n, p)): n for name in self.collectives for n in self.sizes}

    def rounds(self, p: int) -> dict[Call, int]:
        """Return how many a peer makes of each in one launch: the more, the less they cost, as their square root."""
        return {call: self._rounds(call.collective, n) for call, n in self.calls(p).items()}

    def _rounds(self, collective: str, n: int) -> int:
        largest = ROUNDS
        if self.seconds:
            largest = max(ROUNDS, int(self.seconds / 2 / self.expected(collective, self.largest)))
        return math.ceil(largest * math.sqrt(self.largest / n))

    def bench_takes(self, collective: str, p: int) -> float:
        """Return the seconds that a launch of `mpicoll bench` should take."""
        contenders, share = len(self.contenders(collective, p)), self.seconds_of(collective, p)
        rounds = [contenders * self.expected(collective, n) for n in self.sizes]
        timed = sum(max(FEWEST * seconds, min(LOOK * seconds, share)) for seconds in rounds)
        return STARTING + timed + OVERHEAD * sum(rounds)

    def peer_takes(self, peer: Peer, p: int) -> float:
        """Return the seconds that a launch of a peer should take."""
        rounds, expected = self.rounds(p), self.calls(p)
        return peer.starting + sum(
            peer.calls(rounds[call]) * self.expected(call.collective, n) for call, n in expected.items()
        )


def launches(collectives: Iterable[str], peers: Sequence[str], cycles: int) -> list[tuple[str, str]]:
    """Return the launches on one layout, in order: ("bench", collective) or ("peer", name).

    Peers run before and after ours in every cycle, so that a machine that grows slower or faster meanwhile does so for
    all alike.

    >>> launches(["bcast"], ["gloo", "IMB"], 1)
    [('peer', 'gloo'), ('peer', 'IMB'), ('bench', 'bcast'), ('peer', 'IMB'), ('peer', 'gloo')]
    """
    before = [("peer", name) for name in peers]
    ours = [("bench", name) for name in collectives]
    return [*before, *ours, *reversed(before)] * cycles


def minutes(plan: Plan, ranks: Iterable[int], peers: Sequence[Peer]) -> float:
    """Return how long layouts with so many ranks should take in all."""
    named = {peer.name: peer for peer in peers}
    seconds = sum(
        plan.peer_takes(named[name], p) if kind == "peer" else plan.bench_takes(name, p)
        for p in ranks
        for kind, name in launches(plan.collectives, list(named), plan.cycles)
    )
    return seconds / 60


def check_collectives(names: Iterable[str], known: Mapping[str, str] = LARGE) -> tuple[str, ...]:
    """Raise ValueError for a collective that has no limit here."""
    collectives = tuple(dict.fromkeys(names))
    if unknown := [name for name in collectives if name not in known]:
        raise ValueError(f"no collective is called {unknown[0]!r} here; there is {', '.join(known)}")
    if not collectives:
        raise ValueError("--collectives names none")
    return collectives
