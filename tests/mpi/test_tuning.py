"""Tuning tables on real ranks: auto goes by the one of these ranks, and says why where there is none."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from mpi4py import MPI
from support.cases import Case, Checks

import mpicoll
from mpicoll.benchmarks.cases.patterns import PATTERNS, Shape
from mpicoll.benchmarks.measure.rounds import Timing
from mpicoll.benchmarks.tune.shortlist import Shortlist
from mpicoll.cost.network import network
from mpicoll.errors import ArgumentError, TuningError
from mpicoll.runtime import agreement
from mpicoll.schedules.registry import exact_algorithms, find
from mpicoll.schedules.schedule import schedule
from mpicoll.selection import tables
from mpicoll.selection.modelled import modelled_rules
from mpicoll.selection.rules import UNKNOWN_TO_ALL
from mpicoll.selection.tables import SCHEMA, layout, library


@pytest.fixture
def tuned(comm, monkeypatch, tmp_path):
    """Yield a function that makes a communicator under a table of these rules, whose fields are as measured here."""
    for module in (tables, agreement):
        monkeypatch.setattr(module, "READ", {})

    def make(rules, **fields):
        nodes = layout(mpicoll.Comm(comm)._open().agreed.nodes)
        table = {"mpi": library(MPI), "nodes": list(nodes), "rules": rules, **fields}
        path = tmp_path / "t.json"
        path.write_text(json.dumps({"schema": SCHEMA, "tables": [table]}))
        monkeypatch.setenv("MPICOLL_TUNING", str(path))     # rank 0's counts
        comm_by_table = mpicoll.Comm(comm.Dup())
        made_here.append(comm_by_table)
        return comm_by_table

    made_here = []
    yield make
    for comm_by_table in made_here:
        comm_by_table.Free()


def ran(comm, case):
    with comm.trace() as records:
        call = case.run(comm)
    return call, [(r.algorithm, r.chunk_bytes) for r in records]


ROWS = [{"from_bytes": 0, "algorithm": "tree"}, {"from_bytes": 64, "algorithm": "native"},
        {"from_bytes": 4096, "algorithm": "ring", "chunk_bytes": 512}]


def test_auto_follows_the_table(comm, tuned):
    """Again and again, so the fast path too; a part of the communicator has none."""
    ours = tuned({"allreduce": ROWS})
    with Checks() as checks:
        for n, wanted in ((3, ("tree", None)), (20, ("native", None)), (3000, ("ring", 512))):
            case = Case("allreduce", n)
            for _ in range(4):
                call, records = ran(ours, case)
                checks.equal(records, [wanted], n)
                checks.call(call, n)
            checks.equal(ours.explain("allreduce", 8 * n).algorithm, wanted[0])
        checks.that("tuning table" in ours.explain("allreduce", 8).why, ours.explain("allreduce", 8))
        with ours.using(allreduce="recursive_doubling"):
            checks.equal(ran(ours, Case("allreduce", 20))[1], [("recursive_doubling", None)])
        with ours.using(engine="mpi4py"):
            checks.that(ran(ours, Case("allreduce", 20))[1][0][0] != "native", "what is forced is not native")
    part = ours.Split(int(comm.rank == 0))
    if comm.size > 1:
        assert "is not for" in part.explain("allreduce", 8).why
    part.Free()


def test_every_form_of_a_call_that_native_serves(comm, tuned):
    ours = tuned({"allreduce": [{"from_bytes": 0, "algorithm": "native"}]})
    case = Case("allreduce", 5)
    with Checks() as checks, ours.trace() as records:
        checks.call(case.run(ours))
        send, recv = np.full(5, comm.rank + 1.0), np.zeros(5)
        total = np.full(5, comm.size * (comm.size + 1) / 2)
        ours.Iallreduce(send, recv).Wait()
        checks.equal(recv, total)
        average = np.zeros(5)
        ours.Allreduce(send, average, mpicoll.AVG)
        checks.equal(average, total / comm.size)
        persistent = ours.Allreduce_init(send, recv)
        for _ in range(2):
            recv[:] = 0
            persistent.Start()
            persistent.Wait()
            checks.equal(recv, total)
        persistent.Free()
        checks.equal({(r.algorithm, r.form) for r in records},
                     {("native", "blocking"), ("native", "nonblocking"), ("recursive_doubling", "persistent")})


def test_check_mode_and_copies_go_by_it_too(comm, tuned, monkeypatch, tmp_path):
    """Once the file is gone: it was read."""
    monkeypatch.setenv("MPICOLL_CHECK", "1")
    ours = tuned({"allreduce": ROWS})
    comm.Barrier()
    (tmp_path / "t.json").unlink(missing_ok=True)
    comm.Barrier()
    later, request = ours.Idup()
    request.Wait()
    with Checks() as checks:
        for comm_by_table in (ours, ours.Dup(), later):
            for n, wanted in ((3, ("tree", None)), (20, ("native", None))):
                call, records = ran(comm_by_table, Case("allreduce", n))
                checks.equal(records, [wanted], n)
                checks.call(call, n)
            if comm_by_table is not ours:
                comm_by_table.Free()


@pytest.mark.parametrize("changes", [{"mpi": "MPICH 0.1"}, {"nodes": ["0-99"]}])
def test_a_table_of_something_else_is_refused_with_the_reason(comm, tuned, changes, caplog):
    with caplog.at_level(logging.WARNING, "mpicoll"):
        ours = tuned({"allreduce": ROWS[:1]}, **changes)
    why = ours.explain("allreduce", 8).why
    with Checks() as checks:
        checks.that("t.json is not for" in why and "; it is for" in why, why)
        checks.equal(ran(ours, Case("allreduce", 3))[1], [("recursive_doubling", None)])
        warnings = [r.getMessage() for r in caplog.records if "run mpicoll tune here" in r.getMessage()]
        checks.equal(len(warnings), int(comm.rank == 0 and comm.size == MPI.COMM_WORLD.size), warnings)


def test_a_forced_engine_does_not_go_by_it(comm, tuned, monkeypatch):
    monkeypatch.setenv("MPICOLL_ENGINE", "mpi4py")
    ours = tuned({"allreduce": [{"from_bytes": 0, "algorithm": "native"}]})
    assert ran(ours, Case("allreduce", 3))[1] == [("recursive_doubling", None)]
    assert "MPICOLL_ENGINE is set" in ours.explain("allreduce", 8).why


def test_a_wrong_table_raises_on_every_rank(comm, tuned):
    with pytest.raises(TuningError, match="no allreduce algorithm is called 'rung'"):
        tuned({"allreduce": [{"from_bytes": 0, "algorithm": "rung"}]})


@pytest.mark.parametrize("collective", [name for name in PATTERNS if name not in UNKNOWN_TO_ALL])
def test_sizes_of_benchmarks_as_bytes_of_calls(comm, collective):
    from mpicoll.benchmarks.cases.case import Case as Timed

    ours, shape = mpicoll.Comm(comm), Shape(collective)
    case = Timed(shape, 4096, comm.rank, comm.size)
    with ours.trace() as records, case.ready(ours, MPI) as operation:
        operation.call()
    assert [r.nbytes for r in records] == [shape.bytes_of_call(4096, comm.size)]


def test_log_says_of_every_call_what_ran(comm, monkeypatch, capfd):
    monkeypatch.setenv("MPICOLL_LOG", "info")
    ours = mpicoll.Comm(comm.Dup())
    for _ in range(3):
        Case("allreduce", 4).run(ours)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("mpicoll: call ")]
    ours.Free()
    assert len(lines) == (3 if comm.rank == 0 else 0)
    if lines:
        assert f"blocking allreduce of 32 bytes on {comm.size} rank" in lines[0]
        assert "recursive_doubling on the " in lines[0] and lines[0].endswith("fewest rounds: latency decides")


def test_auto_follows_the_model_of_a_network(comm, monkeypatch, tuned):
    """Go by the network that rank 0 names on all ranks, but by a table first, and by using() before both."""
    monkeypatch.setenv("MPICOLL_NETWORK", "infiniband" if comm.rank == 0 else "")
    monkeypatch.delenv("MPICOLL_TUNING", raising=False)
    ours = mpicoll.Comm(comm.Dup())
    agreed, model = ours._open().agreed, network("infiniband")
    with Checks() as checks:
        checks.equal(agreed.network, model)
        for n in (3, 300, 5000, 40000):
            nodes = agreed.nodes
            for op, commutes in ((MPI.SUM, True), (MPI.Op.Create(lambda a, b, t: None, commute=False), False)):
                wanted = modelled_rules(model, "allreduce", comm.size, commutes, nodes)
                rule = next(r for r in reversed(wanted) if r.fits(8 * n, comm.size))
                choice = ours.explain("allreduce", 8 * n, op)
                checks.equal((choice.algorithm, choice.chunk_bytes), (rule.algorithm, rule.chunk_bytes), n)
                checks.that("the model of infiniband" in choice.why, choice)
                checks.that(choice.model.startswith(f"{choice.algorithm} ") and choice.model.count(" µs") == 3, choice)
                checks.that(f"; by the model: {choice.model}" in str(choice), choice)
                if not commutes:
                    op.Free()
            case = Case("allreduce", n)
            for _ in range(3):
                call, records = ran(ours, case)
                choice = ours.explain("allreduce", 8 * n)
                checks.equal(records, [(choice.algorithm, choice.chunk_bytes)], n)
                checks.call(call, n)
        for n in (20, 1 << 19):
            with ours.using(allreduce="double_tree"):
                forced = modelled_rules(model, "allreduce", comm.size, True, agreed.nodes, "double_tree")
                rule = next(r for r in reversed(forced) if r.fits(8 * n, comm.size))
                choice, case = ours.explain("allreduce", 8 * n), Case("allreduce", n)
                checks.that("chosen by using()" in choice.why and "the model of infiniband" in choice.why, choice)
                for _ in range(3):
                    call, records = ran(ours, case)
                    checks.equal(records, [("double_tree", rule.chunk_bytes)], n)
                    checks.call(call, n)
            with ours.using(allreduce="double_tree", chunk_bytes=1 << 12):
                checks.equal(ran(ours, case)[1], [("double_tree", 1 << 12)], n)
        both = tuned({"allreduce": ROWS})
        checks.that(both.explain("allreduce", 24).model, "the network is not known")
        checks.equal(ran(both, Case("allreduce", 3))[1], [("tree", None)])
    ours.Free()


def test_counts_that_change_follow_the_model(comm, monkeypatch):
    """The fast path's kinds of any counts end where the model's choice does."""
    monkeypatch.setenv("MPICOLL_NETWORK", "infiniband")
    ours = mpicoll.Comm(comm.Dup())
    with Checks() as checks:
        for n in [*range(1, 40, 7), *range(100, 20000, 1777)] * 2:
            case = Case("allreduce", n)
            call, records = ran(ours, case)
            checks.equal(records[0][0], ours.explain("allreduce", 8 * n).algorithm, n)
            checks.call(call, n)
    ours.Free()


def test_a_network_that_rank_0_cannot_read_is_an_error_everywhere(comm, monkeypatch):
    monkeypatch.setenv("MPICOLL_NETWORK", "nowhere" if comm.rank == 0 else "")
    with pytest.raises(ArgumentError, match="presets are"):
        mpicoll.Comm(comm.Dup())


@pytest.fixture
def tuner(comm):
    """Make a tuner; what it measures is kept, and every contender takes what `times` says, in µs."""
    from mpicoll.benchmarks.bench.harness import Harness
    from mpicoll.benchmarks.tune.tuner import Tuner

    harnesses = []

    def make(times, **how):
        harnesses.append(Harness({}, world=comm))
        tuner = Tuner(harnesses[-1], **how)
        tuner.rounds, tuner.seconds = [], 0.0

        def measure(cases, native, candidates, seconds):
            timings = []
            for contender in (native, *(candidate.contender for candidate in candidates)):
                us = times.get(contender.algorithm, 50.0)
                timings.append(Timing(contender, rounds=[[us * 1e-6 * (1 + i / 1e4)] for i in range(40)]))
            tuner.rounds.append([candidate.algorithm for candidate in candidates])
            tuner.seconds += seconds
            return timings

        tuner._measure = measure
        return tuner

    yield make
    for harness in harnesses:
        harness.__exit__(None)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("winner", ["algorithm", "native", "auto"])
def test_tune_finds_the_same_winner_among_fewer(comm, tuner, monkeypatch, winner):
    """Algorithms far from the model's best are not measured, and those that send the same messages only once."""
    monkeypatch.setenv("MPICOLL_NETWORK", "infiniband")
    times = {"native": 20.0, "auto": 20.0, "tree": 25.0}
    some, every = tuner(times), tuner(times, measures_all=True)
    choice = some.ours.explain("allreduce", 1 << 20).algorithm
    shortlist = Shortlist(some.network, "allreduce", comm.size, some.nodes, 1 << 20)
    near = [name for name in ALGORITHMS if shortlist.is_near(name) and not is_same(name, choice, comm.size)]
    fast = [name for name in ALGORITHMS if is_same(name, near[-1], comm.size)] if winner == "algorithm" else [winner]
    times |= dict.fromkeys(fast, 10.0)
    few, full = (tuner.size(Shape("allreduce"), 1 << 20, 10.0) for tuner in (some, every))
    assert full.algorithm in fast and few.algorithm in fast
    assert some.rounds[0][:2] == every.rounds[0][:2] == ["auto", "native"]
    assert few.tried < few.of == full.tried == len(every.rounds[0]) - 2
    assert some.seconds < 0.9 * every.seconds and every.seconds == 10.0
    assert comm.allgather((few, full)) == [(few, full)] * comm.size


