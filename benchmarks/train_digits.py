"""Train a network on scikit-learn's handwritten digits, each batch shared out among the ranks.

    mpiexec -n 4 python -m mpicoll.benchmarks.train_digits
    mpiexec -n 2 python -m mpicoll.benchmarks.train_digits --time

The first trains on 1 rank, then on all, and asserts that the losses agree to rounding and that the test
accuracy is at least 95 %. The second times epochs with MPI's own Allreduce and with mpicoll's, in turn; --json FILE
keeps them as `mpicoll bench` keeps its results, an epoch and its Allreduce calls in the place of a collective.

Each rank sums the gradients and the loss of its part of a batch into one bucket; Allreduce adds the buckets;
the sum is divided by the size of the whole batch. So parts of unequal size, or of none, weigh what they
should.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import click
import numpy as np

from mpicoll.schedules.blocks import offsets, sizes

from .mlp import Mlp
from .progress import bar
from .stats import estimate, ratio
from .table import console
from .voice import WRONG, OneVoice, opened

HIDDEN, BATCH, RATE = 256, 128, 0.1
LEAST_ACCURACY = 0.95
TOLERANCE = 1e-9  # relative, between losses; the sums differ in their order only
SEED = 0
MISSING = "scikit-learn is missing; pip install 'mpicoll[train]'"


class Digits(NamedTuple):
    """Images as rows of 64 values from 0 to 1, and the digits they show."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def load() -> Digits:
    """1,437 images to train on and 360 to test on, always the same. Raises UsageError."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise click.UsageError(MISSING) from None
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(x))
    x, y = x[order] / 16.0, y[order]
    return Digits(x[:1437], y[:1437], x[1437:], y[1437:])


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


def compare(world: Any, alone: Any, digits: Digits, epochs: int) -> list[str]:
    """Train on 1 rank beside all, printing losses; returns what does not hold, the same on all ranks."""
    out, here = console(), world.rank == 0
    with bar(out, epochs, here) as progress:
        progress.begin("training on 1 rank")
        single = [Trainer(alone, digits)] if here else []
        losses = [trainer.epoch() for trainer in single for _ in range(epochs)]
        losses = world.bcast(losses)
        together, worst = Trainer(world, digits), 0.0
        if here:
            out.print(f"epoch    loss, 1 rank     loss, {world.size} ranks    difference")
        for epoch, expected in enumerate(losses, 1):
            progress.begin(f"epoch {epoch}")
            loss = together.epoch()
            worst = max(worst, abs(loss - expected) / expected)
            if here:
                out.print(f"{epoch:5}  {expected:14.10f}  {loss:14.10f}  {loss - expected:12.1e}")
            progress.end()
    accuracy = together.model.accuracy(digits.test_x, digits.test_y)
    if here:
        shares = sizes(len(digits.x) % BATCH, world.size)
        out.print(
            f"{len(digits.x)} images, the last batch shared out as {shares}\n"
            f"largest relative difference of losses {worst:.1e} (limit {TOLERANCE:.0e}), "
            f"test accuracy {accuracy:.1%} (at least {LEAST_ACCURACY:.0%})"
        )
    wrong: list[str] = world.bcast(complaints(worst, accuracy))
    return wrong


def complaints(worst: float, accuracy: float) -> list[str]:
    """Return what does not hold. Written so that NaN does not pass."""
    found = []
    if not worst <= TOLERANCE:
        found.append(f"the losses differ by {worst:.1e}, more than {TOLERANCE:.0e}")
    if not accuracy >= LEAST_ACCURACY:
        found.append(f"test accuracy is {accuracy:.1%}, less than {LEAST_ACCURACY:.0%}")
    return found


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
    from . import environment
    from .records import SCHEMA, Writer, samples

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


@click.command("train_digits", cls=OneVoice, context_settings={"show_default": True})
@click.option("--epochs", default=30, help="To train for, when comparing losses.")
@click.option("--time", "timing", is_flag=True, help="Time epochs, native beside mpicoll, instead.")
@click.option("--seconds", default=10.0, help="To time for.")
@click.option("--batch", default=BATCH, help="With --time: images in a batch, of all ranks together.")
@click.option("--json", "path", metavar="FILE", help="With --time: for JSON lines, as `mpicoll bench` writes them.")
def main(epochs: int, timing: bool, seconds: float, batch: int, path: str | None) -> None:
    """Train on handwritten digits with the images shared out among the ranks: start it under mpiexec."""
    from mpi4py import MPI

    import mpicoll

    if epochs < 1 or not seconds > 0 or batch < 1:
        raise click.UsageError("--epochs, --seconds and --batch must be above 0")
    if not timing and (path is not None or batch != BATCH):
        raise click.UsageError("--batch and --json go with --time")
    with ExitStack() as stack:
        digits = load()
        one_thread(stack)
        world = mpicoll.Comm(MPI.COMM_WORLD)
        if timing:
            plain = MPI.Intracomm(MPI.COMM_WORLD.Dup())
            if path is None:  # `make bench` is to leave nothing behind
                time_epochs(world, plain, digits, seconds, batch)
                return
            with opened(path, plain, "train_digits") as file:
                spent, nbytes = time_epochs(world, plain, digits, seconds, batch)
                keep(file, spent, nbytes, plain, MPI, {"seconds": seconds, "batch": batch})
            return
        wrong = compare(world, mpicoll.Comm(MPI.COMM_SELF), digits, epochs)
        for complaint in wrong if world.rank == 0 else ():
            click.echo(f"FAILED: {complaint}", err=True)
        if wrong:
            raise click.exceptions.Exit(WRONG)


if __name__ == "__main__":
    main()
