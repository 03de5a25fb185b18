"""Random programs of collectives, drawn by hypothesis: see fuzzing/. `make soak` plays them for an hour.

Which ones is up to --fuzz-seed, so a run is like the one before; a failure is printed as the least program that shows
it, to be played again by tests/fuzz.py --play and to be kept in test_regressions.py.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from fuzzing import drive, graphs
from fuzzing import play as play_module
from fuzzing.drive import OUTPUT, PATIENCE, fuzz, play
from fuzzing.play import Player
from fuzzing.program import NEIGHBOURING, WITH_COUNTS, Call, Program, programs_of
from mpi4py import MPI
from support.harness import PLUGIN
from support.neighbors import edges

from mpicoll.schedules.collectives import FORMS

FEW = 40        # of so many programs some have several threads
THREADED = MPI.Query_thread() == MPI.THREAD_MULTIPLE
needs_threads = pytest.mark.skipif(not THREADED, reason="needs MPI_THREAD_MULTIPLE")
CALLS = (Call("Allreduce"), Call("Bcast", form="persistent"))


@pytest.mark.unsampled
@pytest.mark.timeout(300 + PATIENCE)
def test_random_programs(comm, request, capsys):
    OUTPUT[0] = request.config.pluginmanager.get_plugin(PLUGIN).stderr.fileno()
    number = request.config.option.fuzz_programs or programs_of(comm.size, request.config.option.quick)
    seed = request.config.option.fuzz_seed
    outcome = fuzz(comm, seed, number)
    if comm.rank == 0:
        with capsys.disabled():
            print(f"\nfuzz: {outcome} on {comm.size} ranks, --fuzz-seed {seed}")
    assert outcome.program is None, str(outcome)
    assert outcome.played >= number
    assert outcome.threaded or not THREADED or number < FEW


@pytest.mark.parametrize("graph", graphs.NAMES)
def test_neighbours(comm, graph):
    """Every method in every form by every algorithm, of equal blocks and of others, with ranks that are late."""
    algorithms = ("direct", *["combining"] * (graph == "stencil"))
    calls = tuple(
        Call(method, algorithm, (3, 0, 40) if method in WITH_COUNTS else (3,), "INT", layout, side, form=form,
             with_gaps=method in WITH_COUNTS, graph=graph)
        for algorithm in algorithms for method in NEIGHBOURING for form in FORMS
        for layout, side in (("plain", "both"), ("indexed", "odd"))
    )
    members = tuple(range(comm.size))
    assert play(Program((members, members[::-1]), calls, rounds=2, skew=3), comm) == []
    some = tuple(replace(call, on=1) for call in calls[::7])
    assert play(Program((members, members[::-1]), some, check=True, progress=False), comm) == []


@pytest.mark.parametrize("graph", graphs.NAMES)
def test_a_block_in_the_place_of_another_is_noticed(comm, graph, monkeypatch):
    """Every rank that receives two blocks fails, and the report names the call."""
    received = []

    def backwards(of):
        arriving, places = edges(of)
        received.append(arriving)
        return arriving[::-1], places

    monkeypatch.setattr(play_module, "edges", backwards)
    wrong = play(Program((tuple(range(comm.size)),), (Call("Neighbor_alltoall", graph=graph), Call("Bcast"))), comm)
    differs = comm.allgather(received[0] != received[0][::-1])
    assert {line.partition(":")[0] for line in wrong} == {f"rank {rank}" for rank in range(comm.size) if differs[rank]}
    assert any(differs) or (graph == "lists" and comm.size < 3)
    assert all(": call 0, Neighbor_alltoall: " in line for line in wrong)


@needs_threads
def test_threads_play_at_once(comm, monkeypatch):
    """Threads have communicators and data of their own; an error is reported with the thread's number."""
    meet, seen = threading.Barrier(3, timeout=PATIENCE / 2), set()

    def play_together(player, carry_out=Player.play):
        meet.wait()                         # each waits until all are there
        memory = player._memory(CALLS[0])
        memory.load(player._salt(0, 0))
        seen.add((threading.get_ident(), player.ours[0, ""].handle, bytes(memory.send.view)))
        carry_out(player)
        if player.thread == 2:
            player._note(1, "as seeded")

    monkeypatch.setattr(Player, "play", play_together)
    wrong = play(Program((tuple(range(comm.size)),), CALLS, threads=3), comm)
    assert wrong == [f"rank {rank}: thread 2: call 1, Bcast: as seeded" for rank in range(comm.size)]
    threads, comms, data = (len(set(values)) for values in zip(*seen))
    assert threads == comms == 3 and data > 1       # numbers are small: those of two may be alike


@needs_threads
def test_threads_that_stand_still_are_named(comm, monkeypatch):
    """With what each is at, and its stack."""
    go, messages = threading.Event(), []

    def stand_still(player, carry_out=Player.play):
        if player.thread == 1:
            assert go.wait(PATIENCE)
        carry_out(player)

    def tell(rank, text):
        messages.append(text)
        go.set()

    monkeypatch.setattr(Player, "play", stand_still)
    monkeypatch.setattr(drive, "_abort", tell)
    assert play(Program(((0,),), CALLS, threads=2), comm, 1.0) == []
    assert "thread 0: over" in messages[0] and "thread 1: making communicators" in messages[0]
    assert "-- MainThread --" in messages[0]
    assert "in stand_still" in messages[0].partition("-- thread 1 of the program --")[2]


@needs_threads
def test_a_thread_that_breaks_off_ends_the_run(comm, monkeypatch):
    def break_off(player, carry_out=Player.play):
        carry_out(player)
        assert player.thread == 0, "as seeded"

    messages = []
    monkeypatch.setattr(Player, "play", break_off)
    monkeypatch.setattr(drive, "_abort", lambda rank, text: messages.append(text))
    play(Program(((0,),), CALLS, threads=2), comm)
    assert len(messages) == 1 and "AssertionError: as seeded" in messages[0]
