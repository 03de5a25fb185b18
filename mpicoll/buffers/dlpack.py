"""Read the item type of a DLPack tensor from its capsule: NumPy's own reader rejects some types that MPI has."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

_api = ctypes.pythonapi
_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_TENSOR_AT = {b"dltensor": 0, b"dltensor_versioned": 32}  # offset of the DLTensor in a capsule's struct
_DTYPE_AT = 20  # in a DLTensor, after data, device and ndim
_INT, _UINT, _FLOAT, _COMPLEX, _BOOL = 0, 1, 2, 5, 6  # of DLDataTypeCode
_LETTERS = {_INT: "bhilq", _UINT: "BHILQ", _FLOAT: "efdg", _COMPLEX: "FDG", _BOOL: "?"}


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


def item_format(obj: Any) -> str | None:
    """Return the buffer format of an object's items; None for types without one (bfloat16)."""
    try:
        capsule = obj.__dlpack__(max_version=(1, 0))
    except TypeError:  # DLPack before version 1 has no max_version
        capsule = obj.__dlpack__()
    name = _name(capsule)
    at = _pointer(capsule, name) + _TENSOR_AT[name] + _DTYPE_AT
    data_type = _DataType.from_address(at)
    code, bits, lanes = data_type.code, data_type.bits, data_type.lanes
    if code == _FLOAT and lanes == 2:  # some libraries describe a complex number as two lanes
        code, bits, lanes = _COMPLEX, bits * 2, 1
    dtypes = map(np.dtype, _LETTERS.get(code, "") if lanes == 1 else "")
    return next((np.empty(0, dtype).data.format for dtype in dtypes if dtype.itemsize * 8 == bits), None)
