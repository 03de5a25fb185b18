"""MPI operators: which take which datatype, whether they commute, and the kernel that carries them out."""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from threading import Lock
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
from mpi4py import MPI

from ..engines.kernel_args import BUT_IN_CODES, EVERYWHERE, KernelArgs
from ..errors import OperatorError
from ..kernels import background, reduce, rules
from ..kernels.memory import address_of
from ..kernels.rules import SCALABLE
from ..kernels.serving import address, narrow_address, scale_address, widen_address
from ..stderr import last_words
from .datatypes import TypeFacts, keep_alive

_NAMES = ("SUM", "PROD", "MAX", "MIN", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "MAXLOC", "MINLOC")


def _on_a_plain_communicator(*arguments: Any) -> NoReturn:
    why = (
        "mpicoll.AVG averages on an mpicoll.Comm, in Allreduce, Reduce, Reduce_scatter and Reduce_scatter_block; "
        "elsewhere reduce with MPI.SUM and divide"
    )
    last_words(f"mpicoll: {why}")  # mpi4py aborts as soon as it has begun to print the error
    raise OperatorError(why)


class _Average(MPI.Op):
    """Averages: the sum over the ranks, divided by how many they are.

    For Allreduce, Reduce, Reduce_scatter and Reduce_scatter_block of a Comm. It belongs to everybody and stays.
    """

    def Free(self) -> NoReturn:
        """AVG stays, as MPI's own operators do."""
        raise OperatorError("mpicoll.AVG cannot be freed")

    def __repr__(self) -> str:
        return "mpicoll.AVG"


# MPI knows it as a user's operator that raises, which mpi4py prints before it aborts: there is no way back from C.
AVG = _Average(MPI.Op.Create(_on_a_plain_communicator, commute=True))
_BY_HANDLE = {MPI._handleof(getattr(MPI, name)): name for name in _NAMES}  # predefined: never reused
_BY_HANDLE[MPI._handleof(AVG)] = "AVG"
# The operator, or why MPI does not take the pair; by the generation of kernels, since compiled ones may arrive later.
_known: dict[tuple[str, TypeFacts, int], Operator | str] = {}
_asking = Lock()
_divisors: list[np.ndarray] = []
_LOGICAL = ("LAND", "LOR", "LXOR")
_NOT_LOGICAL = ("Fortran integer", "multi-language")  # integers that logical operators do not take
_FLOAT = np.dtype(np.float32)
_Signature = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


USER = "user"  # the name of an operator that a program has made


class Errors(list[BaseException]):
    """The errors of a user's function. The word at address `at` is 1 while there are any, for compiled code."""

    def __init__(self) -> None:
        super().__init__()
        self._word = np.zeros(1, np.int64)
        self.at = address_of(self._word)

    def append(self, error: BaseException) -> None:
        """Add an error."""
        super().append(error)
        self._word[0] = 1

    def clear(self) -> None:
        """Forget all."""
        super().clear()
        self._word[0] = 0


class Operator(NamedTuple):
    """An operator on a datatype: its kernel's address, what keeps that alive, and why there is none.

    errors collects what a user's function raised inside a kernel, which cannot pass through C; None for MPI's own.
    averages says that a
    sum is to be divided; dtype is what its elements are, None where no kernel serves.
    """

    name: str
    commutative: bool
    kernel: int
    keep: Any = None
    errors: Errors | None = None  # of a user's function
    missing: str = ""
    averages: bool = False
    dtype: np.dtype[Any] | None = None

    @property
    def is_low(self) -> bool:
        """Return whether the elements have fewer than 32 bits, and are reduced in float32."""
        return self.dtype is not None and rules.low(self.dtype) is not None

    @property
    def rounds(self) -> bool:
        """Return whether every reduction rounds: sums and products of elements with fewer than 32 bits."""
        return self.is_low and self.name in ("SUM", "PROD", "AVG")

    def kernel_args(self, p: int, float32_sums: bool = False) -> KernelArgs:
        """Return the kernels that reduce elements of its type on p ranks, and divide them for an average.

        float32_sums: the plan keeps partial sums in float32.
        """
        if self.dtype is None:
            return KernelArgs(self.kernel)
        low = self.is_low
        scale = by = wide_scale = 0
        if self.averages:
            scale, by = scale_address(self.dtype), divisor(_FLOAT if low else self.dtype, p)
            wide_scale = scale_address(_FLOAT) if low or self.dtype == _FLOAT else 0
        if not low:
            return KernelArgs(self.kernel, scale, by, self.kernel if self.dtype == _FLOAT else 0, wide_scale)
        wide = address("SUM" if self.averages else self.name, _FLOAT)
        between = widen_address(self.dtype), narrow_address(self.dtype)
        places = BUT_IN_CODES if float32_sums else EVERYWHERE
        return KernelArgs(self.kernel, scale, by, wide, wide_scale, *between, narrow_places=places)


