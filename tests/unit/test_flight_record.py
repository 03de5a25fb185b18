"""Flight records: what a process writes, what another reads, and what it makes of a run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support import command

from mpicoll.diagnostics import flight
from mpicoll.diagnostics import flight_reader as reader
from mpicoll.diagnostics.counters import CALLS
from mpicoll.diagnostics.flight import FlightRecord, Place
from mpicoll.diagnostics.history import CommHistory
from mpicoll.diagnostics.status import Answer, Failure
from mpicoll.doctor.verdict import Verdict, judge
from mpicoll.progress.operation import CallId, RecordedArguments

ALL = "ranks 0-2"


@dataclass
class CommState:
    """A communicator of three ranks, as its record knows it."""

    place: Place
    waited_for: tuple[int, ...] = ()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a directory of records, and a function that makes the record of one of three ranks."""
    monkeypatch.setenv(flight.VARIABLE, str(tmp_path))
    directory = tmp_path / flight.run_name()

    def rank(number, calls, *under_way, at="a.py, line 1, in f", ended="", waited_for=(), pid=None, failures=()):
        record = FlightRecord()
        record.open()
        numbers, slot = record.numbers()
        record.words[flight.RANK], record.words[flight.SIZE] = number, 3
        if pid is not None:
            record.words[flight.PROCESS] = pid
        answer = Answer(calls, [CallId(call, 0, name) for call, name in under_way], failures=list(failures))
        record.write(at, [(CommState(Place(ALL, "0-2", slot), waited_for), answer)], ended)
        numbers[CALLS] = calls
        record.path = record.path.rename(directory / f"{socket.gethostname()}-{number + 1}-{os.getpid()}")
        return record, numbers

    rank.directory = directory
    return rank


def judged(run, before=None):
    now = reader.read([run.directory])
    return judge(before or now, now)


def test_a_recovery_is_what_a_rank_does(run):
    record, _ = run(1, 7, at="train.py, line 41, in step")
    answer = Answer(7, recovery="Agree")
    record.write("train.py, line 41, in step", [(CommState(Place(ALL, "0-2", -1)), answer)])
    (process,) = reader.read([run.directory])
    assert process.doing() == "in Agree on ranks 0-2, at train.py, line 41, in step"


def test_a_record_says_what_its_process_wrote(run):
    failures = [Failure(6, 0, "Bcast", "ValueError")]
    record, numbers = run(1, 7, (7, "Allreduce"), at="train.py, line 41, in step", failures=failures)
    numbers[CALLS] = 9  # newer than the text
    (process,) = reader.read([run.directory])
    assert (process.rank, process.size, process.pid, process.is_alive) == (1, 3, os.getpid(), True)
    assert process.location == "train.py, line 41, in step" and process.calls == {ALL: (9, 1)}
    assert process.doing() == "in Allreduce (call 7) on ranks 0-2, at train.py, line 41, in step"
    assert record.path.stat().st_mode & 0o777 == 0o600 and record.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_text_that_is_being_written_hides_nothing(run):
    record, _ = run(0, 7, at="first")
    valid = int(record.words[flight.VALID])
    begin = flight.TEXTS + (1 - valid) * flight.TEXT
    record.memory[begin : begin + 5] = b'{"hos'  # and then the process was killed
    assert reader.read([run.directory])[0].location == "first"
    record.write("second", [])
    assert reader.read([run.directory])[0].location == "second" and record.words[flight.VALID] == 1 - valid


def test_a_record_that_is_just_being_made_is_left_out(run):
    run(0, 7)
    (run.directory / "empty").write_bytes(b"")
    (run.directory / "new").write_bytes(bytes(flight.BYTES))
    assert [process.rank for process in reader.read([run.directory])] == [0]


def test_a_missing_rank_is_named(run):
    for rank in (0, 2):
        run(rank, 8, (8, "Allreduce"), at="train.py, line 41, in step")
    run(1, 7, at="load.py, line 12, in load")
    report = judged(run)
    assert report.verdict == Verdict.STALLED
    why = "rank 1 has not made this call: now at load.py, line 12, in load"
    assert report.lines[1] == f"{why} (Allreduce (call 8) of ranks 0-2)"
    assert report.lines[2] == "ranks 0, 2: in Allreduce (call 8) on ranks 0-2, at train.py, line 41, in step"


def test_ranks_in_different_calls(run):
    run(0, 8, (8, "Allreduce"))
    run(1, 8, (8, "Bcast"))
    run(2, 8, (8, "Allreduce"))
    report = judged(run)
    assert report.verdict == Verdict.MISMATCH and "rank 1 has made another call here: Bcast" in report.lines[1]


