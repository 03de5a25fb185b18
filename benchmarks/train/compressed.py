"""Train the digits with each codec, on all ranks of a run: what a step sends and takes, and how much is learnt.

    mpiexec -n 4 python -m mpicoll.benchmarks.train.compressed --steps 400 --seeds 3
    python -m mpicoll.benchmarks.hosts --hosts 8 --rate 50Mbit python -m mpicoll.benchmarks.train.compressed --steps 12

A network of two hidden layers learns by data parallel, its gradients reduced with a codec and error
feedback. Accuracy is that on the test images, for each seed of the weights and of the order. Bytes are what a rank
sends in a step, a time is the median of steps, the slowest rank's. Error is that of the first sum of gradients, with
the bound of what its encodings add up to, as parts of the largest element.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from mpi4py import MPI
from rich.table import Table

import mpicoll
from mpicoll.cli.group import asking
from mpicoll.compression import Allreduce, PowerSGD, parse
from mpicoll.training.data_parallel import BUCKET_BYTES, DataParallel
from mpicoll.training.modules import Linear, Module, Relu, Sequential
from mpicoll.training.optimizers import Sgd

from ..command.checks import listed, positive
from ..command.console import console
from ..command.results_file import write_lines
from ..command.spmd import SpmdCommand
from .data import Digits, load

NAME = "mpicoll.benchmarks.train.compressed"
NONE, POWERSGD = "float32", "powersgd"
CODECS = f"{NONE},bfloat16,float16,float8_e4m3fn,int8,int4,topk(fraction=0.01),{POWERSGD}"
CLASSES, LAYERS = 10, 2


@dataclass(frozen=True)
class Learnt:
    """The trainings with one codec: accuracies in percent, one a seed; bytes a rank sends and seconds, per step."""

    codec: str
    ranks: int
    accuracies: tuple[float, ...]
    nbytes: float
    seconds: float
    error: float
    bound: float | None


@click.command(cls=SpmdCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--codecs", default=CODECS, help="Codecs of mpicoll.compression, float32 for none, or powersgd.")
@click.option("--steps", default=400, help="Steps of each training.")
@click.option("--seeds", default=3, help="How many trainings of each.")
@click.option("--batch", default=128, help="Images of a step, on all ranks together.")
@click.option("--width", default=256, help="Of the hidden layers.")
@click.option("--rate", default=0.3, help="The learning rate.")
@click.option("--momentum", default=0.0, help="What was not sent comes late; with momentum it counts for more.")
@click.option("--json", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON lines.")
def compressed(
    codecs: str, steps: int, seeds: int, batch: int, width: int, rate: float, momentum: float, path: Path | None
) -> None:
    """Train the digits with each codec on these ranks."""
    with asking():
        names = listed("--codecs", codecs)
        for option, value in (("--steps", steps), ("--seeds", seeds), ("--width", width), ("--rate", rate)):
            positive(option, value)
        if batch < MPI.COMM_WORLD.size:
            raise ValueError(f"--batch is {batch}; every one of {MPI.COMM_WORLD.size} ranks needs an image")
        for name in names:
            if name not in (NONE, POWERSGD):
                parse(name)
    comm, data = mpicoll.Comm(MPI.COMM_WORLD), load()
    results = [learn(comm, data, name, steps, seeds, batch, width, rate, momentum) for name in names]
    if comm.rank == 0:
        console().print(table(results))
        if path:
            write_lines(path, results)


def learn(
    comm: Any, data: Digits, codec: str, steps: int, seeds: int, batch: int, width: int, rate: float, momentum: float
) -> Learnt:
    """Train with one codec, once for each seed. Collective."""
    trained = [_trained(comm, data, codec, steps, seed, batch, width, rate, momentum) for seed in range(seeds)]
    accuracies, sent, seconds, errors = zip(*trained)
    error, bound = errors[0]
    return Learnt(codec, comm.size, accuracies, float(np.median(sent)), float(np.median(seconds)), error, bound)


def _trained(
    comm: Any, data: Digits, codec: str, steps: int, seed: int, batch: int, width: int, rate: float, momentum: float
) -> tuple[float, float, float, tuple[float, float | None]]:
    """Return accuracy in percent, bytes sent and seconds of a step, and (error, bound) of the first sum."""
    units = network(np.random.default_rng([seed, 1]), width)
    reduce, watched = _reduction(comm, codec), _Watched(comm, codec)
    most = 1 if codec == POWERSGD else BUCKET_BYTES  # each matrix by itself
    sgd = Sgd(rate, momentum)
    model = DataParallel(comm, units, sgd, bucket_bytes=most, reduce=watched.around(reduce))
    order, times = np.random.default_rng([seed, 2]), []
    with comm.trace() as trace:
        for _ in range(steps):
            rows = order.permutation(len(data.x))[:batch][comm.rank :: comm.size]
            begun = time.perf_counter()
            model.step(data.x[rows].astype(np.float32), data.y[rows])
            times.append(time.perf_counter() - begun)
    slowest = np.array(times)
    comm.Allreduce(MPI.IN_PLACE, slowest, op=MPI.MAX)
    x = data.test_x.astype(np.float32)
    for unit in units:
        x, _ = unit.forward(x)
    accuracy = 100 * float((x.argmax(axis=1) == data.test_y).mean())
    sent = float(sum(record.bytes for record in trace)) / steps
    return accuracy, sent, float(np.median(slowest)), watched.error


def network(draw: np.random.Generator, width: int) -> list[Module]:
    """Return a network for the digits, of float32."""
    def linear(inputs: int, outputs: int) -> Linear:
        weight = draw.standard_normal((inputs, outputs)) * (2 / inputs) ** 0.5
        return Linear(weight.astype(np.float32), np.zeros(outputs, np.float32))

    inner = [Sequential(linear(width, width), Relu()) for _ in range(LAYERS - 1)]
    return [Sequential(linear(64, width), Relu()), *inner, linear(width, CLASSES)]


def _reduction(comm: Any, codec: str) -> Callable[[np.ndarray], Any] | None:
    if codec == NONE:
        return None
    return PowerSGD(comm, rank=4) if codec == POWERSGD else Allreduce(comm, codec)


class _Watched:
    """Holds the first sum of a reduction against the exact one."""

    def __init__(self, comm: Any, codec: str) -> None:
        self.comm, self.codec = comm, codec
        self.error: tuple[float, float | None] = 0.0, 0.0
        self.calls = 0

    def around(self, reduce: Callable[[np.ndarray], Any] | None) -> Callable[[np.ndarray], Any] | None:
        """Return the reduction, watched the first time."""
        if reduce is None:
            return None

        def watched(gradients: np.ndarray) -> None:
            first = self.calls == 0 and (self.codec != POWERSGD or gradients.ndim == 2)  # which vectors are not
            before = gradients.copy() if first else None
            self.calls += first
            reduce(gradients)
            if before is not None:
                self.error = self._compared(before, gradients)

        return watched

    def _compared(self, mine: np.ndarray, got: np.ndarray) -> tuple[float, float | None]:
        exact = np.zeros(mine.size)
        plain = MPI.Intracomm(MPI.COMM_WORLD)
        plain.Allreduce(mine.astype(np.float64).ravel(), exact)
        largest = float(np.abs(exact).max()) or 1.0
        error = float(np.abs(got.ravel() - exact).max()) / largest
        if self.codec == POWERSGD:
            return error, None
        codec, bound = parse(self.codec), np.zeros(mine.size)
        plain.Allreduce(codec.error_bound(mine.ravel()), bound)
        bound += codec.error_bound((np.abs(exact) + bound).astype(np.float32))
        return error, float(bound.max()) / largest


def table(results: list[Learnt]) -> Table:
    """Return a row for each codec."""
    rich_table = Table(title=f"digits, {results[0].ranks} ranks, error feedback", title_justify="left")
    for name in ("codec", "accuracy %, by seed", "mean", "KiB a step", "ms a step", "error", "bound"):
        rich_table.add_column(name, justify="left" if name == "codec" else "right")
    for result in results:
        accuracies = " ".join(f"{accuracy:.1f}" for accuracy in result.accuracies)
        rich_table.add_row(
            result.codec, accuracies, f"{np.mean(result.accuracies):.1f}", f"{result.nbytes / 1024:.1f}",
            f"{result.seconds * 1e3:.2f}", f"{result.error:.1e}",
            "none" if result.bound is None else f"{result.bound:.1e}",
        )  # fmt: skip
    return rich_table


if __name__ == "__main__":
    compressed(prog_name=f"python -m {NAME}")
