"""Steps of training on Gloo and on mpicoll, in turn.

    mpiexec -n 4 python -m mpicoll.benchmarks.torch steps
    python -m mpicoll.benchmarks.hosts --hosts 8 --rate 50Mbit python -m mpicoll.benchmarks.torch steps --rounds 6

A step is forward pass, backward pass and optimizer, on a batch so small that communication takes most of it. Ratios are
Gloo's time over the row's, paired by rounds, with 95 % intervals. The limit is the time that the busiest link needs at
the rate: for gradients that are summed everywhere 2 n (h - 1)/h bytes on h hosts, for shards 3 n (h - 1)/h, since
weights are gathered twice and gradients scattered once; n as the codec has it. Losses of what sends float32 must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any

import click
import torch
from mpi4py import MPI
from rich.table import Table
from torch.nn.functional import mse_loss

from mpicoll.compression import parse

from ..cases.patterns import Shape
from ..command.console import console
from ..command.results_file import opened
from ..command.spmd import WRONG
from ..measure.stats import estimate, ratio
from ..results.environment import describe, hosts_of
from ..results.limits import limit
from ..results.records import Place, Writer, step_line
from ..results.text import spread
from . import models
from .groups import Groups, groups
from .rounds import Contender
from .rounds import seconds as in_turn
from .trainings import Training, replicated, sharded

WARM_UP, RATE, BATCH = 2, 0.01, 8
TOLERANCE = 1e-4  # between losses, as a part of the first; sums differ in their order only
DDP, FSDP = "DDP", "fully_shard"
NOTHING, ON_GLOO, ON_OURS = "no communication", "Gloo", "mpicoll"


@dataclass(frozen=True)
class Step:
    """The steps of one contender: milliseconds, and how many times faster than Gloo; intervals of 95 %.

    limit_ms is the time that the busiest link needs; loss is that of the last step, the mean over ranks.
    """

    kind: str
    on: str
    codec: str
    ranks: int
    hosts: int
    parameters: int
    median_ms: float
    interval_ms: tuple[float, float] | None
    ratio: float | None
    ratio_interval: tuple[float, float] | None
    verdict: str
    limit_ms: float | None
    loss: float
    times_ms: list[float] = field(repr=False)


@dataclass(frozen=True)
class Kind:
    """A contender: how a model is spread, on whose group, with which codec."""

    kind: str
    on: str
    codec: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.kind, self.on, self.codec)))

    def training(self, both: Groups, width: int, layers: int) -> Training:
        """Return a model that begins as all others do. Collective."""
        torch.manual_seed(0)
        model, group = models.network(width, layers), both.gloo if self.on == ON_GLOO else both.ours
        if self.kind == DDP:
            model = replicated(model, group, self.codec)
        elif self.kind == FSDP:
            linear = [layer for layer in model if models.parameters_of(layer)]
            model = sharded(model, group, linear, self.codec, self.codec)
        return Training(model, partial(torch.optim.SGD, lr=RATE), mse_loss)

    def limit(self, elements: int, host_of: Sequence[int], rate: float | None) -> float | None:
        """Return the seconds that the busiest link needs at a rate in bits per second; None where it is idle."""
        nbytes, p = parse(self.codec).nbytes(elements) if self.codec else 4 * elements, len(host_of)
        calls = {DDP: (("allreduce", nbytes),), FSDP: 2 * (("allgather", nbytes // p),) + (("reduce_scatter", nbytes),)}
        if rate is None or self.kind not in calls:
            return None
        needed = [limit(Shape(name, dtype="uint8"), size, host_of, rate) for name, size in calls[self.kind]]
        return sum(seconds for seconds in needed if seconds) or None


def kinds(codec: str) -> list[Kind]:
    """Return who takes part."""
    spread_out = [Kind(kind, *how) for kind in (DDP, FSDP) for how in ((ON_GLOO,), (ON_OURS,), (ON_OURS, codec))]
    return [Kind(NOTHING, ""), *spread_out]


def run(
    rounds: int, patience: float, width: int, layers: int, codec: str, rate: float | None, path: str | None
) -> None:
    """Time steps, print the table and write results; exit with status 3 where losses are not Gloo's."""
    comm = MPI.Intracomm(MPI.COMM_WORLD)
    with groups() as both:
        steps = measured(comm, both, kinds(codec), rounds, patience, width, layers, rate)
    if comm.rank == 0:
        console().print(table(steps))
    if path:
        with opened(path, comm, "torch") as file:
            keep(file, comm, steps, rate, {"width": width, "layers": layers, "codec": codec})
    if wrong := [step for step in steps if not agrees(step, steps)]:
        for step in wrong if comm.rank == 0 else ():
            click.echo(f"FAILED: {step.kind} on {step.on}: the loss is {step.loss:.6g}, unlike on Gloo", err=True)
        raise click.exceptions.Exit(WRONG)


