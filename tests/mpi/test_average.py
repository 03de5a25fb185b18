"""mpicoll.AVG: on whole numbers it is the sum, divided by the number of ranks and correctly rounded."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle, product

import numpy as np
import pytest
from mpi4py import MPI
from support import cases, ops
from support.cases import Case, Checks
from support.collectives import AVERAGED, AVERAGED_METHODS, roots, specs

import mpicoll
from mpicoll.buffers.arguments import parse_allreduce
from mpicoll.dispatch import call, methods
from mpicoll.dispatch.methods import Invocation
from mpicoll.errors import MismatchError, OperatorError, PreconditionError
from mpicoll.kernels import rules

SPECS = specs(AVERAGED)
WITH_NATIVE = SPECS + [(collective, "native") for collective in AVERAGED]
parametrize = pytest.mark.parametrize
several = pytest.mark.mpi(min_size=2)


def check(checks, ours, case, spec, engine, **how):
    """Check an average by an algorithm on an engine."""
    context = (spec, engine, how, case.make(1, 0).dtype if case.make else "d")
    with ours.using(engine=engine, **{case.collective: spec}, **how), ours.trace() as records:
        checks.call(case.run(ours), case, *context)
    ran = "native" if spec == "native" else engine
    checks.equal([(r.algorithm, r.engine) for r in records], [(spec, ran)], case, *context, "trace")


def numbers(code):
    """Return a function that makes whole numbers of a dtype."""
    return lambda n, rank: ops.values(n, rank, code)


# -- every algorithm


@parametrize(("collective", "spec"), WITH_NATIVE, ids=map(" ".join, WITH_NATIVE))
def test_averages_are_sums_divided(comm, engine, collective, spec):
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks:
        sizes = sorted({0, 1, p - 1, p, p + 1, 3000})
        for root, (n, in_place) in product(roots(collective, 0, 1 % p, p - 1), zip(sizes, cycle((False, True)))):
            case = Case(collective, n, root, in_place, "AVG")
            check(checks, ours, case, spec, engine)
            if 0 < n <= p + 1:
                check(checks, ours, replace(case, in_place=not in_place), spec, engine, chunk_bytes=8, window=2)
        check(checks, ours, Case(collective, 200, op="AVG"), spec, engine, chunk_bytes=64, window=3)


@parametrize("collective", AVERAGED)
def test_every_type_that_has_an_average(ours, comm, engine, collective):
    """Long doubles have no kernels, and go by MPI's own collective."""
    specs = [spec for c, spec in WITH_NATIVE if c == collective]
    with Checks() as checks:
        for (i, code), (j, spec) in product(enumerate("fFDgG"), enumerate(specs)):
            if code in "gG" and spec != "native":
                continue
            in_place = (i + j) % 2 == 0
            case = Case(collective, 13, comm.size - 1, in_place, "AVG", numbers(code))
            check(checks, ours, case, spec, engine)


@parametrize("spec", ["ring", "recursive_halving", "native"])
def test_uneven_shares(comm, engine, spec):
    ours, p = mpicoll.Comm(comm), comm.size
    counts = [3 * rank % 5 for rank in range(p)]
    mine, total, got = cases.data(sum(counts), comm.rank), np.zeros(counts[comm.rank]), np.zeros(counts[comm.rank])
    comm.Reduce_scatter(mine, total, counts)
    with ours.using(engine=engine, reduce_scatter=spec):
        ours.Reduce_scatter(mine, got, counts, mpicoll.AVG)
        ours.Reduce_scatter(MPI.IN_PLACE, mine, counts, mpicoll.AVG)
    assert np.array_equal(got, total / p)
    assert np.array_equal(mine[: counts[comm.rank]], total / p)


@parametrize("spec", ["ring", "rabenseifner", "native"])
def test_beside_sums_under_way(ours, engine, spec):
    """Leave sums in flight unchanged by averages."""
    p, under_way = ours.size, []
    with ours.using(engine=engine, allreduce=spec, chunk_bytes=512):
        for n, op, in_place in product((0, 1, p, 500, 4001), (MPI.SUM, mpicoll.AVG), (False, True)):
            mine = cases.data(n, ours.rank)
            got = mine.copy() if in_place else np.zeros(n)
            want = sum(cases.data(n, rank) for rank in range(p)) / (1 if op is MPI.SUM else p)
            under_way.append((ours.Iallreduce(MPI.IN_PLACE if in_place else mine, got, op), got, want))
    with Checks() as checks:
        for request, got, want in under_way:
            request.Wait()
            checks.equal(got, want, len(got))


@parametrize(("collective", "spec"), SPECS, ids=map(" ".join, SPECS))
def test_averages_are_the_same_algorithms_sums_divided(comm, engine, collective, spec):
    """Numbers whose sum depends on the order: the division comes after it, and nothing else changes."""
    ours, p = mpicoll.Comm(comm), comm.size
    case = Case(collective, 3 * p + 1, make=lambda n, r: np.random.default_rng(r).standard_normal(n))
    with ours.using(engine=engine, chunk_bytes=16, **{collective: spec}):
        total, average = case.run(ours).result, replace(case, op="AVG").run(ours).result
    assert total is None if average is None else np.array_equal(average, total / p)


