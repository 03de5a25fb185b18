"""A small GPT learns some Shakespeare: on one process, and on all ranks by Gloo and by mpicoll, step by step in turn.

    mpiexec -n 4 python -m mpicoll.benchmarks.torch gpt

All begin with the same weights and see the same batches, one process whole and each rank its part, so losses differ by
rounding, and by what a codec leaves away. Losses of what sends float32 must be those with Gloo, or the command fails.
Speed-up is the time of a step on one process over the row's, paired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from mpi4py import MPI
from rich.table import Table

from mpicoll.cli.group import asking

from ..command.checks import positive
from ..command.console import console
from ..command.results_file import write_lines
from ..command.spmd import WRONG, SpmdCommand
from ..measure.stats import estimate, ratio
from ..train.data import Text, text
from . import models
from .groups import Groups, groups
from .rounds import Contender, seconds
from .trainings import Training, replicated, sharded

RATE = 1e-3
TOLERANCE = 1e-3  # between losses, as a part of them; sums differ in their order only
ALONE, BASELINE = "one process", "DDP, Gloo"


@dataclass(frozen=True)
class Learnt:
    """The training of one contender: losses of steps, their largest relative difference from Gloo's, milliseconds.

    speedup is the paired ratio of one process's time to this contender's.
    """

    name: str
    codec: bool
    ranks: int
    windows: int
    first: float
    last: float
    difference: float
    median_ms: float
    speedup: float
    speedup_interval: tuple[float, float] | None
    losses: list[float] = field(repr=False)
    times_ms: list[float] = field(repr=False)


Make = Callable[[Groups, Any], Any]  # of the groups and a model: the model, spread over ranks


CONTENDERS: dict[str, tuple[Make, bool]] = {  # and whether a codec changes what is sent
    ALONE: (lambda both, model: model, False),
    BASELINE: (lambda both, model: replicated(model, both.gloo), False),
    "DDP, mpicoll": (lambda both, model: replicated(model, both.ours), False),
    "DDP, mpicoll, bfloat16": (lambda both, model: replicated(model, both.ours, "bfloat16"), True),
    "DDP, mpicoll, int8": (lambda both, model: replicated(model, both.ours, "int8"), True),
    "fully_shard, Gloo": (lambda both, model: sharded(model, both.gloo, model.blocks), False),
    "fully_shard, mpicoll": (lambda both, model: sharded(model, both.ours, model.blocks), False),
}


@click.command(cls=SpmdCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--steps", default=60, help="Steps of each.")
@click.option("--windows", default=4, help="Windows of the text in a step, for each rank.")
@click.option("--json", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON lines.")
def gpt(steps: int, windows: int, path: Path | None) -> None:
    """Train a small GPT on one process and on all ranks, and hold the losses against each other."""
    with asking():
        positive("--steps", steps)
        positive("--windows", windows)
    comm, corpus = MPI.Intracomm(MPI.COMM_WORLD), text()
    with groups() as both:
        results = learnt(comm, both, corpus, steps, windows * comm.size)
    size = models.parameters_of(models.Gpt(len(corpus.characters)))
    if comm.rank == 0:
        console().print(table(results, size))
        if path:
            write_lines(path, results)
    if wrong := [result for result in results if not result.codec and not result.difference <= TOLERANCE]:
        for result in wrong if comm.rank == 0 else ():
            click.echo(f"FAILED: {result.name}: losses differ from Gloo's by {result.difference:.1e}", err=True)
        raise click.exceptions.Exit(WRONG)


def learnt(comm: MPI.Intracomm, both: Groups, corpus: Text, steps: int, windows: int) -> list[Learnt]:
    """Train by each, so many windows in a step, and return what came of it, the same on all ranks. Collective."""
    trainings = {name: _training(make, both, corpus) for name, (make, _) in CONTENDERS.items()}
    contenders = []
    for name, training in trainings.items():
        part = slice(None) if name == ALONE else slice(comm.rank, None, comm.size)
        contenders.append(Contender(name, _stepping(training, corpus, windows, part), alone=name == ALONE))
    took = seconds(comm, contenders, steps, 0, "a GPT learns")
    losses = {name: _mean(comm, training.losses, steps, name == ALONE) for name, training in trainings.items()}
    results = []
    for name, mine in losses.items():
        against = ratio(took[ALONE], took[name])
        difference = float(np.abs(mine / losses[BASELINE] - 1).max())
        results.append(Learnt(
            name, CONTENDERS[name][1], comm.size, windows, float(mine[0]), float(mine[-1]),
            difference if np.isfinite(difference) else float("inf"), 1e3 * estimate(took[name]).median, against.median,
            against.spread, mine.tolist(), [1e3 * t for t in took[name]],
        ))  # fmt: skip
    return results


def _training(make: Make, both: Groups, corpus: Text) -> Training:
    """Return a model that begins as all others do. Collective."""
    torch.manual_seed(0)
    model = make(both, models.Gpt(len(corpus.characters)))
    return Training(model, partial(torch.optim.AdamW, lr=RATE), models.loss_of_text)


def _stepping(training: Training, corpus: Text, windows: int, part: slice) -> Callable[[int], None]:
    """Return what makes a step on a part of the batch that the number of the step draws."""

    def step(number: int) -> None:
        batch = corpus.batch(number, windows, models.CONTEXT)
        training.step(*(torch.from_numpy(np.ascontiguousarray(array[part])) for array in batch))

    return step


def _mean(comm: MPI.Intracomm, losses: Sequence[float], steps: int, alone: bool) -> np.ndarray:
    """Return the mean of the ranks' losses, or rank 0's. Collective."""
    mean = np.zeros(steps)
    if not alone or comm.rank == 0:
        mean[:] = losses
    comm.Allreduce(MPI.IN_PLACE, mean)
    return mean if alone else mean / comm.size


def table(results: Sequence[Learnt], parameters: int) -> Table:
    """Return a row for each contender."""
    first = results[0]
    what = f"{len(first.losses)} steps of {first.windows} windows of {models.CONTEXT} characters, {first.ranks} ranks"
    rich_table = Table(title=f"a GPT of {parameters / 1e6:.2f} M parameters: {what}", title_justify="left")
    for name in ("trained by", "first loss", "last loss", "unlike Gloo", "ms a step", "speed-up", "95 %"):
        rich_table.add_column(name, justify="left" if name == "trained by" else "right")
    for result in results:
        low_high = "–".join(f"{end:.2f}" for end in result.speedup_interval) if result.speedup_interval else "?"
        rich_table.add_row(
            result.name, f"{result.first:.4f}", f"{result.last:.4f}", f"{result.difference:.1e}",
            f"{result.median_ms:.1f}", *((f"{result.speedup:.2f}", low_high) if result.name != ALONE else ("", "")),
        )  # fmt: skip
    return rich_table
