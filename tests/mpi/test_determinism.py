"""Real ranks get the bits of an algorithm's reduction trees, whatever the run, chunks, engine, place and form of call.

The trees are evaluated in NumPy on numbers of very different size, on which any other order of additions shows.
"""

from __future__ import annotations

import time
from functools import cache
from itertools import cycle, product

import numpy as np
import pytest
from mpi4py import MPI
from support.cases import Case, Checks
from support.collectives import ENGINES, REDUCING, meaning, roots, specs, variants
from support.in_form import FORMS, in_form
from unit.test_bits import from_itself, numbers

import mpicoll
from mpicoll.proofs.determinism import ReductionTrees, agreement, same_on_all_ranks
from mpicoll.schedules import blocks
from mpicoll.schedules.registry import _REGISTRY, algorithm, find

SPECS = specs(REDUCING)
CHOICES = list(variants(REDUCING))
ALLREDUCE = [spec for collective, spec in SPECS + CHOICES if collective == "allreduce"]
WAYS = ({}, {"chunk_bytes": 1, "window": 1}, {"chunk_bytes": 56, "window": 3}, {"chunk_bytes": 1000, "window": 32})
SEVERAL = 300                               # elements: chunks that are vectorised, with remainders
parametrize = pytest.mark.parametrize


def of(code):
    """Return every rank's numbers of a dtype."""
    return lambda n, rank: numbers(n, code, rank)


def operation(op):
    """Return an operator on two arrays. NumPy may contract the products of complex numbers, so this spells them out."""
    def multiplied(x, y):
        if x.dtype.kind != "c":
            return x * y
        out = np.empty_like(x)
        out.real = x.real * y.real - x.imag * y.imag
        out.imag = x.real * y.imag + x.imag * y.real
        return out

    return {"SUM": np.add, "PROD": multiplied}[op]


@cache
def trees_of(collective, spec, p, root, commutative=True):
    """Return the trees of a schedule as a call runs it: all ranks are on one machine."""
    nodes = (tuple(range(p)),)
    return ReductionTrees(mpicoll.schedule(collective, spec, p, root, commutative=commutative, nodes=nodes))


def derived(case, spec, p, rank, code, commutative=True):
    """Return a rank's result by its reduction trees, None if it has none."""
    if meaning(case.collective).rooted and rank != case.root:
        return None
    trees = trees_of(case.collective, spec, p, case.root, commutative)
    shared = case.collective == "reduce_scatter"
    vectors = [case.contribution(p, r) for r in range(p)]
    parts = trees.schedule.parts if shared else len(trees.schedule.blocks)
    sizes = blocks.sizes(case.n, parts) * (p if shared else 1)
    at = blocks.offsets(sizes)
    add = operation(case.operator or "SUM")
    results = [
        trees.forest.evaluate(trees.tree(rank, b), add, [x[at[b] : at[b] + sizes[b]] for x in vectors])
        for b in trees.schedule.ends(rank)
    ]
    return np.concatenate(results) if results else None     # rank 0 of an exscan keeps what was there


def same(got, expected):
    return (got is None and expected is None) or got.tobytes() == expected.tobytes()


def check(checks, ours, case, spec, code, engine, forms=FORMS, **how):
    """Compare a call in each of the forms with the trees."""
    want = derived(case, spec, ours.size, ours.rank, code)
    with ours.using(engine=engine, **{case.collective: spec}, **how), ours.trace() as records:
        got = {form: case.run(in_form(mpicoll.Comm, form)(ours)).result for form in forms}
    if case.collective == "exscan" and ours.rank == 0:
        return
    for form, result in got.items():
        checks.that(same(result, want), case, spec, code, engine, how, f"{form}: {result} is not {want}")
    checks.equal({(r.algorithm, r.engine) for r in records}, {(spec, engine)}, case, spec, how, "trace")


@parametrize(("collective", "spec"), SPECS, ids=map(" ".join, SPECS))
def test_bits_are_those_of_the_trees(comm, engine, collective, spec):
    """Compare bits with those of the trees, which do not depend on chunks, engine or place.

    Places and forms take turns over the calls: any of them may break alone, and a product would take six times as long.
    """
    ours, p = mpicoll.Comm(comm), comm.size
    calls = [("SUM", "d", 2 * p + 1, how) for how in WAYS]
    calls += [("SUM", "f", SEVERAL, WAYS[0]), ("PROD", "d", SEVERAL, WAYS[3]), ("PROD", "D", SEVERAL, WAYS[3])]
    with Checks() as checks:
        turns = zip(product(((0, False), (p - 1, True)), calls), cycle(FORMS))
        for ((root, in_place), (op, code, n, how)), form in turns:
            case = Case(collective, n, roots(collective, root)[0], in_place, op, of(code))
            check(checks, ours, case, spec, code, engine, [form], **how)


