"""Derived datatypes made from recipes, one of every kind, and memory to use them on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI
from recipes import Recipe

GUARD = 0xA5
DOUBLE = "DOUBLE"
ROW = ("VECTOR", [DOUBLE], {"count": 3, "blocklength": 1, "stride": 2})
BYTE_AND_DOUBLE = ("STRUCT", ["BYTE", DOUBLE], {"blocklengths": [1, 1], "displacements": [0, 8]})
FACE = {"sizes": [4, 3, 5], "subsizes": [2, 3, 2], "starts": [1, 0, 3]}

# Kinds whose elements and blocks do not overlap: data may be received into them.
KINDS: dict[str, Recipe] = {
    "contiguous": ("CONTIGUOUS", [DOUBLE], {"count": 3}),
    "vector": ROW,
    "vector of blocks": ("VECTOR", [DOUBLE], {"count": 2, "blocklength": 2, "stride": 3}),
    "vector backwards": ("VECTOR", [DOUBLE], {"count": 3, "blocklength": 1, "stride": -2}),
    "vector in disguise": ("VECTOR", [DOUBLE], {"count": 2, "blocklength": 2, "stride": 2}),
    "hvector": ("HVECTOR", ["FLOAT"], {"count": 3, "blocklength": 1, "stride": 9}),
    "indexed": ("INDEXED", [DOUBLE], {"blocklengths": [1, 0, 2], "displacements": [5, 9, 0]}),
    "indexed out of order": ("INDEXED", [DOUBLE], {"blocklengths": [2, 1], "displacements": [1, 0]}),
    "indexed in order": ("INDEXED", [DOUBLE], {"blocklengths": [1, 2, 0, 1], "displacements": [0, 1, 7, 4]}),
    "hindexed": ("HINDEXED", ["INT16_T"], {"blocklengths": [2, 1], "displacements": [-7, 6]}),
    "indexed block": ("INDEXED_BLOCK", [DOUBLE], {"blocklength": 2, "displacements": [3, 0, 7]}),
    "hindexed block": ("HINDEXED_BLOCK", [DOUBLE], {"blocklength": 1, "displacements": [33, 0, 12]}),
    "indexed of vectors": ("INDEXED", [ROW], {"blocklengths": [1, 2], "displacements": [2, 0]}),
    "struct": ("STRUCT", ["INT16_T", DOUBLE, "BYTE"], {"blocklengths": [1, 2, 3], "displacements": [0, 8, 25]}),
    "struct in disguise": ("STRUCT", [DOUBLE, "FLOAT"], {"blocklengths": [1, 2], "displacements": [0, 8]}),
    "regular struct": ("STRUCT", [DOUBLE, DOUBLE], {"blocklengths": [1, 1], "displacements": [0, 16]}),
    "struct of vectors": ("STRUCT", [ROW, "FLOAT"], {"blocklengths": [2, 1], "displacements": [8, 0]}),
    "subarray": ("SUBARRAY", [DOUBLE], FACE | {"order": "C"}),
    "subarray, Fortran": ("SUBARRAY", [DOUBLE], FACE | {"order": "F"}),
    "whole subarray": ("SUBARRAY", [DOUBLE], {"sizes": [2, 3], "subsizes": [2, 3], "starts": [0, 0], "order": "C"}),
    "subarray of structs": ("SUBARRAY", [BYTE_AND_DOUBLE],
                            {"sizes": [3, 3], "subsizes": [2, 2], "starts": [1, 0], "order": "F"}),
    "resized": ("RESIZED", [DOUBLE], {"lb": 0, "extent": 24}),
    "resized, beginning before": ("RESIZED", [DOUBLE], {"lb": -8, "extent": 16}),
    "columns that interleave": ("RESIZED", [("VECTOR", [DOUBLE], {"count": 4, "blocklength": 1, "stride": 40})],
                                {"lb": 0, "extent": 8}),
    "elements backwards": ("RESIZED", [ROW], {"lb": 0, "extent": -64}),
    "dup": ("DUP", [ROW], {}),
    "deep": ("DUP", [("CONTIGUOUS", [("HVECTOR", [("DUP", [ROW], {})], {"count": 2, "blocklength": 1, "stride": 50})],
                      {"count": 2})], {}),
    "pairs": ("CONTIGUOUS", ["DOUBLE_INT"], {"count": 2}),
    "no blocks": ("INDEXED", [DOUBLE], {"blocklengths": [], "displacements": []}),
    "no elements": ("VECTOR", [DOUBLE], {"count": 0, "blocklength": 2, "stride": 3}),
}


def make(recipe: Recipe) -> MPI.Datatype:
    """Return the datatype of a recipe, committed."""
    if isinstance(recipe, str):
        return getattr(MPI, recipe).Dup()
    combiner, names, arguments = recipe
    arguments, parts = dict(arguments), [make(part) for part in names]
    if combiner == "STRUCT":
        datatype = MPI.Datatype.Create_struct(arguments["blocklengths"], arguments["displacements"], parts)
    elif combiner == "DUP":
        datatype = parts[0].Dup()
    else:
        if "order" in arguments:
            arguments["order"] = {"C": MPI.ORDER_C, "F": MPI.ORDER_F}[arguments["order"]]
        datatype = getattr(parts[0], f"Create_{combiner.lower()}")(**arguments)
    for part in parts:
        part.Free()
    return datatype.Commit()


@contextmanager
def committed(recipe: Recipe) -> Iterator[MPI.Datatype]:
    """Yield the datatype of a recipe, and free it."""
    datatype = make(recipe)
    try:
        yield datatype
    finally:
        datatype.Free()


def darray() -> MPI.Datatype:
    """Return the datatype of a cyclically distributed part of a matrix, which only MPI's own Pack handles."""
    cyclic, none = MPI.DISTRIBUTE_CYCLIC, MPI.DISTRIBUTE_DFLT_DARG
    return MPI.DOUBLE.Create_darray(4, 1, [4, 6], [cyclic] * 2, [none] * 2, [2, 2]).Commit()


def span(datatype: MPI.Datatype, n: int) -> tuple[int, int]:
    """Return the first and end byte of n elements, relative to the buffer's address."""
    (_, extent), (lb, length) = datatype.Get_extent(), datatype.Get_true_extent()
    far = max(n - 1, 0) * extent
    return min(far, 0) + lb, max(far, 0) + lb + length


class Room:
    """Memory for n elements with guards around: `message` describes them by absolute addresses, for any layout."""

    def __init__(self, datatype: MPI.Datatype, n: int, fill: int | None = None) -> None:
        low, high = span(datatype, n)
        self.bytes = np.full(high - low + 16, GUARD, np.uint8)
        if fill is not None:
            self.bytes[:] = np.random.default_rng(fill).integers(0, 256, self.bytes.size)
        self.address = MPI.Get_address(self.bytes) + 8 - low

    def placed(self, datatype: MPI.Datatype) -> MPI.Datatype:
        """Return the datatype at its address in this memory, for use with MPI.BOTTOM."""
        moved = datatype.Create_hindexed([1], [self.address])
        same = moved.Create_resized(*datatype.Get_extent())
        moved.Free()
        return same.Commit()


def bottom(datatype: MPI.Datatype, n: int) -> list[Any]:
    return [MPI.BOTTOM, n, datatype]
