"""One pattern on all ranks, beside the same model on one rank."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.describe.explore.training import RankStep
from mpicoll.timeline.timeline import Timeline
from mpicoll.training import memory
from mpicoll.training.account import Account, Event
from mpicoll.training.results import Result

from .patterns import PATTERNS, Step, Work
from .recorded import rank_step

REST = 0.002  # seconds between two looks at whether rank 0 is done: a rank that spins would take its processor


@dataclass
class Measured:
    """One rank's record of a pattern: losses, account, when the last step began, and the most bytes held, by kind.

    step: the record of the last step for the page, if run() was to make one.
    """

    losses: list[float]
    account: Account
    began: float = 0.0
    held: dict[str, int] = field(default_factory=dict)
    step: RankStep | None = None

    @property
    def events(self) -> list[Event]:
        """Return the calls of the last step, with times from its begin."""
        zero, events = self.began, self.account.events
        return [e._replace(began=e.began - zero, waited=e.waited - zero, ended=e.ended - zero) for e in events]

    @property
    def history(self) -> list[tuple[float, tuple[int, ...]]]:
        """Return the bytes held during the last step, as (seconds from its begin, bytes of each kind)."""
        return [(max(0.0, at - self.began), held) for at, held in self.account.watch.history]


def run(
    world: MPI.Intracomm, name: str, work: Work, steps: int, blocking: bool = False, record: bool = False
) -> Measured:
    """Train by a pattern. Collective. record: record the last step for the page."""
    account = Account()
    pattern = PATTERNS[name]
    comm = account.of(mpicoll.Comm(world.Dup()))
    begin = pattern.blocking if blocking and pattern.blocking is not None else pattern.begin
    step = begin(comm, work)
    measured = Measured([], account)
    for number in range(steps):
        timeline = Timeline(world) if record and number == steps - 1 else None
        world.Barrier()
        measured.began = time.perf_counter()
        with account.step(), mpicoll.span(f"{name}, step {number}"):
            measured.losses.append(step(number))
        if timeline is not None:
            measured.step = rank_step(timeline, account, measured.began, time.perf_counter())
        for kind, peak in account.watch.peak.items():
            measured.held[kind] = max(measured.held.get(kind, 0), peak)
    del step
    account.close()
    comm.comm.Free()
    return measured


class Alone:
    """Losses on one rank: rank 0 trains while the others rest, once for each model."""

    def __init__(self, world: MPI.Intracomm, work: Work, steps: int) -> None:
        self.world, self.work, self.steps = world, work, steps
        self.known: dict[str, np.ndarray] = {}

    def losses(self, name: str) -> np.ndarray:
        """Return the losses of a pattern's model, trained on one rank. Collective."""
        model = PATTERNS[name].model
        if model not in self.known:
            values = np.zeros(self.steps)
            if self.world.rank == 0:
                step: Step = PATTERNS[name].begin(mpicoll.Comm(MPI.COMM_SELF), self.work)
                values[:] = [step(number) for number in range(self.steps)]
            request = self.world.Ibcast(values)
            while not request.Test():
                time.sleep(REST)
            self.known[model] = values
        return self.known[model]


def outnumber_cores(world: MPI.Intracomm) -> bool:
    """Return whether any host has more ranks than these may use cores. Collective, the same on every rank."""
    local = world.Split_type(MPI.COMM_TYPE_SHARED)
    cores = set().union(*local.allgather(os.sched_getaffinity(0)))
    more = local.size > len(cores)
    local.Free()
    return bool(world.allreduce(more, MPI.LOR))


def whole_bytes(name: str, work: Work, steps: int) -> list[int]:
    """Return the most bytes of each kind of memory in the last step of a pattern's model on one rank. Local.

    The first pattern with the model trains it: on one rank it holds nothing twice.
    """
    first = next(other for other in PATTERNS if PATTERNS[other].model == PATTERNS[name].model)
    watch = run(MPI.COMM_SELF, first, work, steps).account.watch
    return [watch.peak[kind] for kind in memory.KINDS]


def result(
    world: MPI.Intracomm, name: str, work: Work, alone: Alone, steps: int, record: bool = False
) -> tuple[Result, Measured]:
    """Train by a pattern on all ranks and on one, and return what came of it. Collective, the same on every rank."""
    expected_losses = alone.losses(name)
    measured = run(world, name, work, steps, record=record)
    waited = _largest(world, measured.account.waited / steps)
    hidden = None  # not measured either where ranks outnumber cores: there the wait for a core is in both times
    if not outnumber_cores(world) and PATTERNS[name].blocking is not None:
        blocking = run(world, name, work, steps, blocking=True).account.waited / steps
        hidden = max(0.0, _largest(world, blocking) - waited)
    losses, account = np.array(measured.losses), measured.account
    differences = np.abs(losses / expected_losses - 1)
    theory = PATTERNS[name].expected(work, world.size)
    held = [_largest(world, measured.held[kind]) for kind in memory.MODEL]
    root = np.array([account.sent, account.received], float) / steps
    world.Bcast(root)
    return Result(
        name,
        world.size,
        float(losses[-1]),
        float(differences.max()) if np.isfinite(differences).all() else float("inf"),
        _largest(world, account.sent / steps),
        theory.sent,
        float(root[0]),
        float(root[1]),
        _largest(world, account.calls.total() / steps),
        _largest(world, account.seconds / steps),
        waited,
        hidden,
        held[0],
        theory.parameters,
        held[1],
        theory.gradients,
        held[2],
        theory.state,
    ), measured


def _largest(world: MPI.Intracomm, value: float) -> float:
    largest: Any = world.allreduce(value, MPI.MAX)
    return float(largest)
