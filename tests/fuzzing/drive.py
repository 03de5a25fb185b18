"""Hypothesis on rank 0, the other ranks in tow: rank 0 draws a program, all play it, and agree on what went wrong.

So nothing depends on the ranks' drawing alike, and a program shrinks as in any test, then by its own simplifications.
A program that hangs cannot be shrunk here: its ranks report their positions, and the run is aborted.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mpi4py import MPI

from mpicoll.diagnostics import watchdog
from mpicoll.runtime import comm_state

from .play import Player
from .program import Program

PATIENCE = 40.0         # seconds a program may take, where every rank has a core
GRACE = 3.0             # from the first rank's words to the abort
SWITCH = 1e-5           # seconds after which another thread may go on: more often than Python's 5e-3, to find races
OUTPUT = [2]            # where a rank says what it was at; pytest captures 2, and an abort would lose that
Listener = Callable[[Program, bool], None]      # (program, whether it is over)


@dataclass
class Outcome:
    """The outcome of drawn programs: how many were played, and the least one that failed, with its errors.

    threaded: how many of them in several threads.
    """

    played: int = 0
    threaded: int = 0
    calls: int = 0
    program: Program | None = None
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.program is None:
            return f"{self.played} programs of {self.calls} calls, {self.threaded} programs in several threads"
        return "\n".join([repr(self.program), *self.wrong])


def play(program: Program, world: MPI.Intracomm, patience: float = PATIENCE) -> list[str]:
    """Return the errors of a program on all ranks, each line with its rank, and its thread if any. Collective.

    A program that takes more than `patience` seconds, or a thread that breaks off, aborts the run. Where ranks share
    cores, it may take longer by as much.
    """
    patience *= max(1.0, world.size / (os.cpu_count() or 1))
    players: list[Player] = []
    done = threading.Event()
    watch = threading.Thread(target=_watch, args=(program, world.rank, patience, players, done), daemon=True)
    watch.start()
    with _aborting(program, world.rank, players):
        players += [Player(program, world, thread) for thread in range(program.threads)]
        _together(players)
        for player in players:
            player.free()
        every = world.allgather(_wrong(players))
    done.set()
    watch.join()
    return [f"rank {rank}: {line}" for rank, lines in enumerate(every) for line in lines]


def _together(players: Sequence[Player]) -> None:
    """Play all at once: the first here, every other one in a thread of its own."""

    def work(player: Player) -> None:
        with _aborting(player.program, player.world.rank, players):
            player.play()

    threads = [threading.Thread(target=work, args=(player,), name=f"thread {player.thread} of the program", daemon=True)
               for player in players[1:]]
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH if threads else before)
    for thread in threads:
        thread.start()
    players[0].play()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)


@contextmanager
def _aborting(program: Program, rank: int, players: Sequence[Player]) -> Iterator[None]:
    """Abort the run if what is within breaks off, in whichever thread: others may wait for it."""
    try:
        yield
    except BaseException:
        _abort(rank, "\n".join([repr(program), *_wrong(players), traceback.format_exc()]))


def _wrong(players: Sequence[Player]) -> list[str]:
    """Return the errors of each thread of this rank."""
    return [player.label + line for player in players for line in player.wrong]


def _watch(program: Program, rank: int, patience: float, players: Sequence[Player], done: threading.Event) -> None:
    """Say what every thread of this rank is at if the program takes too long, and abort."""
    if done.wait(patience):
        return
    lines = [repr(program), f"took more than {patience:g} s"]
    lines += [player.label + player.doing for player in players] or ["making communicators"]
    lines += _wrong(players)
    for live in list(comm_state.LIVE.values()):
        lines += [watchdog.report(operation, live, patience) for operation in live.queue.in_flight]
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.ident in frames:
            lines += [f"-- {thread.name} --", *traceback.format_stack(frames[thread.ident])[-6:]]
    _abort(rank, "\n".join(lines))


def _abort(rank: int, text: str) -> None:
    """End the run once this rank has said why, and others had time to say where they are."""
    os.write(OUTPUT[0], f"\n==== rank {rank}, fuzzing ====\n{text}\n".encode())
    time.sleep(GRACE)
    MPI.COMM_WORLD.Abort(1)
    os._exit(1)


def fuzz(world: MPI.Intracomm, seed: int, number: int, listen: Listener = lambda program, over: None,
         patience: float = PATIENCE) -> Outcome:
    """Play so many programs drawn with a seed. Collective; the outcome is known on every rank.

    listen(program, is_over) is called on rank 0 before and after every program.
    """
    if world.rank == 0:
        outcome = _lead(world, seed, number, listen, patience)
        world.bcast(None)
    else:
        while (program := world.bcast(None)) is not None:
            play(program, world, patience)
        outcome = None
    return world.bcast(outcome)


class Wrong(AssertionError):
    """A program gave wrong answers."""


def _lead(world: MPI.Intracomm, seed: int, number: int, listen: Listener, patience: float) -> Outcome:
    from hypothesis import HealthCheck, Phase, Verbosity, given, settings
    from hypothesis import seed as seeded

    from .draw import programs

    outcome = Outcome()

    def attempt(program: Program) -> list[str]:
        listen(program, False)
        world.bcast(program)
        wrong = play(program, world, patience)
        listen(program, True)
        return wrong

    def body(program: Program) -> None:
        wrong = attempt(program)
        if outcome.program is None:
            outcome.played += 1
            outcome.threaded += program.threads > 1
            outcome.calls += len(program.calls) * program.times
        if wrong:
            outcome.program, outcome.wrong = program, wrong         # hypothesis plays the least one last
            raise Wrong

    how: Any = settings(max_examples=number, database=None, deadline=None, derandomize=False, print_blob=False,
                        report_multiple_bugs=False, verbosity=Verbosity.quiet, phases=[Phase.generate, Phase.shrink],
                        suppress_health_check=list(HealthCheck))
    try:
        seeded(seed)(how(given(programs(world.size))(body)))()
    except Exception as error:          # Wrong, or Flaky where it was right the second time
        if outcome.program is None:
            raise
        if not isinstance(error, Wrong):
            outcome.wrong.append(f"not every time: {type(error).__name__}")
    if outcome.program is not None:
        _simplify(outcome, attempt)
    return outcome


def _simplify(outcome: Outcome, attempt: Callable[[Program], list[str]]) -> None:
    """Leave out of hypothesis' least program all that can go: it sees choices and knows nothing of programs."""
    tried: set[Program] = set()
    while True:
        assert outcome.program is not None
        for simpler in outcome.program.smaller():
            if simpler not in tried and simpler != outcome.program:
                tried.add(simpler)
                if wrong := attempt(simpler):
                    outcome.program, outcome.wrong = simpler, wrong
                    break
        else:
            return
