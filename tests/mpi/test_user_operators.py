"""Operators of a program take the fast path, on which compiled code calls their functions."""

from __future__ import annotations

import time

import numpy as np
import pytest
from mpi4py import MPI
from support.calls import complete, takes_fast_path
from support.cases import AGAIN, Checks
from support.collectives import METHOD_NAMES, REDUCING, specs

from mpicoll.buffers import operators
from mpicoll.errors import OperatorError
from mpicoll.schedules.collectives import BLOCKING, NONBLOCKING
from mpicoll.schedules.registry import parse_spec

SPECS = specs(REDUCING)


def composed(a, b, datatype):
    """Compose linear maps (slope, offset), which does not commute: b is a, then b."""
    first, second = (np.frombuffer(buffer).reshape(-1, 2) for buffer in (a, b))
    second[:, 1] += second[:, 0] * first[:, 1]
    second[:, 0] *= first[:, 0]


def largest(a, b, datatype):
    into = np.frombuffer(b)
    np.maximum(np.frombuffer(a), into, out=into)


@pytest.fixture(params=["commutes", "does not commute"])
def op(request):
    operator = MPI.Op.Create(largest if request.param == "commutes" else composed, request.param == "commutes")
    yield operator
    operator.Free()


def keeps_order(collective, spec, p):
    return parse_spec(collective, spec)[0].keeps_order(p, None)


def contribution(n, rank, turn):
    return (np.arange(2.0 * n).reshape(n, 2) * 7 % 5 + rank + turn) % 3 - 1


@pytest.mark.parametrize(("collective", "spec"), SPECS, ids=map(" ".join, SPECS))
@pytest.mark.parametrize("in_place", [False, True])
def test_every_algorithm(ours, comm, collective, spec, in_place):
    """Sizes differ in every call; what MPI's own collective gives, since elements are small whole numbers."""
    op = MPI.Op.Create(*((composed, False) if keeps_order(collective, spec, comm.size) else (largest, True)))
    p, rank, name = comm.size, comm.rank, METHOD_NAMES[collective]
    pair = MPI.DOUBLE.Create_contiguous(2).Commit()  # a part of a vector has whole maps
    wide = p if collective == "reduce_scatter" else 1
    with Checks() as checks, ours.using(engine="compiled", **{collective: spec}), ours.trace() as records:
        for turn, n in enumerate((60, 55, 3, 0, 1, 7, 60, 12)):
            results = []
            for where in (ours, comm):
                send = contribution(n * wide, rank, turn)
                into = send.copy() if in_place else np.full((n, 2), 9.0)  # a count is of one block
                message = MPI.IN_PLACE if in_place else [send, n, pair]
                after = (0,) if collective == "reduce" else ()
                if in_place and after and rank:
                    message = [send, n, pair]
                getattr(where, name)(message, [into, n, pair], op, *after)
                checks.equal(send, contribution(n * wide, rank, turn), turn, "sent")
                results.append(into[:n])
            if not (collective == "exscan" and rank == 0) and not (after and rank):
                checks.equal(*results, n)
        fast = [record.fast_path for record in records]
        checks.that(all(fast[2:]) or (in_place and not any(fast)), fast)
    pair.Free()
    op.Free()


@pytest.mark.parametrize("form", [BLOCKING, NONBLOCKING])
def test_a_rank_that_comes_late(ours, comm, op, form):
    for turn in range(AGAIN + 3):
        if ours.rank == turn % ours.size and turn >= AGAIN:
            time.sleep(0.03)
        results = []
        for where in (ours, comm):
            send, into = contribution(50, comm.rank, turn).ravel(), np.zeros(100)
            method = where.Allreduce if form == BLOCKING else where.Iallreduce
            complete(method(send, into, op))
            results.append(into)
        assert (results[0] == results[1]).all()


def test_a_freed_operator_is_refused(ours):
    op = MPI.Op.Create(largest, True)
    for turn in range(AGAIN):
        assert takes_fast_path(ours, lambda: ours.Allreduce(np.ones(4), np.zeros(4), op)) == (turn == AGAIN - 1)
    op.Free()
    with pytest.raises(OperatorError, match="OP_NULL"):
        ours.Allreduce(np.ones(4), np.zeros(4), op)


def test_the_function_gets_the_caller_s_datatype(ours, comm):
    """With its name and attributes, also where another was made alike, or was freed."""
    seen = []

    def watched(a, b, datatype):
        seen.append((datatype == pair, datatype.Get_name() == name))
        largest(a, b, datatype)

    op, pairs = MPI.Op.Create(watched, True), {}
    for turn in range(2 * AGAIN):
        for name in ("kept", "kept too", f"freed {turn}"):
            pair = pairs.get(name)
            if pair is None:
                pair = pairs[name] = MPI.DOUBLE.Create_contiguous(2).Commit()
                pair.Set_name(name)
            into = np.zeros(4)
            ours.Allreduce([np.full(4, comm.rank + 1.0), 2, pair], [into, 2, pair], op)
            assert (into == comm.size).all()
            if "freed" in name:
                pairs.pop(name).Free()
    everywhere = {what for of_rank in comm.allgather(seen) for what in of_rank}  # not every rank folds
    assert everywhere == ({(True, True)} if ours.size > 1 else set())
    op.Free()
    for pair in pairs.values():
        pair.Free()


@pytest.mark.mpi(min_size=2, max_size=2)  # both fold
def test_an_error_behind_the_function_is_raised_once(ours, comm, monkeypatch):
    """The call in which the error occurred raises it."""
    failing = []

    def apply(op):
        def fold(a, b, n, datatype):
            if failing:
                raise ZeroDivisionError("in fold")
            largest(a, b, datatype)

        return fold

    monkeypatch.setattr(operators, "_apply_function", apply)
    op = MPI.Op.Create(largest, True)
    for turn in range(AGAIN + 6):
        failing[:] = [True] * (turn in (1, AGAIN, AGAIN + 2))
        into = np.zeros(4)
        if turn == AGAIN + 2 and comm.rank == 0:
            time.sleep(0.03)
        if failing:  # not traced: of traced calls Python looks at every one
            with pytest.raises(ZeroDivisionError):
                ours.Allreduce(np.full(4, float(comm.rank)), into, op)
            comm.Barrier()
            continue
        with ours.trace() as records:
            ours.Allreduce(np.full(4, float(comm.rank)), into, op)
        assert (into == comm.size - 1).all()
        assert turn < AGAIN or records[0].fast_path
        comm.Barrier()
    op.Free()
