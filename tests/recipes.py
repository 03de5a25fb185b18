"""Recipes of derived datatypes as data, what they mean worked out byte by byte, and random ones. No MPI here.

A recipe is (combiner, parts, parameters), the parameters named as MPI.Datatype.decode names them; a predefined
datatype is its name. `order` of a subarray is "C" or "F".
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any, NamedTuple

from hypothesis import strategies as st

Recipe = Any
SIZES = {"BYTE": 1, "INT16_T": 2, "FLOAT": 4, "DOUBLE": 8}
MANY = 3000         # bytes of one element, at most


class Meaning(NamedTuple):
    """Positions of the bytes in the order in which they are packed, and the bounds of an element."""

    places: list[int]
    lb: int
    ub: int

    @property
    def extent(self) -> int:
        return self.ub - self.lb


def meaning(recipe: Recipe) -> Meaning:
    """Return the typemap as MPI defines it: copies of the parts' typemaps, each moved by its displacement."""
    if isinstance(recipe, str):
        return Meaning(list(range(SIZES[recipe])), 0, SIZES[recipe])
    combiner, parts, parameters = recipe
    inner = [meaning(part) for part in parts]
    if combiner == "RESIZED":
        return Meaning(inner[0].places, parameters["lb"], parameters["lb"] + parameters["extent"])
    if combiner == "SUBARRAY":
        return _subarray(inner[0], parameters)
    starts = [(inner[i], at) for i, at in _starts(combiner, inner, parameters)]
    places = [at + place for part, at in starts for place in part.places]
    return Meaning(places, min((at + part.lb for part, at in starts), default=0),
                   max((at + part.ub for part, at in starts), default=0))


def _starts(combiner: str, inner: list[Meaning], parameters: dict[str, Any]) -> list[tuple[int, int]]:
    """Return (index of the part, its displacement in bytes), in order."""
    extent = inner[0].extent if inner else 0
    if combiner == "DUP":
        return [(0, 0)]
    if combiner == "CONTIGUOUS":
        return [(0, i * extent) for i in range(parameters["count"])]
    if combiner in ("VECTOR", "HVECTOR"):
        unit = extent if combiner == "VECTOR" else 1
        return [(0, i * parameters["stride"] * unit + j * extent)
                for i in range(parameters["count"]) for j in range(parameters["blocklength"])]
    displacements, hexed = parameters["displacements"], combiner.startswith("H") or combiner == "STRUCT"
    lengths = parameters.get("blocklengths", [parameters.get("blocklength")] * len(displacements))
    which = range(len(inner)) if combiner == "STRUCT" else [0] * len(displacements)
    return [(i, place * (1 if hexed else extent) + j * inner[i].extent)
            for i, n, place in zip(which, lengths, displacements) for j in range(n)]


def _subarray(part: Meaning, parameters: dict[str, Any]) -> Meaning:
    sizes, ranges = parameters["sizes"], [range(a, a + n) for a, n in zip(parameters["starts"], parameters["subsizes"])]
    if parameters["order"] == "F":
        sizes, ranges = sizes[::-1], ranges[::-1]
    at = []
    for index in product(*ranges):
        position = 0
        for i, size in zip(index, sizes):
            position = position * size + i
        at.append(position * part.extent)
    return Meaning([start + place for start in at for place in part.places], 0, prod(sizes) * part.extent)


def elements(item: Meaning, n: int) -> list[int]:
    """Return the positions of n elements."""
    return [i * item.extent + place for i in range(n) for place in item.places]


small = st.integers(0, 3)
near = st.integers(-20, 40)
order = st.sampled_from("CF")


def _extended(parts: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Recipe]:
    single = st.tuples(parts).map(list)

    def combined(combiner: str, **parameters: st.SearchStrategy[Any]) -> st.SearchStrategy[Recipe]:
        return st.tuples(st.just(combiner), single, st.fixed_dictionaries(parameters))

    lists = st.lists(st.tuples(small, near), max_size=4)
    return st.one_of(
        combined("DUP"),
        combined("CONTIGUOUS", count=small),
        combined("VECTOR", count=small, blocklength=small, stride=st.integers(-4, 5)),
        combined("HVECTOR", count=small, blocklength=small, stride=near),
        st.builds(_indexed, st.sampled_from(["INDEXED", "HINDEXED"]), single, lists),
        combined("INDEXED_BLOCK", blocklength=small, displacements=st.lists(st.integers(-4, 9), max_size=4)),
        combined("HINDEXED_BLOCK", blocklength=small, displacements=st.lists(near, max_size=4)),
        st.builds(_struct, st.lists(st.tuples(parts, small, near), min_size=1, max_size=3)),
        st.builds(_boxed, single, order, st.lists(st.tuples(st.integers(1, 3), small, small), min_size=1, max_size=3)),
        combined("RESIZED", lb=st.integers(-9, 9), extent=st.integers(-30, 60)),
    )


def _indexed(combiner: str, parts: list[Recipe], blocks: list[tuple[int, int]]) -> Recipe:
    lengths, displacements = [n for n, _ in blocks], [at for _, at in blocks]
    return combiner, parts, {"blocklengths": lengths, "displacements": displacements}


def _struct(blocks: list[tuple[Recipe, int, int]]) -> Recipe:
    return ("STRUCT", [part for part, _, _ in blocks],
            {"blocklengths": [n for _, n, _ in blocks], "displacements": [at for _, _, at in blocks]})


def _boxed(parts: list[Recipe], order: str, sides: list[tuple[int, int, int]]) -> Recipe:
    """Return a box of at least one element inside an array with room around it."""
    subsizes, before, _ = zip(*sides)
    sizes = [n + a + b for n, a, b in sides]
    return "SUBARRAY", parts, {"sizes": sizes, "subsizes": list(subsizes), "starts": list(before), "order": order}


random_recipes = st.recursive(st.sampled_from(sorted(SIZES)), _extended, max_leaves=4).filter(
    lambda recipe: len(meaning(recipe).places) <= MANY)
