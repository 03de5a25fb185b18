"""Timelines: every message of every algorithm, sends matched with receives, on one clock."""

from __future__ import annotations

import cProfile
import json
import pstats
import time

import numpy as np
import pytest
from mpi4py import MPI
from support import collectives
from support.cases import Case
from support.trace_events import check_format

import mpicoll
from mpicoll.engines import mpi4py as reference
from mpicoll.engines.events import RECORDING
from mpicoll.progress import turns
from mpicoll.progress.thread import THREAD
from mpicoll.timeline import clock, merge, read, recorder, threads, trace_events, waits
from mpicoll.timeline.path import critical_path

COLLECTIVES = sorted(collectives.EQUAL_BLOCKS)
P = MPI.COMM_WORLD.size


def slices(timeline, category):
    """Return the slices of a category on all ranks; none but on rank 0."""
    events = timeline.trace["traceEvents"] if timeline.trace else []
    return [event for event in events if event["ph"] == "X" and event["cat"] == category]


def begin_allreduces(comm, x, y, nonblocking):
    """Make so many nonblocking calls, and three starts of a persistent one."""
    for _ in range(nonblocking):
        comm.Iallreduce(x, y).Wait()
    request = comm.Allreduce_init(x, y)
    for _ in range(3):
        request.Start()
        request.Wait()
    request.Free()


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_message_of_every_algorithm(comm, ours, engine, collective, monkeypatch):
    """None arrives before it is sent, on the clock that the ranks have in common."""
    monkeypatch.setattr(clock, "read", lambda comm: clock.Reading(time.monotonic(), 0.0, 0.0))
    names, case = collectives.algorithms(collective), Case(collective, 50, root=P - 1)
    posted = 0
    with ours.timeline() as timeline:
        for name in names:
            with ours.using(engine=engine, chunk_bytes=96, **{collective: name}), ours.trace() as records:
                for _ in range(4):  # the last ones take the fast path
                    case.run(ours)
            assert [record.algorithm for record in records] == [name] * 4
            posted += sum(record.messages for record in records)
    posted = comm.reduce(posted)
    if comm.rank == 0:
        assert check_format(timeline.trace) * 2 == posted
        facts = timeline.trace["otherData"]
        assert (facts["ranks"], facts["unmatched_messages"], facts["lost_messages"]) == (P, 0, 0)
        assert facts["clock_error_us"] == 0
        calls = slices(timeline, "collective")
        assert {call["name"] for call in calls} == {collectives.METHOD_NAMES[collective]}
        assert len(calls) == 4 * P * len(names) and {call["args"]["engine"] for call in calls} == {engine}
        if collective == "allreduce" and engine == "compiled":
            assert any(call["args"]["fast_path"] for call in calls)


def test_messages_that_are_too_many_are_counted(comm, ours, monkeypatch):
    """On the reference engine, whose table is a list; compiled code counts what does not fit into its array."""
    monkeypatch.setattr(reference, "MAX_EVENTS", 4)
    x, y = np.arange(100.0), np.empty(100)
    forced = ours.using(engine="mpi4py", allreduce="ring", chunk_bytes=64)
    with forced, ours.trace() as records, ours.timeline() as whole:
        ours.Allreduce(x, y)
    posted = comm.reduce(records[0].messages)
    if comm.rank == 0 and P > 1:
        assert 0 < whole.trace["otherData"]["lost_messages"] < posted


def test_forms_communicators_and_native_calls(comm, ours, engine, tmp_path):
    x, y = np.arange(100.0), np.empty(100)
    with ours.using(engine=engine), ours.timeline(tmp_path / "t.json") as timeline:
        begin_allreduces(ours, x, y, 3)
        with ours.using(allreduce="native"):
            ours.Allreduce(x, y)
            ours.Iallreduce(x, y).Wait()
        with mpicoll.span("a <part>"):
            half = ours.Split(comm.rank % 2)
            half.Allgather(x[:1], np.empty(half.size))
            half.Free()
    assert not RECORDING.users
    if comm.rank == 0:
        check_format(timeline.trace)
        assert json.loads((tmp_path / "t.json").read_text()) == timeline.trace
        recorded = read.read(tmp_path / "t.json")
        assert recorded.facts["unmatched_messages"] == 0
        names = sorted(parts[0].name for parts in recorded.calls.values())
        halves = ["Allgather"] * min(P, 2)
        assert names == [*halves, "Allreduce", *["Allreduce_init"] * 3, *["Iallreduce"] * 4]
        assert {start for _, _, start in recorded.calls} == {0, 1, 2, 3}
        assert [span["name"] for span in slices(timeline, "span")] == ["a <part>"] * P
    with ours.trace() as records:
        ours.Allreduce(x, y)
    assert records[0].times is None  # no timeline runs any more


