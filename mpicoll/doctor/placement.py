"""Find the CPUs that ranks have, and other users of these, node by node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ..errors import spans
from .finding import WARNING, WRONG, Facts, Finding, Rank, named, nodes, numbered
from .launchers import by_srun, flavour

BUSY = 0.7  # CPUs that other programs use; daemons use less


def oversubscribed(facts: Facts) -> Iterator[Finding]:
    """Check that no node has more ranks than CPUs."""
    for host, ranks in _known(facts):
        available = _available(ranks)
        if len(ranks) > len(available):
            yield Finding(
                WARNING,
                f"{host} has {numbered(len(ranks), 'rank')} and {numbered(len(available), 'CPU')} for them: ranks that "
                "wait for messages keep the others from computing, and times mean little",
                f"CPUs {spans(available)} are all that they may be bound to",
                f"fewer ranks on a node: {_fewer(facts, len(available))}",
            )


def shared_cpus(facts: Facts) -> Iterator[Finding]:
    """Check that each rank can have a CPU of its own, where there are enough."""
    for host, ranks in _known(facts):
        available = _available(ranks)
        crowd = crowded({rank["rank"]: rank["cpus"] for rank in ranks})
        if crowd and len(ranks) <= len(available):
            who, cpus = crowd
            yield Finding(
                WRONG,
                f"{named(spans(who))} on {host} share CPU{'s' * (len(cpus) > 1)} {spans(cpus)}, "
                f"and {numbered(len(available), 'CPU')} would do for all {len(ranks)}: they take turns",
                "their affinity masks",
                bind(facts),
            )


def shared_cores(facts: Facts) -> Iterator[Finding]:
    """Check that each rank can have a core of its own, and not the other half of one, where there are enough."""
    for host, ranks in _known(facts):
        if any(rank["cores"] is None or rank["available_cores"] is None for rank in ranks):
            continue
        if crowded({rank["rank"]: rank["cpus"] for rank in ranks}):
            continue  # sharing CPUs is worse, and shared_cpus reports it
        crowd = crowded({rank["rank"]: rank["cores"] for rank in ranks})
        there = max(rank["available_cores"] for rank in ranks)
        if crowd and len(ranks) <= there:
            who, cores = crowd
            yield Finding(
                WARNING,
                f"{named(spans(who))} on {host} have {numbered(len(cores), 'core')} between them: their CPUs "
                f"are threads of one core, and {there} cores are there",
                "their affinity masks, and /sys/devices/system/cpu/cpu*/topology",
                f"{bind(facts)}; for Slurm also --hint=nomultithread",
            )


def bound(facts: Facts) -> Iterator[Finding]:
    """Check that ranks of one node are bound."""
    for host, ranks in _known(facts):
        available = _available(ranks)
        free = [rank["rank"] for rank in ranks if set(rank["cpus"]) == available]
        if 1 < len(free) == len(ranks) <= len(available):
            yield Finding(
                WARNING,
                f"{named(spans(free))} on {host} are not bound: each may run on any of {len(available)} CPUs, "
                "and they may meet on one",
                "their affinity masks",
                bind(facts),
            )


def threads(facts: Facts) -> Iterator[Finding]:
    """Check that there are CPUs for the threads that OMP_NUM_THREADS asks for."""
    for host, ranks in _known(facts):
        asked = {rank["rank"]: _threads(rank) for rank in ranks}
        short = [rank["rank"] for rank in ranks if asked[rank["rank"]] > len(rank["cpus"])]
        total, available = sum(asked.values()), _available(ranks)
        fit = "a smaller OMP_NUM_THREADS, or more CPUs for each rank: srun --cpus-per-task=N --cpu-bind=cores"
        if short:
            most = max(asked[rank] for rank in short)
            yield Finding(
                WARNING,
                f"{named(spans(short))} on {host} may start {most} threads each, and may not use as many CPUs",
                "OMP_NUM_THREADS, and their affinity masks",
                fit,
            )
        elif total > len(available) >= len(ranks):
            yield Finding(
                WARNING,
                f"the {numbered(len(ranks), 'rank')} on {host} may start {total} threads, on {len(available)} CPUs",
                "OMP_NUM_THREADS, and their affinity masks",
                fit,
            )


def alone(facts: Facts) -> Iterator[Finding]:
    """Check that no other program computes on the nodes."""
    for host, ranks in nodes(facts).items():
        busy = [rank["busy"] for rank in ranks if rank["busy"] is not None]
        if busy and min(busy) >= BUSY:
            yield Finding(
                WARNING,
                f"others use {min(busy):.1f} CPUs of {host}: times will vary",
                "/proc/stat, while the ranks slept for half a second",
                "`top` on that node shows who; for Slurm: sbatch --exclusive, or salloc --exclusive",
            )
        job_cpus, cores = _given(ranks[0]["environ"]), ranks[0]["machine_cores"]
        if job_cpus is not None and cores is not None and job_cpus < cores:
            yield Finding(
                WARNING,
                f"the job has {job_cpus} of the {cores} cores of {host}: other jobs may run beside it",
                f"SLURM_JOB_CPUS_PER_NODE={ranks[0]['environ']['SLURM_JOB_CPUS_PER_NODE']}",
                "sbatch --exclusive, or salloc --exclusive, where times matter",
            )


# -- what these have in common ------------------------------------------------------------------------------------


def crowded(places: Mapping[int, Sequence[int]]) -> tuple[list[int], list[int]] | None:
    """Return ranks that have fewer places between them than they are, and those places; None if each can have its own.

    A matching of ranks and places, made larger by augmenting paths; what the search from a rank that finds no place
    has reached is the crowd.

    >>> crowded({0: [0, 1], 1: [0], 2: [0]})
    ([1, 2], [0])
    """
    taken: dict[int, int] = {}
    for rank in places:
        came_from: dict[int, int] = {}
        seen, end = [rank], None
        for candidate in seen:  # grows meanwhile
            for place in places[candidate]:
                if place not in came_from:
                    came_from[place] = candidate
                    if place not in taken:
                        end = place
                        break
                    seen.append(taken[place])
            if end is not None:
                break
        if end is None:
            return sorted(seen), sorted(came_from)
        while end is not None:
            who = came_from[end]
            before = next((place for place, holder in taken.items() if holder == who), None)
            taken[end], end = who, before
    return None


def bind(facts: Facts) -> str:
    """Return what to type so that ranks are bound to cores."""
    if by_srun(facts["ranks"][0]["environ"]):
        return "srun --cpu-bind=cores PROGRAM"
    return flavour(facts["mpi"]["library_version"]).bind


def _fewer(facts: Facts, most: int) -> str:
    if by_srun(facts["ranks"][0]["environ"]):
        return f"srun --ntasks-per-node={most} PROGRAM"
    return f"mpiexec -n {most * len(nodes(facts))} PROGRAM"


def _known(facts: Facts) -> Iterator[tuple[str, list[Rank]]]:
    """Yield the nodes whose ranks know their CPUs."""
    for host, ranks in nodes(facts).items():
        if all(rank["cpus"] for rank in ranks):
            yield host, ranks


def _available(ranks: Sequence[Rank]) -> set[int]:
    """Return the CPUs that ranks of a node might be bound to."""
    return {cpu for rank in ranks for cpu in [*rank["cpus"], *(rank["available"] or ())]}


def _threads(rank: Rank) -> int:
    first = rank["environ"].get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(first) if first.isdigit() else 1


def _given(environ: Mapping[str, str]) -> int | None:
    """Return the CPUs that Slurm gave on a node.

    Where nodes got different numbers, it is the largest, since it is not said which.

    >>> _given({"SLURM_JOB_CPUS_PER_NODE": "4(x2),16"})
    16
    """
    counts = re.findall(r"(?:^|,)(\d+)", environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return max(map(int, counts), default=None)
