"""The history of calls in a flight record: what is written, what a reader takes from it, where ranks differ."""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct

import numpy as np
import pytest
from support import command

from mpicoll.diagnostics import flight, history
from mpicoll.diagnostics import flight_reader as reader
from mpicoll.diagnostics import history_reader as read
from mpicoll.diagnostics.flight import FlightRecord
from mpicoll.diagnostics.history import COMM_SHIFT, LOCATION_SHIFT, ROWS, with_root
from mpicoll.diagnostics.history_reader import Row
from mpicoll.doctor import history as compare
from mpicoll.doctor import torch_dump
from mpicoll.doctor.verdict import Verdict, judge

MOST = (1 << 23) - 1  # of communicators that have the same ranks
ROW = Row(1, "ranks 0-2", 7, 0, "Allreduce", "blocking", "ring", "SUM", -1, 80, "done", 1.0, 2e-6, "a.py, line 1, in f")


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.setenv(flight.VARIABLE, str(tmp_path))
    flight_record = FlightRecord()
    flight_record.open()
    return flight_record


def rows(record):
    return read.rows(record.path.read_bytes()[flight.CALLS :])


def ids(record, name="Allreduce", operator="SUM", where="a.py, line 1, in f"):
    intern = record.history.intern
    kind, comm = intern((name, "blocking", "ring", operator)), intern("ranks 0-2", 2)
    return kind | comm << COMM_SHIFT | intern(where) << LOCATION_SHIFT


def word(record, row, column, value):
    at = flight.CALLS + 8 * (history.HEADER + row * history.COLUMNS + column)
    record.memory[at : at + 8] = struct.pack("q", value)


def pairs(record, *words):
    for at, value in enumerate(words, history.FIRST_TICKS):
        record.history.words[at] = value


def test_a_row_says_what_was_called(record):
    serial = record.history.write(ids(record), 7, with_root(0, -1), 80)
    (row,) = rows(record)
    assert row._replace(began=1.0, took=2e-6) == ROW._replace(state="in flight", took=2e-6) and row.took is None
    record.history.end(serial)
    (row,) = rows(record)
    assert row.state == "done" and 0 <= row.took < 1 and row._replace(began=1.0, took=2e-6) == ROW


@pytest.mark.parametrize(("root", "start"), [(-1, 0), (0, 0), (3, 5), (70_000, 1 << 33)])
def test_root_and_start_share_a_word(record, root, start):
    record.history.write(ids(record), 7, with_root(start, root), 80)
    assert [(row.root, row.start) for row in rows(record)] == [(root, start)]


@pytest.mark.parametrize(("number", "name"), [(1, "ranks 0-2"), (2, "ranks 0-2 (2)"), (MOST, f"ranks 0-2 ({MOST})")])
def test_communicators_of_the_same_ranks_have_numbers(record, number, name):
    record.history.write(ids(record), 7 | number << history.NUMBER_SHIFT, 0, 80)
    assert [(row.call, row.communicator) for row in rows(record)] == [(7, name)]


@pytest.mark.parametrize("how", [history.FAILED, history.HANDED_OVER])
def test_calls_whose_end_has_no_time(record, how):
    record.history.end(record.history.write(ids(record), 7, 0, 80), how)
    (row,) = rows(record)
    assert (row.state, row.took) == ({history.FAILED: "failed"}.get(how, "left to MPI"), None)


def test_the_ring_keeps_the_last_calls(record):
    serials = [record.history.write(ids(record), call, 0, call) for call in range(1, ROWS + 501)]
    assert [row.call for row in rows(record)] == list(range(501, ROWS + 501))
    record.history.end(serials[300])  # its row has call 1325 by now
    record.history.end(serials[600])
    assert [row.call for row in rows(record) if row.state == "done"] == [601]


