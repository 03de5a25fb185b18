"""Kills ranks while they are in collectives, and checks that all others raise and continue: Open MPI with ULFM.

    python tests/survive.py                             # every algorithm in every form; victims and moments vary
    python tests/survive.py --forms blocking --seed 2   # other victims, other moments
    python tests/survive.py --only allreduce --ranks 8
    python tests/survive.py --situations all --times 20 # failures elsewhere: see tests/situations.py

One launch starts RANKS ranks. Again and again one or two of them kill themselves, each time around another call, until
few are left. The other ranks repeat the call until it raises. A call passes if every rank that is left raises
ProcFailedError within SECONDS, naming none but killed ranks, and if Shrink returns an mpicoll.Comm on which the same
algorithm gives the right result. Where MPI itself completes the requests, an error of MPI's passes. Every rank that is
left must reach its end without a traceback. The last lines are the times from the kill to the errors and to the first
right result, and `N passed, N failed`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from mpicoll.benchmarks.cases.case import Case
from mpicoll.benchmarks.cases.forms import FORMS, NONBLOCKING
from mpicoll.benchmarks.cases.lossy import is_lossy
from mpicoll.benchmarks.cases.patterns import Shape
from mpicoll.schedules.collectives import BLOCKING, PERSISTENT, base_collective, is_of_neighbours
from mpicoll.schedules.registry import find, list_algorithms

HERE = Path(__file__).resolve()
RANKS, LEAST = 12, 3
SECONDS = 2.0           # from the kill to the error on every rank that is left
NBYTES = 12_000         # of a call, as benchmarks mean it
LIMIT = 60              # seconds of a launch
CRASH = "ompi_comm_set_rank_failed"    # Open MPI 5.0 may crash on a rank that makes a communicator as another rank dies
NOT_STARTED = "listener thread failed to start"    # the launcher itself, before any rank runs
STARTS = 3              # of a launch whose launcher does not start
WAITALL = "waitall"     # of two nonblocking calls, by MPI
MOMENTS = ("before", "in", "computing")     # the victim dies: before the call; in its calls; while the others compute


class Situation(NamedTuple):
    """A situation of tests/situations.py: how many ranks it kills, and words that a rank prints."""

    killed: int = 1
    words: str = ""


SITUATION_RANKS = 6
SITUATIONS = {
    "node": Situation(2),
    "chunks": Situation(),
    "shrink": Situation(2),
    "shrink_alone": Situation(2),
    "restore": Situation(2),
    "split": Situation(),
    "comm": Situation(),
    "idup": Situation(),
    "idup_revoked": Situation(0),
    "stopped": Situation(0, "has not moved for"),
}


class Scenario(NamedTuple):
    """One call in which ranks are killed; victims are shares of the ranks that are left, moment one of MOMENTS."""

    collective: str
    algorithm: str
    form: str
    moment: str
    victims: list[float]
    delay: float        # seconds in its calls

    def killed(self, size: int) -> list[int]:
        """Return the ranks of the victims."""
        return sorted({int(share * size) for share in self.victims})


def scenarios(only: list[str], forms: list[str], seed: int) -> list[Scenario]:
    """Return every algorithm in every form, in an order that mixes collectives."""
    draw = random.Random(seed)
    names = [(collective, name) for collective, algorithms in list_algorithms().items()
             if (base_collective(collective) == collective or is_of_neighbours(collective))
             and (not only or collective in only)
             for name in ("native", *algorithms)]
    drawn = [Scenario(*name, form, draw.choice(MOMENTS), [draw.random() for _ in range(draw.choice((1, 1, 2)))],
                      draw.uniform(0, 0.01)) for form in forms for name in names]
    draw.shuffle(drawn)
    return drawn


# -- on every rank ------------------------------------------------------------------------------------------------


def communicator(comm: Any, scenario: Scenario) -> Any:
    """Return the communicator of the calls: for neighbourhood collectives, with 8 neighbours on a torus."""
    from mpi4py import MPI

    if not is_of_neighbours(scenario.collective):
        return comm
    torus = comm.Create_cart(MPI.Compute_dims(comm.size, 2), [True, True])
    return torus.Create_stencil([offset for offset in product((-1, 0, 1), repeat=2) if any(offset)])


def calls(comm: Any, scenario: Scenario) -> tuple[Callable[[], Any], Callable[[], bool]]:
    """Return a function that makes the call once and waits for it, and one that says if its last result is right."""
    from mpi4py import MPI

    if is_of_neighbours(scenario.collective):
        return neighbor_calls(comm, scenario)
    form = NONBLOCKING if scenario.form == WAITALL else scenario.form
    shape = Shape(scenario.collective, "float32", form=form)
    both = [Case(shape, NBYTES, comm.rank, comm.size) for _ in range(2 if scenario.form == WAITALL else 1)]
    operations = [FORMS[form].bound(comm, scenario.collective, case.arguments(MPI))[0] for case in both]
    if scenario.form == WAITALL:
        return lambda: MPI.Request.Waitall([operation.start() for operation in operations]), both[0].is_right
    return operations[0].call, both[0].is_right


def neighbor_calls(comm: Any, scenario: Scenario) -> tuple[Callable[[], Any], Callable[[], bool]]:
    """Return the same for a neighbourhood collective."""
    from mpi4py import MPI
    from support.neighbors import prepare

    number = 2 if scenario.form == WAITALL else 1
    calls = [prepare(comm, scenario.collective.capitalize(), NBYTES // 8) for _ in range(number)]
    is_right = lambda: bool((calls[0].received == calls[0].expected).all())
    if scenario.form == BLOCKING:
        return lambda: calls[0].start(comm, BLOCKING), is_right
    if scenario.form == PERSISTENT:
        request: Any = calls[0].start(comm, PERSISTENT)

        def start_and_wait() -> None:
            request.Start()
            request.Wait()

        return start_and_wait, is_right
    if scenario.form == NONBLOCKING:
        return lambda: calls[0].start(comm, NONBLOCKING).Wait(), is_right
    return lambda: MPI.Request.Waitall([call.start(comm, NONBLOCKING) for call in calls]), is_right


def check(is_right: Callable[[], bool], scenario: Scenario, comm: Any) -> None:
    """Check the last result, where the algorithm sends all digits."""
    assert is_right() or is_lossy(scenario.collective, scenario.algorithm, comm.size), (scenario, comm.rank)


def run_scenario(comm: Any, scenario: Scenario) -> tuple[str, float]:
    """Kill ranks in such calls; return what is wrong on this rank, and the seconds until its error."""
    from mpi4py import MPI

    from mpicoll.errors import ProcFailedError

    victims = scenario.killed(comm.size)
    with comm.using(**{scenario.collective: scenario.algorithm}):
        call, is_right = calls(comm, scenario)
        for _ in range(3):
            call()
        check(is_right, scenario, comm)
        with suppress(MPI.Exception):   # a victim may leave the barrier and die while others are in it
            MPI.Intracomm.Barrier(comm)
        if comm.rank in victims:
            if scenario.moment == "in":
                threading.Timer(scenario.delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        began = time.monotonic()
        if scenario.moment == "computing":
            time.sleep(0.05)
        while time.monotonic() < began + 10:
            try:
                call()
            except MPI.Exception as error:
                took = time.monotonic() - began - scenario.delay * (scenario.moment == "in")
                by_mpi = scenario.form == WAITALL or (scenario.algorithm == "native" and scenario.form != "blocking")
                named = isinstance(error, ProcFailedError) and {*error.ranks} <= {*victims} and bool(error.ranks)
                if not (named or (by_mpi and error.Get_error_class() in (MPI.ERR_PROC_FAILED, MPI.ERR_IN_STATUS))):
                    return f"{type(error).__name__}: {error}", took
                return "" if took < SECONDS else f"raised after {took:.1f} s", took
        return "raised nothing in 10 s", 10.0


def survive(chosen: list[Scenario]) -> None:
    """Run scenarios, each on the survivors of the one before, whose rank 0 prints a line of JSON for each."""
    from mpi4py import MPI

    import mpicoll

    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    comm = mpicoll.Comm(MPI.COMM_WORLD)
    for scenario in chosen:
        size = comm.size
        comm = communicator(comm, scenario)
        wrong, took = run_scenario(comm, scenario)
        began = time.monotonic()
        comm = comm.Shrink()
        if not (type(comm) is mpicoll.Comm and comm.size == size - len(scenario.killed(size))):
            wrong = wrong or f"{type(comm).__name__} of {comm.size} ranks after {size}"
        algorithm = scenario.algorithm if serves(scenario.collective, scenario.algorithm, comm.size) else "auto"
        smaller = communicator(comm, scenario)
        with smaller.using(**{scenario.collective: algorithm}):
            call, is_right = calls(smaller, scenario._replace(form=BLOCKING))
            call()
            check(is_right, scenario, comm)
        every = comm.allgather((wrong, took, took + time.monotonic() - began))
        if comm.rank == 0:
            messages = [f"rank {rank}: {words}" for rank, (words, _, _) in enumerate(every) if words]
            raised, recovered = (max(row[column] for row in every) for column in (1, 2))
            print(json.dumps([scenario, size, messages, raised, recovered]), flush=True)
    os.write(1, f"end of {comm.rank}\n".encode())


def serves(collective: str, algorithm: str, p: int) -> bool:
    """Return whether an algorithm is for so many ranks."""
    return algorithm == "native" or find(collective, algorithm).serves(p)


# -- launches -----------------------------------------------------------------------------------------------------


def launches(wanted: list[Scenario], ranks: int) -> list[list[Scenario]]:
    """Group scenarios into launches with as many kills as ranks allow; each algorithm must serve its survivors."""
    runs: list[list[Scenario]] = []
    left = list(wanted)
    while left:
        run: list[Scenario] = []
        p = ranks
        while p > LEAST + 1:
            fits = next((scenario for scenario in left if serves(scenario.collective, scenario.algorithm, p)), None)
            if fits is None:
                break
            left.remove(fits)
            run.append(fits)
            p -= len(fits.killed(p))
        if not run:
            raise SystemExit(f"no run of {ranks} ranks fits {left[0]}")
        runs.append(run)
    return runs


def execute(ranks: int, program: list[str]) -> tuple[int | None, str]:
    """Return the exit status of a launch, None if it hung, and what it printed; launch again if PMIx did not start."""
    import launcher

    mpiexec, *rest = launcher.command(ranks, program)
    for _ in range(STARTS):
        status, text = launcher.output_of([mpiexec, "--with-ft", "ulfm", *rest], LIMIT)
        if NOT_STARTED not in text:
            break
    return status, text


def launch(run: list[Scenario], ranks: int) -> tuple[list[str], list[tuple[float, float]]]:
    """Run scenarios in a launch of their own; return the failures, and the times of the scenarios that passed."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(run, file)
        file.flush()
        status, text = execute(ranks, [sys.executable, str(HERE), "--scenarios", file.name])
    lines = text.splitlines()
    known = [json.loads(line) for line in lines if line.startswith("[[")]
    passed = [(raised, recovered) for _, _, messages, raised, recovered in known if not messages]
    wrong = [f"{' '.join(scenario[:4])} on {size}: {'; '.join(messages)}"
             for scenario, size, messages, _, _ in known if messages]
    ends, left = sum(line.startswith("end of ") for line in lines), ranks
    for scenario in run:
        left -= len(scenario.killed(left))
    if len(known) < len(run):
        wrong.append(f"{' '.join(run[len(known)][:4])}: no result, status {status}: {' | '.join(lines[-12:])}")
    elif ends != left or status != 0 or any("Traceback" in line or "mpicoll:" in line for line in lines):
        wrong.append(f"{ends} ranks of {left} ended, status {status}: {' | '.join(lines)}")
    return wrong, passed