def test_sums_and_averages_of_one_size_do_not_share_a_plan(comm):
    ours, p, got = mpicoll.Comm(comm), comm.size, np.zeros(7)
    with Checks() as checks, ours.using(allreduce="ring"):
        for _ in range(2):
            for op, by in ((MPI.SUM, 1), (mpicoll.AVG, p), (MPI.MAX, 0)):
                ours.Allreduce(np.full(7, comm.rank + 1.0), got, op)
                want = p if op == MPI.MAX else sum(range(1, p + 1)) / by
                checks.equal(got, np.full(7, float(want)), op)


# -- refusals


def test_types_that_have_no_average_are_refused(comm):
    ours, a, b = mpicoll.Comm(comm), np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    refused = [(g, name) for g, name in ops.EVERY_TYPE if g not in ("floating", "complex") and ops.present(name)]
    with Checks() as checks, ours.trace() as records:
        for (group, name), spec in product(refused, ("auto", "native")):
            datatype = getattr(MPI, name)
            with ours.using(allreduce=spec), pytest.raises(OperatorError) as caught:
                ours.Allreduce([a, 2, datatype], [b, 2, datatype], mpicoll.AVG)
            checks.equal(caught.value.Get_error_class(), MPI.ERR_OP, name)
            checks.that("AVG does not take" in str(caught.value), caught.value)
            has_remedy = "convert to a floating type, or use MPI.SUM and divide" in str(caught.value)
            checks.equal(has_remedy, "integer" in group or group == "multi-language", caught.value)
        checks.equal(records, [], "ran")


@parametrize("method", [*AVERAGED_METHODS, "Iallreduce"])
def test_integers_are_refused_in_every_collective(comm, method):
    ours, n = mpicoll.Comm(comm), comm.size
    got = np.zeros(1 if "scatter" in method else n, int)
    with pytest.raises(OperatorError, match="not an integer"):
        getattr(ours, method)(np.zeros(n, int), got, op=mpicoll.AVG)


def test_derived_types_are_refused_as_for_any_predefined_operator(comm):
    ours, datatype = mpicoll.Comm(comm), MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    for op in (MPI.SUM, mpicoll.AVG):
        with pytest.raises(OperatorError, match="predefined"):
            ours.Allreduce([np.zeros(4), 1, datatype], [np.zeros(4), 1, datatype], op)
    datatype.Free()


@parametrize("collective", ["scan", "exscan"])
def test_averages_of_scans_are_refused(collective):
    parsed, method = parse_allreduce(np.zeros(2), np.zeros(2)), methods.METHODS[collective.title()]
    with pytest.raises(OperatorError, match=f"AVG does not {collective}"):
        call.describe_call(Invocation(method, None, None, mpicoll.AVG, 0), parsed)
    assert call.describe_call(Invocation(method, None, None, MPI.SUM, 0), parsed).operator.name == "SUM"


def test_long_doubles_by_a_chosen_algorithm(comm):
    """Averages need a kernel."""
    send, receive = np.full(3, comm.rank, "g"), np.zeros(3, "g")
    refused = nullcontext() if rules.EXTENDED else pytest.raises(PreconditionError, match="LONG_DOUBLE")
    with mpicoll.Comm(comm).using(allreduce="ring") as ours, refused:
        ours.Allreduce(send, receive, mpicoll.AVG)
        assert (receive == np.longdouble(comm.size * (comm.size - 1) // 2) / comm.size).all()


@several
def test_check_mode_tells_averages_from_sums(comm, monkeypatch):
    monkeypatch.setenv("MPICOLL_CHECK", "1")
    ours, got = mpicoll.Comm(comm), np.zeros(3)
    with pytest.raises(MismatchError, match=r"(?s)AVG.*SUM|SUM.*AVG"):
        ours.Allreduce(np.ones(3), got, MPI.SUM if comm.rank else mpicoll.AVG)
    for spec in ("ring", "native"):
        with ours.using(allreduce=spec):
            ours.Allreduce(np.full(3, comm.rank + 1.0), got, mpicoll.AVG)
            assert (got == (comm.size + 1) / 2).all()
            ours.Iallreduce(np.full(3, comm.rank + 3.0), got, mpicoll.AVG).Wait()
            assert (got == (comm.size + 5) / 2).all()


# -- the operator itself


def test_it_is_an_operator_of_mpi(comm):
    average = mpicoll.AVG
    assert isinstance(average, MPI.Op) and average.Is_commutative() and not average.is_predefined
    assert average is mpicoll.AVG and repr(average) == "mpicoll.AVG"
    assert average not in (MPI.SUM, MPI.OP_NULL)
    with pytest.raises(OperatorError, match="cannot be freed"):
        average.Free()
    with pytest.raises(OperatorError, match="averages on an mpicoll"):
        average(1.0, 2.0)
    assert mpicoll.Comm(comm).explain("allreduce", 1 << 20, average).algorithm != "native" or comm.size == 1
