"""Buffers and datatypes against mpi4py itself: the same forms accepted, the same kinds of error raised.

Nothing here talks to another rank: natives run on COMM_SELF, so any number of ranks does.
"""

import array
import ctypes
import struct

import numpy as np
import pytest
from mpi4py import MPI
from support.arranged import Packed

from mpicoll import errors
from mpicoll.buffers import arguments, datatypes, parse, vector_arguments

SELF = MPI.COMM_SELF
IN_PLACE = MPI.IN_PLACE

# parse functions with the signature of the method of one rank alone
PARSE = {
    "Bcast": lambda buf, root=0: arguments.parse_bcast(buf, root, 0, 1),
    "Reduce": lambda s, r, op=MPI.SUM, root=0: arguments.parse_reduce(s, r, root, 0, 1),
    "Allreduce": lambda s, r, op=MPI.SUM: arguments.parse_allreduce(s, r),
    "Reduce_scatter_block": lambda s, r: arguments.parse_reduce_scatter_block(s, r, 1),
    "Reduce_scatter": lambda s, r, counts=None: arguments.parse_reduce_scatter(s, r, counts, 0, 1),
    "Gather": lambda s, r, root=0: arguments.parse_gather(s, r, root, 0, 1),
    "Scatter": lambda s, r, root=0: arguments.parse_scatter(s, r, root, 0, 1),
    "Allgather": lambda s, r: arguments.parse_allgather(s, r, 1),
    "Alltoall": lambda s, r: arguments.parse_alltoall(s, r, 1),
    "Scan": lambda s, r, op=MPI.SUM: arguments.parse_allreduce(s, r),
    "Gatherv": lambda s, r, root=0: vector_arguments.parse_gatherv(s, r, root, 0, 1),
    "Scatterv": lambda s, r, root=0: vector_arguments.parse_scatterv(s, r, root, 0, 1),
    "Allgatherv": lambda s, r: vector_arguments.parse_allgatherv(s, r, 0, 1),
    "Alltoallv": lambda s, r: vector_arguments.parse_alltoallv(s, r, 0, 1),
    "Alltoallw": lambda s, r: vector_arguments.parse_alltoallw(s, r, 0, 1),
}


class Tensor:
    """An object with DLPack of four items of any type, also such as NumPy has not; exported without a deleter."""

    def __init__(self, code, bits, lanes):
        self.memory = np.zeros(4 * lanes * bits // 8, "u1")
        self.shape = np.array([4], "i8")
        self.struct = struct.pack("PiiiBBHPPQPP", self.memory.ctypes.data, 1, 0, 1, code, bits, lanes,
                                  self.shape.ctypes.data, 0, 0, 0, 0)

    def __dlpack__(self):
        return capsule(self.struct, b"dltensor", None)

    def __dlpack_device__(self):
        return 1, 0


capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi))


class Cuda:
    """An object with the CUDA array interface, of memory that is here or nowhere."""

    def __init__(self, data, address=None):
        self.data = data
        self.__cuda_array_interface__ = dict(data.__array_interface__, version=3)
        if address is not None:
            self.__cuda_array_interface__["data"] = (address, False)


def z(n, dtype="d"):
    return np.zeros(n, dtype)


def frozen(n):
    a = z(n)
    a.flags.writeable = False
    return a


DATES = np.zeros(2, "M8[s]")
RECORDS = np.zeros(2, [("a", "d"), ("b", "i")])
VECTOR = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
LOOSE = MPI.DOUBLE.Create_vector(3, 1, 2)  # not committed

