"""The flight record of a process: a file in memory that says where its rank is, which outlives it if it is killed.

The numbers of calls of the first communicators lie in the file, so that the fast path keeps them up to date at no cost.
The rest is the status of status.py as text, which the status thread writes some times a second, and a rank that waits.
Two places take turns, so that one of them is whole at any time. `mpicoll status` reads the files of a run.

    words 0 to 15    MAGIC, format, process, rank, size, which text is valid, both lengths, when it was last written
                     in ns, when the process started in ticks, in which namespace of process ids
    then             for each of SLOTS communicators the words of counters.py
    then             two texts of TEXT bytes, JSON
    then             the history: the last calls, which history.py has the layout of
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import socket
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from mpi4py import MPI

from ..errors import spans
from ..kernels.memory import address_of
from ..selection.tables import members
from . import history
from .counters import NUMBERS
from .groups import world_ranks
from .history import History
from .status import Answer

LOG = logging.getLogger("mpicoll")
MAGIC, FORMAT = 0x6D7069636F6C6C21, 4
PROCESS, RANK, SIZE, VALID, LENGTHS, WRITTEN, STARTED, NAMESPACE = 2, 3, 4, 5, 6, 8, 9, 10  # words; LENGTHS has two
HEADER, SLOTS, TEXT = 16, 8, 1 << 13
TEXTS = 8 * (HEADER + SLOTS * NUMBERS)
CALLS = TEXTS + 2 * TEXT  # where the history begins
BYTES = CALLS + history.BYTES
INTERVAL = 0.1  # seconds between two texts at least
OLD, MANY = 3600.0, 16  # seconds after which the record of a run that ended is removed; how many such runs may stay
VARIABLE = "MPICOLL_RECORD"
MEMORY, OF_USER = Path("/dev/shm"), "mpicoll-"  # where records are by default, and how the directory of a user begins
RUNS = ("SLURM_JOB_ID", "PMIX_NAMESPACE", "PBS_JOBID", "LSB_JOBID")  # by which the ranks of a run know each other


class Place(NamedTuple):
    """A communicator's name, the same on all its ranks, those as ranks of COMM_WORLD, and its slot, -1 if none.

    number: which communicator of these ranks it is, from 1 on.
    """

    name: str
    ranks: str | list[int]
    slot: int
    number: int = 1

    @property
    def members(self) -> Sequence[int]:
        """Return the ranks of COMM_WORLD in the order of the communicator; MPI.UNDEFINED for one of another world."""
        return members([self.ranks])[0] if isinstance(self.ranks, str) else self.ranks

    @property
    def spans(self) -> str:
        """Return the ranks as the name has them, in any order."""
        return self.ranks if isinstance(self.ranks, str) else spans(self.ranks)


class Placed(Protocol):
    """A communicator, as its record needs it."""

    place: Place
    waited_for: tuple[int, ...]


def base(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the directory of all runs' records; None if there are to be none."""
    asked = environ.get(VARIABLE, "")
    if asked == "0":
        return None
    return Path(asked).absolute() if asked else MEMORY / f"{OF_USER}{os.getuid()}" if MEMORY.is_dir() else None


def bases() -> list[Path]:
    """Return the directories of the runs of all users, this one's first, as far as known."""
    own = base()
    others = [] if own is None or own.parent != MEMORY else sorted(MEMORY.glob(f"{OF_USER}*"))
    return [*([own] if own is not None else []), *(path for path in others if path != own)]


def run_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of this process's run: its job's, or its parent's, which is the launcher on this host."""
    job = next((environ[name] for name in RUNS if environ.get(name)), "")
    step = environ.get("SLURM_STEP_ID", "")
    return "".join(c if c.isalnum() else "-" for c in f"{job}.{step}" if c) if job else f"parent-{os.getppid()}"


def file_name(rank: int, process: int) -> str:
    """Return the name of the record of a rank of MPI.COMM_WORLD on this host, with its process id."""
    return f"{socket.gethostname()}-{rank}-{process}"