def test_a_recorded_call_stays_on_the_fast_path():
    """Python runs the method alone; compiled code writes the rows of the call."""
    alone = mpicoll.Comm(MPI.COMM_SELF)
    x, y = np.ones(4), np.empty(4)
    profile = cProfile.Profile()
    with alone.using(allreduce="ring"), alone.timeline() as timeline:
        request = alone.Allreduce_init(x, y)
        for _ in range(5):
            alone.Allreduce(x, y)
            alone.Iallreduce(x, y).Wait()
            request.Start()
            request.Wait()
        profile.runcall(lambda: [alone.Allreduce(x, y) for _ in range(100)])
        request.Free()
    calls = [event for event in timeline.trace["traceEvents"] if event.get("cat") == "collective"]
    assert len(calls) == 115 and calls[-1]["args"]["fast_path"]
    assert pstats.Stats(profile).total_calls / 100 < 4


def rows(timeline):
    """Return rank 0's calls and their messages on each rank, without times; by name, sequence and start."""
    events = timeline.trace["traceEvents"] if timeline.trace else []
    key = lambda event: (event["pid"], *(event["args"][name] for name in ("communicator", "call", "start")))
    calls = {key(e): (e["name"], e["args"]) for e in events if e["ph"] == "X" and e["cat"] == "collective"}
    steps = dict.fromkeys(calls, ())
    for event in events:
        args = event.get("args", {})
        if event["ph"] == "X" and event["cat"] == "message" and "sends" in args:
            place = args["strand"], args["chunk"], args["step"]
            ends = tuple(sorted((peer, n) for peer, n, _ in args[way]) for way in ("sends", "receives"))
            steps[key(event)] += ((place, ends),)
    return [(*call, sorted(steps[at])) for at, call in calls.items()]


@pytest.mark.parametrize("collective", ["allreduce", "bcast", "alltoall", "reduce_scatter", "barrier"])
def test_the_fast_path_records_what_the_slow_path_does(comm, ours, engine, collective):
    """In all three forms, and for counts that vary, which one row of the fast path serves."""
    def records(chosen, again):
        sizes = (60, 60, 60, 60, *(range(61, 69) if collective == "allreduce" else ()))
        with ours.using(engine=chosen, chunk_bytes=96), ours.timeline() as timeline:
            for n in sizes[-again:]:
                Case(collective, n, root=P - 1).run(ours)
            begin_allreduces(ours, np.ones(60), np.empty(60), 4)
        return rows(timeline)

    fast, slow = records(engine, 12), records("mpi4py", 12)
    if comm.rank == 0:
        assert len(fast) == len(slow)
        own = ("call", "fast_path", "exposed_us", "engine", "why")
        for (name, facts, steps), (expected_name, expected, expected_steps) in zip(fast, slow, strict=True):
            left, right = ({key: value for key, value in some.items() if key not in own} for some in (facts, expected))
            assert (name, left, steps) == (expected_name, right, expected_steps)
        taken = {facts["form"] for _, facts, _ in fast if facts["fast_path"]}
        assert engine == "mpi4py" or {"blocking", "persistent"} <= taken
        assert {facts["start"] for _, facts, _ in fast} == {0, 1, 2, 3}


def test_records_of_a_trace_and_a_timeline_agree(comm, ours):
    x, y = np.ones(100), np.empty(100)
    with ours.using(allreduce="ring"), ours.timeline() as timeline:
        for _ in range(4):
            ours.Allreduce(x, y)
        with ours.trace() as records:
            ours.Allreduce(x, y)
        ours.Allreduce(x, y)
    assert len(records) == 1 and records[0].fast_path == (not ours._state.fast_path.closed)
    if comm.rank == 0:
        *_, traced, last = [call["args"] for call in slices(timeline, "collective") if call["pid"] == 0]
        same = ("bytes", "sent", "received", "algorithm", "fast_path")
        assert [traced[name] for name in same] == [last[name] for name in same]
        assert (traced["sent"], traced["received"]) == (records[0].bytes, records[0].received)


def test_files_of_one_run_are_laid_together(comm, ours, tmp_path_factory):
    """Of two blocks, and of both halves of the ranks, on one clock: calls are in the order in which they ran."""
    folder = comm.bcast(str(tmp_path_factory.mktemp("files")) if comm.rank == 0 else None)
    half = ours.Split(comm.rank % 2)
    before = comm.bcast(time.monotonic())
    for block in ("a", "b"):
        with ours.timeline(f"{folder}/{block}.json"):
            ours.Barrier()
    with half.timeline(f"{folder}/{comm.rank % 2}.json"):
        half.Barrier()
    half.Free()
    comm.Barrier()
    if comm.rank == 0:
        names = ["a", "b", "0", "1"][: 2 + min(P, 2)]
        files = [read.read(f"{folder}/{name}.json") for name in names]
        together = merge.merge(files[::-1])
        assert len(together.calls) == 2 + min(P, 2) and together.facts["ranks"] == P
        first, second, *halves = [key for file in files for key in file.calls]
        ended = [max(part.ended for part in together.calls[key]) for key in (first, second)]
        began = [min(part.began for part in together.calls[key]) for key in (second, *halves)]
        assert ended[0] < began[0] and ended[1] < min(began[1:])
        assert files[0].facts["origin_us"] >= before * 1e6 - files[0].facts["clock_error_us"]


