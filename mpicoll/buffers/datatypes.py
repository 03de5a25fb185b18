"""The facts on an MPI datatype that mpicoll needs, looked up once.

The facts on predefined datatypes are found by their handles, which live as long as MPI does. The handle of a derived
one can be given to another type after `Free`, so its facts are an attribute of the datatype and go with it.
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

__all__ = ["TypeFacts", "facts", "facts_of_dtype", "low_facts", "remember", "remembered", "signature"]

MOST_RECIPES = 512  # that are kept
MOST_NUMBERS = 24  # in one
_REGISTERED = 2  # isbuiltin of a dtype that a package has added to NumPy
_LOW = [name for name, dtype in LOW.items() if dtype.names]  # NumPy and MPI have float16

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
    """The facts on one datatype.  Sizes are in bytes.

    `kind` is integer, floating, complex, logical, byte, pair or other, and `group` the standard's finer name
    ("Fortran integer" takes fewer operators than "C integer").  `dtype` is what a NumPy kernel would use, or
    None.  `dense`: memory holds the data in order with nothing between, so moving bytes moves the data.
    `contiguous`: dense, or a predefined pair, whose padding is harmless where every rank uses the same type.
    `basic` and `nbasic` are the type signature where it is one predefined type repeated, else None and 0.
    `runs` says where the bytes lie, None where only MPI knows. `datatype` is valid only while the user's is:
    an object that may outlive a call works on `runs`, or calls `keep_alive`. `alike`: the facts on the first datatype
    that was made by the same recipe, which stay.
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
        """Return the first and the end byte of n elements that are said to be at a byte.

        They are (0, 0) where they have no data.

        What MPI says of the bounds of a datatype without data means nothing: some are the largest integer there is.
        """
        if not n * self.size:
            return 0, 0
        far = (n - 1) * self.extent
        return at + min(far, 0) + self.true_lb, at + max(far, 0) + self.true_lb + self.true_extent


def keep_alive(datatype: MPI.Datatype, holder: Any) -> None:
    """Keep MPI's object alive for as long as a Python object is, though the program frees the datatype.

    A datatype made of it does so. A duplicate would too, and call the copy functions of the program's attributes.
    """
    weakref.finalize(holder, _free, datatype.Create_contiguous(1)).atexit = False


def _free(datatype: MPI.Datatype) -> None:
    if not MPI.Is_finalized():
        datatype.Free()


def facts(datatype: MPI.Datatype) -> TypeFacts:
    """Return the facts on any datatype but the null one."""
    known = remembered(datatype)
    if known is not None:
        return known
    alike = _by_recipe.get(recipe(datatype) or ())
    if alike is None:
        return _describe(datatype)
    name = datatype.Get_name() or "a derived datatype"
    return replace(alike, datatype=MPI.Datatype(datatype), name=name, alike=alike)


def recipe(datatype: MPI.Datatype) -> tuple[int, ...] | None:
    """Return what MPI says of how a datatype was made of one of MPI's own: equal only for equal layouts.

    None for other datatypes. The numbers are those of MPI_Type_get_envelope and MPI_Type_get_contents.
    """
    *numbers, parts, combiner = datatype.Get_envelope()
    if parts != 1 or sum(numbers) > MOST_NUMBERS:
        return None
    *contents, (part,) = datatype.Get_contents()
    if not part.is_named:
        if not part.is_predefined:
            part.Free()
        return None
    return combiner, *(number for listed in contents for number in listed), MPI._handleof(part)


def remembered(datatype: MPI.Datatype) -> TypeFacts | None:
    """Return the facts on a predefined datatype, or on one that was given to `remember`."""
    known = _by_id.get(id(datatype)) or _by_handle.get(MPI._handleof(datatype))
    return known if known is not None else datatype.Get_attr(KEYVAL)  # type: ignore[return-value]


def remember(datatype: MPI.Datatype, known: TypeFacts) -> None:
    """Keep the facts for as long as the datatype lives. Dup does not copy them: they hold a handle."""
    if known.predefined:
        _by_handle[MPI._handleof(datatype)] = known
        return
    datatype.Set_attr(KEYVAL, known)
    if known.alike is None and len(_by_recipe) < MOST_RECIPES and (made_by := recipe(datatype)) is not None:
        _by_recipe[made_by] = known
    datatype.Set_attr(ALIKE, known.alike or known)


