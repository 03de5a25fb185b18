"""Look up MPI operators: the datatypes they accept, whether they commute, and their kernels."""

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


def _raise_outside_mpicoll(*arguments: Any) -> NoReturn:
    why = (
        "mpicoll.AVG averages on an mpicoll.Comm, in Allreduce, Reduce, Reduce_scatter and Reduce_scatter_block; "
        "elsewhere reduce with MPI.SUM and divide"
    )
    last_words(f"mpicoll: {why}")  # mpi4py aborts before it has printed all of the error
    raise OperatorError(why)


class _Average(MPI.Op):
    """Averages: the sum over the ranks, divided by their number.

    Only Allreduce, Reduce, Reduce_scatter and Reduce_scatter_block of a Comm accept it. All share it, so Free raises.
    """

    def Free(self) -> NoReturn:
        """Raise OperatorError: AVG cannot be freed, like MPI's own operators."""
        raise OperatorError("mpicoll.AVG cannot be freed")

    def __repr__(self) -> str:
        return "mpicoll.AVG"


# For MPI it is a user operator that raises. An error cannot pass through C, so mpi4py prints it and aborts.
AVG = _Average(MPI.Op.Create(_raise_outside_mpicoll, commute=True))
_BY_HANDLE = {MPI._handleof(getattr(MPI, name)): name for name in _NAMES}  # predefined: never reused
_BY_HANDLE[MPI._handleof(AVG)] = "AVG"
# The operator, or why MPI rejects the pair; by generation of kernels, since compiled ones may be ready later.
_cache: dict[tuple[str, TypeFacts, int], Operator | str] = {}
_errhandler_lock = Lock()
_divisors: list[np.ndarray] = []
_LOGICAL = ("LAND", "LOR", "LXOR")
_NOT_LOGICAL = ("Fortran integer", "multi-language")  # integers that logical operators reject
_FLOAT = np.dtype(np.float32)
_Signature = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
USER = "user"  # the name of an operator of MPI.Op.Create


class Errors(list[BaseException]):
    """The errors of a user's function. Compiled code reads the word at address `at`: 1 if there are any, else 0."""

    def __init__(self) -> None:
        super().__init__()
        self._word = np.zeros(1, np.int64)
        self.at = address_of(self._word)

    def append(self, error: BaseException) -> None:
        """Add an error, and set the word to 1."""
        super().append(error)
        self._word[0] = 1

    def clear(self) -> None:
        """Remove all errors, and set the word to 0."""
        super().clear()
        self._word[0] = 0


class Operator(NamedTuple):
    """An operator on a datatype.

    - kernel: the address of its kernel; 0 if there is none, and no_kernel_reason says why.
    - keep: an object that keeps the kernel alive.
    - errors: the exceptions of a kernel in Python, which cannot pass through C; None for compiled kernels.
    - averages: whether the sum is divided by the number of ranks.
    - dtype: the elements' dtype, for kernels that reduce or divide them; None if there are none.
    """

    name: str
    commutative: bool
    kernel: int
    keep: Any = None
    errors: Errors | None = None
    no_kernel_reason: str = ""
    averages: bool = False
    dtype: np.dtype[Any] | None = None

    @property
    def calls_python(self) -> bool:
        """Return whether the kernel is in Python: a user's function, or MPI_Reduce_local where none is compiled."""
        return self.errors is not None

    @property
    def is_low(self) -> bool:
        """Return whether the elements have fewer than 32 bits and kernels reduce them in float32."""
        return self.dtype is not None and rules.low(self.dtype) is not None

    @property
    def rounds(self) -> bool:
        """Return whether every reduction rounds: sums, averages and products of elements with fewer than 32 bits."""
        return self.is_low and self.name in ("SUM", "PROD", "AVG")

    def kernel_args(self, p: int, float32_sums: bool = False) -> KernelArgs:
        """Return the kernels that reduce elements, and that divide an average by p.

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
        conversions = widen_address(self.dtype), narrow_address(self.dtype)
        places = BUT_IN_CODES if float32_sums else EVERYWHERE
        return KernelArgs(self.kernel, scale, by, wide, wide_scale, *conversions, narrow_places=places)


def name_of(op: MPI.Op) -> str:
    """Return the name of an operator: SUM, … if predefined, AVG for mpicoll's own, "user" for any other."""
    return _BY_HANDLE.get(MPI._handleof(op), USER)


