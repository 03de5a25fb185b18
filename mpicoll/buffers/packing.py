"""Pack layouts with holes: by mpicoll's kernels if the datatype's runs are known, else by MPI_Pack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
from mpi4py import MPI

from ..kernels.serving import pack_elements, unpack_elements
from .datatypes import TypeFacts, keep_alive
from .runs import Runs

__all__ = ["ByMPI", "ByRuns", "Packer", "packer"]


class Packer(Protocol):
    """Copies between `n` elements of a datatype at address `base` and their packed bytes at address `packed`."""

    def pack(self, packed: int, base: int, n: int) -> None: ...

    def unpack(self, packed: int, base: int, n: int) -> None: ...


def packer(facts: TypeFacts) -> Packer:
    """Return a packer that stays valid after the user frees the datatype."""
    return ByMPI(facts) if facts.runs is None else ByRuns(facts.runs, facts.extent)


class ByRuns:
    """A packer that runs mpicoll's kernels on runs of memory."""

    __slots__ = ("extent", "runs")

    def __init__(self, runs: Runs, extent: int) -> None:
        self.runs, self.extent = runs, extent

    def pack(self, packed: int, base: int, n: int) -> None:
        pack_elements(packed, base, n, self.extent, self.runs.layout.address)

    def unpack(self, packed: int, base: int, n: int) -> None:
        unpack_elements(packed, base, n, self.extent, self.runs.layout.address)


class ByMPI:
    """A packer that calls the Pack and Unpack of the datatype."""

    __slots__ = ("__weakref__", "datatype", "size")

    def __init__(self, facts: TypeFacts) -> None:
        self.datatype, self.size = facts.datatype, facts.size
        keep_alive(self.datatype, self)

    def pack(self, packed: int, base: int, n: int) -> None:
        if nbytes := n * self.size:
            with self._as_one(base, n) as (datatype, anchor):
                datatype.Pack(anchor, MPI.buffer.fromaddress(packed, nbytes), 0, MPI.COMM_SELF)

    def unpack(self, packed: int, base: int, n: int) -> None:
        if nbytes := n * self.size:
            with self._as_one(base, n) as (datatype, anchor):
                datatype.Unpack(MPI.buffer.fromaddress(packed, nbytes), 0, anchor, MPI.COMM_SELF)

    @contextmanager
    def _as_one(self, base: int, n: int) -> Iterator[tuple[MPI.Datatype, MPI.buffer]]:
        """Provide a temporary datatype of which all n elements are one, and a buffer of one byte to pack it from.

        mpi4py's Pack divides the length of its buffer by the extent. The quotient is wrong for extents that are zero,
        negative or larger than the buffer, and for absolute addresses (MPI.BOTTOM).
        """
        own = np.empty(1, np.uint8)
        anchor = base or MPI.Get_address(own)
        inner = self.datatype.Create_hindexed([n], [base - anchor])
        datatype = inner.Create_resized(0, 1).Commit()
        inner.Free()
        try:
            yield datatype, MPI.buffer.fromaddress(anchor, 1)
        finally:
            datatype.Free()
