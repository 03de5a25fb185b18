"""Define which element types each reduction operator takes, as the MPI standard does. No numba here.

The standard sorts types into classes; here a class is called a *kind*:

    kind       numpy dtype                                       operators
    integer    int8..int64, uint8..uint64                        MAX MIN SUM PROD LAND LOR LXOR BAND BOR BXOR
    floating   float32, float64, x87's long double and LOW       MAX MIN SUM PROD
    complex    complex of float32, float64, x87's long double    SUM PROD
    logical    bool                                              LAND LOR LXOR
    byte       V1 (one raw byte, MPI_BYTE)                       BAND BOR BXOR
    pair       a C struct {value, int index}, see PAIRS          MAXLOC MINLOC

What the operators compute, in every implementation here:

- SUM, PROD on integers wrap modulo 2**bits, signed ones too.
- MAX, MIN return NaN where either operand is NaN. Which of 0.0 and -0.0 they return is left open.
- LAND, LOR, LXOR take every nonzero as true and give 0 or 1 in the element type.
- Scaling, which makes an average of a sum, divides and rounds correctly, each part of a complex number by itself.
- Elements of 16 and 8 bits (LOW) are widened to float32, combined there and rounded once, to nearest, ties to even:

    type            NaN                    infinity      too large to round to a number      subnormal numbers
    float16         stays NaN, and quiet   as IEEE has   from 65520 on infinity              kept
    bfloat16        stays NaN, and quiet   as IEEE has   infinity                            kept
    float8_e5m2     stays NaN, and quiet   as IEEE has   from 61440 on infinity              kept
    float8_e4m3fn   0x7f and 0xff          there is none above 464 NaN                       kept

- MAXLOC, MINLOC give the pair with the larger (smaller) value; on equal values the lower index; a NaN
  value beats every number, and of two NaNs the lower index stays. Padding bytes are not written.
"""

from __future__ import annotations

import numpy as np

ARITHMETIC = ("SUM", "PROD")
EXTREMES = ("MAX", "MIN")
LOGICAL = ("LAND", "LOR", "LXOR")
BITWISE = ("BAND", "BOR", "BXOR")
LOCATIONS = ("MAXLOC", "MINLOC")
OPERATORS = (*ARITHMETIC, *EXTREMES, *LOGICAL, *BITWISE, *LOCATIONS)
SCALABLE = ("floating", "complex")  # the kinds that can be averaged

ALLOWED = {
    "integer": ARITHMETIC + EXTREMES + LOGICAL + BITWISE,
    "floating": ARITHMETIC + EXTREMES,
    "complex": ARITHMETIC,
    "logical": LOGICAL,
    "byte": BITWISE,
    "pair": LOCATIONS,
}


def _pair(value: str) -> np.dtype:
    return np.dtype([("value", value), ("index", np.intc)], align=True)


# MPI's pair types as the C structs that they are: extents 8, 16, 16, 8 and 8 bytes where long has 8.
PAIRS = {
    "FLOAT_INT": _pair("f"),
    "DOUBLE_INT": _pair("d"),
    "LONG_INT": _pair("l"),
    "2INT": _pair("i"),
    "SHORT_INT": _pair("h"),
}

# Types of less than 32 bits, and what stands for them where NumPy has none: ml_dtypes' are known by their names.
LOW = {
    "float16": np.dtype("f2"),
    "bfloat16": np.dtype([("bfloat16", "u2")]),
    "float8_e4m3fn": np.dtype([("float8_e4m3fn", "u1")]),
    "float8_e5m2": np.dtype([("float8_e5m2", "u1")]),
}

# Long double and its complex type where it is x87's, as on x86; elsewhere it has no kernel.
EXTENDED = tuple(map(np.dtype, "gG")) if np.finfo("g").nmant == 63 and np.dtype("g").itemsize == 16 else ()

_KINDS: dict[np.dtype, str] = {
    **{np.dtype(f"{letter}{size}"): "integer" for letter in "iu" for size in (1, 2, 4, 8)},
    **{np.dtype(f"f{size}"): "floating" for size in (4, 8)},
    **{np.dtype(f"c{size}"): "complex" for size in (8, 16)},
    np.dtype(bool): "logical",
    np.dtype("V1"): "byte",
    **dict.fromkeys(PAIRS.values(), "pair"),
    **dict.fromkeys(LOW.values(), "floating"),
    **dict(zip(EXTENDED, ("floating", "complex"))),
}

DTYPES = tuple(_KINDS)  # the dtypes that have kernels


class NoKernel(LookupError):
    """No reduction kernel exists for a dtype, whatever the operator."""


def low(dtype: np.dtype) -> str | None:
    """Return the name of a type of less than 32 bits, a key of LOW; None for any other.

    >>> low(np.dtype("f2")), low(LOW["bfloat16"]), low(np.dtype("f4"))
    ('float16', 'bfloat16', None)
    """
    name = dtype.names[0] if dtype.names is not None and len(dtype.names) == 1 else dtype.type.__name__
    known = LOW.get(name)
    alike = known is not None and known.itemsize == dtype.itemsize and dtype.isnative
    return name if alike and (dtype == known or dtype.isbuiltin == 2) else None


def canonical(dtype: np.dtype) -> np.dtype:
    """Return the same dtype, with the fields of a pair named value and index; field names carry no meaning here.

    For types of less than 32 bits it is the one in LOW.
    """
    if (name := low(dtype)) is not None:
        return LOW[name]
    if dtype.names is None or len(dtype.names) != 2 or dtype.fields is None:
        return dtype
    formats, offsets = zip(*(dtype.fields[name][:2] for name in dtype.names))
    return np.dtype({"names": ["value", "index"], "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize})


def kind_of(dtype: np.dtype) -> str:
    """Return the kind of a dtype: a key of ALLOWED. Raises NoKernel for swapped bytes, dates..."""
    dtype = np.dtype(dtype)
    kind = _KINDS.get(dtype) or _KINDS.get(canonical(dtype))
    if kind is None:
        raise NoKernel(
            f"no reduction kernel for dtype {dtype!r}; there are kernels for native-endian int8..int64, "
            f"uint8..uint64, float32/64, {', '.join(map(str, (*LOW, *EXTENDED)))}, complex64/128, bool, V1 (bytes) "
            f"and the pairs {', '.join(PAIRS)}"
        )
    return kind


def allowed(op: str, kind: str) -> bool:
    """Return whether the standard lets operator `op` take elements of `kind`; False for an unknown operator."""
    return op in ALLOWED.get(kind, ())


def check(op: str, dtype: np.dtype) -> str:
    """Return the kind of `dtype`, once `op` is known to take it.

    Raises NoKernel (a LookupError) as kind_of does, and TypeError where the operator is not allowed.
    """
    kind = kind_of(dtype)
    if not allowed(op, kind):
        raise TypeError(
            f"operator {op} does not take dtype {np.dtype(dtype)!r} ({kind}); "
            f"operators that do: {', '.join(ALLOWED[kind])}"
        )
    return kind


def check_scalable(dtype: np.dtype) -> str:
    """Return the kind of `dtype`, once its elements are known to be numbers that division keeps in their type.

    Raises NoKernel (a LookupError) as kind_of does, and TypeError for any other kind.
    """
    kind = kind_of(dtype)
    if kind not in SCALABLE:
        raise TypeError(f"dtype {np.dtype(dtype)!r} ({kind}) cannot be averaged; {' and '.join(SCALABLE)} ones can")
    return kind