def name_of(op: MPI.Op) -> str:
    """SUM, … for a predefined operator, AVG for mpicoll's own, "user" for any other."""
    return _BY_HANDLE.get(MPI._handleof(op), USER)


def operator(op: MPI.Op, facts: TypeFacts) -> Operator:
    """Return the operator for elements of a datatype.

    Raises OperatorError for a pair that this MPI does not take. A pair that it takes and no kernel serves has
    kernel 0 and says so in `missing`: facts of the arguments and of the library, so the same on every rank.
    """
    name = name_of(op)
    if name == USER:
        return _user(op, facts)
    key = name, facts, background.state.generation
    known = _known.get(key) if facts.predefined else None
    if known is None:
        known = _average(facts) if name == "AVG" else _predefined(name, facts)
        if facts.predefined:
            _known[key] = known
    if isinstance(known, str):
        raise OperatorError(known)
    return known


def native(op: MPI.Op, facts: TypeFacts) -> MPI.Op:
    """Return what MPI's own collective is given: SUM for an average, whose result is then divided.

    For types of less than 32 bits, which few MPIs reduce, it is an operator that calls our kernel.
    """
    name = name_of(op)
    name = "SUM" if name == "AVG" else name
    if name == USER:
        return op
    return getattr(MPI, name) if facts.dtype is None or rules.low(facts.dtype) is None else _by_kernel(name, facts)