BUFFERS = {
    "array": z(4),
    "no elements": z(0),
    "no dimensions": np.array(1.0),
    "two dimensions": z((2, 3)),
    "Fortran order": np.asfortranarray(z((2, 3))),
    "not contiguous": z(8)[::2],
    "backwards": z(8)[::-1],
    "read-only": frozen(4),
    "foreign order": z(3, ">d"),
    "native order, spelt out": z(3, "=d"),
    "subclass": z(3).view(np.matrix),
    "scalar": np.float64(3),
    "half": z(3, "e"),
    "long double": z(3, "g"),
    "complex": z(3, "F"),
    "bool": z(3, "?"),
    "char": np.array([b"a"]),
    "strings": z(3, "S5"),
    "unicode": z(3, "U4"),
    "dates": DATES,
    "objects": np.array([None, 1]),
    "records": RECORDS,
    "bytes": b"abc",
    "bytearray": bytearray(5),
    "array.array": array.array("d", [1, 2]),
    "ctypes": (ctypes.c_double * 3)(),
    "memoryview": memoryview(z(4)),
    "memoryview not contiguous": memoryview(z(4))[::2],
    "MPI.buffer": MPI.buffer.allocate(4),
    "DLPack": Packed(z(4)),
    "DLPack not contiguous": Packed(z(4)[::2]),
    "DLPack read only": Packed(np.frombuffer(b"12345678")),
    "DLPack integers": Packed(z(4, "i")),
    **{f"DLPack of {bits}-bit items, code {code}, {lanes} lanes": Tensor(code, bits, lanes)
       for code, bits, lanes in ((2, 128, 1), (5, 64, 1), (2, 32, 2), (4, 16, 1), (6, 8, 1), (0, 24, 1))},
    "CUDA interface": Cuda(z(4)),
    "None": None,
    "BOTTOM": MPI.BOTTOM,
    "int": 5,
    "str": "abc",
    "list of one": [z(3)],
    "list of five": [z(3), 1, 2, 3, 4],
    "type": [z(3), MPI.DOUBLE],
    "typecode": (z(3), "d"),
    "another type": [z(3), MPI.INT],
    "unknown typecode": [z(3), "x"],
    "type is a number": [z(3), 1, 5],
    "type is a list": [z(3), 1, []],
    "type is None": [z(3), 1, None],
    "dates with type": [DATES, MPI.INT64_T],
    "records as bytes": [RECORDS, MPI.BYTE],
    "bytes as wider type": [bytearray(5), MPI.INT],
    "count": [z(3), 2],
    "numpy count": [z(3), np.int32(2)],
    "negative count": [z(3), -1],
    "float count": [z(3), 1.0],
    "count, displacement": [z(3), (1, 2)],
    "list of both": [z(3), [1, 2]],
    "displacement alone": [z(3), (None, 1)],
    "displacement at the end": [z(3), (0, 3)],
    "displacement beyond": [z(3), (1, 4)],
    "negative displacement": [z(3), (1, -1)],
    "three numbers": [z(3), (1, 2, 3)],
    "four items": [z(3), 1, 2, "d"],
    "four items, no count": [z(3), None, 1, "d"],
    "nested": [z(3), (1, 2), MPI.DOUBLE],
    "None with type": [None, MPI.INT],
    "None with zero": [None, 0, MPI.INT],
    "None with count": [None, 1, MPI.INT],
    "None twice": [None, None],
    "BOTTOM with zero": [MPI.BOTTOM, 0, MPI.INT],
    "null type": [z(3), MPI.DATATYPE_NULL],
    "null type, count": [z(3), 1, MPI.DATATYPE_NULL],
    "vector": [z(5), VECTOR],
    "vector, count": [z(6), 1, VECTOR],
    "vector, bad length": [z(6), VECTOR],
    "vector, not committed": [z(5), 1, LOOSE],
    "pair": [z(4), MPI.DOUBLE_INT],
}

