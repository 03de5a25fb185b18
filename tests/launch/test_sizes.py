"""Vectors past 2³¹ − 1 bytes and elements, in little more memory than the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

NEEDED = 7 << 30  # bytes of all ranks together, and some to spare

PROGRAM = """\
import os, resource, sys, time
import numpy as np
from mpi4py import MPI
import mpicoll
from mpicoll.plans.plan import MAX_MESSAGE

N, PIECE = 11 * (1 << 31) // 10 + 8, 1 << 20      # elements of a byte: 2.2 GiB; N is no multiple of a piece or chunk
assert N > 2**31 and N % 8 == 4
comm = mpicoll.Comm(MPI.COMM_WORLD)
rank, p = comm.rank, comm.size
base = (np.arange(PIECE) % 251).astype(np.uint8)   # 251 is prime: bytes in another place differ
whole = np.empty(N, np.uint8)


def piece(index, seed, n=PIECE):
    # one piece of a vector: what it is depends on every bit of its index
    return base[:n] + np.uint8((index * 7 + (index >> 8) * 13 + seed * 101) % 256)


def pieces(a, b):
    return ((i, max(a, i * PIECE), min(b, i * PIECE + PIECE)) for i in range(a // PIECE, -(-b // PIECE)))


def fill(seed, a=0, b=N):
    for i, first, end in pieces(a, b):
        whole[first:end] = piece(i, seed)[first - i * PIECE : end - i * PIECE]


def check(what, want, a=0, b=N):
    # all of it, a piece at a time: chunk borders and ends are among them
    for i, first, end in pieces(a, b):
        ok = whole[first:end] == want(i)[first - i * PIECE : end - i * PIECE]
        if not ok.all():
            raise AssertionError(f"{what}: element {first + int(np.argmin(ok))} is wrong on rank {rank}")


def bounded(what):
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    copies = N if "Intel" in MPI.Get_library_version() else 0   # its Recv copies large messages that come before it
    bound = N + copies + (300 << 20)
    assert used <= bound, f"{what}: {used >> 20} MiB resident at the most, of which {N >> 20} are the user's"


def run(what, call, **using):
    # a call or what starts a request
    began = time.monotonic()
    with comm.using(**using), comm.trace() as records:
        request = call()
        if isinstance(request, MPI.Prequest):
            request.Start()
        if request is not None:
            request.Wait()
    if isinstance(request, MPI.Prequest):
        request.Free()
    (record,) = records
    assert record.algorithm != "native" and record.engine == using["engine"], record
    bounded(what)
    return record


def whole_block(record, blocks):
    assert record.lanes == -(-(N // blocks) // (MAX_MESSAGE // blocks)), record


# broadcasts: bytes; and 8 bytes an element, whole blocks, which are cut where a message would be too large
fill(1 + rank)
run("Bcast", lambda: comm.Bcast(whole, 1), engine="compiled")
check("Bcast", lambda i: piece(i, 2))
fill(3 + rank)
record = run("Ibcast", lambda: comm.Ibcast(whole[: N - 4].view(np.float64)),
             engine="mpi4py", chunk_bytes=1 << 40, bcast="binomial")
whole_block(record, 1)
check("Ibcast", lambda i: piece(i, 3), 0, N - 4)

# reductions
fill(rank)
run("Iallreduce", lambda: comm.Iallreduce(MPI.IN_PLACE, whole), engine="compiled")
check("Iallreduce", lambda i: piece(i, 0) + piece(i, 1))
fill(2 * rank)
run("Allreduce_init", lambda: comm.Allreduce_init(MPI.IN_PLACE, whole), engine="mpi4py", chunk_bytes=12 << 20)
check("Allreduce_init", lambda i: piece(i, 0) + piece(i, 2))

# blocks of other ranks
half = N // 2
fill(5 + rank, rank * half, rank * half + half)
fill(99, (1 - rank) * half, (1 - rank) * half + half)
record = run("Allgather", lambda: comm.Allgather(MPI.IN_PLACE, whole[: 2 * half]), engine="mpi4py", chunk_bytes=1 << 40)
for r in range(p):
    check("Allgather", lambda i: piece(i, 5 + r), r * half, r * half + half)
counts, places = [2**31 + 9, 1000], [0, 2**31 + 77]
for form, engine in (("Allgatherv_init", "compiled"), ("Iallgatherv", "mpi4py")):
    fill(17, 0, N)
    fill(7 + rank, places[rank], places[rank] + counts[rank])
    run(form, lambda: getattr(comm, form)(MPI.IN_PLACE, [whole, counts, places, MPI.UINT8_T]), engine=engine)
    for r in range(p):
        check(form, lambda i: piece(i, 7 + r), places[r], places[r] + counts[r])
    check(form, lambda i: piece(i, 17), counts[0], places[1])
    check(form, lambda i: piece(i, 17), places[1] + counts[1])
os.write(1, f"end of {rank}\\n".encode())
"""


def available() -> int:
    """Return the available memory in bytes, by /proc/meminfo."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


@pytest.mark.timeout(180)
def test_past_two_to_the_31(mpiexec, tmp_path):
    if available() < NEEDED:
        pytest.skip(f"memory: needs {NEEDED >> 30} GiB available")
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    done = mpiexec(2, "python", script, limit=150.0)
    assert (done.status, sorted(done.output.splitlines())) == (0, ["end of 0", "end of 1"]), done.output
