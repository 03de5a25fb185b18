"""Operators: every one on every type it takes, NaN, and operators of users. What is refused is in test_operators.py."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from mpi4py import MPI
from support import cases, ops
from support.calls import works
from support.cases import Case, Checks

import mpicoll
from mpicoll.errors import OperatorError, PreconditionError
from mpicoll.schedules.registry import find

COUNT = 13
REDUCING = [(collective, spec) for collective, spec in cases.specs() if collective in cases.REDUCING]
ORDERED = [(c, spec) for c, spec in REDUCING if find(c, spec).keeps_order(MPI.COMM_WORLD.size)]
UNORDERED = [pair for pair in REDUCING if pair not in ORDERED]
ORDERED.append(("allreduce", "hierarchical(middle=recursive_doubling, groups=2)"))
each = pytest.mark.parametrize


def same(a, b):
    """Equal; of structures, all but the padding."""
    return all(np.array_equal(a[name], b[name]) for name in a.dtype.names or ()) and (
        bool(a.dtype.names) or np.array_equal(a, b))


def compare(checks, ours, plain, case, **how):
    """Ours against MPI's own; returns what ran."""
    with ours.using(**how), ours.trace() as records:
        got = case.run(ours)
    want = case.run(plain)
    if want.result is not None and has_result(case.collective, plain.rank):
        checks.that(same(got.result, want.result), case, case.op, case.datatype and case.datatype.name, how,
                    f"got {got.result}, builtin {want.result}")
    checks.that(got.guards_intact and got.send_unchanged, case, how, "wrote where it must not")
    return records


def has_result(collective, rank):
    """Rank 0 of an exscan has none."""
    return collective != "exscan" or rank > 0


def combined(collective, comm):
    """How many ranks' vectors are combined, from rank 0 on."""
    return {"scan": comm.rank + 1, "exscan": comm.rank}.get(collective, comm.size)


# -- predefined operators


@each(("group", "name"), ops.EVERY_TYPE, ids=[name for _, name in ops.EVERY_TYPE])
def test_operators_of_a_type_equal_the_builtin(comm, engine, group, name):
    if not ops.present(name):
        return
    ours, datatype = mpicoll.Comm(comm), getattr(MPI, name)
    with Checks() as checks:
        for op, collective in product(ops.TAKES[group], cases.REDUCING):
            case = Case(collective, COUNT, comm.size - 1 if collective == "reduce" else 0, op=op,
                        make=ops.maker(group, name, op), datatype=datatype)
            for spec in ("auto", {"reduce": "chain", "scan": "linear", "exscan": "linear"}.get(collective, "ring")):
                ran = compare(checks, ours, comm, case, engine=engine, **{collective: spec})
                checks.equal([r.engine for r in ran], [engine], name, op, collective)


@each("code", "bhilBHIL")
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


@each("op", ["OP_NULL", "REPLACE", "NO_OP"])
@each("method", ["Allreduce", "Reduce", "Reduce_scatter_block", "Iallreduce"])
def test_what_cannot_reduce_is_refused(ours, comm, method, op):
    with pytest.raises(OperatorError) as caught:
        getattr(ours, method)(np.zeros(comm.size), np.zeros(1 if "scatter" in method else comm.size),
                              op=getattr(MPI, op))
    assert caught.value.Get_error_class() == MPI.ERR_OP
    works(ours)


# -- NaN


@each(("collective", "spec"), REDUCING, ids=map(" ".join, REDUCING))
def test_nan_wins_in_max_and_min(comm, engine, collective, spec):
    """One rank has the NaN, each in turn; it must come out wherever that rank's vector counts."""
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks:
        for owner, op in product(range(p), ("MAX", "MIN")):
            case = Case(collective, 3, op=op, make=lambda n, r, owner=owner: with_nan(n, r, owner))
            with ours.using(engine=engine, **{collective: spec}):
                got = case.run(ours).result
            if got is not None and has_result(collective, comm.rank):
                nan = owner < combined(collective, comm)
                checks.equal(np.isnan(got).tolist(), [False, nan, False], case, op, owner)


def with_nan(n, rank, owner):
    """Numbers, with a NaN in the middle of every three on one rank."""
    made = cases.data(n, rank)
    if rank == owner:
        made[1::3] = np.nan
    return made


@each("op", ["MAXLOC", "MINLOC"])
def test_nan_wins_in_maxloc_and_minloc(comm, op):
    ours, got = mpicoll.Comm(comm), ops.pairs(5, 0, "d")
    mine = ops.pairs(5, comm.rank, "d")
    mine["value"][2] = np.nan if comm.rank == comm.size - 1 else 0
    mine["index"] = comm.rank
    ours.Allreduce([mine, MPI.DOUBLE_INT], [got, MPI.DOUBLE_INT], getattr(MPI, op))
    assert np.isnan(got["value"][2]) and got["index"][2] == comm.size - 1
    assert not np.isnan(got["value"][[0, 1, 3, 4]]).any()