CALLS = {
    "root too large": ("Bcast", z(4), 1),
    "root negative": ("Bcast", z(4), -7),
    "root PROC_NULL": ("Bcast", z(4), MPI.PROC_NULL),
    "root ROOT": ("Bcast", z(4), MPI.ROOT),
    "root float": ("Bcast", z(4), 0.0),
    "root None": ("Bcast", z(4), None),
    "root numpy": ("Bcast", z(4), np.int64(0)),
    "root of reduce": ("Reduce", z(4), z(4), MPI.SUM, 1),
    "root of gather": ("Gather", z(4), z(4), 1),
    "root of scatter": ("Scatter", z(4), z(4), 1),
    "allreduce": ("Allreduce", z(4), z(4)),
    "allreduce read-only": ("Allreduce", z(4), frozen(4)),
    "allreduce scalar": ("Allreduce", np.array(1.0), np.float64(3)),
    "allreduce from read-only": ("Allreduce", frozen(4), z(4)),
    "allreduce into bytes": ("Allreduce", b"abcd", b"abcd"),
    "allreduce strided": ("Allreduce", z(8)[::2], z(4)),
    "allreduce into strided": ("Allreduce", z(4), z(8)[::2]),
    "allreduce counts": ("Allreduce", z(4), z(5)),
    "allreduce types": ("Allreduce", z(4), z(4, "i")),
    "allreduce long and long long": ("Allreduce", z(4, "l"), z(4, "q")),
    "allreduce in place": ("Allreduce", IN_PLACE, z(4)),
    "allreduce None is in place": ("Allreduce", None, z(4)),
    "allreduce into in place": ("Allreduce", z(4), IN_PLACE),
    "allreduce into None": ("Allreduce", z(4), None),
    "allreduce nothing": ("Allreduce", z(0), z(0)),
    "reduce in place": ("Reduce", IN_PLACE, z(4)),
    "reduce_scatter_block": ("Reduce_scatter_block", z(4), z(4)),
    "reduce_scatter_block counts": ("Reduce_scatter_block", z(4), z(2)),
    "reduce_scatter_block in place": ("Reduce_scatter_block", IN_PLACE, z(4)),
    "reduce_scatter counts": ("Reduce_scatter", z(2), z(2), [2]),
    "reduce_scatter numpy counts": ("Reduce_scatter", z(2), z(2), np.array([2])),
    "reduce_scatter in place": ("Reduce_scatter", IN_PLACE, z(2), [2]),
    "reduce_scatter in place, no counts": ("Reduce_scatter", IN_PLACE, z(2)),
    "reduce_scatter in place, bad counts": ("Reduce_scatter", IN_PLACE, z(2), [3]),
    "reduce_scatter send": ("Reduce_scatter", z(2), z(2), [1]),
    "reduce_scatter receive": ("Reduce_scatter", z(2), z(3), [2]),
    "reduce_scatter types": ("Reduce_scatter", z(2), z(2, "i"), [2]),
    "reduce_scatter too many counts": ("Reduce_scatter", z(2), z(2), [1, 1]),
    "reduce_scatter number": ("Reduce_scatter", z(2), z(2), 2),
    "gather": ("Gather", z(2), z(2)),
    "gather other type": ("Gather", z(2), z(4, "i")),
    "gather in place": ("Gather", IN_PLACE, z(2)),
    "gather into None": ("Gather", z(2), None),
    "scatter in place": ("Scatter", z(2), IN_PLACE),
    "scatter None is in place": ("Scatter", z(2), None),
    "scatter from None": ("Scatter", None, z(2)),
    "allgather in place": ("Allgather", IN_PLACE, z(2)),
    "allgather vector": ("Allgather", [z(5), VECTOR], z(3)),
    "alltoall": ("Alltoall", z(2), z(2)),
    "alltoall in place": ("Alltoall", None, z(2)),
    "alltoall [buffer, count]": ("Alltoall", [z(4), 2], [z(2), 2]),
}