def test_a_rank_that_left_the_call_behind(run):
    run(0, 8, (8, "Allreduce"), waited_for=(1,))
    run(1, 9, (9, "Allreduce"))
    run(2, 8, (8, "Allreduce"))
    assert judged(run).verdict == Verdict.MISMATCH


def test_a_dead_rank(run):
    run(0, 8, (8, "Allreduce"))
    run(1, 7, pid=2**22 + 1)  # more than there are
    run(2, 8, (8, "Allreduce"))
    report = judged(run)
    assert report.verdict == Verdict.DEAD and report.lines[0] == "rank 1 is gone"
    assert "process 4194305" in report.lines[1] and "was killed" in report.lines[1]


def test_a_rank_that_keeps_the_lock_before_its_first_text(run):
    """Its record says nothing but its calls and when it was opened."""
    for rank in (0, 2):
        run(rank, 8, (8, "Allreduce"))
    record = FlightRecord()
    record.open()
    record.words[flight.RANK], record.words[flight.SIZE] = 1, 3
    record.words[flight.WRITTEN] -= int(3e9)
    report = judged(run)
    assert report.verdict == Verdict.STALLED
    assert f"rank 1: process {os.getpid()} has not written for 3 s: {reader.KEEPS_LOCK}; somewhere" in report.lines


def test_all_are_gone_and_one_had_begun_fewer_calls(run):
    for rank, calls in enumerate((8, 7, 8)):
        run(rank, calls, pid=2**22 + 1)
    report = judged(run)
    assert (report.verdict, report.lines[0]) == (Verdict.DEAD, "all ranks are gone")
    assert report.lines[1] == "rank 1 has begun 7 calls on ranks 0-2, and ranks 0, 2 8"


def test_all_were_killed_before_the_others_wrote_that_they_wait(run):
    """Their histories say it."""
    for rank, calls in enumerate((8, 7, 8)):
        record, _ = run(rank, 7, pid=2**22 + 1)
        record.write("", [])
        of_comm = CommHistory(record.history, ALL, 1)
        for call in range(1, calls + 1):
            row = of_comm.begin(call, "Allreduce", "blocking", "ring", RecordedArguments(80, -1, "SUM"))
            if call < 8:
                of_comm.end(row)
    report = judged(run)
    assert report.verdict == Verdict.DEAD and len(report.lines) == 4
    assert report.lines[1].startswith("rank 1 has not made this call: is gone: process ")
    assert report.lines[1].endswith(f"(Allreduce (call 8) of {ALL})")


def test_a_stopped_process_is_where_its_history_says(run):
    """Its text is older than its calls."""
    child = subprocess.Popen(["sleep", "60"])
    try:
        for rank in (0, 2):
            run(rank, 8, (8, "Allreduce"))
        record, _ = run(1, 7, (2, "Allreduce_init"), pid=child.pid)
        record.words[flight.STARTED] = flight.started(child.pid)
        assert f"rank 1: in Allreduce_init (call 2) on {ALL}, at a.py, line 1, in f" in judged(run).lines
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        of_comm = CommHistory(record.history, ALL, 1)
        of_comm.end(of_comm.begin(7, "Bcast", "blocking", "linear", RecordedArguments(80, 0)))
        report = judged(run)
        words = f"process {child.pid} is stopped"
        who = f"rank 1 has not made this call: {words}"
        assert report.lines[1] == f"{who}, last at a.py, line 1, in f (Allreduce (call 8) of {ALL})"
        assert any(line.startswith(f"rank 1: {words}; last in Bcast (call 7 on {ALL}, done)") for line in report.lines)
    finally:
        child.kill()
        child.wait()


def test_a_process_that_does_not_write(run):
    for rank in (0, 2):
        run(rank, 8, (8, "Allreduce"))
    record, _ = run(1, 7)
    record.words[flight.WRITTEN] -= int(9e9)
    (line,) = (line for line in judged(run).lines if line.startswith("rank 1 has"))
    words = f"process {os.getpid()} has not written for 9 s: native code keeps Python's lock, or no status thread runs"
    assert line.startswith(f"rank 1 has not made this call: {words}, last at a.py")
    assert not any("as of" in line for line in judged(run).lines)


def crossing(run, rank, waits_on_second, pickled=""):
    """Record a rank that waits in a call on one of two communicators, and has made none on the other."""
    second = f"{ALL} (2)"
    record, _ = run(rank, 0)
    first = Answer(0 if waits_on_second else 8, [] if waits_on_second else [CallId(8, 0, "Allreduce")], inside=True)
    in_bcast = waits_on_second and not pickled
    other = Answer(3, [CallId(3, 0, "Bcast")], inside=True) if in_bcast else Answer(2, inside=True)
    other.object_calls, other.object_call = int(bool(pickled)), pickled
    answers = ((ALL, first), (second, other))
    record.write("here", [(CommState(Place(name, "0-2", -1)), answer) for name, answer in answers])


