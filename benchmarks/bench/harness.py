"""One run on MPI.COMM_WORLD: its communicators, its output and its results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import IO, Any

from mpi4py import MPI

import mpicoll

from ..cases.contenders import AUTO, NATIVE, Contender, line_up
from ..cases.patterns import Shape
from ..command.console import console
from ..command.progress import bar
from ..measure.budget import Budget
from ..measure.rounds import WARMUP, Bench
from ..measure.sync import BARRIER
from ..results import environment
from ..results.records import Place, Result, Writer
from ..results.table import conclusion, legend, summary, table
from .driver import MEMORY, Driver, Job, all_valid


class Harness:
    """Made on all ranks together; rank 0 prints and writes.

    Native is called on a plain duplicate of the world, our algorithms on an mpicoll.Comm, and what the ranks
    start together by goes over communicators of its own, so that no cost or message of one is another's. The
    barrier before a call is ours, a dissemination, whose ranks leave at nearly the same time on any MPI.

    rate: bits per second of a host's link, if known. sync: "barrier" or "window". seed: of the order in a round.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        *,
        seed: int = 0,
        memory: int = MEMORY,
        rate: float | None = None,
        sync: str = BARRIER,
        warmup: int = WARMUP,
        world: Any = None,
    ) -> None:
        world = MPI.COMM_WORLD if world is None else world
        self.console, self.here, self.settings = console(), world.rank == 0, settings
        self.control, self.plain = MPI.Intracomm(world.Dup()), MPI.Intracomm(world.Dup())
        self.ours, meeting = mpicoll.Comm(world), mpicoll.Comm(world)
        self.place = Place(environment.hosts_of(world, MPI), rate)
        self.stack = ExitStack()
        self.stack.enter_context(meeting.using(barrier="dissemination"))
        self.bench = Bench(self.control, MPI, seed, sync=sync, barrier=meeting.Barrier, warmup=warmup)
        self.memory = memory
        self.peers: list[Contender] = []

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Free its resources, but not after an error, since messages may be in flight."""
        if error is None:
            self.stack.close()
            self.control.Free()
            self.plain.Free()

    def say(self, what: Any) -> None:
        """Print on rank 0."""
        if self.here:
            self.console.print(what)

    def invite(self, peers: Sequence[str]) -> None:
        """Have other libraries take part in all jobs that are made from now on. Collective."""
        for name in peers:
            from ..peers.gloo_comm import GlooComm

            comm = GlooComm()
            self.stack.callback(comm.Free)
            self.peers.append(Contender(name, None, comm))

    def job(
        self,
        shape: Shape,
        sizes: Sequence[int],
        algorithms: Sequence[str],
        engines: Sequence[str],
        **limits: int | None,
    ) -> Job:
        """Return a collective with its contenders on this run's communicators; limits as in line_up."""
        contenders = line_up(shape.collective, algorithms, engines, self.plain, self.ours, **limits)
        return Job(shape, tuple(sizes), contenders + self.peers)

    def check(self, collective: str, algorithms: Sequence[str]) -> None:
        """Raise ParameterError or PreconditionError, on every rank, for one that does not suit these ranks."""
        for name in algorithms:
            if name not in (NATIVE, AUTO):
                forced: dict[str, Any] = {collective: name}
                with self.ours.using(**forced):
                    pass

    def run(
        self, jobs: Sequence[Job], budgets: Sequence[Budget], file: IO[str] | None, notes: Sequence[str] = ()
    ) -> bool:
        """Run all jobs, print a table after each and a summary after several; True if all was right.

        Before them comes what they run on, in one line, and the notes. Results go to rank 0's file as they come.
        """
        about = environment.describe(self.control, MPI, self.place.host_of, self.place.rate)
        driver = Driver(self.bench, self.place, Writer(file), self.say, self.memory)
        driver.writer.run(about, self.settings)
        if self.place.rate and about["hosts"] == 1:
            notes = [*notes, "all ranks are on one host, so no link limits them"]
        for line in (environment.headline(about), *notes):
            self.say(line)
        all_results: list[Result] = []
        with bar(self.console, driver.parts(jobs), self.here) as progress:
            for job, budget in zip(jobs, budgets):
                results = driver.run(job, budget, progress)
                self.say(table(results, job.shape.title))
                all_results += results
        self.say(legend(all_results))
        if len(jobs) > 1 and any(result.timing.contender.algorithm == AUTO and result.ratio for result in all_results):
            self.say(summary(all_results))
            self.say(conclusion(all_results))
        return all_valid(all_results)
