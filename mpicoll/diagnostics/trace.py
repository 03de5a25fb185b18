"""Traces: log every call, or count the calls on all communicators of a program and show them in one table."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..selection.select import NATIVE
from ..stderr import say

if TYPE_CHECKING:
    from .record import Record, Sink


class Log:
    """Prints one line on standard error for every record, with what ran and why: MPICOLL_LOG=info."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def append(self, record: Record) -> None:
        """Print one line on a call."""
        how = ""
        if record.algorithm != NATIVE:
            chunks = "whole blocks" if record.chunk_bytes is None else f"chunks of {record.chunk_bytes} bytes"
            how = f" on the {record.engine} engine, {chunks}, {record.bytes} bytes sent from here"
        call = f"{record.form} {record.collective} of {record.nbytes} bytes on {self.ranks} ranks"
        with suppress(OSError, ValueError):  # standard error is closed: no reason to fail the call
            say(f"mpicoll: call {record.sequence}: {call}: {record.algorithm}{how}: {record.why}")


class TallyKey(NamedTuple):
    """Calls that are counted together."""

    collective: str
    form: str
    algorithm: str
    engine: str
    why: str


@dataclass
class Count:
    """Sums over calls: their number, bytes as `explain` counts them, bytes this rank sent, and communicators."""

    calls: int = 0
    nbytes: int = 0
    sent: int = 0
    communicators: int = 0


class Tally:
    """Counts the records of all communicators that have a sink of it."""

    def __init__(self) -> None:
        self.counts: dict[TallyKey, Count] = {}
        self.lock = threading.Lock()  # communicators may be used from different threads

    def sink(self) -> Sink:
        """Return what counts the records of one communicator."""
        return _Counted(self)

    def table(self) -> Any:
        """Return a table for a rich console, the most calls first within each collective."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD)
        for name in ("collective", "form", "algorithm", "engine"):
            table.add_column(name, no_wrap=True)
        for name in ("calls", "bytes", "sent", "comms"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("why")
        for kind, count in sorted(self.counts.items(), key=lambda item: (item[0].collective, -item[1].calls)):
            sent = "-" if kind.algorithm == NATIVE else f"{count.sent:,}"
            numbers = f"{count.calls:,}", f"{count.nbytes:,}", sent, f"{count.communicators:,}"
            engine = "-" if kind.algorithm == NATIVE else kind.engine
            table.add_row(kind.collective, kind.form, Text(kind.algorithm), engine, *numbers, Text(kind.why))
        return table


class _Counted:
    """Counts one communicator's records; it is freed with the communicator."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.seen: set[TallyKey] = set()

    def append(self, record: Record) -> None:
        """Count one more call."""
        kind = TallyKey(record.collective, record.form, record.algorithm, record.engine, record.why)
        with self.tally.lock:
            count = self.tally.counts.setdefault(kind, Count())
            count.calls += 1
            count.nbytes += record.nbytes
            count.sent += record.bytes
            count.communicators += kind not in self.seen
        self.seen.add(kind)
