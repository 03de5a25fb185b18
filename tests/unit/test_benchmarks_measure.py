"""The timed loops, on one rank and a clock of our own: what is timed, in which order, and what is not valid."""

from __future__ import annotations

import gc
import io
import json
import math
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from support import golden

from mpicoll.benchmarks.bench.driver import Driver, Job, all_valid, feasible
from mpicoll.benchmarks.cases.case import Cases
from mpicoll.benchmarks.cases.contenders import Contender, line_up
from mpicoll.benchmarks.cases.patterns import Shape
from mpicoll.benchmarks.command.progress import Bar
from mpicoll.benchmarks.measure import rounds as loops
from mpicoll.benchmarks.measure.budget import PATIENCE, Budget
from mpicoll.benchmarks.measure.rounds import LATE, Bench, Timing
from mpicoll.benchmarks.measure.stats import FEWEST, estimate
from mpicoll.benchmarks.measure.sync import Started
from mpicoll.benchmarks.results.records import Place, Writer, results, samples
from mpicoll.errors import PreconditionError

MPI = SimpleNamespace(MAX="max", SUM="sum", IN_PLACE="in place")
SHAPE = Shape("allreduce")


class Clock:
    """A clock whose seconds pass only when a test spends them."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(loops, "time", fake)
    return fake


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
    return Bench(control or Control(), MPI, seed).measure(Cases(SHAPE, 64, 0, 1), contenders, budget)


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
    assert {len(calls) for calls in short.rounds} == {loops.CALLS}
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
    assert len(slow.rounds) == FEWEST                   # an interval is worth some patience
    (slower,) = run([contender("a", clock, 1.5)], Budget(1.0))
    assert len(slower.rounds) == PATIENCE - 1           # but not any amount


@pytest.mark.parametrize("wrong", [1.0, float("nan")])
def test_a_wrong_answer_is_not_valid(clock, wrong):
    right, broken = run([contender("a", clock, 0.1), contender("b", clock, 0.1, wrong)])
    assert right.valid and not broken.valid


def test_an_answer_that_is_wrong_later_is_not_valid(clock):
    later = contender("a", clock, 0.1)
    plain, count = later.comm.Allreduce, iter(range(1000))
    later.comm.Allreduce = lambda *args: setattr(later.comm, "wrong", float(next(count) > 3)) or plain(*args)
    assert not run([later])[0].valid


def test_results_of_another_contender_are_no_answer(clock):
    idle = contender("b", clock, 0.1)
    idle.comm.Allreduce = lambda *_: None
    assert [timing.valid for timing in run([contender("a", clock, 0.1), idle])] == [True, False]


def test_an_answer_that_is_wrong_elsewhere_is_not_valid(clock):
    (timing,) = run([contender("a", clock, 0.1)], control=Control(lambda mine: np.ones_like(mine)))
    assert not timing.valid


def test_unsuitable_contenders_are_left_out(clock):
    def Allreduce(*_):
        raise PreconditionError("only p = 2")

    refusing = contender("a", clock, 0.1)
    refusing.comm.Allreduce = Allreduce
    refused, other = run([refusing, contender("b", clock, 0.1)])
    assert (refused.note, refused.rounds, len(other.rounds)) == ("only p = 2", [], 8)


def test_lines_of_json(clock):
    file, lines = io.StringIO(), []
    contenders = [contender("native", clock, 0.2), contender("ring", clock, 0.1), contender("bad", clock, 0.1, 1.0)]
    driver = Driver(Bench(Control(), MPI), Place([0]), Writer(file), lines.append, memory=1 << 20)
    driver.writer.run({"ranks": 1}, {"seconds": 1})
    results = driver.run(Job(SHAPE, (8, 64, 1 << 20), contenders), EIGHT_ROUNDS, Bar(None, 2))
    golden.compare(file.getvalue(), "bench-lines.jsonl")
    assert "1 MiB" in lines[0]
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
    contenders = line_up("reduce_scatter", ["native", "auto", "ring"], ["auto", "compiled"], "plain", ours)
    assert [c.label for c in contenders] == ["native", "auto", "auto @compiled", "ring", "ring @compiled"]
    for contender in contenders:
        with contender.context():
            pass
    assert used == [{"engine": "compiled"}, {"reduce_scatter": "ring"},
                    {"reduce_scatter": "ring", "engine": "compiled"}]
    assert [c.comm for c in contenders] == ["plain", ours, ours, ours, ours]

    used.clear()
    for contender in line_up("scan", ["native", "auto", "linear"], ["auto"], "plain", ours, chunk_bytes=9, window=None):
        with contender.context():
            pass
    assert used == [{"chunk_bytes": 9}, {"scan": "linear", "chunk_bytes": 9}]


# -- late starts


class SometimesLate:
    """A way to start together at which every third call is late."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.count, self.learned, self.agreed, self.unready = clock, 0, [], 0, 0

    def agree(self) -> None:
        self.agreed += 1

    def is_stale(self) -> bool:
        return self.count > 50

    def calls(self, expected):
        def start():
            self.count += 1
            self.unready += self.count % 3 == 0
            return Started(self.clock.now, self.count % 3 == 0)

        return start

    def learn(self, unready, calls):
        self.learned.append((unready, calls))


