"""Operators: every one on every type it takes, NaN, and operators of users. What is refused is in test_operators.py."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from mpi4py import MPI
from support import cases, ops
from support.buffer_forms import array_and
from support.calls import works
from support.cases import Case, Checks
from support.collectives import METHOD_NAMES, REDUCING, meaning, roots, specs

import mpicoll
from mpicoll.errors import OperatorError, PreconditionError
from mpicoll.schedules.registry import find

COUNT = 13
SPECS = specs(REDUCING)
ORDERED = [(c, spec) for c, spec in SPECS if find(c, spec).keeps_order(MPI.COMM_WORLD.size)]
UNORDERED = [pair for pair in SPECS if pair not in ORDERED]
ORDERED.append(("allreduce", "hierarchical(middle=recursive_doubling, groups=2)"))
parametrize = pytest.mark.parametrize


def check(checks, ours, case, context="", **how):
    """Make a call, check its memory, and return its records."""
    with ours.using(**how), ours.trace() as records:
        checks.call(case.run(ours), case, context, how)
    return records


def ranks_combined(collective, comm):
    """Return the number of ranks whose vectors this rank's result combines, from rank 0 on."""
    return meaning(collective).covers(comm.size, comm.rank)[1]


# -- predefined operators


@parametrize(("group", "name"), ops.EVERY_TYPE, ids=[name for _, name in ops.EVERY_TYPE])
def test_operators_of_a_type(comm, engine, group, name):
    """Every algorithm's result is the right one, and MPI's own collective agrees."""
    if not ops.present(name):
        return
    ours, form = mpicoll.Comm(comm), array_and(getattr(MPI, name))
    with Checks() as checks:
        for op, collective in product(ops.TAKES[group], REDUCING):
            case = Case(collective, COUNT, comm.size - 1, op=op, make=ops.maker(group, name, op), form=form)
            checks.call(case.run(comm), case, name, "MPI's own")
            for spec in ("auto", {"reduce": "chain", "scan": "linear", "exscan": "linear"}.get(collective, "ring")):
                ran = check(checks, ours, case, name, engine=engine, **{collective: spec})
                checks.equal([r.engine for r in ran], [engine], name, op, collective)


@parametrize("code", "bhilBHIL")
def test_integers_wrap(comm, engine, code):
    """Ours do so in every algorithm; some builtins do not."""
    ours, p, n = mpicoll.Comm(comm), comm.size, 2 * comm.size + 1
    top = np.iinfo(code).max
    mine, got = np.full(n, top, code), np.zeros(n, code)
    with Checks() as checks:
        for spec, op in product(("ring", "rabenseifner", "naive"), ("SUM", "PROD")):
            with ours.using(engine=engine, allreduce=spec):
                ours.Allreduce(mine, got, getattr(MPI, op))
            exact = p * int(top) if op == "SUM" else int(top) ** p
            wrapped = np.array([exact % (1 << 64)], np.uint64).astype(code)[0]
            checks.that((got == wrapped).all(), spec, op, f"got {got}, expected {wrapped}")


@parametrize("op", ["OP_NULL", "REPLACE", "NO_OP"])
@parametrize("method", ["Allreduce", "Reduce", "Reduce_scatter_block", "Iallreduce"])
def test_operators_that_cannot_reduce_are_refused(ours, comm, method, op):
    with pytest.raises(OperatorError) as caught:
        getattr(ours, method)(np.zeros(comm.size), np.zeros(1 if "scatter" in method else comm.size),
                              op=getattr(MPI, op))
    assert caught.value.Get_error_class() == MPI.ERR_OP
    works(ours)


# -- NaN


@parametrize(("collective", "spec"), SPECS, ids=map(" ".join, SPECS))
def test_nan_wins_in_max_and_min(comm, engine, collective, spec):
    """One rank has the NaN, each in turn; it must come out wherever that rank's vector counts."""
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks:
        for owner, op in product(range(p), ("MAX", "MIN")):
            case = Case(collective, 3, op=op, make=lambda n, r, owner=owner: with_nan(n, r, owner))
            with ours.using(engine=engine, **{collective: spec}):
                got = case.run(ours).result
            if got is not None and ranks_combined(collective, comm):
                nan = owner < ranks_combined(collective, comm)
                checks.equal(np.isnan(got).tolist(), [False, nan, False], case, op, owner)


def with_nan(n, rank, owner):
    """Return numbers, on one rank with a NaN in the middle of every three."""
    values = cases.data(n, rank)
    if rank == owner:
        values[1::3] = np.nan
    return values