# -- user operators


def share(collective, n, comm):
    """(elements that a rank contributes, those of the result that it gets) where n is what it receives."""
    if collective != "reduce_scatter":
        return n, slice(None)
    return n * comm.size, slice(comm.rank * n, (comm.rank + 1) * n)


@each(("collective", "spec"), ORDERED, ids=map(" ".join, ORDERED))
def test_operand_order_is_kept(comm, engine, collective, spec):
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks, ops.user_op(ops.AFFINE) as op:
        for n, root in product((1, p, 5 * p + 3), range(p) if collective == "reduce" else (0,)):
            for how in ({}, {"chunk_bytes": 8, "window": 2}):
                case = Case(collective, n, root, make=ops.maps, user=op)
                with ours.using(engine=engine, **{collective: spec}, **how), ours.trace() as records:
                    got = case.run(ours)
                if got.result is not None and has_result(collective, comm.rank):
                    wide, mine = share(collective, n, comm)
                    checks.equal(got.result, ops.composed(wide, combined(collective, comm))[mine], case, how)
                checks.equal([(r.algorithm, r.engine) for r in records], [(spec, engine)], case)
                compare(checks, ours, comm, case, engine=engine, **{collective: spec})


@each(("collective", "spec"), ORDERED, ids=map(" ".join, ORDERED))
def test_operand_order_is_kept_on_a_derived_type(comm, engine, collective, spec):
    ours, p, n = mpicoll.Comm(comm), comm.size, 3
    with Checks() as checks, ops.user_op(ops.PRODUCT) as op, ops.matrix_type() as datatype:
        for root, chunk_bytes in product(range(p) if collective == "reduce" else (0,), (8, 1000)):
            wide, mine = share(collective, n, comm)
            send, receive = ops.matrices(wide, comm.rank), np.zeros(4 * n, np.int64)
            rest = (op, root) if collective == "reduce" else (op,)
            with ours.using(engine=engine, chunk_bytes=chunk_bytes, **{collective: spec}):
                getattr(ours, cases.METHODS[collective])([send, datatype], [receive, datatype], *rest)
            if has_result(collective, comm.rank) and (collective != "reduce" or comm.rank == root):
                want = ops.multiplied(wide, combined(collective, comm)).reshape(wide, 4)[mine].ravel()
                checks.equal(receive, want, collective, spec, root, chunk_bytes)


@each(("collective", "spec"), UNORDERED, ids=map(" ".join, UNORDERED))
def test_algorithms_that_do_not_keep_order_are_refused(ours, collective, spec):
    forced = ours.using(**{collective: spec})
    with ops.user_op(ops.AFFINE) as op, forced, pytest.raises(PreconditionError, match="order"):
        Case(collective, 4, make=ops.maps, user=op).run(ours)
    works(ours)


@each("collective", cases.REDUCING)
def test_order_is_kept_when_nothing_is_chosen(ours, comm, collective):
    """Where no algorithm keeps order, MPI's own does."""
    with Checks() as checks, ops.user_op(ops.AFFINE) as op:
        for n in (1, 5, 20_000):
            case = Case(collective, n, make=ops.maps, user=op)
            records = compare(checks, ours, comm, case)
            native = [r.algorithm == "native" for r in records]
            checks.equal(native, [not any(c == collective for c, _ in ORDERED)], case)


@each(("collective", "spec"), REDUCING, ids=map(" ".join, REDUCING))
def test_commutative_user_operator(comm, engine, collective, spec):
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks, ops.user_op(ops.ADD, commute=True) as op:
        for n, in_place in product((0, 1, 2 * p + 1), (False, True)):
            case = Case(collective, n, p - 1 if collective == "reduce" else 0, in_place,
                        make=lambda n, r: cases.data(n, r, "i8"), user=op)
            ran = compare(checks, ours, comm, case, engine=engine, **{collective: spec})
            checks.equal([r.algorithm for r in ran], [spec], case)


def test_a_handle_used_again_is_another_operator(comm):
    ours, p, got = mpicoll.Comm(comm), comm.size, np.zeros(4, np.int64)
    mine = ops.maps(4, comm.rank)
    with Checks() as checks:
        for _ in range(5):
            with ops.user_op(ops.ADD, commute=True) as op:
                ours.Allreduce(mine, got, op)
            checks.equal(got, sum(ops.maps(4, r) for r in range(p)) % 251 if p > 1 else mine, "sum")
            with ops.user_op(ops.AFFINE) as op:
                ours.Allreduce(mine, got, op)
            checks.equal(got, ops.composed(4, p), "composition")