@cache
def _by_kernel(name: str, facts: TypeFacts) -> MPI.Op:
    """Return an MPI operator that calls mpicoll's kernel; it is never freed."""
    assert facts.dtype is not None
    kernel, itemsize = address(name, facts.dtype), facts.size

    def reduce_elements(a: Any, b: Any, datatype: MPI.Datatype) -> None:
        reduce.call(kernel, b.address, a.address, b.address, b.nbytes // itemsize)

    return MPI.Op.Create(reduce_elements, commute=True)


@cache
def divisor(dtype: np.dtype[Any], p: int) -> int:
    """Return the address of one element that says p, for the kernels that divide; it stays valid."""
    _divisors.append(np.array([p], dtype))
    return address_of(_divisors[-1])


def _average(facts: TypeFacts) -> Operator | str:
    """AVG: a sum whose last step divides."""
    if facts.kind not in SCALABLE or not facts.predefined:
        why = (
            "the average of integers is not an integer: convert to a floating type, or use MPI.SUM and divide"
            if facts.kind == "integer"
            else f"it takes predefined {' and '.join(SCALABLE)} types"
        )
        return f"mpicoll.AVG does not take {facts.name} ({facts.kind}); {why}"
    if facts.dtype is None:
        return f"mpicoll.AVG does not take {facts.name}, which NumPy cannot divide; use MPI.SUM"
    total = _predefined("SUM", facts)
    if isinstance(total, str):
        return total
    return total._replace(name="AVG", averages=True, dtype=facts.dtype)


def _predefined(name: str, facts: TypeFacts) -> Operator | str:
    """Ours where the standard allows the pair and there is a kernel, else MPI's own, or why there is neither."""
    if _standard(name, facts) and facts.dtype is not None:
        with suppress(LookupError):
            return Operator(name, True, address(name, facts.dtype), dtype=facts.dtype)
    if _taken(getattr(MPI, name), facts.datatype):
        return Operator(name, True, 0, missing=f"no kernel for {name} on {facts.name}")
    able = [n for n in _NAMES if _standard(n, facts) or _taken(getattr(MPI, n), facts.datatype)]
    takes = (
        f"operators for it are {', '.join(able)}"
        if able
        else "no predefined operator takes it, make one with MPI.Op.Create"
    )
    return f"MPI.{name} does not take {facts.name} ({facts.kind}); {takes}"


def _standard(name: str, facts: TypeFacts) -> bool:
    """Return whether the MPI standard lets an operator take a datatype."""
    return rules.allowed(name, facts.kind) and not (name in _LOGICAL and facts.group in _NOT_LOGICAL)


def _taken(op: MPI.Op, datatype: MPI.Datatype) -> bool:
    """Return whether this MPI's own reductions take a pair, which may go beyond the standard.

    A local reduction of no elements tells: MPI looks at the pair before it looks at the count, with the eyes of its
    collectives. tests/mpi/test_operators.py holds that they agree.
    """
    with _errors_return():
        try:
            op.Reduce_local([b"", 0, datatype], [bytearray(), 0, datatype])
        except MPI.Exception:
            return False
    return True


@contextmanager
def _errors_return() -> Iterator[None]:
    """Have MPI raise for what it refuses, whatever the program has set.

    MPIs differ in whose handler serves a local reduction.
    """
    with _asking:
        before = [(comm, comm.Get_errhandler()) for comm in (MPI.COMM_WORLD, MPI.COMM_SELF)]
        try:
            for comm, _ in before:
                comm.Set_errhandler(MPI.ERRORS_RETURN)
            yield
        finally:
            for comm, handler in before:
                comm.Set_errhandler(handler)
                handler.Free()


def _user(op: MPI.Op, facts: TypeFacts) -> Operator:
    if op in (MPI.OP_NULL, MPI.REPLACE, MPI.NO_OP):
        raise OperatorError("MPI.OP_NULL, MPI.REPLACE and MPI.NO_OP cannot reduce; pass a reduction operator")
    if facts.size and not facts.contiguous:
        return Operator(USER, op.Is_commutative(), 0, missing=f"a user operator on {facts.name}, which has holes")
    errors = Errors()
    kernel = _Signature(_kernel_of(op, facts, errors))
    return Operator(USER, op.Is_commutative(), ctypes.cast(kernel, ctypes.c_void_p).value or 0, kernel, errors)


def _function_of(op: MPI.Op) -> Callable[[Any, Any, MPI.Datatype], Any] | None:
    """Return the Python function that MPI.Op.Create was given; None for an operator that was made in C.

    mpi4py tells it only by the way it pickles operators.
    """
    try:
        pickled: Any = op.__reduce__()
    except ValueError:  # mpi4py knows of no function
        return None
    _create, (function, _commutes) = pickled
    return cast("Callable[[Any, Any, MPI.Datatype], Any]", function)


def _apply(op: MPI.Op) -> Callable[[MPI.buffer, MPI.buffer, int, MPI.Datatype], None]:
    """Return a function of (a, b, n, datatype) that computes b = a op b on n elements, in the memory of b.

    It calls the operator's own Python function without MPI. MPI.Op.Reduce_local would call it while it holds Intel
    MPI's lock. Another thread could take Python's lock meanwhile, and wait for MPI's: neither would ever go on.
    """
    function = _function_of(op)
    if function is None:
        return lambda a, b, n, datatype: op.Reduce_local([a, n, datatype], [b, n, datatype])

    def apply(a: MPI.buffer, b: MPI.buffer, n: int, datatype: MPI.Datatype) -> None:
        try:
            function(a, b, datatype)
        except BaseException:  # as in MPI's own reductions, which no exception can pass through
            last_words(traceback.format_exc())
            MPI.COMM_WORLD.Abort(1)

    return apply


def _kernel_of(op: MPI.Op, facts: TypeFacts, errors: Errors) -> Any:
    """Return a function that computes dst = a op b for a user's operator, at addresses."""
    datatype, apply, extent, at = facts.datatype, _apply(op), facts.extent, MPI.buffer.fromaddress

    def kernel(dst: int, a: int, b: int, n: int) -> None:
        nbytes = n * extent
        try:
            if dst == b:
                apply(at(a, nbytes), at(b, nbytes), n, datatype)
            elif dst != a:  # the function leaves its result in its second operand
                into = at(dst, nbytes)
                into[:] = at(b, nbytes)
                apply(at(a, nbytes), into, n, datatype)
            else:
                result = MPI.buffer.allocate(nbytes)
                result[:] = at(b, nbytes)
                apply(at(a, nbytes), result, n, datatype)
                at(dst, nbytes)[:] = result
        except BaseException as error:  # raised again when the call ends
            errors.append(error)

    if not facts.predefined:
        keep_alive(datatype, kernel)  # the program may free it before a nonblocking call is done
    return kernel