def measured(
    comm: MPI.Intracomm,
    both: Groups,
    chosen: Sequence[Kind],
    rounds: int,
    patience: float,
    width: int,
    layers: int,
    rate: float | None,
) -> list[Step]:
    """Return what steps took and where they led, the same on all ranks; rounds end after a time. Collective."""
    draw = torch.Generator().manual_seed(comm.rank)
    batch = [torch.randn(BATCH, width, generator=draw) for _ in range(2)]
    trainings = {kind: kind.training(both, width, layers) for kind in chosen}
    contenders = [Contender(kind.name, _stepping(trained, batch)) for kind, trained in trainings.items()]
    took = in_turn(comm, contenders, rounds, WARM_UP, "steps in turn", patience)
    elements, host_of = models.parameters_of(models.network(width, layers)), hosts_of(comm, MPI)
    steps = []
    for kind, trained in trainings.items():
        times = [1e3 * t for t in took[kind.name]]
        median, least = estimate(times), kind.limit(elements, host_of, rate)
        baseline = took[Kind(kind.kind, ON_GLOO).name] if kind.on == ON_OURS else []
        against = ratio(baseline, took[kind.name][: len(baseline)])
        steps.append(Step(
            kind.kind, kind.on, kind.codec, comm.size, len(set(host_of)), elements, median.median, median.spread,
            against.median if baseline else None, against.spread, against.verdict if baseline else "",
            None if least is None else 1e3 * least, comm.allreduce(trained.losses[-1]) / comm.size, times,
        ))  # fmt: skip
    return steps


def _stepping(trained: Training, batch: Sequence[Any]) -> Callable[[int], None]:
    return lambda number: trained.step(*batch)


def keep(
    file: IO[str] | None, comm: MPI.Intracomm, steps: Sequence[Step], rate: float | None, settings: dict[str, Any]
) -> None:
    """Write what steps took as lines of results: see records.py. `native` is Gloo. Collective."""
    host_of = hosts_of(comm, MPI)
    writer, place = Writer(file), Place(host_of, rate)
    writer.run(describe(comm, MPI, host_of, rate), settings)
    for step in steps:
        native = next((other for other in steps if (other.kind, other.on) == (step.kind, ON_GLOO)), None)
        if native is None:
            continue  # it sends nothing
        writer.write(step_line(
            f"step of {step.kind}; native: {ON_GLOO}", "float32", 4 * step.parameters, place,
            "native" if step is native else step.codec or "auto", [t / 1e3 for t in step.times_ms],
            None if step is native else [t / 1e3 for t in native.times_ms], step.limit_ms and step.limit_ms / 1e3,
        ))  # fmt: skip


def agrees(step: Step, every: Sequence[Step]) -> bool:
    """Return whether a loss is that with Gloo, which it must be where float32 is sent."""
    others = [other.loss for other in every if (other.kind, other.on) == (step.kind, ON_GLOO)]
    return bool(step.codec) or not others or abs(step.loss - others[0]) <= TOLERANCE * max(1.0, abs(others[0]))


def table(steps: Sequence[Step]) -> Table:
    """Return a row for each contender."""
    first = steps[0]
    size = f"{first.parameters / 1e6:.1f} M parameters, {first.ranks} ranks on {first.hosts} hosts"
    rich_table = Table(title=f"steps of training: {size}, {len(first.times_ms)} of each", title_justify="left")
    for name in ("step", "on", "codec", "ms", "95 %", "Gloo / this", "95 %", "", "limit ms", "limit / ms"):
        rich_table.add_column(name, justify="left" if name in ("step", "on", "codec", "") else "right")
    for step in steps:
        times = estimate(step.times_ms)
        least = ("", "") if step.limit_ms is None else (f"{step.limit_ms:.1f}", f"{step.limit_ms / step.median_ms:.2f}")
        low_high = "–".join(f"{end:.2f}" for end in step.ratio_interval) if step.ratio_interval else ""
        rich_table.add_row(
            step.kind, step.on, step.codec, f"{step.median_ms:.1f}", spread(times, "{:.1f}".format),
            "" if step.ratio is None else f"{step.ratio:.2f}", low_high, step.verdict, *least,
        )  # fmt: skip
    return rich_table