@pytest.mark.parametrize("words", range(1, history.COLUMNS))
def test_a_row_that_was_being_written_is_left_out(record, words):
    """The first words are of the new call, the others of the one that had the row before."""
    for call in range(1, ROWS + 2):
        record.history.write(ids(record), call, 0, 8 * call)
    now = list(record.history.words[history.HEADER : history.HEADER + history.COLUMNS])
    again = [now[0] - ROWS, now[1], now[2] - ROWS, now[3], now[4] - 8 * ROWS, now[5] - 1000, 0]
    again.append(int(history.checksum(*np.array(again[:6]))))
    for column, value in enumerate(again):
        word(record, 0, column, value)
    assert [row.call for row in rows(record)] == list(range(1, ROWS + 1))
    for column in range(words):
        word(record, 0, column, now[column])
    assert [row.call for row in rows(record)] == list(range(2, ROWS + 1))


def test_an_end_that_the_call_before_left_is_none(record):
    record.history.write(ids(record), 7, 0, 80)
    word(record, 0, history.ENDED, 1000)  # ns since 1970
    assert [(row.state, row.took) for row in rows(record)] == [("in flight", None)]


def test_ticks_become_seconds(record):
    pairs(record, 1000, 10**18, 3000, 10**18 + 1000)  # two ticks a nanosecond
    values = np.array([1, ids(record), 7, 0, 80, -5000])
    for column, value in enumerate([*values, -5600, int(history.checksum(*values))]):
        word(record, 0, column, int(value))
    (row,) = rows(record)
    assert row.began - 1e9 == pytest.approx(2e-6, abs=2e-7) and row.took == pytest.approx(300e-9)


def test_without_a_second_pair_it_is_not_known_how_long_calls_took(record):
    pairs(record, 1000, 10**18, 1000, 10**18)
    values = np.array([1, ids(record), 7, 0, 80, -5000])
    for column, value in enumerate([*values, -5600, int(history.checksum(*values))]):
        word(record, 0, column, int(value))
    assert [(row.state, row.took) for row in rows(record)] == [("done", None)]


def test_words_that_have_no_room(record):
    """Communicators leave half of the room to calls."""
    names = [f"ranks 0-{number}" for number in range(5000)]
    numbers = [record.history.intern(name, 2) for name in names]
    assert numbers[0] and not numbers[-1] and record.history.intern(names[0], 2) == numbers[0]
    assert ids(record) & history.ID
    lines = [record.history.intern(f"a.py, line {number}, in f") for number in range(5000)]
    assert lines[0] and not lines[-1]
    record.history.write(lines[-1] << LOCATION_SHIFT | ids(record) & history.ID, 7, 0, 80)
    (row,) = rows(record)
    assert (row.method, row.communicator, row.location) == ("Allreduce", "?", "?")
    assert compare.differences({0: [row], 1: [row._replace(method="Bcast")]}) == {}  # which communicator is unknown


def test_words_that_are_damaged(record):
    record.history.write(ids(record), 7, 0, 80)
    at = flight.BYTES - history.WORDS
    record.memory[at : at + 4] = b"\xff}}}"
    assert [row.method for row in rows(record)] == ["?"]


def test_a_record_without_memory_has_no_rows():
    nothing = history.History()
    assert nothing.intern("a") == nothing.write(1, 2, 3, 4) == nothing.address == 0
    nothing.end(0)


# -- where ranks differ -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "words"), [
    ({"method": "Bcast", "root": 2, "operator": ""}, "Bcast of 80 bytes, root 2, by ring, at a.py, line 9, in g"),
    ({"nbytes": 88}, "Allreduce of 88 bytes, SUM, by ring, at a.py, line 9, in g"),
    ({"operator": "MAX"}, "Allreduce of 80 bytes, MAX, by ring, at a.py, line 9, in g"),
    ({"algorithm": "tree"}, "Allreduce of 80 bytes, SUM, by tree, at a.py, line 9, in g"),
])  # fmt: skip
def test_the_first_call_in_which_ranks_differ(change, words):
    same = [ROW._replace(call=call) for call in range(5, 12)]
    other = [row if row.call < 8 else row._replace(**change, location="a.py, line 9, in g") for row in same]
    (line,) = compare.differences({0: same, 1: other[1:], 2: same}).values()
    assert line == (
        "call 8 on ranks 0-2 is the first in which ranks differ: ranks 0, 2 made Allreduce of 80 bytes, SUM, by ring, "
        f"at a.py, line 1, in f; rank 1 made {words}"
    )