def late_run(clock, seconds, rounds=9):
    bench = Bench(Control(), MPI, 0)
    bench.sync = SometimesLate(clock)
    contenders = [contender("native", clock, seconds), contender("a", clock, seconds / 2)]
    cases = Cases(SHAPE, 64, 0, 1)
    return bench, cases, bench.measure(cases, contenders, Budget(1.0, rounds=rounds))


def test_late_calls_are_counted_and_left_out(clock):
    bench, _, timings = late_run(clock, 1e-5)
    late = sum(timing.late for timing in timings)
    assert late == sum(unready for unready, _ in bench.sync.learned) == 2 * 9 * loops.CALLS // 3
    assert timings[0].values == pytest.approx([1e-5] * 9)
    assert 1 < bench.sync.agreed < 9            # before the first round, and once it is stale


def test_without_a_pair_there_is_no_ratio(clock):
    native, other = contender("native", clock, 1.0), contender("a", clock, 1.0)
    timings = [Timing(native, rounds=[[1.0], [LATE]]), Timing(other, rounds=[[LATE], [1.0]])]
    line = results(Cases(SHAPE, 64, 0, 1), timings, Place([0]))[1].line()
    assert (line["median_us"], line["ratio"], line["verdict"]) == (1e6, None, None)
    json.dumps(line, allow_nan=False)


def test_a_round_without_a_call_in_time_pairs_with_nothing(clock):
    _, cases, timings = late_run(clock, 1e-2)
    missing = [sum(map(math.isnan, timing.values)) for timing in timings]
    assert sum(missing) == 6 and all(len(timing.values) == 9 for timing in timings)
    native, other = results(cases, timings, Place([0]))
    assert native.time.values == 9 - missing[0]
    assert other.ratio.median == pytest.approx(2.0) and other.ratio.values == 9 - sum(missing)
    assert len(other.line()["samples_us"]) == other.time.values and other.line()["late"] == missing[1]


def test_nothing_in_time_is_nothing_timed(clock):
    timing = Timing(contender("a", clock, 1.0), rounds=[[LATE]] * 8)
    (result,) = results(Cases(SHAPE, 64, 0, 1), [timing], Place([0]))
    assert result.time is None and result.line()["median_us"] is None
    assert result.timing.note == "a rank was late for every call"


# -- when it is enough


def test_budget_stops_when_all_is_known_well_enough():
    asked = []

    def precision():
        asked.append(True)
        return 0.01

    assert not Budget(10.0, precision=0.005).enough(50, 1.0, precision)
    assert Budget(10.0, precision=0.02).enough(50, 1.0, precision)
    assert not Budget(10.0, precision=0.02).enough(FEWEST, 1.0, precision)     # of few rounds it is not asked
    assert len(asked) == 2
    assert not Budget(10.0, precision=0.0).enough(5000, 1.0, precision) and len(asked) == 2
    assert Budget(10.0, rounds=3, precision=0.02).enough(3, 99.0, precision) and len(asked) == 2


