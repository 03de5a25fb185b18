"""Every predefined operator on every predefined datatype: what MPI's own collectives answer, and what ours do.

On two ranks, `python -m support.operators FILE SKIP`, with tests/ on the path, continues a survey of both after SKIP
cells, and appends to FILE what rank 0 was answered: a line for every cell as it begins, another as it ends, since MPI's
own may end the process. tests/operator_table.py starts it and writes docs/OPERATORS.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.buffers.datatypes import facts
from mpicoll.dispatch.methods import METHODS
from mpicoll.errors import OperatorError
from mpicoll.schedules.collectives import BLOCKING, NONBLOCKING, PERSISTENT
from support.calls import complete
from support.ops import OPERATORS

ALL = (*OPERATORS, "REPLACE", "NO_OP")
REFUSED = "refused"
N = 3
Cell = tuple[str, str]  # datatype, operator


def datatypes() -> dict[str, MPI.Datatype]:
    """Return every predefined datatype that mpi4py names and this MPI has, once, by its first name."""
    named: dict[int, tuple[str, MPI.Datatype]] = {}
    for name, value in vars(MPI).items():
        if isinstance(value, MPI.Datatype) and value != MPI.DATATYPE_NULL and value.Get_size():
            named.setdefault(MPI._handleof(value), (name, value))
    return dict(named.values())


def cells() -> list[Cell]:
    """Return all pairs."""
    return [(name, op) for name in datatypes() for op in ALL]


def contribution(datatype: MPI.Datatype, n: int, rank: int) -> np.ndarray:
    """Return small numbers that differ between ranks, as bytes; small bytes if NumPy has no such type."""
    memory = np.zeros(n * datatype.Get_extent()[1], np.uint8)
    dtype = facts(datatype).dtype
    if dtype is None:
        memory[::4] = (np.arange(len(memory[::4])) + rank) % 3
    elif dtype.names:
        memory.view(dtype)["value"], memory.view(dtype)["index"] = (np.arange(n) + rank) % 2, rank
    else:
        memory.view(dtype)[:] = (np.arange(n) + rank) % 3
    return memory


def same(datatype: MPI.Datatype, a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two results are equal but for the padding of their elements."""
    dtype = facts(datatype).dtype
    if dtype is None:
        return np.array_equal(a, b)
    a, b = a.view(dtype), b.view(dtype)
    return all(np.array_equal(a[name], b[name]) for name in dtype.names) if dtype.names else np.array_equal(a, b)


def call(method: str, form: str, comm: MPI.Intracomm, datatype: MPI.Datatype, op: MPI.Op) -> np.ndarray:
    """Make a reduction and wait for it; what was received, as bytes."""
    blocks = comm.size if "scatter" in method else 1
    send = contribution(datatype, N * blocks, comm.rank)
    got = np.zeros(N * datatype.Get_extent()[1], np.uint8)
    counts = ([N] * comm.size,) if method == "Reduce_scatter" else ()
    request = getattr(comm, METHODS[method].spelled(form))([send, datatype], [got, datatype], *counts, op)
    complete(request)
    if form == PERSISTENT:
        request.Free()
    return got


def native(method: str, form: str, comm: MPI.Intracomm, datatype: MPI.Datatype, op: MPI.Op) -> np.ndarray | None:
    """Return the result of MPI's own collective, None if it refuses the pair."""
    try:
        return call(method, form, comm, datatype, op)
    except MPI.Exception as error:
        if error.Get_error_class() != MPI.ERR_OP:
            raise
        return None


def ours(
    method: str, form: str, comm: mpicoll.Comm, datatype: MPI.Datatype, op: MPI.Op
) -> tuple[str, np.ndarray | None]:
    """Return (the algorithm that served, its result), or refused."""
    with comm.trace() as records:
        try:
            got = call(method, form, comm, datatype, op)
        except OperatorError:
            return REFUSED, None
    (record,) = records
    return record.algorithm, got


def version() -> str:
    """Return this MPI's name and version."""
    vendor, numbers = MPI.get_vendor()
    return f"{vendor} {'.'.join(map(str, numbers))}"


# -- the survey that is written down


def survey() -> Iterator[tuple[Cell, Callable[[], Any]]]:
    """Yield a call for each cell of MPI's own Allreduce and Iallreduce, and of our Allreduce."""
    plain = MPI.COMM_WORLD.Dup()
    plain.Set_errhandler(MPI.ERRORS_RETURN)
    comm = mpicoll.Comm(plain)

    def taken(form: str, datatype: MPI.Datatype, op: MPI.Op) -> bool:
        return native("Allreduce", form, plain, datatype, op) is not None

    for name, op in cells():
        pair = getattr(MPI, name), getattr(MPI, op)
        yield (name, op, BLOCKING), lambda pair=pair: taken(BLOCKING, *pair)
        yield (name, op, NONBLOCKING), lambda pair=pair: taken(NONBLOCKING, *pair)
        yield (name, op, "ours"), lambda pair=pair: ours("Allreduce", BLOCKING, comm, *pair)[0]


def main(path: str, skip: str) -> None:
    with open(path if MPI.COMM_WORLD.rank == 0 else "/dev/null", "a", buffering=1) as file:
        for i, (asked, ask) in enumerate(survey()):
            if i < int(skip):
                continue
            print(json.dumps([i, *asked]), file=file)
            print(json.dumps([i, *asked, ask()]), file=file)
            MPI.COMM_WORLD.Barrier()  # if another rank ends in this cell, so does this one
        print(json.dumps({"version": version(), "names": list(datatypes())}), file=file)


if __name__ == "__main__":
    main(*sys.argv[1:])
