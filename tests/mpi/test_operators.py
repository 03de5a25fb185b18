"""Predefined operators on predefined datatypes: what runs natively runs, as long as nothing is forced."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from support import operators, ops
from support.cases import AGAIN, Checks
from support.collectives import REDUCING_METHODS

import mpicoll
from mpicoll.errors import DatatypeError, OperatorError, PreconditionError
from mpicoll.schedules.collectives import BLOCKING, FORMS, NONBLOCKING

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "OPERATORS.md").read_text(encoding="utf-8")
parametrize = pytest.mark.parametrize
pytestmark = pytest.mark.mpi(min_size=2)


KERNELS = {(name, op) for group, names in ops.TYPES.items() for name in names for op in ops.TAKES[group]}


def compare(comm, method, form, cells):
    """Check that mpicoll takes the pairs that MPI itself takes, and gives the same results.

    MPI's side runs its nonblocking form, since Intel MPI's Allreduce of REAL16 ends the process.
    """
    ours, types = mpicoll.Comm(comm), operators.datatypes()
    has_result = comm.rank == 0 if method == "Reduce" else comm.rank > 0 or method != "Exscan"
    with Checks() as checks:
        for name, op in cells:
            pair = types[name], getattr(MPI, op)
            want = operators.native(method, NONBLOCKING, comm, *pair)
            ran, got = operators.ours(method, form, ours, *pair)
            checks.equal(ran == operators.REFUSED, want is None, name, op, ran)
            if want is not None and got is not None and has_result:
                checks.that(operators.same(types[name], got, want), name, op, f"{ran} gave {got}, builtin {want}")


@parametrize("op", operators.ALL)
def test_pairs_that_mpi_takes_run(comm, op):
    compare(comm, "Allreduce", BLOCKING, [(name, op) for name in operators.datatypes()])


@parametrize("form", FORMS)
@parametrize("method", REDUCING_METHODS)
def test_in_every_form_of_every_reduction(comm, method, form):
    """Compare the pairs without kernels, a third of them in each form: a pair meets every form in two methods.

    test_reductions.py compares the pairs with kernels.
    """
    cells = [cell for cell in operators.cells() if cell not in KERNELS]
    turn = REDUCING_METHODS.index(method) + FORMS.index(form)
    compare(comm, method, form, cells[turn % len(FORMS) :: len(FORMS)])


def written(mpi):
    """Return the pairs that docs/OPERATORS.md says run natively on an MPI."""
    head, _, *rows = ([cell.strip() for cell in line.split("|")] for line in PAGE.splitlines() if line.startswith("|"))
    native = head.index(f"native on {mpi}")
    every = ((row[1].split(), row[native].split()) for row in rows)
    return [(name, op) for names, ops in every for name in names for op in ops if op in operators.ALL]


def refuses(error, call, comm, *words):
    """Tell whether a call raises this error in these words."""
    try:
        call(comm)
    except error as raised:
        return all(word in str(raised) for word in words)
    return False


@parametrize("method", REDUCING_METHODS)
def test_long_doubles(comm, method):
    """A kernel reduces those of x87; MPI_Reduce_local reduces others, and pairs of a long double and an index."""
    ours = mpicoll.Comm(comm)
    real, complex_, pair = "LONG_DOUBLE", "C_LONG_DOUBLE_COMPLEX", "LONG_DOUBLE_INT"
    for name, op in ((real, "SUM"), (real, "PROD"), (real, "MAX"), (complex_, "PROD"), (pair, "MAXLOC")):
        pair = operators.datatypes()[name], getattr(MPI, op)
        for turn in range(AGAIN + 1):
            with ours.trace() as records:
                got = operators.call(method, BLOCKING, ours, *pair)
            want = operators.native(method, NONBLOCKING, comm, *pair)
            assert records[0].algorithm != "native" and records[0].fast_path == (turn >= AGAIN - 1)
            assert operators.same(pair[0], got, want) or (method, comm.rank) == ("Exscan", 0)


def test_native_serves_what_no_kernel_does(comm):
    """Explained and traced as such, refused where an algorithm was forced; and nothing else is native."""
    ours, types, ring = mpicoll.Comm(comm), operators.datatypes(), mpicoll.Comm(comm.Dup())
    beyond = []
    with Checks() as checks, ring.using(allreduce="ring"):
        for name, op in operators.cells():
            pair = types[name], getattr(MPI, op)
            explain = lambda of, pair=pair: of.explain("allreduce", 24, pair[1], pair[0])
            reduce = lambda of, pair=pair: operators.call("Allreduce", BLOCKING, of, *pair)
            ran, _ = operators.ours("Allreduce", BLOCKING, ours, *pair)
            if ran == operators.REFUSED:
                for of in (ours, ring):
                    for ask in (explain, reduce):
                        checks.that(refuses(OperatorError, ask, of, op), name, op, "refused")
                continue
            checks.equal(explain(ours).algorithm, ran, name, op)
            if ran != "native":
                checks.equal(explain(ring).algorithm, "ring", name, op)
                checks.equal(operators.ours("Allreduce", BLOCKING, ring, *pair)[0], "ring", name, op)
                continue
            beyond.append((name, op))
            why = f"no kernel for {op} on "
            checks.that(explain(ours).why.startswith(why), explain(ours))
            for ask in (explain, reduce):
                checks.that(refuses(PreconditionError, ask, ring, "ring was chosen", why), name, op, "forced")
        checks.equal(KERNELS & set(beyond), set(), "have kernels")
        checks.that(("CHAR", "SUM") in beyond, beyond)
        if operators.version() in PAGE:
            checks.equal(sorted(beyond), sorted(written(MPI.get_vendor()[0])), "docs/OPERATORS.md")
    ring.Free()


def test_the_fallback_is_logged_once(ours, comm, caplog):
    with caplog.at_level(logging.WARNING, "mpicoll"):
        for op in (MPI.SUM, MPI.SUM, MPI.MAX):
            operators.call("Allreduce", BLOCKING, ours, MPI.CHAR, op)
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("mpicoll")]
    wanted = [f"allreduce runs native: no kernel for {op} on CHAR" for op in ("SUM", "MAX")]
    assert messages == (wanted if comm.rank == 0 else [])


def test_explain_takes_typecodes_and_refuses_nothing(ours):
    assert ours.explain("scan", 16, datatype="c").algorithm == "native"
    assert ours.explain("scan", 16, datatype="d").algorithm == ours.explain("scan", 16).algorithm != "native"
    assert ours.explain("bcast", 16, datatype=MPI.LONG_DOUBLE).algorithm != "native"
    with pytest.raises(DatatypeError, match="DATATYPE_NULL"):
        ours.explain("allreduce", datatype=MPI.DATATYPE_NULL)


@parametrize("fatal", ["COMM_WORLD", "COMM_SELF"])
def test_to_ask_mpi_ends_nothing(comm, fatal):
    """A pair that MPI refuses raises under any error handler of the program, and the handler is kept."""
    ours, of = mpicoll.Comm(comm), getattr(MPI, fatal)
    before = of.Get_errhandler()
    of.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    try:
        with ops.matrix_type() as datatype, pytest.raises(OperatorError):    # what is derived is asked about each time
            ours.Allreduce([np.zeros(4, "i8"), 1, datatype], [np.zeros(4, "i8"), 1, datatype])
        assert of.Get_errhandler() == MPI.ERRORS_ARE_FATAL
    finally:
        of.Set_errhandler(before)


@parametrize("form", FORMS)
def test_a_user_operator_gets_the_datatype_of_the_call(comm, form):
    """By its handle, name and attributes, as natively; it may be freed once the call is made."""
    seen, keyval = [], MPI.Datatype.Create_keyval()
    three = MPI.DOUBLE.Create_contiguous(3).Commit()
    three.Set_name("three")
    three.Set_attr(keyval, "attribute")
    handle = MPI._handleof(three)

    def add(a, b, datatype):
        seen.append((MPI._handleof(datatype), datatype.Get_name(), datatype.Get_attr(keyval)))
        np.frombuffer(b)[:] += np.frombuffer(a)

    op, x, y = MPI.Op.Create(add, commute=True), np.arange(6.0), np.zeros(6)
    ours, arguments = mpicoll.Comm(comm), ([x, 2, three], [y, 2, three], op)
    if form == BLOCKING:
        ours.Allreduce(*arguments)
        three.Free()
    else:
        request = ours.Iallreduce(*arguments) if form == NONBLOCKING else ours.Allreduce_init(*arguments)
        three.Free()
        if form != NONBLOCKING:
            request.Start()
        request.Wait()
        if form != NONBLOCKING:
            request.Free()
    assert any(comm.allgather(bool(seen))) and set(seen) <= {(handle, "three", "attribute")}
    assert (y == comm.size * x).all()
    op.Free()