@parametrize(("collective", "spec"), CHOICES, ids=map(" ".join, CHOICES))
def test_bits_with_parameters(ours, comm, collective, spec):
    with Checks() as checks:
        for (engine, in_place), form in zip(product(ENGINES, (False, True)), cycle(FORMS)):
            case = Case(collective, 3 * comm.size + 1, 0, in_place, make=of("d"))
            check(checks, ours, case, spec, "d", engine, [form], **WAYS[2])


def test_the_same_twice(comm):
    """With other calls under way, and with ranks that come late in turns."""
    ours, mine = mpicoll.Comm(comm), numbers(4000, "d", comm.rank)
    got, other = [np.empty_like(mine) for _ in range(6)], np.empty_like(mine)
    with ours.using(allreduce="ring", chunk_bytes=512):
        for i, result in enumerate(got):
            under_way = [ours.Iallreduce(mine, other)] * (i % 2)
            if comm.rank == i % comm.size:
                time.sleep(0.01)
            ours.Allreduce(mine, result)
            for request in under_way:
                request.Wait()
    assert all(same(result, got[0]) for result in got)


# -- on all ranks


def bytes_of_all_ranks(comm, mine):
    """Return all ranks' results, as bytes."""
    return comm.allgather(mine.tobytes())


@parametrize("spec", ALLREDUCE)
def test_ranks_agree_as_derived(comm, spec):
    ours, p = mpicoll.Comm(comm), comm.size
    for code in "fd":
        case = Case("allreduce", 1000, make=of(code))
        with ours.using(allreduce=spec):
            results = bytes_of_all_ranks(comm, case.run(ours).result)
        assert same_on_all_ranks(trees_of("allreduce", spec, p, 0).schedule)
        assert len(set(results)) == 1


@pytest.fixture
def disagreeing():
    """Register a right allreduce whose ranks begin with their own contributions; return its name."""
    @algorithm("allreduce", name="from_itself")
    def body(p, rank):
        """Every rank reduces all in an order of its own.

        Steps: p > 1
        Bytes per rank: n * (p - 1)
        Scratch: n * (p - 1)
        Cost: (p - 1) (α + n β + n γ)
        Source: none
        """
        yield from from_itself(p, rank)

    yield "from_itself"
    del _REGISTRY["allreduce"]["from_itself"]


def test_ranks_disagree_as_derived(comm, engine, disagreeing):
    ours, p = mpicoll.Comm(comm), comm.size
    case = Case("allreduce", 1000, make=of("d"))
    with Checks() as checks:
        for how in WAYS:
            check(checks, ours, case, disagreeing, "d", engine, **how)
    with ours.using(allreduce=disagreeing, engine=engine):
        results = bytes_of_all_ranks(comm, case.run(ours).result)
    assert agreement(find("allreduce", disagreeing)).unless.startswith("p = 3-")
    assert len(set(results)) == (p if p > 2 else 1)


@pytest.mark.mpi(min_size=3)
@pytest.mark.unsampled(max_size=4)
def test_two_algorithms_give_two_results(ours):
    """On three ranks or more two algorithms give two results, so the comparisons above can fail."""
    results = []
    for spec in ("ring", "recursive_doubling"):
        with ours.using(allreduce=spec):
            results.append(Case("allreduce", 1000, make=of("d")).run(ours).result)
    assert not same(*results) and np.allclose(*results)


# -- operators


@parametrize(("collective", "spec"), [x for x in SPECS if find(*x).keeps_order(MPI.COMM_WORLD.size)], ids=" ".join)
def test_operators_that_do_not_commute_are_reduced_by_the_trees_in_rank_order(comm, engine, collective, spec):
    def fold(source, target, datatype):
        x, y = np.frombuffer(source, "d"), np.frombuffer(target, "d")
        y[:] = x + y

    ours, p = mpicoll.Comm(comm), comm.size
    op = MPI.Op.Create(fold, commute=False)
    with Checks() as checks:
        for root, how in product(roots(collective, 0, p - 1), WAYS[::2]):
            case = Case(collective, 2 * p + 1, root, make=of("d"), handle=op)
            want = derived(case, spec, p, comm.rank, "d", commutative=False)
            with ours.using(engine=engine, **{collective: spec}, **how):
                got = case.run(ours).result
            exempt = collective == "exscan" and comm.rank == 0
            checks.that(exempt or same(got, want), case, spec, how, f"{got} is not {want}")
    op.Free()