def run_situations(names: list[str], times: int) -> int:
    """Run situations so often, each time in a launch of its own with another seed; return the exit status."""
    failed = 0
    for name in [*SITUATIONS] if names == ["all"] else names:
        situation, passed, crashed = SITUATIONS[name], 0, 0
        for seed in range(times):
            program = [sys.executable, str(HERE.with_name("situations.py")), name, str(seed)]
            status, text = execute(SITUATION_RANKS, program)
            ends = text.count("end of ")
            has_ended = ends == SITUATION_RANKS - situation.killed and status == 0
            is_right = has_ended and "Traceback" not in text and situation.words in text
            passed += is_right
            if not is_right and CRASH in text:
                crashed += 1
            elif not is_right:
                print(f"{name} {seed}: {ends} ranks ended, status {status}: {text}")
        failed += times - passed - crashed
        print(f"{name}: {passed} of {times} passed; Open MPI crashed in {crashed}", flush=True)
    print(f"{failed} situations failed")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--only", type=lambda text: text.split(","), default=[], metavar="COLLECTIVE,…")
    add("--forms", type=lambda text: text.split(","), default=[*FORMS, WAITALL], metavar="FORM,…")
    add("--ranks", type=int, default=RANKS, help="ranks of a launch (default: %(default)s)")
    add("--most", type=int, help="so many launches at most")
    add("--seed", type=int, default=0)
    add("--situations", type=lambda text: text.split(","), default=[], metavar="NAME,…", help="or all")
    add("--times", type=int, default=1, help="launches of each situation (default: %(default)s)")
    add("--scenarios", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.scenarios:
        survive([Scenario(*scenario) for scenario in json.loads(Path(arguments.scenarios).read_text())])
        return 0
    if arguments.situations:
        return run_situations(arguments.situations, arguments.times)
    failed: list[str] = []
    passed: list[tuple[float, float]] = []
    runs = launches(scenarios(arguments.only, arguments.forms, arguments.seed), arguments.ranks)[:arguments.most]
    for number, run in enumerate(runs, 1):
        wrong, right = launch(run, arguments.ranks)
        passed, failed = passed + right, failed + wrong
        print(f"launch {number} of {len(runs)}: {len(right)} of {len(run)} passed", *wrong, sep="\n    ", flush=True)
    for what, times in zip(("error on every rank", "first right result"), zip(*passed)):
        print(f"from the kill to the {what}: median {median(times):.3f} s, most {max(times):.3f} s")
    print(f"{len(passed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
