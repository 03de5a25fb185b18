"""Cut a schedule's blocks into chunks, and count and time their steps: for simulations and for GOAL text."""

from __future__ import annotations

import math
from functools import lru_cache

from ..errors import ArgumentError
from ..schedules.ir import Local, Send, Step
from ..schedules.schedule import Schedule
from .network import Network
from .profile import blocks_of, reduced_and_copied

MOST_MESSAGES = 1_500_000  # of all ranks and chunks: about 45 seconds in Python
MOST_COMPILED = 15_000_000  # by the compiled loop: minutes, most of them for making the programs, and 5 GiB


def cut(schedule: Schedule, nbytes: float, chunk_bytes: int | None) -> tuple[float, int]:
    """Return the bytes of a block's chunk, and into how many chunks every block is cut; None leaves blocks whole."""
    block = nbytes / blocks_of(schedule)
    chunks = max(1, math.ceil(block / chunk_bytes)) if chunk_bytes else 1
    return block / chunks, chunks


def local_us(step: Step, block: float, network: Network) -> float:
    """Return the µs for which a step reduces, copies and packs blocks of so many bytes."""
    reduced, copied = reduced_and_copied(step)
    return block * (reduced / network.fold_rate + copied / network.copy_rate)


@lru_cache(maxsize=1)
def sample_messages(schedule: Schedule) -> list[tuple[int, int]]:
    """Return how many messages the first rank, the one in the middle and the last send and receive."""
    counts = []
    for rank in {0, schedule.p // 2, schedule.p - 1}:
        steps = [step for strand in schedule.program(rank) for step in strand]
        ends = [isinstance(op, Send) for step in steps for op in step if not isinstance(op, Local)]
        counts.append((sum(ends), len(ends) - sum(ends)))
    return counts


def most_messages(schedule: Schedule) -> int:
    """Return about how many messages a rank sends or receives: the most that three ranks do, the lower of the two.

    The root of a broadcast may send to all ranks, but no rank receives as many.
    """
    counts = sample_messages(schedule)
    return min(max(sends for sends, _ in counts), max(receives for _, receives in counts))


def check_messages(
    schedule: Schedule, lanes: int, limit: int = MOST_MESSAGES, verb: str = "simulated", ranks: int | None = None
) -> None:
    """Raise ArgumentError for a schedule of more messages than can be simulated, or written, in reasonable time.

    ranks: how many are simulated; None: all.
    """
    most = most_messages(schedule) * lanes * (ranks or schedule.p)
    if most > limit:
        chunks = f" in {lanes:,} chunks" if lanes > 1 else ""
        instead = "fewer ranks, or `mpicoll choose` for the closed form" if verb == "simulated" else "fewer ranks"
        raise ArgumentError(
            f"{schedule.title} on {schedule.p} ranks{chunks} has up to {most:,} messages, and "
            f"{limit:,} are {verb} at most; take {instead}"
        )
