"""The records that a rank whose call stalls reads: whose status they give, and whose they do not."""

from __future__ import annotations

import socket
import subprocess
import threading
from dataclasses import dataclass

import pytest
from mpi4py import MPI

from mpicoll.diagnostics import flight, peer_records
from mpicoll.diagnostics.counters import CALLS
from mpicoll.diagnostics.flight import FlightRecord, Place
from mpicoll.diagnostics.history import CommHistory
from mpicoll.diagnostics.peer_records import PROCESSES, PeerRecords
from mpicoll.diagnostics.peer_status import PeerStatus
from mpicoll.diagnostics.status import Answer
from mpicoll.progress.operation import CallId, RecordedArguments

ALL = Place("ranks 0-1", "0-1", 0)


@dataclass
class CommState:
    """A communicator of two ranks, as its record knows it."""

    place: Place = ALL
    waited_for: tuple[int, ...] = ()


class Peer:
    """Another rank: a process that sleeps, and a record that is written here in its name."""

    def __init__(self, rank: int) -> None:
        self.process = subprocess.Popen(["sleep", "60"])
        PROCESSES[rank] = self.process.pid
        self.record = FlightRecord()
        self.record.open()
        self.numbers, _ = self.record.numbers()
        words = {flight.RANK: rank, flight.PROCESS: self.process.pid}
        for at, value in (words | {flight.STARTED: flight.started(self.process.pid)}).items():
            self.record.words[at] = value
        self.record.path = self.record.path.rename(
            self.record.path.parent / f"{socket.gethostname()}-{rank}-{self.process.pid}"
        )

    def write(self, answer: Answer, ended: str = "", place: Place = ALL) -> None:
        """Write a status of the rank."""
        self.record.write("train.py, line 41, in step", [(CommState(place), answer)], ended)

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return the record of this process, rank 0."""
    monkeypatch.setenv(flight.VARIABLE, str(tmp_path))
    record = FlightRecord()
    record.open()
    record.path = record.path.rename(record.path.with_name("of rank 0"))  # other ranks' records begin in this process
    monkeypatch.setattr(peer_records, "RECORD", record)
    return record


@pytest.fixture
def peer(own):
    """Return rank 1."""
    peer = Peer(1)
    yield peer
    peer.end()
    del PROCESSES[1]


@pytest.fixture
def records():
    """Return what rank 0 reads."""
    return PeerRecords(ALL)


def test_a_status_is_of_one_moment(peer, records):
    """The counters in the record may be of a call that began since the text was written."""
    peer.write(Answer(7, [CallId(7, 0, "Allreduce")], inside=True))
    peer.numbers[CALLS] = 9
    answer = records.answer(1)
    assert (answer.calls, answer.inside, answer.location) == (7, True, "train.py, line 41, in step")
    assert answer.under_way == [CallId(7, 0, "Allreduce")] and not answer.ended


@pytest.mark.parametrize("in_another_run", [False, True])
def test_a_record_is_searched_in_all_runs(peer, records, own, in_another_run):
    """A shell between the launcher and a rank gives the rank's run another name."""
    if in_another_run:
        other = peer.record.path.parent.with_name("parent-1")
        other.mkdir()
        peer.record.path = peer.record.path.rename(other / peer.record.path.name)
    peer.write(Answer(7))
    assert records.answer(1).calls == 7


def test_ranks_without_a_record(peer, records, own):
    peer.write(Answer(7))
    assert records.answer(1) is not None and records.answer(0) is None  # no process is known of rank 0
    peer.record.path.unlink()
    assert records.answer(1) is None and PeerRecords(ALL).answer(0) is None


def test_a_communicator_that_is_not_in_the_record(peer, records):
    peer.write(Answer(7), place=Place("ranks 0-1 (2)", "0-1", 1, 2))
    assert records.answer(1) is None


def test_a_rank_that_ended(peer, records):
    peer.write(Answer(7), ended="reached the end of the program")
    assert records.answer(1).ended == "reached the end of the program"


def test_a_rank_that_was_killed(peer, records):
    peer.write(Answer(7))
    peer.end()
    assert f"is gone: process {peer.process.pid}" in records.answer(1).ended


