"""Collectives on codes: within their bounds, the same on every rank, with nothing lost where the rest is kept."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.compression import Allreduce, PowerSGD, parse, reproducible_sum, shared_scale_sum
from mpicoll.errors import BufferAccessError, CodecError, MismatchError, ParameterError

CODECS = ["int8", "int4", "cast(bfloat16)", "cast(float8_e4m3fn)", "topk(fraction=0.1, group=256)"]
each_codec = pytest.mark.parametrize("codec", CODECS)
COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "bcast", "alltoall")
CHUNKS = (None, 2048, 1 << 16)


def counts(p: int) -> list[int]:
    return sorted({0, 1, p - 1, p, p + 1, 700, 30_011})


def vector(rank: int, n: int) -> np.ndarray:
    return np.random.default_rng([rank, n]).standard_normal(n).astype(np.float32)


@contextmanager
def forced(ours, codec, engine, chunk=None):
    """Yield a trace; every collective runs quantized, which the end checks."""
    names = dict.fromkeys(COLLECTIVES, f"quantized(codec={codec})")
    with ours.using(engine=engine, chunk_bytes=chunk, **names), ours.trace() as trace:
        yield trace
    assert {(record.algorithm, record.engine) for record in trace} == {(names["bcast"], engine)}


@cache
def bound_of(spec: str, p: int, n: int) -> np.ndarray:
    """Return what the encodings of all contributions, and that of their sum, may add up to.

    Groups are counted from where blocks begin, so the bound is taken block by block.
    """
    codec, bound, at = parse(spec), np.zeros(n), 0
    for b in range(p):
        size = n // p + (b < n % p)
        part = slice(at, at + size)
        of = [codec.error_bound(vector(rank, n)[part]) for rank in range(p) if rank != b]
        total = np.sum([vector(rank, n)[part] for rank in range(p)], axis=0, dtype=np.float32)
        bound[part] = sum(of) + codec.error_bound((np.abs(total) + sum(of)).astype(np.float32)) + 1e-5
        at += size
    return bound


@each_codec
@pytest.mark.parametrize("chunk", CHUNKS)
def test_sums_are_within_the_bound(comm, ours, engine, codec, chunk):
    p = comm.size
    for n in counts(p):
        x, y, exact = vector(comm.rank, n), np.zeros(n, np.float32), np.zeros(n)
        comm.Allreduce(x.astype(np.float64), exact)
        with forced(ours, codec, engine, chunk):
            ours.Allreduce(x, y)
            z = x.copy()
            ours.Allreduce(MPI.IN_PLACE, z)
            w = np.zeros(n, np.float32)
            ours.Iallreduce(x, w).Wait()
        assert (y == z).all() and (y == w).all()
        assert all((y == other).all() for other in comm.allgather(y)), "every rank has the same bits"
        assert (np.abs(y - exact) <= (bound_of(codec, p, n) if p > 1 else 0)).all(), n


@each_codec
def test_blocks_are_within_the_bound(comm, ours, engine, codec):
    p, n = comm.size, 3001
    of = parse(codec)
    with forced(ours, codec, engine, 4096):
        x, blocks = vector(comm.rank, n), np.zeros(p * n, np.float32)
        ours.Allgather(x, blocks)
        buffer = vector(0, n) if comm.rank == p - 1 else np.zeros(n, np.float32)
        ours.Bcast(buffer, root=p - 1)
        mine, parts = np.concatenate([vector(10 * comm.rank + r, n) for r in range(p)]), np.zeros(p * n, np.float32)
        ours.Alltoall(mine, parts)
        scattered = np.zeros(n, np.float32)
        ours.Reduce_scatter_block(mine, scattered)
    for rank in range(p):
        assert (np.abs(blocks[rank * n : (rank + 1) * n] - vector(rank, n)) <= of.error_bound(vector(rank, n))).all()
        there = vector(10 * rank + comm.rank, n)
        assert (np.abs(parts[rank * n : (rank + 1) * n] - there) <= of.error_bound(there)).all()
    assert (np.abs(buffer - vector(0, n)) <= of.error_bound(vector(0, n))).all()
    exact = np.sum([vector(10 * rank + comm.rank, n) for rank in range(p)], axis=0, dtype=np.float64)
    bound = sum(of.error_bound(vector(10 * rank + comm.rank, n)) for rank in range(p))
    assert (np.abs(scattered - exact) <= bound + 1e-5).all()
    assert p == 1 or (blocks != np.concatenate([vector(rank, n) for rank in range(p)])).any(), "it is lossy"


@pytest.mark.parametrize("chunk", [None, 2048])
def test_blocks_of_many_sizes(comm, ours, engine, chunk):
    p, rank, of = comm.size, comm.rank, parse("int8")
    sizes = [500 * r + r for r in range(p)]
    names = dict.fromkeys(("allgatherv", "alltoallv", "reduce_scatter"), "quantized")
    with ours.using(engine=engine, chunk_bytes=chunk, **names), ours.trace() as trace:
        blocks = np.zeros(sum(sizes), np.float32)
        ours.Allgatherv(vector(rank, sizes[rank]), [blocks, sizes])
        sends, receives = [300 + 10 * rank + r for r in range(p)], [300 + 10 * r + rank for r in range(p)]
        parts = np.zeros(sum(receives), np.float32)
        ours.Alltoallv([np.concatenate([vector(rank, n) for n in sends]), sends], [parts, receives])
        mine = np.zeros(sizes[rank], np.float32)
        ours.Reduce_scatter(np.concatenate([vector(rank, n) for n in sizes]), mine, sizes)
    assert [record.algorithm for record in trace] == ["quantized"] * 3
    at = [0, *np.cumsum(sizes).tolist()]
    for r in range(p):
        right = vector(r, sizes[r])
        assert (np.abs(blocks[at[r] : at[r + 1]] - right) <= of.error_bound(right)).all()
    at = [0, *np.cumsum(receives).tolist()]
    for r in range(p):
        right = vector(r, receives[r])
        assert (np.abs(parts[at[r] : at[r + 1]] - right) <= of.error_bound(right)).all()
    contributions = [vector(r, sizes[rank]) for r in range(p)]
    bound = sum(map(of.error_bound, contributions))
    assert (np.abs(mine - np.sum(contributions, axis=0, dtype=np.float64)) <= bound + 1e-5).all()


def test_persistent(comm, ours, engine):
    x, y = vector(comm.rank, 3000), np.zeros(3000, np.float32)
    exact = np.zeros(3000)
    comm.Allreduce(x.astype(np.float64), exact)
    with ours.using(allreduce="quantized", engine=engine):
        request = ours.Allreduce_init(x, y)
    for wrong in (False, True, False):
        x[7] = np.nan if wrong else 0
        exact[7] = 0
        y[:] = 0
        request.Start()
        if wrong and comm.size > 1:
            with pytest.raises(CodecError, match="NaN, infinity"):
                request.Wait()
        else:
            request.Wait()
            assert wrong or np.abs(y - exact).max() <= 0.04 * comm.size
    request.Free()


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_fewer_bytes_are_sent(comm, ours, codec):
    n = 1 << 16
    with ours.trace() as trace:
        with ours.using(allreduce="ring"):
            ours.Allreduce(vector(comm.rank, n), np.zeros(n, np.float32))
        with ours.using(allreduce=f"quantized(codec={codec})"):
            ours.Allreduce(vector(comm.rank, n), np.zeros(n, np.float32))
    plain, coded = (record.bytes for record in trace)
    assert coded <= plain * float(parse(codec).share) * 1.02


def test_averages_and_other_operators(comm, ours, engine):
    n, x = 1000, vector(comm.rank, 1000)
    total, average, most = (np.zeros(n, np.float32) for _ in range(3))
    with forced(ours, "cast(float16)", engine):
        ours.Allreduce(x, total)
        ours.Allreduce(x, average, op=mpicoll.AVG)
        ours.Allreduce(x, most, op=MPI.MAX)
    assert np.allclose(average * comm.size, total, atol=1e-5)
    exact = np.max([vector(rank, n) for rank in range(comm.size)], axis=0)
    assert np.allclose(most, exact, atol=4e-3)


def test_nodes_send_codes_to_each_other_only(comm, ours):
    n, x, y = 5000, vector(comm.rank, 5000), np.zeros(5000, np.float32)
    spec = "hierarchical(middle=quantized(codec=int8), groups=2)"
    with ours.using(allreduce=spec), ours.trace() as trace:
        ours.Allreduce(x, y)
    assert trace[0].algorithm == spec
    exact = np.zeros(n)
    comm.Allreduce(x.astype(np.float64), exact)
    assert np.abs(y - exact).max() <= 0.05 * comm.size and (comm.size > 2 or np.abs(y - exact).max() < 1e-5)
    assert all((y == other).all() for other in comm.allgather(y))


@each_codec
@pytest.mark.parametrize("chunk", [None, 4096])
def test_the_unsent_part_is_kept(comm, ours, codec, chunk):
    n, buffer = 10_007, np.zeros(10_007, np.float32)
    reduce = Allreduce(ours, codec, chunk_bytes=chunk)
    total, got = np.zeros(n), np.zeros(n)
    with ours.trace() as trace:
        for step in range(12):
            buffer[:] = vector(100 * step + comm.rank, n)
            exact = np.zeros(n)
            comm.Allreduce(buffer.astype(np.float64), exact)
            total += exact
            reduce(buffer)
            got += buffer
    assert {record.algorithm for record in trace} == {f"quantized(codec={parse(codec)}, feedback=yes)"}
    late = np.zeros(n)
    comm.Allreduce(reduce.residual(buffer).astype(np.float64), late)
    assert np.allclose(got + late, total, atol=1e-3)
    assert comm.size == 1 or np.abs(got - total).max() > 2e-3, "without the residual something is missing"


@each_codec
@pytest.mark.parametrize("chunk", [None, 4096])
def test_reduce_scatter_leaves_the_unsent_part(comm, ours, engine, codec, chunk):
    n = 2003                                            # elements of a block
    left, got = np.zeros(n * comm.size, np.float32), np.zeros(n)
    total, part = np.zeros(n), np.zeros(n, np.float32)
    spec = f"quantized(codec={parse(codec)}, feedback=yes)"
    with ours.using(engine=engine, chunk_bytes=chunk, reduce_scatter=spec), ours.trace() as trace:
        for step in range(12):
            gradient, exact = vector(100 * step + comm.rank, left.size), np.zeros(n)
            comm.Reduce_scatter_block(gradient.astype(np.float64), exact)
            total += exact
            left += gradient
            ours.Reduce_scatter_block(left, part)
            got += part
            if comm.size == 1:
                left[:] = 0                             # one rank sends nothing and encodes nothing
    assert {(record.algorithm, record.engine) for record in trace} == {(spec, engine)}
    late = np.zeros(n)
    comm.Reduce_scatter_block(left.astype(np.float64), late)
    assert np.allclose(got + late, total, atol=1e-3)
    assert comm.size == 1 or np.abs(got - total).max() > 2e-3, "without what was left something is missing"


def test_a_residual_belongs_to_a_buffer(comm, ours):
    reduce, first, other = Allreduce(ours, "int4"), vector(comm.rank, 600), vector(comm.rank, 900)
    reduce(first)
    reduce(other)
    assert len(reduce.residuals) == 2
    with pytest.raises(CodecError, match="it belongs to one buffer"):
        reduce(first[:300])
    with pytest.raises(CodecError, match="takes contiguous float32"):
        reduce(np.ones(4))
    with pytest.raises(CodecError, match="has no feedback"):
        Allreduce(ours, "int4", algorithm="hierarchical")
    averaged = np.full(3, comm.rank, np.float32)
    Allreduce(ours, "cast(float16)", error_feedback=False)(averaged, average=True)
    assert np.allclose(averaged, (comm.size - 1) / 2, atol=1e-3)


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "naive", "native"])
def test_a_shared_scale_gives_the_same_bits_on_any_algorithm(comm, ours, algorithm):
    for codec, levels in (("int8", 127), ("int4", 7)):
        x = vector(comm.rank, 3000)
        usual = shared_scale_sum(ours, x, codec)
        with ours.using(allreduce=algorithm, **{} if algorithm == "native" else {"chunk_bytes": 1024}):
            assert (shared_scale_sum(ours, x, codec) == usual).all()
        exact = np.zeros(3000)
        comm.Allreduce(x.astype(np.float64), exact)
        scale = max(np.abs(vector(rank, 3000)).max() for rank in range(comm.size)) / levels
        assert np.abs(usual - exact).max() <= comm.size * scale / 2 * (1 + 1e-6)
    with pytest.raises(CodecError, match="a scale is shared by int8 and int4"):
        shared_scale_sum(ours, x, "topk")


@pytest.mark.parametrize("split", range(4))
def test_any_split_of_the_rows_gives_the_same_bits(comm, ours, split):
    draw = np.random.default_rng(7)
    rows = (draw.standard_normal((41, 257)) * np.exp(4 * draw.standard_normal((41, 1)))).astype(np.float32)
    cuts = [0, *sorted(np.random.default_rng(split).integers(0, 42, comm.size - 1).tolist()), 41]
    mine = rows[cuts[comm.rank] : cuts[comm.rank + 1]]
    total = reproducible_sum(ours, mine[::-1] if split % 2 else mine)
    assert (total == reproducible_sum(MPI.COMM_SELF, rows)).all()
    exact = rows.sum(0, dtype=np.float64)
    assert (np.abs(total - exact) <= np.abs(exact) * 2.0**-24 + 1e-9).all()


def test_powersgd_averages_a_matrix_of_low_rank(comm, ours):
    matrix = np.outer(np.arange(40) - 20, np.linspace(0, 1, 40)).astype(np.float32).ravel()
    buffer = matrix * (1 + comm.rank)
    PowerSGD(ours, rank=1)(buffer, average=True)
    assert np.allclose(buffer, matrix * (1 + comm.size) / 2, atol=1e-3)
    buffer = matrix * (1 + comm.rank)
    PowerSGD(ours, rank=1)(buffer)
    assert np.allclose(buffer, matrix * (1 + comm.size) * comm.size / 2, atol=1e-2)


def test_nonfinite_values_raise_on_every_rank(comm, ours, engine):
    for value in (np.nan, np.inf):
        x = vector(comm.rank, 2000)
        if comm.rank == comm.size - 1:
            x[77] = value
        if comm.size > 1:
            with pytest.raises(CodecError, match="NaN, infinity"), forced(ours, "int8", engine):
                ours.Allreduce(x, np.zeros(2000, np.float32))
            n = 2000 // comm.size * comm.size
            with ours.using(reduce_scatter="quantized", alltoall="quantized", engine=engine):
                with pytest.raises(CodecError, match="NaN, infinity"):
                    ours.Ireduce_scatter_block(x[:n], np.zeros(n // comm.size, np.float32)).Wait()
                with pytest.raises(CodecError, match="NaN, infinity"):
                    ours.Ialltoall(x[:n], np.zeros(n, np.float32)).Wait()
                with pytest.raises(CodecError, match="NaN, infinity"):
                    ours.Reduce_scatter_block(x[:n], np.zeros(n // comm.size, np.float32))
                request = ours.Alltoall_init(x[:n], np.zeros(n, np.float32))
                for _ in range(2):
                    request.Start()
                    with pytest.raises(CodecError, match="NaN, infinity"):
                        request.Wait()
                request.Free()
        with pytest.raises(CodecError, match="NaN or infinity"):
            reproducible_sum(ours, x)
    y = np.zeros(5, np.float32)
    ours.Allreduce(np.ones(5, np.float32), y)
    assert (y == comm.size).all(), "and the communicator goes on"


def test_bad_input(comm, ours):
    with ours.using(allreduce="quantized"), pytest.raises(CodecError, match="encodes float32, and the buffers are of"):
        ours.Allreduce(np.ones(4), np.ones(4))
    with ours.using(allreduce="quantized"), pytest.raises(CodecError, match="INT"):
        ours.Allreduce(np.ones(4, np.int32), np.ones(4, np.int32))
    for spec, message in (("codec=int9", "there is no codec"), ("group=0", "at least 1"), ("group=3", "power of two")):
        with pytest.raises(ParameterError, match=message), ours.using(allreduce=f"quantized({spec})"):
            pass


def test_feedback_changes_no_buffer_that_may_not_be_written(comm, ours):
    x, y = vector(comm.rank, 500), np.zeros(500, np.float32)
    before = x.copy()
    with ours.using(allreduce="quantized(feedback=yes)"):
        ours.Allreduce(x, y)                            # what serves it is known from then on
        assert comm.size == 1 or (x != before).any()
        x[:] = before
        x.flags.writeable = False
        with pytest.raises(BufferAccessError, match="which is read-only"):
            ours.Allreduce(x, y)
        with pytest.raises(BufferAccessError, match="which is read-only"):
            ours.Allreduce([x, 500, MPI.FLOAT], y)
    assert (x == before).all()
    with ours.using(allreduce="quantized"):
        ours.Allreduce(x, y)
    assert (x == before).all()
    inner = "hierarchical(middle=quantized(feedback=yes))"
    with pytest.raises(ParameterError, match="a part with feedback"), ours.using(allreduce=inner):
        pass


def test_ranks_with_different_codecs_are_told(comm, monkeypatch):
    monkeypatch.setenv("MPICOLL_CHECK", "1")
    ours = mpicoll.Comm(comm)
    codec = "int8" if comm.rank else "int4"
    with ours.using(allreduce=f"quantized(codec={codec})"):
        if comm.size == 1:
            ours.Allreduce(np.ones(4, np.float32), np.ones(4, np.float32))
        else:
            with pytest.raises(MismatchError, match="algorithm"):
                ours.Allreduce(np.ones(4, np.float32), np.ones(4, np.float32))