def operator(op: MPI.Op, facts: TypeFacts) -> Operator:
    """Return the operator for elements of a datatype, with its kernel if there is one.

    Raises OperatorError for a pair that this MPI rejects. Whether there is a kernel depends only on the
    arguments and the libraries, so it is the same on every rank.
    """
    name = name_of(op)
    if name == USER:
        return _user_operator(op, facts)
    key = name, facts, background.state.generation
    result = _cache.get(key) if facts.predefined else None
    if result is None:
        result = _average_operator(facts) if name == "AVG" else _predefined_operator(name, facts)
        if facts.predefined:
            _cache[key] = result
    if isinstance(result, str):
        raise OperatorError(result)
    return result


def native(op: MPI.Op, facts: TypeFacts) -> MPI.Op:
    """Return the operator to pass to MPI's own collective: for an average SUM, whose result mpicoll then divides.

    Few MPIs reduce types with fewer than 32 bits, so for these it is an operator that calls mpicoll's kernel.
    """
    name = name_of(op)
    name = "SUM" if name == "AVG" else name
    if name == USER:
        return op
    return getattr(MPI, name) if facts.dtype is None or rules.low(facts.dtype) is None else _kernel_op(name, facts)


@cache
def _kernel_op(name: str, facts: TypeFacts) -> MPI.Op:
    """Return an MPI operator that calls mpicoll's kernel, and is never freed."""
    assert facts.dtype is not None
    kernel, itemsize = address(name, facts.dtype), facts.size

    def reduce_elements(a: Any, b: Any, datatype: MPI.Datatype) -> None:
        reduce.call(kernel, b.address, a.address, b.address, b.nbytes // itemsize)

    return MPI.Op.Create(reduce_elements, commute=True)


@cache
def divisor(dtype: np.dtype[Any], p: int) -> int:
    """Return the address of one element of value p, for the kernels that divide; it is never freed."""
    _divisors.append(np.array([p], dtype))
    return address_of(_divisors[-1])


def _average_operator(facts: TypeFacts) -> Operator | str:
    """Return AVG on a datatype, or the reason why there is none."""
    if facts.kind not in SCALABLE or not facts.predefined:
        why = (
            "the average of integers is not an integer: convert to a floating type, or use MPI.SUM and divide"
            if facts.kind == "integer"
            else f"it takes predefined {' and '.join(SCALABLE)} types"
        )
        return f"mpicoll.AVG does not take {facts.name} ({facts.kind}); {why}"
    if facts.dtype is None:
        return f"mpicoll.AVG does not take {facts.name}, which NumPy cannot divide; use MPI.SUM"
    try:
        kernel, reason = address("SUM", facts.dtype), ""
    except LookupError:  # MPI sums, and NumPy divides
        kernel, reason = 0, f"no kernel for AVG on {facts.name}"
    return Operator("AVG", True, kernel, no_kernel_reason=reason, averages=True, dtype=facts.dtype)


def _predefined_operator(name: str, facts: TypeFacts) -> Operator | str:
    """Return an operator, or the reason why MPI rejects the pair.

    The kernel is mpicoll's. For a pair of the standard without one it is MPI_Reduce_local. MPIs accept other pairs
    too, but Intel MPI's local reduction leaves some of them as they are, so these have no kernel.
    """
    if _standard_allows(name, facts) and facts.dtype is not None:
        with suppress(LookupError):
            return Operator(name, True, address(name, facts.dtype), dtype=facts.dtype)
    if _mpi_accepts(getattr(MPI, name), facts.datatype):
        if _standard_allows(name, facts):
            return _python_operator(name, getattr(MPI, name), facts)
        return Operator(name, True, 0, no_kernel_reason=f"no kernel for {name} on {facts.name}")
    accepted = [n for n in _NAMES if _standard_allows(n, facts) or _mpi_accepts(getattr(MPI, n), facts.datatype)]
    advice = (
        f"operators for it are {', '.join(accepted)}"
        if accepted
        else "no predefined operator takes it, make one with MPI.Op.Create"
    )
    return f"MPI.{name} does not take {facts.name} ({facts.kind}); {advice}"


def _standard_allows(name: str, facts: TypeFacts) -> bool:
    """Return whether the MPI standard allows an operator on a datatype."""
    return rules.allowed(name, facts.kind) and not (name in _LOGICAL and facts.group in _NOT_LOGICAL)


def _mpi_accepts(op: MPI.Op, datatype: MPI.Datatype) -> bool:
    """Return whether this MPI's own reductions accept a pair; MPIs may accept more than the standard.

    A local reduction of no elements shows it: MPI checks the pair before the count, and its collectives check alike.
    tests/mpi/test_operators.py tests that they agree.
    """
    with _errors_return():
        try:
            op.Reduce_local([b"", 0, datatype], [bytearray(), 0, datatype])
        except MPI.Exception:
            return False
    return True


@contextmanager
def _errors_return() -> Iterator[None]:
    """Make MPI raise errors, whatever error handlers the program has set.

    MPIs call either COMM_WORLD's or COMM_SELF's handler for a local reduction. The lock keeps other threads from
    restoring them meanwhile.
    """
    with _errhandler_lock:
        before = [(comm, comm.Get_errhandler()) for comm in (MPI.COMM_WORLD, MPI.COMM_SELF)]
        try:
            for comm, _ in before:
                comm.Set_errhandler(MPI.ERRORS_RETURN)
            yield
        finally:
            for comm, handler in before:
                comm.Set_errhandler(handler)
                handler.Free()


def _user_operator(op: MPI.Op, facts: TypeFacts) -> Operator:
    if op in (MPI.OP_NULL, MPI.REPLACE, MPI.NO_OP):
        raise OperatorError("MPI.OP_NULL, MPI.REPLACE and MPI.NO_OP cannot reduce; pass a reduction operator")
    return _python_operator(USER, op, facts)


def _python_operator(name: str, op: MPI.Op, facts: TypeFacts) -> Operator:
    """Return an operator whose kernel is in Python; without a kernel if the datatype has holes."""
    if facts.size and not facts.contiguous:
        subject = "a user operator" if name == USER else f"no kernel for {name}"
        return Operator(
            name, op.Is_commutative(), 0, no_kernel_reason=f"{subject} on {facts.name}, which has holes"
        )
    errors = Errors()
    kernel = _Signature(_python_kernel(op, facts, errors))
    return Operator(name, op.Is_commutative(), ctypes.cast(kernel, ctypes.c_void_p).value or 0, kernel, errors)


def _function_of(op: MPI.Op) -> Callable[[Any, Any, MPI.Datatype], Any] | None:
    """Return the Python function that was passed to MPI.Op.Create; None for a predefined one and one created in C.

    mpi4py exposes the function only when it pickles operators.
    """
    try:
        pickled: Any = op.__reduce__()
    except ValueError:  # mpi4py has no function
        return None
    if isinstance(pickled, str):  # the name of a predefined operator
        return None
    _create, (function, _commutes) = pickled
    return cast("Callable[[Any, Any, MPI.Datatype], Any]", function)


def _apply_function(op: MPI.Op) -> Callable[[MPI.buffer, MPI.buffer, int, MPI.Datatype], None]:
    """Return a function of (a, b, n, datatype) that computes b = a op b on n elements, in the memory of b.

    It calls the operator's Python function without MPI. MPI.Op.Reduce_local would call it while it holds Intel MPI's
    lock: a thread that takes Python's lock meanwhile and waits for MPI's would deadlock with it.
    """
    function = _function_of(op)
    if function is None:
        return lambda a, b, n, datatype: op.Reduce_local([a, n, datatype], [b, n, datatype])

    def apply(a: MPI.buffer, b: MPI.buffer, n: int, datatype: MPI.Datatype) -> None:
        try:
            function(a, b, datatype)
        except BaseException:  # abort, as mpi4py does: no exception can pass through MPI's own reductions
            last_words(traceback.format_exc())
            MPI.COMM_WORLD.Abort(1)

    return apply


def _python_kernel(op: MPI.Op, facts: TypeFacts, errors: Errors) -> Any:
    """Return a function of addresses and n that computes dst = a op b by Python or MPI_Reduce_local."""
    datatype, apply, extent, at = facts.datatype, _apply_function(op), facts.extent, MPI.buffer.fromaddress

    def kernel(dst: int, a: int, b: int, n: int) -> None:
        nbytes = n * extent
        try:
            if dst == b:
                apply(at(a, nbytes), at(b, nbytes), n, datatype)
            elif dst != a:  # the function writes its result to its second operand
                result = at(dst, nbytes)
                result[:] = at(b, nbytes)
                apply(at(a, nbytes), result, n, datatype)
            else:
                result = MPI.buffer.allocate(nbytes)
                result[:] = at(b, nbytes)
                apply(at(a, nbytes), result, n, datatype)
                at(dst, nbytes)[:] = result
        except BaseException as error:  # raised again when the call ends
            errors.append(error)

    if not facts.predefined:
        keep_alive(datatype, kernel)  # the program may free it before a nonblocking call completes
    return kernel
