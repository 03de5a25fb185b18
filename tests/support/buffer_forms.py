"""Forms of a buffer argument: each object and each list that mpi4py takes for a block of elements.

A form builds an argument that holds values, in memory with a guard zone around the values where it has room.
"""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from support.collectives import meaning

FILLER = 77                 # what memory holds before a call, outside of the data
PAD = 8                     # elements of a guard zone


@dataclass
class Argument:
    """A buffer argument, its memory, and where its elements are: from an index on, or at indices."""

    value: Any
    memory: np.ndarray
    start: int = 0
    datatypes: Sequence[MPI.Datatype] = ()
    indices: np.ndarray | None = None

    def where(self, n: int) -> slice | np.ndarray:
        """Return where in memory the first n elements are."""
        return slice(self.start, self.start + n) if self.indices is None else self.indices[:n]


@dataclass(frozen=True)
class BufferForm:
    """A form of a buffer argument.

    - build: called with (values, elements of one block).
    - op: the operator on such elements if a test names none.
    - receives, reduces, may_be_empty: whether it suits a receive buffer, a reduction, and a buffer of no elements.
    """

    build: Callable[[np.ndarray, int], Argument]
    dtype: str = "d"
    op: str = "SUM"
    receives: bool = True
    reduces: bool = True
    may_be_empty: bool = True


