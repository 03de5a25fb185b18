"""What we need to know of an MPI datatype, looked up once.

Facts are cached for predefined datatypes only: their handles live as long as MPI does.  The handle of a
derived type can be given to another type after `Free`, so its facts are worked out on every call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

__all__ = ["Layout", "TypeFacts", "facts", "facts_of_dtype", "signature"]

# The groups of the MPI standard's table of reduction operators ("Predefined Reduction Operations").
# A name missing from this MPI (None, DATATYPE_NULL or size 0) is skipped.
_GROUPS = {
    "C integer": """
        SIGNED_CHAR UNSIGNED_CHAR SHORT UNSIGNED_SHORT INT UNSIGNED LONG UNSIGNED_LONG LONG_LONG
        UNSIGNED_LONG_LONG INT8_T UINT8_T INT16_T UINT16_T INT32_T UINT32_T INT64_T UINT64_T""",
    "Fortran integer": "INTEGER INTEGER1 INTEGER2 INTEGER4 INTEGER8 INTEGER16",
    "multi-language": "AINT OFFSET COUNT",
    "floating": """
        FLOAT DOUBLE LONG_DOUBLE REAL DOUBLE_PRECISION REAL2 REAL4 REAL8 REAL16 FLOAT16_T BFLOAT16_T""",
    "complex": """
        C_COMPLEX C_FLOAT_COMPLEX C_DOUBLE_COMPLEX C_LONG_DOUBLE_COMPLEX CXX_FLOAT_COMPLEX CXX_DOUBLE_COMPLEX
        CXX_LONG_DOUBLE_COMPLEX COMPLEX DOUBLE_COMPLEX COMPLEX4 COMPLEX8 COMPLEX16 COMPLEX32""",
    "logical": "C_BOOL CXX_BOOL LOGICAL LOGICAL1 LOGICAL2 LOGICAL4 LOGICAL8 LOGICAL16",
    "byte": "BYTE",
    "pair": """
        FLOAT_INT DOUBLE_INT LONG_INT SHORT_INT LONG_DOUBLE_INT TWOINT
        TWOREAL TWODOUBLE_PRECISION TWOINTEGER""",
    "other": "CHAR WCHAR CHARACTER PACKED",
}
_KINDS = {"C integer": "integer", "Fortran integer": "integer", "multi-language": "integer"}

# REAL16 is IEEE quadruple, which NumPy has only where long double is; bfloat16 it does not have.
_NOT_NUMPY = {"BFLOAT16_T"} | (set() if np.finfo(np.longdouble).nmant == 112 else {"REAL16", "COMPLEX32"})

# value and index types of the pairs, by name
_PAIRS = {
    "FLOAT_INT": ("FLOAT", "INT"),
    "DOUBLE_INT": ("DOUBLE", "INT"),
    "LONG_INT": ("LONG", "INT"),
    "SHORT_INT": ("SHORT", "INT"),
    "LONG_DOUBLE_INT": ("LONG_DOUBLE", "INT"),
    "TWOINT": ("INT", "INT"),
    "TWOREAL": ("REAL", "REAL"),
    "TWODOUBLE_PRECISION": ("DOUBLE_PRECISION", "DOUBLE_PRECISION"),
    "TWOINTEGER": ("INTEGER", "INTEGER"),
}


@dataclass(frozen=True, slots=True, eq=False)
class TypeFacts:
    """What we know of one datatype.  Sizes are in bytes.

    `kind` is integer, floating, complex, logical, byte, pair or other, and `group` the standard's finer name
    ("Fortran integer" takes fewer operators than "C integer").  `dtype` is what a NumPy kernel would use, or
    None.  `dense`: memory holds the data in order with nothing between, so moving bytes moves the data.
    `contiguous`: dense, or a predefined pair, whose padding is harmless where every rank uses the same type.
    `basic` and `nbasic` are the type signature where it is one predefined type repeated, else None and 0.
    """

    datatype: MPI.Datatype
    name: str
    predefined: bool
    kind: str
    group: str
    dtype: np.dtype[Any] | None
    size: int
    extent: int
    lb: int
    true_lb: int
    true_extent: int
    dense: bool
    contiguous: bool
    basic: str | None
    nbasic: int

    def span(self, n: int) -> tuple[int, int]:
        """The first and the end byte of n elements, counted from where they are said to be; n is at least 1."""
        far = (n - 1) * self.extent
        return min(far, 0) + self.true_lb, max(far, 0) + self.true_lb + self.true_extent


@dataclass(frozen=True, slots=True)
class Layout:
    """`nbasic` elements of the predefined type `basic` (None: several types); `dense` as in TypeFacts."""

    basic: str | None
    nbasic: int
    dense: bool


_OPAQUE = Layout(None, 0, False)


def facts(datatype: MPI.Datatype) -> TypeFacts:
    """The facts on any datatype but the null one."""
    known = _by_id.get(id(datatype)) or _by_handle.get(MPI._handleof(datatype))
    return known if known is not None else _describe(datatype)


def signature(datatype: MPI.Datatype) -> tuple[str | None, int]:
    """(name of the predefined type, how many of them), or (None, 0) where the signature mixes types."""
    known = facts(datatype)
    return known.basic, known.nbasic


def facts_of_dtype(dtype: np.dtype[Any]) -> TypeFacts | None:
    """The facts on the MPI datatype mpi4py finds for arrays of this dtype, or None: take the long way."""
    return _by_dtype_num.get(dtype.num) if dtype.isnative else None


def _describe(datatype: MPI.Datatype, name: str = "", group: str = "") -> TypeFacts:
    lb, extent = datatype.Get_extent()
    true_lb, true_extent = datatype.Get_true_extent()
    size = datatype.Get_size()
    layout = Layout(name, 1, (lb, extent) == (0, size)) if name else _layout(datatype)
    group = group or _group_by_combiner(datatype)
    return TypeFacts(
        datatype=datatype,
        name=name or datatype.Get_name() or "a derived datatype",
        predefined=bool(datatype.is_predefined),
        kind=_KINDS.get(group, group),
        group=group,
        dtype=_numpy_dtype(datatype, name, group),
        size=size,
        extent=extent,
        lb=lb,
        true_lb=true_lb,
        true_extent=true_extent,
        dense=layout.dense,
        contiguous=layout.dense or group == "pair",
        basic=layout.basic,
        nbasic=layout.nbasic,
    )


def _group_by_combiner(datatype: MPI.Datatype) -> str:
    """The group of a type that is not in the table: only Create_f90_* make such a predefined type."""
    parametrised = {
        MPI.COMBINER_F90_INTEGER: "Fortran integer",
        MPI.COMBINER_F90_REAL: "floating",
        MPI.COMBINER_F90_COMPLEX: "complex",
    }
    return parametrised.get(datatype.combiner, "other")


def _numpy_dtype(datatype: MPI.Datatype, name: str, group: str) -> np.dtype[Any] | None:
    if group == "other" or name in _NOT_NUMPY:
        return None
    if group == "pair":
        value, index = (_numpy_dtype(getattr(MPI, part), part, "") for part in _PAIRS[name])
        pair = np.dtype([("value", value), ("index", index)], align=True)
        return pair if pair.itemsize == datatype.Get_extent()[1] else None
    try:
        dtype = np.dtype(datatype.tocode())
    except (TypeError, ValueError):
        return None
    return dtype if dtype.itemsize == datatype.Get_size() else None


def _layout(datatype: MPI.Datatype) -> Layout:
    """Read a derived type's recipe.  One that is not understood is "not dense", which is always safe."""
    known = _by_handle.get(MPI._handleof(datatype))
    if known is not None:
        return Layout(known.basic, known.nbasic, known.dense)
    whole = datatype.Get_extent() == (0, datatype.Get_size())
    if datatype.is_predefined:
        return Layout(datatype.Get_name(), 1, whole)
    base, combiner, parameters = datatype.decode()
    parts = parameters.get("datatypes") or [base]
    try:
        inner = [(_layout(part), part.Get_extent()[1]) for part in parts]
        layout = _RECIPES.get(combiner, _unknown)(inner, parameters)
        return Layout(layout.basic, layout.nbasic, layout.dense and whole)
    finally:
        for part in parts:  # decode() made new handles of derived ones
            if not part.is_predefined:
                part.Free()


