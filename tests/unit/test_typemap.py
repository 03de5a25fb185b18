"""Typemaps as runs of memory, against the standard's definition byte by byte."""

from __future__ import annotations

import numpy as np
import pytest
import recipes
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll import kernels
from mpicoll.buffers import runs
from mpicoll.buffers.runs import Runs, join
from mpicoll.buffers.typemap import UNKNOWN, Part, Typemap, derived


def typemap(recipe: recipes.Recipe) -> Typemap:
    """Return the typemap that mpicoll derives from a recipe."""
    if isinstance(recipe, str):
        return Typemap(Runs.of([0], [recipes.SIZES[recipe]]), recipe, 1)
    combiner, parts, parameters = recipe
    inner = [Part(typemap(part), recipes.meaning(part).extent) for part in parts]
    return derived(combiner, inner, parameters, fortran=parameters.get("order") == "F")


def places(layout: Runs | None) -> list[int]:
    assert layout is not None
    return [at + i for at, n in zip(*layout.flat()) for i in range(n)]


def leaves(recipe: recipes.Recipe) -> list[str]:
    """Return the predefined datatypes in the recipe, those that it repeats zero times included."""
    return [recipe] if isinstance(recipe, str) else [name for part in recipe[1] for name in leaves(part)]


@settings(deadline=None)  # the first example compiles kernels
@given(recipes.random_recipes, st.integers(0, 3))
def test_any_recipe(recipe, n):
    meaning, (layout, basic, nbasic) = recipes.meaning(recipe), typemap(recipe)
    assert places(layout) == meaning.places
    assert layout is not None and layout.nbytes == len(meaning.places) and (layout.lengths > 0).all()
    assert layout.run_count == layout.flat()[0].size
    if meaning.places and len(set(leaves(recipe))) == 1:
        assert (basic, nbasic) == (leaves(recipe)[0], len(meaning.places) // recipes.SIZES[leaves(recipe)[0]])
    _hold_kernels_to(recipes.elements(meaning, n), n, meaning.extent, layout)


def _hold_kernels_to(wanted: list[int], n: int, extent: int, layout: Runs) -> None:
    """Compare the kernels' gather and scatter with those expected, on memory of random bytes."""
    low, high = min(wanted, default=0), max(wanted, default=0) + 1
    memory = np.random.default_rng(len(wanted)).integers(0, 256, high - low, np.uint8)
    packed = np.zeros(len(wanted) + 1, np.uint8)
    arguments = packed.ctypes.data, memory.ctypes.data - low, n, extent
    assert kernels.pack.pack_elements(*arguments, layout.layout.address) == len(wanted)
    assert packed[:-1].tolist() == [memory[place - low] for place in wanted]
    blank = np.zeros_like(memory)
    kernels.pack.unpack_elements(packed.ctypes.data, blank.ctypes.data - low, n, extent, layout.layout.address)
    want = np.zeros_like(memory)
    want[[place - low for place in wanted]] = packed[:-1]
    assert blank.tolist() == want.tolist()


DOUBLE = "DOUBLE"
ROW = ("VECTOR", [DOUBLE], {"count": 3, "blocklength": 1, "stride": 4})


@pytest.mark.parametrize(("recipe", "pattern", "loops"), [
    (DOUBLE, [(0, 8)], ()),
    (("CONTIGUOUS", [DOUBLE], {"count": 1 << 40}), [(0, 8 << 40)], ()),
    (("VECTOR", [DOUBLE], {"count": 1 << 40, "blocklength": 2, "stride": 2}), [(0, 16 << 40)], ()),
    (("VECTOR", [DOUBLE], {"count": 1 << 40, "blocklength": 1, "stride": -3}), [(0, 8)], ((1 << 40, -24),)),
    (("VECTOR", [ROW], {"count": 5, "blocklength": 1, "stride": 2}), [(0, 8)], ((5, 144), (3, 32))),
    (("HVECTOR", [ROW], {"count": 5, "blocklength": 1, "stride": 96}), [(0, 8)], ((15, 32),)),
    (("INDEXED", [DOUBLE], {"blocklengths": [2, 0, 1, 1], "displacements": [0, 9, 2, 7]}), [(0, 24), (56, 8)], ()),
    (("INDEXED_BLOCK", [DOUBLE], {"blocklength": 2, "displacements": [9, 6, 3]}), [(72, 16)], ((3, -24),)),
    (("HINDEXED_BLOCK", [ROW], {"blocklength": 1, "displacements": [0, 1000]}), [(0, 8)], ((2, 1000), (3, 32))),
    (("SUBARRAY", [DOUBLE], {"sizes": [9, 8, 7], "subsizes": [4, 3, 7], "starts": [2, 1, 0], "order": "C"}),
     [(8 * (2 * 56 + 7), 168)], ((4, 448),)),
    (("SUBARRAY", [DOUBLE], {"sizes": [9, 8, 7], "subsizes": [4, 3, 2], "starts": [2, 1, 0], "order": "F"}),
     [(8 * (2 + 9), 32)], ((2, 576), (3, 72))),
    (("STRUCT", [DOUBLE, "FLOAT", ROW], {"blocklengths": [1, 2, 0], "displacements": [0, 8, 99]}), [(0, 16)], ()),
    (("STRUCT", [DOUBLE, "FLOAT"], {"blocklengths": [1, 1], "displacements": [8, 0]}), [(8, 8), (0, 4)], ()),
    (("CONTIGUOUS", [DOUBLE], {"count": 0}), [], ()),
    (("RESIZED", [ROW], {"lb": -8, "extent": 1}), [(0, 8)], ((3, 32),)),
])
def test_the_shortest_form(recipe, pattern, loops):
    """Runs that touch are one, and what is regular is a loop, however long."""
    layout = typemap(recipe).runs
    assert layout is not None
    assert (list(zip(layout.offsets.tolist(), layout.lengths.tolist())), layout.loops) == (pattern, loops)
    assert all(type(count) is type(stride) is int for count, stride in layout.loops)


def test_regular_layouts_have_no_limit_and_others_do(monkeypatch):
    monkeypatch.setattr(runs, "LIMIT", 6)
    row = typemap(ROW).runs
    assert row is not None and row.run_count == 3
    assert row.repeated(1000, 500).run_count == 3000
    assert row.placed(np.array([0, 100])) is not None
    assert row.placed(np.array([0, 100, 200, 300])) is not None
    assert row.placed(np.array([0, 100, 300])) is None
    assert row.blocks(100, [1, 2], [0, 1000]) is None
    assert Runs.of([0], [8]).blocks(8, [1, 2] * 4, range(0, 1000, 125)) is None
    assert join([row, row.shifted(1)]) is not None
    assert join([row, row, row]) is None
    assert join([row, None]) is None


def test_unknown_values_spread_and_signatures_stay():
    part = Part(Typemap(None, "DOUBLE", 3), 100)
    assert derived("VECTOR", [part], {"count": 2, "blocklength": 1, "stride": 3}) == (None, "DOUBLE", 6)
    assert derived("INDEXED", [part], {"blocklengths": [1, 4], "displacements": [0, 9]}) == (None, "DOUBLE", 15)
    assert derived("STRUCT", [part, part], {"blocklengths": [1, 2], "displacements": [0, 0]}) == (None, "DOUBLE", 9)
    box = {"sizes": [3], "subsizes": [2], "starts": [0]}
    assert derived("SUBARRAY", [part], box) == (None, "DOUBLE", 6)
    assert derived("DARRAY", [part], {}) == derived("NEW IN MPI 9", [part], {}) == UNKNOWN