VECTORS = {     # where there are counts, they are of two numbers
    "array": z(2),
    "two dimensions": z((2, 1)),
    "bytearray": bytearray(16),
    "MPI.buffer": MPI.buffer.allocate(16),
    "DLPack": Packed(z(2)),
    "None": None,
    "int": 5,
    "list of one": [z(2)],
    "list of five": [z(2), 1, 2, 3, 4],
    "type": [z(2), MPI.DOUBLE],
    "typecode": (z(2), "d"),
    "unknown typecode": [z(2), "x"],
    "type is a number": [z(2), [2], 5],
    "counts": [z(2), [2]],
    "counts as a tuple in a tuple": (z(4), (2, 1)),
    "counts in a tuple of one": [z(2), (2,)],
    "counts in a tuple of three": [z(2), (2, 0, 0)],
    "one count": [z(2), 2],
    "NumPy count": [z(2), np.int16(2)],
    "count of no dimension": [z(2), np.array(2)],
    "counts of NumPy": [z(2), np.array([2], "i2")],
    "counts of two dimensions": [z(2), np.array([[2]])],
    "counts of bytes": [z(2), b"\x02"],
    "counts of a range": [z(2), range(2, 3)],
    "counts of a set": [z(2), {2}],
    "counts of a dict": [z(2), {0: 2}],
    "counts of a generator": [z(2), (n for n in [2])],
    "counts of floats": [z(2), [2.0]],
    "count is a float": [z(2), 2.0],
    "no counts": [z(2), []],
    "two counts": [z(2), [1, 1]],
    "negative count": [z(2), [-1]],
    "both": [z(4), ([2], [1])],
    "both, one number": [z(4), ([2], 1)],
    "both as a list": [z(4), [[2], [1]]],
    "both and type": [z(4), ([2], [1]), MPI.DOUBLE],
    "no counts, displacements": [z(2), (None, [0])],
    "four": [z(4), [2], [2], MPI.DOUBLE],
    "four, no displacements": [z(4), [2], None, "d"],
    "four, nothing": [z(2), None, None, None],
    "two displacements": [z(4), [2], [1, 1], "d"],
    "displacements of floats": [z(4), [2], [1.0], "d"],
    "displacement is a float": [z(4), [2], 1.0, "d"],
    "None with type": [None, MPI.INT],
    "None with zero": [None, [0], MPI.INT],
    "None twice": [None, None],
    "BOTTOM with zero": [MPI.BOTTOM, [0], MPI.INT],
    "null type": [z(2), [2], None, MPI.DATATYPE_NULL],
    "vector, bad length": [z(2), VECTOR],
    "not contiguous": z(4)[::2],
    "foreign order": z(2, ">d"),
}
OF_TYPES = {    # z(9): Open MPI's own, on one rank, takes displacements of Alltoallw for elements, not bytes
    "two": [z(2), [MPI.DOUBLE]],
    "tuple": (z(2), (MPI.DOUBLE,)),
    "three": [z(9), ([1], [8]), [MPI.DOUBLE]],
    "three as lists": [z(9), [[1], [8]], [MPI.DOUBLE]],
    "three, counts alone": [z(2), [1], [MPI.DOUBLE]],
    "three, a number": [z(2), 1, [MPI.DOUBLE]],
    "four": [z(9), [1], [8], [MPI.DOUBLE]],
    "four, NumPy": [z(9), np.array([1]), np.array([8]), [MPI.DOUBLE]],
    "four, no counts": [z(2), None, [0], [MPI.DOUBLE]],
    "four, numbers": [z(2), 1, 0, [MPI.DOUBLE]],
    "four, no counts, no displacements": [z(2), None, None, [MPI.DOUBLE]],
    "array": z(5),
    "number": 5,
    "list of one": [z(2)],
    "list of five": [z(2), 1, 2, 3, 4],
    "typecode": [z(2), ["d"]],
    "type alone": [z(2), MPI.DOUBLE],
    "two types": [z(2), [MPI.DOUBLE] * 2],
    "null type of nothing": [z(2), [0], [0], [MPI.DATATYPE_NULL]],
    "None": [None, [MPI.DOUBLE]],
    "None with zero": [None, [0], [0], [MPI.DOUBLE]],
    "BOTTOM, no counts": [MPI.BOTTOM, None, [0], [MPI.DOUBLE]],
    "BOTTOM, no displacements": [MPI.BOTTOM, [0], None, [MPI.DOUBLE]],
    "negative count": [z(2), [-1], [0], [MPI.DOUBLE]],
    "not committed": [z(5), [1], [0], [LOOSE]],
}