def _run(layout: Layout, n: int, dense: bool = True) -> Layout:
    """`n` of one layout, one after the other (`dense`) or not."""
    return Layout(layout.basic, layout.nbasic * n, layout.dense and dense)


def _blocks(layouts: list[tuple[Layout, int]], lengths: list[int], displacements: list[int]) -> Layout:
    """Blocks of several layouts at byte displacements."""
    end, dense, total, basics = 0, True, 0, set()
    for (layout, extent), length, displacement in zip(layouts, lengths, displacements, strict=True):
        if length:
            dense = dense and layout.dense and displacement == end
            end = displacement + length * extent
            total += layout.nbasic * length
            basics.add(layout.basic)
    basic = basics.pop() if len(basics) == 1 else None
    return Layout(basic, total if basic else 0, dense)


def _dup(inner: list[tuple[Layout, int]], parameters: dict[str, Any]) -> Layout:
    return inner[0][0]  # also RESIZED: _layout compares size with extent


def _contiguous(inner: list[tuple[Layout, int]], parameters: dict[str, Any]) -> Layout:
    return _run(inner[0][0], parameters["count"])


def _vector(inner: list[tuple[Layout, int]], parameters: dict[str, Any]) -> Layout:
    count, length = parameters["count"], parameters["blocklength"]
    return _run(inner[0][0], count * length, count <= 1 or parameters["stride"] == length)


