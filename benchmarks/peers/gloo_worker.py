"""Times Gloo's collectives through torch.distributed, on ranks that mpiexec started.

    mpiexec -n 8 PYTHON gloo_worker.py CASES.json RESULTS.jsonl RENDEZVOUS

PYTHON is one that has torch; neither mpi4py nor mpicoll need be there, so this file imports nothing of them.
RENDEZVOUS is a URL that torch.distributed takes: file:///shared/new-file or tcp://address-of-rank-0:port.

CASES.json is {"dtype": "float64", "cases": [{"collective", "size", "rounds"}, …]}, sizes in bytes with the
meaning they have in patterns.py. Rank 0 writes a line of JSON for what it runs on, then one per case:
{"collective", "size", "valid", "note", "samples_us"}. Before each timed call come fresh inputs and a barrier; the
time of a call is the longest over ranks. The first call, which warms up and is not timed, and the last are checked
for the right answer. A collective that Gloo lacks or refuses has a note in place of times.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

PERIOD = 251  # elements until contents repeat; a prime, so that no block that is out of place looks right
RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
GET_ADDRESS = 0x8915  # SIOCGIFADDR


# -- who and where


def place(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return this process's rank and how many there are, as the launcher says. Raises LookupError if it does not."""
    numbers = [next((int(environ[n]) for n in names if environ.get(n, "").isdigit()), None) for names in (RANKS, SIZES)]
    if numbers[0] is None or numbers[1] is None:
        raise LookupError(f"no launcher says rank and size; one of {', '.join(RANKS)} and of {', '.join(SIZES)} must")
    return numbers[0], numbers[1]


def interface() -> str:
    """Return the first network interface that has an address and is not loopback; loopback where there is no other.

    Gloo left to itself takes the address of the host's name, which need not be one that other hosts reach.
    """
    names = [name for _, name in socket.if_nameindex()]
    others = [name for name in names if name != "lo" and _has_address(name)]
    return others[0] if others else "lo"


