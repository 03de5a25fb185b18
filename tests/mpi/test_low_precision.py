"""float16, and ml_dtypes' bfloat16 and float8: in every collective, form and engine, beside float64 and MPI's own."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2
from mpi4py import MPI
from support.collectives import ENGINES

import mpicoll
from mpicoll.errors import ArgumentError, DatatypeError, OperatorError
from mpicoll.schedules.registry import exact_algorithms, find

DTYPES = [np.dtype(scalar) for scalar in (np.float16, bfloat16, float8_e4m3fn, float8_e5m2)]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
UFUNCS = {"SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum}
REDUCING = [("allreduce", name) for name in exact_algorithms("allreduce")]


def counts(p: int) -> list[int]:
    return sorted({0, 1, p - 1, p, p + 1, 1000, 30_011})


def share(rank: int, n: int, dtype: np.dtype, span: int = 3) -> np.ndarray:
    """Return small whole numbers, whose sums over few ranks every type holds."""
    return ((np.arange(n) + rank) % span).astype(dtype)


def whole(p: int, n: int, dtype: np.dtype, op: str = "SUM", span: int = 3) -> np.ndarray:
    first, *others = (share(rank, n, dtype, span).astype(np.float64) for rank in range(p))
    for other in others:
        first = UFUNCS[op](first, other)
    return first.astype(dtype)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return bool((a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")).all())


@each_dtype
@pytest.mark.parametrize("op", UFUNCS)
def test_reductions(comm, ours, engine, dtype, op):
    span = 2 if op == "PROD" else 3
    for n in counts(comm.size):
        x, y, expected = share(comm.rank, n, dtype, span), np.zeros(n, dtype), whole(comm.size, n, dtype, op, span)
        with ours.using(engine=engine), ours.trace() as trace:
            ours.Allreduce(x, y, op=getattr(MPI, op))
            z = x.copy()
            ours.Allreduce(MPI.IN_PLACE, z, op=getattr(MPI, op))
            w = np.zeros(n, dtype)
            ours.Reduce(x, w if comm.rank == 0 else None, op=getattr(MPI, op), root=0)
        assert {record.engine for record in trace} == {engine} and "native" not in {r.algorithm for r in trace}
        assert same(y, expected) and same(z, expected) and (comm.rank or same(w, expected)), n


@each_dtype
@pytest.mark.parametrize("algorithm", [name for _, name in REDUCING])
def test_algorithms(comm, ours, algorithm, dtype):
    if not find("allreduce", algorithm).serves(comm.size):
        return
    n = 4099
    x, y = share(comm.rank, n, dtype), np.zeros(n, dtype)
    for chunk in (64, 2048):
        with ours.using(allreduce=algorithm, chunk_bytes=chunk), ours.trace() as trace:
            ours.Allreduce(x, y)
        assert [record.algorithm for record in trace] == [algorithm] and same(y, whole(comm.size, n, dtype))


@each_dtype
def test_forms(comm, ours, engine, dtype):
    n, p = 1003, comm.size
    x, expected = share(comm.rank, n, dtype), whole(p, n, dtype)
    with ours.using(engine=engine):
        y = np.zeros(n, dtype)
        ours.Iallreduce(x, y).Wait()
        assert same(y, expected)
        y[:] = 0
        request = ours.Allreduce_init(x, y)
        for _ in range(3):
            y[:] = 0
            request.Start()
            request.Wait()
            assert same(y, expected)
        request.Free()
        blocks = np.zeros(p * n, dtype)
        ours.Reduce_scatter_block(np.tile(x, p), y)
        assert same(y, expected)
        ours.Scan(x, y)
        assert same(y, whole(comm.rank + 1, n, dtype))
        ours.Allgather(x, blocks)
        assert same(blocks, np.concatenate([share(rank, n, dtype) for rank in range(p)]))
        swapped = np.zeros(p * n, dtype)
        ours.Alltoall(blocks, swapped)
        assert same(swapped, np.tile(share(comm.rank, n, dtype), p))
        ours.Allgatherv(x, [swapped, ([n] * p, [n * rank for rank in range(p)])])
        assert same(swapped, blocks)
        buffer = x.copy()
        ours.Bcast(buffer, root=p - 1)
        assert same(buffer, share(p - 1, n, dtype))
        y[:] = 0
        ours.Allreduce([x, n // 2], [y, n // 2])
        assert same(y[: n // 2], expected[: n // 2]) and not y[n // 2 :].astype(float).any()


@each_dtype
def test_the_mpis_own_by_our_kernels(comm, ours, dtype):
    n = 777
    x, expected = share(comm.rank, n, dtype), whole(comm.size, n, dtype)
    every = np.concatenate([share(rank, n, dtype) for rank in range(comm.size)])
    with ours.using(allreduce="native", allgather="native"), ours.trace() as trace:
        y, blocks = np.zeros(n, dtype), np.zeros(n * comm.size, dtype)
        ours.Allreduce(x, y)
        ours.Allgather(x, blocks)
        assert same(y, expected) and same(blocks, every)
        y[:] = 0
        ours.Iallreduce(x, y).Wait()
        assert same(y, expected)
    assert {record.algorithm for record in trace} == {"native"}


@each_dtype
def test_averages_round_once(comm, ours, dtype):
    n, p = 1001, comm.size
    draw = np.random.default_rng(5)
    every = draw.standard_normal((p, n)).astype(dtype)
    y = np.zeros(n, dtype)
    with ours.using(allreduce="parameter_server"):                    # one fold of p operands, and the division
        ours.Allreduce(every[comm.rank].copy(), y, op=mpicoll.AVG)
    total = every[0].astype(np.float32)
    for row in every[1:]:
        total = total + row.astype(np.float32)
    assert same(y, (total / np.float32(p)).astype(dtype) if p > 1 else every[0])


@each_dtype
def test_calls_that_come_again_take_the_fast_path(comm, ours, dtype):
    x, y = share(comm.rank, 50, dtype), np.zeros(50, dtype)
    with ours.using(engine="compiled"), ours.trace() as trace:
        for _ in range(5):
            y[:] = 0
            ours.Allreduce(x, y)
            assert same(y, whole(comm.size, 50, dtype))
    assert trace[-1].fast_path or ours.explain("allreduce").slow


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_rounding_at_random(comm, ours, engine, dtype):
    n, p = 20_000, comm.size
    x = np.ones(n, dtype) if comm.rank else np.full(n, 16 if dtype.itemsize == 1 else 256, dtype)
    wanted = float(x[0]) + p - 1 if not comm.rank else None
    wanted = comm.bcast(wanted)
    results = []
    for seed in (3, 3, 4):
        y, fresh = np.zeros(n, dtype), mpicoll.Comm(comm.Dup())       # calls are counted from the first: each is new
        with fresh.using(engine=engine, stochastic=seed, allreduce="parameter_server"), fresh.trace() as trace:
            fresh.Allreduce(x, y)
        fresh.Free()
        assert not trace[0].fast_path and trace[0].algorithm == "parameter_server"
        assert all(same(y, other) for other in comm.allgather(y))
        assert abs(y.astype(float).mean() - wanted) < 0.3, "up and down balance"
        results.append(y)
    assert same(results[0], results[1]) and (p == 1 or p % 2 or not same(results[0], results[2]))


def test_bad_input(comm, ours):
    x = np.ones(4, bfloat16)
    with pytest.raises(OperatorError, match="does not take bfloat16"):
        ours.Allreduce(x, x.copy(), op=MPI.LAND)
    with pytest.raises(DatatypeError, match="bfloat16"):
        ours.Allreduce(x, np.ones(4, np.uint16))
    with pytest.raises(ArgumentError, match="an integer, the seed"), ours.using(stochastic="yes"):
        pass
    assert ours.explain("allreduce", 1000, datatype="bfloat16").engine in ENGINES
