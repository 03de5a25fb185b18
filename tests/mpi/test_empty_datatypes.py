"""Derived datatypes of no data: their extent and their place ask for no memory, in any collective, form and engine.

What MPI says of their bounds is of no use: on Open MPI the true lower bound of some is the largest integer there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from support import types
from support.collectives import REDUCING_METHODS, algorithms
from support.in_form import FORMS, in_form

import mpicoll
from mpicoll.buffers import datatypes, packing, parse, vector
from mpicoll.errors import BufferTooSmallError

parametrize = pytest.mark.parametrize
DOUBLE = "DOUBLE"
OPEN_MPI = MPI.get_vendor()[0] == "Open MPI"
NONE = ("CONTIGUOUS", [DOUBLE], {"count": 0})
WIDE = ("RESIZED", [NONE], {"lb": 0, "extent": 24})

EMPTY: dict[str, Any] = {
    "contiguous": NONE,
    "vector of no blocks": ("VECTOR", [DOUBLE], {"count": 0, "blocklength": 2, "stride": 3}),
    "vector of empty blocks": ("VECTOR", [DOUBLE], {"count": 3, "blocklength": 0, "stride": 2}),
    "hvector": ("HVECTOR", [DOUBLE], {"count": 3, "blocklength": 0, "stride": 100}),
    "indexed": ("INDEXED", [DOUBLE], {"blocklengths": [0, 0], "displacements": [5, 90]}),
    "hindexed": ("HINDEXED", [DOUBLE], {"blocklengths": [0, 0], "displacements": [-50, 900]}),
    "indexed block": ("INDEXED_BLOCK", [DOUBLE], {"blocklength": 0, "displacements": [5, 900]}),
    "struct of nothing": ("STRUCT", [], {"blocklengths": [], "displacements": []}),
    "struct of empty blocks": ("STRUCT", [DOUBLE, "FLOAT"], {"blocklengths": [0, 0], "displacements": [80, 8]}),
    "struct of empty types": ("STRUCT", [NONE, WIDE], {"blocklengths": [2, 2], "displacements": [80, 8]}),
    "subarray": ("SUBARRAY", [DOUBLE], {"sizes": [4, 5], "subsizes": [0, 2], "starts": [1, 1], "order": "C"}),
    "resized": WIDE,
    "resized, beginning before": ("RESIZED", [NONE], {"lb": -8, "extent": 16}),
    "resized backwards": ("RESIZED", [NONE], {"lb": 0, "extent": -16}),
    "vector of resized": ("VECTOR", [WIDE], {"count": 3, "blocklength": 2, "stride": 5}),
    "dup": ("DUP", [WIDE], {}),
}
if OPEN_MPI:
    del EMPTY["subarray"]  # it makes none without elements
NOWHERE = (-1000, 0, 8, 10_000)  # bytes from the beginning of a buffer that is shorter
COLUMN = ("VECTOR", [DOUBLE], {"count": 2, "blocklength": 1, "stride": 2})


@pytest.fixture(params=[False, True], ids=["unchecked", "checked"])
def kinds(request, monkeypatch):
    """Return all kinds; every fifth in check mode."""
    monkeypatch.setenv("MPICOLL_CHECK", str(int(request.param)))
    return list(EMPTY)[:: 5 if request.param else 1]


@pytest.fixture
def op():
    """Yield an operator that takes any datatype."""
    operator = MPI.Op.Create(lambda a, b, datatype: None, commute=True)
    yield operator
    operator.Free()


def calls(comm: MPI.Intracomm, datatype: MPI.Datatype, op: MPI.Op, send: Any, recv: Any) -> dict[str, tuple[Any, ...]]:
    """Return arguments for every collective, from one memory to another, in elements of a datatype."""
    p, last = comm.size, comm.size - 1
    sent, other = [send, 3, datatype], [recv, 3, datatype]
    counts = [1 + r % 3 for r in range(p)]
    places = [1000 * r - 50 * (r % 2) for r in range(p)]
    here, there = [[memory, counts, places, datatype] for memory in (send, recv)]
    near, far = [[memory, counts, [NOWHERE[(r + i) % 4] for r in range(p)], [datatype] * p]
                 for i, memory in enumerate((send, recv))]
    return {
        "Bcast": (other, last),
        "Scatter": (sent, other, last),
        "Gather": (sent, other, last),
        "Allgather": (sent, other),
        "Alltoall": (sent, other),
        "Scatterv": (here, other, last),
        "Gatherv": (sent, there, last),
        "Allgatherv": (sent, there),
        "Alltoallv": (here, there),
        "Alltoallw": (near, far),
        "Allreduce": (sent, other, op),
        "Reduce": (sent, other, op, last),
        "Reduce_scatter_block": (sent, other, op),
        "Reduce_scatter": ([send, 3 * p, datatype], other, [3] * p, op),
        "Scan": (sent, other, op),
        "Exscan": (sent, other, op),
    }


def in_place(name: str, arguments: tuple[Any, ...], rank: int) -> tuple[Any, ...] | None:
    """Return the same call in place; None if MPI has none."""
    if name in ("Bcast", "Exscan"):
        return None
    if name in ("Scatter", "Scatterv", "Gather", "Gatherv", "Reduce") and rank != arguments[-1]:
        return arguments
    if name in ("Scatter", "Scatterv"):
        return (arguments[0], MPI.IN_PLACE, *arguments[2:])
    if name == "Reduce_scatter":
        return (MPI.IN_PLACE, [arguments[1][0], arguments[0][1], arguments[1][2]], *arguments[2:])
    return (MPI.IN_PLACE, *arguments[1:])


def against_nothing(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the same call, receiving no elements of a predefined datatype; None if both sides have to be alike."""
    if name == "Bcast" or name in REDUCING_METHODS:
        return None
    send, recv, *more = arguments
    none = [recv[0], 0, MPI.DOUBLE]
    if isinstance(recv[1], list):
        p = len(recv[1])
        none = [recv[0], [0] * p, [0] * p, [MPI.DOUBLE] * p if name == "Alltoallw" else MPI.DOUBLE]
    return (send, none, *more)