def failure(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return error
    return None


def agree(name, *arguments):
    ours = failure(PARSE[name], *arguments)
    native = failure(getattr(SELF, name), *arguments)
    assert (ours is None) == (native is None), (ours, native)
    if native is not None:
        assert isinstance(ours, errors.MpicollError)
        assert isinstance(ours, type(native)), (ours, native)


@pytest.mark.parametrize("form", BUFFERS)
def test_a_buffer_is_taken_as_mpi4py_takes_it(form):
    agree("Bcast", BUFFERS[form])


@pytest.mark.parametrize("given, name, count", [
    ((2, 128, 1), "LONG_DOUBLE", 4), ((5, 64, 1), "C_FLOAT_COMPLEX", 4), ((2, 32, 2), "C_FLOAT_COMPLEX", 4),
    ((0, 64, 1), "LONG", 4), ((6, 8, 1), "C_BOOL", 4), ((4, 16, 1), "BYTE", 8)])
def test_items_of_dlpack_are_known_by_their_type(given, name, count):
    """Also where NumPy does not take them; bfloat16, which has no format, travels as bytes."""
    buffer = parse.buffer(Tensor(*given))
    assert (buffer.datatype, buffer.count) == (getattr(MPI, name), count)


@pytest.mark.parametrize("case", CALLS)
def test_a_call_is_taken_as_mpi4py_takes_it(case):
    agree(*CALLS[case])


@pytest.mark.parametrize("form", VECTORS)
@pytest.mark.parametrize("method", ["Allgatherv", "Gatherv", "Scatterv", "Alltoallv sending", "Alltoallv receiving"])
def test_a_vector_is_taken_as_mpi4py_takes_it(form, method):
    if form == "negative count" and method == "Allgatherv" and MPI.get_vendor()[0] == "Open MPI":
        return      # its own frees memory that is not its, and the process ends at a later time
    vector, (method, *side) = VECTORS[form], method.split()
    n = 0 if form in ("None with type", "None with zero", "BOTTOM with zero") else 2
    other = [np.arange(2.0), [n]] if side else np.arange(2.0)[:n]
    agree(method, *((vector, other) if method == "Scatterv" or side == ["sending"] else (other, vector)))


@pytest.mark.parametrize("form", OF_TYPES)
@pytest.mark.parametrize("receiving", [False, True])
def test_a_vector_of_types_is_taken_as_mpi4py_takes_it(form, receiving):
    if form == "null type of nothing" and MPI.get_vendor()[0] == "Open MPI":
        return      # libraries differ in whether no elements may be of no type; ours takes them
    count = 0 if form in ("null type of nothing", "None with zero") else 1
    other = [z(2), [count], [0], [MPI.DOUBLE]]
    agree("Alltoallw", *((other, OF_TYPES[form]) if receiving else (OF_TYPES[form], other)))


@pytest.mark.parametrize("form", VECTORS)
def test_a_vector_means_what_mpi4py_makes_of_it(form):
    """What is sent to oneself says which bytes mpi4py saw."""
    vector = VECTORS[form]
    try:
        send = vector_arguments.parse_scatterv(vector, MPI.IN_PLACE, 0, 0, 1).send
    except errors.MpicollError:
        return
    data = vector[0] if isinstance(vector, (list, tuple)) else vector
    if isinstance(data, np.ndarray):
        data[:] = np.arange(1.0, data.size + 1).reshape(data.shape)
    got = bytearray(send.size)
    SELF.Scatterv(vector, got)
    assert send.pack().tobytes() == bytes(got)


@pytest.mark.parametrize("form", BUFFERS)
def test_a_buffer_means_what_mpi4py_makes_of_it(form):
    """A message to oneself says how many bytes mpi4py saw."""
    try:
        ours = arguments.parse_bcast(BUFFERS[form], 0, 0, 1).send
    except errors.MpicollError:
        return
    into, status = bytearray(1000), MPI.Status()
    SELF.Sendrecv(BUFFERS[form], 0, recvbuf=into, source=0, status=status)
    assert ours.size == status.Get_count(MPI.BYTE)
    assert ours.pack().tobytes() == bytes(into[: ours.size])


@pytest.mark.parametrize(
    ("error", "code", "call"),
    [
        (errors.RootError, MPI.ERR_ROOT, lambda: arguments.parse_bcast(z(1), 4, 0, 4)),
        (errors.OverlapError, MPI.ERR_BUFFER, lambda: (a := z(6), arguments.parse_allreduce(a[:4], a[2:]))),
        (errors.CountMismatch, MPI.ERR_TRUNCATE, lambda: arguments.parse_gather(z(3), z(4), 1, 1, 2)),
        (errors.CountMismatch, MPI.ERR_TRUNCATE, lambda: arguments.parse_scatter(z(4), z(1), 1, 1, 2)),
        (errors.CountMismatch, MPI.ERR_TRUNCATE, lambda: arguments.parse_alltoall(z(4), z(6), 2)),
        (errors.CountMismatch, MPI.ERR_TRUNCATE, lambda: arguments.parse_allgather(z(2), z(6), 2)),
        (errors.DatatypeError, MPI.ERR_TYPE, lambda: arguments.parse_allreduce(z(4), z(4, "f"))),
        (errors.DatatypeError, MPI.ERR_TYPE, lambda: arguments.parse_bcast([z(5), 1, LOOSE], 0, 0, 1)),
        (errors.InPlaceError, MPI.ERR_BUFFER, lambda: arguments.parse_bcast(IN_PLACE, 0, 0, 1)),
        (errors.InPlaceError, MPI.ERR_BUFFER, lambda: arguments.parse_gather(IN_PLACE, None, 0, 1, 2)),
        (errors.InPlaceError, MPI.ERR_BUFFER, lambda: arguments.parse_scatter(None, IN_PLACE, 0, 1, 2)),
        (errors.InPlaceError, MPI.ERR_BUFFER, lambda: arguments.parse_reduce(IN_PLACE, None, 0, 1, 2)),
        (errors.InPlaceError, MPI.ERR_BUFFER, lambda: arguments.parse_allreduce(z(4), IN_PLACE)),
    ],
)
def test_errors_are_mpi_exceptions_with_their_class(error, code, call):
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, MPI.Exception)
    assert caught.value.Get_error_class() == code
    assert caught.value == code and str(caught.value)
    assert issubclass(error, MPI.Exception)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (errors.BufferTooSmallError, lambda: arguments.parse_bcast([z(3), 4], 0, 0, 1)),
        (errors.BufferTooSmallError, lambda: arguments.parse_bcast([z(3), (2, 2)], 0, 0, 1)),
        (errors.BufferTooSmallError, lambda: arguments.parse_bcast([z(5), 2, VECTOR], 0, 0, 1)),
        (errors.BufferTooSmallError, lambda: arguments.parse_gather(z(2), [z(5), 2], 0, 0, 3)),
        (errors.BufferTooSmallError, lambda: arguments.parse_bcast([MPI.BOTTOM, 1, "d"], 0, 0, 1)),
        (errors.MessageSpecError, lambda: arguments.parse_alltoall(z(5), z(5), 2)),
        (errors.MessageSpecError, lambda: arguments.parse_scatter(z(5), z(2), 0, 0, 2)),
        (errors.MessageSpecError, lambda: arguments.parse_reduce_scatter_block(IN_PLACE, z(5), 2)),
        (errors.BufferAccessError, lambda: arguments.parse_bcast(frozen(4), 0, 1, 2)),
        (errors.BufferAccessError, lambda: arguments.parse_bcast(Cuda(z(4), 8), 0, 0, 1)),
        (errors.CountMismatch, lambda: arguments.parse_reduce_scatter(z(1), z(2), [2, -1], 0, 2)),
    ],
)
def test_what_several_ranks_need(error, call):
    with pytest.raises(error):
        call()