def _has_address(name: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            fcntl.ioctl(probe.fileno(), GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return False
    return True


# -- contents: small whole numbers, exact in every dtype


def contributed(rank: int, n: int) -> np.ndarray:
    """Return what a rank contributes to a sum."""
    return np.resize(1 + (5 * np.arange(PERIOD) + 3 * rank) % 17, n)


def summed(p: int, n: int) -> np.ndarray:
    """Return the sum over all ranks."""
    return np.resize(sum(contributed(rank, PERIOD) for rank in range(p)), n)


def moved(source: int, destination: int, n: int) -> np.ndarray:
    """Return a value of the source and the destination; 0 for a destination of all ranks, or for a single one."""
    i = np.arange(PERIOD)
    return np.resize((5 * i + 31 * source + 7 * destination + i * source) % PERIOD, n)


def joined(ways: Sequence[tuple[int, int]], n: int) -> np.ndarray:
    """Return the blocks of several ways, one behind the other."""
    return np.concatenate([moved(*way, n) for way in ways])


# -- the collectives


COLLECTIVES = (
    "allreduce", "reduce", "bcast", "reduce_scatter", "allgather", "alltoall", "gather", "scatter", "barrier",
)


@dataclass
class Call:
    """One collective on one rank: what it sends, where the answer comes, and what that must be (None: none here)."""

    run: Callable[[], Any]
    result: Any
    expected: np.ndarray | None
    start: np.ndarray  # what the result's buffer holds before

    def refill(self) -> None:
        self.result.numpy()[:] = self.start

    def is_right(self) -> bool:
        return self.expected is None or bool(np.array_equal(self.result.numpy(), self.expected))


class Maker:
    """Makes the calls of p ranks; root 0. A method's name is the collective's, n is elements of its size."""

    def __init__(self, dist: Any, torch: Any, rank: int, p: int, dtype: str) -> None:
        self.dist, self.torch, self.rank, self.p, self.dtype = dist, torch, rank, p, np.dtype(dtype)

    def call(self, collective: str, nbytes: int) -> Call | None:
        """Return the call, or None for a collective that Gloo does not have."""
        if collective not in COLLECTIVES:
            return None
        call: Call = getattr(self, collective)(max(1, nbytes // self.dtype.itemsize))
        return call

    def _tensor(self, values: np.ndarray) -> Any:
        return self.torch.from_numpy(values.astype(self.dtype))

    def _made(
        self, run: Callable[[Any], Any], start: np.ndarray, expected: np.ndarray | None, here: bool = True
    ) -> Call:
        """Take a function that is given the result's buffer; it has an answer `here` or nowhere."""
        result = self._tensor(start)
        return Call(lambda: run(result), result, expected if here else None, start.astype(self.dtype))

    def allreduce(self, n: int) -> Call:
        return self._made(self.dist.all_reduce, contributed(self.rank, n), summed(self.p, n))

    def reduce(self, n: int) -> Call:
        run = lambda buffer: self.dist.reduce(buffer, 0)
        return self._made(run, contributed(self.rank, n), summed(self.p, n), self.rank == 0)

    def bcast(self, n: int) -> Call:
        answer = moved(0, 0, n)
        return self._made(lambda buffer: self.dist.broadcast(buffer, 0), answer * (self.rank == 0), answer)

    def reduce_scatter(self, n: int) -> Call:
        """Return the call; blocks are equal, so n is rounded up to a multiple of p."""
        block = -(-n // self.p)
        sent = self._tensor(contributed(self.rank, block * self.p))
        mine = summed(self.p, block * self.p)[self.rank * block :][:block]
        return self._made(lambda buffer: self.dist.reduce_scatter_tensor(buffer, sent), np.zeros(block), mine)

    def allgather(self, n: int) -> Call:
        sent, gathered = self._tensor(moved(self.rank, 0, n)), joined([(r, 0) for r in range(self.p)], n)
        run = lambda buffer: self.dist.all_gather_into_tensor(buffer, sent)
        return self._made(run, np.zeros(n * self.p), gathered)

    def alltoall(self, n: int) -> Call:
        sent = self._tensor(joined([(self.rank, r) for r in range(self.p)], n))
        mine = joined([(r, self.rank) for r in range(self.p)], n)
        return self._made(lambda buffer: self.dist.all_to_all_single(buffer, sent), np.zeros(n * self.p), mine)

    def gather(self, n: int) -> Call:
        sent, here = self._tensor(moved(self.rank, 0, n)), self.rank == 0
        gathered = joined([(r, 0) for r in range(self.p)], n)
        run = lambda buffer: self.dist.gather(sent, list(buffer.view(self.p, n)) if here else None, 0)
        return self._made(run, np.zeros(n * self.p if here else 0), gathered, here)

    def scatter(self, n: int) -> Call:
        sent = self._tensor(joined([(0, r) for r in range(self.p)], n))
        parts = list(sent.view(self.p, n)) if self.rank == 0 else None
        return self._made(lambda buffer: self.dist.scatter(buffer, parts, 0), np.zeros(n), moved(0, self.rank, n))

    def barrier(self, n: int) -> Call:
        return self._made(lambda _: self.dist.barrier(), np.zeros(0), None)


# -- the timed loop


class Timer:
    """Measures calls; all ranks together."""

    def __init__(self, dist: Any, torch: Any, maker: Maker) -> None:
        self.dist, self.torch, self.maker = dist, torch, maker

    def _longest(self, mine: Sequence[float]) -> list[float]:
        """Return the elementwise maximum over ranks."""
        reduced = self.torch.tensor(mine, dtype=self.torch.float64)
        self.dist.all_reduce(reduced, op=self.dist.ReduceOp.MAX)
        longest: list[float] = reduced.tolist()
        return longest

    def measure(self, collective: str, nbytes: int, rounds: int) -> dict[str, Any]:
        """Return one case's line."""
        line: dict[str, Any] = {"collective": collective, "size": nbytes, "valid": None, "note": "", "samples_us": []}
        call = self.maker.call(collective, nbytes)
        if call is None:
            return line | {"note": f"Gloo has no {collective}"}
        try:  # what Gloo cannot do it says on every rank, before it sends
            self._time(call)
        except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:
            return line | {"note": f"Gloo refuses {collective}: {str(error).splitlines()[0][:200]}"}
        right = call.is_right()
        seconds = [self._time(call) for _ in range(rounds)]
        wrong = self._longest([not (right and call.is_right())])[0]
        times = [round(t * 1e6, 3) for t in self._longest(seconds)]
        return line | {"valid": not wrong, "samples_us": times}

    def _time(self, call: Call) -> float:
        """Return the seconds this rank spent in one call."""
        call.refill()
        self.dist.barrier()
        start = time.perf_counter()
        call.run()
        return time.perf_counter() - start


def main(cases: str, results: str, rendezvous: str) -> None:
    """Measure all cases."""
    import torch
    import torch.distributed as dist

    rank, p = place()
    plan = json.loads(Path(cases).read_text())
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface())
    torch.set_num_threads(1)  # ranks share the cores already
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=p)
    timer = Timer(dist, torch, Maker(dist, torch, rank, p, plan["dtype"]))
    with Path(results if rank == 0 else os.devnull).open("w") as file:
        _write(file, {"torch": torch.__version__, "python": platform.python_version(), "ranks": p})
        for case in plan["cases"]:
            _write(file, timer.measure(case["collective"], case["size"], case["rounds"]))
    dist.barrier()
    dist.destroy_process_group()


def _write(file: IO[str], line: dict[str, Any]) -> None:
    """Write at once, so that an interrupted run keeps its results."""
    file.write(json.dumps(line) + "\n")
    file.flush()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: mpiexec -n RANKS PYTHON gloo_worker.py CASES.json RESULTS.jsonl RENDEZVOUS")
    main(*sys.argv[1:])
