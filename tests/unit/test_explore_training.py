"""Training steps on the page: moments are in every rank's own order, and memory is what ranks held right after them."""

from __future__ import annotations

import gc
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from unit.test_explore import MARKUP, unpacked

from mpicoll.benchmarks.train.recorded import messages, pair
from mpicoll.describe.explore import training as steps
from mpicoll.describe.explore.training import Communication, RankStep, Training
from mpicoll.timeline.model import Call
from mpicoll.training import memory
from mpicoll.training.account import Event

WHOLE = (800, 800, 1600, 400)
ALLREDUCE, MESSAGE = "allreduce", ""


def call(number, began, ended, *, collective=ALLREDUCE, algorithm="ring", root=-1, blocking=True, moves="gradients"):
    key = ("between" if collective == MESSAGE else "all", number, 0)
    name = "Isend" if collective == MESSAGE else "Allreduce" if blocking else "Iallreduce"
    return Communication(key, name, collective, algorithm, root, 64, moves, blocking, began, ended)


def of(rank, calls=(), phases=(), held=((0.0, (0, 0, 0, 0)),), began=0.0, ended=1.0, host="a"):
    return RankStep(rank, host, list(calls), list(phases), list(held), began, ended)


def words(moments):
    """Return the moments between the step's begin and end, as (edge, name, sorted ranks)."""
    return [(edge, key if category == steps.PHASE else key[1], sorted(at))
            for (category, edge, key), at in moments[1:-1]]


def two_ranks(late=0.0):
    """Return a data-parallel step of two ranks; rank 1 may be late, and rank 0 then waits in Allreduce."""
    ranks = []
    for rank, t in ((0, 0.0), (1, late)):
        phases = [("forward", t + 0.1, t + 0.2), ("backward", t + 0.25, t + 0.4),
                  ("optimizer", 0.9 + late, 0.95 + late)]
        calls = [call(1, t + 0.3, 0.8 + late, blocking=False), call(2, t + 0.5, 0.7 + late)]
        held = [(t, (800, 0, 1600, 0)), (t + 0.15, (800, 0, 1600, 200)), (t + 0.28, (800, 800, 1600, 200)),
                (t + 0.35, (800, 800, 1600, 0))]
        ranks.append(of(rank, calls, phases, held, t, late + 1))
    return ranks


# -- the order of moments


@pytest.mark.parametrize("late", [0.0, 0.15, 0.6, 5.0])
def test_ranks_with_one_program_have_one_picture_however_late_one_is(late):
    assert words(steps.order(two_ranks(late))) == [
        ("begins", "forward", [0, 1]), ("ends", "forward", [0, 1]), ("begins", "backward", [0, 1]),
        ("posts", 1, [0, 1]), ("ends", "backward", [0, 1]), ("ends", 2, [0, 1]), ("ends", 1, [0, 1]),
        ("begins", "optimizer", [0, 1]), ("ends", "optimizer", [0, 1]),
    ]  # fmt: skip


def test_a_message_is_sent_before_it_is_received_whatever_the_clocks_say():
    sender = of(0, [call(1, 0.5, 0.6, collective=MESSAGE, root=0, blocking=False)], [("forward", 0.1, 0.4)])
    receiver = of(1, [call(1, 0.0, 0.2, collective=MESSAGE, root=0, blocking=False)], [("forward", 0.3, 0.4)])
    assert words(steps.order([sender, receiver])) == [
        ("begins", "forward", [0]), ("ends", "forward", [0]), ("posts", 1, [0]), ("ends", 1, [1]),
        ("begins", "forward", [1]), ("ends", "forward", [1]),
    ]  # fmt: skip


def test_ranks_that_come_to_a_call_at_different_events_share_its_moment():
    ranks = [of(0, [call(1, 0.5, 0.6)], [("forward", 0.1, 0.2)]), of(1, [call(1, 0.3, 0.6)])]
    assert words(steps.order(ranks)) == [("begins", "forward", [0]), ("ends", "forward", [0]), ("ends", 1, [0, 1])]


