"""Find the schedules that a proof rejects, for the page that plays their faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...errors import MpicollError, VerifyError
from ...proofs.check_schedule import verify
from ...proofs.prove import schedules as proved
from ...schedules.registry import parse_spec
from ...schedules.schedule import Schedule
from .choose import Key, spec_of

MOST = 4  # numbers of ranks of one algorithm
SMALLEST = 3  # on fewer ranks there is little to see


def schedules(failed: Mapping[tuple[str, str], Sequence[int]]) -> list[tuple[Key, Schedule]]:
    """Return of each algorithm, by collective and spec, the first rejected schedule on each of a few numbers of ranks.

    Only schedules that symbolic execution or its checks reject: not those whose lowered tables or scratch are wrong.
    """
    rejected = []
    for (collective, spec), ranks in failed.items():
        entry, parameters = parse_spec(collective, spec)
        for p in sorted(ranks, key=lambda p: (p < SMALLEST, p))[:MOST]:
            with suppress(Exception):  # an algorithm of the user's may raise anything, and verify has printed it
                for schedule in proved(entry, p, dict(parameters) or None):
                    if _is_rejected(schedule):
                        rejected.append((key(schedule), schedule))
                        break
    return rejected


def key(schedule: Schedule) -> Key:
    """Return the key of a schedule."""
    parameters: dict[str, Any] = schedule.parameters
    spec = spec_of(schedule.algorithm, parameters)
    return Key(schedule.collective.name, spec, schedule.p, schedule.root, not schedule.commutative)


def _is_rejected(schedule: Schedule) -> bool:
    try:
        verify(schedule)
    except VerifyError:
        return True
    except MpicollError:
        return False
    return False
