"""OMB's rules: which options mean what, how many iterations, which sizes, and how seconds are averaged."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from mpicoll.benchmarks.bench import cli as bench_cli
from mpicoll.benchmarks.cases.forms import FORMS
from mpicoll.benchmarks.cases.patterns import PATTERNS
from mpicoll.benchmarks.osu import layout, options
from mpicoll.benchmarks.osu.averages import overlap, percentiles
from mpicoll.benchmarks.osu.collective import Buffers, Collective, probing
from mpicoll.benchmarks.osu.loops import Apart, Checked, repeated
from mpicoll.benchmarks.osu.options import Options, Pace, Repeats
from mpicoll.benchmarks.osu.pair import Pair
from mpicoll.benchmarks.osu.programs import NAMES, PAIRS, program
from mpicoll.benchmarks.osu.run import run

MPI = SimpleNamespace(SUM=np.add, MIN=np.minimum, MAX=np.maximum)


class Clock:
    """A clock whose seconds pass only when a test spends them."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


class Ranks:
    """A communicator on which another rank always has twice of what this one has."""

    size, rank = 2, 0

    def __init__(self) -> None:
        self.barriers = 0

    def Barrier(self) -> None:
        self.barriers += 1

    def Allreduce(self, mine, everyone, op) -> None:
        everyone[:] = op(mine, 2 * mine)

    def Bcast(self, buffer, root) -> None: ...


# -- iterations and sizes


@pytest.mark.parametrize(("benchmark", "form", "asked", "paces"), [
    ("allreduce", "blocking", {}, [(100, 1000), (10, 100)]),
    ("allreduce", "nonblocking", {}, [(100, 1000), (10, 100)]),
    ("latency", "blocking", {}, [(100, 10000), (10, 1000)]),
    ("bw", "blocking", {}, [(10, 100), (2, 20)]),
    ("bibw", "blocking", {}, [(10, 100), (2, 20)]),
    ("bcast", "blocking", {"iterations": 7}, [(100, 7), (10, 7)]),
    ("bcast", "blocking", {"warmup": 0}, [(0, 1000), (0, 100)]),
    ("barrier", "blocking", {}, [(100, 1000)]),
    ("barrier", "persistent", {}, [(100, 1000)]),
    ("barrier", "nonblocking", {}, [(10, 100)]),
])
def test_iterations(benchmark, form, asked, paces):
    pace = Pace(program(benchmark, form), Options(**asked))
    if benchmark == "barrier":
        assert pace.at(0) == paces[0]
        return
    small, large = paces
    assert [pace.at(size) for size in (1, 8192, 8193, 1 << 20)] == [small, small, large, large]
    assert pace.at(1) == large      # of the next type


@pytest.mark.parametrize(("text", "sizes"), [
    ("8", [1, 2, 4, 8]), ("3:20", [3, 6, 12]), ("524288:", [1 << 19, 1 << 20]), (":4", [1, 2, 4]), ("0:2", [1, 2]),
])
def test_sizes(text, sizes):
    low, high = options.read_range(text, 1 << 20)
    assert list(Options(low=low, high=high).sizes()) == sizes


@pytest.mark.parametrize("text", ["16:4", "x", "", ":", "1:2:3", "1M", "-4", "0", "4:x", " 4"])
def test_sizes_that_are_none(text):
    with pytest.raises(ValueError, match=r"^-m is "):
        options.read_range(text, 1 << 20)


def test_sizes_below_an_element_are_left_out(capsys):
    asked = Options(low=1, high=16, types=("mpi_int", "mpi_char"))
    bench = SimpleNamespace(measure=lambda kind, size, repeats: {layout.AVERAGE: 1.0})
    assert run(program("bcast", "blocking"), asked, bench)
    sizes = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:1].isdigit()]
    assert sizes == ["4", "8", "16", "1", "2", "4", "8", "16"]


