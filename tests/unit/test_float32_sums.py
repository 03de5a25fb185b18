"""Partial sums in float32: what is rounded when, proved; how far results are off; how many bytes travel."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from support import in_one_process
from unit.every import cases, served
from unit.mutants import adhoc

from mpicoll.engines.kernel_args import BUT_IN_CODES, EVERYWHERE, KernelArgs
from mpicoll.errors import ArgumentError, VerifyError
from mpicoll.kernels import lowp, reduce, scale
from mpicoll.plans import float32_sums, lowering
from mpicoll.plans.plan import MAX_MESSAGE
from mpicoll.plans.rolled import rolled
from mpicoll.proofs.cases import Case
from mpicoll.proofs.check_plan import in_place_forms, lower_all, run
from mpicoll.schedules.ir import Recv, RecvReduce, Send
from mpicoll.schedules.partial_sums import PartialSums
from mpicoll.schedules.registry import exact_algorithms, registered
from mpicoll.schedules.schedule import Schedule, schedule
from mpicoll.selection.select import Overrides
from mpicoll.selection.settings import read

EXACT = [a for a in registered() if a.collective.reduces and a.is_exact]
REDUCING = cases(*EXACT)
ALLREDUCES = cases(*(a for a in EXACT if a.collective.name == "allreduce"))
BFLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
DTYPES = [np.dtype(dtype) for dtype in (np.float16, BFLOAT16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)]
BITS = {"float16": 10, "bfloat16": 7, "float8_e4m3fn": 3, "float8_e5m2": 2}         # of the mantissa


def wide(count: int, **more) -> Case:
    return Case(count, 2, more.pop("chunk_bytes", None), more.pop("window", 4), float32_sums=True, **more)


# -- proofs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", REDUCING)
@pytest.mark.parametrize("p", [1, 2, 3, 5, 7])
def test_every_sum_is_rounded_once(entry, p):
    schedule = Schedule(entry, served(entry, p), p - 1 if entry.collective.rooted else 0)
    for case in (wide(0), wide(2 * p + 1), wide(40, chunk_bytes=4, window=2)):
        for in_place in in_place_forms(schedule):
            run(schedule, case, in_place)
            if entry.collective.name not in ("scan", "exscan"):
                run(schedule, replace(case, averaged=True), in_place)


# on 4 ranks, of all contributions at once
ONE_REDUCTION = {"allreduce naive", "allreduce parameter_server", "allreduce recursive_multiplying", "reduce linear",
            "reduce knomial"}  # fmt: skip


@pytest.mark.parametrize("entry", REDUCING)
def test_a_sum_that_is_rounded_on_its_way_is_no_proof(entry):
    """Plans that reduce elements as they are round at every reduction."""
    schedule = Schedule(entry, served(entry, 4))
    narrow = [lowering.lower(schedule, rank, 40, 2) for rank in range(schedule.p)]
    if entry.title in ONE_REDUCTION:
        run(schedule, wide(40), False, narrow)
    else:
        with pytest.raises(VerifyError):
            run(schedule, wide(40), False, narrow)


def test_rounding_too_early_is_refused():
    """A rank that believed its first reduction to be the last would round a partial sum."""

    def line(p, rank):
        if rank:
            yield RecvReduce(rank - 1, (0,))
        if rank < p - 1:
            yield Send(rank + 1, (0,))
            yield Recv(p - 1, (0,))
        else:
            yield tuple(Send(peer, (0,)) for peer in range(p - 1))

    chain = adhoc("allreduce", line, 4)
    run(chain, wide(3), False)
    wrong = lower_all(chain, wide(3), False)
    wrong[1] = lowering.lower(chain, 1, 3, 2)                    # whose sums are elements, two bytes each
    with pytest.raises(VerifyError):
        run(chain, wide(3), False, wrong)


def test_element_types_of_messages():
    """In a ring of 4: contributions, then two partial sums in float32, then complete sums."""
    sums = PartialSums(schedule("allreduce", "ring", 4))
    assert [sums.of_message(0, 1, 0, nth) for nth in range(3)] == [(False,), (True,), (True,)]
    assert [sums.of_message(0, 3, 0, nth) for nth in range(3)] == [(False,)] * 3
    sums = PartialSums(schedule("scan", "linear", 4))
    assert [sums.of_message(rank, rank + 1, 0, 0) for rank in range(3)] == [(False,), (True,), (True,)]
    sums = PartialSums(schedule("reduce", "linear", 4))
    assert [sums.of_message(rank, 0, 0, 0) for rank in (1, 2, 3)] == [(False,)] * 3


def test_a_long_line_of_ranks_takes_no_deep_recursion():
    chain = schedule("allreduce", "reduce_bcast(reduce=chain, bcast=chain)", 3000)
    assert PartialSums(chain).of_message(2998, 2999, 0, 0) == (False,)


# -- bytes --------------------------------------------------------------------------------------------------


def moved(schedule: Schedule, n: int, how) -> int:
    return sum(rolled(how(schedule, rank, n, 2)).received_bytes for rank in range(schedule.p))


TWO_HALVES = ("ring", "ring_bidirectional", "rabenseifner", "halving_doubling", "butterfly", "tree", "double_tree",
              "parameter_server", "reduce_bcast", "hierarchical")  # fmt: skip


@pytest.mark.parametrize("entry", ALLREDUCES)
@pytest.mark.parametrize("p", [2, 4, 8, 16])
def test_an_allreduce_costs_half_as_much_again(entry, p):
    """At most; where every rank makes the whole sum itself, twice as much. Contributions alone cost nothing more."""
    schedule, n = Schedule(entry, p), 64 * 15
    share = Fraction(moved(schedule, n, float32_sums.lower), moved(schedule, n, lowering.lower))
    assert 1 <= share <= (Fraction(3, 2) if entry.name in TWO_HALVES else 2)
    if p == 2:
        assert share == 1
    if entry.name in ("ring", "rabenseifner", "halving_doubling", "butterfly"):
        first = {"ring": Fraction(p - 2, p - 1)}.get(entry.name, Fraction(p - 2, 2 * (p - 1)))
        assert share == 1 + first / 2                           # all but the first step of the first half is float32


def test_no_message_is_larger_than_may_be():
    doubling, count = schedule("allreduce", "recursive_doubling", 4), MAX_MESSAGE // 8 * 3
    plan = float32_sums.lower(doubling, 0, count, 2)
    assert plan.lanes > 1 and plan.code_slice <= MAX_MESSAGE
    assert lowering.lower(doubling, 0, count, 2).lanes == 1


# -- errors -------------------------------------------------------------------------------------------------


def work(dtype: np.dtype, op: str, p: int, float32_sums: bool, average: bool) -> tuple[KernelArgs, np.ndarray]:
    by, places = np.array([p], np.float32), BUT_IN_CODES if float32_sums else EVERYWHERE
    scales = (scale.address(FLOAT32), scale.address(dtype)) if average else (0, 0)
    between = lowp.widen_address(dtype), lowp.narrow_address(dtype)
    folds = reduce.address(op, dtype), scales[1], by.ctypes.data, reduce.address(op, FLOAT32), scales[0], *between
    return KernelArgs(*folds, narrow_places=places), by


def reduced(scheduled, every: np.ndarray, how, op: str = "SUM", average: bool = False) -> np.ndarray:
    p, n = every.shape
    size = every.dtype.itemsize
    plans = [rolled(how(scheduled, rank, n, size, chunk_bytes=256, averaged=average)) for rank in range(p)]
    results = [np.zeros(n, every.dtype) for _ in range(p)]
    words, _by = work(every.dtype, op, p, how is float32_sums.lower, average)
    in_one_process.run(plans, list(every), results, words)
    assert all(np.array_equal(result.view(np.uint8), results[0].view(np.uint8)) for result in results), "the same bits"
    return results[0]


def units(dtype: np.dtype, exact: np.ndarray) -> np.ndarray:
    """Return a unit in the last place of each number, as many binary places below it as the type has."""
    smallest = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    return np.maximum(2.0 ** (np.floor(np.log2(np.maximum(np.abs(exact), 1e-300))) - BITS[dtype.name]), smallest)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("p", [2, 3, 8, pytest.param(13, marks=pytest.mark.slow), 64])
def test_the_error_does_not_grow_with_the_ranks(dtype, p):
    """Half a unit in the last place, and what p sums in float32 are off by."""
    n = 700
    every = np.random.default_rng(p).standard_normal((p, n)).astype(dtype)
    exact, sizes = every.astype(np.float64).sum(axis=0), np.abs(every.astype(np.float64)).sum(axis=0)
    few = ("rabenseifner", "recursive_doubling", "tree", *["ring"] * (dtype == BFLOAT16))   # p steps take seconds
    names = few if p > 13 else exact_algorithms("allreduce")
    for name in names:
        scheduled = schedule("allreduce", name, p)
        for average in (False, True):
            by = p if average else 1
            got = reduced(scheduled, every, float32_sums.lower, average=average).astype(np.float64)
            bound = units(dtype, exact / by) / 2 + (p + 2) * 2.0**-24 * sizes / by
            assert (np.abs(got - exact / by) <= bound).all(), (name, average)


def test_rounding_at_every_reduction_does_grow():
    """Show that the test above fails for sums that are rounded at every reduction."""
    p = 64
    every = np.random.default_rng(p).standard_normal((p, 700)).astype(BFLOAT16)
    exact = every.astype(np.float64).sum(axis=0)
    got = reduced(schedule("allreduce", "ring", p), every, lowering.lower).astype(np.float64)
    off = np.abs(got - exact) / units(BFLOAT16, exact)
    assert (off > 0.51).mean() > 0.5 and off.max() > 2


def test_products_too():
    p = 8
    every = (1 + np.random.default_rng(1).standard_normal((p, 300)) / 8).astype(BFLOAT16)
    exact = every.astype(np.float64).prod(axis=0)
    for name in ("ring", "butterfly"):
        got = reduced(schedule("allreduce", name, p), every, float32_sums.lower, "PROD").astype(np.float64)
        assert (np.abs(got - exact) <= units(BFLOAT16, exact) / 2 + p * 2.0**-24 * np.abs(exact)).all()


# -- settings -----------------------------------------------------------------------------------------------


def test_settings():
    assert read({}).accumulate == "none" and read({"MPICOLL_ACCUMULATE": ""}).accumulate == "none"
    assert read({"MPICOLL_ACCUMULATE": "float32"}).accumulate == "float32"
    with pytest.raises(ArgumentError, match="MPICOLL_ACCUMULATE is 'float64'; it must be one of float32, none"):
        read({"MPICOLL_ACCUMULATE": "float64"})
    with pytest.raises(ArgumentError, match="accumulate is 'fp32'; it must be one of float32, none"):
        Overrides().merged({}, None, None, None, accumulate="fp32")
    outer = Overrides().merged({}, None, None, None, accumulate="float32")
    assert outer.merged({"allreduce": "ring"}, None, None, None).accumulate == "float32"
