"""Timelines without MPI: tracks, pairs of messages, the file and what it says, and where time went."""

from __future__ import annotations

import cProfile
import gzip
import json
import pstats
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI
from support import command
from support.trace_events import check_format

from mpicoll import describe
from mpicoll.describe.timeline_page import BARS, BEYOND, COLOURS, INSIDE, LATE, MESSAGES, PACE, PATH, draw_call
from mpicoll.engines.events import NO_MESSAGE
from mpicoll.errors import TimelineError
from mpicoll.plans.plan import RECV, SEND
from mpicoll.selection import settings
from mpicoll.timeline import model, threads, timeline, trace_events, waits
from mpicoll.timeline import read as reader
from mpicoll.timeline.match import UNMATCHED, most_before_sent, pair
from mpicoll.timeline.model import Call, RankTimeline, Span
from mpicoll.timeline.path import critical_path
from mpicoll.timeline.read import Part
from mpicoll.timeline.tracks import place

US = 1e-6


def message(kind, peer, posted, arrived, ended=None, step=0, slot=0, chunk=0, nbytes=8):
    """Return a row of a table of messages, with times in microseconds."""
    times = [round(1000 * t) for t in (posted, arrived, arrived if ended is None else ended)]
    return [kind, peer, nbytes, 0, slot, chunk, step, 0, *times]


def call(began, ended, *messages, number=1, form="blocking", waited=None, name="Allreduce", algorithm="ring", nbytes=8):
    """Return a call on a rank, with times in microseconds."""
    facts = {"collective": "allreduce", "form": form, "bytes": nbytes, "algorithm": algorithm}
    rows = np.array(messages, np.int64).reshape(-1, 11)
    times = began * US, (began if waited is None else waited) * US, ended * US
    return Call("ranks 0-1", number, 0, name, facts, *times, rows, 0)


def of(rank, *calls, spans=()):
    return RankTimeline(rank, "host", list(calls), list(spans), 0, US * (rank > 0))


def exchange(late=0.0):
    """Return two ranks that exchange messages, of which rank 1 begins late."""
    here = message(SEND, 1, 1, 11 + late, 12 + late), message(RECV, 1, 1, 11 + late, 12 + late)
    there = message(SEND, 0, 1 + late, 11 + late, 13 + late), message(RECV, 0, 1 + late, 11 + late, 13 + late)
    return [of(0, call(0, 12 + late, *here)), of(1, call(late, 13 + late, *there))]


def saved(path, timelines):
    trace_events.write(trace_events.trace(timelines), path)
    return reader.read(path)


# -- tracks and pairs


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=20), st.booleans())
def test_intervals_of_a_track_do_not_overlap_or_nest(lengths, nested):
    intervals = [(began, began + length) for began, length in lengths]
    tracks = place(intervals, nested)
    for i, (a, b) in enumerate(intervals):
        for j, (c, d) in enumerate(intervals[:i]):
            if tracks[i] == tracks[j]:
                assert b <= c or d <= a or (nested and ((a <= c and d <= b) or (c <= a and b <= d)))


def test_messages_of_the_same_tag_pair_in_order():
    two = [message(SEND, 1, t, t + 1, step=t) for t in (0, 5)]
    taken = [message(RECV, 0, t, t + 3, step=t) for t in (0, 5)]
    other = message(SEND, 1, 2, 3, slot=1)
    numbers, pairs = pair([of(0, call(0, 9, two[0], other, two[1])), of(1, call(0, 9, *taken))])
    assert pairs == 2 and [x.tolist() for x in numbers] == [[0, UNMATCHED, 1], [0, 1]]


def test_messages_of_different_calls_do_not_pair():
    sent, taken = of(0, call(0, 9, message(SEND, 1, 0, 1))), of(1, call(0, 9, message(RECV, 0, 0, 1), number=2))
    assert pair([sent, taken])[1] == 0
    assert trace_events.trace([sent, taken])["otherData"]["unmatched_messages"] == 1