COLLECTING = {name + v for name in ("scatter", "gather", "allgather", "alltoall") for v in ("", "v")} | {"alltoallw"}


@pytest.mark.parametrize("collective", NAMES)
def test_memory(collective):
    measured = program(collective, "blocking")
    most = 100 << 20 if collective == "barrier" else 2 << 20 if collective in COLLECTING else 8 << 20
    high, warning = options.limited(measured, 100 << 20, 8 << 20, 4)
    assert high == most
    assert warning == ("" if collective == "barrier" else (
        f"Warning! Limiting max message size to: {most}. Increase -M, --mem-limit for higher message sizes."))
    assert options.limited(measured, 1 << 20, 8 << 20, 4) == (1 << 20, "")


def test_memory_has_a_least():
    assert options.read_memory(5) == (1 << 20, "Requested memory limit too low, using [1048576] instead.")
    assert options.read_memory(1 << 20) == (1 << 20, "")


# -- averages


def test_percentiles_count_as_omb_does():
    values = np.arange(10.0, 0.0, -1.0)
    assert percentiles(values, [0, 9, 10, 50, 90, 99, 100]) == {0: 1, 9: 1, 10: 1, 50: 5, 90: 9, 99: 9, 100: 10}


def test_overlap():
    assert overlap(overall=10.0, compute=8.0, pure=8.0) == 75.0
    assert overlap(overall=16.0, compute=8.0, pure=8.0) == 0.0
    assert overlap(overall=20.0, compute=8.0, pure=8.0) == 0.0


class Calls:
    """A collective on a communicator, each call of which takes the next number of seconds."""

    def __init__(self, clock: Clock, seconds) -> None:
        self.clock, self.seconds, self.calls = clock, seconds, 0

    def Allreduce(self, send, recv, op) -> None:
        self.clock.spend(self.seconds[self.calls % len(self.seconds)])
        self.calls += 1

    Reduce = Bcast = Allreduce

    def Barrier(self) -> None:
        self.Allreduce(None, None, None)

    def Iallreduce(self, send, recv, op):
        self.clock.spend(1e-6)
        self.calls += 1
        return SimpleNamespace(Test=lambda: self.clock.spend(5e-7), Wait=lambda: self.clock.spend(3e-6))

    def Ibarrier(self):
        return self.Iallreduce(None, None, None)


def collective(clock, control, comm, benchmark="allreduce", form="blocking", **asked):
    mpi = SimpleNamespace(**vars(MPI), IN_PLACE="in place")
    contender = SimpleNamespace(comm=comm, context=nullcontext)
    return Collective(program(benchmark, form), Options(**asked), contender, control, mpi, clock, clock.spend)


def test_averages_over_iterations_and_ranks():
    clock, control = Clock(), Ranks()
    comm = Calls(clock, [9.0, 1e-6, 3e-6, 2e-6])
    row = collective(clock, control, comm, percentiles=(50, 100)).measure("mpi_int", 64, Repeats(1, 3))
    assert comm.calls == 4
    assert row[layout.AVERAGE] == pytest.approx(3.0)       # this rank 2 µs, the other 4 µs
    assert (row[layout.LEAST], row[layout.MOST]) == pytest.approx((2.0, 4.0))
    assert row[layout.ITERATIONS] == 3
    assert (row[50], row[100]) == pytest.approx((1.5, 4.5))     # iterations' means are 1.5, 4.5 and 3 µs


def test_time_under_way():
    clock, control = Clock(), Ranks()
    comm = Calls(clock, [0.0])
    row = collective(clock, control, comm, form="nonblocking", tests=2).measure("mpi_int", 64, Repeats(1, 4))
    assert comm.calls == 10
    # On this rank 4 µs alone; then 1 µs to start, 4 µs of work with two tests of 0.5 µs, 3 µs to wait. Means over
    # both ranks are one and a half times as long.
    assert row[layout.PURE] == pytest.approx(6.0)
    assert (row[layout.LEAST_PURE], row[layout.MOST_PURE]) == pytest.approx((4.0, 8.0))
    parts = [row[key] for key in (layout.OVERALL, layout.INIT, layout.COMPUTE, layout.TEST, layout.WAIT)]
    assert parts == pytest.approx([13.5, 1.5, 6.0, 1.5, 4.5])
    assert row[layout.OVERLAP] == 0.0