def test_roots_are_ranks_of_the_world(comm, ours, engine):
    """On the slow path and on the fast one, on a communicator whose ranks are in another order, and by MPI's own."""
    backwards = ours.Split(0, -comm.rank)
    x, y = np.ones(100), np.empty(100)
    with ours.using(engine=engine), ours.timeline() as timeline:
        for _ in range(4):
            backwards.Bcast(x, root=0)
        with backwards.using(reduce="native"):
            backwards.Reduce(x, y, root=P - 1)
        backwards.Allreduce(x, y)
    backwards.Free()
    if comm.rank == 0:
        roots = {(event["name"], event["args"].get("root")) for event in slices(timeline, "collective")}
        assert roots == {("Bcast", P - 1), ("Reduce", 0), ("Allreduce", None)}


def test_a_late_rank_is_named(comm, ours, tmp_path):
    x, y = np.ones(1000), np.empty(1000)
    with ours.using(allreduce="recursive_doubling"):
        for _ in range(3):
            ours.Allreduce(x, y)
        with ours.timeline(tmp_path / "t.json"):
            comm.Barrier()
            if comm.rank == P - 1:
                time.sleep(0.2)
            ours.Allreduce(x, y)
    if comm.rank == 0 and P > 1:
        recorded = read.read(tmp_path / "t.json")
        (call,) = recorded.calls.values()
        late = waits.stragglers(recorded)[0]
        assert late.rank == P - 1 and late.waited > 1e5
        path = critical_path(call, recorded.steps[call[0].key])
        assert (path[0].what, path[0].rank) == ("late", P - 1)


def test_overlap_with_computing(comm, ours, tmp_path):
    x, y = np.ones(1000), np.empty(1000)
    with ours.using(allreduce="recursive_doubling", engine="mpi4py"), ours.timeline(tmp_path / "t.json"):
        request = ours.Iallreduce(x, y)
        time.sleep(0.1)
        request.Wait()
    if comm.rank == 0:
        (total,) = waits.sums(read.read(tmp_path / "t.json"))
        assert total.hidden <= total.inside and total.name == "Iallreduce"


def test_the_oldest_calls_are_dropped(comm, ours, monkeypatch):
    monkeypatch.setattr(recorder, "LEAST", 10)
    monkeypatch.setattr(recorder, "MOST_MESSAGES", 10)
    with ours.timeline() as timeline:
        for _ in range(30):
            ours.Allreduce(np.ones(4), np.empty(4))
    if comm.rank == 0:
        calls = slices(timeline, "collective")
        assert timeline.trace["otherData"]["dropped_calls"] >= 20
        assert max(call["args"]["call"] for call in calls) - min(call["args"]["call"] for call in calls) < 10


def test_turns_of_the_progress_threads_while_the_program_computes(comm, ours, engine, tmp_path):
    """Every rank but the last posts early, so that only its threads can advance the call before Wait."""
    x, y = np.full(30_000, comm.rank + 1.0), np.empty(30_000)
    with ours.using(engine=engine, allreduce="ring"), ours.timeline(tmp_path / "t.json") as timeline:
        for _ in range(3):
            time.sleep(0.05 * (comm.rank == P - 1))
            request = ours.Iallreduce(x, y)
            time.sleep(0.2)
            request.Wait()
    assert np.all(y == P * (P + 1) / 2)
    assert not THREAD.table.turns.users and not THREAD.table.turns.header[turns.ON]
    if comm.rank == 0 and P > 1:
        check_format(timeline.trace)
        recorded = read.read(tmp_path / "t.json")
        rows = threads.progress(recorded)
        assert [row.rank for row in rows] == list(range(P))
        assert rows[0].turns and 0 < rows[0].steps <= rows[0].all_steps == 3 * 2 * (P - 1)
        assert 0 < rows[0].working < rows[0].by_threads <= rows[0].hidden
        own = [turn for turn in recorded.turns if turn.rank == 0]
        assert (trace_events.DRIVER if engine == "compiled" else trace_events.PYTHON_THREAD) in {t.track for t in own}
        calls = {key: part for key, parts in recorded.calls.items() for part in parts if part.rank == 0}
        for turn in own:
            call = calls[turn.key]
            assert call.began - 1 <= turn.began <= call.ended, "a turn of another call"


def test_a_block_that_raises_ends_the_recording(ours):
    with pytest.raises(ZeroDivisionError), ours.timeline():
        1 / 0  # noqa: B018
    assert not RECORDING.users


def test_timelines_of_communicators_nest(comm, ours):
    half = ours.Split(comm.rank % 2)
    with ours.timeline() as whole, half.timeline() as part:
        ours.Barrier()
        half.Barrier()
    if whole.trace:
        assert len(slices(whole, "collective")) == 3 * P  # the barrier at the end of the other timeline, too
    if part.trace:
        assert len(slices(part, "collective")) == half.size + (P == 1)  # one rank is all of both communicators
    half.Free()
