"""The records of calls, and what takes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ..progress.times import Times


@dataclass(frozen=True)
class Record:
    """The record of a call, for traces: the messages this rank posted, and the bytes that it sent and received.

    root is a rank of the communicator, -1 for a collective without a root. why names no sizes, so that it is equal for
    calls served for the same reason. fast_path says whether the call took the fast path, start which start of a
    persistent collective it is, from 1 on, and times, while a timeline is recorded, when it ran.
    """

    collective: str
    form: str
    algorithm: str
    engine: str
    nbytes: int
    chunk_bytes: int | None
    lanes: int
    messages: int
    bytes: int
    sequence: int
    why: str
    name: str = ""  # of the method that was called
    fast_path: bool = False
    received: int = 0
    root: int = -1
    start: int = 0
    times: Times | None = field(default=None, compare=False, repr=False)

    def with_values(self, **values: object) -> Record:
        """Return a copy with other values of fields, in a tenth of the Python calls of dataclasses.replace."""
        changed = object.__new__(Record)
        vars(changed).update(vars(self), **values)
        return changed


class Sink(Protocol):
    """A list of records, or an object that counts them."""

    def append(self, record: Record, /) -> None:
        """Store or count one record."""
