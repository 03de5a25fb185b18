"""accumulate="float32": sums of elements of less than 32 bits that are rounded once, on real ranks."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from ml_dtypes import bfloat16, finfo, float8_e4m3fn, float8_e5m2
from mpi4py import MPI
from support.collectives import AVERAGED, ENGINES, REDUCING

import mpicoll
from mpicoll.errors import ArgumentError, MismatchError, PreconditionError
from mpicoll.schedules.registry import exact_algorithms, find

DTYPES = [np.dtype(scalar) for scalar in (np.float16, bfloat16, float8_e4m3fn, float8_e5m2)]
CASES = [(collective, name) for collective in REDUCING for name in exact_algorithms(collective)]
UFUNCS = {"SUM": np.add, "PROD": np.multiply, "AVG": np.add}
BITS = {"float16": 10, "bfloat16": 7, "float8_e4m3fn": 3, "float8_e5m2": 2}         # of the mantissa


@cache
def contributions(p: int, n: int, dtype: np.dtype, op: str = "SUM") -> np.ndarray:
    """Return the contributions of the ranks, a row each; callers copy what they change."""
    draw = np.random.default_rng([p, n]).standard_normal((p, n))
    return (1 + draw / 8 if op == "PROD" else draw).astype(dtype)


def check(got: np.ndarray, rows: np.ndarray, op: str = "SUM") -> None:
    """Check that results are within half a unit in the last place of the exact ones, plus the error of float32."""
    wide, by = rows.astype(np.float64), len(rows) if op == "AVG" else 1
    exact, sizes = UFUNCS[op].reduce(wide, axis=0) / by, UFUNCS[op].reduce(np.abs(wide), axis=0) / by
    smallest = float(finfo(rows.dtype).smallest_subnormal)
    unit = np.maximum(2.0 ** (np.floor(np.log2(np.maximum(np.abs(exact), 1e-300))) - BITS[rows.dtype.name]), smallest)
    bound = unit / 2 + (len(rows) + 2) * 2.0**-24 * sizes
    assert (np.abs(got.astype(np.float64) - exact) <= bound).all()


def reduce_all(comm, ours, collective: str, rows: np.ndarray, op: str = "SUM", in_place: bool = False, root: int = 0):
    """Run one call and check it against the exact result."""
    p, n, what = comm.size, rows.shape[1], mpicoll.AVG if op == "AVG" else getattr(MPI, op)
    mine, y = rows[comm.rank].copy(), np.zeros(n, rows.dtype)
    if in_place:
        y[:] = mine
    send = MPI.IN_PLACE if in_place else mine
    if collective == "allreduce":
        ours.Allreduce(send, y, op=what)
        check(y, rows, op)
        assert len(set(comm.allgather(y.tobytes()))) == 1, "the same bits on every rank"
    elif collective == "reduce":
        at_root = comm.rank == root
        ours.Reduce(send if at_root else mine, y if at_root else None, op=what, root=root)
        if at_root:
            check(y, rows, op)
    elif collective == "reduce_scatter":
        n = n // p
        blocks = rows[:, : n * p].copy()
        y = blocks[comm.rank].copy() if in_place else np.zeros(n, rows.dtype)
        ours.Reduce_scatter_block(MPI.IN_PLACE if in_place else blocks[comm.rank].copy(), y, op=what)
        check(y[:n], blocks[:, n * comm.rank : n * (comm.rank + 1)], op)
    else:
        (ours.Scan if collective == "scan" else ours.Exscan)(send, y, op=what)
        end = comm.rank + (collective == "scan")
        if end:
            check(y, rows[:end], op)


@pytest.mark.parametrize(("collective", "algorithm"), CASES)
def test_every_algorithm(comm, ours, engine, collective, algorithm):
    if not find(collective, algorithm).serves(comm.size):
        return
    p, dtype = comm.size, np.dtype(bfloat16)
    for n in sorted({0, 1, p - 1, p, p + 1, 3001}):
        rows = contributions(p, n, dtype)
        for chunk, in_place in ((64, False), (1 << 16, True)):
            chosen = {collective: algorithm}
            with ours.using(engine=engine, chunk_bytes=chunk, accumulate="float32", **chosen), ours.trace() as trace:
                reduce_all(comm, ours, collective, rows, in_place=in_place, root=p - 1)
            assert [record.algorithm for record in trace] == [algorithm]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", UFUNCS)
def test_every_type_and_operator(comm, ours, engine, dtype, op):
    with ours.using(engine=engine, accumulate="float32"):
        for collective in REDUCING if op != "AVG" else AVERAGED:
            # With few rounds, and of sums with the least bytes: auto chooses alike for the other operators.
            for n in (2 * comm.size + 1, 200_000 if op == "SUM" else 3001):
                reduce_all(comm, ours, collective, contributions(comm.size, n, dtype, op), op)


def test_forms(comm, ours, engine):
    rows, n = contributions(comm.size, 1000, np.dtype(bfloat16)), 1000
    x, y = rows[comm.rank].copy(), np.zeros(n, bfloat16)
    with ours.using(engine=engine, accumulate="float32"):
        ours.Iallreduce(x, y).Wait()
        check(y, rows)
        request = ours.Allreduce_init(x, y)
        for _ in range(3):
            y[:] = 0
            request.Start()
            request.Wait()
            check(y, rows)
        request.Free()
        counts = [n // comm.size + (rank == 0) * (n % comm.size) for rank in range(comm.size)]
        part = np.zeros(counts[comm.rank], bfloat16)
        ours.Reduce_scatter(x, part, counts)
        first = sum(counts[: comm.rank])
        check(part, rows[:, first : first + len(part)])


def test_the_fast_path_serves(comm, ours):
    rows = contributions(comm.size, 50, np.dtype(bfloat16))
    x, y, z = rows[comm.rank].copy(), np.zeros(50, bfloat16), np.zeros(50, bfloat16)
    for _ in range(2):                                          # what was served under one setting is not under another
        with ours.using(engine="compiled", allreduce="ring", accumulate="float32"), ours.trace() as trace:
            for _ in range(5):
                y[:] = 0
                ours.Allreduce(x, y)
                check(y, rows)
        # not each: a call whose scratch another thread is giving back goes the slow path
        assert any(record.fast_path for record in trace[2:]) or ours.explain("allreduce").slow
        with ours.using(engine="compiled", allreduce="ring"), ours.trace() as without:
            for _ in range(5):
                ours.Allreduce(x, z)
        if comm.size > 2:
            assert trace[-1].bytes > without[-1].bytes
        assert trace[-1].bytes <= without[-1].bytes * 3 // 2 + 4


def test_other_types_and_operators_are_as_they_were(comm, ours):
    n = 1 << 14
    for dtype, op in ((np.float32, MPI.SUM), (np.float64, MPI.SUM), (np.int32, MPI.SUM), (bfloat16, MPI.MAX)):
        x, outcomes = (np.arange(n) % 60 + comm.rank).astype(dtype), []
        for how in ("none", "float32"):
            y = np.zeros(n, dtype)
            with ours.using(accumulate=how), ours.trace() as trace:
                ours.Allreduce(x, y, op=op)
            outcomes.append((y.tobytes(), trace[0].bytes, trace[0].algorithm))
        assert outcomes[0] == outcomes[1]


def test_explain(comm, ours):
    with ours.using(accumulate="float32", allreduce="ring"):
        explanation = str(ours.explain("allreduce", 1 << 20, datatype="bfloat16"))
        assert "partial sums travel in float32 and are rounded once, at the end: this rank receives" in explanation
        x = np.ones(1 << 19, bfloat16)
        with ours.trace() as trace:
            ours.Allreduce(x, x.copy())
        assert f"receives {trace[0].received:,} bytes instead of" in explanation
        assert "float32" not in str(ours.explain("allreduce", 1 << 20, datatype="d"))
        assert "float32" not in str(ours.explain("allreduce", 1 << 20, MPI.MAX, datatype="bfloat16"))
    assert "float32" not in str(ours.explain("allreduce", 1 << 20, datatype="bfloat16"))


def test_bad_input(comm, ours):
    wrong = pytest.raises(ArgumentError, match="accumulate is 'float64'; it must be one of float32, none")
    with wrong, ours.using(accumulate="float64"):
        pass
    x = np.ones(4, bfloat16)
    with ours.using(accumulate="float32", allreduce="native"):
        with pytest.raises(PreconditionError, match="MPI's own collectives round at every reduction"):
            ours.Allreduce(x, x.copy())
        ours.Allreduce(np.ones(4), np.zeros(4))
        with ours.using(accumulate="none"):
            ours.Allreduce(x, x.copy())


def test_check_mode_compares(comm, ours):
    if comm.size == 1:
        return
    checked = mpicoll.Comm(comm.Dup())
    checked._open().check_next_calls(10)
    x = np.ones(4, bfloat16)
    with checked.using(accumulate="float32" if comm.rank else "none"), pytest.raises(MismatchError, match="accumulate"):
        checked.Allreduce(x, x.copy())
    checked.Free()


def test_rounding_at_random_is_once_too(comm, ours):
    n, p = 20_000, comm.size
    x, y = np.full(n, 1 / 3, bfloat16), np.zeros(n, bfloat16)
    fresh = mpicoll.Comm(comm.Dup())
    with fresh.using(accumulate="float32", stochastic=3, allreduce="ring"):
        fresh.Allreduce(x, y)
    fresh.Free()
    exact = float(x[0]) * p
    assert len(set(comm.allgather(y.tobytes()))) == 1 and len(set(y.tolist())) <= 2
    assert abs(y.astype(float).mean() - exact) < 2e-3 * exact
    assert set(ENGINES) == {"mpi4py", "compiled"}
