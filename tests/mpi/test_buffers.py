"""Buffers and datatypes against mpi4py itself: the same forms accepted, the same kinds of error raised.

Nothing here talks to another rank: natives run on COMM_SELF, so any number of ranks does.
"""

import array
import ctypes
import struct

import numpy as np
import pytest
from mpi4py import MPI
from support.buffer_forms import DLPack

from mpicoll import errors
from mpicoll.buffers import arguments, datatypes, parse, vector_arguments

SELF = MPI.COMM_SELF
IN_PLACE = MPI.IN_PLACE

# parse functions with the signature of the method of one rank alone
PARSE = {
    "Bcast": lambda buf, root=0: arguments.parse_bcast(buf, root, 0, 1),
    "Reduce": lambda s, r, op=MPI.SUM, root=0: arguments.parse_reduce(s, r, root, 0, 1),
    "Allreduce": lambda s, r, op=MPI.SUM: arguments.parse_allreduce(s, r),
    "Reduce_scatter": lambda s, r, counts=None: arguments.parse_reduce_scatter(s, r, counts, 0, 1),
    "Gather": lambda s, r, root=0: arguments.parse_gather(s, r, root, 0, 1),
    "Scatter": lambda s, r, root=0: arguments.parse_scatter(s, r, root, 0, 1),
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
    "native order, named": z(3, "=d"),
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
    "DLPack": DLPack(z(4)),
    "DLPack not contiguous": DLPack(z(4)[::2]),
    "DLPack read only": DLPack(np.frombuffer(b"12345678")),
    "DLPack integers": DLPack(z(4, "i")),
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
    "displacement of zero": [z(3), (1, 0)],
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
    "vector, read-only": [frozen(5), VECTOR],
    "vector, bad length": [z(6), VECTOR],
    "vector, not committed": [z(5), 1, LOOSE],
    "pair": [z(4), MPI.DOUBLE_INT],
}

CALLS = {       # wrong ones that all ranks know to be wrong are in test_bad_input.py, right ones in test_interface.py
    "root ROOT": ("Bcast", z(4), MPI.ROOT),
    "root of reduce": ("Reduce", z(4), z(4), MPI.SUM, 1),
    "root of gather": ("Gather", z(4), z(4), 1),
    "root of scatter": ("Scatter", z(4), z(4), 1),
    "allreduce scalar": ("Allreduce", np.array(1.0), np.float64(3)),
    "allreduce into bytes": ("Allreduce", b"abcd", b"abcd"),
    "allreduce long and long long": ("Allreduce", z(4, "l"), z(4, "q")),
    "allreduce None is in place": ("Allreduce", None, z(4)),
    "reduce_scatter in place, no counts": ("Reduce_scatter", IN_PLACE, z(2)),
    "reduce_scatter in place, bad counts": ("Reduce_scatter", IN_PLACE, z(2), [3]),
    "reduce_scatter send": ("Reduce_scatter", z(2), z(2), [1]),
    "reduce_scatter types": ("Reduce_scatter", z(2), z(2, "i"), [2]),
    "reduce_scatter number": ("Reduce_scatter", z(2), z(2), 2),
    "gather other type": ("Gather", z(2), z(4, "i")),
    "gather into None": ("Gather", z(2), None),
    "scatter None is in place": ("Scatter", z(2), None),
    "scatter from None": ("Scatter", None, z(2)),
}

VECTORS = {     # where there are counts, they are of two numbers
    "array": z(2),
    "two dimensions": z((2, 1)),
    "bytearray": bytearray(16),
    "MPI.buffer": MPI.buffer.allocate(16),
    "DLPack": DLPack(z(2)),
    "None": None,
    "list of one": [z(2)],
    "type": [z(2), MPI.DOUBLE],
    "typecode": (z(2), "d"),
    "type is a number": [z(2), [2], 5],
    "counts": [z(2), [2]],
    "counts as a tuple in a tuple": (z(4), (2, 1)),
    "counts in a tuple of one": [z(2), (2,)],
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
    "no counts": [z(2), []],
    "two counts": [z(2), [1, 1]],
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


@pytest.mark.parametrize("dlpack_type, name, count", [
    ((2, 128, 1), "LONG_DOUBLE", 4), ((5, 64, 1), "C_FLOAT_COMPLEX", 4), ((2, 32, 2), "C_FLOAT_COMPLEX", 4),
    ((0, 64, 1), "LONG", 4), ((6, 8, 1), "C_BOOL", 4), ((4, 16, 1), "BYTE", 8)])
def test_items_of_dlpack_are_known_by_their_type(dlpack_type, name, count):
    """Also where NumPy does not take them; bfloat16, which has no format, travels as bytes."""
    buffer = parse.parse_buffer(Tensor(*dlpack_type))
    assert (buffer.datatype, buffer.count) == (getattr(MPI, name), count)


@pytest.mark.parametrize("case", CALLS)
def test_a_call_is_taken_as_mpi4py_takes_it(case):
    agree(*CALLS[case])


@pytest.mark.parametrize("form", VECTORS)
@pytest.mark.parametrize("method", ["Allgatherv", "Gatherv", "Scatterv", "Alltoallv sending", "Alltoallv receiving"])
def test_a_vector_is_taken_as_mpi4py_takes_it(form, method):
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
    """Send to oneself to see the bytes that mpi4py reads."""
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


def test_memory_of_a_device_is_refused():
    with pytest.raises(errors.BufferAccessError):
        parse.parse_buffer(Cuda(z(4), 8))


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


@pytest.mark.parametrize("code", "?bhilqBHILQefdgFDG")
def test_the_short_and_the_full_parser_agree(code):
    a = np.ones(6, code)
    short, long = parse.parse_buffer(a, True, 2), parse._parse_any(a, True, 2, False)
    for name in ("address", "count", "blocks", "nbytes", "contiguous", "facts", "size"):
        assert getattr(short, name) == getattr(long, name), name


def test_a_buffer_keeps_its_memory():
    held = bytearray(16)
    buffer = parse.parse_buffer(held, True)
    with pytest.raises(BufferError):
        held.extend(b"more")
    del buffer
    held.extend(b"more")


def test_padded_pairs():
    pairs = np.zeros(2, datatypes.facts(MPI.DOUBLE_INT).dtype)
    pairs["value"], pairs["index"] = [1.5, 2.5], [3, 4]
    spec = [pairs, 2, MPI.DOUBLE_INT]
    reduced = arguments.parse_allreduce(IN_PLACE, spec).recv
    assert reduced.contiguous and reduced.nbytes == 32 and reduced.size == 24
    moved = arguments.parse_bcast(spec, 0, 0, 1).send  # may meet another type of this signature
    assert not moved.contiguous and moved.packed_nbytes == 24
    assert moved.pack().tobytes() == b"".join(p["value"].tobytes() + p["index"].tobytes() for p in pairs)


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
