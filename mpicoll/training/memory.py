"""Count the memory of a rank's arrays by kind: current bytes, their peak and their history.

    flat = memory.array(memory.GRADIENTS, n, dtype)        # counted until the array is freed
    with memory.watched() as watch: ...; watch.peak[memory.GRADIENTS]

An array counts while it is alive, so the counts show arrays that a pattern forgets to free. Views do not count, but
for activations, which a pattern may cut from a larger array.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MODEL = PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimizer state"
ACTIVATIONS = "activations"
KINDS = (*MODEL, ACTIVATIONS)


@dataclass
class Watch:
    """Bytes within a watched() block: the peak of each kind, the peak of their sum, and a history."""

    peak: dict[str, int] = field(default_factory=dict)
    peak_of_all: int = 0
    history: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)

    def note(self) -> None:
        """Record the bytes that are held now."""
        self.history.append((time.perf_counter(), tuple(_held[kind] for kind in KINDS)))
        for kind in KINDS:
            self.peak[kind] = max(self.peak.get(kind, 0), _held[kind])
        self.peak_of_all = max(self.peak_of_all, sum(_held.values()))


_held: dict[str, int] = dict.fromkeys(KINDS, 0)
_watches: list[Watch] = []
_kinds: dict[int, str] = {}  # of the counted arrays, by id


def array(kind: str, shape: int | Sequence[int], dtype: Any) -> np.ndarray:
    """Return an array of zeros that is counted under this kind."""
    return track(kind, np.zeros(shape, dtype))


def track(kind: str, values: np.ndarray) -> np.ndarray:
    """Count an array that is not a view, and return it."""
    _kinds[id(values)] = kind
    _change(kind, values.nbytes)
    weakref.finalize(values, _free, id(values), kind, values.nbytes).atexit = False
    return values


def track_activations(saved: Any) -> Any:
    """Count the arrays in `saved`, what a forward pass keeps for the backward pass, and return it.

    saved: an array, or lists and tuples of such, nested; other objects, and arrays that are counted, do not count.
    """
    if isinstance(saved, np.ndarray):
        if not kind_of(saved):
            track(ACTIVATIONS, saved)
    elif isinstance(saved, (list, tuple)):
        for part in saved:
            track_activations(part)
    return saved


def kind_of(buffer: Any) -> str:
    """Return the kind of a counted array, or of the array that `buffer` is a view of; "" for any other object."""
    while isinstance(buffer, np.ndarray):
        if id(buffer) in _kinds:
            return _kinds[id(buffer)]
        buffer = buffer.base
    return ""


def held(kind: str) -> int:
    """Return the bytes of this kind that are held now."""
    return _held[kind]


def _free(identity: int, kind: str, nbytes: int) -> None:
    del _kinds[identity]
    _change(kind, -nbytes)


def _change(kind: str, nbytes: int) -> None:
    _held[kind] += nbytes
    for watch in _watches:
        watch.note()


@contextmanager
def watched() -> Iterator[Watch]:
    """Record the bytes that are held within the block."""
    watch = Watch()
    watch.note()
    _watches.append(watch)
    try:
        yield watch
    finally:
        _watches.remove(watch)
