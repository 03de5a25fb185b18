"""Write timelines as OTF2 archives, which Vampir, Scalasca and other tools for traces of MPI programs read.

A rank is a location group, a track a location, a part a region. Messages of plans are events of a communicator of all
ranks, with the number of the pair as their tag. Needs the package otf2.

The format: Dominic Eschweiler et al., Open Trace Format 2: the next generation of scalable trace formats and support
libraries, 2012.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import otf2
from otf2.enums import CollectiveOp, GroupType, Paradigm, RegionRole, Type, Undefined

from ..errors import TimelineError
from .match import UNMATCHED
from .read import Part, TimelineFile
from .trace_events import COLLECTIVE, MESSAGE, PROGRAM, SPAN, track_name

OPERATIONS = {
    "barrier": CollectiveOp.BARRIER,
    "allgather": CollectiveOp.ALLGATHER,
    "allgatherv": CollectiveOp.ALLGATHERV,
    "allreduce": CollectiveOp.ALLREDUCE,
    "alltoall": CollectiveOp.ALLTOALL,
    "alltoallv": CollectiveOp.ALLTOALLV,
    "alltoallw": CollectiveOp.ALLTOALLW,
    "reduce_scatter": CollectiveOp.REDUCE_SCATTER,
    "scan": CollectiveOp.SCAN,
    "exscan": CollectiveOp.EXSCAN,
}
ROOTED = {
    "bcast": CollectiveOp.BCAST,
    "scatter": CollectiveOp.SCATTER,
    "scatterv": CollectiveOp.SCATTERV,
    "gather": CollectiveOp.GATHER,
    "gatherv": CollectiveOp.GATHERV,
    "reduce": CollectiveOp.REDUCE,
}
ROLES = {
    COLLECTIVE: (RegionRole.COLL_OTHER, Paradigm.MPI),
    MESSAGE: (RegionRole.POINT2POINT, Paradigm.MPI),
    SPAN: (RegionRole.CODE, Paradigm.USER),
}
MOST_US = 1e12  # of a recording, so that its nanoseconds are exact
MOST_MESSAGES, MOST_BYTES = 1 << 32, 1 << 63  # that the format has room for
Kinds = list[tuple[str, Part]]  # parts with their categories


def write(recorded: TimelineFile, folder: str | Path) -> None:
    """Write an archive to a folder that is new or empty. Raises OSError, TimelineError."""
    kinds: Kinds = [(COLLECTIVE, part) for part in chain.from_iterable(recorded.calls.values())]
    kinds += [(MESSAGE, part) for part in chain.from_iterable(recorded.steps.values())]
    kinds += [(SPAN, part) for part in chain(recorded.program, recorded.turns)]
    tracks: dict[tuple[int, int], Kinds] = {(part.rank, PROGRAM): [] for _, part in kinds}
    for kind, part in kinds:
        tracks.setdefault((part.rank, part.track), []).append((kind, part))
    ranks = sorted({rank for rank, _ in tracks})
    origin = min(part.began for _, part in kinds)
    _refuse_damaged(recorded, ranks, origin, [part for _, part in kinds])
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()):
        raise TimelineError(f"{folder} is not empty; name a folder for an archive of its own")
    with otf2.writer.open(str(path), timer_resolution=10**9) as archive:
        locations = _locations(archive.definitions, sorted(tracks))
        tracer = _Tracer(recorded, archive.definitions, {rank: locations[rank, PROGRAM] for rank in ranks})
        for place, of_track in sorted(tracks.items()):
            events = archive.event_writer_from_location(locations[place])
            for us, is_end, kind, part in _events(of_track):
                for name, *values in tracer.end(kind, part) if is_end else tracer.beginning(kind, part):
                    getattr(events, name)(round((us - origin) * 1000), *values)


def _refuse_damaged(recorded: TimelineFile, ranks: Sequence[int], origin: float, parts: Sequence[Part]) -> None:
    """Raise TimelineError if the format has no room for times or messages, or messages are of ranks without calls."""
    if max(part.ended for part in parts) - origin > MOST_US or any(part.ended < part.began for part in parts):
        raise TimelineError(f"{recorded.path} has times that are no recording's")
    for part in chain.from_iterable(recorded.steps.values()):
        for peer, nbytes, number in (*part.facts.get("sends", ()), *part.facts.get("receives", ())):
            if number != UNMATCHED and not (
                peer in ranks and 0 <= nbytes < MOST_BYTES and 0 <= number < MOST_MESSAGES
            ):
                raise TimelineError(f"{recorded.path} has a message that is none: {[peer, nbytes, number]}")
    for of_call in recorded.calls.values():
        members = {part.rank for part in of_call}
        if roots := {part.facts["root"] for part in of_call if "root" in part.facts} - members:
            raise TimelineError(f"{recorded.path} has a root that is no rank of its call: {min(roots)}")


def _locations(definitions: Any, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Any]:
    node = definitions.system_tree_node("run", class_name="machine")
    groups = {rank: definitions.location_group(f"rank {rank}", system_tree_parent=node) for rank, _ in places}
    return {(rank, track): definitions.location(track_name(track), group=groups[rank]) for rank, track in places}


def _events(kinds: Kinds) -> Iterator[tuple[float, bool, str, Part]]:
    """Yield the beginnings and ends of a track's parts, which nest, in order of time."""
    inside, now = Kinds(), float("-inf")
    for kind, part in sorted(kinds, key=lambda item: (item[1].began, -item[1].ended)):
        while inside and inside[-1][1].ended <= part.began:
            now = max(now, inside[-1][1].ended)
            yield now, True, *inside.pop()
        now = max(now, part.began)
        yield now, False, kind, part
        inside.append((kind, part))
    while inside:
        now = max(now, inside[-1][1].ended)
        yield now, True, *inside.pop()


