"""Kills ranks while they are in collectives, and checks that all others learn of it and go on: Open MPI with ULFM.

    python tests/survive.py                             # every algorithm in every form; victims and moments vary
    python tests/survive.py --forms blocking --seed 2   # other victims, other moments
    python tests/survive.py --only allreduce --ranks 8

One launch starts RANKS ranks and kills one or two of them after the other, until few are left, each time in another
call. The others make such calls until one raises. It passes where every rank left has raised ProcFailedError with the
right ranks within SECONDS, and Shrink gives an mpicoll.Comm on which the same algorithm gives the right result. The
last line is `N passed, N failed`; what failed stands before it, and the times from the kill to the errors and to the
first right result. So are ends of programs: every rank left has to come to its end, without a traceback.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HERE = Path(__file__).resolve()
RANKS, LEAST = 12, 3
SECONDS = 2.0           # from the kill to the error on every rank that is left
COUNT = 3000            # float32 elements of a block
LIMIT = 60              # seconds of a launch
FORMS = ("blocking", "nonblocking", "waitall", "persistent")
MOMENTS = ("before", "in", "computing")     # of the victim: it does not come; in its calls; while the others compute
METHODS = {
    "barrier": "Barrier", "bcast": "Bcast", "scatter": "Scatter", "gather": "Gather", "allgather": "Allgather",
    "reduce": "Reduce", "reduce_scatter": "Reduce_scatter_block", "allreduce": "Allreduce", "scan": "Scan",
    "exscan": "Exscan", "alltoall": "Alltoall",
}


class Cell(NamedTuple):
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


def cells(only: list[str], forms: list[str], seed: int) -> list[Cell]:
    """Every algorithm in every form, in an order that mixes collectives."""
    import mpicoll

    draw = random.Random(seed)
    names = [(collective, name) for collective in METHODS if not only or collective in only
             for name in ("native", *mpicoll.list_algorithms()[collective])]
    made = [Cell(*name, form, draw.choice(MOMENTS), [draw.random() for _ in range(draw.choice((1, 1, 2)))],
                 draw.uniform(0, 0.01)) for form in forms for name in names]
    draw.shuffle(made)
    return made


# -- on every rank ------------------------------------------------------------------------------------------------


def arguments(comm: Any, collective: str) -> tuple[list[Any], Any]:
    """Return the arrays of a call in the order of its arguments, and the right result; None where there is none."""
    import numpy as np

    def block(*shape: int, fill: float = 1.0) -> Any:
        return np.full((*shape, COUNT), fill, np.float32)

    p, rank = comm.size, comm.rank
    if collective == "barrier":
        return [], None
    if collective == "bcast":
        return [block(fill=7.0 if rank == 0 else 0.0)], block(fill=7.0)
    many = np.repeat(np.arange(p, dtype=np.float32), COUNT).reshape(p, COUNT)
    if collective == "scatter":
        return [many if rank == 0 else None, block(fill=0.0)], block(fill=rank)
    if collective in ("gather", "allgather"):
        here = collective == "allgather" or rank == 0
        return [block(fill=rank), np.zeros_like(many) if here else None], many if here else None
    if collective == "alltoall":
        return [many, np.zeros_like(many)], np.full_like(many, rank)
    if collective == "reduce_scatter":
        return [block(p), block(fill=0.0)], block(fill=p)
    sums = {"reduce": p if rank == 0 else None, "allreduce": p, "scan": rank + 1, "exscan": rank if rank else None}
    right = sums[collective]
    wanted = rank == 0 or collective != "reduce"
    return [block(), block(fill=0.0) if wanted else None], None if right is None else block(fill=right)


def caller(comm: Any, cell: Cell) -> tuple[Any, Any]:
    """Return a function that makes the call once and waits for it, and one that checks the last result."""
    from mpi4py import MPI

    method, (arrays, right) = METHODS[cell.collective], arguments(comm, cell.collective)
    nonblocking = getattr(comm, f"I{method.lower()}")

    def check() -> None:
        assert right is None or (arrays[-1] == right).all(), (cell, comm.rank)

    if cell.form == "blocking":
        return lambda: getattr(comm, method)(*arrays), check
    if cell.form == "nonblocking":
        return lambda: nonblocking(*arrays).Wait(), check
    if cell.form == "waitall":
        others = arguments(comm, cell.collective)[0]
        return lambda: MPI.Request.Waitall([nonblocking(*arrays), nonblocking(*others)]), check
    request = getattr(comm, f"{method}_init")(*arrays)

    def start() -> None:
        request.Start()
        request.Wait()

    return start, check


def play(comm: Any, cell: Cell) -> tuple[str, float]:
    """Kill ranks in such calls; return what is wrong on this rank, and the seconds until its error."""
    from mpi4py import MPI

    from mpicoll.errors import ProcFailedError

    victims = cell.killed(comm.size)
    with comm.using(**{cell.collective: cell.algorithm}):
        call, check = caller(comm, cell)
        for _ in range(3):
            call()
        check()
        MPI.Intracomm.Barrier(comm)
        if comm.rank in victims:
            if cell.moment == "in":
                threading.Timer(cell.delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        began = time.monotonic()
        if cell.moment == "computing":
            time.sleep(0.05)
        while time.monotonic() < began + 10:
            try:
                call()
            except MPI.Exception as error:
                took = time.monotonic() - began - cell.delay * (cell.moment == "in")
                by_mpi = cell.form == "waitall" or (cell.algorithm == "native" and cell.form != "blocking")
                named = isinstance(error, ProcFailedError) and {*error.ranks} <= {*victims} and bool(error.ranks)
                if not (named or (by_mpi and error.Get_error_class() in (MPI.ERR_PROC_FAILED, MPI.ERR_IN_STATUS))):
                    return f"{type(error).__name__}: {error}", took
                return "" if took < SECONDS else f"raised after {took:.1f} s", took
        return "raised nothing in 10 s", 10.0


def survive(chosen: list[Cell]) -> None:
    """Play cells, each on what the one before has left; rank 0 of what is left prints a line of JSON for each."""
    from mpi4py import MPI

    import mpicoll

    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    comm = mpicoll.Comm(MPI.COMM_WORLD)
    for cell in chosen:
        size = comm.size
        wrong, took = play(comm, cell)
        began = time.monotonic()
        comm = comm.Shrink()
        if not (type(comm) is mpicoll.Comm and comm.size == size - len(cell.killed(size))):
            wrong = wrong or f"{type(comm).__name__} of {comm.size} ranks after {size}"
        again = cell.algorithm if serves(cell.collective, cell.algorithm, comm.size) else "auto"
        with comm.using(**{cell.collective: again}):
            call, check = caller(comm, cell._replace(form="blocking"))
            call()
            check()
        every = comm.allgather((wrong, took, took + time.monotonic() - began))
        if comm.rank == 0:
            told = [f"rank {rank}: {words}" for rank, (words, _, _) in enumerate(every) if words]
            raised, again = (max(row[column] for row in every) for column in (1, 2))
            print(json.dumps([cell, size, told, raised, again]), flush=True)
    atexit._run_exitfuncs()
    os.write(1, f"end of {comm.rank}\n".encode())
    os._exit(0)     # Open MPI's MPI_Finalize waits for ever in one of four such runs, with mpi4py alone too


def serves(collective: str, algorithm: str, p: int) -> bool:
    """Return whether an algorithm is for so many ranks."""
    from mpicoll.schedules.registry import find

    return algorithm == "native" or find(collective, algorithm).serves(p)


# -- launches -----------------------------------------------------------------------------------------------------


def launches(wanted: list[Cell], ranks: int) -> list[list[Cell]]:
    """Cells in runs of so many as ranks can be killed; each where its algorithm serves what is left."""
    runs: list[list[Cell]] = []
    left = list(wanted)
    while left:
        run: list[Cell] = []
        p = ranks
        while p > LEAST + 1:
            fits = next((cell for cell in left if serves(cell.collective, cell.algorithm, p)), None)
            if fits is None:
                break
            left.remove(fits)
            run.append(fits)
            p -= len(fits.killed(p))
        if not run:
            raise SystemExit(f"no run of {ranks} ranks fits {left[0]}")
        runs.append(run)
    return runs


def launch(run: list[Cell], ranks: int) -> tuple[list[str], list[tuple[float, float]]]:
    """Play a run in a launch of its own; return what is wrong, and the times of the cells that passed."""
    import launcher

    with tempfile.NamedTemporaryFile("w", suffix=".json") as file, tempfile.TemporaryFile() as output:
        json.dump(run, file)
        file.flush()
        mpiexec, *rest = launcher.command(ranks, [sys.executable, str(HERE), "--play", file.name])
        status = launcher.run_group([mpiexec, "--with-ft", "ulfm", *rest], LIMIT, output)
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    known = [json.loads(line) for line in lines if line.startswith("[[")]
    passed = [(raised, again) for _, _, told, raised, again in known if not told]
    wrong = [f"{' '.join(cell[:4])} on {size}: {'; '.join(told)}" for cell, size, told, _, _ in known if told]
    ends, left = sum(line.startswith("end of ") for line in lines), ranks
    for cell in run:
        left -= len(cell.killed(left))
    if len(known) < len(run):
        wrong.append(f"{' '.join(run[len(known)][:4])}: no result, status {status}: {' | '.join(lines[-12:])}")
    elif ends != left or any("Traceback" in line or "mpicoll:" in line for line in lines):
        wrong.append(f"{ends} ranks of {left} ended, status {status}: {' | '.join(lines)}")
    return wrong, passed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--only", type=lambda text: text.split(","), default=[], metavar="COLLECTIVE,…")
    add("--forms", type=lambda text: text.split(","), default=list(FORMS), metavar="FORM,…")
    add("--ranks", type=int, default=RANKS, help="ranks of a launch (default: %(default)s)")
    add("--most", type=int, help="so many launches at most")
    add("--seed", type=int, default=0)
    add("--play", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.play:
        survive([Cell(*cell) for cell in json.loads(Path(given.play).read_text())])
        return 0
    failed: list[str] = []
    passed: list[tuple[float, float]] = []
    runs = launches(cells(given.only, given.forms, given.seed), given.ranks)[:given.most]
    for number, run in enumerate(runs, 1):
        wrong, right = launch(run, given.ranks)
        passed, failed = passed + right, failed + wrong
        print(f"launch {number} of {len(runs)}: {len(right)} of {len(run)} passed", *wrong, sep="\n    ", flush=True)
    for what, times in zip(("error on every rank", "first right result"), zip(*passed)):
        print(f"from the kill to the {what}: median {median(times):.3f} s, most {max(times):.3f} s")
    print(f"{len(passed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
