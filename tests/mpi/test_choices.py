"""Parameters on real ranks: group maps, the nodes that are found, and refusals that say the range."""

from __future__ import annotations

import mpi_cases as cases
import mpi_ops as ops
import numpy as np
import pytest
from mpi4py import MPI
from mpi_cases import Case, Checks

import mpicoll
from mpicoll.errors import ParameterError, PreconditionError
from mpicoll.parameters import dealt, uneven
from mpicoll.registry import find, registered

HIERARCHICAL = [entry.collective.name for entry in registered() if entry.name == "hierarchical"]
MAPS = {"uneven": uneven, "dealt": dealt, "pairs": lambda p: 2, "backwards": lambda p: ((*range(p - 1, 0, -1),), (0,))}
each = pytest.mark.parametrize


@pytest.fixture(params=cases.ENGINES)
def engine(request):
    return request.param


@each("collective", HIERARCHICAL)
@each("name", MAPS)
def test_given_groups_from_every_root(comm, engine, collective, name):
    ours, p = mpicoll.Comm(comm), comm.size
    spec = f"hierarchical(groups={MAPS[name](p)})"
    with Checks() as checks:
        for root in range(p) if collective in cases.ROOTED else (0,):
            for n, how in ((2 * p + 1, {}), (p + 1, {"chunk_bytes": 8, "window": 2})):
                cases.check(checks, ours, comm, Case(collective, n, root), spec, engine, **how)


@each(("collective", "spec"), [*((collective, "hierarchical") for collective in HIERARCHICAL),
                               ("allreduce", "reduce_bcast(reduce=hierarchical, bcast=hierarchical)"),
                               ("allgather", "gather_bcast(gather=hierarchical, bcast=hierarchical)")])
def test_nodes_whose_ranks_do_not_follow_each_other(comm, engine, collective, spec):
    """As if the machine were several, from every root."""
    ours, p = mpicoll.Comm(comm), comm.size
    ours._open().nodes = dealt(p, 2)
    with Checks() as checks:
        for root in range(p) if collective in cases.ROOTED else (0,):
            cases.check(checks, ours, comm, Case(collective, 2 * p + 1, root), spec, engine)


def test_nodes_are_those_that_share_memory(comm):
    ours = mpicoll.Comm(comm)
    with ours.using(allreduce="hierarchical"), ours.trace() as records:
        case = Case("allreduce", 7)
        got = case.run(ours).result
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    mine = node.allgather(comm.rank)
    node.Free()
    with Checks() as checks:
        checks.equal(got, case.run(comm).result)
        checks.equal([r.algorithm for r in records], ["hierarchical"])
        checks.that(tuple(mine) in ours._open().nodes, mine, ours._open().nodes)
        checks.equal(sorted(r for group in ours._open().nodes for r in group), list(range(comm.size)))


def test_order_is_kept_where_the_groups_are_in_rank_order(comm, engine):
    """And where they are not, an operator that does not commute is refused."""
    ours, p = mpicoll.Comm(comm), comm.size
    with ops.user_op(ops.AFFINE) as op, Checks() as checks:
        case = Case("allreduce", 4, user=op, make=ops.maps)
        for groups in (2, uneven(p)):
            with ours.using(engine=engine, allreduce=f"hierarchical(middle=recursive_doubling, groups={groups})"):
                checks.equal(case.run(ours).result, case.run(comm).result, groups)
        if p > 3:
            spec = f"hierarchical(middle=recursive_doubling, groups={dealt(p, 2)})"
            with ours.using(allreduce=spec), pytest.raises(PreconditionError, match="does not keep operand order"):
                case.run(ours)


REFUSED = {
    "recursive_multiplying(k=1)": "at least 2",
    "parameter_server(servers=0)": "from 1 to p",
    "parameter_server(servers=1000)": "from 1 to p",
    "hierarchical(groups=0)": "at least 1",
    "hierarchical(groups=((1000,),))": "names 1000",
    "halving_doubling(form=other)": "fold or binary_blocks",
    "ring(k=2)": "no parameter k",
}


@each(("spec", "says"), REFUSED.items(), ids=REFUSED)
def test_a_parameter_out_of_range_names_the_range(comm, spec, says):
    """Before any message, on every rank alike."""
    ours = mpicoll.Comm(comm)
    with pytest.raises(ParameterError, match=says), ours.using(allreduce=spec):
        pass
    send, got = np.ones(3), np.zeros(3)
    ours.Allreduce(send, got)
    assert (got == comm.size).all()


REQUIRING = [(entry.collective.name, entry.name) for entry in registered() if entry.requires]


@each(("collective", "spec"), REQUIRING)
def test_ranks_that_will_not_do_are_refused(comm, collective, spec):
    ours, entry = mpicoll.Comm(comm), find(collective, spec)
    if entry.serves(comm.size):
        with Checks() as checks:
            cases.check(checks, ours, comm, Case(collective, 5), spec, "mpi4py")
        return
    with pytest.raises(PreconditionError, match=entry.requires.words), ours.using(**{collective: spec}):
        pass
