"""One run on MPI.COMM_WORLD: its communicators, its output and its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

from mpi4py import MPI

import mpicoll

from . import environment
from .contenders import AUTO, NATIVE, line_up
from .driver import MEMORY, Driver, Job, all_valid
from .patterns import Shape
from .progress import bar
from .records import Result, Writer
from .table import LEGEND, console, summary, table


class Session:
    """Made on all ranks together; rank 0 prints and writes.

    Native is called on a plain duplicate of the world, our algorithms on an mpicoll.Comm, and barriers go
    over a third communicator, so that no cost or message of one is another's.
    """

    def __init__(
        self,
        file: IO[str] | None,
        settings: dict[str, Any],
        *,
        seed: int = 0,
        memory: int = MEMORY,
        world: Any = None,
    ) -> None:
        world = MPI.COMM_WORLD if world is None else world
        self.console, self.here = console(), world.rank == 0
        self.control, self.plain = MPI.Intracomm(world.Dup()), MPI.Intracomm(world.Dup())
        self.ours = mpicoll.Comm(world)
        self.driver = Driver(self.control, MPI, Writer(file), self.say, seed=seed, memory=memory)
        self.settings = settings

    def __enter__(self) -> Session:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Free what it made, but not after an error, when messages may be on their way."""
        if error is None:
            self.control.Free()
            self.plain.Free()

    def say(self, what: Any) -> None:
        """Print on rank 0."""
        if self.here:
            self.console.print(what)

    def job(
        self,
        shape: Shape,
        sizes: Sequence[int],
        algorithms: Sequence[str],
        engines: Sequence[str],
        **limits: int | None,
    ) -> Job:
        """A collective with its contenders on this session's communicators; limits as in line_up."""
        contenders = line_up(shape.collective, algorithms, engines, self.plain, self.ours, **limits)
        return Job(shape, tuple(sizes), contenders)

    def check(self, collective: str, algorithms: Sequence[str]) -> None:
        """Raises ParameterError or PreconditionError, on every rank, for one that does not suit these ranks."""
        for name in algorithms:
            if name not in (NATIVE, AUTO):
                forced: dict[str, Any] = {collective: name}
                with self.ours.using(**forced):
                    pass

    def run(
        self, jobs: Sequence[Job], seconds: Sequence[float], rounds: int | None = None, notes: Sequence[str] = ()
    ) -> bool:
        """Run all jobs, print a table after each and a summary after several; True if all was right.

        Before them comes what they run on, in one line, and the notes.
        """
        about = environment.describe(self.control, MPI)
        self.driver.writer.run(about, self.settings)
        for line in (environment.headline(about), *notes):
            self.say(line)
        found: list[Result] = []
        with bar(self.console, self.driver.parts(jobs), self.here) as progress:
            for job, share in zip(jobs, seconds):
                results = self.driver.run(job, share, rounds, progress)
                self.say(table(results, job.shape.title))
                found += results
        self.say(LEGEND)
        if len(jobs) > 1:
            self.say(summary(found))
        return all_valid(found)