def test_overlap_is_of_bytes_that_hold_data():
    a = z((4, 4))
    column = MPI.DOUBLE.Create_vector(4, 1, 4).Commit()
    first, second = [a, 1, column], [a.ravel()[1:], 1, column]
    arguments.parse_allgather(first, second, 1)  # interleaved, not overlapping
    arguments.parse_allreduce(a[:2], a[2:])  # side by side
    arguments.parse_allreduce(a[1:1], a[:0])  # empty
    with pytest.raises(errors.OverlapError):
        arguments.parse_allreduce(a[:3], a[1:])
    column.Free()


def test_significant_only_at_the_root():
    junk = object()
    assert arguments.parse_reduce(z(2), junk, 1, 0, 2).recv is None
    assert arguments.parse_gather(z(2), junk, 1, 0, 2).recv is None
    assert arguments.parse_scatter(junk, z(2), 1, 0, 2).send is None


def test_blocks():
    parsed = arguments.parse_alltoall(z(6), z((3, 2)), 3)
    for side in (parsed.send, parsed.recv):
        assert (side.blocks, side.count, side.elements, side.nbytes, side.itemsize) == (3, 2, 6, 48, 8)
    parsed = arguments.parse_reduce_scatter_block(None, z(6), 3)
    assert parsed.in_place and parsed.recv.count == 2
    parsed = arguments.parse_scatter([z(9), 3, 0, "d"], z(3), 0, 0, 3)
    assert (parsed.send.blocks, parsed.send.count, parsed.recv.count) == (3, 3, 3)


def test_reduce_scatter_without_counts_is_settled_later():
    parsed = arguments.parse_reduce_scatter(z(5), z(2), None, 0, 2)
    assert parsed.counts is None
    assert arguments.set_counts(parsed, (2, 3), 0).counts == (2, 3)
    with pytest.raises(errors.CountMismatch):
        arguments.set_counts(parsed, (3, 2), 0)


