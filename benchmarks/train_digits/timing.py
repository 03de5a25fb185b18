"""Epochs timed with MPI's own Allreduce and with mpicoll's, in turn."""

from __future__ import annotations

import random
import time
from typing import IO, Any

import numpy as np

from ..command.console import console
from ..command.progress import bar
from ..measure.stats import estimate, ratio
from .digits import SEED, Digits
from .trainer import Trainer

Spent = dict[str, list[tuple[float, float]]]  # by whom: seconds of each epoch, and of the Allreduce calls in it


def time_epochs(world: Any, plain: Any, digits: Digits, seconds: float, batch: int) -> tuple[Spent, int]:
    """Epochs with native's Allreduce and with mpicoll's in turn, the order of each pair drawn by lot.

    Returns what they took, the same on all ranks, and the bytes of each Allreduce.
    """
    out, here = console(), world.rank == 0
    trainers = {"native": Trainer(plain, digits, batch), "mpicoll": Trainer(world, digits, batch)}
    for trainer in trainers.values():
        trainer.epoch()
    spent: Spent = {name: [] for name in trainers}
    names, draw, started = list(trainers), random.Random(SEED), time.perf_counter()
    with bar(out, 1, here) as progress:
        progress.begin("epochs in turn")
        while plain.bcast(time.perf_counter() - started < seconds):
            draw.shuffle(names)
            for name in names:
                spent[name].append(timed_epoch(trainers[name], plain))
            progress.within((time.perf_counter() - started) / seconds)
    if here:
        show_times(out, spent, world.size)
    return spent, trainers["native"].mine.nbytes


def keep(file: IO[str] | None, spent: Spent, nbytes: int, comm: Any, mpi: Any, settings: dict[str, Any]) -> None:
    """Write what epochs took as lines of results: see records.py. Collective, since every rank says where it is."""
    from ..results import environment
    from ..results.records import SCHEMA, Writer, samples

    writer, host_of = Writer(file), environment.hosts_of(comm, mpi)
    writer.run(environment.describe(comm, mpi, host_of), settings)
    for column, what in enumerate(("epoch", "allreduce calls of an epoch")):
        times = {name: [pair[column] for pair in pairs] for name, pairs in spent.items()}
        for name, algorithm in (("native", "native"), ("mpicoll", "auto")):
            time, against = estimate(times[name]), ratio(times["native"], times[name])
            ours = algorithm != "native"
            writer.write({
                "kind": "result", "schema": SCHEMA,
                "collective": what, "form": "blocking", "dtype": "float64", "op": "sum", "size": nbytes,
                "ranks": comm.size, "hosts": len(set(host_of)), "algorithm": algorithm, "engine": None, "ran": {},
                "paired": True, "valid": None, "note": "", "rounds": time.values, "late": 0,
                "median_us": time.median * 1e6, "interval_us": time.spread and [t * 1e6 for t in time.spread],
                "ratio": against.median if ours else None, "ratio_interval": against.spread if ours else None,
                "verdict": against.verdict if ours else None, **samples(times[name]),
            })  # fmt: skip


def timed_epoch(trainer: Trainer, plain: Any) -> tuple[float, float]:
    """Seconds of one epoch and of the Allreduce calls in it, the longest over ranks."""
    trainer.communicating = 0.0
    plain.Barrier()
    start = time.perf_counter()
    trainer.epoch()
    mine = np.array([time.perf_counter() - start, trainer.communicating])
    longest = np.empty_like(mine)
    from mpi4py import MPI

    plain.Allreduce(mine, longest, MPI.MAX)
    return tuple(longest.tolist())


def show_times(out: Any, spent: Spent, ranks: int) -> None:
    """Median times and paired ratios, with 95 % intervals."""
    for column, what in enumerate(("an epoch", "its Allreduce calls")):
        times = {name: [pair[column] * 1e3 for pair in pairs] for name, pairs in spent.items()}
        for name, values in times.items():
            found = estimate(values)
            spread = f"{found.low:.2f}–{found.high:.2f}" if found.spread else "too few"
            out.print(
                f"{what}, {name} on {ranks} ranks: {found.median:.2f} ms [{spread}], {found.values} epochs"
            )
        found = ratio(times["native"], times["mpicoll"])
        spread = f"{found.low:.3f}–{found.high:.3f}" if found.spread else "too few"
        out.print(
            f"{what}: native / mpicoll {found.median:.3f} [{spread}], above 1 is faster: {found.verdict}"
        )