def test_a_message_that_arrives_before_it_is_sent_shows_how_wrong_the_clocks_are():
    """Here rank 1's clock is 40 µs ahead. A message of a call that broke off did not arrive, and shows nothing."""
    here = of(0, call(0, 12, message(SEND, 1, 1, 11), message(RECV, 1, 1, 11), message(RECV, 1, 2, 0),
                       message(SEND, 1, 5, 6, slot=1)))  # the last was not taken
    there = of(1, call(40, 53, message(SEND, 0, 41, 51), message(SEND, 0, 42, 51), message(RECV, 0, 41, 51)))
    numbers, _ = pair([here, there])
    assert most_before_sent([here, there], numbers) == pytest.approx(30 * US)
    assert 1 < trace_events.trace([here, there])["otherData"]["clock_error_us"] <= 30
    assert trace_events.trace(exchange())["otherData"]["clock_error_us"] == 1, "the readings' own"


# -- the file


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_file_has_every_call_step_and_span(tmp_path, name):
    ranks = exchange(late=5)
    ranks[0].spans.append(Span("<forward> & \"back\"", 0.0, 20 * US))
    local = call(20, 30, message(NO_MESSAGE, -1, 20, 20, 28), number=2)
    ranks[0].calls.append(local)
    content = trace_events.trace(ranks)
    assert check_format(content) == 2  # arrows
    slices = [(e["name"], e["pid"], e["ts"], e["dur"]) for e in content["traceEvents"] if e["ph"] == "X"]
    assert ('<forward> & "back"', 0, 0.0, 20.0) in slices
    assert ("wait for rank 1", 0, 1.0, 15.0) in slices and ("reduce or copy", 1, 16.0, 2.0) in slices
    assert ("reduce or copy", 0, 20.0, 8.0) in slices
    trace_events.write(content, tmp_path / name)
    recorded = reader.read(tmp_path / name)
    assert {number: len(parts) for (_, number, _), parts in recorded.calls.items()} == {1: 2, 2: 1}
    assert recorded.facts["messages"] == 2 and recorded.facts["clock_error_us"] == 1.0


def test_chunks_in_flight_have_tracks_of_their_own():
    """Rows are in the order in which messages were posted: that of steps within a slot, but slots take turns."""
    rows = [(0, 0, 1), (1, 0, 2), (0, 1, 4), (1, 1, 5), (0, 2, 7), (2, 3, 8)]  # slot, step, posted
    messages = [message(SEND, 1, posted, posted + 2, slot=slot, chunk=slot, step=step) for slot, step, posted in rows]
    content = trace_events.trace([of(0, call(0, 20, *messages))])
    slices = [(e["tid"] - trace_events.MESSAGES, e["args"]["step"], e["ts"], e["dur"])
              for e in content["traceEvents"] if e["ph"] == "X" and e["cat"] == "message"]  # fmt: skip
    assert slices == [(0, 0, 1, 2), (0, 1, 4, 2), (0, 2, 7, 2), (1, 0, 2, 2), (1, 1, 5, 2), (1, 3, 8, 2)]


def test_a_message_that_did_not_arrive_has_no_length():
    content = trace_events.trace([of(0, call(0, 9, message(RECV, 1, 3, 0)))])
    (event,) = (e for e in content["traceEvents"] if e["ph"] == "X" and e["cat"] == "message")
    assert (event["ts"], event["dur"]) == (3, trace_events.SHORTEST)


def test_a_nonblocking_call_is_in_flight_and_its_wait_in_the_program(tmp_path):
    content = trace_events.trace([of(0, call(0, 10, form="nonblocking", name="Iallreduce", waited=6))])
    slices = {e["name"]: (e["tid"], e["ts"], e["dur"]) for e in content["traceEvents"] if e["ph"] == "X"}
    assert slices["Iallreduce"] == (trace_events.IN_FLIGHT, 0.0, 10.0)
    assert slices["wait for Iallreduce"] == (trace_events.PROGRAM, 6.0, 4.0)


EXCHANGED = {"communicator": "ranks 0-1", "call": 1, "start": 0, "strand": 0, "chunk": 0, "step": 0}
EXCHANGED |= {"sends": [], "receives": []}
BAD = {
    "not JSON": ("hello", "is no JSON"),
    "cut off": ('{"traceEvents": [{"ph": "X", ', "its end is missing"),
    "empty": ("", "is no JSON: it is empty"),
    "nested": ("[" * 100_000, "is nested too deeply"),
    "no events": ('{"a": 1}', "has no traceEvents"),
    "others' events": ('[{"ph": "X", "cat": "op", "name": "aten::mm"}]', "no collectives of mpicoll's among its 1"),
    "no messages": (
        '[{"ph": "X", "cat": "message", "ts": 1, "dur": 1, "pid": 0, "tid": 0, "name": "a", "args": '
        '{"communicator": "a", "call": 1, "start": 0, "sends": [], "receives": [["a", 1, 1]]}}]',
        "event 0 is no message of mpicoll's",
    ),
    "no facts": ('[{"ph": "X", "cat": "collective", "ts": 1, "dur": 1, "args": {"communicator": 1}}]', "event 0 is no"),
}
DAMAGED = {
    "time": ("ts", float("nan"), "its time is not finite"),
    "rank": ("pid", "0", "pid is '0'"),
    "huge": ("ts", 10**400, "int too large"),
    "messages": ("args", {**EXCHANGED, "sends": [[1, 2]]}, "a message has not three numbers"),
    "bytes": ("args", {**EXCHANGED, "receives": [[1, 8.5, 0]]}, "a number of a message is 8.5"),
}


