"""The same assertions over MPI's own communicators and ours: every collective method, in every form, with every
form of a buffer that mpi4py takes."""

from __future__ import annotations

import inspect
from itertools import cycle, product

import numpy as np
import pytest
from mpi4py import MPI
from support import buffer_forms, differing_buffers, vectors
from support.cases import Case, Checks
from support.collectives import ENGINES, EQUAL_METHODS, VECTOR, has_in_place, meaning
from support.in_form import FORMS, in_form

import mpicoll
from mpicoll.dispatch.methods import METHODS

parametrize = pytest.mark.parametrize
WHOSE = ("MPI", *ENGINES)             # MPI.Intracomm, and mpicoll.Comm on each engine
each_form = parametrize("form", FORMS)

# What of MPI's own is wrong: Intel MPI's leave blocks of other ranks out; Open MPI's refuse empty buffers that both
# lie nowhere, and no type where there is no element, and move nothing from a rank that is alone to itself; on some
# numbers of ranks both are wrong about derived types
OF_DERIVED = {(form, words) for form in FORMS for words in buffer_forms.DERIVED}
DEFECTS = {
    "Intel MPI": {("persistent", "Scatter"), ("persistent", "Allgather"), *OF_DERIVED},
    "Open MPI": {("persistent", "Reduce"), *((form, "no type for nothing") for form in FORMS), *OF_DERIVED,
                 *[("blocking", "alltoallw")] * (MPI.COMM_WORLD.size == 1)},
}


@pytest.fixture(params=WHOSE)
def whose(request):
    return request.param


@pytest.fixture
def some(comm, whose, form):
    """Yield a communicator of MPI's own or of ours, whose blocking methods are carried out in a form."""
    if whose == "MPI":
        yield in_form(MPI.Intracomm, form)(comm)
        return
    wrapped = in_form(mpicoll.Comm, form)(comm)
    with wrapped.using(engine=whose), wrapped.trace() as records:
        yield wrapped
    assert all((r.engine, r.form) == (whose if r.algorithm != "native" else r.engine, form) for r in records)
    assert records


# -- signatures


def collective_methods():
    """Return the names of all methods of MPI.Intracomm that are collectives on buffers, by mpi4py's docstrings."""
    stems = ("barrier", "bcast", "gather", "scatter", "alltoall", "reduce", "scan")
    return [name for name in dir(MPI.Intracomm)
            if name[0].isupper() and any(stem in name.lower() for stem in stems)]


def test_every_collective_is_ours():
    """A collective that a later mpi4py adds fails here."""
    missing = [name for name in collective_methods() if getattr(mpicoll.Comm, name) is getattr(MPI.Intracomm, name)]
    assert not missing
    assert sorted(method.spelled(form) for method in METHODS.values() for form in FORMS) == sorted(collective_methods())


def test_signatures():
    """Overridden methods have the same parameters in the same order, with the same defaults."""
    public = [name for name in dir(MPI.Intracomm) if not name.startswith("_")]
    overridden = [name for name in public if getattr(mpicoll.Comm, name) != getattr(MPI.Intracomm, name)]
    assert set(collective_methods()) < set(overridden)
    with Checks() as checks:
        for name in overridden:
            ours, native = (inspect.signature(getattr(c, name)).parameters for c in (mpicoll.Comm, MPI.Intracomm))
            checks.equal(list(ours), list(native), name)
            for mine, theirs in zip(ours.values(), native.values()):
                checks.that(mine.kind == theirs.kind and mine.default == theirs.default, name, mine)


# -- every method, form of a call, and form of a buffer


def sound(whose, form, what):
    """Return whether this MPI gets a method right, or a form of a buffer."""
    return whose != "MPI" or (form, what) not in DEFECTS.get(MPI.get_vendor()[0], ())


def check(checks, comm, call, *context):
    """Make a call and check its memory."""
    call.run(comm)
    checks.call(call, *context)
    call.free()


@each_form
def test_every_form_of_a_buffer(some, whose, form):
    """Calls have no elements or some, and may be in place, except persistent ones on memory that is not restored.

    The engines take turns, since they get addresses: buffers are read before.
    """
    with Checks() as checks:
        names = [name for name in ["Barrier", *EQUAL_METHODS] if sound(whose, form, name)]
        buffers = [(name, *entry) for name in names for entry in buffer_forms.forms_for(name)]
        for (name, words, buffer), engine in zip(buffers, cycle((*ENGINES, *ENGINES[::-1]))):
            for n in (3, 0) if whose in ("MPI", engine) else ():
                restorable = buffer.may_be_empty or form != "persistent"
                may = has_in_place(name) and buffer.receives and restorable
                serves = sound(whose, form, words) and (n or buffer.may_be_empty)
                for in_place in (False, True)[: 1 + may] if serves else ():
                    case = Case(name, n, some.size - 1 if n else 0, in_place, form=buffer)
                    check(checks, some, case.prepare(some), words, case)


@each_form
def test_every_form_of_a_buffer_with_counts(some, whose, form):
    with Checks() as checks:
        for name in VECTOR:
            buffers = vectors.forms_for(name)
            for words, counts, in_place in product(buffers, ("nothing", "uneven"), (False, True)):
                for placement in ("packed",) if words in vectors.PACKED_ONLY else vectors.PLACEMENTS:
                    case = vectors.VectorCase(name, counts, placement, some.size - 1, in_place)
                    if sound(whose, form, words) and sound(whose, form, name):
                        check(checks, some, case.prepare(some, buffers[words]), words, case)


@each_form
def test_every_dtype(some, whose, form):
    """mpi4py finds the datatypes of these dtypes itself."""
    with Checks() as checks:
        for dtype, name in product("?bhilqBHILQefdgFDG", ("Bcast", "Allgather", "Alltoall", "Allreduce", "Scan")):
            if sound(whose, form, name) and not (meaning(name).reduces and dtype in "eG"):
                check(checks, some, Case(name, 5, form=buffer_forms.array_of(dtype)).prepare(some), dtype)


@each_form
def test_keywords(some, whose, form):
    """Arguments may have mpi4py's names, in any order."""
    with Checks() as checks:
        for name in ("Barrier", *EQUAL_METHODS):
            if sound(whose, form, name):
                call = Case(name, root=some.size - 1).prepare(some)
                names = list(inspect.signature(getattr(MPI.Intracomm, name)).parameters)[1:]
                getattr(some, name)(**dict(reversed(list(zip(names, call.arguments)))))
                checks.call(call)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "Barrier"])
def test_a_wrong_element_is_a_difference(ours, name):
    """In the result, a guard zone, a gap between blocks, or the send buffer."""
    call = vectors.prepare(name, ours)
    call.run(ours)
    assert not call.difference
    for memory in (call.received, call.sent):
        for i in range(0 if memory is None else len(memory)):
            memory[i] += 1
            assert call.difference
            memory[i] -= 1
    assert not call.difference


# -- more buffers, compared with what MPI's own methods receive


@each_form
def test_buffers_that_differ_between_ranks(comm, engine, form):
    """Ours receives what MPI's own does, whatever the chunks."""
    ours = in_form(mpicoll.Comm, form)(comm)
    with Checks() as checks:
        for name, call in differing_buffers.CALLS.items():
            expected = differing_buffers.expected(name, comm)
            for how in ({}, {"chunk_bytes": 16, "window": 2} if name != "large vector" else {}):
                with ours.using(engine=engine, **how), ours.trace() as records:
                    checks.equal(np.array(call(ours)), expected, name, how)
                checks.that(records and all((r.engine, r.form) == (engine, form) for r in records), name, records)
