"""Recorded calls beside the model's on the page of `mpicoll explore`: which, on which schedule, and when."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from support.command import good, refused
from unit.every import EVERY, served
from unit.test_explore import unpacked

from mpicoll.cost.network import network
from mpicoll.cost.simulation import Simulation
from mpicoll.describe.explore import measured as chooser
from mpicoll.describe.explore import page
from mpicoll.describe.explore.recording import durations
from mpicoll.describe.explore.timing import Clock, short
from mpicoll.plans.plan import RECV, SEND
from mpicoll.proofs.symbolic import execute
from mpicoll.schedules.grouping import by_blocks
from mpicoll.schedules.ir import Local, Send
from mpicoll.schedules.schedule import Schedule, schedule
from mpicoll.timeline import trace_events
from mpicoll.timeline.model import Call, RankTimeline
from mpicoll.timeline.read import read

US, PAUSE = 1000, 2  # nanoseconds of a microsecond; microseconds of local work at the end of a step
NODES = {p: by_blocks(p, 1) for p in range(1, 33)}


def steady(step):
    return 10


def starts(own):
    """Return the steps of the page in which the messages of each step start, by rank, strand and index."""
    places, sends = defaultdict(list), defaultdict(list)
    for rank in range(own.p):
        for strand, steps in enumerate(own.program(rank)):
            for index, step in enumerate(steps):
                for op in step:
                    if isinstance(op, Send):
                        sends[rank, op.peer, strand].append(index)
    counts = Counter()
    for message in sorted(execute(own).messages, key=lambda message: message.start):
        channel = message.source, message.destination, message.strand
        places[message.source, message.strand, sends[channel][counts[channel]]].append(message.start)
        places[message.destination, message.strand, message.step].append(message.start)
        counts[channel] += 1
    return places


def played(
    own, *, number=1, begin=0, took=steady, late=0, world=None, name="Call", spec=None, nbytes=None, chunks=1,
    chunk_bytes=4, drop=None,
):  # fmt: skip
    """Return the calls of all ranks by rank of COMM_WORLD, in which step t takes took(t) µs; the last rank begins late.

    Times are in µs. The k-th chunk is 1 µs behind the one before it. drop: a rank whose receives are not recorded.
    """
    world, ends = world or range(own.p), [begin + late]
    for step in range(execute(own).steps):
        ends.append(ends[-1] + took(step))
    spec = own.algorithm.name if spec is None else spec
    facts = {"collective": own.collective.name, "form": "blocking", "algorithm": spec, "ranks": own.p}
    facts["bytes"] = 8 * own.p if nbytes is None else nbytes
    facts |= {"chunk_bytes": chunk_bytes if chunks > 1 else None}
    facts |= {"root": world[own.root]} if own.collective.rooted else {}
    calls, when = {}, starts(own)
    for rank in range(own.p):
        rows = []
        for chunk in range(chunks):
            for strand, steps in enumerate(own.program(rank)):
                for index, step in enumerate(steps):
                    for op in step:
                        if isinstance(op, Local):
                            continue
                        first, last = min(when[rank, strand, index]), max(when[rank, strand, index]) + 1
                        times = ends[first] + chunk, ends[last] - PAUSE + chunk, ends[last] + chunk
                        kind = SEND if isinstance(op, Send) else RECV
                        row = [kind, world[op.peer], 8 * len(op.blocks), strand, chunk, chunk, index, 0]
                        rows.append(row + [round(US * us) for us in times])
        received = sum(row[2] for row in rows if row[0] == RECV)
        if rank == drop:
            rows = [row for row in rows if row[0] == SEND]
        began = begin + (late if rank == own.p - 1 else 0)
        ranks = f"ranks {sorted(world)}"
        messages = np.array(rows, np.int64).reshape(-1, 11)
        times = [1e-6 * us for us in (began, began, ends[-1] + chunks - 1)]
        calls[world[rank]] = Call(ranks, number, 0, name, facts | {"received": received}, *times, messages, 0)
    return calls


def has_local_steps(own):
    """Return whether a step has no messages, so that this test's timelines have no event for it."""
    steps = [step for rank in range(own.p) for strand in own.program(rank) for step in strand]
    return any(all(isinstance(op, Local) for op in step) for step in steps)


def without_messages(call):
    """Return the call as one of which no messages were recorded."""
    return {rank: part._replace(messages=part.messages[:0]) for rank, part in call.items()}


def saved(path, *calls):
    """Write a timeline of calls and return its path."""
    of_rank = defaultdict(list)
    for call in calls:
        for rank, part in call.items():
            of_rank[rank].append(part)
    ranks = [RankTimeline(rank, "host", parts, [], 0, 0.0) for rank, parts in sorted(of_rank.items())]
    trace_events.write(trace_events.trace(ranks), path)
    return path


