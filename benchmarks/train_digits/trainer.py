"""One rank's part in training, with the images of each batch shared out among the ranks."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpicoll.schedules.blocks import offsets, sizes

from .digits import SEED, Digits
from .network import Mlp

HIDDEN, BATCH, RATE = 256, 128, 0.1


def one_thread(stack: ExitStack) -> None:
    """Ranks share the cores already: one thread each for the linear algebra."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    stack.enter_context(threadpool_limits(1))


@dataclass
class Trainer:
    """One rank's part in training on a communicator."""

    comm: Any
    digits: Digits
    size: int = BATCH  # images in a batch, of all ranks together

    def __post_init__(self) -> None:
        self.model = Mlp(self.digits.x.shape[1], HIDDEN, 10, SEED)
        self.mine = np.zeros(len(self.model.parameters) + 1)  # the gradient, then the loss
        self.all = np.zeros_like(self.mine)
        self.shuffle = np.random.default_rng(SEED)
        self.communicating = 0.0  # seconds in Allreduce

    def epoch(self) -> float:
        """Go once through the training images; returns their mean loss."""
        total, order = 0.0, self.shuffle.permutation(len(self.digits.x))
        for first in range(0, len(order), self.size):
            total += self.batch(order[first : first + self.size])
        return total / len(order)

    def batch(self, images: np.ndarray) -> float:
        """Take one step, from the images of this batch that are this rank's; return the batch's summed loss."""
        lengths = sizes(len(images), self.comm.size)
        first = offsets(lengths)[self.comm.rank]
        part = images[first : first + lengths[self.comm.rank]]
        self.mine[-1] = self.model.backward(self.digits.x[part], self.digits.y[part], self.mine[:-1])
        start = time.perf_counter()
        self.comm.Allreduce(self.mine, self.all)
        self.communicating += time.perf_counter() - start
        self.model.step(self.all[:-1] / len(images), RATE)
        return float(self.all[-1])