def test_a_rank_in_another_container(peer, records):
    """Its process id says nothing here."""
    peer.write(Answer(7))
    peer.record.words[flight.NAMESPACE] += 1
    peer.end()
    assert records.answer(1).calls == 7 and not records.answer(1).ended


def test_a_rank_that_was_killed_before_it_wrote(peer, records):
    peer.end()
    assert "is gone" in records.answer(1).ended


def test_a_rank_that_is_silent(peer, records):
    """The calls of its history are newer than its text."""
    peer.write(Answer(7))
    history = CommHistory(peer.record.history, "ranks 0-1", 1)
    history.begin(8, "Bcast", "blocking", "ring", RecordedArguments(80, 0))
    peer.record.words[flight.WRITTEN] -= int(9e9)
    answer = records.answer(1)
    assert "has not written for 9 s" in answer.silence and answer.calls == 8
    assert answer.under_way == [CallId(8, 0, "Bcast")] and answer.inside


def in_a_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join()


@pytest.mark.parametrize("whose", ["own", "peer", "neither"])
def test_communicators_that_several_threads_make(peer, records, own, whose):
    """Ranks may make them in different orders, and so call different ones by one name."""
    for record in (own, peer.record):
        record.makers["0-1"].add(threading.get_ident())
    makers = {"own": own, "peer": peer.record}
    if whose in makers:
        in_a_thread(lambda: makers[whose].makers["0-1"].add(threading.get_ident() + 1))
    peer.write(Answer(7))
    own.write("here", [(CommState(), Answer(7))])
    assert (records.answer(1) is None) == (whose != "neither")
    assert records.is_read_by(1) == (whose != "own")


def test_who_reads_the_own_record(peer, records, own):
    """A rank on another host does not, and no rank reads of a communicator that the record does not have."""
    assert not records.is_read_by(1)  # nothing is written
    own.write("here", [(CommState(), Answer(7))])
    assert records.is_read_by(1)
    peer.record.path.unlink()
    records.paths.clear()
    assert not records.is_read_by(1)


def test_a_communicator_with_ranks_of_another_world(own):
    """Spawned ranks have no rank here, and are the first in the order of a merged communicator."""
    for ranks in ([MPI.UNDEFINED, MPI.UNDEFINED, 0, 1], [0, 1, MPI.UNDEFINED, MPI.UNDEFINED], [1, 0]):
        place = Place("ranks", ranks, 0)
        assert place.members == ranks and PeerRecords(place).answer(0) is None
    assert list(Place("ranks 0-2, 5", "0-2, 5", 0).members) == [0, 1, 2, 5]


@pytest.mark.parametrize("ranks", [(0, 1, 4), (1, 0), (MPI.UNDEFINED, MPI.UNDEFINED, 0)])
def test_the_members_of_a_place_are_in_order(own, monkeypatch, ranks):
    monkeypatch.setattr(flight, "world_ranks", lambda comm: ranks)
    assert tuple(own.place(MPI.COMM_SELF, 0).members) == ranks


class Comm:
    """A communicator of three ranks that has no messages; it keeps whom it was to send to."""

    rank, size = 0, 3

    def __init__(self) -> None:
        self.asked: list[int] = []

    def Isend(self, note, rank, tag):
        self.asked.append(rank)
        return MPI.REQUEST_NULL

    def Iprobe(self, source, tag, status):
        return False


def test_ranks_with_a_record_are_not_asked(peer, own):
    """Only rank 2 is, which has none; and what was read counts from the next exchange on."""
    comm, place = Comm(), Place("ranks 0-2", "0-2", 0)
    status = PeerStatus(comm, place)
    peer.write(Answer(7), place=place)
    status.read_records(100.0, 1.0)
    status.ask(100.0)
    assert comm.asked == [2] and status.pending == {2} and not status.answers
    status.exchange(lambda: Answer(7))
    assert list(status.answers) == [1] and status.answers[1].calls == 7
    status.read_records(101.0, 2.0)
    assert not status.answers  # the old one says nothing of a later call


def test_records_are_read_at_growing_intervals(peer, own, monkeypatch):
    read = []
    status = PeerStatus(Comm(), ALL)
    monkeypatch.setattr(status.records, "answer", lambda rank: read.append(rank))
    for tenth in range(1, 401):
        status.read_records(tenth / 10, tenth / 10)
    assert 20 < len(read) / 2 < 30  # every half second for four seconds, then after an eighth more
