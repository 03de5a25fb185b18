"""Timelines as OTF2 archives, read again by the package otf2."""

from __future__ import annotations

import sys

import pytest
from support import command
from unit.test_other_traces import TORCH
from unit.test_timeline import US, call, exchange, of, saved, with_turns

from mpicoll import timeline
from mpicoll.timeline import trace_events
from mpicoll.timeline.model import Span

OPS = ("ALLREDUCE", "BCAST")


@pytest.fixture
def otf2():
    return pytest.importorskip("otf2", reason="otf2: needs the package otf2")


def written(otf2, path, folder):
    """Return the records by rank and track, in order: kind, microseconds, and contents."""
    command.good("timeline", path, "--otf2", folder)
    records: dict[tuple[str, str], list[tuple]] = {}
    roots = []
    with otf2.reader.open(str(folder / "traces.otf2")) as archive:
        assert archive.timer_resolution == 10**9
        for location, event in archive.events:
            own = records.setdefault((location.group.name, location.name), [])
            kind = type(event).__name__
            if kind in ("Enter", "Leave"):
                own.append((kind, event.time / 1e3, event.region.name))
            elif kind == "MpiCollectiveBegin":
                own.append((kind, event.time / 1e3))
            elif kind == "MpiCollectiveEnd":
                is_allreduce = event.collective_op == otf2.CollectiveOp.ALLREDUCE
                sizes = event.size_sent, event.size_received
                own.append((kind, event.time / 1e3, is_allreduce, event.communicator.name, *sizes))
                (name,) = (name for name in OPS if event.collective_op == getattr(otf2.CollectiveOp, name))
                roots.append((name, event.root))
            else:
                peer = event.receiver if kind == "MpiSend" else event.sender
                own.append((kind, event.time / 1e3, peer, event.msg_tag, event.msg_length))
        comms = {comm.name: [member.group.name for member in comm.group.members] for comm in archive.definitions.comms}
    return records, comms, roots


def test_calls_messages_and_spans(otf2, tmp_path):
    ranks = exchange(late=5)
    ranks[0].spans.append(Span("<step>\ud800", 0.0, 20 * US))
    ranks[1].calls.append(call(20, 30, number=2, form="nonblocking", name="Iallreduce", waited=25))
    saved(tmp_path / "t.json", ranks)
    records, comms, _ = written(otf2, tmp_path / "t.json", tmp_path / "new" / "archive")
    assert comms == {"all ranks": ["rank 0", "rank 1"], "ranks 0-1": ["rank 0", "rank 1"]}
    assert records["rank 0", "program"] == [
        ("Enter", 0, "<step>?"), ("Enter", 0, "Allreduce"), ("MpiCollectiveBegin", 0),
        ("MpiCollectiveEnd", 17, True, "ranks 0-1", 8, 8), ("Leave", 17, "Allreduce"), ("Leave", 20, "<step>?"),
    ]  # fmt: skip
    assert records["rank 0", "messages"] == [
        ("Enter", 1, "wait for rank 1"), ("MpiSend", 1, 1, 1, 8), ("MpiRecv", 16, 1, 0, 8),
        ("Leave", 16, "wait for rank 1"), ("Enter", 16, "reduce or copy"), ("Leave", 17, "reduce or copy"),
    ]  # fmt: skip
    assert ("MpiSend", 6, 0, 0, 8) in records["rank 1", "messages"]
    assert records["rank 1", "in flight"] == [("Enter", 20, "Iallreduce"), ("Leave", 30, "Iallreduce")]
    assert records["rank 1", "program"][-2:] == [
        ("Enter", 25, "wait for Iallreduce"), ("Leave", 30, "wait for Iallreduce"),
    ]  # fmt: skip


def test_turns_of_threads(otf2, tmp_path):
    saved(tmp_path / "t.json", with_turns())
    records, *_ = written(otf2, tmp_path / "t.json", tmp_path / "archive")
    assert records["rank 0", "mpicoll-driver"] == [
        ("Enter", 10, "advance Iallreduce"), ("Leave", 11, "advance Iallreduce"),
        ("Enter", 20, "advance Iallreduce"), ("Leave", 22, "advance Iallreduce"),
    ]  # fmt: skip


