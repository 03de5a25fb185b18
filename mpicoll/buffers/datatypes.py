"""Describe MPI datatypes, and cache the descriptions.

Facts on predefined datatypes are cached by handle, which stays valid as long as MPI runs. MPI may reuse the handle of a
derived datatype after `Free`, so its facts are cached as an attribute of the datatype.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from mpi4py import MPI

from ..kernels.rules import LOW, low
from .runs import Runs
from .typemap import Part, Typemap, derived

__all__ = ["TypeFacts", "facts", "facts_of_dtype", "low_facts", "remember", "remembered"]

RECIPE_LIMIT = 512  # cached recipes
NUMBER_LIMIT = 24  # numbers in a recipe
_REGISTERED = 2  # isbuiltin of a dtype that a package has added to NumPy
_LOW = [name for name, dtype in LOW.items() if dtype.names]  # without float16, which NumPy and MPI have

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

# REAL16 is IEEE quadruple, which NumPy has only if that is its long double. NumPy has no bfloat16.
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
    """The facts on one datatype. Sizes are in bytes.

    - `kind`: integer, floating, complex, logical, byte, pair or other. `group`: the standard's finer name
      ("Fortran integer" accepts fewer operators than "C integer").
    - `dtype`: the NumPy dtype of an element, or None.
    - `dense`: the data is in order without holes, so that copying bytes copies the data.
    - `contiguous`: dense, or a predefined pair, whose padding is harmless if every rank uses the same type.
    - `basic`, `nbasic`: the type signature if it is one predefined type repeated, else None and 0.
    - `runs`: the offsets of the bytes; None if only MPI knows them.
    - `datatype`: valid only while the user's is. An object that may outlive a call uses `runs`, or calls `keep_alive`.
    - `alike`: the facts on the first datatype with the same recipe, which are cached for the whole run.
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
    runs: Runs | None
    alike: TypeFacts | None = None

    def span(self, n: int, at: int = 0) -> tuple[int, int]:
        """Return the first and the end byte of n elements at offset `at`; (0, 0) if they have no data.

        MPI's bounds of a datatype without data are meaningless: some are the largest integer.
        """
        if not n * self.size:
            return 0, 0
        far = (n - 1) * self.extent
        return at + min(far, 0) + self.true_lb, at + max(far, 0) + self.true_lb + self.true_extent


def keep_alive(datatype: MPI.Datatype, holder: Any) -> None:
    """Keep MPI's datatype alive as long as `holder`, though the program may free its handle.

    A datatype derived from it does so. A duplicate would also call the copy functions of the program's attributes.
    """
    weakref.finalize(holder, _free, datatype.Create_contiguous(1)).atexit = False


def _free(datatype: MPI.Datatype) -> None:
    if not MPI.Is_finalized():
        datatype.Free()


def facts(datatype: MPI.Datatype) -> TypeFacts:
    """Return the facts on a datatype other than MPI.DATATYPE_NULL, from the cache if possible."""
    type_facts = remembered(datatype)
    if type_facts is not None:
        return type_facts
    alike = _by_recipe.get(recipe(datatype) or ())
    if alike is None:
        return _describe(datatype)
    name = datatype.Get_name() or "a derived datatype"
    return replace(alike, datatype=MPI.Datatype(datatype), name=name, alike=alike)


def recipe(datatype: MPI.Datatype) -> tuple[int, ...] | None:
    """Return how a datatype was derived from one predefined datatype, as a key that is equal only for equal layouts.

    Its numbers are those of MPI_Type_get_envelope and MPI_Type_get_contents. None for other datatypes.
    """
    *numbers, parts, combiner = datatype.Get_envelope()
    if parts != 1 or sum(numbers) > NUMBER_LIMIT:
        return None
    *contents, (part,) = datatype.Get_contents()
    if not part.is_named:
        if not part.is_predefined:
            part.Free()
        return None
    return combiner, *(number for listed in contents for number in listed), MPI._handleof(part)


def remembered(datatype: MPI.Datatype) -> TypeFacts | None:
    """Return the cached facts on a predefined datatype, or on one passed to `remember`; else None."""
    type_facts = _by_id.get(id(datatype)) or _by_handle.get(MPI._handleof(datatype))
    return type_facts if type_facts is not None else datatype.Get_attr(KEYVAL)  # type: ignore[return-value]


def remember(datatype: MPI.Datatype, type_facts: TypeFacts) -> None:
    """Cache the facts as long as the datatype lives. Dup does not copy them, since they contain the handle."""
    if type_facts.predefined:
        _by_handle[MPI._handleof(datatype)] = type_facts
        return
    datatype.Set_attr(KEYVAL, type_facts)
    if type_facts.alike is None and len(_by_recipe) < RECIPE_LIMIT and (made_by := recipe(datatype)) is not None:
        _by_recipe[made_by] = type_facts
    datatype.Set_attr(ALIKE, type_facts.alike or type_facts)


def facts_of_dtype(dtype: np.dtype[Any]) -> TypeFacts | None:
    """Return the facts on the MPI datatype that mpi4py chooses for this dtype; None if only `parse.find_type` knows."""
    type_facts = _by_dtype_num.get(dtype.num) if dtype.isnative else None
    return type_facts if type_facts is not None or dtype.isbuiltin != _REGISTERED else _low_dtype(dtype)