def test_budget_does_not_look_at_every_round():
    budget, looks = Budget(10.0, precision=1e-9), []
    for done in range(1000):
        budget.enough(done, 0.0, lambda: looks.append(1) or 1.0)
    assert 5 < len(looks) < 30


def test_calls_that_never_differ_are_soon_enough(clock):
    steady = [contender("native", clock, 1e-2), contender("a", clock, 2e-2)]
    first, second = run(steady, Budget(1e6, precision=0.01))
    assert 4 * FEWEST <= len(first.rounds) == len(second.rounds) < 10 * FEWEST


def test_the_ratio_to_native_decides_where_there_is_a_native(clock):
    """Both drift alike, so that no time is known well but the ratio is."""
    drifting = [contender("native", clock, 1e-2), contender("a", clock, 2e-2)]
    factor = [1.0]

    def wobble(self, calls, seconds=None):
        factor[0] = 3.0 if factor[0] == 1.0 else 1.0

    for timed in drifting:
        plain, seconds = timed.comm.Allreduce, timed.comm.seconds

        def Allreduce(*args, comm=timed.comm, plain=plain, seconds=seconds):
            comm.seconds = seconds * factor[0]
            plain(*args)

        timed.comm.Allreduce = Allreduce
    bench = Bench(Control(), MPI, 0)
    bench.sync.learn = wobble                   # once a round
    timings = bench.measure(Cases(SHAPE, 64, 0, 1), drifting, Budget(1e3, precision=0.01))
    assert len(timings[0].rounds) < 10 * FEWEST
    assert estimate(timings[0].values).relative_width > 0.1


# -- overlap, in a nonblocking form


class Hidden:
    """A communicator whose Iallreduce takes `alone` seconds, of which `hidden` pass while there is work."""

    def __init__(self, clock: Clock, alone: float, hidden: float) -> None:
        self.clock, self.alone, self.hidden = clock, alone, hidden

    def Iallreduce(self, send, recv, op):
        began, recv[:] = self.clock.now, send

        def Wait():
            meanwhile = min(self.clock.now - began, self.hidden)
            self.clock.now += self.alone - meanwhile

        return SimpleNamespace(Wait=Wait)


@pytest.mark.parametrize(("hidden", "percent"), [(0.0, 0.0), (0.25, 25.0), (1.0, 100.0)])
def test_overlap_is_the_share_of_the_call_that_work_hides(monkeypatch, clock, hidden, percent):
    asked = []
    monkeypatch.setattr(
        loops, "compute", lambda seconds: asked.append(seconds) or setattr(clock, "now", clock.now + seconds))
    cases = Cases(Shape("allreduce", form="nonblocking"), 64, 0, 1)
    contender = Contender("auto", None, Hidden(clock, 0.2, 0.2 * hidden))
    (timing,) = Bench(Control(), MPI).measure(cases, [contender], EIGHT_ROUNDS)
    assert asked[0] == 0.0 and 0.0 not in asked[1:]         # what compiles comes before what is timed
    assert timing.valid and timing.values == pytest.approx([0.2] * 8)
    (result,) = results(cases, [timing], Place([0]))
    assert result.overlap.percent.median == pytest.approx(percent)
    line = result.line()
    assert line["form"] == "nonblocking" and line["overlap"]["percent"] == pytest.approx(percent)
    assert line["overlap"]["compute_us"] == pytest.approx(2e5)
    assert line["overlap"]["overall_us"] == pytest.approx(2e5 * (2 - hidden))


def test_a_form_that_this_mpi_lacks_is_left_out(clock):
    class Lacking:
        def Allreduce_init(self, *_):
            raise NotImplementedError

    cases = Cases(Shape("allreduce", form="persistent"), 64, 0, 1)
    (timing,) = Bench(Control(), MPI).measure(cases, [Contender("native", None, Lacking())], EIGHT_ROUNDS)
    assert timing.note == "this MPI has no persistent allreduce" and not timing.rounds


