"""Traces that other programs wrote: what is read from them, what they cannot tell, and what is refused."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import command

from mpicoll.describe.timeline_page import COLOURS, EXPOSED, HIDDEN
from mpicoll.errors import TimelineError
from mpicoll.timeline import other_traces
from mpicoll.timeline.intervals import covered
from mpicoll.timeline.read import Trace

# Two ranks that torch 2.13 recorded with record_shapes=True: two all_reduce of 4,096 floats, two of 16,384 with matrix
# products before wait(), a broadcast, an all_gather, a barrier.
TORCH = [Path(__file__).parent / "data" / f"torch-gloo-rank{rank}.json.gz" for rank in range(2)]


def content(rank):
    return json.loads(gzip.decompress(TORCH[rank].read_bytes()))


def slice_(name, began, ended, pid=1, tid=1, cat="", **args):
    place = {"pid": pid, "tid": tid, "ts": began, "dur": ended - began}
    return {"ph": "X", "name": name, "cat": cat, **place, "args": args}


def run(*traces, **facts):
    return other_traces.collect([Trace(f"{i}.json", list(events), facts) for i, events in enumerate(traces)])


def hidden(*events, **facts):
    """Return each collective's number of calls, the time inside them, and the hidden part, by name."""
    rows = other_traces.sums(run(events, **facts))
    return {row.name: (sum(row.calls.values()), row.inside, row.hidden) for row in rows}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=12), st.integers(0, 40), st.integers(0, 9))
def test_covered_time_is_that_of_a_count(lengths, began, length):
    intervals = np.array([(start, start + n) for start, n in lengths], float).reshape(-1, 2)
    until = covered(intervals)
    open_in = [any(start <= t < start + n for start, n in lengths) for t in range(began, began + length)]
    assert until(np.array([began + length]))[0] - until(np.array([began]))[0] == pytest.approx(sum(open_in))


# -- torch.profiler


def test_two_ranks_of_torch():
    output = command.good("timeline", *TORCH)
    assert "written by torch.profiler, gloo; ranks 0-1 of 2, 14 calls" in output
    assert "Which rank the others waited for is not known" in output and "There is no trace" not in output
    report = json.loads(command.good("timeline", *TORCH, "--json"))
    rows = {(row["name"], row["nbytes"]): row for row in report["collectives"]}
    assert {key: row["calls"] for key, row in rows.items()} == {
        ("gloo:all_reduce", 16384): {"0": 2, "1": 2},
        ("gloo:all_reduce", 65536): {"0": 2, "1": 2},
        ("gloo:broadcast", 16384): {"0": 1, "1": 1},
        ("gloo:all_gather", 16384): {"0": 1, "1": 1},
        ("gloo:barrier", None): {"0": 1, "1": 1},
    }
    durations = [e["dur"] for rank in range(2) for e in content(rank)["traceEvents"] if e["name"] == "gloo:broadcast"]
    assert rows["gloo:broadcast", 16384]["inside"] == pytest.approx(sum(durations) / 2, abs=0.01)
    assert rows["gloo:all_reduce", 16384]["hidden"] == 0, "the program waits"
    overlapped = rows["gloo:all_reduce", 65536]
    assert overlapped["hidden"] > 0.8 * overlapped["inside"] and overlapped["exposed"] > 0


def test_a_rank_that_is_missing():
    output = command.good("timeline", TORCH[1])
    assert "rank 1 of 2, 7 calls" in output and "There is no trace of rank 0." in output


def test_calls_without_shapes():
    trace = content(0)
    for event in trace["traceEvents"]:
        event.get("args", {}).pop("Input Dims", None)
    runs = other_traces.collect([Trace("t", trace["traceEvents"], trace)])
    assert any("The sizes of 6 calls were not recorded" in sentence for sentence in runs.unknown)