def test_calls_that_end_in_another_order_on_each_rank_are_all_there():
    ranks = [of(rank, [call(1, 0.1, 0.5 + 0.2 * rank, blocking=False), call(2, 0.2, 0.6, blocking=False)])
             for rank in (0, 1)]
    shown = words(steps.order(ranks))
    assert shown[:2] == [("posts", 1, [0, 1]), ("posts", 2, [0, 1])]
    assert Counter((edge, key, rank) for edge, key, on in shown for rank in on) == Counter(
        (edge, key, rank) for edge in ("posts", "ends") for key in (1, 2) for rank in (0, 1))


@pytest.mark.parametrize("seed", range(30))
def test_moments_are_every_rank_s_own_order(seed):
    draw = random.Random(seed)
    p, ranks = draw.randint(2, 5), []
    for rank in range(p):
        times = sorted(draw.random() for _ in range(20))
        phases = [("forward", times[0], times[5]), ("backward", times[6], times[-1])]
        ends = [draw.sample(times, 2) for _ in range(draw.randint(0, 4))]
        calls = [call(n, *sorted(pair), blocking=draw.random() < 0.5) for n, pair in enumerate(ends)]
        ranks.append(of(rank, calls, phases))
    moments = steps.order(ranks)
    for own in ranks:
        shown = [(at[own.rank], event) for event, at in moments[1:-1] if own.rank in at]
        assert shown == sorted(steps._events(own), key=lambda event: event[0])


# -- what the page has of a step


def shown(ranks):
    schedules = {}
    return steps.step(Training("zero3", "shards", ranks, WHOLE), schedules), schedules


def test_memory_is_what_a_rank_held_right_after_its_part():
    step, _ = shown(two_ranks(late=5.0))
    assert [held[0] for held in step["held"]] == [held[1] for held in step["held"]]
    assert [held[1][3] for held in step["held"]] == [0, 0, 200, 200, 200, 0, 0, 0, 0, 0, 0]
    assert [held[1][1] for held in step["held"]][3:5] == [0, 800]
    assert [moment[3] for moment in step["moments"]][:3] == [5000.0, 5100.0, 5200.0]


def test_a_message_is_what_its_sender_calls_it():
    received = call(1, 0.2, 0.4, collective=MESSAGE, root=1, blocking=False, moves="")._replace(name="Recv")
    step, _ = shown([of(0, [received]), of(1, [received._replace(name="Isend", moves="activations")])])
    (message,) = step["calls"]
    assert (message["name"], message["moves"], message["from"], message["link"]) == ("Isend", "activations", 1, "")


def test_phases_and_calls_have_their_moments():
    step, schedules = shown(two_ranks())
    assert sorted(step["phases"]) == [["backward", 0, 3, 5], ["backward", 1, 3, 5], ["forward", 0, 1, 2],
                                      ["forward", 1, 1, 2], ["optimizer", 0, 8, 9], ["optimizer", 1, 8, 9]]
    first, second = step["calls"]
    assert (first["name"], second["name"]) == ("Iallreduce", "Allreduce")
    assert (first["moves"], first["bytes"]) == ("gradients", 64)
    assert first["ranks"] == [0, 1] and first["parts"] == [[0, 300.0, 800.0], [1, 300.0, 800.0]]
    assert first["link"] == "allreduce/ring/p=2" and list(schedules) == ["allreduce/ring/p=2"]


@pytest.mark.parametrize(("collective", "algorithm", "root", "key"), [
    ("allgatherv", "ring", -1, "allgather/ring/p=3"),
    ("allreduce", "circulant(k=4)", -1, "allreduce/circulant(k=4)/p=3"),
    ("bcast", "binomial", 5, "bcast/binomial/p=3/root=2"),
    ("allreduce", "native", -1, ""),
])
def test_a_collective_names_the_schedule_that_ran(collective, algorithm, root, key):
    """A communicator of some ranks of the world counts its ranks from 0."""
    ranks = [of(rank, [call(1, 0.1, 0.2, collective=collective, algorithm=algorithm, root=root)] * (rank != 1))
             for rank in (0, 1, 3, 5)]
    step, schedules = shown(ranks)
    assert step["calls"][0]["link"] == key and list(schedules) == [key] * bool(key)