def test_a_persistent_request_is_made_once_a_turn_and_freed(clock):
    log = []

    class Persistent:
        def Allreduce_init(self, send, recv, op):
            log.append("init")
            start = lambda: (setattr(clock, "now", clock.now + 0.1), recv.__setitem__(slice(None), send))
            return SimpleNamespace(Start=start, Wait=lambda: None, Free=lambda: log.append("free"))

    cases = Cases(Shape("allreduce", form="persistent"), 64, 0, 1)
    (timing,) = Bench(Control(), MPI).measure(cases, [Contender("native", None, Persistent())], EIGHT_ROUNDS)
    assert timing.valid and timing.values == pytest.approx([0.1] * 8)
    assert log == ["init", "free"] * (2 + 1 + 8)            # two checks, the warm-up, the rounds


# -- roots


def test_a_rotating_root_takes_turns_and_all_roots_are_checked(clock):
    roots = []

    class Bcast:
        def Bcast(self, buffer, root):
            roots.append(root)
            clock.now += 0.1

    cases = Cases(Shape("bcast", root="rotating"), 64, 0, 3)
    Bench(Control(), MPI, warmup=1).measure(cases, [Contender("native", None, Bcast())], Budget(1.0, rounds=4))
    assert roots == [0, 1, 2] + [0] + [0, 1, 2, 0] + [0, 1, 2]


def test_cases_of_a_rotating_root_share_their_memory():
    cases = Cases(Shape("gather", root="rotating"), 800, 1, 3)
    seen = [cases(number) for number in range(6)]
    assert [case.root for case in seen] == [0, 1, 2, 0, 1, 2]
    assert np.shares_memory(seen[0].send, seen[4].send) and np.shares_memory(seen[1].recv, seen[4].recv)
    assert seen[0].recv is None or not len(seen[0].recv)


def test_a_case_of_another_root_finds_its_own_numbers():
    cases = Cases(Shape("scatter", root="rotating"), 800, 1, 3)
    fresh = cases(1).send.copy()
    cases(2).poison()
    cases(1).send[:] = 0
    cases(2)
    assert np.array_equal(cases(1).send, fresh)


def test_input_of_a_call_in_place_is_restored_before_the_next(clock):
    received = []

    class InPlace:
        def Allreduce(self, send, recv, op):
            received.append(recv.copy())
            clock.now += 0.1
            recv += 1

    cases = Cases(Shape("allreduce", in_place=True), 64, 0, 1)
    Bench(Control(), MPI).measure(cases, [Contender("native", None, InPlace())], EIGHT_ROUNDS)
    assert len(received) > 8 and all(np.array_equal(values, received[0]) for values in received)


@pytest.mark.parametrize("form", ["blocking", "nonblocking"])
@pytest.mark.parametrize("collective", ["allreduce", "bcast"])
def test_fresh_arrays_are_of_one_call(clock, collective, form):
    calls, held = [], []

    class Fresh:
        def call(self, *arrays):
            arrays = [array for array in arrays if isinstance(array, np.ndarray)]
            calls.append(([id(array) for array in arrays], [array.tolist() for array in arrays]))
            held.append(arrays)                    # so that no other takes its address
            clock.now += 0.1
            return SimpleNamespace(Wait=lambda: None)

        Allreduce = Iallreduce = Bcast = Ibcast = call

    cases = Cases(Shape(collective, fresh=True, form=form), 64, 0, 1)
    Bench(Control(), MPI).measure(cases, [Contender("native", None, Fresh())], EIGHT_ROUNDS)
    first, *others = calls[1:-1]                   # the others are not timed
    assert len(others) >= 8
    seen = [address for addresses, _ in (first, *others) for address in addresses]
    assert len(seen) == len(set(seen)) and all(contents[0] == first[1][0] for _, contents in others)


def test_percentiles_stand_for_too_many_values():
    few, many = samples([1e-6, 2e-6]), samples([k * 1e-6 for k in range(2001)])
    assert few == {"samples_us": [1.0, 2.0]}
    assert many["sketch_us"][0] == 0 and many["sketch_us"][50] == 1000 and many["sketch_us"][100] == 2000
    assert len(many["sketch_us"]) == 101
