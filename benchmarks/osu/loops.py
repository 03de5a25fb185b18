"""The iterations of one size, and what surrounds a timed call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from mpicoll.garbage import collection_off

from .options import Repeats

Call = Callable[[], object]
Once = Callable[[int], Sequence[float]]


class Around(Protocol):
    """The untimed work before and after the call of an iteration."""

    def before(self, iteration: int) -> None: ...
    def after(self, iteration: int) -> None: ...


def repeated(once: Once, around: Around, repeats: Repeats) -> np.ndarray:
    """Return the seconds that `once` returns in each timed iteration, one row each.

    `once` and the methods of `around` receive the iteration's number.
    """
    rows = []
    with collection_off():
        for iteration in range(repeats.warmup + repeats.timed):
            around.before(iteration)
            row = once(iteration)
            around.after(iteration)
            if iteration >= repeats.warmup:
                rows.append(row)
    return np.array(rows)


class Apart:
    """Barriers alone: before each call, after it, or nowhere."""

    def __init__(self, barrier: Call, where: str) -> None:
        nothing: Call = lambda: None
        self._before = barrier if where == "before" else nothing
        self._after = barrier if where == "after" else nothing

    def before(self, iteration: int) -> None:
        self._before()

    def after(self, iteration: int) -> None:
        self._after()


class Checked:
    """With -c: what arrives is made wrong before each call and compared after it.

    Between them are warm-up calls, by default five, on buffers of their own; before each of them, and before
    the timed call, comes a barrier.
    """

    def __init__(
        self,
        around: Apart,
        barrier: Call,
        poison: Callable[[int], None],
        warm: Callable[[int], object],
        is_right: Callable[[int], bool],
        warmups: int,
    ) -> None:
        self.around, self.barrier, self.warmups = around, barrier, warmups
        self.poison, self.warm, self.is_right = poison, warm, is_right
        self.wrong = 0

    def before(self, iteration: int) -> None:
        self.poison(iteration)
        for _ in range(self.warmups):
            self.barrier()
            self.warm(iteration)
        self.barrier()

    def after(self, iteration: int) -> None:
        self.around.after(iteration)
        self.wrong += not self.is_right(iteration)