@pytest.mark.parametrize(("mine", "others"), [
    ({}, {"method": "Iallreduce", "form": "nonblocking"}),
    ({}, {"location": "b.py, line 3, in f", "began": 9.0, "state": "in flight", "serial": 8}),
    ({"method": "Alltoallv"}, {"method": "Alltoallv", "nbytes": 88}),
    ({"method": "Neighbor_allgather"}, {"method": "Ineighbor_allgather", "nbytes": 88}),
    ({}, {"communicator": "ranks 0-1", "method": "Bcast"}),
])  # fmt: skip
def test_arguments_that_may_differ(mine, others):
    assert compare.differences({0: [ROW._replace(**mine)], 1: [ROW._replace(**others)]}) == {}


def test_starts_of_a_persistent_call_are_told_apart():
    init = ROW._replace(method="Allreduce_init", form="persistent")
    starts = [init._replace(start=start) for start in range(4)]
    assert compare.differences({0: starts, 1: starts[:2]}) == {}
    (line,) = compare.differences({0: starts, 1: [*starts[:3], init._replace(start=3, nbytes=8)]}).values()
    assert line.startswith("call 7, start 3 on ranks 0-2 is the first")
    assert compare.differences({0: [init], 1: [ROW]})  # making a request is another call


def test_every_communicator_has_its_first_difference():
    other = ROW._replace(communicator="ranks 0-1", call=3)
    bcast = [row._replace(method="Bcast") for row in (other, ROW)]
    assert [line.split(" is")[0] for line in compare.differences({0: [ROW, other], 1: bcast}).values()] == [
        "call 3 on ranks 0-1",
        "call 7 on ranks 0-2",
    ]


def test_ranks_that_did_the_same_are_shown_once():
    histories = {0: [ROW] * 9, 1: [ROW._replace(began=2.0, took=3e-6, serial=5)] * 3, 2: [], 3: [ROW]}
    lines = compare.table(histories, 2)
    assert [line for line in lines if not line.startswith(" ")] == [
        "ranks 0-1: the last 2 calls, times of rank 0",
        "rank 2: no calls",
        "rank 3: the last 1 calls",
    ]
    assert lines[1].endswith(
        "2.0 µs  call 7 on ranks 0-2  Allreduce of 80 bytes, SUM, by ring  done  at a.py, line 1, in f"
    )


# -- the command ------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that makes records of ranks, each with calls by method, and returns their directory."""
    monkeypatch.setenv(flight.VARIABLE, str(tmp_path))
    directory = tmp_path / flight.run_name()

    def rank(number, *methods, pid=None):
        record = FlightRecord()
        record.open()
        record.words[flight.RANK], record.words[flight.SIZE] = number, 3
        if pid is not None:
            record.words[flight.PROCESS] = pid
        for call, method in enumerate(methods, 1):
            serial = record.history.write(ids(record, method, "", f"{method.lower()}.py, line 3, in f"), call, 0, 80)
            if call < len(methods):
                record.history.end(serial)
        record.path.rename(directory / f"{socket.gethostname()}-{number + 1}-{os.getpid()}")

    rank.directory = directory
    return rank


def test_status_names_the_first_difference(run):
    for number in (0, 2):
        run(number, "Bcast", "Allreduce")
    run(1, "Bcast", "Barrier", "Allreduce")
    now = reader.read([run.directory])
    report = judge(now, now)
    assert report.verdict == Verdict.MISMATCH
    assert report.lines[1] == (
        "call 2 on ranks 0-2 is the first in which ranks differ: ranks 0, 2 made Allreduce of 80 bytes, by ring, "
        "at allreduce.py, line 3, in f; rank 1 made Barrier of 80 bytes, by ring, at barrier.py, line 3, in f"
    )


