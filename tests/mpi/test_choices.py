"""Parameters on real ranks: group maps, the nodes that are found, and refusals that say the range."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI
from support import cases, collectives, ops
from support.cases import Case, Checks

import mpicoll
from mpicoll.errors import PreconditionError
from mpicoll.schedules.grouping import dealt, uneven
from mpicoll.schedules.registry import find, registered
from mpicoll.selection.rules import HOST_RULES, LINK_RULES

HIERARCHICAL = [entry.collective.name for entry in registered() if entry.name == "hierarchical"]
MAPS = {"uneven": uneven, "dealt": dealt, "pairs": lambda p: 2, "backwards": lambda p: ((*range(p - 1, 0, -1),), (0,))}
parametrize = pytest.mark.parametrize


def as_if_on(ours, nodes):
    """Make mpicoll take the ranks to be on these nodes."""
    state = ours._open()
    state.agreed = replace(state.agreed, nodes=nodes)


def as_if_on_two_nodes(ours):
    """Make mpicoll take the ranks to be on two nodes, dealt in turn."""
    as_if_on(ours, dealt(ours.size, 2))


@parametrize("collective", HIERARCHICAL)
@parametrize("name", MAPS)
def test_given_groups_from_every_root(comm, engine, collective, name):
    ours, p = mpicoll.Comm(comm), comm.size
    spec = f"hierarchical(groups={MAPS[name](p)})"
    with Checks() as checks:
        for root in collectives.roots(collective, *range(p)):
            for n, how in ((2 * p + 1, {}), (p + 1, {"chunk_bytes": 8, "window": 2})):
                cases.check(checks, ours, Case(collective, n, root), spec, engine, **how)


@parametrize(("collective", "spec"), [*((collective, "hierarchical") for collective in HIERARCHICAL),
                                      ("allreduce", "reduce_bcast(reduce=hierarchical, bcast=hierarchical)"),
                                      ("allgather", "gather_bcast(gather=hierarchical, bcast=hierarchical)")])
def test_nodes_whose_ranks_do_not_follow_each_other(comm, engine, collective, spec):
    """As if the machine were several, from every root."""
    ours, p = mpicoll.Comm(comm), comm.size
    as_if_on_two_nodes(ours)
    with Checks() as checks:
        for root in collectives.roots(collective, *range(p)):
            cases.check(checks, ours, Case(collective, 2 * p + 1, root), spec, engine)


@pytest.mark.mpi(min_size=3)
@pytest.mark.unsampled(max_size=4)
def test_ranks_that_share_hosts_meet_there_first(ours, comm, engine):
    """As if the machine were two: what auto chooses then is right, and explain says the same."""
    as_if_on_two_nodes(ours)
    with Checks() as checks:
        for collective in HOST_RULES:
            for n in (100, 9000, 20_000):
                case = Case(collective, n)
                with ours.using(engine=engine), ours.trace() as records:
                    checks.call(case.run(ours), case)
                checks.equal(records[0].algorithm, ours.explain(collective, records[0].nbytes).algorithm, case)
                few = records[0].nbytes < HOST_RULES[collective][0].above
                checks.equal(records[0].algorithm.startswith("hierarchical"), not few, case)


@pytest.mark.mpi(min_size=2)
@parametrize("collective", sorted(set(LINK_RULES) & set(collectives.EQUAL_BLOCKS)))
def test_ranks_on_hosts_of_their_own(comm, engine, collective):
    """As if each were on one: large vectors go in small chunks, which come out right."""
    ours, p = mpicoll.Comm(comm), comm.size
    as_if_on(ours, tuple((rank,) for rank in range(p)))
    blocks = 1 if collectives.has_whole_vector(collective) else p
    with Checks() as checks:
        for n in (100, 3000, 50_000 // blocks, 100_001 // blocks):
            case = Case(collective, n)
            with ours.using(engine=engine), ours.trace() as records:
                checks.call(case.run(ours), case)
            choice = ours.explain(collective, records[0].nbytes)
            checks.equal((records[0].algorithm, records[0].engine), (choice.algorithm, engine), case)
            rule = LINK_RULES[collective][-1]
            if records[0].nbytes >= max(rule.above, rule.per_rank * p) and p >= rule.ranks:
                checks.equal((choice.algorithm, choice.chunk_bytes), (rule.algorithm, rule.chunk_bytes), case)


@pytest.mark.mpi(min_size=2)
def test_vectors_between_hosts(comm, engine):
    """In chunks, though a rank knows only its own counts: rank 0 has the most, and some have nothing."""
    ours, p, rank = mpicoll.Comm(comm), comm.size, comm.rank
    as_if_on(ours, tuple((rank,) for rank in range(p)))
    counts = [[(9000 if 0 in (a, b) else a) * (b % 3 > 0) for b in range(p)] for a in range(p)]
    mine, theirs = counts[rank], [counts[a][rank] for a in range(p)]
    send = cases.data(sum(mine), rank)
    with Checks() as checks, ours.using(engine=engine), ours.trace() as records:
        for method in ("Alltoallv", "Allgatherv"):
            got, wanted = [], []
            for communicator, results in ((ours, got), (comm, wanted)):
                all_counts = theirs if method == "Alltoallv" else [sum(counts[a]) for a in range(p)]
                receive = np.zeros(sum(all_counts))
                getattr(communicator, method)([send, mine] if method == "Alltoallv" else send, [receive, all_counts])
                results.append(receive)
            checks.equal(got[0], wanted[0], method)
        checks.equal([r.algorithm for r in records], ["linear", "ring"])
        if rank == 0:       # 72,000 bytes in chunks of 32 KiB
            checks.equal(records[0].messages, 3 * sum(counts[0][b] > 0 for b in range(1, p)))


def test_nodes_are_those_that_share_memory(ours, comm):
    with ours.using(allreduce="hierarchical"), ours.trace() as records:
        call = Case("allreduce", 7).run(ours)
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    mine = node.allgather(comm.rank)
    node.Free()
    with Checks() as checks:
        checks.call(call)
        checks.equal([r.algorithm for r in records], ["hierarchical"])
        checks.that(tuple(mine) in ours._open().agreed.nodes, mine, ours._open().agreed.nodes)
        checks.equal(sorted(r for group in ours._open().agreed.nodes for r in group), list(range(comm.size)))


def test_order_is_kept_where_the_groups_are_in_rank_order(comm, engine):
    """And where they are not, an operator that does not commute is refused."""
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks:
        case = Case("allreduce", 4, op="AFFINE", make=ops.maps)
        for groups in (2, uneven(p)):
            with ours.using(engine=engine, allreduce=f"hierarchical(middle=recursive_doubling, groups={groups})"):
                checks.call(case.run(ours), groups)
        if p > 3:
            spec = f"hierarchical(middle=recursive_doubling, groups={dealt(p, 2)})"
            with ours.using(allreduce=spec), pytest.raises(PreconditionError, match="does not keep operand order"):
                case.run(ours)


REQUIRING = [(entry.collective.name, entry.name) for entry in registered() if entry.requires]


@parametrize(("collective", "spec"), REQUIRING)
def test_numbers_of_ranks_that_do_not_fit_are_refused(comm, collective, spec):
    ours, entry = mpicoll.Comm(comm), find(collective, spec)
    if entry.serves(comm.size):
        with Checks() as checks:
            cases.check(checks, ours, Case(collective, 5), spec, "mpi4py")
        return
    with pytest.raises(PreconditionError, match=entry.requires.words), ours.using(**{collective: spec}):
        pass