@pytest.mark.parametrize("code", "?bhilqBHILQefdgFDG")
def test_the_short_way_and_the_long_way_agree(code):
    a = np.ones(6, code)
    short, long = parse.buffer(a, True, 2), parse._described(a, True, 2, False)
    for name in ("address", "count", "blocks", "nbytes", "contiguous", "facts", "size", "readonly"):
        assert getattr(short, name) == getattr(long, name), name


def test_a_buffer_keeps_its_memory():
    held = bytearray(16)
    buffer = parse.buffer(held, True)
    with pytest.raises(BufferError):
        held.extend(b"more")
    del buffer
    held.extend(b"more")


def data(n):
    return np.arange(1.0, n + 1)


def derived():
    """(datatype, count, buffer, the bytes it selects)."""
    a = data(24)
    yield MPI.DOUBLE.Create_vector(3, 1, 2), 1, a, a[0:5:2]
    yield MPI.DOUBLE.Create_vector(3, 2, 4), 2, a, a[[0, 1, 4, 5, 8, 9, 10, 11, 14, 15, 18, 19]]
    yield MPI.DOUBLE.Create_contiguous(4), 3, a, a[:12]
    yield MPI.DOUBLE.Create_indexed([1, 2], [3, 0]), 1, a, a[[3, 0, 1]]
    yield MPI.DOUBLE.Create_resized(0, 24), 3, a, a[0:7:3]
    yield MPI.DOUBLE.Create_resized(-8, 16), 3, a, a[0:5:2]
    yield MPI.DOUBLE.Create_subarray([4, 6], [2, 3], [1, 2]), 1, a, a.reshape(4, 6)[1:3, 2:5].ravel()
    yield MPI.DOUBLE.Create_hindexed([1, 1], [16, 0]), 2, a, a[[2, 0, 5, 3]]
    yield MPI.Datatype.Create_struct([1, 1], [0, 16], [MPI.DOUBLE, MPI.INT64_T]), 1, a, a[[0, 2]]


@pytest.mark.parametrize("n", range(len(list(derived()))))
def test_packing_gives_the_plain_bytes(n):
    datatype, count, memory, chosen = list(derived())[n]
    datatype.Commit()
    buffer = arguments.parse_bcast([memory, count, datatype], 0, 0, 1).send
    assert buffer.size == buffer.packed_nbytes == chosen.nbytes
    packed = buffer.pack()
    assert packed.tobytes() == chosen.tobytes()
    blank = np.full_like(memory, -1)
    arguments.parse_bcast([blank, count, datatype], 0, 0, 1).send.unpack(packed)
    expected = np.where(np.isin(memory, chosen), memory, -1)
    assert blank.tobytes() == expected.tobytes()
    datatype.Free()


def test_packing_from_absolute_addresses():
    a = data(3)
    datatype = MPI.DOUBLE.Create_hindexed([1, 1], [MPI.Get_address(a[2:]), MPI.Get_address(a)]).Commit()
    buffer = arguments.parse_bcast([MPI.BOTTOM, 1, datatype], 0, 0, 1).send
    assert buffer.pack().view("d").tolist() == [3, 1]
    buffer.unpack(data(2).view("u1"))
    assert a.tolist() == [2, 2, 1]
    datatype.Free()


def test_padded_pairs():
    pairs = np.zeros(2, datatypes.facts(MPI.DOUBLE_INT).dtype)
    pairs["value"], pairs["index"] = [1.5, 2.5], [3, 4]
    spec = [pairs, 2, MPI.DOUBLE_INT]
    reduced = arguments.parse_allreduce(IN_PLACE, spec).recv
    assert reduced.contiguous and reduced.nbytes == 32 and reduced.size == 24
    moved = arguments.parse_bcast(spec, 0, 0, 1).send  # may meet another type of this signature
    assert not moved.contiguous and moved.packed_nbytes == 24
    assert moved.pack().tobytes() == b"".join(p["value"].tobytes() + p["index"].tobytes() for p in pairs)


