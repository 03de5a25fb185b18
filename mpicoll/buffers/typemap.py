"""Compute the typemap of a derived datatype from what `MPI.Datatype.decode` returns.

These functions do not call MPI; `datatypes` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .runs import Runs, join

__all__ = ["Part", "Typemap", "derived"]


class Typemap(NamedTuple):
    """The runs of one element (None: only MPI knows them), and its type signature.

    The signature is `nbasic` elements of the predefined type `basic`, or 0 and None if it mixes types.
    """

    runs: Runs | None
    basic: str | None
    nbasic: int

    def repeated(self, count: int, stride: int) -> Typemap:
        """Return the typemap repeated `count` times, `stride` bytes apart."""
        return Typemap(self.runs and self.runs.repeated(count, stride), self.basic, self.nbasic * count)

    def shifted(self, offset: int) -> Typemap:
        return Typemap(self.runs and self.runs.shifted(offset), self.basic, self.nbasic)


class Part(NamedTuple):
    """A datatype that another is derived from; its extent is in bytes."""

    typemap: Typemap
    extent: int


UNKNOWN = Typemap(None, None, 0)


def derived(combiner: str, parts: Sequence[Part], parameters: dict[str, Any], fortran: bool = False) -> Typemap:
    """Return the typemap of a datatype with this combiner, parts and decoded parameters.

    Return UNKNOWN for darrays and new combiners. fortran: whether a subarray's dimensions are in Fortran order.
    """
    if combiner == "STRUCT":
        return _struct(parts, parameters)
    if combiner == "SUBARRAY":
        return _subarray(parts[0], parameters, fortran)
    return _RECIPES[combiner](parts[0], parameters) if combiner in _RECIPES else UNKNOWN


def _same(part: Part, parameters: dict[str, Any]) -> Typemap:
    return part.typemap


def _contiguous(part: Part, parameters: dict[str, Any]) -> Typemap:
    return part.typemap.repeated(parameters["count"], part.extent)


def _vector(part: Part, parameters: dict[str, Any]) -> Typemap:
    return _hvector(part, parameters | {"stride": parameters["stride"] * part.extent})


def _hvector(part: Part, parameters: dict[str, Any]) -> Typemap:
    block = part.typemap.repeated(parameters["blocklength"], part.extent)
    return block.repeated(parameters["count"], parameters["stride"])


def _indexed(part: Part, parameters: dict[str, Any]) -> Typemap:
    return _hindexed(part, parameters | {"displacements": [x * part.extent for x in parameters["displacements"]]})


def _hindexed(part: Part, parameters: dict[str, Any]) -> Typemap:
    (runs, basic, nbasic), displacements = part.typemap, parameters["displacements"]
    lengths = parameters["blocklengths"] if "blocklengths" in parameters else _repeat_blocklength(parameters)
    return Typemap(runs and runs.blocks(part.extent, lengths, displacements), basic, nbasic * sum(lengths))


def _repeat_blocklength(parameters: dict[str, Any]) -> list[int]:
    return [parameters["blocklength"]] * len(parameters["displacements"])


def _struct(parts: Sequence[Part], parameters: dict[str, Any]) -> Typemap:
    members = zip(parts, parameters["blocklengths"], parameters["displacements"])
    maps = [part.typemap.repeated(n, part.extent).shifted(place) for part, n, place in members if n]
    basics = {x.basic for x in maps if x.runs is None or x.runs.nbytes}  # members without data have no type
    basic = basics.pop() if len(basics) == 1 else None
    return Typemap(join(x.runs for x in maps), basic, sum(x.nbasic for x in maps) if basic else 0)


def _subarray(part: Part, parameters: dict[str, Any], fortran: bool) -> Typemap:
    dimensions = list(zip(parameters["sizes"], parameters["subsizes"], parameters["starts"]))
    typemap, stride, start = part.typemap, part.extent, 0
    for size, subsize, first in dimensions if fortran else reversed(dimensions):
        typemap = typemap.repeated(subsize, stride)
        start += first * stride
        stride *= size
    return typemap.shifted(start)


_RECIPES = {
    "DUP": _same,
    "RESIZED": _same,
    "CONTIGUOUS": _contiguous,
    "VECTOR": _vector,
    "HVECTOR": _hvector,
    "INDEXED": _indexed,
    "INDEXED_BLOCK": _indexed,
    "HINDEXED": _hindexed,
    "HINDEXED_BLOCK": _hindexed,
}
