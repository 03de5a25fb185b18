"""Count the operations that the process groups served, and report the algorithm that runs each."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..stderr import say
from .callers import is_backward

if TYPE_CHECKING:
    from ..selection.select import Choice


MOST = 1 << 14  # kinds that are counted by group and bytes
OTHERS = "others"  # the group of later kinds, whose bytes are rounded up to powers of two


class Kind(NamedTuple):
    """Operations that are counted together: of a group, by name, type and bytes as `Comm.explain` counts them.

    algorithm is what was forced, if anything; bucket a number where DistributedDataParallel reduces one: buckets are
    numbered as they come, by their memory.
    """

    group: str
    operation: str
    dtype: str
    nbytes: int
    bucket: int | None = None
    algorithm: str = ""


@dataclass(frozen=True)
class Served:
    """A kind of operation, how often it was called, and the algorithm that runs it and why; None for messages."""

    kind: Kind
    calls: int
    choice: Choice | None

    def __str__(self) -> str:
        kind = self.kind
        what = f"{kind.operation} of {kind.nbytes:,} bytes of {kind.dtype}, group {kind.group}"
        bucket = "" if kind.bucket is None else f" (DDP's bucket {kind.bucket})"
        how = "" if self.choice is None else f": {self.choice.algorithm}, {self.choice.why}"
        return f"{what}{bucket}, {self.calls} calls{how}"


class Tally:
    """Counts of every kind, and of buckets by their addresses, one tally for the process."""

    def __init__(self) -> None:
        self.kinds: Counter[Kind] = Counter()
        self.choices: dict[Kind, Choice | None] = {}
        self.choosers: dict[Kind, Callable[[], Choice | None]] = {}  # of groups that still are
        self.buckets: dict[tuple[str, int, int], int] = {}
        self.watching: list[Counter[str]] = []
        self.lock = threading.Lock()

    def add(self, kind: Kind, choose: Callable[[], Choice | None], may_change: bool = False) -> None:
        """Count one operation; for the first of its kind, choose() returns the algorithm that runs it.

        It may_change if calls learn: then it is evaluated again when it is shown, and when the group ends.
        """
        with self.lock:
            if len(self.kinds) >= MOST and kind not in self.kinds:
                kind = kind._replace(group=OTHERS, nbytes=1 << max(0, kind.nbytes - 1).bit_length(), bucket=None)
            self.kinds[kind] += 1
            if kind not in self.choices:
                self.choices[kind] = choose()
                if may_change:
                    self.choosers[kind] = choose
            for counter in self.watching:
                counter[kind.operation] += 1

    def bucket(self, group: str, address: int, nbytes: int) -> int | None:
        """Return which bucket of DDP's the memory is; None where it is not DDP that calls, from its C++."""
        if not is_backward():
            return None
        number: int = self.buckets.setdefault((group, address, nbytes), len(self.buckets))
        return number

    def refresh(self) -> None:
        """Ask again which algorithms run what may have changed."""
        self.choices.update({kind: choose() or self.choices[kind] for kind, choose in self.choosers.items()})

    def forget(self, group: str) -> None:
        """Forget the memory of a group that ends, and what says which algorithms it uses."""
        with self.lock:
            self.refresh()
            self.choosers = {kind: choose for kind, choose in self.choosers.items() if kind.group != group}
            self.buckets = {key: number for key, number in self.buckets.items() if key[0] != group}


TALLY = Tally()


def explain() -> list[Served]:
    """Return what the process groups of this process were asked for, and what runs it, the most calls first.

    Each is printed as a line: for one in mpicoll.torch.explain(): print(one).
    """
    with TALLY.lock:
        TALLY.refresh()
        kinds = TALLY.kinds.most_common()
    return [Served(kind, calls, TALLY.choices.get(kind)) for kind, calls in kinds]


@contextmanager
def count() -> Iterator[Counter[str]]:
    """Within the block, count by name the operations that mpicoll's groups serve on this rank."""
    counter: Counter[str] = Counter()
    with TALLY.lock:
        TALLY.watching.append(counter)
    try:
        yield counter
    finally:
        with TALLY.lock:
            TALLY.watching[:] = [watcher for watcher in TALLY.watching if watcher is not counter]


def table() -> Any:
    """Return a table for a rich console: operations by their names, with calls and bytes."""
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD)
    shown.add_column("torch.distributed", no_wrap=True)
    for name in ("calls", "bytes", "groups"):
        shown.add_column(name, justify="right", no_wrap=True)
    names = Counter[str]()
    for kind, calls in TALLY.kinds.items():
        names[kind.operation] += calls
    for name, calls in names.most_common():
        of_name = [(kind, n) for kind, n in TALLY.kinds.items() if kind.operation == name]
        nbytes, groups = sum(kind.nbytes * n for kind, n in of_name), len({kind.group for kind, _ in of_name})
        shown.add_row(name, f"{calls:,}", f"{nbytes:,}", f"{groups:,}")
    return shown


def log(kind: Kind, sequence: int) -> None:
    """Say of an operation which call of its communicator it is, beside what MPICOLL_LOG=info says of that."""
    bucket = "" if kind.bucket is None else f" of DDP's bucket {kind.bucket}"
    what = f"{kind.operation}{bucket} in group {kind.group}: {kind.nbytes} bytes of {kind.dtype}"
    say(f"mpicoll: call {sequence} is torch's {what}")
