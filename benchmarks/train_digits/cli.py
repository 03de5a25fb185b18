"""The command `python -m mpicoll.benchmarks.train_digits`."""

from __future__ import annotations

from contextlib import ExitStack

import click

from ..command.results_file import opened
from ..command.spmd import WRONG, SpmdCommand
from .agreement import compare
from .digits import load
from .timing import keep, time_epochs
from .trainer import BATCH, one_thread


@click.command("train_digits", cls=SpmdCommand, context_settings={"show_default": True})
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
