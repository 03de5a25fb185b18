"""Plays the fast path of calls alone: random kinds of calls whose arguments change between and during calls.

    python tests/launcher.py -n 2 .venv/bin/python tests/fuzz_fast_path.py --calls 1000000 --seed 7

Every rank draws the same calls. Call sites keep lists that are changed between calls (array, count, displacement,
datatype, counts, root, operator, form), and by a thread during calls: it puts other arrays of the same numbers into a
list that is being read, and, once a call has taken its number, anything at all. Results are held against NumPy, and the
memory around them must stay as it was. The first wrong one is printed with its seed; exit status 1 then.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll

GUARD = -7                  # in numbers that no call may write
LENGTH = 24                 # of every array; kinds differ in counts, displacements, types
TYPES = {"d": MPI.DOUBLE, "f": MPI.FLOAT, "i": MPI.INT, "l": MPI.LONG, "h": MPI.SHORT}
OPERATORS = [(MPI.SUM, np.sum), (MPI.MAX, np.max), (MPI.MIN, np.min)]
METHODS = ("Allreduce", "Reduce", "Bcast", "Allgather", "Allgatherv", "Gather", "Scatter", "Alltoall", "Alltoallv")
SITES = 40                  # lists that are kept and changed
ROUND = 2_000               # calls between two looks at the time, and two agreements on whether all is well


class Site:
    """A place in a program that makes one kind of call, then another: its lists stay, what they hold changes."""

    def __init__(self, comm: mpicoll.Comm) -> None:
        self.comm, self.p, self.rank = comm, comm.size, comm.rank
        self.code = "d"
        self.send: list[Any] = []
        self.recv: list[Any] = []
        self.spares: list[list[np.ndarray]] = [[], []]      # arrays that may stand in for the one in a list
        self.kept: dict[str, list[np.ndarray]] = {}

    def arrays(self, code: str) -> list[np.ndarray]:
        """Return two send and two receive arrays of a type, allocated once."""
        if code not in self.kept:
            self.kept[code] = [np.zeros(LENGTH, code) for _ in range(4)]
        return self.kept[code]

    def change(self, draw: random.Random) -> None:
        """Draw what is called next: mostly the same with other numbers, or of other counts at another place."""
        is_new = draw.random() < 0.15 or not self.spares[0]
        if is_new or draw.random() < 0.4:
            self.count, self.at = draw.randint(0, LENGTH // max(self.p, 2) // 2), draw.randint(0, 3)
        if is_new:
            self.code, self.method = draw.choice(sorted(TYPES)), draw.choice(METHODS)
            self.root, (self.op, self.fold) = draw.randrange(self.p), draw.choice(OPERATORS)
            self.form, self.style = draw.choice(["", "I"]), draw.randrange(4)
        self.salt = draw.randint(0, 50)
        first, second, third, fourth = self.arrays(self.code)
        self.spares = [[first, second], [third, fourth]]

    def numbers(self, rank: int) -> np.ndarray:
        """Return LENGTH numbers that a rank sends; the call takes some of them."""
        return (np.arange(LENGTH) * (rank + 2) + self.salt) % 97

    def fill(self, draw: random.Random) -> None:
        """Put this call's arguments into the lists."""
        for array in self.spares[0]:
            array[:] = self.numbers(self.rank)
        for array in self.spares[1]:
            array[:] = GUARD
        self.send[:] = self.message(draw.choice(self.spares[0]), self.method == "Alltoallv")
        self.recv[:] = self.message(draw.choice(self.spares[1]), self.method in ("Alltoallv", "Allgatherv"))
        if self.method == "Bcast" and self.rank == self.root:
            for array in self.spares[1]:
                array[:] = self.numbers(self.rank)

    def message(self, array: np.ndarray, has_counts: bool) -> list[Any]:
        """Return a message in one of mpi4py's list forms; its elements begin at self.at."""
        datatype = self.code if self.style % 2 else TYPES[self.code]
        if has_counts:
            counts = [self.count] * self.p
            places = [self.at + i * self.count for i in range(self.p)]
            held: Any = (np.array(counts), np.array(places)) if self.style & 2 else (counts, places)
            return [array, held, datatype]
        return [array, (self.count, self.at), datatype] if self.style & 2 else [array, self.count, self.at, datatype]

    def call(self) -> None:
        """Make it."""
        arguments: list[Any] = [self.recv] if self.method == "Bcast" else [self.send, self.recv]
        if self.method in ("Allreduce", "Reduce"):
            arguments.append(self.op)
        if self.method in ("Reduce", "Bcast", "Gather", "Scatter"):
            arguments.append(self.root)
        if self.form:
            getattr(self.comm, f"I{self.method.lower()}")(*arguments).Wait()
        else:
            getattr(self.comm, self.method)(*arguments)

    def right(self) -> np.ndarray:
        """Return the expected contents of the receive buffer from self.at on."""
        n, part = self.count, slice(self.at, self.at + self.count)
        every = [self.numbers(rank) for rank in range(self.p)]
        if self.method in ("Allreduce", "Reduce"):
            return self.fold([vector[part] for vector in every], axis=0)
        if self.method == "Bcast":
            return every[self.root][part]
        if self.method in ("Allgather", "Allgatherv", "Gather"):
            return np.concatenate([vector[part] for vector in every])
        if self.method == "Scatter":
            return every[self.root][self.at + self.rank * n : self.at + (self.rank + 1) * n]
        return np.concatenate([vector[self.at + self.rank * n : self.at + (self.rank + 1) * n] for vector in every])

    def wrong(self) -> str:
        """Name what is wrong: the result in one of the two arrays, or a write anywhere else."""
        untouched = self.numbers(self.rank)
        if any((array != untouched).any() for array in self.spares[0]):
            return "what is sent was written to"
        bare = self.method in ("Reduce", "Gather") and self.rank != self.root
        expected = np.full(LENGTH, GUARD)
        if self.method == "Bcast" and self.rank == self.root:
            expected = untouched.copy()
        nothing = expected.copy()
        if not bare:
            result = self.right()
            expected[self.at : self.at + len(result)] = result
        same = [(array == expected).all() for array in self.spares[1]]
        clean = [(array == nothing).all() for array in self.spares[1]]
        if (same[0] and clean[1]) or (same[1] and clean[0]):
            return ""
        return f"{[array.tolist() for array in self.spares[1]]} is not {expected.tolist()} and {nothing.tolist()}"