def test_overlap_leaves_out_the_tests():
    clock = Clock()
    request = SimpleNamespace(Test=lambda: clock.spend(2.0))
    assert probing(request, 6.0, 3, clock.spend, clock) == 6.0 and clock.now == 12.0
    assert probing(request, 6.0, 0, clock.spend, clock) == 0.0 and clock.now == 18.0


# -- barriers and checks


@pytest.mark.parametrize(("benchmark", "form", "barriers"), [
    ("allreduce", "blocking", 5), ("reduce", "blocking", 5), ("barrier", "blocking", 0),
    ("allreduce", "nonblocking", 10), ("barrier", "nonblocking", 5),
])
def test_barriers_between_iterations(benchmark, form, barriers):
    clock, control = Clock(), Ranks()
    bench = collective(clock, control, Calls(clock, [1e-6]), benchmark, form)
    around = control.barriers
    arguments = () if benchmark == "barrier" else (1, 2, 3)
    with FORMS[form].ready(bench.contender.comm, benchmark, arguments) as operation:
        buffers = Buffers([None], [operation])
        measure = bench._overlapping if form == "nonblocking" else bench._latency
        measure(buffers, bench._apart(computing=False), Repeats(2, 3))
    assert control.barriers - around - (form == "nonblocking") == barriers


@pytest.mark.parametrize(("benchmark", "order"), [("reduce", ["barrier", "call"]), ("allreduce", ["call", "barrier"])])
def test_reduce_has_its_barrier_before_the_call(benchmark, order):
    seen: list[str] = []
    bench = collective(Clock(), SimpleNamespace(Barrier=lambda: seen.append("barrier")), None, benchmark)
    repeated(lambda i: seen.append("call") or (0.0,), bench._apart(computing=False), Repeats(0, 1))
    assert seen == order


def test_a_check_surrounds_each_call():
    seen: list[str] = []
    say = lambda word: lambda *_: seen.append(word)
    around = Checked(Apart(say("barrier"), "after"), say("barrier"), say("poison"), say("warm"), say("look"), 2)
    times = repeated(lambda i: seen.append("call") or (i,), around, Repeats(1, 2))
    once = ["poison", "barrier", "warm", "barrier", "warm", "barrier", "call", "barrier", "look"]
    assert seen == once * 3 and times.tolist() == [[1], [2]]
    assert around.wrong == 3        # look returned None each time


# -- two ranks


@pytest.mark.parametrize(("benchmark", "value"), [("latency", 2.0), ("bw", 64 * 64 / 4), ("bibw", 2 * 64 * 64 / 4)])
def test_figures_of_pairs(benchmark, value):
    pair = Pair(program(benchmark, "blocking"), Options(percentiles=(50,)), Ranks(), MPI, Clock())
    row = pair._figures(np.array([1e-6, 9e-6, 2e-6]), 64)
    assert row[layout.AVERAGE if benchmark == "latency" else layout.SPEED] == pytest.approx(value)
    median = {"latency": 0.5, "bw": 64 * 64 / 9, "bibw": 2 * 64 * 64 / 9}[benchmark]
    assert row[50] == pytest.approx(median)     # number 3 * 50 // 100 of three, in ascending order


# -- words


@pytest.mark.parametrize(("text", "percentiles"), [("50,90,99", (50, 90, 99)), ("0,100", (0, 100)), (None, ())])
def test_percentiles(text, percentiles):
    assert options.read_percentiles(text) == percentiles