def beside(path, present=(), collectives=()):
    recorded = read(path)
    return chooser.lay_beside(recorded, *chooser.medians(recorded, collectives), present, NODES)


def page_of(path, out, *options):
    """Return the content of the page that the command writes."""
    good("explore", "--network", "infiniband", "--measured", path, "-o", out, *options)
    return unpacked(out.read_text())


# -- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", EVERY)
def test_every_message_of_every_algorithm_has_its_recorded_time(entry, tmp_path):
    p = served(entry, 5)
    own = Schedule(entry, p, nodes=NODES[p])
    laid, new = beside(saved(tmp_path / "t.json", played(own, took=lambda step: 10 + 5 * step)))
    assert laid.notes == [] and len(new) == 1
    (key, schedule), clock = new[0], Clock(network("infiniband"), 1 << 16, NODES)
    assert str(key) == f"{entry.collective.name}/{entry.name}/p={own.p}"
    shown = page.data(new, clock, laid)["schedules"][str(key)]
    (call,) = shown["measured"]
    ends = [0.0]
    for step in range(shown["steps"]):
        ends.append(ends[-1] + 10 + 5 * step)
    moved = [(ends[start], ends[start + 1] - PAUSE) for start, *_ in shown["messages"]]
    legs = call["measured"]["messages"]
    assert all(leave <= start + 0.1 and arrive >= end - 0.1 for (leave, arrive), (start, end) in zip(legs, moved))
    if all(len({*of_step}) == 1 for of_step in starts(own).values()):  # else a step waits for its last message
        assert legs == [pytest.approx(leg, abs=0.1) for leg in moved]
    written = call["measured"]["writes"]
    assert written[-1] == pytest.approx(ends[shown["writes"][-1][0]], abs=0.1) or has_local_steps(own)
    for (end, *_), us in zip(shown["writes"], written):
        assert us >= ends[end] - 0.1 or has_local_steps(own)
    simulated = Simulation(schedule, clock.network, 8 * own.p, NODES[own.p])
    assert call["took"] == [pytest.approx(ends[-1]), short(simulated.us)] and call["late"] == 0
    assert len(call["model"]["messages"]) == len(shown["messages"]) == simulated.messages
    assert [sum(column) for column in zip(*call["steps"])] == pytest.approx(call["took"], rel=0.01)


def test_steps_sum_up_to_the_call_and_the_slow_one_is_named(tmp_path):
    """Step 3 takes 90 µs and the others 10; what a rank does after its last message is a row of its own."""
    ring = schedule("allreduce", "ring", 4)
    path = saved(tmp_path / "t.json", played(ring, took=lambda step: 90 if step == 2 else 10))
    content = page_of(path, tmp_path / "page.html", "--algorithms", "ring", "-p", "4")
    (call,) = content["schedules"]["allreduce/ring/p=4"]["measured"]
    recorded = [pair[0] for pair in call["steps"]]
    assert recorded == pytest.approx([0, 8, 10, 90, 10, 10, 10, 2]) and call["took"][0] == 140


def test_a_late_rank_is_no_part_of_the_time_and_the_model_begins_with_it(tmp_path):
    ring = schedule("allreduce", "ring", 4)
    slower = played(ring, number=2, begin=900, took=lambda step: 30)
    path = saved(tmp_path / "t.json", played(ring, begin=7, late=50), slower)
    content = page_of(path, tmp_path / "page.html", "--algorithms", "ring", "-p", "4")
    (call,) = content["schedules"]["allreduce/ring/p=4"]["measured"]
    on = Simulation(ring, network("infiniband"), 32, NODES[4])
    assert (call["call"], call["calls"], call["late"], call["took"]) == (1, 2, 50, [60, short(on.us)])
    assert call["measured"]["us"] == 110 and call["model"]["us"] == short(50 + on.us)
    assert call["measured"]["calls"] == [[0, 110]] * 3 + [[50, 110]]
    assert min(leave for leave, _ in call["model"]["messages"]) == 50 == call["measured"]["messages"][0][0]


def test_chunks_are_drawn_from_the_first_to_the_last(tmp_path):
    chain = schedule("bcast", "chain", 3)
    half = 1 << 19
    laid, _ = beside(saved(tmp_path / "t.json", played(chain, chunks=2, nbytes=2 * half, chunk_bytes=half)))
    (recording,) = laid.recordings["bcast/chain/p=3"]
    assert recording.window == 2 and recording.kind.chunk_bytes == half
    assert recording.legs[0, 1, 0, 0] == [pytest.approx([0, 10 - PAUSE + 1])]
    on = network("infiniband")
    clock = Clock(replace(on, links=replace(on.links, ports=1)), 8, NODES)  # chunks take turns
    call = recording.beside_model(chain, clock, execute(chain).messages, [])
    chunked = Simulation(chain, clock.network, 2 * half, NODES[3], half, 2)
    whole = Simulation(chain, clock.network, 2 * half, NODES[3])
    assert call["took"][1] == short(chunked.us) != short(whole.us)
    legs = [leg for legs in clock.simulate(chain, 2 * half, half, 2).legs.values() for leg in zip(*legs.values())]
    of_chunks = [[short(chunks[0].left), short(chunks[1].arrived)] for chunks in legs]
    assert call["model"]["messages"] == of_chunks and all(len(chunks) == 2 for chunks in legs)


