"""Read the timelines that a command names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..timeline.read import TimelineFile, Trace


def load(file: str) -> Trace:
    """Return the events of a file. Raises ValueError."""
    from ..timeline import read

    try:
        return read.load(file)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None


def merged(traces: Sequence[Trace]) -> TimelineFile:
    """Return the timeline that one or more files of a run have. Raises TimelineError."""
    from ..timeline import merge, read

    return merge.merge([read.timeline_of(trace) for trace in traces])
