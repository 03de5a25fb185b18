"""The timed loops, on one rank and a clock of our own: what is timed, in which order, and what is not valid."""

from __future__ import annotations

import gc
import json
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from mpicoll.benchmarks import measure
from mpicoll.benchmarks.case import Case
from mpicoll.benchmarks.contenders import Contender, line_up, split_names
from mpicoll.benchmarks.driver import Driver, Job, all_valid, feasible
from mpicoll.benchmarks.measure import Bench, Budget
from mpicoll.benchmarks.patterns import Shape
from mpicoll.benchmarks.progress import Bar
from mpicoll.benchmarks.records import SCHEMA, Writer
from mpicoll.errors import PreconditionError, StallError

MPI = SimpleNamespace(MAX="max", SUM="sum", IN_PLACE="in place")
SHAPE = Shape("allreduce")


class Clock:
    """Seconds that pass only when somebody spends them."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(measure, "time", made)
    return made


class Control:
    """A communicator of one rank; `others` says what the longest time on other ranks is."""

    rank, size = 0, 1

    def __init__(self, others=lambda mine: mine) -> None:
        self.others, self.barriers = others, 0

    def Barrier(self) -> None:
        self.barriers += 1

    def Allreduce(self, mine, everyone, op) -> None:
        everyone[:] = np.maximum(mine, self.others(mine))

    def bcast(self, value):
        return value


class Sum:
    """The communicator of a contender: takes its time, then does the right thing, or not."""

    def __init__(self, clock: Clock, seconds: float, wrong: float = 0.0, *, name: str, log: list | None = None) -> None:
        self.clock, self.seconds, self.wrong, self.log, self.name = clock, seconds, wrong, log, name

    def Allreduce(self, send, recv, op) -> None:
        self.clock.now += self.seconds
        recv[:] = send + self.wrong
        if self.log is not None:
            self.log.append((self.name, gc.isenabled()))


def contender(name: str, *args, **kwargs) -> Contender:
    return Contender(name, None, Sum(*args, name=name, **kwargs))


EIGHT_ROUNDS = Budget(1.0, rounds=8)


def run(contenders, budget=EIGHT_ROUNDS, control=None, seed=0):
    return Bench(control or Control(), MPI, seed).measure(Case(SHAPE, 64, 0, 1), contenders, budget)


def test_a_call_takes_as_long_as_it_takes(clock):
    slow, quick = run([contender("a", clock, 0.4), contender("b", clock, 0.1)])
    assert slow.values == pytest.approx([0.4] * 8)
    assert quick.values == pytest.approx([0.1] * 8)
    assert slow.valid and quick.valid


def test_a_call_takes_as_long_as_on_the_slowest_rank(clock):
    (timing,) = run([contender("a", clock, 0.4)], control=Control(lambda mine: np.full_like(mine, 0.7)))
    assert timing.values == [0.7] * 8


def test_the_barrier_is_not_timed_and_comes_before_each_call(clock):
    class Slow(Control):
        def Barrier(self):
            super().Barrier()
            clock.now += 5

    control = Slow()
    (timing,) = run([contender("a", clock, 0.4)], control=control)
    assert timing.values == pytest.approx([0.4] * 8)
    assert control.barriers >= 8


def test_short_calls_are_made_several_times_a_round(clock):
    (short,), (long,) = run([contender("a", clock, 1e-6)]), run([contender("a", clock, 1e-3)])
    assert {len(calls) for calls in short.rounds} == {measure.CALLS}
    assert {len(calls) for calls in long.rounds} == {1}


def test_contenders_take_turns_in_an_order_that_the_seed_decides(clock):
    def order(seed):
        log: list = []
        run([contender(name, clock, 0.1, log=log) for name in "abc"], seed=seed)
        rounds = "".join(name for name, _ in log)[-3 * 8 - 3 : -3]      # without warm-up and the last check
        return [rounds[i : i + 3] for i in range(0, 24, 3)]

    assert order(0) == order(0) != order(1)
    assert {"".join(sorted(turn)) for turn in order(0)} == {"abc"}
    assert len(set(order(0))) > 2


def test_the_garbage_collector_is_off_while_timing_and_on_again(clock):
    log: list = []
    run([contender("a", clock, 0.1, log=log)])
    assert [on for _, on in log][1:-1].count(True) == 0
    assert gc.isenabled()


def test_time_is_up(clock):
    (timing,) = run([contender("a", clock, 0.1)], Budget(2.0))
    assert 20 <= len(timing.rounds) <= 21
    (slow,) = run([contender("a", clock, 0.5)], Budget(1.0))
    assert len(slow.rounds) == measure.FEWEST                   # an interval is worth some patience
    (slower,) = run([contender("a", clock, 1.5)], Budget(1.0))
    assert len(slower.rounds) == measure.PATIENCE - 1           # but not any amount


@pytest.mark.parametrize("wrong", [1.0, float("nan")])
def test_a_wrong_answer_is_not_valid(clock, wrong):
    right, broken = run([contender("a", clock, 0.1), contender("b", clock, 0.1, wrong)])
    assert right.valid and not broken.valid


def test_an_answer_that_is_wrong_later_is_not_valid(clock):
    later = contender("a", clock, 0.1)
    plain, count = later.comm.Allreduce, iter(range(1000))
    later.comm.Allreduce = lambda *args: setattr(later.comm, "wrong", float(next(count) > 3)) or plain(*args)
    assert not run([later])[0].valid


def test_a_call_that_does_nothing_is_not_valid(clock):
    idle = contender("a", clock, 0.1)
    idle.comm.Allreduce = lambda *_: None
    assert not run([idle])[0].valid


def test_what_another_contender_left_behind_is_no_answer(clock):
    idle = contender("b", clock, 0.1)
    idle.comm.Allreduce = lambda *_: None
    assert [timing.valid for timing in run([contender("a", clock, 0.1), idle])] == [True, False]


def test_an_answer_that_is_wrong_elsewhere_is_not_valid(clock):
    (timing,) = run([contender("a", clock, 0.1)], control=Control(lambda mine: np.ones_like(mine)))
    assert not timing.valid


def test_what_cannot_serve_is_left_out_and_what_stalls_is_not_hidden(clock):
    def refuse(error):
        made = contender("a", clock, 0.1)

        def Allreduce(*_):
            raise error

        made.comm.Allreduce = Allreduce
        return made

    refused, other = run([refuse(PreconditionError("only p = 2")), contender("b", clock, 0.1)])
    assert (refused.note, refused.rounds, len(other.rounds)) == ("only p = 2", [], 8)
    with pytest.raises(StallError):
        run([refuse(StallError("nobody came"))])


def drive(clock, contenders, lines: list) -> list:
    class File:
        def write(self, text):
            lines.append(json.loads(text))

        def flush(self):
            pass

    said: list = []
    driver = Driver(Control(), MPI, Writer(File()), said.append, memory=1 << 20)
    driver.writer.run({"ranks": 1}, {"seconds": 1})
    job = Job(SHAPE, (8, 64, 1 << 20), contenders)
    return driver.run(job, 1.0, 8, Bar(None, 2)), said


def test_lines_of_json(clock):
    lines: list = []
    contenders = [contender("native", clock, 0.2), contender("ring", clock, 0.1), contender("bad", clock, 0.1, 1.0)]
    results, said = drive(clock, contenders, lines)
    head, *rest = lines
    assert head == {"kind": "run", "schema": SCHEMA, "environment": {"ranks": 1}, "settings": {"seconds": 1}}
    assert [(line["size"], line["algorithm"]) for line in rest] == [
        (size, name) for size in (8, 64) for name in ("native", "ring", "bad")]
    assert set(rest[1]) == {
        "kind", "schema", "collective", "size", "dtype", "op", "root", "in_place", "counts", "algorithm", "engine",
        "ran", "valid", "note", "median_us", "interval_us", "rounds", "ratio", "ratio_interval", "verdict",
        "samples_us"}
    assert rest[1]["median_us"] == pytest.approx(1e5)
    assert (rest[1]["ratio"], rest[1]["ratio_interval"], rest[1]["verdict"]) == (2.0, [2.0, 2.0], "faster")
    assert len(rest[1]["samples_us"]) == rest[1]["rounds"] == 8
    assert [line["valid"] for line in rest[:3]] == [True, True, False]
    assert rest[0]["ratio"] is None
    assert "1 MiB" in said[0]
    assert not all_valid(results) and all_valid(results[:2])


def test_sizes_that_fit_and_differ():
    job = Job(Shape("alltoall", "float64"), (1, 8, 12, 16, 1 << 20), [])
    assert feasible(job, 4, 1 << 20) == ([1, 16], [1 << 20])
    assert feasible(Job(Shape("barrier"), (8, 64), []), 4) == ([8], [])
    job = Job(Shape("gatherv", counts="uneven"), (8, 1000), [])
    assert (feasible(job, 4, 6000), feasible(job, 4, 5999)) == (([8, 1000], []), ([8], [1000]))


def test_line_up():
    used: list = []

    @contextmanager
    def using(**forced):
        used.append(forced)
        yield

    ours = SimpleNamespace(using=using)
    made = line_up("reduce_scatter", ["native", "auto", "ring"], ["auto", "compiled"], "plain", ours)
    assert [c.label for c in made] == ["native", "auto", "auto @compiled", "ring", "ring @compiled"]
    for each in made:
        with each.context():
            pass
    assert used == [{"engine": "compiled"}, {"reduce_scatter": "ring"},
                    {"reduce_scatter": "ring", "engine": "compiled"}]
    assert [c.comm for c in made] == ["plain", ours, ours, ours, ours]

    used.clear()
    for each in line_up("scan", ["native", "auto", "linear"], ["auto"], "plain", ours, chunk_bytes=9, window=None):
        with each.context():
            pass
    assert used == [{"chunk_bytes": 9}, {"scan": "linear", "chunk_bytes": 9}]


def test_names_with_parameters():
    assert split_names("a, b(x=1, y=2) ,a,,c") == ["a", "b(x=1, y=2)", "c"]