def test_steps_of_which_no_message_is_recorded_take_no_time():
    times = {"us": 20, "messages": [[1, 5], None, [4, 12]]}
    assert durations(times, [0, 1, 2], 0) == [1, 4, 0, 7, 8]
    assert durations({"us": 20, "messages": []}, [], 5) == [0, 15]


# -- which calls ------------------------------------------------------------------------------------------------------


def test_the_median_of_each_kind_is_taken(tmp_path):
    """Of four calls the second fastest; calls of other sizes, methods and chunks are other kinds."""
    ring = schedule("allreduce", "ring", 3)
    times = enumerate((40, 10, 30, 20), 1)
    calls = [played(ring, number=n, begin=1000 * n, took=lambda step, us=us: us) for n, us in times]
    other = played(ring, number=5, begin=9000, nbytes=800), played(ring, number=6, begin=9500, name="Icall")
    laid, _ = beside(saved(tmp_path / "t.json", *calls, *other))
    recordings = laid.recordings["allreduce/ring/p=3"]
    shown = {(x.kind.name, x.kind.nbytes): (x.call[0].facts["call"], x.calls) for x in recordings}
    assert shown == {("Call", 24): (4, 4), ("Call", 800): (5, 1), ("Icall", 24): (6, 1)}


def test_what_the_page_does_not_hold_is_added(tmp_path):
    """Other parameters, numbers of ranks and roots; a schedule of the page serves if only the spelling differs."""
    wide, rooted = schedule("bcast", "knomial", 6, k=6), schedule("bcast", "chain", 16, root=5)
    same = schedule("bcast", "knomial", 5, k=4)
    calls = [
        played(wide, spec="knomial(k=6)"),
        played(rooted, number=2, begin=5000),
        played(same, number=3, begin=9000, spec=f"knomial(k={Schedule(same.algorithm, 5).resolved['k']})"),
    ]
    path = saved(tmp_path / "t.json", *calls)
    content = page_of(path, tmp_path / "page.html", "--collectives", "bcast", "--algorithms", "knomial", "-p", "5")
    having = {key for key, entry in content["schedules"].items() if "measured" in entry}
    assert having == {"bcast/knomial(k=6)/p=6", "bcast/chain/p=16/root=5", "bcast/knomial/p=5"}
    assert content["measured"] == {"file": str(path), "clock_error": 0, "notes": []}
    assert content["clock"]["nodes"]["16"] == "16 nodes"


def test_ranks_of_a_part_of_the_world_are_numbered_from_0(tmp_path):
    laid, _ = beside(saved(tmp_path / "t.json", played(schedule("bcast", "chain", 3, root=2), world=[1, 4, 6])))
    (recording,) = laid.recordings["bcast/chain/p=3/root=2"]
    assert recording.legs.keys() == {(2, 0, 0, 0), (0, 1, 0, 0)}


def test_a_call_in_rank_order_is_told_by_its_messages(tmp_path):
    entry = schedule("reduce", "binomial", 5).algorithm
    own = Schedule(entry, 5, 2, commutative=False)
    laid, new = beside(saved(tmp_path / "t.json", played(own)))
    assert [str(key) for key, _ in new] == ["reduce/binomial/p=5/root=2/order=rank"] == [*laid.recordings]


def test_each_kind_that_is_not_shown_has_a_line(tmp_path):
    ring = schedule("allreduce", "ring", 4)
    chain = schedule("bcast", "chain", 3)
    calls = [
        played(ring),
        without_messages(played(ring, spec="native", number=2, begin=1000)),
        played(ring, drop=1, nbytes=16, number=3, begin=2000),
        played(chain, world=[5, 3, 1], number=4, begin=3000),
        played(ring, spec="mine", number=5, begin=4000),
        played(schedule("bcast", "linear", 80), number=6, begin=5000),
        played(schedule("allreduce", "ring", 1), number=7, begin=6000),
    ]
    laid, _ = beside(saved(tmp_path / "t.json", *calls))
    assert [*laid.recordings] == ["allreduce/ring/p=4"]
    assert {*laid.notes} == {
        "Call of 32 B by native on 4 ranks: messages of the MPI's own algorithms are not recorded.",
        "Call of 16 B by ring on 4 ranks: no call has all its messages in the file.",
        "Call of 8 B by ring on 1 rank: a single rank sends no messages.",
        "Call of 24 B by chain on 3 ranks, root 2: its messages are not those on the page's nodes (--ranks-per-node), "
        "graph and order of ranks.",
        "Call of 32 B by mine on 4 ranks: the registry has no allreduce mine; --load FILE adds algorithms.",
        "Call of 640 B by linear on 80 ranks: a page has up to 64 ranks.",
    }
    assert len(laid.notes) == 6