ALGORITHMS = exact_algorithms("allreduce")


def is_same(name, other, p):
    programs = ([schedule("allreduce", word, p, nodes=(tuple(range(p)),)).program(rank) for rank in range(p)]
                for word in (name, other))  # fmt: skip
    return next(programs) == next(programs)


@pytest.mark.mpi(min_size=2)
def test_tune_measures_no_second_time_where_nothing_is_near(comm, tuner, monkeypatch):
    monkeypatch.setenv("MPICOLL_NETWORK", "infiniband")
    tuner_of_one = tuner({"auto": 10.0})
    choice = tuner_of_one.size(Shape("allreduce"), 8, 10.0)
    assert choice.algorithm == "auto" and len(tuner_of_one.rounds) == 1 and tuner_of_one.seconds < 4.0
    assert (choice.seconds, choice.native) == (pytest.approx(1e-5, rel=0.01), pytest.approx(5e-5, rel=0.01))


@pytest.mark.mpi(min_size=2)
def test_tune_goes_by_no_model_without_a_network(comm, tuner, monkeypatch):
    """Algorithms that are left out send the same messages as another, or as auto."""
    monkeypatch.setenv("MPICOLL_NETWORK", "none")
    tuner_of_none = tuner({})
    row = tuner_of_none.size(Shape("allreduce"), 8, 10.0)
    measured = [row.rule, *tuner_of_none.rounds[0][2:]]
    assert row.tried == len(measured)
    for name in ALGORITHMS:
        if find("allreduce", name).serves(comm.size):
            assert any(is_same(name, other, comm.size) for other in measured)