def _hvector(inner: list[tuple[Layout, int]], parameters: dict[str, Any]) -> Layout:
    (layout, extent), count, length = inner[0], parameters["count"], parameters["blocklength"]
    return _run(layout, count * length, count <= 1 or parameters["stride"] == length * extent)


def _indexed(inner: list[tuple[Layout, int]], parameters: dict[str, Any], scaled: bool = True) -> Layout:
    displacements = parameters["displacements"]
    lengths = parameters.get("blocklengths") or [parameters.get("blocklength", 0)] * len(displacements)
    unit = inner[0][1] if scaled else 1
    return _blocks(inner * len(lengths), lengths, [d * unit for d in displacements])


def _hindexed(inner: list[tuple[Layout, int]], parameters: dict[str, Any]) -> Layout:
    return _indexed(inner, parameters, scaled=False)


def _struct(inner: list[tuple[Layout, int]], parameters: dict[str, Any]) -> Layout:
    return _blocks(inner, parameters["blocklengths"], parameters["displacements"])


def _subarray(inner: list[tuple[Layout, int]], parameters: dict[str, Any]) -> Layout:
    part = parameters["subsizes"]
    return _run(inner[0][0], int(np.prod(part, dtype=int)), list(part) == list(parameters["sizes"]))


def _unknown(inner: list[tuple[Layout, int]], parameters: dict[str, Any]) -> Layout:
    return _OPAQUE


_RECIPES = {
    "DUP": _dup,
    "RESIZED": _dup,
    "CONTIGUOUS": _contiguous,
    "VECTOR": _vector,
    "HVECTOR": _hvector,
    "INDEXED": _indexed,
    "INDEXED_BLOCK": _indexed,
    "HINDEXED": _hindexed,
    "HINDEXED_BLOCK": _hindexed,
    "STRUCT": _struct,
    "SUBARRAY": _subarray,
}


def _present(name: str) -> MPI.Datatype | None:
    """The predefined type of this name, or None where this MPI lacks it (Open MPI: size 0)."""
    datatype = getattr(MPI, name, None)
    if datatype is None or datatype == MPI.DATATYPE_NULL or datatype.Get_size() == 0:
        return None
    return datatype


def _table() -> dict[int, TypeFacts]:
    """Handle to facts, for every predefined type; where two names share a handle the first wins."""
    table: dict[int, TypeFacts] = {}
    for group, names in _GROUPS.items():
        for name in names.split():
            datatype = _present(name)
            if datatype is not None and MPI._handleof(datatype) not in table:
                table[MPI._handleof(datatype)] = _describe(datatype, name, group)
    return table


def _discovered() -> dict[int, TypeFacts]:
    """NumPy type number to facts, for the dtypes mpi4py maps by their buffer format."""
    found: dict[int, TypeFacts] = {}
    for code in "?bhilqBHILQefdgFDG":
        dtype = np.dtype(code)
        try:
            found[dtype.num] = facts(MPI.Datatype.fromcode(np.empty(0, dtype).data.format))
        except ValueError:  # this MPI has no such type
            continue
    return found


_by_id: dict[int, TypeFacts] = {}
_by_handle: dict[int, TypeFacts] = {}
_by_handle.update(_table())
# mpi4py's own datatype objects are never freed, so their identity is as good as the handle, and cheaper.
_by_id.update(
    (id(value), _by_handle[MPI._handleof(value)])
    for value in vars(MPI).values()
    if isinstance(value, MPI.Datatype) and MPI._handleof(value) in _by_handle
)
_by_dtype_num: dict[int, TypeFacts] = _discovered()
