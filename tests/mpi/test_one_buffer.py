"""One buffer for both sides of a reduction or scan means MPI.IN_PLACE, as in mpi4py from 4.2 on; before, its own
collectives must be told so."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from mpi4py import MPI
from support.calls import fill_fast_path, takes_fast_path
from support.cases import AGAIN, Checks
from support.collectives import ENGINES, REDUCING, REDUCING_METHODS
from support.in_form import FORMS, in_form

import mpicoll
from mpicoll import errors

parametrize = pytest.mark.parametrize
FEW = 2     # elements of a block


def read_only(x):
    view = x[:]
    view.flags.writeable = False
    return view


WAYS = {        # x is a part of x.base, which begins FEW elements before it
    "in place": lambda x: (MPI.IN_PLACE, x),
    "one object": lambda x: (x, x),
    "one list": lambda x: ([x, x.dtype.char],) * 2,
    "two views": lambda x: (read_only(x), x.reshape(FEW, -1)),
    "no array": lambda x: (memoryview(x), x),
    "displaced": lambda x: (x, [x.base, x.size, FEW, MPI.Datatype.fromcode(x.dtype.char)]),
}


def vector(comm, dtype):
    return np.arange(comm.rank, comm.rank + FEW * comm.size + FEW).astype(dtype)[FEW:]


def reduce(comm, name, x, way):
    """Return the memory after a call at x, with the last rank as the root."""
    send, recv = WAYS[way](x)
    root = comm.size - 1
    if name == "Reduce_scatter_block" and way != "in place":
        send, recv = x, x[:FEW]
    if name == "Reduce" and comm.rank != root and way == "in place":
        send, recv = x, None
    counts, where = [[FEW] * comm.size] * (name == "Reduce_scatter"), [root] * (name == "Reduce")
    getattr(comm, name)(send, recv, *counts, MPI.SUM, *where)
    return x.base.tolist()


@parametrize("check", ["0", "1"], ids=["", "check-mode"])
@parametrize("form", FORMS)
@parametrize("engine", [*ENGINES, "native"])
def test_is_in_place(comm, engine, form, check, monkeypatch):
    """One buffer is in place, also if other ranks pass MPI.IN_PLACE."""
    monkeypatch.setenv("MPICOLL_CHECK", check)
    ours = in_form(mpicoll.Comm, form)(comm.Dup())
    how = dict.fromkeys(REDUCING, engine) if engine == "native" else {"engine": engine}
    with ours.using(**how), Checks() as checks:
        for name, way in product(REDUCING_METHODS, WAYS):
            want = reduce(ours, name, vector(comm, float), "in place")
            for who in (comm.rank, comm.rank % 2):
                got = reduce(ours, name, vector(comm, float), way if who == comm.rank else "in place")
                checks.equal(got, want, name, way)
        x = vector(comm, float)
        ours.Allreduce(x, x)
        checks.equal(x.tolist(), [FEW * comm.size + sum(range(comm.size)) + i * comm.size for i in range(x.size)])
    ours.Free()


@parametrize("name", REDUCING_METHODS)
def test_one_and_two_arrays_alternate_on_the_fast_path(comm, name):
    """The keys of both differ in one word only."""
    root, blocks = comm.size - 1, 1 if "scatter" in name else comm.size
    counts = [[FEW] * comm.size] * (name == "Reduce_scatter")
    has_result = (name, comm.rank) != ("Exscan", 0) and (name != "Reduce" or comm.rank == root)

    def apart(listed):
        x, y = vector(comm, float), np.zeros(FEW + FEW * blocks)
        recv = [y, FEW * blocks, FEW, MPI.DOUBLE] if listed else y[FEW:]
        getattr(ours, name)(x, recv, *counts, MPI.SUM, *[root] * (name == "Reduce"))
        assert x.tolist() == vector(comm, float).tolist()
        return y[FEW:].tolist() if has_result else wanted

    def together(listed):
        way = "displaced" if listed else "one object"
        return reduce(ours, name, vector(comm, float), way)[FEW:][: FEW * blocks]

    wanted = reduce(mpicoll.Comm(comm), name, vector(comm, float), "in place")[FEW:][: FEW * blocks]
    for order in ((apart, together), (together, apart)):
        ours = mpicoll.Comm(comm.Dup())
        for call in [call for call in order for _ in range(AGAIN + 1)] + [*order] * 2:
            for listed in (False, True):
                assert call(listed) == wanted, (call, listed)
        ours.Free()


@parametrize("name", REDUCING_METHODS)
def test_one_array_takes_the_fast_path_if_in_place_does(comm, name):
    ours, short = mpicoll.Comm(comm), []
    for way in ("in place", "one object"):
        call = lambda way=way: reduce(ours, name, vector(comm, float), way)
        fill_fast_path(call)
        short.append(takes_fast_path(ours, call))
    assert short[0] == short[1] and (short[0] or name not in ("Reduce", "Allreduce", "Scan"))


@parametrize("form", FORMS)
def test_other_overlaps_are_refused(comm, form):
    """The call raises before anything is sent."""
    ours, p = in_form(mpicoll.Comm, form)(comm), comm.size
    x, y = np.zeros(FEW * p), np.zeros(3)
    refused = {
        "fewer": (errors.CountMismatch, lambda: ours.Allreduce([x, 2], [x, 1])),
        "another type": (errors.DatatypeError, lambda: ours.Allreduce(x.view(np.int64), x)),
        "farther on": (errors.OverlapError, lambda: ours.Scan(y[:-1], y[1:])),
        "not all": (errors.OverlapError, lambda: ours.Reduce_scatter(x, x[:1], [FEW] * p)),
        "no reduction": (errors.OverlapError, lambda: ours.Alltoall(x, x)),
        "read-only": (errors.BufferAccessError, lambda: ours.Allreduce(read_only(x), read_only(x))),
        "no counts": (errors.ArgumentError, lambda: ours.Reduce_scatter(x, x)),
    }
    for what, (error, call) in refused.items():
        with pytest.raises(error):
            call()
            pytest.fail(what)
    ours.Barrier()