@pytest.mark.parametrize(("name", "value", "words"), DAMAGED.values(), ids=DAMAGED)
def test_one_damaged_event_is_named(tmp_path, name, value, words):
    content = trace_events.trace(exchange())
    index = next(i for i, event in enumerate(content["traceEvents"]) if "sends" in event.get("args", {}))
    content["traceEvents"][index][name] = value
    trace_events.write(content, tmp_path / "t.json")
    result = command.run("timeline", str(tmp_path / "t.json"))
    assert result.exit_code == 2 and f"event {index} is no message of mpicoll's: {words}" in result.output


@pytest.mark.parametrize("text", ["\ud800", "\x1b[31m"], ids=ascii)
@pytest.mark.parametrize("place", ["name", "communicator", "algorithm"])
def test_names_that_a_terminal_would_obey(tmp_path, text, place):
    content = trace_events.trace(exchange())
    event = next(event for event in content["traceEvents"] if event.get("cat") == "collective")
    (event if place == "name" else event["args"])[place] = text
    trace_events.write(content, tmp_path / "t.json")
    result = command.run("timeline", str(tmp_path / "t.json"))
    assert result.exit_code == 2 and "a name has characters that control a terminal" in result.output


def test_names_with_markup_are_printed_as_they_are(tmp_path):
    ranks = exchange(late=100)
    for rank in ranks:
        rank.calls[0].facts["algorithm"] = "[/red]<b>"
    saved(tmp_path / "t.json", [rank._replace(calls=[rank.calls[0]._replace(name="[bold]x")]) for rank in ranks])
    output = command.good("timeline", tmp_path / "t.json")
    assert output.count("[/red]<b>") == 2 and "[bold]x (call 1)" in output and output.count("[bold]x") == 3


@pytest.mark.parametrize("value", ["2", float("nan"), 10**400])
@pytest.mark.parametrize("name", ["clock_error_us", "messages"])
def test_damaged_facts_of_a_file(name, value, tmp_path):
    content = trace_events.trace(exchange())
    content["otherData"][name] = value
    trace_events.write(content, tmp_path / "t.json")
    result = command.run("timeline", str(tmp_path / "t.json"))
    assert result.exit_code == 2 and f"{name} of its otherData is no number" in result.output


def test_work_for_an_event(tmp_path):
    """A million messages are gathered on rank 0 as a program ends, so that Python calls for each of them count."""
    calls = [
        [call(100 * n, 100 * n + 50, *(message(kind, 1 - rank, 100 * n + t, 100 * n + t + 1, step=t)
                                       for t in range(8) for kind in (SEND, RECV)), number=n) for n in range(50)]
        for rank in range(2)
    ]  # fmt: skip
    ranks, calls_of = [of(rank, *own) for rank, own in enumerate(calls)], []
    content = {}
    for work in (
        lambda: content.update(trace_events.trace(ranks)),
        lambda: trace_events.write(content, tmp_path / "t.json"),
        lambda: waits.sums(reader.read(tmp_path / "t.json")),
    ):
        profile = cProfile.Profile()
        profile.runcall(work)
        calls_of.append(pstats.Stats(profile).total_calls / len(content["traceEvents"]))
    assert calls_of[0] < 7 and calls_of[1] < 1 and calls_of[2] < 4, calls_of


