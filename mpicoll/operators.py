"""MPI operators: which take which datatype, whether they commute, and the kernel that carries them out."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, NamedTuple

from mpi4py import MPI

from .datatypes import TypeFacts
from .errors import OperatorError
from .kernels import reduce as kernels

_NAMES = ("SUM", "PROD", "MAX", "MIN", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "MAXLOC", "MINLOC")
_BY_HANDLE = {MPI._handleof(getattr(MPI, name)): name for name in _NAMES}  # predefined: never reused
_known: dict[tuple[str, TypeFacts], Operator] = {}
_LOGICAL = ("LAND", "LOR", "LXOR")
_NOT_LOGICAL = ("Fortran integer", "multi-language")  # integers that logical operators do not take
_Signature = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


class Operator(NamedTuple):
    """An operator on a datatype: its kernel's address, what keeps that alive, and why there is none.

    errors collects what a user's function raised inside a kernel, which cannot pass through C.
    """

    name: str
    commutative: bool
    kernel: int
    keep: Any = None
    errors: list[BaseException] = []  # noqa: RUF012 - replaced for user operators
    missing: str = ""


def name_of(op: MPI.Op) -> str:
    """SUM, … for a predefined operator, "user" for any other."""
    return _BY_HANDLE.get(MPI._handleof(op), "user")


def operator(op: MPI.Op, facts: TypeFacts) -> Operator:
    """The operator for elements of a datatype.

    Raises OperatorError for a pair MPI does not allow. A pair MPI allows and no kernel serves has
    kernel 0 and says so in `missing`: facts of the arguments, so the same on every rank.
    """
    name = name_of(op)
    if name == "user":
        return _user(op, facts)
    known = _known.get((name, facts)) if facts.predefined else None
    if known is None:
        known = _predefined(name, facts)
        if facts.predefined:
            _known[name, facts] = known
    return known


def _predefined(name: str, facts: TypeFacts) -> Operator:
    if not kernels.allowed(name, facts.kind) or (name in _LOGICAL and facts.group in _NOT_LOGICAL):
        able = [n for n in _NAMES if kernels.allowed(n, facts.kind)]
        takes = (
            f"operators for it are {', '.join(able)}"
            if able
            else "no predefined operator takes it, make one with MPI.Op.Create"
        )
        raise OperatorError(f"MPI.{name} does not take {facts.name} ({facts.kind}); {takes}")
    if facts.dtype is None:
        return Operator(name, True, 0, missing=f"no kernel for {facts.name}")
    try:
        return Operator(name, True, kernels.address(name, facts.dtype))
    except LookupError:
        return Operator(name, True, 0, missing=f"no kernel for {facts.name}")


def _user(op: MPI.Op, facts: TypeFacts) -> Operator:
    if op in (MPI.OP_NULL, MPI.REPLACE, MPI.NO_OP):
        raise OperatorError("MPI.OP_NULL, MPI.REPLACE and MPI.NO_OP cannot reduce; pass a reduction operator")
    if not facts.contiguous:
        return Operator("user", op.Is_commutative(), 0, missing=f"a user operator on {facts.name}, which has holes")
    errors: list[BaseException] = []
    kernel = _Signature(_reduce_local(op, facts, errors))
    return Operator("user", op.Is_commutative(), ctypes.cast(kernel, ctypes.c_void_p).value or 0, kernel, errors)


def _reduce_local(op: MPI.Op, facts: TypeFacts, errors: list[BaseException]) -> Any:
    """dst = a op b for a user's operator, through MPI.Op.Reduce_local, which works on its second argument."""
    datatype = facts.datatype
    if not facts.predefined:
        datatype = datatype.Dup()  # the user may free theirs before a nonblocking call is done

    def kernel(dst: int, a: int, b: int, n: int) -> None:
        try:
            nbytes = n * facts.extent
            if dst == b:
                target = MPI.buffer.fromaddress(b, nbytes)
            else:
                target = MPI.buffer.allocate(nbytes)
                target[:] = MPI.buffer.fromaddress(b, nbytes)
            op.Reduce_local([MPI.buffer.fromaddress(a, nbytes), n, datatype], [target, n, datatype])
            if dst != b:
                MPI.buffer.fromaddress(dst, nbytes)[:] = target
        except BaseException as error:  # raised again when the call ends
            errors.append(error)

    if not facts.predefined:
        weakref.finalize(kernel, datatype.Free)
    return kernel
