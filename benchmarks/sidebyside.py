"""Time nine collectives, every registered algorithm of each, beside MPI's own, in about a minute.

    mpiexec -n 2 python -m mpicoll.benchmarks.sidebyside

Allreduce and auto run on each engine. The exit status is 1 if any answer was wrong.
"""

from __future__ import annotations

from typing import Any

import click

from mpicoll.schedules.collectives import canonical_name
from mpicoll.schedules.registry import exact_algorithms

from .bench.driver import Job
from .bench.harness import Harness
from .cases.contenders import AUTO, ENGINES, NATIVE, line_up
from .cases.patterns import Shape
from .command.checks import positive
from .command.results_file import opened
from .command.spmd import WRONG, SpmdCommand
from .measure.budget import Budget

COLLECTIVES = (
    "barrier",
    "bcast",
    "scatter",
    "gather",
    "allgather",
    "reduce",
    "reduce_scatter_block",
    "allreduce",
    "alltoall",
)
SIZES = (8, 64 << 10, 1 << 20)
MORE_SIZES = {"allreduce": (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20), "barrier": (0,)}
ON_EACH_ENGINE = ("allreduce",)


def line_up_of(collective: str, harness: Harness) -> Job:
    """Return who takes part in a collective: native, auto, and every algorithm."""
    shape, sizes = Shape(collective), MORE_SIZES.get(collective, SIZES)
    engines = ENGINES[1:] if collective in ON_EACH_ENGINE else (AUTO,)
    names = exact_algorithms(canonical_name(collective))
    job = harness.job(shape, sizes, (NATIVE, AUTO), (AUTO,))
    return Job(
        shape, sizes, [*job.contenders, *line_up(collective, names, engines, harness.plain, harness.ours)]
    )


def shares(jobs: list[Job], seconds: float) -> list[Budget]:
    """Time per collective, in proportion to how many measurements it has."""
    weights = [len(job.sizes) * len(job.contenders) for job in jobs]
    return [Budget(seconds * weight / sum(weights)) for weight in weights]


@click.command("sidebyside", cls=SpmdCommand, context_settings={"show_default": True})
@click.option("--seconds", default=40.0, help="Time to spend in all, apart from checking and warming up.")
@click.option("--json", "path", metavar="FILE", help="Write JSON lines, as results come.")
def main(path: str | None, seconds: float) -> None:
    """Time nine collectives' algorithms beside MPI's own: start it under mpiexec, on 2 or more ranks."""
    from mpi4py import MPI

    try:
        positive("--seconds", seconds)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    settings: dict[str, Any] = {"benchmark": "sidebyside", "seconds": seconds}
    with opened(path, MPI.COMM_WORLD, "sidebyside") as file, Harness(settings) as harness:
        jobs = [line_up_of(collective, harness) for collective in COLLECTIVES]
        if not harness.run(jobs, shares(jobs, seconds), file):
            raise click.exceptions.Exit(WRONG)


if __name__ == "__main__":
    main()