class DLPack:
    """An object with DLPack and no buffer interface."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()


def filled(values: np.ndarray, before: int, after: int) -> np.ndarray:
    """Return an array of the values between so many elements of FILLER."""
    memory = np.full(before + len(values) + after, FILLER).astype(values.dtype)
    memory[before : before + len(values)] = values
    return memory


def guarded(wrap: Callable[[np.ndarray, int], Any]) -> Callable[[np.ndarray, int], Argument]:
    """Build by a function of a contiguous array, which lies between guard zones, and of the elements of a block."""

    def build(values: np.ndarray, n: int) -> Argument:
        memory = filled(values, PAD, PAD)
        return Argument(wrap(memory[PAD : PAD + len(values)], n), memory, PAD)

    return build


def longer(wrap: Callable[[np.ndarray, int], Any], before: int = 0) -> Callable[[np.ndarray, int], Argument]:
    """Build by a function of an array that is longer than the values: the argument has a count."""

    def build(values: np.ndarray, n: int) -> Argument:
        memory = filled(values, before, PAD)
        return Argument(wrap(memory, n), memory, before)

    return build


def converted(make: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray, int], Argument]:
    """Build by an object that has the values in memory of its own."""

    def build(values: np.ndarray, n: int) -> Argument:
        value = make(values)
        return Argument(value, np.frombuffer(value, values.dtype) if len(value) else values[:0])

    return build


def read_only(values: np.ndarray, n: int) -> Argument:
    """Build a read-only array."""
    memory = values.copy()
    memory.flags.writeable = False
    return Argument(memory, memory)


def absolute(values: np.ndarray, n: int) -> Argument:
    """Build MPI.BOTTOM and a datatype made of addresses, one element of it to a block."""
    memory = values.copy()
    block = MPI.DOUBLE.Create_hindexed([n], [MPI.Get_address(memory)])
    resized = block.Create_resized(0, 8 * n).Commit()
    block.Free()
    return Argument([MPI.BOTTOM, 1, resized], memory, 0, [resized])


def columns(values: np.ndarray, n: int) -> Argument:
    """Build a matrix with a block in every column, and a column more: the next block begins 8 bytes further on."""
    width = len(values) // n + 1
    memory = np.full(n * width, FILLER).astype(values.dtype)
    indices = np.arange(n * width).reshape(n, width)[:, :-1].T.ravel()
    memory[indices] = values
    vector = MPI.DOUBLE.Create_vector(n, 1, width)
    column = vector.Create_resized(0, 8).Commit()
    vector.Free()
    return Argument([memory, 1, column], memory, 0, [column], indices)


def address_of_column(values: np.ndarray, n: int) -> Argument:
    """Build a column of a matrix by its address and the bytes of its data, fewer than it spans.

    Programs such as Heat pass tensors of torch so.
    """
    memory, indices = np.full(3 * len(values), FILLER).astype(values.dtype), np.arange(1, 3 * len(values), 3)
    memory[indices] = values
    spaced = MPI.DOUBLE.Create_resized(0, 24).Commit()
    address = MPI.buffer.fromaddress(memory[1:].ctypes.data, values.nbytes)
    return Argument([address, n, spaced], memory, 0, [spaced], indices)


BUFFER_FORMS: dict[str, BufferForm] = {
    "array": BufferForm(guarded(lambda a, n: a)),
    "two dimensions": BufferForm(guarded(lambda a, n: a.reshape(-1, 1))),
    "memoryview": BufferForm(guarded(lambda a, n: memoryview(a))),
    "DLPack": BufferForm(guarded(lambda a, n: DLPack(a))),
    "array.array": BufferForm(converted(lambda a: array.array("i", a.tolist())), "i"),
    "ctypes": BufferForm(converted(lambda a: (ctypes.c_double * len(a))(*a))),
    "bytearray": BufferForm(converted(lambda a: bytearray(a.tobytes())), "B"),
    "bytearray and type": BufferForm(guarded(lambda a, n: [memoryview(a), MPI.BYTE]), "B", "BXOR"),
    "MPI.buffer": BufferForm(guarded(lambda a, n: MPI.buffer.frombuffer(a)), "B"),
    "bytes": BufferForm(converted(lambda a: a.tobytes()), "B", receives=False),
    "read-only": BufferForm(read_only, receives=False),
    "type": BufferForm(guarded(lambda a, n: [a, MPI.DOUBLE])),
    "typecode": BufferForm(guarded(lambda a, n: (a, "d"))),
    "type and no count": BufferForm(guarded(lambda a, n: [a, None, MPI.DOUBLE])),
    "count": BufferForm(longer(lambda a, n: [a, n])),
    "NumPy count": BufferForm(longer(lambda a, n: (a, np.int32(n)))),
    "count and type": BufferForm(longer(lambda a, n: [a, n, MPI.DOUBLE])),
    "count and displacement": BufferForm(longer(lambda a, n: [a, (n, PAD)], PAD)),
    "count, displacement, type": BufferForm(longer(lambda a, n: (a, (n, PAD), MPI.DOUBLE), PAD)),
    "both in a list": BufferForm(longer(lambda a, n: [a, [n, PAD], MPI.DOUBLE], PAD)),
    "bytes of doubles": BufferForm(longer(lambda a, n: [a.view("u1"), n, MPI.DOUBLE])),
    "four": BufferForm(longer(lambda a, n: [a, n, PAD, MPI.DOUBLE], PAD)),
    "four of a memoryview": BufferForm(longer(lambda a, n: [memoryview(a), n, PAD, "d"], PAD)),
    "absolute addresses": BufferForm(absolute, reduces=False, may_be_empty=False),
    "columns": BufferForm(columns, reduces=False, may_be_empty=False),
    "address of a column": BufferForm(address_of_column, reduces=False, may_be_empty=False),
}
DERIVED = ("columns", "address of a column")        # forms with a derived datatype
ARRAY = BUFFER_FORMS["array"]


def array_of(dtype: str) -> BufferForm:
    """Return the form of an array of a dtype of which mpi4py finds the datatype itself."""
    return BufferForm(ARRAY.build, dtype, "LOR" if dtype == "?" else "SUM")


def array_and(datatype: MPI.Datatype) -> BufferForm:
    """Return the form [array, datatype]."""
    return BufferForm(guarded(lambda a, n: [a, datatype]))


def forms_for(name: str) -> Iterator[tuple[str, BufferForm]]:
    """Yield the forms that suit a method, by name."""
    for words, form in BUFFER_FORMS.items():
        if form.reduces or not meaning(name).reduces:
            yield words, form
