"""auto runs what the model chooses for the class of a call's shares, on the fast path too."""

from __future__ import annotations

import json

import numpy as np
import pytest
from mpi4py import MPI
from support.cases import Checks

import mpicoll
from mpicoll.benchmarks.cases.counts import SHARES
from mpicoll.errors import ArgumentError
from mpicoll.schedules.collectives import BLOCKING, FORMS, NONBLOCKING

LINKS = {"latency": 60, "rendezvous": 120, "gap": 5, "short_rate": 24, "rate": 24}
NODE = {**LINKS, "latency": 61}
SLOW = {"node": NODE, "links": LINKS, "short_bytes": 65536, "fold_rate": 5000, "copy_rate": 6000}
N = 1 << 13  # bytes of a share, on average


@pytest.fixture
def slow(comm, tmp_path_factory, monkeypatch):
    """Return a Comm whose network has slow links."""
    path = comm.bcast(str(tmp_path_factory.mktemp("network") / "slow.json") if comm.rank == 0 else None)
    if comm.rank == 0:
        with open(path, "w") as file:
            json.dump(SLOW, file)
    comm.Barrier()
    monkeypatch.setenv("MPICOLL_NETWORK", path)
    return mpicoll.Comm(comm.Dup())


def shares(p):
    """Return counts of every kind, which change from call to call, and those of two calls without bytes."""
    lonely = [0] * (p - 1) + [N * p]
    kinds = [SHARES["even"](N, p), SHARES["spike"](N, p), lonely, [0] * p, SHARES["uneven"](N, p)]
    return [[n - n // (64 + more) for n in counts] for more in range(6) for counts in kinds]


def call(comm, collective, counts, form):
    """Run a call in a form; return its result and the right one."""
    p, rank, total = comm.size, comm.rank, sum(counts)
    at = sum(counts[:rank])
    if collective == "allgatherv":
        data = np.arange(total, dtype=np.uint8)
        send, recv, right = data[at : at + counts[rank]].copy(), np.zeros(total, np.uint8), data
        arguments = send, [recv, np.array(counts), None, MPI.BYTE]
        method = {"blocking": "Allgatherv", NONBLOCKING: "Iallgatherv"}.get(form, "Allgatherv_init")
    else:
        data = np.arange(total, dtype=np.int64)
        recv = np.zeros(counts[rank], np.int64)
        right = p * data[at : at + counts[rank]]
        arguments = data, recv, counts
        method = {"blocking": "Reduce_scatter", NONBLOCKING: "Ireduce_scatter"}.get(form, "Reduce_scatter_init")
    request = getattr(comm, method)(*arguments)
    if form not in (BLOCKING, NONBLOCKING):
        request.Start()
    if form != BLOCKING:
        request.Wait()
    return recv, right


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("collective", ["allgatherv", "reduce_scatter"])
def test_the_trace_shows_the_choice_of_each_class(slow, collective, form):
    unit = 1 if collective == "allgatherv" else 8
    with Checks() as checks, slow.trace() as records:
        wanted = []
        for counts in shares(slow.size):
            checks.equal(*call(slow, collective, counts, form), counts)
            choice = slow.explain(collective, unit * sum(counts), counts=counts)
            wanted.append((choice.algorithm, choice.chunk_bytes))
        ran = [(record.algorithm, record.chunk_bytes) for record in records]
        checks.equal(ran, wanted, "algorithms")
        checks.equal(slow.allgather(ran), [ran] * slow.size, "on all ranks")
        if collective == "allgatherv" and form != "persistent":
            checks.that(all(record.fast_path for record in records[-5:]), [record.fast_path for record in records])
        if slow.size == 8:
            checks.that("circulant_segments" in {name for name, _ in ran[1::5]}, ran)
        checks.that(("circulant_segments" not in {name for name, _ in ran[::5]}), "even")


def test_explain_refuses_wrong_counts(slow):
    for collective, counts in (("bcast", [1] * slow.size), ("allgatherv", [1] * (slow.size + 1))):
        with pytest.raises(ArgumentError, match="counts"):
            slow.explain(collective, 8, counts=counts)