class _Tracer:
    """Makes the records of parts, and what they refer to."""

    def __init__(self, recorded: TimelineFile, definitions: Any, of_ranks: Mapping[int, Any]) -> None:
        self.definitions, self.places = definitions, {rank: place for place, rank in enumerate(of_ranks)}
        members_of_all = tuple(of_ranks.values())
        definitions.group("", group_type=GroupType.COMM_LOCATIONS, paradigm=Paradigm.MPI, members=members_of_all)
        self.world = self._comm("all ranks", of_ranks)
        members: dict[str, set[int]] = defaultdict(set)
        for (name, *_), parts in recorded.calls.items():
            members[name] |= {part.rank for part in parts}
        self.members = {name: sorted(ranks) for name, ranks in members.items()}
        self.comms = {name: self._comm(name, ranks) for name, ranks in self.members.items()}
        self.algorithm = definitions.attribute("algorithm", type=Type.STRING)

    def _comm(self, name: str, ranks: Any) -> Any:
        group = self.definitions.group(
            name, group_type=GroupType.COMM_GROUP, paradigm=Paradigm.MPI, members=tuple(self.places[r] for r in ranks)
        )
        return self.definitions.comm(name, group=group)

    def beginning(self, kind: str, part: Part) -> Iterator[tuple[Any, ...]]:
        """Yield the records of a part's beginning: the name of each, and its arguments after the time."""
        attributes = {self.algorithm: part.facts["algorithm"]} if kind == COLLECTIVE else None
        yield "enter", self._region(kind, part), attributes
        if _operation(kind, part) is not None:
            yield ("mpi_collective_begin",)
        for peer, nbytes, number in part.facts.get("sends", ()) if kind == MESSAGE else ():
            if number != UNMATCHED:
                yield "mpi_send", self.places[peer], self.world, number, nbytes

    def end(self, kind: str, part: Part) -> Iterator[tuple[Any, ...]]:
        """Yield the records of a part's end, as those of its beginning."""
        for peer, nbytes, number in part.facts.get("receives", ()) if kind == MESSAGE else ():
            if number != UNMATCHED:
                yield "mpi_recv", self.places[peer], self.world, number, nbytes
        if (operation := _operation(kind, part)) is not None:
            name, root = part.facts["communicator"], part.facts.get("root")
            place = Undefined.UINT32.value if root is None else self.members[name].index(root)
            sizes = [min(max(0, part.facts.get(key, part.facts["bytes"])), MOST_BYTES) for key in ("sent", "received")]
            yield "mpi_collective_end", operation, self.comms[name], place, *sizes
        yield "leave", self._region(kind, part)

    def _region(self, kind: str, part: Part) -> Any:
        role, paradigm = ROLES[kind]
        name = part.name.encode(errors="replace").decode()  # JSON has characters that UTF-8 has not
        return self.definitions.region(name, region_role=role, paradigm=paradigm)


def _operation(kind: str, part: Part) -> Any:
    """Return the operation of a blocking collective; None for other parts, and for a rooted one without its root."""
    if kind != COLLECTIVE or part.facts["form"] != "blocking":
        return None
    return (ROOTED if "root" in part.facts else OPERATIONS).get(part.facts["collective"])