def test_calls_after_the_first_difference_blame_no_rank(run):
    """Messages of calls that do not fit together let ranks go on in different ways; one that sleeps is still named."""
    for rank, method in enumerate(("Allreduce", "Bcast", "Allreduce")):
        calls = 9 if rank == 0 else 8
        record, numbers = run(rank, calls, (calls, "Allreduce"), waited_for=(0,))
        of_comm = CommHistory(record.history, ALL, 1)
        of_comm.end(of_comm.begin(7, method, "blocking", "ring", RecordedArguments(80)))
    report = judged(run)
    assert report.verdict == Verdict.MISMATCH and "rank 1 made Bcast" in report.lines[1]
    assert not any("another call" in line for line in report.lines)
    record.write("late.py", [(CommState(Place(ALL, "0-2", 0)), Answer(7))])
    numbers[CALLS] = 7
    assert any(line.startswith("rank 2 has not made this call") for line in judged(run).lines)


def test_communicators_in_different_order(run):
    for rank in range(3):
        crossing(run, rank, rank == 1)
    report = judged(run)
    assert report.verdict == Verdict.MISMATCH
    waits = f"rank 1 waits in Bcast (call 3) of {ALL} (2)"
    assert report.lines[1] == (
        f"ranks 0, 2 wait in Allreduce (call 8) of {ALL}, {waits}: these ranks make their calls in different order"
    )
    assert not any("has not made" in line for line in report.lines)


@pytest.mark.parametrize("change", ["computes", "has both in flight"])
def test_calls_in_flight_that_a_rank_does_not_wait_in(run, change):
    """Rank 1 has started a nonblocking call and computes, or its record does not say for which call it waits."""
    for rank in range(3):
        crossing(run, rank, rank == 1)
    processes = reader.read([run.directory])
    for name, answer in processes[1].answers.items():
        answer.inside = change != "computes"
        if change != "computes" and name == ALL:
            answer.under_way = [CallId(9, 0, "Ibcast")]
    report = judge(processes, processes)
    assert "different order" not in " ".join(report.lines)


def test_a_lowercase_collective_and_another_call(run):
    for rank in range(3):
        crossing(run, rank, rank == 1, "bcast" * (rank == 1))
    report = judged(run)
    assert report.verdict == Verdict.MISMATCH
    assert f"rank 1 waits in pickled bcast (call 1) of {ALL} (2)" in report.lines[1]


def test_a_chain_of_waits_is_no_cycle(run):
    """Rank 1 waits on the second communicator for a rank that waits for nothing."""
    for rank in (0, 1):
        crossing(run, rank, rank == 1)
    record, _ = run(2, 0)
    answers = [(CommState(Place(ALL, "0-2", -1)), Answer(7)), (CommState(Place(f"{ALL} (2)", "1-2", -1)), Answer(2))]
    record.write("elsewhere", answers)
    numbers = reader.read([run.directory])
    del numbers[0].answers[f"{ALL} (2)"]
    report = judge(numbers, numbers)
    assert report.verdict == Verdict.STALLED and "different order" not in " ".join(report.lines)


@pytest.mark.parametrize("calls", [(1, 1, 0), (2, 2, 1)])
def test_lowercase_collectives_that_a_rank_has_not_made(run, calls):
    for rank, number in enumerate(calls):
        record, _ = run(rank, 7)
        answer = Answer(7, object_calls=number, object_call="gather" * (rank < 2))
        record.write(f"line {rank}", [(CommState(Place(ALL, "0-2", -1)), answer)])
    report = judged(run)
    assert report.verdict == Verdict.STALLED
    call = f"pickled gather (call {calls[0]})"
    assert report.lines[1] == f"rank 2 has not made this call: now at line 2 ({call} of {ALL})"
    assert report.lines[2] == f"rank 0: in {call} on {ALL}, at line 0"
    record.write("later", [(CommState(Place(ALL, "0-2", -1)), Answer(7, object_calls=9))])
    before = reader.read([run.directory])
    record.write("later", [(CommState(Place(ALL, "0-2", -1)), Answer(7, object_calls=10))])
    assert judged(run, before).verdict == Verdict.MOVING


def test_of_different_calls_that_of_most_ranks_is_right(run):
    run(0, 8, (8, "Bcast"))
    for rank in (1, 2):
        run(rank, 8, (8, "Allreduce"))
    report = judged(run)
    assert report.lines[1].startswith("rank 0 has made another call here: Bcast")