def test_pair_that_ends_before_its_padding():
    memory = bytearray(np.arange(7, dtype="i").tobytes())  # 28 bytes: one pair of 16, 12 of the next
    buffer = arguments.parse_allreduce(IN_PLACE, [memory, 2, MPI.DOUBLE_INT]).recv
    packed = buffer.pack()
    assert not buffer.contiguous and packed.size == buffer.packed_nbytes == 32
    assert packed[:28].tobytes() == bytes(memory)
    buffer.unpack(np.full(32, 7, np.uint8))
    assert memory == bytearray([7] * 28)


@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [
        ("INT", "integer", "i"),
        ("AINT", "integer", "p"),
        ("UNSIGNED_CHAR", "integer", "B"),
        ("INTEGER", "integer", "i"),
        ("DOUBLE", "floating", "d"),
        ("C_DOUBLE_COMPLEX", "complex", "D"),
        ("C_BOOL", "logical", "?"),
        ("BYTE", "byte", "B"),
        ("CHAR", "other", None),
    ],
)
def test_facts(name, kind, dtype):
    known = datatypes.facts(getattr(MPI, name))
    assert (known.name, known.kind, known.dtype) == (name, kind, dtype and np.dtype(dtype))
    assert known is datatypes.facts(MPI.Datatype(getattr(MPI, name)))
    assert known.predefined and known.dense and known.contiguous
    assert datatypes.signature(known.datatype) == (name, 1)


def nested():
    """(datatype, signature, dense)."""
    double, pair = MPI.DOUBLE, MPI.DOUBLE_INT
    row = double.Create_contiguous(4)
    yield double.Create_contiguous(4), ("DOUBLE", 4), True
    yield row.Create_vector(2, 1, 1), ("DOUBLE", 8), True
    yield row.Create_vector(2, 1, 2), ("DOUBLE", 8), False
    yield row.Dup(), ("DOUBLE", 4), True
    yield row.Create_resized(0, 40), ("DOUBLE", 4), False
    yield double.Create_indexed([1, 2], [0, 1]), ("DOUBLE", 3), True
    yield double.Create_indexed([2, 1], [1, 0]), ("DOUBLE", 3), False  # no holes, and out of order
    yield double.Create_indexed_block(2, [0, 2]), ("DOUBLE", 4), True
    yield double.Create_hindexed_block(2, [0, 16]), ("DOUBLE", 4), True
    yield double.Create_hvector(3, 1, 8), ("DOUBLE", 3), True
    yield double.Create_subarray([2, 3], [2, 3], [0, 0]), ("DOUBLE", 6), True
    yield double.Create_subarray([2, 3], [1, 3], [0, 0]), ("DOUBLE", 3), False
    yield MPI.Datatype.Create_struct([1, 2], [0, 8], [double, double]), ("DOUBLE", 3), True
    yield MPI.Datatype.Create_struct([1, 2], [0, 8], [double, MPI.INT]), (None, 0), True
    yield pair.Create_contiguous(2), ("DOUBLE_INT", 2), False
    row.Free()


@pytest.mark.parametrize("n", range(len(list(nested()))))
def test_derived_types(n):
    datatype, signature, dense = list(nested())[n]
    assert datatypes.signature(datatype) == signature
    assert datatypes.facts(datatype).dense == dense
    datatype.Free()


def test_a_freed_handle_is_not_remembered():
    for n in range(2, 20):
        datatype = MPI.DOUBLE.Create_contiguous(n).Commit()
        assert datatypes.facts(datatype).size == 8 * n
        datatype.Free()


@pytest.mark.parametrize(("method", "receive"), [
    ("Bcast", lambda t: (np.zeros(3), 1, t)),
    ("Allgatherv", lambda t: (np.zeros(3), [1], [0], t)),
    ("Gatherv", lambda t: (np.zeros(3), [2], [0], t)),
])
def test_data_before_the_memory_is_refused(method, receive):
    """A datatype may begin before the address it is used at."""
    before = MPI.DOUBLE.Create_hindexed([1], [-8]).Commit()
    send = () if method == "Bcast" else (np.zeros(2 if method == "Gatherv" else 1),)
    try:
        with pytest.raises(errors.BufferTooSmallError, match="before the buffer"):
            PARSE[method](*send, receive(before))
        if method == "Allgatherv":      # one element further on it lies in the memory
            PARSE[method](*send, (np.zeros(3), [1], [1], before))
    finally:
        before.Free()