def test_status_names_the_last_call_of_a_dead_rank(run):
    run(0, "Bcast", pid=2**22 + 1)
    now = reader.read([run.directory])
    line = judge(now, now).lines[1]
    assert "last in Bcast (call 1 on ranks 0-2, in flight), at bcast.py, line 3, in f" in line


def test_status_shows_the_history(run):
    for number in range(3):
        run(number, *["Bcast"] * 20, "Barrier")
    name = str(run.directory)
    shown = command.run("status", "--wait", "0", name, "--history").output
    assert "ranks 0-2: the last 10 calls, times of rank 0" in shown and shown.count("by ring") == 10
    shown = command.run("status", "--wait", "0", "--history", "3", name).output
    assert "the last 3 calls" in shown and shown.count("Bcast") == 2 and shown.count("  in flight  ") == 1
    assert "last 10 calls" not in command.run("status", "--wait", "0", name).output
    content = json.loads(command.run("status", "--wait", "0", "--json", name, "--history", "2").output)
    assert [[row["method"] for row in rank["history"]] for rank in content["ranks"]] == [["Bcast", "Barrier"]] * 3
    assert content["ranks"][0]["history"][1]["location"] == "barrier.py, line 3, in f"


# -- for torch's analyser ---------------------------------------------------------------------------------


def test_a_dump_for_torch(run, tmp_path):
    for number in range(3):
        run(number, "Bcast", "Scan", "Iallgather", "Neighbor_allgather", "Allreduce_init")
    folder = tmp_path / "new" / "dumps"
    assert command.run("status", "--wait", "0", str(run.directory), "--torch", str(folder)).exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["rank_0", "rank_1", "rank_2"]
    dump = pickle.loads((folder / "rank_1").read_bytes())
    assert dump["pg_config"] == {"ranks 0-2": {"name": "ranks 0-2", "desc": "undefined", "ranks": "[0, 1, 2]"}}
    entries = dump["entries"]
    assert [entry["profiling_name"] for entry in entries] == [
        "gloo:broadcast", "gloo:_all_gather_base", "gloo:all_reduce",
    ]  # fmt: skip
    assert [entry["collective_seq_id"] for entry in entries] == [1, 2, 3]
    assert [entry["state"] for entry in entries] == ["completed", "completed", "started"]
    assert (entries[1]["input_sizes"], entries[1]["output_sizes"]) == ([[80 // 3]], [[80]])
    assert entries[0]["frames"] == [{"filename": "bcast.py", "line": 3, "name": "f"}]


def test_a_dump_begins_where_all_histories_do(tmp_path):
    """A rank that made more calls on other communicators has fewer of this one left."""
    calls = [ROW._replace(call=call, serial=call) for call in range(1, 9)]
    others = [ROW._replace(call=call, communicator="ranks 0-1", serial=call + 8) for call in range(1, 4)]
    torch_dump.write({0: calls[4:] + others, 1: calls + others, 2: calls[2:]}, tmp_path)
    numbers = []
    for rank in range(3):
        entries = pickle.loads((tmp_path / f"rank_{rank}").read_bytes())["entries"]
        numbers.append([entry["process_group"][0] for entry in entries].count("ranks 0-2"))
        assert [entry["record_id"] for entry in entries] == list(range(len(entries)))
    assert numbers == [4, 4, 4]


def test_a_folder_that_cannot_be_written(run, tmp_path):
    run(0, "Bcast")
    (tmp_path / "file").write_text("")
    shown = command.run("status", "--wait", "0", str(run.directory), "--torch", str(tmp_path / "file"))
    assert shown.exit_code == 2 and f"{tmp_path / 'file'} cannot be used" in shown.output


def test_making_a_persistent_request_is_no_operation_of_torch():
    init = ROW._replace(method="Allreduce_init", form="persistent")
    entries = torch_dump.dump([init, init._replace(start=1), init._replace(start=2)], {})["entries"]
    assert [entry["collective_seq_id"] for entry in entries] == [1, 2]