def test_hierarchical_algorithms_run_on_the_hosts_of_the_ranks():
    ranks = [of(rank, [call(1, 0.1, 0.2, algorithm="hierarchical")], host="ab"[rank % 2]) for rank in range(4)]
    _, schedules = shown(ranks)
    ((_, schedule),) = schedules.values()
    assert schedule.resolved["groups"] == ((0, 2), (1, 3))


def test_the_page_is_one_safe_file_with_the_algorithms_that_ran():
    trainings = [Training(name, MARKUP, two_ranks(), WHOLE) for name in ("data_parallel", "zero3")]
    whole = steps.build(trainings)
    content = unpacked(whole)
    assert list(content["trainings"]) == ["training/data_parallel", "training/zero3"]
    assert list(content["schedules"]) == ["allreduce/ring/p=2"] and whole.count("<script") == 2
    assert [tour["left"] for tour in content["presets"]] == list(content["trainings"]) and MARKUP not in whole
    assert content["trainings"]["training/zero3"]["about"] == MARKUP and "explore.Training = class" in whole


def test_kinds_of_memory_are_those_of_the_patterns():
    assert steps.KINDS == memory.KINDS


# -- what is recorded


def test_calls_of_a_communicator_pair_by_number_and_those_of_several_by_time():
    def record(communicator, number, began):
        return Call(communicator, number, 0, "Iallreduce", {}, began, began, began, np.zeros((0, 0)), 0)

    events = [Event(at, at, at, "Iallreduce") for at in (1.0, 2.0, 3.0)]
    a1, a2, b1 = record("a", 1, 2.5), record("a", 2, 2.4), record("b", 1, 2.6)  # a1 sent its first message late
    other = record("a", 3, 0.0)._replace(name="bcast")
    assert [call for _, call in pair(events, [other, b1, a2, a1])] == [a1, a2, b1]


def test_messages_of_both_ends_have_one_name():
    sent = [Event(1.0, 1.0, 1.0, "Isend", "activations", 1, 8), Event(2.0, 2.0, 2.0, "Isend", "", 1, 16)]
    received = [Event(1.5, 1.5, 1.5, "Recv", "", 0, 8), Event(2.5, 2.5, 2.5, "Recv", "", 0, 16)]
    here, there = messages(0, [*sent, Event(3.0, 3.0, 3.0, "Barrier")]), messages(1, received)
    assert [m.key for m in here] == [m.key for m in there] == [("0 to 1", 1, 0), ("0 to 1", 2, 0)]
    assert {m.root for m in here + there} == {0} and [m.nbytes for m in there] == [8, 16]


def test_activations_count_once_and_while_they_live():
    gc.collect()
    before = memory.held(memory.ACTIVATIONS)
    saved = (np.zeros(10), [np.zeros((2, 5)), None, 3], "text")
    assert memory.track_activations(saved) is saved
    memory.track_activations([saved, saved[0][:5]])
    parameters = memory.array(memory.PARAMETERS, 4, float)
    memory.track_activations(parameters[1:])
    assert memory.held(memory.ACTIVATIONS) - before == 160
    assert memory.kind_of(saved[1][0].T) == memory.ACTIVATIONS and memory.kind_of(parameters[2:]) == memory.PARAMETERS
    assert memory.kind_of(np.zeros(3)) == memory.kind_of("text") == ""
    del saved
    assert memory.held(memory.ACTIVATIONS) == before


def test_moments_of_a_step_go_from_its_begin_to_its_end():
    step, _ = shown([of(0, began=2.0, ended=2.5)])
    assert step["moments"] == [["step", "begins", "", 0.0, [0]], ["step", "ends", "", 500.0, [0]]]
    assert all(a <= b for (*_, a, _), (*_, b, _) in pairwise(step["moments"]))