def test_a_call_of_too_many_chunks_is_not_simulated(tmp_path):
    path = saved(tmp_path / "t.json", played(schedule("bcast", "chain", 3), chunks=2, nbytes=1 << 20))
    assert "fewer ranks" in refused(*COMMAND, "--measured", path, "-o", tmp_path / "page.html")


# -- files that do not do ---------------------------------------------------------------------------------------------

COMMAND = ("explore", "-p", "4", "--network", "infiniband")


@pytest.mark.parametrize(("options", "words"), [
    ((), "no collectives of mpicoll's among its 0 events"),
    (("--collectives", "bcast"), "no collectives of mpicoll's"),
])
def test_a_file_that_is_no_timeline(options, words, tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": []}')
    assert words in refused(*COMMAND, *options, "--measured", path, "-o", tmp_path / "page.html")
    assert "No such file" in refused(*COMMAND, "--measured", tmp_path / "none.json", "-o", tmp_path / "page.html")


def test_a_file_without_the_collective(tmp_path):
    path, out = saved(tmp_path / "t.json", played(schedule("allreduce", "ring", 4))), tmp_path / "page.html"
    error = refused(*COMMAND, "--collectives", "bcast", "--measured", path, "-o", out)
    assert error.endswith(f"{path} has no bcast; it has allreduce") and not out.exists()
    content = page_of(path, out, "--collectives", "bcast,allreduce", "-p", "4")
    assert content["measured"]["notes"] == ["The file has no bcast."]


def test_a_file_without_messages(tmp_path):
    path = saved(tmp_path / "t.json", without_messages(played(schedule("allreduce", "ring", 4))))
    error = refused(*COMMAND, "--measured", path, "-o", tmp_path / "page.html")
    assert error.endswith("no call to show beside the model. Call of 32 B by ring on 4 ranks: no call has all its "
                          "messages in the file.")  # fmt: skip


def test_a_page_without_a_network_has_no_model(tmp_path):
    path = saved(tmp_path / "t.json", played(schedule("allreduce", "ring", 4)))
    error = refused("explore", "-p", "4", "--measured", path, "-o", tmp_path / "page.html")
    assert error.endswith("add --network with a preset or a file")


@pytest.mark.parametrize(("category", "name", "value", "words"), [
    ("collective", "ranks", "4", "has ranks '4' and chunk_bytes None"),
    ("collective", "chunk_bytes", 0, "has ranks 4 and chunk_bytes 0"),
    ("message", "receives", [[9, 8, 0]], "call 1 has a message of rank 9, which is not in the call"),
])
def test_a_damaged_call_is_named(category, name, value, words, tmp_path):
    path = saved(tmp_path / "t.json", played(schedule("allreduce", "ring", 4)))
    content = json.loads(path.read_text())
    damaged = [e for e in content["traceEvents"] if e.get("cat") == category and name in e.get("args", ())]
    damaged[0]["args"][name] = value
    path.write_text(json.dumps(content))
    assert words in refused(*COMMAND, "--measured", path, "-o", tmp_path / "page.html")


def test_files_of_one_run_are_laid_together(tmp_path):
    """Files are merged as by `mpicoll timeline`: those that do not name their run are refused."""
    ring = schedule("allreduce", "ring", 4)
    first, second = saved(tmp_path / "1.json", played(ring)), saved(tmp_path / "2.json", played(ring, number=2))
    error = refused(*COMMAND, "--measured", first, "--measured", second, "-o", tmp_path / "page.html")
    assert "does not name its run" in error
    for path, shift in ((first, 0), (second, 500)):
        content = json.loads(path.read_text())
        content["otherData"] |= {"run": "a", "clock": "b", "host": "c", "origin_us": shift, "processes": {"0": "d"}}
        path.write_text(json.dumps(content))
    content = page_of(first, tmp_path / "page.html", "--algorithms", "ring", "-p", "4", "--measured", second)
    (call,) = content["schedules"]["allreduce/ring/p=4"]["measured"]
    assert call["calls"] == 2 and content["measured"]["file"] == f"{first}, {second}"


def test_a_page_without_recorded_calls_has_none(tmp_path):
    out = tmp_path / "page.html"
    good(*COMMAND, "--algorithms", "ring", "-o", out)
    content = unpacked(out.read_text())
    assert content["measured"] is None and not any("measured" in entry for entry in content["schedules"].values())
