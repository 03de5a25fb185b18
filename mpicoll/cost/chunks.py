"""Cut a schedule's blocks into chunks, and count and time their steps: for simulations and for GOAL text."""

from __future__ import annotations

import math

from ..errors import ArgumentError
from ..schedules.ir import Local, Step
from ..schedules.schedule import Schedule
from .network import Network
from .profile import blocks_of, reduced_and_copied

MOST_MESSAGES = 1_500_000  # of all ranks and chunks: about 45 seconds


def cut(schedule: Schedule, nbytes: float, chunk_bytes: int | None) -> tuple[float, int]:
    """Return the bytes of a block's chunk, and into how many chunks every block is cut; None leaves blocks whole."""
    block = nbytes / blocks_of(schedule)
    chunks = max(1, math.ceil(block / chunk_bytes)) if chunk_bytes else 1
    return block / chunks, chunks


def local_us(step: Step, block: float, network: Network) -> float:
    """Return the µs for which a step reduces, copies and packs blocks of so many bytes."""
    reduced, copied = reduced_and_copied(step)
    return block * (reduced / network.fold_rate + copied / network.copy_rate)


def check_messages(schedule: Schedule, lanes: int, limit: int = MOST_MESSAGES, verb: str = "simulated") -> None:
    """Raise ArgumentError for a schedule of more messages than can be simulated, or written, in reasonable time."""
    ends = max(
        sum(not isinstance(op, Local) for strand in schedule.program(rank) for step in strand for op in step)
        for rank in {0, schedule.p - 1}
    )
    most = ends * schedule.p * lanes // 2  # a message has two ends
    if most > limit:
        chunks = f" in {lanes:,} chunks" if lanes > 1 else ""
        instead = "fewer ranks, or `mpicoll choose` for the closed form" if verb == "simulated" else "fewer ranks"
        raise ArgumentError(
            f"{schedule.title} on {schedule.p} ranks{chunks} has up to {most:,} messages, and "
            f"{limit:,} are {verb} at most; take {instead}"
        )
