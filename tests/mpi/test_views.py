"""Datatypes with holes that reach beyond the view that they are given with, to what its owner has, as in mpi4py."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from mpi4py import MPI
from support import types

import mpicoll
from mpicoll.errors import BufferTooSmallError

AROUND = ("HINDEXED", ["DOUBLE"], {"blocklengths": [1, 1], "displacements": [-16, 8]})    # 8 bytes from -16, 8 from 8
COLUMN = ("VECTOR", ["DOUBLE"], {"count": 3, "blocklength": 1, "stride": 4})

# Makes 16 doubles, and returns a view of those from the fourth on and what was made.
OWNERS = {
    "array": lambda: _array(np.zeros(16)),
    "rows": lambda: _array(np.zeros((4, 4))),
    "Fortran order": lambda: _array(np.zeros((4, 4), order="F")),
    "bytearray": lambda: _array(np.frombuffer(bytearray(128))),
    "memoryview": lambda: _memory(bytearray(128)),
    "map": lambda: _memory(mmap.mmap(-1, 128)),
    "MPI's": lambda: _memory(MPI.buffer.frombuffer(np.zeros(16))),
    "unknown": lambda: _array(np.lib.stride_tricks.as_strided(np.zeros(16), (16,), (8,))),
}


def _array(array):
    return array.reshape(-1, order="A")[4:6], array.reshape(-1, order="A")


def _memory(owner):
    return memoryview(owner)[32:48].cast("B").cast("d"), np.frombuffer(owner)


@pytest.mark.parametrize("owner", OWNERS)
def test_results_are_the_builtins(comm, owner):
    ours, p = mpicoll.Comm(comm), comm.size
    with types.committed(AROUND) as around, types.committed(COLUMN) as column:
        for method in ("Bcast", "Allgather", "Alltoallv", "Ibcast"):
            results = []
            for communicator in (comm, ours):
                view, whole = OWNERS[owner]()
                whole[:] = np.arange(16) + 100 * comm.rank
                if method == "Bcast":
                    communicator.Bcast([view, 1, around])
                elif method == "Ibcast":
                    communicator.Ibcast([view, 1, column]).Wait()
                elif method == "Allgather":
                    communicator.Allgather([view, 1, around], [got := np.zeros(2 * p), 2, MPI.DOUBLE])
                    whole = got
                else:
                    ends = [[0] * (p - 1) + [1], [0] * p]    # to the last rank alone
                    received = [2 * (comm.rank == p - 1)] * p, [2 * i for i in range(p)]
                    communicator.Alltoallv([view, *ends, around], [got := np.zeros(2 * p), *received, MPI.DOUBLE])
                    whole = got
                results.append(whole.copy())
            assert results[0].tolist() == results[1].tolist(), method


@pytest.mark.parametrize("owner", [owner for owner in OWNERS if owner != "unknown"])
def test_an_owner_has_ends(comm, owner):
    """Refused before a message is sent, so that one rank may be wrong alone."""
    ours, at_the_end = mpicoll.Comm(comm), ("VECTOR", ["DOUBLE"], {"count": 4, "blocklength": 1, "stride": 4})
    before = ("HINDEXED", ["DOUBLE"], {"blocklengths": [1], "displacements": [-40]})
    with types.committed(before) as too_early, types.committed(at_the_end) as too_long:
        view, _ = OWNERS[owner]()
        for datatype, message in ((too_early, "8 bytes before the buffer"), (too_long, "need 104 bytes and .* has 96")):
            with pytest.raises(BufferTooSmallError, match=message):
                ours.Bcast([view, 1, datatype])
        for datatype, message in ((too_early, "begins 8 bytes before"), (too_long, "ends at byte 104 and .* has 96")):
            with pytest.raises(BufferTooSmallError, match=message):
                ours.Alltoallv([view, [1] * comm.size, [0] * comm.size, datatype], [np.zeros(comm.size), MPI.DOUBLE])
        with pytest.raises(BufferTooSmallError):    # elements without holes must lie in the view
            ours.Bcast([view, 3, MPI.DOUBLE])
