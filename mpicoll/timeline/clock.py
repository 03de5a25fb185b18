"""Bring times of all ranks to rank 0's clock."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from ..diagnostics.flight import run_name, started
from .model import Identity

BOOT = Path("/proc/sys/kernel/random/boot_id")
EXCHANGES = 16  # with rank 0 for each rank, of which the quickest counts
_TAG = 1


def identity() -> Identity:
    """Return what names the run of this process, its clock, and the process. The clock begins when the system does."""
    try:
        clock = BOOT.read_text().strip()
    except OSError:
        clock = socket.gethostname()
    process = os.getpid()
    return Identity(run_name(), clock, f"{clock}:{process}:{started(process)}")


class Reading(NamedTuple):
    """The seconds by which this rank's clock is ahead of rank 0's, at a time of this rank's, and their error."""

    at: float
    ahead: float
    error: float


def read(comm: MPI.Intracomm) -> Reading:
    """Compare this rank's clock with rank 0's. Collective."""
    here, there = np.zeros(1), np.zeros(1)
    if comm.rank == 0:
        for rank in range(1, comm.size):
            for _ in range(EXCHANGES):
                MPI.Intracomm.Recv(comm, there, rank, _TAG)
                here[0] = time.monotonic()
                MPI.Intracomm.Send(comm, here, rank, _TAG)
        return Reading(time.monotonic(), 0.0, 0.0)
    exchanges = []
    for _ in range(EXCHANGES):
        before = time.monotonic()
        MPI.Intracomm.Send(comm, here, 0, _TAG)
        MPI.Intracomm.Recv(comm, there, 0, _TAG)
        exchanges.append((before, float(there[0]), time.monotonic()))
    return reading(exchanges)


def reading(exchanges: Sequence[tuple[float, float, float]]) -> Reading:
    """Return how far a clock is ahead of a peer's, from (time here, time there, time here again) of exchanges.

    The peer reads its clock about midway in an exchange, and the quickest exchange was disturbed least (Cristian,
    Probabilistic clock synchronization, 1989).

    >>> reading([(10.0, 5.5, 12.0), (13.0, 7.25, 13.5)])
    Reading(at=13.25, ahead=6.0, error=0.25)
    """
    before, there, after = min(exchanges, key=lambda times: times[2] - times[0])
    midway = (before + after) / 2
    return Reading(midway, midway - there, (after - before) / 2)


class Correction(NamedTuple):
    """Two readings, by which this rank's times become rank 0's: between and beyond them the clocks drift evenly."""

    first: Reading
    last: Reading

    def __call__(self, times: np.ndarray) -> np.ndarray:
        """Return times of this rank, in seconds, as times of rank 0's clock.

        >>> Correction(Reading(0.0, 2.0, 0.0), Reading(10.0, 3.0, 0.0))(np.array([5.0, 10.0])).tolist()
        [2.5, 7.0]
        """
        apart = self.last.at - self.first.at
        drift = (self.last.ahead - self.first.ahead) / apart if apart > 0 else 0.0
        corrected: np.ndarray = times - (self.first.ahead + drift * (times - self.first.at))
        return corrected

    @property
    def error(self) -> float:
        """The most seconds by which corrected times may be wrong, if the drift was even."""
        return max(self.first.error, self.last.error)