COMMS = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 100, "Rank": 3}
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def test_kernels_count_and_not_what_starts_them():
    launches = [
        slice_("c10d::allreduce_", 0, 9, cat="cpu_op"),
        slice_("record_param_comms", 1, 8, cat="cpu_op", **COMMS),
        slice_("nccl:all_reduce", 2, 7, cat="user_annotation"),
        slice_("nccl:all_reduce", 20, 40, pid=0, tid=7, cat="gpu_user_annotation"),
    ]
    kernel = slice_(KERNEL, 20, 40, pid=0, tid=7, cat="kernel", **COMMS)
    busy = slice_("gemm", 10, 25, pid=0, tid=8, cat="kernel"), slice_("aten::mm", 20, 40, cat="cpu_op")
    recorded = run([*launches, kernel, *busy], schemaVersion=1)
    (total,) = other_traces.sums(recorded)
    assert (total.name, total.nbytes, dict(total.calls)) == ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 400, {3: 1})
    assert (total.inside, total.hidden, total.exposed) == (20, 5, 15)
    (started,) = other_traces.sums(alone := run(launches[:2], schemaVersion=1))
    assert (started.name, started.nbytes, started.inside, started.hidden) == ("c10d::allreduce_", 400, 9, None)
    assert any("only the call that starts it" in sentence for sentence in alone.unknown)


def test_computing_that_hides_a_collective():
    reduce, other = slice_("gloo:all_reduce", 0, 10, tid=2, cat="user_annotation"), {"cat": "cpu_op", "tid": 1}
    assert hidden(reduce, slice_("aten::mm", 2, 6, **other), slice_("aten::mm", 4, 7, **other)) == {
        "gloo:all_reduce": (1, 10, 5)
    }
    for name in ("c10d::allreduce_", "_c10d_functional::wait_tensor"):
        assert hidden(reduce, slice_(name, 2, 6, **other))["gloo:all_reduce"] == (1, 10, 0), name
    assert hidden(reduce, slice_("aten::copy_", 2, 6, cat="cpu_op", tid=2))["gloo:all_reduce"] == (1, 10, 0)


# -- other programs


def test_ranks_of_one_file_and_threads_that_are_not_marked():
    names = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"MPI Rank {pid + 4}"}} for pid in (0, 1)]
    events = [slice_("MPI_Allreduce", 0, 10 + pid, pid=pid, bytes=64) for pid in (0, 1)]
    events += [slice_("main", 0, 100, pid=0, tid=2), slice_("solve", 5, 8, pid=0, tid=2)]
    recorded = run([*names, *events])
    (total,) = other_traces.sums(recorded)
    assert recorded.ranks == [4, 5] and recorded.tool == "another program"
    assert (total.nbytes, total.inside, total.hidden, total.longest) == (64, 10.5, 1.5, 11)
    assert any("innermost events" in sentence for sentence in recorded.unknown)


def test_beginnings_and_ends():
    events = [
        {"ph": "B", "name": "solve", "pid": 1, "tid": 1, "ts": 0},
        {"ph": "B", "name": "MPI_Bcast", "pid": 1, "tid": 1, "ts": 1},
        {"ph": "b", "name": "ncclAllReduce", "cat": "x", "id": 7, "pid": 1, "ts": 2, "args": {"nbytes": 8}},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 4},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 5},
        {"ph": "e", "name": "ncclAllReduce", "cat": "x", "id": 7, "pid": 1, "ts": 9},
        {"ph": "B", "name": "MPI_Barrier", "pid": 1, "tid": 1, "ts": 9},
    ]
    recorded = run(events)
    rows = {row.name: row for row in other_traces.sums(recorded)}
    assert rows["MPI_Bcast"].inside == 3 and (rows["ncclAllReduce"].inside, rows["ncclAllReduce"].nbytes) == (7, 8)
    assert "1 calls have no end in the traces, and are left out." in recorded.unknown


@pytest.mark.parametrize("name", ["aten::gather", "broadcast_tensors", "MPI_Init", "reducer", "ncclGroupEnd"])
def test_events_that_are_no_collectives(name):
    with pytest.raises(TimelineError, match="has no collectives"):
        run([slice_(name, 0, 1), slice_("broadcast", 0, 1, cat="python_function")])


@pytest.mark.parametrize("name", [
    "PMPI_Reduce_scatter_block", "MPI_Neighbor_alltoallv", "all_gather_into_tensor", "_allgather_base", "hccl:AllToAll",
    "c10d::_reduce_scatter_base_", "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)", "MPI_Iexscan",
])  # fmt: skip
def test_names_of_collectives(name):
    assert len(run([slice_(name, 0, 1)]).calls) == 1


def test_ranks_that_no_file_names_are_numbered():
    recorded = run([slice_("bcast", 0, 1)], [slice_("bcast", 0, 1), slice_("bcast", 2, 3)])
    assert recorded.ranks == [0, 1] and "numbered in the order" in recorded.unknown[0]
    assert "The ranks recorded different numbers of calls." in recorded.unknown


# -- what is refused, in one line


