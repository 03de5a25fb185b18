"""Memory given by its address, as torch's tensors are: with a datatype that has holes it goes on behind what was said.

A program says how many bytes of data there are (`MPI.buffer.fromaddress`), and not how far they are strewn; Heat does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from support import types
from support.in_form import FORMS, in_form

import mpicoll
from mpicoll.buffers import parse, vector
from mpicoll.errors import BufferTooSmallError

each = pytest.mark.parametrize
ROWS, COLUMNS = 4, 3
ELEMENT = ("RESIZED", ["DOUBLE"], {"lb": 0, "extent": 8 * COLUMNS})        # one of a column, as often as there are rows


def column(matrix: np.ndarray, i: int, rows: int) -> Any:
    """Where a column is, and how many bytes of data it has."""
    return MPI.buffer.fromaddress(matrix[:, i:].ctypes.data, 8 * rows)


def exchange(comm: MPI.Intracomm, method: str, datatype: MPI.Datatype) -> list[float]:
    """Send the second column and receive into the third, which lie in one matrix; all that is there then."""
    p, rank, last = comm.size, comm.rank, comm.size - 1
    n = ROWS * p
    memory = np.arange(1.0 * n * COLUMNS).reshape(n, COLUMNS) + 1000 * rank
    few, send, recv = column(memory, 1, ROWS), column(memory, 1, n), column(memory, 2, n)
    one, into = column(memory, 2, ROWS), [send, recv]
    counts, places = [ROWS] * p, [ROWS * i for i in range(p)]
    of_all = [[each, counts, places, datatype] for each in into]
    of_types = [[each, counts, [8 * COLUMNS * at for at in places], [datatype] * p] for each in into]
    calls = {
        "Bcast": lambda: comm.Bcast([one, ROWS, datatype], last),
        "Gather": lambda: comm.Gather([few, ROWS, datatype], [recv, ROWS, datatype], last),
        "Scatter": lambda: comm.Scatter([send, ROWS, datatype], [one, ROWS, datatype], last),
        "Allgather": lambda: comm.Allgather([few, ROWS, datatype], [recv, ROWS, datatype]),
        "Alltoall": lambda: comm.Alltoall([send, ROWS, datatype], [recv, ROWS, datatype]),
        "Gatherv": lambda: comm.Gatherv([few, ROWS, datatype], of_all[1], last),
        "Scatterv": lambda: comm.Scatterv(of_all[0], [one, ROWS, datatype], last),
        "Allgatherv": lambda: comm.Allgatherv([few, ROWS, datatype], of_all[1]),
        "Alltoallv": lambda: comm.Alltoallv(*of_all),
        "Alltoallw": lambda: comm.Alltoallw(*of_types),
    }
    calls[method]()
    return memory.ravel().tolist()


def wanted(comm: MPI.Intracomm, method: str) -> list[float]:
    """Worked out here: some MPI's own Gather and Allgather of derived types are wrong on some numbers of ranks."""
    p, rank, last = comm.size, comm.rank, comm.size - 1
    n = ROWS * p
    of = [np.arange(1.0 * n * COLUMNS).reshape(n, COLUMNS) + 1000 * r for r in range(p)]
    got, plain = of[rank].copy(), method.rstrip("vw")
    mine = slice(ROWS * rank, ROWS * (rank + 1))
    if plain == "Bcast":
        got[:ROWS, 2] = of[last][:ROWS, 2]
    elif plain == "Scatter":
        got[:ROWS, 2] = of[last][mine, 1]
    elif plain == "Alltoall":
        got[:, 2] = np.concatenate([each[mine, 1] for each in of])
    elif plain == "Allgather" or rank == last:
        got[:, 2] = np.concatenate([each[:ROWS, 1] for each in of])
    return got.ravel().tolist()


METHODS = ("Bcast", "Gather", "Scatter", "Allgather", "Alltoall", "Gatherv", "Scatterv", "Allgatherv", "Alltoallv",
           "Alltoallw")


@each("form", FORMS)
@each("method", METHODS)
def test_a_column_by_its_address(comm, form, method):
    ours = in_form(mpicoll.Comm, form)(comm)
    with types.made(ELEMENT) as datatype:
        assert exchange(ours, method, datatype) == wanted(comm, method)


def test_mpi_s_own_does_the_same(comm):
    with types.made(ELEMENT) as datatype:
        for method in ("Bcast", "Scatter", "Scatterv", "Alltoallv", "Alltoallw"):
            assert exchange(comm, method, datatype) == wanted(comm, method), method


def test_more_data_than_was_said_is_refused():
    memory = np.zeros((ROWS, COLUMNS))
    with types.made(ELEMENT) as datatype:
        said = column(memory, 1, 2)
        parse.buffer([said, 2, datatype])
        vector.vector([said, [2], [1], datatype], False, 1)
        for refused in (lambda: parse.buffer([said, 3, datatype]), lambda: parse.buffer([said, 3, MPI.DOUBLE]),
                        lambda: vector.vector([said, [3], [0], datatype], False, 1)):
            with pytest.raises(BufferTooSmallError):
                refused()


def test_an_object_has_an_end():
    """Its own, whatever the datatype."""
    memory = np.zeros(2)
    with types.made(ELEMENT) as datatype:
        for obj in (memory, MPI.buffer.frombuffer(memory), bytearray(16)):
            with pytest.raises(BufferTooSmallError):
                parse.buffer([obj, 2, datatype])
            with pytest.raises(BufferTooSmallError):
                vector.vector([obj, [2], [0], datatype], False, 1)