def every_call(
    comm: MPI.Intracomm, op: MPI.Op, run: Callable[[str, tuple[Any, ...]], None], kinds: Iterable[str] = EMPTY
) -> None:
    """Run each on these kinds, in no memory or in a little, which must be as it was afterwards."""
    for i, kind in enumerate(kinds):
        with types.committed(EMPTY[kind]) as datatype:
            n = 2 * (i % 2)
            send, recv = np.arange(float(n)), -np.arange(float(n)) - 1
            for name, arguments in calls(comm, datatype, op, send, recv).items():
                for buffers in (arguments, in_place(name, arguments, comm.rank), against_nothing(name, arguments)):
                    with errors_naming(kind, name, buffers):
                        if buffers is not None:
                            run(name, buffers)
                        assert (send == range(n)).all() and (recv == [-1 - i for i in range(n)]).all()


@contextmanager
def errors_naming(*what: object) -> Iterator[None]:
    """Collect what errors are about."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{error!r} in {what}") from error


@parametrize("form", FORMS)
def test_every_collective_of_nothing(comm, form, engine, kinds, op):
    ours = in_form(mpicoll.Comm, form)(comm)
    with ours.using(engine=engine):
        every_call(ours, op, lambda name, arguments: getattr(ours, name)(*arguments), kinds)


def test_mpi_s_own_take_them_too(comm, op):
    """But mpi4py's callback for operators ends the run where the extent is negative. Where some elements without data
    meet none of a type that has some, Intel MPI's Gatherv waits for ever, and after MPICH's a later collective does.
    """

    def run(name: str, arguments: tuple[Any, ...]) -> None:
        backwards = name in REDUCING_METHODS and arguments[1][-1].Get_extent()[1] < 0
        uneven = isinstance(arguments[1], list) and arguments[1][-1] in (MPI.DOUBLE, [MPI.DOUBLE] * comm.size)
        if not (backwards or uneven):
            getattr(comm, name)(*arguments)

    every_call(comm, op, run)


def test_by_every_algorithm(ours, engine, op):
    def run(name: str, arguments: tuple[Any, ...]) -> None:
        collective = name.lower()
        for algorithm in () if name in REDUCING_METHODS else algorithms(collective):
            with ours.using(engine=engine, **{collective: algorithm}):
                getattr(ours, name)(*arguments)

    every_call(ours, op, run)


@parametrize("form", FORMS)
def test_between_blocks_of_data(comm, form, engine, kinds):
    """Ranks whose numbers add up to an even one exchange nothing, at any place; the others a column each."""
    ours = in_form(mpicoll.Comm, form)(comm)
    p, rank = comm.size, comm.rank
    partners = [r for r in range(p) if (rank + r) % 2]
    places = [24 * partners.index(r) if r in partners else NOWHERE[r % 4] for r in range(p)]
    send = np.arange(3.0 * len(partners)) + 100 * rank
    first = [100 * r + 3 * len([q for q in range(rank) if (q + r) % 2]) for r in partners]
    want = np.array([[x, -1, x + 2] for x in first]).ravel()
    for kind in kinds:
        with types.committed(EMPTY[kind]) as empty, types.committed(COLUMN) as column, errors_naming(kind):
            each_its = [column if r in partners else empty for r in range(p)]
            for caller, engines in ((comm, {}), (ours, {"engine": engine})):
                got = np.full(send.size, -1.0)
                with ours.using(**engines):
                    caller.Alltoallw(*[[memory, [1] * p, places, each_its] for memory in (send, got)])
                assert got.tolist() == want.tolist()


@parametrize("kind", EMPTY)
def test_facts(kind):
    """In a struct with data the packing is ours; alone there is nothing to pack, wherever it is said to be."""
    memory = np.arange(3.0)
    struct = ("STRUCT", [EMPTY[kind], COLUMN], {"blocklengths": [2, 1], "displacements": [500, 0]})
    with types.committed(struct) as mixed:
        known = datatypes.facts(mixed)
        assert known.runs is not None and known.runs.nbytes == 16
        packed = packing.packer(known)
        assert isinstance(packed, packing.ByRuns)
        into = np.zeros(2)
        packed.pack(into.ctypes.data, memory.ctypes.data, 1)
        assert into.tolist() == [0, 2]
    with types.committed(EMPTY[kind]) as empty:
        assert datatypes.facts(empty).span(3, 8) == (0, 0)
        assert parse.parse_buffer([memory, 3, empty]).pack().size == 0
        assert vector.parse_typed_vector([memory, [2], [8000], [empty]], True, 1).pack().size == 0


def test_data_beside_nothing_keeps_its_bounds():
    with types.committed(WIDE) as empty, types.committed(COLUMN) as column:
        for place in (-8, 8):
            with pytest.raises(BufferTooSmallError):
                vector.parse_typed_vector([np.zeros(3), [1, 1], [10_000, place], [empty, column]], True, 2)