class FlightRecord:
    """This process's record; without one, if it cannot be written, nothing is recorded."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.memory: mmap.mmap | None = None
        self.words = np.zeros(HEADER, np.int64)
        self.lock = threading.Lock()  # of the thread that writes: the status thread, or one that waits
        self.process = 0  # that opened it: a child of this process writes nothing
        self.history = History()
        self.slots = 0
        self.names: Counter[str] = Counter()
        self.makers: defaultdict[str, set[int]] = defaultdict(set)  # threads that made communicators, by their ranks
        self.held: frozenset[str] = frozenset()  # the communicators in the last text
        self.text, self.written, self.ended = b"", 0.0, ""
        self.about: dict[str, str] = {}

    def open(self) -> None:
        """Make the file, the first time. It is the user's alone."""
        if self.process or (directory := base()) is None:
            return
        self.process = os.getpid()
        is_named = bool(os.environ.get(VARIABLE))
        try:
            directory.mkdir(mode=0o700, parents=is_named, exist_ok=True)
            if not is_named:
                if directory.is_symlink() or directory.stat().st_uid != os.getuid():
                    return
                remove_old(directory)  # a directory that the user names may have records of other hosts
            (directory / run_name()).mkdir(mode=0o700, exist_ok=True)
            rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
            self.path = directory / run_name() / file_name(rank, self.process)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.posix_fallocate(file, 0, BYTES)  # a full directory raises here, not where the file is written
                self.memory = mmap.mmap(file, BYTES)
            finally:
                os.close(file)
        except OSError as error:  # a full, read-only or foreign directory
            if self.path is not None:
                with suppress(OSError):
                    self.path.unlink()
            self.path = None
            if is_named:
                LOG.warning("no flight record is kept in %s: %s", directory, error.strerror)
            return
        self.about = {"host": socket.gethostname(), "program": " ".join(sys.argv)[:200]}  # both are gone at exit
        self.words = np.frombuffer(self.memory, np.int64, HEADER)
        self.history = History(self.memory, CALLS, address_of(self.words) + CALLS)
        self.words[[1, PROCESS, RANK, SIZE]] = FORMAT, self.process, rank, size
        self.words[[STARTED, NAMESPACE]] = started(self.process), namespace()
        self.words[WRITTEN] = time.time_ns()  # so that a rank which never writes a text is found to be silent
        self.words[0] = MAGIC

    def numbers(self) -> tuple[np.ndarray, int]:
        """Return the words for the numbers of a communicator, and their slot: -1 if they are not in the file."""
        if self.memory is None or self.slots == SLOTS:
            return np.zeros(NUMBERS, np.int64), -1
        slot, self.slots = self.slots, self.slots + 1
        return np.frombuffer(self.memory, np.int64, NUMBERS, 8 * (HEADER + slot * NUMBERS)), slot

    def place(self, comm: MPI.Intracomm, slot: int) -> Place:
        """Return what the records of its ranks call a new communicator, as timelines do."""
        ranks = world_ranks(comm)
        name = spans(ranks)
        self.names[name] += 1  # ranks make communicators of the same ranks in the same order, but see is_ambiguous
        self.makers[name].add(threading.get_ident())
        number, is_sorted = self.names[name], ranks[0] >= 0 and ranks == tuple(sorted(ranks))
        return Place(history.numbered(f"ranks {name}", number), name if is_sorted else list(ranks), slot, number)

    def is_ambiguous(self, place: Place) -> bool:
        """Return whether other ranks may call another communicator of the same ranks by this name.

        Several threads that make communicators of the same ranks may do so in another order on other ranks.
        """
        return len(self.makers[place.spans]) > 1

    def mark_ambiguous(self, place: Place) -> None:
        """Note that the communicators of these ranks may be made in another order on other ranks."""
        self.makers[place.spans] |= {0, 1}  # no thread has these numbers

    def holds(self, place: Place) -> bool:
        """Return whether the last text has the status on this communicator."""
        return place.name in self.held

    def path_of(self, rank: int, process: int) -> Path | None:
        """Return the record of a rank of MPI.COMM_WORLD, with its process id; None if it has none on this host."""
        if self.path is None:
            return None
        name, run = file_name(rank, process), self.path.parent
        with suppress(OSError):
            runs = [run, *run.parent.iterdir()]  # a shell between launcher and rank gives it another run's name
            return next((path for directory in runs if (path := directory / name).exists()), None)
        return None

    def is_due(self) -> bool:
        """Return whether the record is old enough to be written anew."""
        return self.memory is not None and time.monotonic() - self.written > INTERVAL

    def write(self, where: str, answers: Sequence[tuple[Placed, Answer]], ended: str = "") -> None:
        """Write where the program is, and how it ended, which holds from then on; not if another thread writes."""
        if self.memory is None or self.process != os.getpid() or not self.lock.acquire(blocking=False):
            return
        try:
            self._write(self.memory, where, answers, ended)
        finally:
            self.lock.release()

    def _write(self, memory: mmap.mmap, where: str, answers: Sequence[tuple[Placed, Answer]], ended: str) -> None:
        self.written, self.ended = time.monotonic(), self.ended or ended
        communicators = []
        for state, answer in answers:
            facts = asdict(answer) | {"location": ""}  # once for all
            waits = {"waited_for": list(state.waited_for)}
            communicators.append(state.place._asdict() | {"answer": facts} | waits)
        ambiguous = [state.place.name for state, _ in answers if self.is_ambiguous(state.place)]
        says = {"location": where, "ended": self.ended, "ambiguous": ambiguous}
        content: dict[str, Any] = self.about | says | {"communicators": communicators}
        text = json.dumps(content).encode()
        while len(text) > TEXT and communicators:
            del communicators[len(communicators) // 2 :]
            text = json.dumps(content).encode()
        if text != self.text and len(text) <= TEXT:
            self.text, other = text, 1 - int(self.words[VALID])
            begin = TEXTS + other * TEXT
            memory[begin : begin + len(text)] = text
            self.words[LENGTHS + other] = len(text)
            self.words[VALID] = other
            self.held = frozenset(communicator["name"] for communicator in communicators)
        self.words[WRITTEN] = time.time_ns()

    def remove(self) -> None:
        """Remove the file of a program that ended as it should. Its memory stays for what still writes there."""
        if self.path is not None and self.process == os.getpid():
            with suppress(OSError):  # the last of the run's processes removes the directory
                self.path.unlink()
                self.path.parent.rmdir()


def started(process: int) -> int:
    """Return when a process of this host started, in ticks, which tells it from later ones of its number; 0: gone."""
    fields = _stat(process)
    return 0 if not fields or fields[0] in ("Z", "X") else int(fields[19])


def namespace() -> int:
    """Return the number of the namespace of process ids that this process is in, such as a container; 0: unknown."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def is_stopped(process: int) -> bool:
    """Return whether a signal or a debugger has stopped a process of this host."""
    return _stat(process)[:1] in (["T"], ["t"])


def _stat(process: int) -> list[str]:
    """Return what the system says of a process, from its state on; an empty list if it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def remove_old(directory: Path) -> None:
    """Remove the records of runs that ended long ago, and of all but the last ones."""
    ended: list[tuple[float, Path]] = []
    for run in directory.iterdir():
        with suppress(OSError, ValueError):  # another process removes it, too, or a file is none of ours
            if not any(started(int(file.name.rpartition("-")[2])) for file in run.iterdir()):
                ended.append((run.stat().st_mtime, run))
    for at, (when, run) in enumerate(sorted(ended, reverse=True)):
        if at >= MANY or time.time() - when > OLD:
            with suppress(OSError):
                for file in run.iterdir():
                    file.unlink()
                run.rmdir()


RECORD = FlightRecord()
