"""Plays random programs of collectives for an hour, on 1 to 8 ranks, in launch after launch: `make soak`.

    python tests/soak.py --minutes 10 --ranks 2,4

Reports how many programs and calls it played, by collective, algorithm, form and number of threads, and every failure
with the least program that shows it and the command that plays that again. A launch that crashes or hangs is a
failure, with the program that was running. Exit status: 1 if anything failed, 2 for bad arguments.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import launcher
from fuzzing import record
from fuzzing.program import Call, Program
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mpicoll.schedules.collectives import FORMS

WORKER = Path(__file__).with_name("fuzz.py")
SECONDS = 30.0          # of programs in a launch
PATIENCE = 40.0         # seconds a program may take: many ranks may share a core
MARGIN = 120.0          # seconds a launch may take besides: starting, shrinking
ATTEMPTS = 25           # launches in search of a lesser program that hangs
COLD = 0.25             # of the launches begin without compiled kernels, which arrive in the first half
KEPT = 20_000           # characters of the output of a launch that failed


@dataclass
class Failure:
    """A launch that failed."""

    ranks: int
    seed: int
    what: str
    program: str
    output: str

    def __str__(self) -> str:
        again = f'python tests/launcher.py -n {self.ranks} python tests/fuzz.py --play "{self.program}"'
        return "\n".join([f"{self.ranks} ranks, seed {self.seed}: {self.what}", f"  {again}", self.output])


@dataclass
class Soak:
    """The programs that ran so far."""

    draw: random.Random
    ranks: list[int]
    folder: Path
    patience: float
    account: record.Account = field(default_factory=record.Account)
    seeds: list[tuple[int, int]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def launch(self, seconds: float) -> None:
        """Launch a run on some of the ranks, with a seed of its own."""
        ranks, seed = self.draw.choice(self.ranks), self.draw.randrange(1_000_000)
        self.seeds.append((ranks, seed))
        path = self.folder / f"{len(self.seeds)}.log"
        cold = ["--cold", f"{self.draw.uniform(0, seconds / 2):.2f}"] if self.draw.random() < COLD else []
        status, output = self._run(ranks, seconds + MARGIN + self.patience,
                                   "--seed", str(seed), "--seconds", f"{seconds:g}", "--log", str(path), *cold)
        log = record.read(path, self.account)
        if log.failed:
            self.failures.append(Failure(ranks, seed, "wrong", log.failed, "\n".join(log.wrong)))
        elif status != 0:
            what = "killed, since it stood still" if status is None else f"exit status {status}"
            least = self._least(ranks, log.running) if log.running else ""
            self.failures.append(Failure(ranks, seed, what, least, output[-KEPT:]))

    def _least(self, ranks: int, text: str) -> str:
        """Return a simplest program that still fails in its own launch; `text` if that does not fail again."""
        program = eval(text, {"Program": Program, "Call": Call})
        attempts = iter(range(ATTEMPTS))
        while True:
            for simpler in program.smaller():
                if simpler != program and next(attempts, None) is None:
                    return repr(program)
                if simpler != program and self._run(ranks, 60.0, "--patience", "8", "--play", repr(simpler))[0] != 0:
                    program = simpler
                    break
            else:
                return repr(program)

    def _run(self, ranks: int, limit: float, *arguments: str) -> tuple[int | None, str]:
        """Return (exit status, output) of a launch; the status is None if it had to be killed."""
        patience = [] if "--patience" in arguments else ["--patience", f"{self.patience:g}"]
        line = launcher.command(ranks, [sys.executable, str(WORKER), *patience, *arguments])
        with tempfile.TemporaryDirectory(dir=self.folder) as empty:
            cold = {"MPICOLL_COMPILE": "background", "NUMBA_CACHE_DIR": empty, "TMPDIR": empty}
            how = cold if "--cold" in arguments else {"MPICOLL_COMPILE": "wait"}
            return launcher.output_of(line, limit, how)


def soak(soak_run: Soak, seconds: float, console: Console) -> None:
    """Launch until the time is over."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    started = time.monotonic()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("soak", total=seconds)
        while (left := started + seconds - time.monotonic()) > 1:
            known = len(soak_run.failures)
            soak_run.launch(min(SECONDS, left))
            for failure in soak_run.failures[known:]:
                console.print(f"FAILED {failure}", markup=False, highlight=False, soft_wrap=True)
            calls = sum(soak_run.account.calls.values())
            counts = f"{soak_run.account.programs} programs, {calls} calls, {len(soak_run.failures)} failures"
            progress.update(task, completed=time.monotonic() - started, description=counts)
            if not console.is_terminal:
                ranks, seed = soak_run.seeds[-1]
                console.print(f"{time.monotonic() - started:6.0f} s: {counts}; last {ranks} ranks, seed {seed}")


def report(soak_run: Soak, console: Console) -> None:
    """Print the counts and the seeds; failures were printed when they happened."""
    by_form, by_algorithm = soak_run.account.by(0, 2), soak_run.account.by(0, 1)
    table = Table("collective", *FORMS, "algorithms", title=f"calls played on {launcher.flavour()}")
    for collective in sorted({key[0] for key in by_form}):
        algorithms = Counter({name: n for (of, name), n in by_algorithm.items() if of == collective})
        words = ", ".join(f"{name} {n}" for name, n in algorithms.most_common())
        table.add_row(collective, *(str(by_form[collective, form]) for form in FORMS), words)
    console.print(table)
    threads = Table("threads of each rank", "programs")
    for number, programs in sorted(soak_run.account.threads.items()):
        threads.add_row(str(number), str(programs))
    console.print(threads)
    console.print("seeds (ranks:seed): " + " ".join(f"{ranks}:{seed}" for ranks, seed in soak_run.seeds))
    console.print(f"{soak_run.account.programs} programs of {sum(soak_run.account.calls.values())} calls in "
                  f"{len(soak_run.seeds)} launches, {len(soak_run.failures)} failures")


def parse(words: list[str]) -> argparse.Namespace:
    def minutes(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes above 0")
        return value

    def ranks(text: str) -> list[int]:
        parts = text.split(",")
        if not all(part.isdigit() and int(part) for part in parts):
            raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers of ranks, like 1,2,8")
        return [int(part) for part in parts]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--minutes", type=minutes, default=60.0, help="for how long; 60 if not given")
    add("--ranks", type=ranks, default=list(range(1, 9)), metavar="N,N", help="numbers of ranks; 1 to 8 if not given")
    add("--seed", type=int, help="of the ranks and the seeds of launches; a random one, printed, if not given")
    add("--patience", type=float, default=PATIENCE, metavar="SECONDS", help="how long one program may take")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Return the exit status."""
    arguments = parse(words)
    seed = random.SystemRandom().randrange(1_000_000) if arguments.seed is None else arguments.seed
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(f"soak: {launcher.flavour()}, {arguments.minutes:g} minutes, seed {seed}")
    with tempfile.TemporaryDirectory(prefix="mpicoll-soak-") as folder:
        soak_run = Soak(random.Random(seed), arguments.ranks, Path(folder), arguments.patience)
        try:
            soak(soak_run, 60 * arguments.minutes, console)
        except KeyboardInterrupt:
            console.print("interrupted")
        report(soak_run, console)
    return 1 if soak_run.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