def low_facts(name: str) -> TypeFacts | None:
    """Return the facts on a type with fewer than 32 bits that no MPI has, by name (bfloat16); None for other names."""
    if name not in _LOW:
        return None
    if name not in _by_low_name:
        dtype = LOW[name]
        datatype = (MPI.UINT16_T if dtype.itemsize == 2 else MPI.UINT8_T).Dup()  # never freed, like MPI's own
        datatype.Set_name(name)
        type_facts = replace(
            _describe(datatype), name=name, predefined=True, kind="floating", group="floating", dtype=dtype
        )
        _by_low_name[name] = replace(type_facts, basic=name, nbasic=1)
        _by_handle[MPI._handleof(datatype)] = _by_low_name[name]
    return _by_low_name[name]


def _low_dtype(dtype: np.dtype[Any]) -> TypeFacts | None:
    """Return the facts on a dtype of ml_dtypes, and cache them by its number."""
    type_facts = low_facts(low(dtype) or "")
    if type_facts is not None:
        _by_dtype_num[dtype.num] = type_facts
    return type_facts


def _describe(datatype: MPI.Datatype, name: str = "", group: str = "") -> TypeFacts:
    lb, extent = datatype.Get_extent()
    true_lb, true_extent = datatype.Get_true_extent()
    size = datatype.Get_size()
    group = group or _group_by_combiner(datatype)
    runs, basic, nbasic = Typemap(_predefined_runs(datatype, name), name, 1) if name else _typemap(datatype)
    whole = size == 0 or (runs is not None and runs.is_solid and runs.offsets[0] == 0)
    dense = whole and (lb, extent) == (0, size)
    return TypeFacts(
        datatype=MPI.Datatype(datatype),  # a copy of the handle: Free sets the user's to MPI.DATATYPE_NULL
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
        dense=dense,
        contiguous=dense or group == "pair",
        basic=basic,
        nbasic=nbasic,
        runs=runs,
    )


def _group_by_combiner(datatype: MPI.Datatype) -> str:
    """Return the group of a type outside the table; only Create_f90_* return such a predefined type."""
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


def _typemap(datatype: MPI.Datatype) -> Typemap:
    """Decode a derived datatype and its parts."""
    type_facts = _by_handle.get(MPI._handleof(datatype))
    if type_facts is not None:
        return Typemap(type_facts.runs, type_facts.basic, type_facts.nbasic)
    if datatype.is_predefined:
        return Typemap(_predefined_runs(datatype, ""), datatype.Get_name(), 1)
    base, combiner, parameters = datatype.decode()
    parts = parameters.get("datatypes", [base])  # empty for a struct without members
    try:
        inner = [Part(_typemap(part), part.Get_extent()[1]) for part in parts]
        return derived(combiner, inner, parameters, fortran=parameters.get("order") == MPI.ORDER_FORTRAN)
    finally:
        for part in parts:  # decode() returns new handles of derived datatypes
            if not part.is_predefined:
                part.Free()


def _predefined_runs(datatype: MPI.Datatype, name: str) -> Runs | None:
    """Return the runs of a predefined datatype: one, or for a pair its value and the index at its end."""
    size, (lb, extent) = datatype.Get_size(), datatype.Get_true_extent()
    if name in _PAIRS:
        value, index = (getattr(MPI, part).Get_size() for part in _PAIRS[name])
        return Runs.of([lb, lb + extent - index], [value, index])
    return Runs.of([lb], [size]) if size == extent else None


def _predefined_type(name: str) -> MPI.Datatype | None:
    """Return the predefined type of this name; None if this MPI lacks it (Open MPI: size 0)."""
    datatype: MPI.Datatype | None = getattr(MPI, name, None)
    if datatype is None or datatype == MPI.DATATYPE_NULL or datatype.Get_size() == 0:
        return None
    return datatype


def _facts_by_handle() -> dict[int, TypeFacts]:
    """Return facts on all predefined types by handle; if two names share a handle, the first wins."""
    table: dict[int, TypeFacts] = {}
    for group, names in _GROUPS.items():
        for name in names.split():
            datatype = _predefined_type(name)
            if datatype is not None and MPI._handleof(datatype) not in table:
                table[MPI._handleof(datatype)] = _describe(datatype, name, group)
    return table


def _facts_by_dtype_num() -> dict[int, TypeFacts]:
    """Return facts by NumPy type number, for the dtypes whose buffer format mpi4py maps to a datatype."""
    facts_by_number: dict[int, TypeFacts] = {}
    for code in "?bhilqBHILQefdgFDG":
        dtype = np.dtype(code)
        try:
            facts_by_number[dtype.num] = facts(MPI.Datatype.fromcode(np.empty(0, dtype).data.format))
        except ValueError:  # this MPI has no such type
            continue
    return facts_by_number


KEYVAL = MPI.Datatype.Create_keyval()
ALIKE = MPI.Datatype.Create_keyval()  # its attribute: the facts on the first datatype with the same recipe
_by_recipe: dict[tuple[int, ...], TypeFacts] = {}
_by_id: dict[int, TypeFacts] = {}
_by_handle: dict[int, TypeFacts] = {}
_by_handle.update(_facts_by_handle())
# mpi4py never frees its predefined datatype objects, so their id identifies them, and is cheaper than the handle.
_by_id.update(
    (id(value), _by_handle[MPI._handleof(value)])
    for value in vars(MPI).values()
    if isinstance(value, MPI.Datatype) and MPI._handleof(value) in _by_handle
)
_by_dtype_num: dict[int, TypeFacts] = _facts_by_dtype_num()
_by_low_name: dict[str, TypeFacts] = {}
