"""torch's reduction operators in MPI's terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor
from torch.distributed import ReduceOp

from ..buffers.operators import AVG
from ..errors import OperatorError
from .tensors import as_numeric_array

_KINDS = ReduceOp.RedOpType
OPERATORS = {
    _KINDS.SUM: MPI.SUM,
    _KINDS.AVG: AVG,
    _KINDS.PREMUL_SUM: MPI.SUM,
    _KINDS.PRODUCT: MPI.PROD,
    _KINDS.MIN: MPI.MIN,
    _KINDS.MAX: MPI.MAX,
    _KINDS.BAND: MPI.BAND,
    _KINDS.BOR: MPI.BOR,
    _KINDS.BXOR: MPI.BXOR,
}
# of truth values, which are bytes of 0 and 1: a sum says whether any is true, a product whether all are
_OF_BOOL = {
    _KINDS.SUM: MPI.BOR,
    _KINDS.MAX: MPI.BOR,
    _KINDS.BOR: MPI.BOR,
    _KINDS.PRODUCT: MPI.BAND,
    _KINDS.MIN: MPI.BAND,
    _KINDS.BAND: MPI.BAND,
    _KINDS.BXOR: MPI.BXOR,
}
_LINEAR = (_KINDS.SUM, _KINDS.AVG, _KINDS.PREMUL_SUM)


class Reduction(NamedTuple):
    """An operator of MPI's, how a contiguous tensor is read for it, and by what its values are multiplied before."""

    op: MPI.Op
    array: Callable[[Tensor], np.ndarray[Any, Any]]
    factor: Any = None


def reduction(op: Any, dtype: torch.dtype) -> Reduction:
    """Return how to reduce tensors of a type. Raises OperatorError for what the operator does not take."""
    kind = getattr(op, "op", op)
    table = _OF_BOOL if dtype is torch.bool else OPERATORS
    if kind not in table:
        raise OperatorError(f"{_name(kind)} does not take {dtype}; mpicoll has {', '.join(map(_name, table))} of it")
    if not dtype.is_complex:
        return Reduction(table[kind], as_numeric_array, _factor(op, kind))
    if kind in _LINEAR:  # the two parts by themselves
        return Reduction(table[kind], lambda tensor: as_numeric_array(torch.view_as_real(tensor)), _factor(op, kind))
    if kind == _KINDS.PRODUCT:
        return Reduction(table[kind], as_numeric_array)
    raise OperatorError(f"{_name(kind)} does not take {dtype}: complex numbers have no order and no bits")


def _factor(op: Any, kind: Any) -> Any:
    return op.__getstate__()[1] if kind == _KINDS.PREMUL_SUM else None


def _name(kind: Any) -> str:
    return str(kind).rpartition(".")[2]