def test_a_later_process_of_the_same_number_is_another_one(run):
    record, _ = run(0, 7)
    record.words[flight.STARTED] -= 1
    assert reader.read([run.directory])[0].is_alive is False


def test_a_rank_that_ended(run):
    run(0, 8, (8, "Allreduce"))
    record, _ = run(1, 7, ended="ended with ValueError: no data (a.py, line 1, in f)")
    record.write("", [])  # what is written later does not take it back
    report = judged(run)
    assert report.verdict == Verdict.STALLED and "rank 1: ended with ValueError: no data" in report.lines[-2]
    assert report.lines[-1] == "rank 2: no record here"


def test_calls_that_move(run):
    _, numbers = run(0, 7)
    before = reader.read([run.directory])
    assert judged(run).lines[0].startswith("no collective is in flight")
    numbers[CALLS] += 1
    report = judged(run, before)
    assert report.verdict == Verdict.MOVING and report.lines[0] == "calls begin and end"


def test_the_command(run):
    run(0, 8, (8, "Allreduce"))
    run(1, 7)
    run(2, 8, (8, "Allreduce"))
    shown = command.run("status", "--wait", "0", str(run.directory))
    assert shown.exit_code == 1 and "stalled" in shown.output and "rank 1 has not made this call" in shown.output
    assert command.run("status", "--wait", "0").output == shown.output  # the last run
    content = json.loads(command.run("status", "--wait", "0", "--json", str(run.directory)).output)
    assert (content["verdict"], content["status"], len(content["ranks"])) == ("stalled", 1, 3)
    number = run.directory.name.removeprefix("parent-")
    assert command.run("status", "--wait", "0", "--job", number).output == shown.output
    refused = command.run("status", "--job", "nothing")
    assert refused.exit_code == 2 and f"there are {run.directory.name}" in refused.output


@pytest.mark.parametrize(("change", "words"), [
    (lambda path: path.write_bytes(b"x" * 100), "is no flight record"),
    (lambda path: path.write_bytes(path.read_bytes()[:-1]), "is no flight record"),
    (lambda path: set_word(path, 1, 99), f"is of format 99; this mpicoll reads format {flight.FORMAT}"),
], ids=["no record", "cut off", "another version"])  # fmt: skip
def test_files_that_cannot_be_read(run, change, words):
    record, _ = run(0, 7)
    change(record.path)
    shown = command.run("status", "--wait", "0", str(run.directory))
    assert shown.exit_code == 2 and words in shown.output


def test_a_text_that_changes_while_it_is_read(run, monkeypatch):
    record, _ = run(0, 7, at="whole")
    read, texts = type(record.path).read_bytes, []

    def read_bytes(path):
        texts.append(read(path))
        begin = flight.TEXTS + int(record.words[flight.VALID]) * flight.TEXT
        return texts[-1] if len(texts) > 1 else texts[-1][:begin] + b"}" + texts[-1][begin + 1 :]

    monkeypatch.setattr(type(record.path), "read_bytes", read_bytes)
    assert reader.read_one(record.path).location == "whole" and len(texts) == 2


def test_a_damaged_text(run):
    record, _ = run(0, 7)
    begin = flight.TEXTS + int(record.words[flight.VALID]) * flight.TEXT
    record.memory[begin : begin + 1] = b"}"
    with pytest.raises(ValueError, match="a text that is damaged"):
        reader.read_one(record.path)


def test_two_threads_do_not_write_at_once(run):
    record, _ = run(0, 7, at="first")
    with record.lock:
        record.write("second", [])
    assert reader.read_one(record.path).location == "first"
    record.write("second", [])
    assert reader.read_one(record.path).location == "second"


def test_every_process_of_a_job_step_says_what_its_host_has(run, monkeypatch):
    run(0, 7)
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert command.run("status", "--wait", "0", str(run.directory)).output.startswith(socket.gethostname())


