"""Plays random programs of collectives under mpiexec, or one that is given; see fuzzing/.

    python tests/launcher.py -n 4 .venv/bin/python tests/fuzz.py --seed 7 --programs 200
    python tests/launcher.py -n 4 .venv/bin/python tests/fuzz.py --play "Program(comms=((0, 1),), calls=(…,))"
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import IO

from fuzzing import record
from fuzzing.drive import PATIENCE, fuzz, play
from fuzzing.program import Call, Program
from mpi4py import MPI
from support import compiler

import mpicoll
from mpicoll.kernels import background

AT_ONCE = 25            # programs drawn with one seed


def parse(words: list[str]) -> argparse.Namespace:
    """Return the arguments; every rank reads the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--seed", type=int, default=0, help="which programs; one more for every 25")
    add("--programs", type=int, default=100, help="how many, for lack of --seconds")
    add("--seconds", type=float, help="go on for so long")
    add("--log", help="a file: a line of JSON when a program begins, when it ends, and for a failure")
    add("--patience", type=float, default=PATIENCE, help="seconds a program may take before the run is aborted")
    add("--cold", type=float, metavar="SECONDS", help="on an empty cache: compiled kernels arrive so much later")
    add("--play", metavar="PROGRAM", help="play this one")
    return parser.parse_args(words)


def listener(log: IO[str] | None) -> Callable[[Program, bool], None]:
    """Return a function that logs every program that runs, so that the log has it even if all ranks hang."""

    def listen(program: Program, is_over: bool) -> None:
        if log is not None:
            (record.over if is_over else record.begin)(log, program)

    return listen


def many(arguments: argparse.Namespace, log: IO[str] | None) -> bool:
    """Play drawn programs; whether all went well."""
    world, seed, played, calls, threaded = MPI.COMM_WORLD, arguments.seed, 0, 0, 0
    first = seed
    until = time.monotonic() + (arguments.seconds or 0)
    while world.bcast(time.monotonic() < until if arguments.seconds else played < arguments.programs):
        number = AT_ONCE if arguments.seconds else min(AT_ONCE, arguments.programs - played)
        outcome = fuzz(world, seed, number, listener(log), arguments.patience)
        if outcome.program is not None:
            if world.rank == 0:
                print(f"seed {seed}, {world.size} ranks: {outcome}", flush=True)
            if log is not None:
                record.failed(log, outcome.program, outcome.wrong)
            return False
        seed, played, calls = seed + 1, played + number, calls + outcome.calls
        threaded += outcome.threaded
    if world.rank == 0:
        print(f"{played} programs of {calls} calls on {world.size} ranks, {threaded} programs in several threads, "
              f"seeds {first} to {seed - 1}: all right")
    return True


def play_text(text: str, patience: float) -> bool:
    """Play a program as it was printed; whether all went well."""
    program = eval(text, {"Program": Program, "Call": Call})
    world = MPI.COMM_WORLD
    if program.ranks > world.size:
        sys.exit(f"the program needs {program.ranks} ranks, and there are {world.size}")
    if program.threads > 1 and MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        sys.exit("the program has several threads, and MPI_THREAD_MULTIPLE is not there")
    wrong = play(program, world, patience)
    if world.rank == 0:
        print("\n".join(wrong) or "all right", flush=True)
    return not wrong


def main(words: list[str]) -> int:
    """Return the exit status."""
    arguments = parse(words)
    if arguments.cold is not None:
        background.COMMAND = compiler.command(arguments.cold)
    mpicoll.Comm(MPI.COMM_WORLD)    # what a machine compiles once is no program's time
    if arguments.play:
        return 0 if play_text(arguments.play, arguments.patience) else 1
    log = open(arguments.log, "a", buffering=1) if arguments.log and MPI.COMM_WORLD.rank == 0 else None     # noqa: SIM115
    return 0 if many(arguments, log) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