class Changer(threading.Thread):
    """Changes the lists of the call that is under way: equal arrays at any moment, anything once it has its number."""

    def __init__(self, seed: int) -> None:
        super().__init__(daemon=True)
        self.draw = random.Random(seed)
        self.site: Site | None = None
        self.begun, self.stopping = 0, False
        self.changes: Counter[str] = Counter()
        self.lock = threading.Lock()

    def watch(self, site: Site | None, begun: int = 0) -> None:
        """Change the lists of this site from now on, whose call will have a number above `begun`; or of none."""
        with self.lock:
            self.site, self.begun = site, begun

    def run(self) -> None:
        """Change lists until stopped."""
        while not self.stopping:
            with self.lock:
                if self.site is not None:
                    self.change(self.site)
            time.sleep(0 if self.site is not None else 0.0002)

    def change(self, site: Site) -> None:
        """Put an equal array into a list; once the call has its number, anything."""
        for message, spares in zip((site.send, site.recv), site.spares):
            if message:
                message[0] = self.draw.choice(spares)
                self.changes["an equal array"] += 1
        if site.comm._state.sequence > self.begun:
            self.spoil(site)

    def spoil(self, site: Site) -> None:
        """Replace the contents of the lists, which the call has already read."""
        what = self.draw.randrange(4)
        for message in (site.send, site.recv):
            if what == 0:
                message[:] = [np.ones(2, "b"), 1]
            elif what == 1:
                message.clear()
            elif what == 2 and len(message) > 1:
                message[1] = 10**6
            elif len(message) > 2:
                message[-1] = "q"
        self.changes["anything"] += 1


def play(comm: mpicoll.Comm, arguments: argparse.Namespace) -> bool:
    """Make the calls; whether all went well."""
    draw, own = random.Random(arguments.seed), random.Random(f"{arguments.seed} {comm.rank}")
    sites, kinds = [Site(comm) for _ in range(SITES)], Counter[str]()
    changer = Changer(own.randrange(1 << 30))
    changer.start()
    sys.setswitchinterval(1e-5)
    calls, fast, started = 0, 0, time.monotonic()
    while calls < arguments.calls:
        failure = ""
        for _ in range(ROUND):
            site = draw.choice(sites)
            site.change(draw)
            site.fill(own)
            late, traced = draw.random() < 0.002, draw.random() < 0.01
            if late and comm.rank == calls % comm.size:
                time.sleep(0.012)               # the others' calls leave the fast path
            changer.watch(site if draw.random() < 0.1 else None, comm._state.sequence)
            if traced:
                with comm.trace() as records:
                    site.call()
                fast += records[-1].fast_path
                kinds["traced"] += 1
            else:
                site.call()
            changer.watch(None)
            if error := site.wrong():
                failure = failure or f"call {calls}, {site.form}{site.method}, {vars(site)}: {error}"
            kinds[site.method] += 1
            calls += 1
        wrong = [report for report in MPI.COMM_WORLD.allgather(failure) if report]
        if wrong:
            print(f"rank {comm.rank}, seed {arguments.seed}: {failure}", flush=True)
            return False
    changer.stopping = True
    changer.join()
    if comm.rank == 0:
        shares = ", ".join(f"{name} {n}" for name, n in kinds.most_common() if name != "traced")
        seconds = time.monotonic() - started
        print(f"{calls} calls on {comm.size} ranks in {seconds:.0f} s, seed {arguments.seed}: all right; "
              f"of {kinds['traced']} that were traced {fast} took the fast path; {dict(changer.changes)} by the thread")
        print(shares)
        if fast < kinds["traced"] / 4:
            print("too few of them took the fast path to say anything of it")
            return False
    return True


def main(words: list[str]) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100_000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    arguments = parser.parse_args(words)
    return 0 if play(mpicoll.Comm(MPI.COMM_WORLD), arguments) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