def test_a_file_that_never_was_json_was_not_cut_off(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import numpy\n")
    assert "is no JSON (Expecting value" in command.refused("timeline", path)


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_files_that_are_no_timelines(tmp_path, text, words):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(TimelineError, match=words):
        reader.read(tmp_path / "bad.json")
    result = command.run("timeline", str(tmp_path / "bad.json"))
    assert result.exit_code == 2 and words in result.output and result.output.count("\n") == 1


def test_a_compressed_file_that_is_cut_off(tmp_path):
    whole = gzip.compress(json.dumps(trace_events.trace(exchange())).encode())
    (tmp_path / "t.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TimelineError, match="cannot be decoded"):
        reader.read(tmp_path / "t.gz")


def test_two_runs_in_one_file(tmp_path):
    first, second = (trace_events.trace(exchange()) for _ in range(2))
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": first["traceEvents"] + second["traceEvents"]}))
    with pytest.raises(TimelineError, match="call 1 on ranks 0-1 twice on a rank: it is made of several runs"):
        reader.read(tmp_path / "t.json")


def with_turns():
    """Return two ranks: rank 0 computes from 2 to 30 µs while threads advance its call; rank 1 has no turns."""
    steps = [message(SEND, 1, 1, 11, step=0), message(RECV, 1, 1, 21, 22, step=1), message(RECV, 1, 22, 36, step=2)]
    here = call(0, 40, *steps, form="nonblocking", name="Iallreduce", waited=30)
    turns = [(0, 10, 11, 0, 0, 1), (0, 20, 22, 1, 8, 1), (1, 35, 36, 0, 0, 1)]
    rows = [[thread, 0, 1000 * began, 1000 * ended, *counts] for thread, began, ended, *counts in turns]
    there = call(0, 40, form="nonblocking", name="Iallreduce", waited=10)
    return [of(0, here)._replace(turns=np.array(rows)), of(1, there)]


def test_turns_of_threads_have_tracks_of_their_own():
    content = trace_events.trace(with_turns())
    check_format(content)
    slices = [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"], e["args"])
              for e in content["traceEvents"] if e.get("cat") == "turn"]  # fmt: skip
    key = {"communicator": "ranks 0-1", "call": 1, "start": 0}
    driver, thread = trace_events.DRIVER, trace_events.PYTHON_THREAD
    assert slices == [
        ("advance Iallreduce", 0, driver, 10, 1, key | {"posted": 0, "sent": 0, "steps": 1}),
        ("advance Iallreduce", 0, driver, 20, 2, key | {"posted": 1, "sent": 8, "steps": 1}),
        ("advance Iallreduce", 0, thread, 35, 1, key | {"posted": 0, "sent": 0, "steps": 1}),
    ]
    names = {e["tid"]: e["args"]["name"] for e in content["traceEvents"] if e["name"] == "thread_name" and not e["pid"]}
    assert (names[driver], names[thread]) == ("mpicoll-driver", "mpicoll-progress")

# -- where time went


def test_what_threads_hid(tmp_path):
    """The turn at 35 µs is after the program began to wait, so it hid nothing. Nor do blocking calls."""
    ranks = with_turns()
    ranks[0].calls.append(call(50, 60, message(SEND, 1, 51, 55), number=2, name="Allreduce"))
    first, second = threads.progress(saved(tmp_path / "t.json", ranks))
    assert (first.rank, first.turns, first.steps, first.all_steps) == (0, 2, 2, 3)
    assert (first.working, first.hidden, first.by_threads) == pytest.approx((3, 30, 22))
    assert second == threads.Progress(1, hidden=pytest.approx(10))
    assert threads.progress(saved(tmp_path / "t.json", exchange())) == []
    saved(tmp_path / "t.json", with_turns())
    row = next(line for line in command.good("timeline", tmp_path / "t.json").splitlines() if "22 µs" in line)
    assert row.split() == ["0", "2", "3", "µs", "2", "3", "30", "µs", "22", "µs"]
    content = json.loads(command.good("timeline", tmp_path / "t.json", "--json"))
    assert [rank["by_threads"] for rank in content["threads"]] == [pytest.approx(22), 0]


def test_a_turn_in_which_the_program_begins_to_wait(tmp_path):
    ranks = with_turns()
    ranks[0].turns[2, [model.BEGAN, model.ENDED]] = 28_000, 33_000
    first, _ = threads.progress(saved(tmp_path / "t.json", ranks))
    assert (first.turns, first.steps) == (3, 3) and (first.working, first.by_threads) == pytest.approx((8, 30))


def test_turns_of_a_call_of_mpis_own_have_no_steps(tmp_path):
    native = call(0, 40, form="nonblocking", algorithm="native", waited=30)
    ranks = [of(0, native)._replace(turns=np.array([[1, 0, 20_000, 21_000, 0, 0, 0]]))]
    (only,) = threads.progress(saved(tmp_path / "t.json", ranks))
    assert (only.turns, only.steps, only.all_steps) == (1, 0, 0) and only.by_threads == pytest.approx(21)


def test_waiting_for_a_late_rank(tmp_path):
    recorded = saved(tmp_path / "t.json", exchange(late=100))
    (total,), (late,) = waits.sums(recorded), waits.stragglers(recorded)
    assert (total.calls, total.algorithms) == (1, {"ring"})
    assert total.inside == pytest.approx((112 + 13) / 2) and total.late == pytest.approx(50)
    assert total.fastest == pytest.approx(13) and total.hidden == 0
    assert (late.rank, late.times, late.waited) == (1, 1, pytest.approx(100))


def test_overlap_with_computing(tmp_path):
    calls = [call(0, 10, form="nonblocking", name="Iallreduce", waited=8)]
    (total,) = waits.sums(saved(tmp_path / "t.json", [of(0, *calls), of(1, *calls)]))
    assert total.hidden == pytest.approx(8) and total.beyond == 0


def test_calls_beyond_the_pace_of_the_fastest(tmp_path):
    calls = [call(0, 10), call(20, 50, number=2)]
    (total,) = waits.sums(saved(tmp_path / "t.json", [of(0, *calls), of(1, *calls)]))
    assert total.fastest == pytest.approx(10) and total.beyond == pytest.approx(20)


@given(st.lists(st.lists(st.tuples(*[st.integers(0, 50)] * 3), min_size=1, max_size=4), min_size=1, max_size=9))
def test_sums_and_stragglers_are_those_of_a_loop(lengths):
    parts = {("c", n, 0): [Part(rank, 0, "x", began, began + took,
                                {"bytes": n % 2, "algorithm": "a", "exposed_us": exposed, "call": n})
                           for rank, (began, took, exposed) in enumerate(ranks)]
             for n, ranks in enumerate(lengths)}  # fmt: skip
    recorded, waited, expected = reader.TimelineFile("t", parts, {}, [], {}), {}, {}
    for (_, n, _), ranks in parts.items():
        last = max(ranks, key=lambda part: part.began)
        late = [min(last.began, part.ended) - part.began for part in ranks]
        if sum(late) > 0:
            waited[last.rank] = [*waited.get(last.rank, []), (sum(late) / max(1, len(ranks) - 1), -n)]
        inside = sum(part.ended - part.began for part in ranks) / len(ranks)
        hidden = max(0, inside - sum(part.facts["exposed_us"] for part in ranks) / len(ranks))
        fastest = max(part.ended for part in ranks) - last.began
        expected.setdefault(n % 2, []).append((1, inside, sum(late) / len(ranks), hidden, fastest))
    got = {row.nbytes: (row.calls, row.inside, row.late, row.hidden, row.fastest) for row in waits.sums(recorded)}
    for nbytes, rows in expected.items():
        *columns, fastest = zip(*rows)
        assert got[nbytes] == (*(pytest.approx(sum(column)) for column in columns), min(fastest))
    for row in waits.stragglers(recorded):
        times = waited.pop(row.rank)
        worst, call = max(times)
        assert (row.times, row.where) == (len(times), f"x, call {-call}") and row.worst == worst
        assert row.waited == pytest.approx(sum(us for us, _ in times))
    assert not waited
    slowest = max(parts.values(), key=lambda ranks: max(p.ended for p in ranks) - min(p.began for p in ranks))
    assert waits.slowest(recorded) is slowest


def links(timeline, number=1):
    parts = waits.slowest(timeline, number)
    path = critical_path(parts, timeline.steps.get(parts[0].key, []))
    return [(link.what, link.rank, link.source, round(link.ended - link.began, 3)) for link in path]


def test_the_critical_path_goes_through_the_late_rank(tmp_path):
    assert links(saved(tmp_path / "t.json", exchange(late=100))) == [
        ("late", 1, None, 100.0),
        ("before the first message", 1, None, 1.0),
        ("message", 1, 0, 10.0),
        ("reduce or copy", 1, None, 2.0),
    ]


def test_the_critical_path_follows_a_chain_of_senders(tmp_path):
    first = of(0, call(0, 4, message(SEND, 1, 1, 4)))
    second = of(1, call(0, 9, message(RECV, 0, 0.5, 4), message(SEND, 2, 5, 9, step=1)))
    third = of(2, call(0, 12, message(RECV, 1, 0.5, 9, 12)))
    assert links(saved(tmp_path / "t.json", [first, second, third])) == [
        ("before the first message", 0, None, 1.0),
        ("message", 1, 0, 3.0),
        ("between steps", 1, None, 1.0),
        ("message", 2, 1, 4.0),
        ("reduce or copy", 2, None, 3.0),
    ]


def test_the_critical_path_goes_to_the_last_of_several_senders(tmp_path):
    senders = [of(rank, call(0, 9, message(SEND, 2, posted, 9))) for rank, posted in ((0, 6), (1, 3))]
    receiver = of(2, call(0, 10, message(RECV, 0, 1, 9, 10), message(RECV, 1, 1, 9, 10)))
    assert links(saved(tmp_path / "t.json", [*senders, receiver])) == [
        ("before the first message", 0, None, 6.0),
        ("message", 2, 0, 3.0),
        ("reduce or copy", 2, None, 1.0),
    ]


def test_a_message_without_a_sender_leads_nowhere(tmp_path):
    elsewhere = of(0, call(0, 9, message(SEND, 7, 6, 9)))  # to a rank whose timeline is not there
    here = of(1, call(0, 10, message(RECV, 8, 1, 9, 10)))
    assert links(saved(tmp_path / "t.json", [elsewhere, here])) == [
        ("before the first message", 1, None, 1.0),
        ("message", 1, 8, 8.0),
        ("reduce or copy", 1, None, 1.0),
    ]


def test_the_critical_path_of_times_that_contradict_each_other_ends(tmp_path):
    content = trace_events.trace(exchange())
    steps = [event for event in content["traceEvents"] if "receives" in event.get("args", {})]
    for event in steps:  # each waits for what the other sends in its next step
        ts = event["ts"]
        event |= {"ts": ts, "dur": 10.0}
        other = event | {"ts": ts + 4 + event["pid"], "dur": 9.0, "args": event["args"] | {"receives": [], "sends": []}}
        other["args"]["sends"], event["args"] = event["args"]["sends"], event["args"] | {"sends": []}
        other["args"]["receives"] = event["args"]["receives"]
        content["traceEvents"].append(other)
    trace_events.write(content, tmp_path / "t.json")
    assert len(links(reader.read(tmp_path / "t.json"))) < 20


def test_a_call_of_mpis_own_has_no_path(tmp_path):
    recorded = saved(tmp_path / "t.json", [of(0, call(0, 4, algorithm="native"))])
    assert links(recorded) == []
    assert "nothing is known of its path" in command.run("timeline", str(tmp_path / "t.json")).output


def test_the_command_says_where_time_went(tmp_path):
    saved(tmp_path / "t.json", exchange(late=100))
    output = command.run("timeline", str(tmp_path / "t.json")).output
    assert "2 ranks, 1 calls in 113 µs; clocks agree to 1 µs" in output
    assert "The slowest call is Allreduce (call 1) of 8 B on ranks 0-1, ring, 113 µs; its critical path" in output
    content = json.loads(command.run("timeline", str(tmp_path / "t.json"), "--json").output)
    assert content["collectives"][0]["late"] == pytest.approx(50)
    assert content["stragglers"][0]["rank"] == 1 and content["path"][0]["what"] == "late"
    refused = command.run("timeline", str(tmp_path / "t.json"), "--call", "7")
    assert refused.exit_code == 2 and "has no call 7; its calls are 1 to 1" in refused.output


@pytest.mark.once
def test_the_page_has_what_the_terminal_says_and_pictures(tmp_path):
    """All rows, a bar for each part of the time, and names with markup in them as they are."""
    late = exchange(late=100)
    for rank in late:
        rank.calls[0].facts["algorithm"] = "<b>ring</b>"
    saved(tmp_path / "t.json", late)
    page = tmp_path / "page.html"
    done = command.run("timeline", str(tmp_path / "t.json"), "-o", str(page))
    assert done.exit_code == 0 and done.output.startswith(f"{page}: 3 pictures, 0.")
    text = page.read_text()
    ring = "&lt;b&gt;ring&lt;/b&gt;"
    for words in ("t.json went</h1>", "clocks agree to 1 µs", f"ranks 0-1, {ring}, 113 µs</p>", f"{ring}</td>"):
        assert words in text
    assert "<b>ring" not in text and "<script" not in text and "src=" not in text
    assert text.count("<svg") == 6, "three pictures in two themes"
    for part in (LATE, PACE, INSIDE, MESSAGES, PATH):
        assert text.count(f'fill="{COLOURS[part]}"') >= 2, part
    assert COLOURS[BEYOND] in text
    refused = command.run("timeline", str(tmp_path / "t.json"), "-o", str(tmp_path / "no" / "page.html"))
    assert refused.exit_code == 1 and "cannot write" in refused.output
    both = command.run("timeline", str(tmp_path / "t.json"), "-o", str(page), "--json")
    assert both.exit_code == 2 and "give one of them" in both.output


def test_of_many_ranks_those_of_the_critical_path_are_drawn(tmp_path):
    late = of(40, call(100, 113, *(message(kind, 0, 101, 111, 113) for kind in (SEND, RECV))))
    others = [of(rank, call(0, 113)) for rank in range(1, 40)]
    first = of(0, call(0, 112, *(message(kind, 40, 1, 111, 112) for kind in (SEND, RECV))))
    recorded = saved(tmp_path / "t.json", [first, *others, late])
    (key,) = recorded.calls
    path = critical_path(recorded.calls[key], recorded.steps[key])
    assert {link.rank for link in path} >= {40}
    picture = draw_call(recorded.calls[key], recorded.steps[key], path)
    assert picture.title == f"The call in time, {BARS} of 41 lines"
    assert ">rank 40<" in picture.svg["light"] and ">rank 39<" not in picture.svg["light"]


def test_the_page_of_a_call_of_mpis_own(tmp_path):
    saved(tmp_path / "t.json", [of(0, call(0, 4, algorithm="native")), of(1, call(0, 4, algorithm="native"))])
    done = command.run("timeline", str(tmp_path / "t.json"), "-o", "-")
    assert done.exit_code == 0 and COLOURS[PATH] not in done.output and COLOURS[INSIDE] in done.output


def test_a_page_without_what_draws_it_says_what_to_install(tmp_path, monkeypatch):
    saved(tmp_path / "t.json", exchange())
    monkeypatch.delitem(sys.modules, "mpicoll.describe.timeline_page", raising=False)
    monkeypatch.delattr(describe, "timeline_page", raising=False)
    monkeypatch.setitem(sys.modules, "altair", None)
    refused = command.run("timeline", str(tmp_path / "t.json"), "-o", str(tmp_path / "page.html"))
    assert refused.exit_code == 1 and "--output needs altair" in refused.output and "mpicoll[report]" in refused.output


# -- of a whole program


class Unfinished:
    """A timeline to whose end not all ranks come, or whose file cannot be written."""

    def __init__(self, meets):
        self.all_come, self.rank, self.saved = meets, 0, False

    @property
    def comm(self):
        return self

    def meets(self, seconds):
        return self.all_come

    def end(self):
        assert self.all_come

    def save(self, path):
        self.saved = True
        raise PermissionError(13, "Permission denied")


@dataclass
class CommState:
    """A communicator whose settings name a file."""

    settings: SimpleNamespace
    size: int = 1


def test_the_timeline_of_a_program_begins_once(monkeypatch):
    begun = []
    monkeypatch.setattr(timeline, "Timeline", begun.append)
    program = timeline.OfProgram()
    comms = [CommState(SimpleNamespace(timeline=path)) for path in ("", "a.json", "", "b.json")]
    comms.insert(1, CommState(SimpleNamespace(timeline="a.json"), size=MPI.COMM_WORLD.size + 1))
    for comm in comms:
        program.opened(comm, comm)
    assert begun == [comms[2]] and program.path == "a.json"


def test_the_file_is_that_of_the_directory_at_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert settings.read({"MPICOLL_TIMELINE": "t.json"}).timeline == str(tmp_path / "t.json")


@pytest.mark.parametrize(("meets", "words"), [(False, "not all ranks came to the end"), (True, "Permission denied")])
def test_a_timeline_that_cannot_be_written_says_so(capsys, meets, words):
    program = timeline.OfProgram()
    program.timeline, program.path = Unfinished(meets), "t.json"
    unfinished = program.timeline
    program.end()
    program.end()  # once
    assert words in capsys.readouterr().err and unfinished.saved == meets