def test_runs_are_named_by_their_job():
    assert flight.run_name({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3"}) == "12-3"
    assert flight.run_name({"PMIX_NAMESPACE": "prterun-node7@1"}) == "prterun-node7-1-"
    assert flight.run_name({}) == f"parent-{os.getppid()}"


def set_word(path, at, value):
    with path.open("r+b") as file:
        file.seek(8 * at)
        file.write(np.int64(value).tobytes())


def test_a_directory_that_cannot_be_written_is_named(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(flight.VARIABLE, str(tmp_path / "file" / "deeper"))
    record = FlightRecord()
    record.open()
    assert record.memory is None and "no flight record is kept in" in caplog.text
    numbers, slot = record.numbers()
    assert slot == -1 and not numbers.any()


@contextmanager
def as_another_user():
    """Be a user who owns nothing, if this one is root, whom no mode keeps out."""
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if os.getuid() == 0:
            os.seteuid(0)


@pytest.fixture
def shared(monkeypatch):
    """Yield a directory of records that all users can reach, which TMPDIR may not be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv(flight.VARIABLE, folder)
        yield Path(folder)


def test_a_run_of_another_user(run, shared):
    """Its directory or its files refuse; a run of one's own beside it is still found."""
    run.directory.mkdir()
    run(0, 7)
    theirs, mine = shared / "parent-12", shared / "parent-13"
    for folder in (theirs, mine):
        shutil.copytree(run.directory, folder)
    shutil.rmtree(shared / run.directory.name)
    (file,) = theirs.iterdir()
    assert "parent-12: moving" in command.good("status", "--wait", "0", theirs)
    theirs.chmod(0)
    for path in (mine, *mine.iterdir()):
        path.chmod(0o755)
    with as_another_user():
        assert command.refused("status", theirs) == f"mpicoll status: {theirs} cannot be used: Permission denied"
        message = command.refused("status", "--job", "12")
        whose = "no run 12 has records that you may read on this host"
        assert message == f"mpicoll status: {whose}, in {shared}; there are parent-13"
        assert "parent-13: moving" in command.good("status", "--wait", "0")
    theirs.chmod(0o755)
    file.chmod(0)
    with as_another_user():
        assert command.refused("status", theirs) == f"mpicoll status: {file} cannot be used: Permission denied"


def test_root_finds_the_runs_of_all_users_by_their_job(run, tmp_path, monkeypatch):
    run(0, 7)
    monkeypatch.delenv(flight.VARIABLE)
    monkeypatch.setattr(flight, "MEMORY", tmp_path / "memory")
    other = tmp_path / "memory" / f"{flight.OF_USER}12345"
    other.mkdir(parents=True)
    run.directory.rename(other / "77-0")
    assert "77-0: moving" in command.good("status", "--wait", "0", "--job", "77")
    assert "no run of yours has records" in command.refused("status")


@pytest.mark.parametrize(("value", "where"), [("/no/such", ", in /no/such"), ("0", ": MPICOLL_RECORD turns them off")])
def test_no_records_because_of_the_variable(monkeypatch, value, where):
    monkeypatch.setenv(flight.VARIABLE, value)
    assert command.refused("status") == f"mpicoll status: no run of yours has records on this host{where}"


@pytest.mark.parametrize("is_named", [True, False])
def test_a_full_directory(tmp_path, monkeypatch, caplog, is_named):
    """No file is left in it, and only a directory that the user named is worth a warning."""
    monkeypatch.setattr(flight, "MEMORY", tmp_path)
    monkeypatch.setenv(flight.VARIABLE, str(tmp_path / "named") if is_named else "")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    record = FlightRecord()
    record.open()
    assert record.memory is None and not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert ("No space left on device" in caplog.text) == is_named
    record.write("here", [])


def test_a_read_only_directory(shared, caplog):
    shared.chmod(0o555)
    with as_another_user():
        record = FlightRecord()
        record.open()
    assert record.memory is None and "Permission denied" in caplog.text


def test_records_are_turned_off(monkeypatch):
    monkeypatch.setenv(flight.VARIABLE, "0")
    record = FlightRecord()
    record.open()
    assert record.memory is None and record.numbers()[1] == -1


def test_many_communicators(run):
    record, _ = run(0, 7)
    slots = [record.numbers()[1] for _ in range(flight.SLOTS + 1)]
    assert slots == [*range(1, flight.SLOTS), -1, -1]
    many = [(CommState(Place(f"ranks {i}", "0-2", -1)), Answer(i)) for i in range(1000)]
    record.write("here", many)
    assert 0 < len(reader.read([run.directory])[0].answers) < 1000


def test_the_last_runs_that_ended_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(flight, "MANY", 2)
    for number in range(4):
        run = tmp_path / f"parent-{number}"
        run.mkdir()
        (run / f"host-0-{2**22 + number}").write_bytes(b"")
        os.utime(run, (10_000 + number, 10_000 + number))
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / f"host-0-{os.getpid()}").write_bytes(b"")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    monkeypatch.setattr(flight, "OLD", 1e12)
    flight.remove_old(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live", "mine", "parent-2", "parent-3"]
    monkeypatch.setattr(flight, "OLD", 60.0)
    flight.remove_old(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live", "mine"]