def test_types_and_roots():
    assert options.read_types([]) == ("mpi_char",)
    assert options.read_types(["MPI_INT", "all"]) == ("mpi_int", "mpi_char", "mpi_int", "mpi_float")
    assert (options.read_root("fixed:3"), options.read_root("rotate")) == (3, None)


@pytest.mark.parametrize(("read", "value", "message"), [
    (options.read_percentiles, "101", "-z is '101'"), (options.read_percentiles, "", "-z is ''"),
    (options.read_percentiles, "1,2,3,4,5,6", "up to 5"), (options.read_percentiles, "9,x", "-z is '9,x'"),
    (options.read_types, ["mpi_double"], "-T is 'mpi_double'; it takes all, mpi_char"),
    (options.read_root, "7", "-k is '7'; it takes fixed:RANK or rotate"),
])
def test_values_that_are_none(read, value, message):
    with pytest.raises(ValueError, match=message):
        read(value)


def test_every_collective_but_the_scans():
    assert set(PATTERNS) - set(NAMES) == {"scan", "exscan", "reduce_scatter_block"}
    for name in ("scan", "exscan", "reduce_scatter_block", "ring"):
        with pytest.raises(ValueError, match=f"OSU has no benchmark of '{name}'; there is barrier, bcast"):
            program(name, "blocking")
    for name in PAIRS:
        with pytest.raises(ValueError, match="has no persistent form here"):
            program(name, "persistent")


@pytest.mark.parametrize(("name", "form", "letters"), [
    ("allreduce", "blocking", "fmixMcuTzl"), ("reduce", "blocking", "fmixMcuTzlk"), ("bcast", "blocking", "fmixMcuTz"),
    ("gatherv", "nonblocking", "fmixMcuTztlk"), ("gatherv", "persistent", "fmixMcuTzl"),
    ("barrier", "blocking", "fmixMuz"), ("barrier", "nonblocking", "fmixMtz"), ("bibw", "blocking", "mixtWbcuTz"),
])
def test_options_of_each_program(name, form, letters):
    assert sorted(program(name, form).letters) == sorted(letters)


# -- the command, alone, which has too few ranks for anything but talk


def invoke(*words: str):
    return CliRunner().invoke(bench_cli.bench, list(words), prog_name="mpicoll bench")


def test_the_title():
    result = invoke("gather", "--osu", "--form", "nonblocking", "-v")
    assert (result.exit_code, result.output) == (0, "# OSU MPI Non-blocking Gather Latency Test v7.4\n")


def test_help_of_both():
    assert "--osu" in invoke("--help").output and "--sizes" in invoke("-h").output
    for word in ("-m, --message-size", "-z, --tail-lat", "--algorithms"):
        assert word in invoke("--osu", "-h").output


@pytest.mark.parametrize(("words", "message"), [
    ("allreduce -m 4:2", "at least two"), ("bw", "This test requires exactly two processes"),
    ("scan", "OSU has no benchmark of 'scan'"), ("allreduce --form sideways", "--form is 'sideways'"),
    ("barrier -c", "osu_barrier has no -c, --validation"), ("allreduce -k fixed:0", "osu_allreduce has no -k"),
    ("gather --form persistent -k rotate", "osu_gather_persistent has no -k"),
    ("latency -W 3", "osu_latency has no -W"), ("latency --algorithms ring", "leave out --algorithms"),
    ("bw -f", "osu_bw has no -f"), ("allreduce -i 0", "-i"), ("allreduce -G tty", "-G"), ("", "Missing argument"),
    ("allreduce -t 3", "osu_allreduce has no -t"), ("allreduce -u 11", "-u"), ("allreduce --sizes 8", "--sizes"),
])
def test_bad_words(words, message):
    done = invoke("--osu", *words.split())
    assert done.exit_code == 2 and message in done.output
    assert len(done.output.splitlines()) == 1 and done.output.startswith("mpicoll bench: ")
