"""Show operations in torch's profiler, each from its call until it completes."""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from mpicoll.timeline import other_traces, read
from mpicoll.torch import profiling

LATE = 0.3  # seconds


def events(run):
    """Return name, shapes and seconds of each range of ours."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        run()
    ours = [event for event in profiled.events() if event.name.startswith("mpicoll:")]
    return [(event.name.partition(":")[2], event.input_shapes, event.time_range.elapsed_us() * 1e-6) for event in ours]


def test_operations_that_are_waited_for(ours, ranks):
    x = torch.ones(3, 5)

    def run():
        dist.all_reduce(x, group=ours)
        dist.broadcast(x, 0, group=ours)
        dist.all_gather_single(torch.empty(ranks, 3, 5), x, group=ours)
        dist.barrier(group=ours)

    recorded = events(run)
    assert [name for name, _, _ in recorded] == ["allreduce", "broadcast", "allgather", "barrier"]
    assert [shapes for _, shapes, _ in recorded[:2]] == [[[3, 5]], [[3, 5]]]


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_a_range_whose_end_another_thread_sees(is_asynchronous):
    """It is as long as it was open; torch's profiler would leave it open if that thread exited it."""

    def run():
        end = profiling.begin("mine", torch.ones(3), is_asynchronous)
        other = threading.Thread(target=end)
        other.start()
        other.join()
        end()
        end()
        time.sleep(LATE)

    ((_, shapes, seconds),) = events(run)
    assert seconds < LATE / 2 and shapes == ([] if is_asynchronous else [[3]])


@pytest.mark.mpi(min_size=2)
def test_an_operation_under_way_and_a_message(ours, rank):
    """They last as long as they are under way, and not only as long as their call."""
    x, got, kept = torch.ones(4), torch.empty(4), []

    def run():
        if rank == 1:
            time.sleep(LATE)
        kept.append(dist.all_reduce(x, group=ours, async_op=True))
        while not kept[0].is_completed():
            time.sleep(0.01)
        time.sleep(2 * LATE)
        if rank == 1:
            time.sleep(LATE)
            dist.send(x, 0, group=ours)
        elif rank == 0:
            dist.recv(got, 1, group=ours)

    times = {name: seconds for name, _, seconds in events(run)}
    assert set(times) == {"allreduce", *({0: ["recv"], 1: ["send"]}.get(rank, []))}
    assert times["allreduce"] < 2 * LATE
    if rank == 0:
        assert times["allreduce"] > LATE / 2 and times["recv"] > LATE / 2


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("backend", ["gloo", "mpicoll"])
def test_mpicoll_timeline_reads_what_torch_wrote(request, backend, rank, ranks, directory):
    """Of each rank's file: every operation once, its bytes, and its time by torch's own count."""
    group = request.getfixturevalue("gloo" if backend == "gloo" else "ours")
    x, path = torch.ones(1000), directory / f"{backend}-{rank}.json"
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        for _ in range(3):
            dist.all_reduce(x, group=group)
        dist.broadcast(x[:10], 0, group=group)
    profiled.export_chrome_trace(str(path))
    own = [event for event in profiled.events() if event.name.startswith(f"{backend}:")]
    seconds = sum(event.time_range.elapsed_us() for event in own) * 1e-6
    run = other_traces.collect([read.load(path)])
    rows = {(row.name.partition(":")[2].replace("_", ""), row.nbytes): row for row in other_traces.sums(run)}
    counts = {name: sum(row.calls.values()) for name, row in rows.items()}
    assert counts == {("allreduce", 4000): 3, ("broadcast", 40): 1}
    assert sum(row.inside for row in rows.values()) * 1e-6 == pytest.approx(seconds, abs=1e-4)
    assert (run.ranks, run.size) == ([rank], ranks)
    dist.barrier()
    if rank == 0:
        paths = sorted(directory.glob("*.json"))
        of_all = other_traces.collect([read.load(path) for path in paths])
        assert of_all.ranks == list(range(ranks)) and len(of_all.calls) == 4 * ranks
        assert not any("There is no trace" in sentence for sentence in of_all.unknown)
