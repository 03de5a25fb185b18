"""Calls that take turns: right in every turn, the same winner on every rank, and the fast path after that."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from support.cases import Case, Checks
from support.collectives import has_whole_vector, meaning

import mpicoll
from mpicoll.dispatch import learning
from mpicoll.errors import ArgumentError, MpicollError
from mpicoll.selection import tables
from mpicoll.selection.learning import TIMED, UNTIMED, Lesson
from mpicoll.selection.select import NATIVE

TURNS = 4 * (UNTIMED + TIMED)    # the most that a lesson has
COLLECTIVES = ("allreduce", "bcast", "allgather", "alltoall", "reduce_scatter", "reduce", "gather", "scan", "barrier")


@pytest.fixture
def ours(comm):
    wrapped = mpicoll.Comm(comm.Dup())
    yield wrapped
    wrapped.Free()


def lesson_of(ours, collective, overlapping=False):
    lessons = filter(None, ours._open().lessons.active.values())
    return next((x for x in lessons if (x.kind.collective, x.kind.overlapping) == (collective, overlapping)), None)


@pytest.mark.parametrize("learn", ["bits", "any"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_candidates_take_turns_until_one_is_chosen(comm, ours, collective, learn):
    case = Case(collective, 24)
    with ours.using(learn=learn), Checks() as checks:
        before = ours.explain(collective, 8 * 24)
        with ours.trace() as records:
            checks.call(case.run(ours))
            lesson = lesson_of(ours, collective)
            if comm.size == 1 or (lesson is None and meaning(collective).reduces and learn == "bits"):
                checks.that(not ours.explain(collective, 8 * 24).measured)
                return
            checks.that(lesson is not None)
            turns = lesson.candidates
            checks.that(turns[0].algorithm == before.algorithm and len(turns) > 1)
            for _ in range(TURNS + 4):
                checks.call(case.run(ours))
        ran = [(record.algorithm, record.chunk_bytes) for record in records]
        over = (UNTIMED + TIMED) * len(turns)
        checks.equal(ran[:over], [turn[:2] for turn in turns] * (UNTIMED + TIMED))
        checks.equal(len(set(ran[over:])), 1)
        checks.that(ran[-1] in [turn[:2] for turn in turns])
        checks.equal(comm.allgather(ran), [ran] * comm.size)
        checks.that(lesson_of(ours, collective) is None)
        if ran[-1][0] != NATIVE:
            checks.that(records[-1].fast_path or collective == "barrier", records[-1])
    checks.that("learned" not in ours.explain(collective, 8 * 24).why)    # outside of using()


def test_explain_says_what_was_learned(comm, ours):
    if comm.size == 1:
        return
    x, total = np.arange(100.0), np.zeros(100)
    with ours.using(learn=True):
        assert "take turns" in str(ours.explain("allreduce", 800))
        for _ in range(TURNS):
            ours.Allreduce(x, total)
        choice = ours.explain("allreduce", 800)
        assert choice.measured and "learned: calls of 512 to 1023 bytes took" in choice.why and not choice.slow
        assert ours.explain("allreduce", 1024).why.find("learned") < 0    # another class
        assert ours.explain("allreduce", 600).algorithm == choice.algorithm


def test_sums_have_the_same_bits_in_every_turn(comm, ours):
    rng = np.random.default_rng(comm.rank)
    for n in (10, 40_000):
        x, sums = rng.standard_normal(n) * 10.0 ** rng.integers(-9, 9, n), set()
        with ours.using(learn="bits"):
            for _ in range(TURNS + 3):
                total = np.zeros(n)
                ours.Allreduce(x, total)
                sums.add(total.tobytes())
        assert len(sums) == 1


@pytest.fixture
def last_wins(monkeypatch):
    """Make lessons end with the last candidate, which auto does not choose."""
    note = Lesson.note
    monkeypatch.setattr(Lesson, "note", lambda self, turn, _: note(self, turn, 9 - turn % len(self.candidates)))


def test_nonblocking_calls_take_turns(comm, ours, last_wins):
    """Right in every turn, in the same order on all ranks; then all forms use the winner, on the fast path."""
    if comm.size == 1:
        return
    x, total = np.arange(50.0), np.zeros(50)
    with ours.using(learn="any"), ours.trace() as records, Checks() as checks:
        def call(case):
            total[:] = 0
            ours.Iallreduce(x, total).Wait()
            checks.equal(total, comm.size * x, case)

        call("the first")
        lesson = lesson_of(ours, "allreduce", overlapping=True)
        turns = [turn[:2] for turn in lesson.candidates]
        over = (UNTIMED + TIMED) * len(turns)
        for i in range(over - 1):
            call(i)
        checks.that(NATIVE not in dict(turns) and len(turns) > 1)
        checks.that(np.isfinite(lesson.seconds).all() and (lesson.seconds > 0).all())
        for i in range(4):
            call(f"{i} after the last")
            ours.Allreduce(x, total)
        checks.equal([(record.algorithm, record.chunk_bytes) for record in records[:over]], turns * (UNTIMED + TIMED))
        checks.equal({(record.algorithm, record.chunk_bytes) for record in records[over:]}, {turns[-1]})
        checks.that(records[-2].fast_path and records[-1].fast_path)
        checks.that("learned" in ours.explain("allreduce", 400).why)


class Nonblocking:
    """A communicator whose blocking collectives are nonblocking ones that are waited for."""

    def __init__(self, comm):
        self.comm, self.rank, self.size = comm, comm.rank, comm.size

    def __getattr__(self, name):
        start = getattr(self.comm, f"I{name.lower()}")
        return lambda *arguments: start(*arguments).Wait()


@pytest.mark.parametrize("collective", [*COLLECTIVES, "scatter", "exscan"])
def test_every_nonblocking_collective_takes_turns(comm, ours, collective):
    case = Case(collective, 24)
    nonblocking = Nonblocking(ours)
    with ours.using(learn="any"), ours.trace() as records, Checks() as checks:
        for i in range(TURNS + 4):
            checks.call(case.run(nonblocking), i)
        ran = [(record.algorithm, record.chunk_bytes) for record in records]
        checks.equal(comm.allgather(ran), [ran] * comm.size)
        checks.that(comm.size == 1 or len({*ran}) > 1, ran)
        checks.equal(len({*ran[-4:]}), 1)


def begun(comm, collective, number):
    """Start a call whose data depend on its number; return its request and a function that says if its result is."""
    p, x, result = comm.size, np.full(12 * comm.size, comm.rank + 1.0) + number, np.zeros(12 * comm.size)
    ranks, own = range(1, p + 1), 12 * comm.rank
    if collective == "bcast":
        result[:] = x
        return comm.Ibcast(result, p - 1), lambda: (result == p + number).all()
    if collective == "alltoall":
        x[:] += np.repeat(np.arange(p), 12)
        wanted = np.repeat([rank + number + comm.rank for rank in ranks], 12)
        return comm.Ialltoall(x, result), lambda: (result == wanted).all()
    if collective == "reduce_scatter":
        sums = sum(ranks) + p * number
        return comm.Ireduce_scatter_block(x, result[own : own + 12]), lambda: (result[own : own + 12] == sums).all()
    return comm.Iallreduce(x, result), lambda: (result == sum(ranks) + p * number).all()


@pytest.mark.parametrize("collective", ["allreduce", "bcast", "alltoall", "reduce_scatter"])
@pytest.mark.parametrize("at_once", [2, 7, 100])
def test_calls_in_flight_when_the_lesson_ends(comm, ours, last_wins, collective, at_once):
    """Ranks learn of the outcome at different times, and yet a call has one algorithm; a blocking one waits for it."""
    if comm.size == 1:
        return
    in_flight, at_once, number = [], at_once if comm.rank else 1, 0
    with ours.using(learn="any"), ours.trace() as records, Checks() as checks:
        for number in range(TURNS + 20):
            in_flight.append(begun(ours, collective, number))
            while len(in_flight) == at_once:
                for request, is_right in in_flight:
                    request.Wait()
                    checks.that(is_right(), f"wrong in one of the calls up to {number}")
                in_flight.clear()
        blocking = Case(collective, 12 * (comm.size if has_whole_vector(collective) else 1)).run(ours)
        MPI.Request.Waitall([request for request, _ in in_flight])
        checks.that(all(is_right() for _, is_right in in_flight), "wrong in what was in flight beside a blocking call")
        checks.call(blocking)
        ran = {record.sequence: (record.algorithm, record.chunk_bytes) for record in records}
        checks.equal(comm.allgather(ran), [ran] * comm.size)
        checks.equal(len(ran), number + 2)
        last = sorted(ran)[-1]
        checks.that(ran[last] != ran[min(ran)] and ran[last] == ran[sorted(ran)[-21]], ran)


@pytest.mark.parametrize("learn", ["bits", "any"])
def test_starts_of_a_persistent_request_take_turns(comm, ours, last_wins, learn):
    """Requests start in any order, another on each rank; in the end all starts have one algorithm and the fast path."""
    if comm.size == 1:
        return
    p, starts = comm.size, TURNS + 4
    x, sums, every = np.zeros(40), np.zeros(40), np.zeros(40 * p)
    with ours.using(learn=learn):
        requests = [ours.Allreduce_init(x, sums), ours.Allgather_init(x, every)]
    with ours.trace() as records, Checks() as checks:
        for i in range(starts):
            x[:], sums[:], every[:] = np.arange(40) * (comm.rank + 1) + i, 0, 0
            for request in requests[:: 1 - 2 * (comm.rank % 2)]:
                request.Start()
            MPI.Request.Waitall(requests)
            checks.equal(sums, np.arange(40.0) * (p * (p + 1) // 2) + p * i, i)
            checks.equal(every, np.concatenate([np.arange(40.0) * (rank + 1) + i for rank in range(p)]), i)
        by_name = [[r for r in records if r.collective == name] for name in ("allreduce", "allgather")]
        ran = [[(r.algorithm, r.chunk_bytes) for r in of] for of in by_name]
        checks.equal(comm.allgather(ran), [ran] * p)
        for algorithms, of in zip(ran, by_name):
            checks.equal({r.form for r in of}, {"persistent"})
            turns = algorithms[: algorithms.index(algorithms[0], 1)] if algorithms[0] in algorithms[1:] else algorithms
            over = (UNTIMED + TIMED) * len(turns)
            checks.equal(algorithms, turns * (UNTIMED + TIMED) + [turns[-1]] * (starts - over))
            checks.that(len(turns) > 1 or learn == "bits", turns)
            checks.that(of[-1].fast_path and (len(turns) == 1 or not any(r.fast_path for r in of[:over])))
    for request in requests:
        request.Free()
    checks.that(not any(used.any() for used in ours._open().tag_pool.used))


def test_a_persistent_request_that_is_freed_before_its_last_turn(comm, ours):
    x, total = np.arange(40.0), np.zeros(40)
    with ours.using(learn="any"):
        for starts in (0, 1, 5):
            request = ours.Allreduce_init(x, total)
            for _ in range(starts):
                total[:] = 0
                request.Start()
                request.Wait()
                assert (total == comm.size * x).all()
            request.Free()
            with pytest.raises(MpicollError):
                request.Start()
    assert not any(used.any() for used in ours._open().tag_pool.used)


def test_nothing_is_learned_of_nonblocking_calls_that_a_rank_ran_without_compiled_kernels(comm, ours, last_wins):
    if comm.size == 1:
        return
    x, total = np.arange(50.0), np.zeros(50)
    with ours.using(learn="any"), ours.trace() as records, Checks() as checks:
        for i in range(TURNS + 2):
            ours.Iallreduce(x, total).Wait()
            checks.equal(total, comm.size * x, i)
            if not i:
                lesson = lesson_of(ours, "allreduce", overlapping=True)
                lesson.is_in_doubt = comm.rank == comm.size - 1
        over = (UNTIMED + TIMED) * len(lesson.candidates)
        checks.equal({record.algorithm for record in records[over:]}, {records[0].algorithm})
        checks.that(lesson_of(ours, "allreduce", overlapping=True) is None and records[-1].fast_path)
        checks.that("kernels were compiled" in ours.explain("allreduce", 400).why)


def test_calls_without_a_choice_do_not_take_the_turns_of_blocking_ones(comm, ours, monkeypatch, last_wins):
    """Nor does the fast path serve blocking calls because nonblocking ones could take it; then all use the winner."""
    if comm.size == 1:
        return
    of_all = learning.candidates
    monkeypatch.setattr(learning, "candidates", lambda *arguments: of_all(*arguments)[: 1 if arguments[-1] else None])
    x, total = np.arange(50.0), np.zeros(50)
    with ours.using(learn="any"), ours.trace() as records:
        for _ in range(5):
            ours.Iallreduce(x, total).Wait()
            ours.Allreduce(x, total)
        assert lesson_of(ours, "allreduce").calls == 5 and lesson_of(ours, "allreduce", overlapping=True) is None
        assert len({record.algorithm for record in records[::2]}) == 1 < len({record.algorithm for record in records})
        for _ in range(TURNS):
            ours.Allreduce(x, total)
        ours.Iallreduce(x, total).Wait()
        assert {record.algorithm for record in records[-2:]} == {NATIVE} != {records[0].algorithm}


def test_averages_take_turns_too(comm, ours):
    if comm.size == 1:
        return
    x, mean = np.arange(50.0) * comm.size + comm.rank, np.zeros(50)
    wanted = np.arange(50.0) * comm.size + (comm.size - 1) / 2
    with ours.using(learn="any"), ours.trace() as records, Checks() as checks:
        for i in range(TURNS):
            mean[:] = 0
            ours.Allreduce(x, mean, mpicoll.AVG)
            checks.that(np.allclose(mean, wanted, 1e-15), i, mean)
        checks.that(len({record.algorithm for record in records}) > 2)
        checks.that(NATIVE in {record.algorithm for record in records})


def test_forced_calls_take_no_turns(comm, ours):
    x, total = np.arange(50.0), np.zeros(50)
    with ours.using(learn="any"), ours.trace() as records:
        with ours.using(allreduce="ring"):
            for _ in range(5):
                ours.Allreduce(x, total)
        with ours.using(chunk_bytes=64):
            ours.Allreduce(x, total)
        with ours.using(learn=False):
            ours.Allreduce(x, total)
        op = MPI.Op.Create(lambda a, b, t: None, commute=False)
        ours.Allreduce(x, total, op)
        op.Free()
    assert [record.algorithm for record in records][:5] == ["ring"] * 5
    assert not ours._open().lessons.active


def test_wrong_arguments_take_no_turn(comm, ours):
    x, total = np.arange(50.0), np.zeros(50)
    with ours.using(learn=True):
        ours.Allreduce(x, total)
        lesson = lesson_of(ours, "allreduce")
        with pytest.raises(MpicollError):
            ours.Allreduce(x, np.zeros(49))
        with pytest.raises(MpicollError):
            ours.Allreduce(x, total, "sum")
        assert comm.size == 1 or lesson.calls == 1
        with pytest.raises(ArgumentError, match="learn is"), ours.using(learn="some"):
            pass


def test_a_rank_without_compiled_kernels_makes_the_lesson_begin_again(comm, ours, monkeypatch):
    if comm.size == 1:
        return
    x, total = np.arange(50.0), np.zeros(50)
    with ours.using(learn="bits"):
        ours.Allreduce(x, total)
        lesson = lesson_of(ours, "allreduce")
        lesson.is_in_doubt = comm.rank == 0
        for _ in range((UNTIMED + TIMED) * len(lesson.candidates) - 1):
            assert lesson.calls
            ours.Allreduce(x, total)
        assert not lesson.calls
        assert lesson_of(ours, "allreduce") is lesson and not lesson.is_in_doubt
        for _ in range(TURNS):
            ours.Allreduce(x, total)
        assert lesson_of(ours, "allreduce") is None


def test_other_counts_in_every_call(comm, ours):
    """A class is learned from calls of different sizes, and serves all of them; the fast path ends where it does."""
    if comm.size == 1:
        return
    with ours.using(learn="any"), Checks() as checks:
        for i in range(6 * TURNS):
            case = Case("allreduce", 20 + 7 * i % 60)    # of two classes, and in three
            checks.call(case.run(ours), i)
        for n in range(17, 64):
            call, algorithm = traced(ours, Case("allreduce", n))
            checks.call(call, n)
            checks.equal(algorithm, ours.explain("allreduce", 8 * n).algorithm, n)
            checks.equal(comm.allgather(algorithm), [algorithm] * comm.size, n)


def traced(ours, case):
    with ours.trace() as records:
        call = case.run(ours)
    return call, records[-1].algorithm


def test_learned_choices_are_saved_and_loaded(comm, monkeypatch, tmp_path):
    if comm.size == 1:
        return
    path = comm.bcast(str(tmp_path / "t.json"))
    monkeypatch.setenv("MPICOLL_TUNING", path)
    monkeypatch.setenv("MPICOLL_LEARN", "any")
    monkeypatch.setattr(tables, "READ", {})
    x, total = np.arange(100.0), np.zeros(100)
    first = mpicoll.Comm(comm.Dup())
    for _ in range(TURNS):
        first.Allreduce(x, total)
        first.Barrier()
    learned = first.explain("allreduce", 800)
    assert "learned" in learned.why
    comm.Barrier()
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    (table,) = content["tables"]
    assert set(table["rules"]) == {"allreduce", "barrier"}
    first.Free()
    tables.READ.clear()
    second = mpicoll.Comm(comm.Dup())
    choice = second.explain("allreduce", 800)
    assert (choice.algorithm, choice.chunk_bytes, choice.measured) == (learned.algorithm, learned.chunk_bytes, True)
    with second.trace() as records:
        for _ in range(4):
            second.Allreduce(x, total)
    assert {record.algorithm for record in records} == {learned.algorithm}
    second.Free()


def test_a_table_that_cannot_be_written_costs_nothing_else(comm, monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("MPICOLL_TUNING", comm.bcast(str(tmp_path / "no" / "t.json")))
    monkeypatch.setattr(tables, "READ", {})
    monkeypatch.setenv("MPICOLL_LEARN", "1")
    ours = mpicoll.Comm(comm.Dup())
    x, total = np.arange(100.0), np.zeros(100)
    for _ in range(TURNS + 1):
        ours.Allreduce(x, total)
    assert (total == comm.size * x).all()
    messages = [record.message for record in caplog.records if "are not kept" in record.message]
    assert len(messages) == (comm.rank == 0 and comm.size > 1)
    ours.Free()


def test_in_check_mode_nothing_is_learned(comm, monkeypatch):
    monkeypatch.setenv("MPICOLL_CHECK", "1")
    monkeypatch.setenv("MPICOLL_LEARN", "1")
    ours = mpicoll.Comm(comm.Dup())
    with ours.trace() as records:
        for _ in range(TURNS):
            ours.Allreduce(np.ones(50), np.zeros(50))
    assert len({(record.algorithm, record.chunk_bytes) for record in records}) == 1
    ours.Free()


def test_communicators_learn_on_their_own(comm, monkeypatch):
    """Two that are used in different orders on different ranks do not disturb each other."""
    monkeypatch.setenv("MPICOLL_LEARN", "any")
    ours = mpicoll.Comm(comm.Dup())
    half = ours.Split(comm.rank % 2)
    x, total = np.arange(64.0), np.zeros(64)
    for i in range(TURNS):
        for _ in range(1 + (comm.rank % 2) * (i % 3)):
            half.Allreduce(x, total)
        assert (total == half.size * x).all()
        ours.Allreduce(x, total)
        assert (total == ours.size * x).all()
    assert half._open().lessons is not ours._open().lessons
    half.Free()
    ours.Free()