def signature(datatype: MPI.Datatype) -> tuple[str | None, int]:
    """(name of the predefined type, how many of them), or (None, 0) where the signature mixes types."""
    known = facts(datatype)
    return known.basic, known.nbasic


def facts_of_dtype(dtype: np.dtype[Any]) -> TypeFacts | None:
    """Return the facts on the MPI datatype mpi4py finds for arrays of this dtype, or None: take the slow path."""
    known = _by_dtype_num.get(dtype.num) if dtype.isnative else None
    return known if known is not None or dtype.isbuiltin != _REGISTERED else _low_dtype(dtype)


def low_facts(name: str) -> TypeFacts | None:
    """Return the facts on a type of less than 32 bits that no MPI has, by its name (bfloat16); None for other names."""
    if name not in _LOW:
        return None
    if name not in _by_low_name:
        dtype = LOW[name]
        datatype = (MPI.UINT16_T if dtype.itemsize == 2 else MPI.UINT8_T).Dup()  # stays, as MPI's own do
        datatype.Set_name(name)
        type_facts = replace(
            _describe(datatype), name=name, predefined=True, kind="floating", group="floating", dtype=dtype
        )
        _by_low_name[name] = replace(type_facts, basic=name, nbasic=1)
        _by_handle[MPI._handleof(datatype)] = _by_low_name[name]
    return _by_low_name[name]


def _low_dtype(dtype: np.dtype[Any]) -> TypeFacts | None:
    """Return the facts on a dtype of ml_dtypes', which are found by its number from then on."""
    known = low_facts(low(dtype) or "")
    if known is not None:
        _by_dtype_num[dtype.num] = known
    return known


def _describe(datatype: MPI.Datatype, name: str = "", group: str = "") -> TypeFacts:
    lb, extent = datatype.Get_extent()
    true_lb, true_extent = datatype.Get_true_extent()
    size = datatype.Get_size()
    group = group or _group_by_combiner(datatype)
    runs, basic, nbasic = Typemap(_runs(datatype, name), name, 1) if name else _typemap(datatype)
    whole = size == 0 or (runs is not None and runs.solid and runs.offsets[0] == 0)
    dense = whole and (lb, extent) == (0, size)
    return TypeFacts(
        datatype=MPI.Datatype(datatype),  # an object of our own: Free makes the user's the null one
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
    """Return the group of a type that is not in the table: only Create_f90_* make such a predefined type."""
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
    """Read a derived datatype's recipe, and those of its parts."""
    known = _by_handle.get(MPI._handleof(datatype))
    if known is not None:
        return Typemap(known.runs, known.basic, known.nbasic)
    if datatype.is_predefined:
        return Typemap(_runs(datatype, ""), datatype.Get_name(), 1)
    base, combiner, parameters = datatype.decode()
    parts = parameters.get("datatypes", [base])  # a struct may have none
    try:
        inner = [Part(_typemap(part), part.Get_extent()[1]) for part in parts]
        return derived(combiner, inner, parameters, fortran=parameters.get("order") == MPI.ORDER_FORTRAN)
    finally:
        for part in parts:  # decode() made new handles of derived ones
            if not part.is_predefined:
                part.Free()


def _runs(datatype: MPI.Datatype, name: str) -> Runs | None:
    """Return those of a predefined datatype: one, or in a pair the value and the index at its end."""
    size, (lb, extent) = datatype.Get_size(), datatype.Get_true_extent()
    if name in _PAIRS:
        value, index = (getattr(MPI, part).Get_size() for part in _PAIRS[name])
        return Runs.of([lb, lb + extent - index], [value, index])
    return Runs.of([lb], [size]) if size == extent else None


def _present(name: str) -> MPI.Datatype | None:
    """Return the predefined type of this name, or None where this MPI lacks it (Open MPI: size 0)."""
    datatype: MPI.Datatype | None = getattr(MPI, name, None)
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
    facts_by_number: dict[int, TypeFacts] = {}
    for code in "?bhilqBHILQefdgFDG":
        dtype = np.dtype(code)
        try:
            facts_by_number[dtype.num] = facts(MPI.Datatype.fromcode(np.empty(0, dtype).data.format))
        except ValueError:  # this MPI has no such type
            continue
    return facts_by_number


KEYVAL = MPI.Datatype.Create_keyval()
ALIKE = MPI.Datatype.Create_keyval()  # of the attribute that is the facts on the first datatype alike
_by_recipe: dict[tuple[int, ...], TypeFacts] = {}
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
_by_low_name: dict[str, TypeFacts] = {}
