"""Refuse bad arguments that one rank can detect before the first message, in words that help.

After each refusal the communicator must work as if nothing had been: not one message was sent.
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
from mpi4py import MPI
from support import cases
from support.calls import complete
from support.calls import works as all_works
from support.collectives import EQUAL_METHODS, REDUCING_METHODS, has_in_place, meaning

import mpicoll
from mpicoll import errors
from mpicoll.dispatch.methods import METHODS
from mpicoll.schedules.collectives import BLOCKING, COLLECTIVES, FORMS, base_collective

parametrize = pytest.mark.parametrize
works = partial(all_works, algorithms=("ring", "naive"))


def z(n, dtype="d"):
    return np.zeros(n, dtype)


def frozen(n):
    array = np.zeros(n)
    array.flags.writeable = False
    return array


@pytest.fixture
def ours(comm, engine):
    wrapped = mpicoll.Comm(comm)
    with wrapped.using(engine=engine):
        yield wrapped


def buffers_of(method, p):
    """Return a send and a receive buffer of two elements a block, in memory that they share."""
    what, memory = meaning(method), np.zeros(2 * p + 1)
    sent, received = (2 * len(where(what.blocks(p, 1), p, 1, 1)) for where in (what.starts, what.ends))
    return memory[1 : 1 + sent], memory[:received]


def case(call, error, words="", builtin=ValueError):
    """Return (call, its error, words of the message, a class of mpi4py's or Python's that catches it too)."""
    return call, error, words, builtin


def alone(c):
    return c.size == 1


def another(c):
    """Return a root that is not this rank; this rank if it is alone."""
    return (c.rank + 1) % c.size


COUNTS, SPEC, ACCESS = errors.CountMismatch, errors.MessageSpecError, errors.BufferAccessError
X = np.zeros(99)
EIGHTS = [8 * i for i in range(32)]
VECTORS = {     # a side of each, of which the rest is right
    "gatherv": lambda c, side: c.Gatherv(z(1), side, c.rank),
    "allgatherv": lambda c, side: c.Allgatherv(z(1), side),
    "scatterv": lambda c, side: c.Scatterv(side, z(1), c.rank),
    "alltoallv sending": lambda c, side: c.Alltoallv(side, z(c.size)),
    "alltoallv receiving": lambda c, side: c.Alltoallv(z(c.size), side),
}
WRONG = {
    "few counts": (lambda p: [z(p), [1] * (p - 1)], SPEC, "counts", ValueError),
    "many counts": (lambda p: [z(2 * p), [1] * (p + 1)], SPEC, "counts items", ValueError),
    "counts of floats": (lambda p: [z(p), [1.0] * p], errors.ArgumentError, "1.0", TypeError),
    "a count that is no number": (lambda p: [z(p), 1.5], errors.ArgumentError, "1.5", TypeError),
    "a negative count": (lambda p: [z(p), [1] * (p - 1) + [-1]], COUNTS, "negative", MPI.Exception),
    "few displacements": (lambda p: [z(p), [1] * p, [0] * (p - 1), "d"], SPEC, "displacements", ValueError),
    "three in a tuple": (lambda p: [z(p), (1, 1, 1)], SPEC, "3", ValueError),
    "memory too short": (lambda p: [z(p), [2] * p], errors.BufferTooSmallError, "rank byte", ValueError),
    "displacement beyond": (lambda p: [z(p), (1, [99, *range(1, p)])], errors.BufferTooSmallError, "800", ValueError),
    "negative displacement": (
        lambda p: [z(p), (1, [-1, *range(1, p)])], errors.BufferTooSmallError, "8 before", ValueError),
    "no buffer": (lambda p: 17, errors.NotABufferError, "17", TypeError),
    "nothing": (lambda p: [None, [1] * p, MPI.DOUBLE], SPEC, "None", ValueError),
    "memory at BOTTOM": (lambda p: [MPI.BOTTOM, [1] * p, MPI.DOUBLE], errors.BufferTooSmallError, "BOTTOM", ValueError),
    "five items": (lambda p: [z(p), 1, 1, 1, 1], SPEC, "5", ValueError),
    "typecode": (lambda p: [z(p), "x"], errors.TypecodeError, "'x'", KeyError),
    "null type": (lambda p: [z(p), [1] * p, MPI.DATATYPE_NULL], errors.DatatypeError, "DATATYPE_NULL", ValueError),
    "strided": (lambda p: z(2 * p)[::2] if p > 1 else z((4, 4))[:, :2], ACCESS, "contiguous", BufferError),
}
CALLS = {
    "allreduce counts": case(lambda c: c.Allreduce(z(3), z(4)), COUNTS, "3 4"),
    "allreduce types": case(lambda c: c.Allreduce(z(3), z(3, "f")), errors.DatatypeError, "DOUBLE FLOAT"),
    "allreduce into nothing": case(lambda c: c.Allreduce(z(3), None), errors.NotABufferError, "None", TypeError),
    "bcast in place": case(lambda c: c.Bcast(MPI.IN_PLACE), errors.InPlaceError, "IN_PLACE"),
    "allreduce into in place": case(lambda c: c.Allreduce(z(3), MPI.IN_PLACE), errors.InPlaceError, "IN_PLACE"),
    "gather in place off the root": case(
        lambda c: c.Bcast(MPI.IN_PLACE) if alone(c) else c.Gather(MPI.IN_PLACE, None, another(c)),
        errors.InPlaceError, "IN_PLACE"),
    "scatter in place off the root": case(
        lambda c: c.Bcast(MPI.IN_PLACE) if alone(c) else c.Scatter(None, MPI.IN_PLACE, another(c)),
        errors.InPlaceError, "IN_PLACE"),
    "reduce in place off the root": case(
        lambda c: c.Reduce(z(3), MPI.IN_PLACE) if alone(c) else c.Reduce(MPI.IN_PLACE, z(3), root=another(c)),
        errors.InPlaceError, "IN_PLACE"),
    "reduce_scatter_block counts": case(lambda c: c.Reduce_scatter_block(z(2 * c.size), z(3)), COUNTS, "2 3"),
    "reduce_scatter counts": case(lambda c: c.Reduce_scatter(z(2 * c.size), z(2), [3] * c.size), COUNTS),
    "reduce_scatter left over": case(lambda c: c.Reduce_scatter(z(3 * c.size), z(2), [2] * c.size), COUNTS, "add up"),
    "reduce_scatter few counts": case(lambda c: c.Reduce_scatter(z(2), z(2), [1] * (c.size + 1)), SPEC, "items"),
    "reduce_scatter own count": case(lambda c: c.Reduce_scatter(z(2 * c.size), z(3), [2] * c.size), COUNTS, "3 2"),
    "reduce_scatter negative": case(
        lambda c: c.Reduce_scatter(z(max(0, 2 * c.size - 3)), z(2), [2] * (c.size - 1) + [-1]), COUNTS),
    "allgather counts": case(lambda c: c.Allgather(z(2), z(3 * c.size)), COUNTS, "16 bytes 24 bytes"),
    "alltoall counts": case(lambda c: c.Alltoall(z(2 * c.size), z(c.size)), COUNTS, "16 8"),
    "gather counts at the root": case(lambda c: c.Gather(z(2), z(c.size), c.rank), COUNTS, "16 8"),
    "scatter counts at the root": case(lambda c: c.Scatter(z(2 * c.size), z(1), c.rank), COUNTS, "16 8"),
    "root too large": case(lambda c: c.Bcast(z(3), c.size), errors.RootError, "ranks 0 to", MPI.Exception),
    "root negative": case(lambda c: c.Reduce(z(3), z(3), root=-5), errors.RootError, "-5", MPI.Exception),
    "root PROC_NULL": case(
        lambda c: c.Gather(z(1), z(c.size), MPI.PROC_NULL), errors.RootError, "PROC_NULL", MPI.Exception),
    "root no number": case(lambda c: c.Scatter(z(c.size), z(1), "0"), errors.ArgumentError, "'0' str", TypeError),
    **{f"{name} without an operator": case(
        lambda c, name=name: getattr(c, name)(*map(np.copy, buffers_of(name, c.size)), op=None),
        errors.ArgumentError, "op None MPI.SUM", TypeError) for name in REDUCING_METHODS},
    "an operator's name": case(
        lambda c: c.Allreduce(z(3), z(3), "SUM"), errors.ArgumentError, "'SUM' MPI.SUM", TypeError),
    "operator": case(
        lambda c: c.Allreduce(z(3), z(3), MPI.BAND), errors.OperatorError, "MPI.BAND DOUBLE SUM", MPI.Exception),
    "read-only": case(lambda c: c.Allreduce(z(3), frozen(3)), ACCESS, "read-only", BufferError),
    "read-only in place": case(lambda c: c.Allreduce(MPI.IN_PLACE, frozen(3)), ACCESS, "read-only"),
    "read-only bytes": case(
        lambda c: c.Allreduce(b"a", b"b") if alone(c) else c.Bcast(b"abc", another(c)), ACCESS, "read-only"),
    "strided": case(lambda c: c.Allreduce(z(3), z(6)[::2]), ACCESS, "contiguous"),
    "strided send": case(lambda c: c.Allgather(z(6)[::2], z(3 * c.size)), ACCESS, "ascontiguousarray"),
    "too small": case(lambda c: c.Bcast([z(3), 4]), errors.BufferTooSmallError, "32 24"),
    "too small behind a displacement": case(lambda c: c.Bcast([z(3), (2, 2)]), errors.BufferTooSmallError, "16 8"),
    "too small for all": case(
        lambda c: c.Gather(z(2), [z(2 * c.size - 1), 2], c.rank), errors.BufferTooSmallError),
    "memory at BOTTOM": case(lambda c: c.Bcast([MPI.BOTTOM, 1, "d"]), errors.BufferTooSmallError, "BOTTOM"),
    **{f"{name} cannot be shared": case(
        lambda c, call=call: c.Bcast([z(1), 1, 1, 1, 1]) if alone(c) else call(c, z(c.size + 1)), SPEC)
       for name, call in (
           ("alltoall", lambda c, x: c.Alltoall(x, x.copy())), ("scatter", lambda c, x: c.Scatter(x, z(1), c.rank)),
           ("reduce_scatter_block", lambda c, x: c.Reduce_scatter_block(MPI.IN_PLACE, x)))},
    "no buffer": case(lambda c: c.Bcast(17), errors.NotABufferError, "17 int", TypeError),
    "unknown typecode": case(lambda c: c.Bcast([z(3), "x"]), errors.TypecodeError, "'x'", KeyError),
    "null type": case(lambda c: c.Bcast([z(3), 1, MPI.DATATYPE_NULL]), errors.DatatypeError, "DATATYPE_NULL"),
    **{f"overlap in {name}": case(lambda c, name=name: getattr(c, name)(*buffers_of(name, c.size)),
                                  errors.OverlapError, "bytes MPI.IN_PLACE", MPI.Exception)
       for name in EQUAL_METHODS if has_in_place(name) and not meaning(name).rooted},
    "scan counts": case(lambda c: c.Scan(z(3), z(4)), COUNTS, "3 4"),
    "exscan types": case(lambda c: c.Exscan(z(3), z(3, "f")), errors.DatatypeError, "DOUBLE FLOAT"),
    "scan operator": case(lambda c: c.Scan(z(3), z(3), MPI.BAND), errors.OperatorError, "MPI.BAND", MPI.Exception),
    "exscan overlap": case(lambda c: c.Exscan(X[:2], X[1:3]), errors.OverlapError, "8 bytes", MPI.Exception),
    "gatherv to itself": case(lambda c: c.Gatherv(z(2), [z(3 * c.size), [3] * c.size], c.rank), COUNTS, "16 24"),
    "scatterv to itself": case(lambda c: c.Scatterv([z(3 * c.size), [3] * c.size], z(2), c.rank), COUNTS, "24 16"),
    "allgatherv to itself": case(lambda c: c.Allgatherv(z(2), [z(3 * c.size), [3] * c.size]), COUNTS, "16 24"),
    "alltoallv to itself": case(
        lambda c: c.Alltoallv([z(2 * c.size), [2] * c.size], [z(c.size), [1] * c.size]), COUNTS, "16 8"),
    "alltoallw to itself": case(
        lambda c: c.Alltoallw([z(1), [MPI.DOUBLE] * c.size], [z(c.size), [1] * c.size, EIGHTS[: c.size],
                                                              [MPI.FLOAT] * c.size]), COUNTS, "8 4"),
    "gatherv in place off the root": case(
        lambda c: c.Gatherv(z(3), MPI.IN_PLACE) if alone(c) else c.Gatherv(MPI.IN_PLACE, z(3), another(c)),
        errors.InPlaceError, "IN_PLACE"),
    "scatterv in place off the root": case(
        lambda c: c.Scatterv(MPI.IN_PLACE, z(3)) if alone(c) else c.Scatterv(z(3), MPI.IN_PLACE, another(c)),
        errors.InPlaceError, "IN_PLACE"),
    "alltoallv into in place": case(lambda c: c.Alltoallv(z(3), MPI.IN_PLACE), errors.InPlaceError, "IN_PLACE"),
    "alltoallw into in place": case(
        lambda c: c.Alltoallw([z(3), [MPI.DOUBLE] * c.size], MPI.IN_PLACE), errors.InPlaceError, "IN_PLACE"),
    "gatherv root": case(lambda c: c.Gatherv(z(1), z(c.size), c.size), errors.RootError, "ranks 0 to", MPI.Exception),
    "gatherv overlap": case(
        lambda c: c.Gatherv(X[2 * c.rank : 2 * c.rank + 1], [X, ([1] * c.size, 2)], c.rank), errors.OverlapError,
        "8 bytes MPI.IN_PLACE", MPI.Exception),
    "alltoallv overlap": case(
        lambda c: c.Alltoallv([X, ([2] * c.size, 3)], [X[1:], ([2] * c.size, 3)]), errors.OverlapError, "8 bytes",
        MPI.Exception),
    "alltoallw no list": case(lambda c: c.Alltoallw(z(3), z(3)), errors.NotABufferError, "datatypes", TypeError),
    "alltoallw typecodes": case(
        lambda c: c.Alltoallw([z(3), ["d"] * c.size], [z(3), ["d"] * c.size]), errors.ArgumentError, "'d'", TypeError),
    "alltoallw one type": case(
        lambda c: c.Alltoallw([z(3), MPI.DOUBLE], [z(3), MPI.DOUBLE]), errors.ArgumentError, "rank", TypeError),
    "alltoallw few types": case(
        lambda c: c.Alltoallw([z(3), [MPI.DOUBLE] * (c.size + 1)], [z(3), [MPI.DOUBLE] * (c.size + 1)]), SPEC, "items"),
    "alltoallw null type": case(
        lambda c: c.Alltoallw(*[[z(3), [1] * c.size, EIGHTS[: c.size], [MPI.DATATYPE_NULL] * c.size]] * 2),
        errors.DatatypeError, "DATATYPE_NULL"),
}
CODES = {
    COUNTS: MPI.ERR_TRUNCATE, errors.DatatypeError: MPI.ERR_TYPE, errors.InPlaceError: MPI.ERR_BUFFER,
    errors.RootError: MPI.ERR_ROOT, errors.RootRangeError: MPI.ERR_ROOT, errors.OperatorError: MPI.ERR_OP,
    errors.OverlapError: MPI.ERR_BUFFER,
}


@cache
def calling(form):
    """Return a Comm whose blocking methods only make the call of a form, and neither start nor wait for it."""

    def only_call(name):
        return lambda self, *args, **kwargs: getattr(self, name)(*args, **kwargs)

    if form == BLOCKING:
        return mpicoll.Comm
    return type("Calling", (mpicoll.Comm,), {n: only_call(method.spelled(form)) for n, method in METHODS.items()})


def refused(checks, comm, call, error, words, builtin, *context):
    """Check that a call is refused, by an error of that class with these words that knows its rank."""
    try:
        call(comm)
        checks.that(False, *context, "was taken")
    except error as raised:
        checks.that(isinstance(raised, errors.MpicollError) and isinstance(raised, builtin), *context, repr(raised))
        checks.that(raised.rank == comm.rank and str(raised).startswith(f"rank {comm.rank}: "), *context, raised)
        checks.that(all(word in str(raised) for word in words.split()), *context, raised)
        if error in CODES:
            right = isinstance(raised, MPI.Exception) and raised.Get_error_class() == CODES[error] == raised
            checks.that(right, *context, "class")


@parametrize("form", FORMS)
def test_wrong_calls_are_refused_before_any_message(ours, form):
    """The call itself raises in every form, and leaves the communicator usable."""
    ours = calling(form)(ours)
    with cases.Checks() as checks, ours.trace() as records:
        for what, wrong in CALLS.items():
            refused(checks, ours, *wrong, what)
            checks.equal(records, [], what, "ran")
            works(mpicoll.Comm(ours))
            records.clear()


@parametrize("form", FORMS)
def test_wrong_vectors_are_refused_before_any_message(comm, form):
    ours = calling(form)(comm)
    with cases.Checks() as checks, ours.trace() as records:
        for what, (give, *wrong) in WRONG.items():
            for name, call in VECTORS.items():
                refused(checks, ours, lambda c, call=call, give=give: call(c, give(c.size)), *wrong, name, what)
        checks.equal(records, [], "ran")
    works(mpicoll.Comm(ours))


@pytest.mark.mpi(min_size=2)
@parametrize("method", ["Allgatherv", "Alltoallv"])
def test_blocks_received_in_one_place_are_refused(ours, method):
    """Blocks of every rank at the same displacement, or in memory that the next one shares."""
    p = ours.size
    for stride in (0, 1):
        with pytest.raises(errors.OverlapError, match="a place of its own") as caught:
            getattr(ours, method)(z(2) if method == "Allgatherv" else z(2 * p), [X, (2, stride)])
        assert caught.value.Get_error_class() == MPI.ERR_BUFFER
    with pytest.raises(errors.OverlapError, match="a place of its own"):
        ours.Alltoallw([X, [MPI.DOUBLE] * p], [z(p), [MPI.DOUBLE] * p])
    ours.Alltoallv([X, (2, 0)], [z(3 * p), (2, 3)])         # sending one place twice is fine
    works(ours)


@pytest.mark.mpi(min_size=2)
def test_one_buffer_may_lie_in_the_gaps_of_another(ours):
    p = ours.size
    memory = np.arange(2.0 * p)
    ours.Alltoallv([memory, (1, 2)], [memory[1:], (1, 2)])
    assert memory[1::2].tolist() == [2.0 * ours.rank] * p
    works(ours)


@pytest.mark.mpi(min_size=2)
@parametrize("form", FORMS)
def test_refused_on_one_rank_alone(ours, form):
    """No other rank made the call, so no rank waits."""
    for what in ("allreduce counts", "overlap in Allgather", "read-only", "operator"):
        call, error, *_ = CALLS[what]
        if ours.rank == ours.size - 1:
            with pytest.raises(error):
                call(calling(form)(ours))
        works(ours)


@pytest.mark.mpi(min_size=2)
def test_refused_on_one_rank_and_then_repaired(ours):
    """The others are already in the call; once this one makes it well, all is well."""
    send, got = np.full(4, ours.rank + 1.0), np.zeros(4)
    if ours.rank == 0:
        with pytest.raises(errors.CountMismatch):
            ours.Allreduce(send, z(5))
    ours.Allreduce(send, got)
    assert (got == ours.size * (ours.size + 1) / 2).all()
    works(ours)


# -- roots


class Number:
    """An object that is no number, and has an integer value."""

    def __init__(self, value):
        self.value = value

    def __int__(self):
        return self.value


ROOTED = {      # the buffers of a call
    "Bcast": lambda p: (z(2),), "Scatter": lambda p: (z(2 * p), z(2)), "Scatterv": lambda p: (z(2 * p), z(2)),
    "Gather": lambda p: (z(2), z(2 * p)), "Gatherv": lambda p: (z(2), z(2 * p)), "Reduce": lambda p: (z(2), z(2)),
}
TOO_LARGE = (1 << 31, 1 << 40, 1 << 100, -(1 << 31) - 1, np.int64(1 << 40), np.uint64(1 << 63), 1e12, float("inf"),
             Number(1 << 40))
NO_ROOTS = (*TOO_LARGE, float("nan"), "0", None, 1j, np.zeros(1, int)[:0], [0])


def test_every_rooted_method_is_known():
    assert {m.name for m in METHODS.values() if COLLECTIVES[base_collective(m.collective)].rooted} == set(ROOTED)


@parametrize("form", FORMS)
@parametrize("name", ROOTED)
def test_a_root_that_is_no_int_raises_what_mpi4py_raises(comm, ours, name, form):
    """Also once such calls go the fast path, whose next one is served as if nothing had been."""
    method, p = METHODS[name].spelled(form), comm.size
    with cases.Checks() as checks:
        for root in NO_ROOTS:
            for _ in range(cases.AGAIN):
                complete(getattr(ours, method)(*ROOTED[name](p), root=0))
            try:
                complete(getattr(comm, method)(*ROOTED[name](p), root=root))
                checks.that(False, "mpi4py took", root)
            except Exception as error:      # of Python's own, before MPI is called
                builtin = type(error)
            error = errors.RootRangeError if builtin in (OverflowError, ValueError) else errors.ArgumentError
            checks.equal(builtin is OverflowError, any(root is large for large in TOO_LARGE), root, builtin)
            refused(checks, ours, lambda c, root=root: getattr(c, method)(*ROOTED[name](p), root=root), error,
                    "root a rank", builtin, root)
    works(ours)


@parametrize("form", FORMS)
@parametrize("name", ROOTED)
def test_whatever_has_an_integer_value_is_a_root(comm, ours, name, form):
    method = METHODS[name].spelled(form)
    for root in (0.5, np.array(0), np.int8(0), False, Number(0)):
        for each_of_them in (comm, ours):
            complete(getattr(each_of_them, method)(*ROOTED[name](comm.size), root=root))


# -- using()

SETTINGS = {
    "chunk_bytes 0": ({"chunk_bytes": 0}, errors.ArgumentError, TypeError, "chunk_bytes 0 at least 1"),
    "window 0": ({"window": 0}, errors.ArgumentError, TypeError, "window 0"),
    "engine": ({"engine": "turbo"}, errors.ArgumentError, TypeError, "'turbo' auto mpi4py compiled"),
    "algorithm": ({"allreduce": "rung"}, errors.UnknownAlgorithm, LookupError, "'rung' 'ring'"),
    "algorithm of another collective": ({"bcast": "ring"}, errors.UnknownAlgorithm, ValueError, "'ring' bcast"),
    "collective": ({"alreduce": "ring"}, errors.UnknownAlgorithm, LookupError, "'alreduce' 'allreduce'"),
    "collective native": ({"alreduce": "native"}, errors.UnknownAlgorithm, LookupError, "'alreduce' 'allreduce'"),
    "parameter": ({"allreduce": "reduce_bcast(redoce=chain)"}, errors.ParameterError, ValueError, "redoce reduce"),
    "no parameters": ({"allreduce": "ring(k=2)"}, errors.ParameterError, ValueError, "no parameter k"),
    "parameter too small": ({"allreduce": "parameter_server(servers=0)"}, errors.ParameterError, ValueError, "1 to p"),
    "parameter too large": ({"allreduce": "parameter_server(servers=1000)"}, errors.ParameterError, ValueError,
                            "1 to p"),
    "no groups": ({"allreduce": "hierarchical(groups=0)"}, errors.ParameterError, ValueError, "at least 1"),
    "groups": ({"allreduce": "hierarchical(groups=((1000,),))"}, errors.ParameterError, ValueError, "names 1000"),
    "form": ({"allreduce": "halving_doubling(form=other)"}, errors.ParameterError, ValueError, "fold binary_blocks"),
    "radix": ({"alltoall": "bruck(k=1)"}, errors.ParameterError, ValueError, "k 1 at least 2"),
    "ports": ({"alltoall": "bruck(ports=0)"}, errors.ParameterError, ValueError, "ports 0 all at least 1"),
    "leaders": ({"alltoall": "split_rail(leaders=0)"}, errors.ParameterError, ValueError, "leaders 0 all at least 1"),
    "torus": ({"allreduce": "torus(dims=(1000, 2))"}, errors.PreconditionError, ValueError, "multiply (1000, 2)"),
    "syntax": ({"allreduce": "reduce_bcast(reduce="}, ValueError, ValueError, "name(key=value"),
    "parameter of a parameter": ({"allreduce": "reduce_bcast(reduce=chian)"}, errors.ParameterError, ValueError,
                                 "'chian' 'chain'"),
}


@parametrize("what", SETTINGS)
def test_a_wrong_choice_is_refused(ours, what):
    settings, error, builtin, words = SETTINGS[what]
    with pytest.raises(error) as caught, ours.using(**settings):
        ours.Allreduce(z(3), z(3))
    assert isinstance(caught.value, builtin)
    assert all(word in str(caught.value) for word in words.split()), str(caught.value)
    works(ours)


def test_explain_refuses_what_there_is_not(ours):
    with pytest.raises(errors.UnknownAlgorithm, match="allreduce"):
        ours.explain("alreduce")


def chosen(comm):
    """Return the choice for an allreduce of 1 MiB."""
    choice = comm.explain("allreduce", 1 << 20)
    return choice.algorithm, choice.chunk_bytes, choice.window, choice.engine


def test_using_nests_and_restores(ours):
    outside = chosen(ours)
    with ours.using(allreduce="ring", chunk_bytes=100, window=3):
        assert chosen(ours)[:3] == ("ring", 100, 3)
        with ours.using(chunk_bytes=50):
            assert chosen(ours)[:3] == ("ring", 50, 3)
            with ours.using(allreduce="naive", engine="mpi4py"):
                assert chosen(ours) == ("naive", 50, 3, "mpi4py")
            assert chosen(ours)[0] == "ring"
        with ours.using(allreduce="auto"):
            assert chosen(ours)[1] == 100
        assert chosen(ours)[:3] == ("ring", 100, 3)
    assert chosen(ours) == outside


@parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_using_restores_after_an_exception(ours, error):
    outside = chosen(ours)
    with pytest.raises(error), ours.using(allreduce="naive"), ours.using(chunk_bytes=8):
        raise error
    assert chosen(ours) == outside
    works(ours)


def test_a_wrong_choice_leaves_the_old_one(ours):
    with ours.using(allreduce="naive", chunk_bytes=64):
        inside = chosen(ours)
        with pytest.raises(errors.ArgumentError), ours.using(allreduce="ring", window=0):
            pass
        assert chosen(ours) == inside


def test_auto_engine_within_a_chosen_one(comm):
    ours = mpicoll.Comm(comm)
    free = ours.explain("allreduce").engine
    with ours.using(engine="mpi4py"):
        with ours.using(engine="auto"):
            assert ours.explain("allreduce").engine == free
        assert ours.explain("allreduce").engine == "mpi4py"


def test_explain_is_what_runs(ours):
    for nbytes in (8, 4_000, 1 << 17, 1 << 20):
        choice = ours.explain("allreduce", nbytes)
        with ours.trace() as records:
            ours.Allreduce(z(nbytes // 8), z(nbytes // 8))
        (ran,) = records
        assert (ran.algorithm, ran.chunk_bytes, ran.engine) == (choice.algorithm, choice.chunk_bytes, choice.engine)
        assert str(choice.algorithm) in str(choice) and str(nbytes) in choice.why


# -- the environment


@parametrize(("name", "value"), [("MPICOLL_ENGINE", "turbo"), ("MPICOLL_CHECK", "yes"), ("MPICOLL_TIMEOUT", "soon")])
@parametrize("everywhere", [True, False], ids=["all ranks", "rank 0"])
def test_a_wrong_variable_is_named_on_every_rank(comm, monkeypatch, name, value, everywhere):
    if everywhere or comm.rank == 0:
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.ArgumentError) as caught:
        mpicoll.Comm(comm)
    assert name in str(caught.value) and repr(value) in str(caught.value)
    monkeypatch.delenv(name, raising=False)
    works(mpicoll.Comm(comm))


@pytest.mark.mpi(min_size=2)
def test_only_rank_0_is_asked(comm, monkeypatch):
    if comm.rank:
        monkeypatch.setenv("MPICOLL_TIMEOUT", "soon")
    works(mpicoll.Comm(comm))