def test_ranks_that_do_not_begin_at_zero_and_unmatched_messages(otf2, tmp_path):
    ranks = [timeline._replace(rank=rank) for timeline, rank in zip(exchange(), (3, 5))]
    content = trace_events.trace(ranks)
    assert content["otherData"]["unmatched_messages"] == 2, "they were with ranks 0 and 1"
    trace_events.write(content, tmp_path / "t.json")
    records, comms, _ = written(otf2, tmp_path / "t.json", tmp_path / "archive")
    assert comms["all ranks"] == ["rank 3", "rank 5"]
    assert not any(record[0].startswith("MpiS") for own in records.values() for record in own)


def rooted(collective, **facts):
    """Return a call of a rooted collective on ranks 3 and 5."""
    ranks = []
    for rank in (3, 5):
        of_rank = call(0, 9, name="Bcast")
        ranks.append(of(rank, of_rank._replace(facts=of_rank.facts | {"collective": collective, **facts})))
    return ranks


def test_roots_and_what_each_rank_sent_and_received(otf2, tmp_path):
    saved(tmp_path / "t.json", rooted("bcast", root=5, sent=24, received=0))
    records, _, roots = written(otf2, tmp_path / "t.json", tmp_path / "archive")
    assert roots == [("BCAST", 1)] * 2, "the second of the communicator's ranks"
    assert records["rank 3", "program"][2][-2:] == (24, 0)
    saved(tmp_path / "u.json", rooted("bcast"))  # as mpicoll wrote it before files had roots
    assert written(otf2, tmp_path / "u.json", tmp_path / "older")[2] == []
    saved(tmp_path / "v.json", rooted("bcast", root=4))
    message = command.refused("timeline", tmp_path / "v.json", "--otf2", tmp_path / "o")
    assert "has a root that is no rank of its call: 4" in message
    saved(tmp_path / "w.json", rooted("allreduce"))
    assert [op for op, _ in written(otf2, tmp_path / "w.json", tmp_path / "rootless")[2]] == ["ALLREDUCE"] * 2


def test_a_root_that_is_no_number(tmp_path):
    trace_events.write(trace_events.trace(rooted("bcast", root="5")), tmp_path / "t.json")
    assert "root is '5'" in command.refused("timeline", tmp_path / "t.json")


def test_folders_and_files_that_do_not_suit(otf2, tmp_path):
    saved(tmp_path / "t.json", [of(0, call(0, 9))])
    assert "is not empty" in command.refused("timeline", tmp_path / "t.json", "--otf2", tmp_path)
    message = command.refused("timeline", tmp_path / "t.json", "--otf2", tmp_path / "t.json" / "x", status=1)
    assert "cannot write" in message
    content = trace_events.trace(exchange())
    for event in content["traceEvents"]:
        for end in event.get("args", {}).get("sends", ()):
            end[0] = 7
    trace_events.write(content, tmp_path / "u.json")
    assert "a message that is none: [7" in command.refused("timeline", tmp_path / "u.json", "--otf2", tmp_path / "o")
    content = trace_events.trace(exchange())
    next(event for event in content["traceEvents"] if event["ph"] == "X")["ts"] = 1e18
    trace_events.write(content, tmp_path / "v.json")
    assert "no recording's" in command.refused("timeline", tmp_path / "v.json", "--otf2", tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    saved(tmp_path / "t.json", exchange())
    monkeypatch.delitem(sys.modules, "mpicoll.timeline.otf2_archive", raising=False)
    monkeypatch.delattr(timeline, "otf2_archive", raising=False)
    monkeypatch.setitem(sys.modules, "otf2", None)
    message = command.refused("timeline", tmp_path / "t.json", "--otf2", tmp_path / "o", status=1)
    assert "--otf2 needs otf2, which is not installed: pip install 'mpicoll[otf2]'" in message


def test_options_that_do_not_go_together(tmp_path):
    saved(tmp_path / "t.json", exchange())
    assert "are 2 forms" in command.refused("timeline", tmp_path / "t.json", "--otf2", tmp_path / "o", "--json")
    assert "--otf2 needs a timeline of mpicoll's" in command.refused("timeline", TORCH[0], "--otf2", tmp_path / "o")
