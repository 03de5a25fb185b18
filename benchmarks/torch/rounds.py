"""Contenders in turn: rounds in which each makes one call, in an order drawn by lot; a call starts at a barrier.

The time of a call is the longest over ranks. Garbage of a round is collected after it, never within one.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.garbage import collection_off

from ..command.console import console
from ..command.progress import bar

SEED = 0
YOUNG = 1  # the generation of garbage that is collected: what torch has imported is older, and takes long to look at
LEAST = 2  # rounds
REST = 0.002  # seconds between two looks at whether rank 0 is done: a rank that spins would take its processor


@dataclass(frozen=True)
class Contender:
    """A call that takes the number of the round. alone: rank 0 makes it while the other ranks sleep."""

    name: str
    call: Callable[[int], Any]
    alone: bool = False


def seconds(
    comm: MPI.Intracomm,
    contenders: Sequence[Contender],
    rounds: int,
    warmup: int,
    title: str = "",
    patience: float = math.inf,
) -> dict[str, list[float]]:
    """Return the seconds of each contender's calls, one a round, the same on all ranks. Collective.

    The rounds that warm up come first, have the first numbers, and are not returned. After so many seconds of
    patience there are no more rounds, but LEAST at least.
    """
    draw, order, began = random.Random(SEED), list(range(len(contenders))), time.perf_counter()
    longest, mine = np.zeros((rounds, len(contenders))), np.zeros(len(contenders))
    done = 0
    with collection_off(), bar(console(), 1, comm.rank == 0) as progress:
        progress.begin(title)
        for number in range(warmup + rounds):
            gc.collect(YOUNG)
            draw.shuffle(order)
            for i in order:
                mine[i] = _once(comm, contenders[i], number)
            if number >= warmup:
                comm.Allreduce(mine, longest[done], MPI.MAX)
                done += 1
            took = comm.bcast(time.perf_counter() - began)
            if done >= LEAST and took > patience:
                break
            progress.within(max((number + 1) / (warmup + rounds), min(1.0, took / patience)))
    return {contender.name: longest[:done, i].tolist() for i, contender in enumerate(contenders)}


def _once(comm: MPI.Intracomm, contender: Contender, number: int) -> float:
    """Return the seconds that this rank spent in a call."""
    comm.Barrier()
    began = time.perf_counter()
    if not contender.alone or comm.rank == 0:
        contender.call(number)
    took = time.perf_counter() - began
    if not contender.alone:
        return took
    over = comm.Ibarrier()
    while not over.Test():
        time.sleep(REST)
    return took
