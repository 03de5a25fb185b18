"""Steps of a pattern with MPI's own collectives and with mpicoll's, in turn."""

from __future__ import annotations

import random
import time
from typing import IO, Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.training.account import Account

from ..command.console import console
from ..command.progress import bar
from ..measure.stats import estimate, ratio
from ..results import environment
from ..results.records import Place, Writer, step_line
from .patterns import PATTERNS, Work

SEED, NATIVE, OURS = 0, "native", "mpicoll"
Spent = dict[str, list[tuple[float, float]]]  # by whom: seconds of each step, and of waiting for communication in it


def timed(plain: MPI.Intracomm, name: str, work: Work, seconds: float) -> Spent:
    """Return what steps took, the same on all ranks; the order of each pair is drawn by lot. Collective."""
    accounts = {who: Account() for who in (NATIVE, OURS)}
    comms = {NATIVE: plain, OURS: mpicoll.Comm(plain.Dup())}
    steps = {who: PATTERNS[name].begin(accounts[who].of(comm), work) for who, comm in comms.items()}
    for step in steps.values():
        step(0)
    spent: Spent = {who: [] for who in steps}
    order, draw, started, number = list(steps), random.Random(SEED), time.perf_counter(), 0
    with bar(console(), 1, plain.rank == 0) as progress:
        progress.begin("steps in turn")
        while plain.bcast(time.perf_counter() - started < seconds):
            draw.shuffle(order)
            number += 1
            for who in order:
                spent[who].append(_step(plain, steps[who], accounts[who], number))
            progress.within((time.perf_counter() - started) / seconds)
    if plain.rank == 0:
        show(spent, plain.size, name)
    return spent


def _step(plain: MPI.Intracomm, step: Any, account: Account, number: int) -> tuple[float, float]:
    """Return the seconds of a step and of waiting in it, the longest over ranks."""
    before = account.waited
    plain.Barrier()
    began = time.perf_counter()
    with account.step():
        step(number)
    longest = np.array([time.perf_counter() - began, account.waited - before])
    plain.Allreduce(MPI.IN_PLACE, longest, MPI.MAX)
    return longest[0], longest[1]


def show(spent: Spent, ranks: int, name: str) -> None:
    """Print median times and paired ratios, with 95 % intervals."""
    for column, what in enumerate((f"a step of {name}", "waiting in it")):
        times = {who: [pair[column] * 1e3 for pair in pairs] for who, pairs in spent.items()}
        for who, values in times.items():
            estimated = estimate(values)
            spread = f"{estimated.low:.2f}–{estimated.high:.2f}" if estimated.spread else "too few"
            took = f"{estimated.median:.2f} ms [{spread}], {estimated.values} steps"
            console().print(f"{what}, {who} on {ranks} ranks: {took}")
        against = ratio(times[NATIVE], times[OURS])
        spread = f"{against.low:.3f}–{against.high:.3f}" if against.spread else "too few"
        verdict = f"above 1 is faster: {against.verdict}"
        console().print(f"{what}: native / mpicoll {against.median:.3f} [{spread}], {verdict}")


def keep(
    file: IO[str] | None, spent: Spent, comm: MPI.Intracomm, name: str, work: Work, settings: dict[str, Any]
) -> None:
    """Write what steps took as lines of results: see records.py. Collective, since every rank says where it is."""
    writer, host_of = Writer(file), environment.hosts_of(comm, MPI)
    writer.run(environment.describe(comm, MPI, host_of), settings)
    size, dtype = int(PATTERNS[name].expected(work, max(2, comm.size)).sent), np.dtype(work.dtype).name
    place = Place(host_of)
    for column, what in enumerate((f"step of {name}", f"waiting in a step of {name}")):
        times = {who: [pair[column] for pair in pairs] for who, pairs in spent.items()}
        writer.write(step_line(what, dtype, size, place, "native", times[NATIVE]))
        writer.write(step_line(what, dtype, size, place, "auto", times[OURS], times[NATIVE]))