@parametrize("op", ["MAXLOC", "MINLOC"])
def test_nan_wins_in_maxloc_and_minloc(comm, op):
    ours, got = mpicoll.Comm(comm), ops.pairs(5, 0, "d")
    mine = ops.pairs(5, comm.rank, "d")
    mine["value"][2] = np.nan if comm.rank == comm.size - 1 else 0
    mine["index"] = comm.rank
    ours.Allreduce([mine, MPI.DOUBLE_INT], [got, MPI.DOUBLE_INT], getattr(MPI, op))
    assert np.isnan(got["value"][2]) and got["index"][2] == comm.size - 1
    assert not np.isnan(got["value"][[0, 1, 3, 4]]).any()


# -- user operators


@parametrize(("collective", "spec"), ORDERED, ids=map(" ".join, ORDERED))
def test_operand_order_is_kept(comm, engine, collective, spec):
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks:
        for n, root in product((1, p, 5 * p + 3), roots(collective, *range(p))):
            for how in ({}, {"chunk_bytes": 8, "window": 2}):
                case = Case(collective, n, root, op="AFFINE", make=ops.maps)
                ran = check(checks, ours, case, engine=engine, **{collective: spec}, **how)
                checks.equal([(r.algorithm, r.engine) for r in ran], [(spec, engine)], case)


@parametrize(("collective", "spec"), ORDERED, ids=map(" ".join, ORDERED))
def test_operand_order_is_kept_on_a_derived_type(comm, engine, collective, spec):
    ours, p, n = mpicoll.Comm(comm), comm.size, 3
    wide, own = (n * p, slice(comm.rank * n, (comm.rank + 1) * n)) if collective == "reduce_scatter" else (n, slice(n))
    with Checks() as checks, ops.user_op(ops.PRODUCT) as op, ops.matrix_type() as datatype:
        for root, chunk_bytes in product(roots(collective, *range(p)), (8, 1000)):
            factors = [ops.matrices(wide, rank) for rank in range(p)]
            receive, rest = np.zeros(4 * n, np.int64), (op, root) if collective == "reduce" else (op,)
            with ours.using(engine=engine, chunk_bytes=chunk_bytes, **{collective: spec}):
                method = getattr(ours, METHOD_NAMES[collective])
                method([factors[comm.rank], datatype], [receive, datatype], *rest)
            counted = ranks_combined(collective, comm)
            if counted and (collective != "reduce" or comm.rank == root):
                want = ops.combined("PRODUCT", factors[:counted]).reshape(wide, 4)[own].ravel()
                checks.equal(receive, want, collective, spec, root, chunk_bytes)


@parametrize(("collective", "spec"), UNORDERED, ids=map(" ".join, UNORDERED))
def test_algorithms_that_do_not_keep_order_are_refused(ours, collective, spec):
    with ours.using(**{collective: spec}), pytest.raises(PreconditionError, match="order"):
        Case(collective, 4, op="AFFINE", make=ops.maps).run(ours)
    works(ours)


@parametrize("collective", REDUCING)
def test_order_is_kept_when_nothing_is_chosen(ours, collective):
    """Use MPI's own collective if no algorithm keeps operand order."""
    with Checks() as checks:
        for n in (1, 5, 20_000):
            case = Case(collective, n, op="AFFINE", make=ops.maps)
            native = [r.algorithm == "native" for r in check(checks, ours, case)]
            checks.equal(native, [not any(c == collective for c, _ in ORDERED)], case)


@parametrize(("collective", "spec"), SPECS, ids=map(" ".join, SPECS))
def test_commutative_user_operator(comm, engine, collective, spec):
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks:
        for n, in_place in product((0, 1, 2 * p + 1), (False, True)):
            case = Case(collective, n, p - 1, in_place, "ADD", lambda n, r: cases.data(n, r, "i8"))
            ran = check(checks, ours, case, engine=engine, **{collective: spec})
            checks.equal([r.algorithm for r in ran], [spec], case)


def test_a_reused_handle_is_another_operator(comm):
    ours, p, got = mpicoll.Comm(comm), comm.size, np.zeros(4, np.int64)
    maps = [ops.maps(4, rank) for rank in range(p)]
    mine = maps[comm.rank]
    with Checks() as checks:
        for _ in range(5):
            with ops.user_op(ops.ADD, commute=True) as op:
                ours.Allreduce(mine, got, op)
            checks.equal(got, ops.combined("ADD", maps), "sum")
            with ops.user_op(ops.AFFINE) as op:
                ours.Allreduce(mine, got, op)
            checks.equal(got, ops.combined("AFFINE", maps), "composition")