@pytest.fixture
def saved(tmp_path):
    def save(name, trace):
        (tmp_path / name).write_text(trace if isinstance(trace, str) else json.dumps(trace))
        return tmp_path / name

    return save


def test_a_trace_that_is_cut_off(saved, tmp_path):
    text = json.dumps(content(0))
    for part in (0.2, 0.5, 0.999):
        assert "is no JSON" in command.refused("timeline", saved("t.json", text[: int(part * len(text))]))
    packed = TORCH[0].read_bytes()
    (tmp_path / "t.json.gz").write_bytes(packed[: len(packed) // 2])
    assert "cannot be decoded" in command.refused("timeline", tmp_path / "t.json.gz")
    assert "cannot be read: No such file" in command.refused("timeline", tmp_path / "none.json")


def test_traces_of_several_runs(saved):
    first, second = content(0), content(1)
    assert "given 2 times" in command.refused("timeline", TORCH[0], TORCH[0])
    assert "are both of rank 0" in command.refused("timeline", TORCH[0], saved("a.json", first))
    both = {**first, "traceEvents": first["traceEvents"] + second["traceEvents"]}
    assert "2 processes of one rank" in command.refused("timeline", saved("b.json", both))
    twice = {**first, "traceEvents": first["traceEvents"] * 2}
    assert "twice at one time on a thread" in command.refused("timeline", saved("c.json", twice))
    later = {**second, "baseTimeNanoseconds": second["baseTimeNanoseconds"] + 10**9}
    assert "ended before the first" in command.refused("timeline", TORCH[0], saved("d.json", later))
    larger = {**second, "distributedInfo": {**second["distributedInfo"], "world_size": 4}}
    assert "has 4 ranks" in command.refused("timeline", TORCH[0], saved("e.json", larger))


def test_a_timeline_of_mpicolls_is_alone(saved):
    ours = [slice_("Allreduce", 0, 1, cat="collective", communicator="ranks 0-1")]
    assert "pass them apart" in command.refused("timeline", saved("t.json", ours), TORCH[0])
    other = [{"ph": "X", "cat": "collective", "args": 5}]
    assert "no collectives of mpicoll's among its 1 events" in command.refused("timeline", saved("o.json", other))
    assert "--call needs a timeline of mpicoll's" in command.refused("timeline", TORCH[0], "--call", "1")


def test_names_with_markup(saved, tmp_path):
    name = "[/red]<b>\x1b[31m:all_reduce"
    events = [slice_("record_param_comms", 0, 1, **{"Collective name": "all_reduce"}), slice_("gloo:barrier", 2, 3)]
    events.append(slice_("ncclDevKernel_AllReduce_[/b]<b>", 0, 9, cat="kernel"))
    facts = {"backend": name, "rank": 0, "world_size": 1}
    path = saved("t.json", {"distributedInfo": facts, "traceEvents": events})
    output = command.good("timeline", path)
    assert "[/red]<b>?[31m" in output and "AllReduce_[/b]<b>" in output and "\x1b" not in output
    command.good("timeline", path, "-o", tmp_path / "page.html")
    assert "&lt;b&gt;" in (page := (tmp_path / "page.html").read_text()) and "<b>" not in page


def test_the_page_has_what_is_exposed_and_hidden(tmp_path):
    assert "1 picture" in command.good("timeline", *TORCH, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert all(page.count(f'fill="{COLOURS[part]}"') >= 2 for part in (EXPOSED, HIDDEN))
    assert "Which rank the others waited for" in page and page.count("<svg") == 2


def test_damaged_values_are_read_or_refused():
    """Values replaced by others raise TimelineError or nothing."""
    random.seed(7)
    text = json.dumps([e for e in content(0)["traceEvents"] if "gloo:" in e["name"] or e["ph"] == "M"])
    values = [None, True, -1, 1.5, float("nan"), float("inf"), 10**400, "", "x", [], [[]], {}, {"a": 1}]
    refused = 0
    for _ in range(600):
        events = json.loads(text)
        event = random.choice(events)
        target = random.choice([event, event.get("args", event)])
        target[random.choice(list(target))] = random.choice(values)
        facts = {"distributedInfo": random.choice([*values, {"rank": random.choice(values)}])}
        facts["baseTimeNanoseconds"] = random.choice(values)
        try:
            other_traces.sums(other_traces.collect([Trace("t", events, facts)]))
        except TimelineError:
            refused += 1
    assert 0 < refused < 300
