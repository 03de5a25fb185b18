"""The benchmarks on any number of ranks: all agree, right results are valid, wrong ones are not."""

from __future__ import annotations

import io
import json
import time

import pytest
from click.testing import CliRunner
from mpi4py import MPI

import mpicoll
from mpicoll.benchmarks import forms, loaded, neighbors, recording
from mpicoll.benchmarks.bench.cli import bench
from mpicoll.benchmarks.bench.driver import Job
from mpicoll.benchmarks.bench.harness import Harness
from mpicoll.benchmarks.cases.case import Case
from mpicoll.benchmarks.cases.contenders import Contender, line_up
from mpicoll.benchmarks.cases.patterns import PATTERNS, Shape
from mpicoll.benchmarks.measure.budget import Budget
from mpicoll.benchmarks.measure.sync import Window
from mpicoll.schedules.registry import exact_algorithms
from mpicoll.timeline import recorder

COLLECTIVES = [c for c in mpicoll.list_algorithms() if c in PATTERNS]    # but neighbourhoods
ROOTED = [c for c in COLLECTIVES if PATTERNS[c].meaning.rooted]
IN_PLACE = [c for c in COLLECTIVES if PATTERNS[c].in_place]
HAVE_COUNTS = [c for c in COLLECTIVES if PATTERNS[c].has_counts]


def lines_of(comm, jobs) -> tuple[bool, list[dict]]:
    """Run jobs for two rounds each; whether all was right, and rank 0's lines of JSON."""
    file = io.StringIO() if comm.rank == 0 else None
    with Harness({"a": 1}, world=comm) as harness:
        right = harness.run([job(harness) for job in jobs], [Budget(1.0, rounds=2)] * len(jobs), file)
    return right, [json.loads(line) for line in file.getvalue().splitlines()] if file else []


def invoke(*words: object):
    """Run `mpicoll bench` on all ranks."""
    return CliRunner().invoke(bench, list(map(str, words)), catch_exceptions=False)


def bench_to_json(comm, tmp_path, *words: object) -> tuple[str, list[dict]]:
    """Return the command's output on rank 0, and its lines of JSON."""
    path = tmp_path / "out.jsonl"
    done = invoke(*words, "--json", path)
    assert done.exit_code == 0, done.output
    return done.output, [json.loads(line) for line in path.read_text().splitlines()] if comm.rank == 0 else []


def ways(collective: str, p: int) -> list[tuple]:
    """Return the sizes and options to call a collective with."""
    root = ("--root", p - 1) if collective in ROOTED else ()
    uneven = ("--counts", "uneven") if collective in HAVE_COUNTS else ()
    options = [("0,8,4000", *root), ("4000", "--dtype", "int32", "--op", "max", *uneven)]
    return options + [("4000", "--in-place", *root, *uneven)] * (collective in IN_PLACE)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_algorithm_of_a_collective(comm, collective, tmp_path):
    names, asked = exact_algorithms(collective), (collective, "--iterations", 1, "--sizes")
    outcomes = [(words, *bench_to_json(comm, tmp_path, *asked, *words)) for words in ways(collective, comm.size)]
    if comm.rank:
        assert not any(output for _, output, _ in outcomes)
        return
    unsuited = {"neighbor_exchange"} & set(names) if comm.size % 2 and comm.size > 1 else set()
    for (sizes, *words), output, (head, *results) in outcomes:
        assert f"\n{collective}" in output and head["environment"]["ranks"] == comm.size
        assert {name for left_out in head["settings"]["left_out"].values() for name in left_out} == unsuited
        assert all(f"\n{name} left out: needs an even number of ranks\n" in output for name in unsuited)
        rows = 1 if collective == "barrier" else sizes.count(",") + 1
        want = sorted({"native", "auto", *names} - unsuited)
        assert [sorted(line["algorithm"] for line in part) for part in split(results, rows)] == [want] * rows
        assert all(line["valid"] and line["rounds"] == 1 and not line["note"] for line in results), words
        counts = ("uneven" if "uneven" in words else "even") if collective in HAVE_COUNTS else None
        assert all(line["counts"] == counts for line in results)


def run(comm, case: Case) -> None:
    """Carry a case out."""
    with case.ready(comm, MPI) as operation:
        operation.call()


def split(lines: list, parts: int) -> list[list]:
    """Return the lines in equal parts, in order."""
    return [lines[len(lines) * i // parts : len(lines) * (i + 1) // parts] for i in range(parts)]


@pytest.mark.parametrize("collective", [c for c in COLLECTIVES if c != "barrier"])
@pytest.mark.parametrize("in_place", [False, True])
def test_the_patterns_against_this_mpi(comm, collective, in_place):
    """MPI's own answer is right, in every dtype, and nothing but the call makes it so."""
    if in_place and collective not in IN_PLACE:
        return
    for dtype in ("float32", "float64", "int8", "uint64", "complex128"):
        for root in {0, comm.size - 1} if collective in ROOTED else {0}:
            for counts in ("even", "uneven") if collective in HAVE_COUNTS else ("even",):
                shape = Shape(collective, dtype, root=root, in_place=in_place, counts=counts)
                case = Case(shape, 1000, comm.rank, comm.size)
                for _ in range(2):
                    case.poison()
                    run(comm, case)
                    assert case.is_right(), shape


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "band", "bor", "bxor", "land", "lor", "lxor"])
def test_operators_against_this_mpi(comm, op):
    case = Case(Shape("allreduce", "int32", op), 4000, comm.rank, comm.size)
    case.poison()
    run(comm, case)
    assert case.is_right()


class WrongOnOneRank:
    """An Allreduce whose last rank gets one element wrong."""

    def __init__(self, comm) -> None:
        self.comm = comm

    def Allreduce(self, send, recv, op):
        self.comm.Allreduce(send, recv, op)
        if self.comm.rank == self.comm.size - 1:
            recv[-1] += 1


def test_a_wrong_answer_on_one_rank_is_wrong(comm, capsys):
    def job(harness):
        contenders = line_up("allreduce", ["native"], ["auto"], harness.plain, harness.ours)
        return Job(Shape("allreduce"), (8, 64), [*contenders, Contender("broken", None, WrongOnOneRank(harness.plain))])

    right, lines = lines_of(comm, [job])
    assert not right
    if comm.rank == 0:
        valid = {(line["algorithm"], line["valid"]) for line in lines[1:]}
        assert valid == {("native", True), ("broken", False)}
        assert capsys.readouterr().out.count("NO") == 2


def test_command_with_a_wrong_answer(comm, monkeypatch):
    monkeypatch.setattr(mpicoll.Comm, "Allreduce", lambda self, send, recv, op: recv.fill(0))
    done = invoke("allreduce", "--sizes", "64", "--iterations", "2", "--algorithms", "native,auto")
    assert done.exit_code == 1
    assert ("NO" in done.output) == (comm.rank == 0)


def test_command_with_chunks(comm, tmp_path):
    """They hold for auto and for named ones; native is as it is."""
    words = ("--sizes", "4000", "--iterations", 1, "--algorithms", "all", "--chunk-bytes", "1K", "--window", 3)
    output, lines = bench_to_json(comm, tmp_path, "scan", *words)
    if comm.rank == 0:
        head, *results = lines
        assert "chunks of 1 KiB, 3 chunks in flight" in output
        assert (head["settings"]["chunk_bytes"], head["settings"]["window"]) == (1024, 3)
        ours = ["auto", *mpicoll.list_algorithms()["scan"]]
        assert [line["algorithm"] for line in results] == ["native", *ours]
        assert [line["ran"].get("chunk_bytes") for line in results] == [None, *(1024 for _ in ours)]
        lanes = {line["algorithm"]: line["ran"].get("lanes") for line in results}
        assert lanes["native"] is None and (lanes["linear"] == 4 or comm.size == 1)     # 4,000 bytes in chunks of 1,024


@pytest.mark.parametrize(("words", "names"), [
    ("bcast --root rotating --algorithms native,binomial", ["native", "binomial"]),
    ("gather --root rotating --in-place --sync window --algorithms native,linear", ["native", "linear"]),
    ("allreduce --form nonblocking --algorithms native,auto", ["native", "auto"]),
    ("allreduce --form persistent --algorithms native,ring", ["native", "ring"]),
    ("gatherv --form nonblocking --counts skewed --sync window --algorithms native,binomial", ["native", "binomial"]),
    ("alltoallv --counts spike --algorithms native,pairwise --rate 10Gbit", ["native", "pairwise"]),
])
def test_command_in_other_forms(comm, tmp_path, words, names):
    output, lines = bench_to_json(comm, tmp_path, *words.split(), "--sizes", "4000", "--iterations", 6)
    if comm.rank:
        return
    head, *results = lines
    assert [line["algorithm"] for line in results] == names
    settings = {key: results[0][key] for key in ("form", "counts", "root", "in_place") if results[0][key] is not None}
    assert f"\n{Shape(words.split()[0], **settings).title}\n" in output.replace(" \n", "\n")
    for line in results:
        assert len(line["samples_us"]) == line["rounds"] and line["ranks"] == comm.size
        # Where ranks outnumber the cores, every start may be late.
        assert (line["valid"] and line["rounds"]) or (line["valid"] is None and line["late"] and not line["rounds"])
        assert line["overlap"] is None or line["form"] == "nonblocking"
        assert line["overlap"] or line["form"] != "nonblocking" or line["late"]
        assert line["late"] == 0 or head["settings"]["sync"] == "window"
        assert line["algorithm"] == "native" or line["ran"]["algorithm"] != "native"
    assert ("no link limits them" in output) == ("--rate" in words)


@pytest.mark.parametrize("ahead", [0.0, 1000.0])
def test_clocks_are_compared_with_rank_0s(comm, ahead):
    """On one host all ranks read the same clock, which other ranks pretend to be ahead."""
    mine = ahead * comm.rank
    window = Window(comm, comm.Barrier, lambda: time.perf_counter() + mine)
    window.agree()
    assert window.ahead == pytest.approx(mine, abs=0.01)        # ranks may outnumber the cores
    start = window.calls(1e-3)
    starts = comm.allgather(start().at - mine)
    assert max(starts) - min(starts) < 0.02


def test_a_size_that_does_not_fit_is_refused(comm):
    output = refused(comm, "bcast --sizes 1K --memory 10")
    assert comm.rank or "too little" in output


def test_results_are_kept_without_an_option(comm, tmp_path, monkeypatch):
    folder = comm.bcast(str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", folder)
    done = invoke("barrier", "--iterations", 1)
    assert done.exit_code == 0
    if comm.rank == 0:
        (path,) = (tmp_path / "mpicoll").glob("barrier-*.jsonl")
        assert f"results: {path}" in done.output
        assert len(path.read_text().splitlines()) > 3


def refused(comm, words: str) -> str:
    """Return the line of rank 0, and check that other ranks write nothing."""
    done = invoke(*words.split())
    assert done.exit_code == 2
    assert len(done.output.splitlines()) == (1 if comm.rank == 0 else 0)
    return done.output


@pytest.mark.parametrize("words", [
    "allreduce --sizes 8:x", "allreduce --algorithms rign", "allreduce --dtype float99", "nothing", "allreduce --no",
    "allreduce --sizes 8 --json /nowhere/at/all", "gather --counts uneven", "gatherv --counts odd", "scan --root 1",
    "scatterv --root 99", "alltoallw --window 0", "bcast --form persistent --algorithms chained",
    "bcast --rate 50Mbyte", "bcast --sync never", "bcast --root some", "bcast --form sync",
])
def test_command_with_bad_input(comm, words):
    refused(comm, words)


@pytest.mark.parametrize(("words", "message"), [
    ("gatherv --algorithms knomial(k=1)", "gather knomial: k is 1; it must be a whole number of at least 2"),
    ("allreduce --algorithms ring,parameter_server(servers=99)", "servers is 99; it must be a whole number from 1 to"),
    ("alltoallw --algorithms hierarchical(groups=((0,99),))", "each of the ranks 0.."),
    ("allgather --algorithms hierarchical(middle=bruck(k=1))", "allgather bruck: k is 1"),
])
def test_command_with_parameters_out_of_range(comm, words, message):
    output = refused(comm, words)
    assert comm.rank or message in output


def test_refused_runs_leave_the_file_alone(comm, tmp_path):
    (path := tmp_path / "out.jsonl").write_text("what was there\n")
    refused(comm, f"gatherv --algorithms knomial(k=1) --json {path}")
    assert path.read_text() == "what was there\n"


@pytest.mark.parametrize("name", ["neighbor_exchange", "native,all,neighbor_exchange"])
def test_command_with_an_algorithm_that_does_not_suit(comm, name):
    words = f"allgatherv --sizes 8 --iterations 1 --algorithms {name}"
    if comm.size % 2 == 0 or comm.size == 1:
        assert invoke(*words.split()).exit_code == 0
    else:
        output = refused(comm, words)
        assert comm.rank or f"needs an even number of ranks, and p is {comm.size}" in output


def test_streams_beside_busy_processes(comm):
    words = "--busy 0 --busy 1 --nbytes 64 --calls 4 --rounds 3"
    result = CliRunner().invoke(loaded.main, words.split(), catch_exceptions=False)
    assert result.exit_code == 0
    if comm.rank == 0:
        rows = [line.split("│")[1:-1] for line in result.output.splitlines() if line.startswith("│")]
        assert [int(row[0]) for row in rows] == [0, 1]
        assert all(float(cell) > 0 for row in rows for cell in row[1:])


def test_busy_processes_end(comm):
    with loaded.busy(2) as started:
        assert all(process.poll() is None for process in started)
    assert all(process.poll() is not None for process in started)


def test_streams_that_cannot_be(comm):
    """Rank 0 says why, in one line."""
    result = CliRunner().invoke(loaded.main, ["--nbytes", "3"])
    assert result.exit_code == 2 and len(result.output.splitlines()) == (comm.rank == 0)


def test_the_benchmark_shows_errors_beside_bounds(comm, tmp_path):
    words = ["allreduce,alltoall", "--algorithms", "auto,quantized(codec=int4)", "--sizes", "4K", "--iterations", "1"]
    outcome, lines = bench_to_json(comm, tmp_path, *words)
    if comm.rank:
        return
    results = lines[1:]
    lossy = [row for row in results if row["algorithm"].startswith("quantized")]
    assert len(lossy) == 2 and all(row["valid"] and row["dtype"] == "float32" for row in results)
    assert all(0 <= row["error"][0] <= row["error"][1] < 1 for row in lossy)
    assert comm.size == 1 or lossy[0]["error"][0] > 0
    assert all(row["error"] is None for row in results if row["algorithm"] == "auto") and "error" in outcome


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_elements_of_few_bits(comm, tmp_path, dtype):
    words = ["allreduce,alltoallv,reduce", "--dtypes", dtype, "--algorithms", "native,auto", "--sizes", "4K"]
    _, lines = bench_to_json(comm, tmp_path, *words, "--iterations", "1")
    if comm.rank == 0:
        results = lines[1:]
        assert len(results) == 6 and all(row["valid"] and row["dtype"] == dtype for row in results)


@pytest.mark.parametrize("name", forms.FORMS)
def test_forms_are_right(ours, comm, name):
    row = forms.timed(name, comm, ours, 0.001)
    assert row.right and row.form == name and row.ours > 0
    assert forms.table([row], comm.size).row_count == 2  # and the mean


def test_neighbours_on_a_ring(ours):
    grid = neighbors.grid(ours, 1)
    row = neighbors.timed("ring", grid, 64, 0.001)
    grid.Free()
    assert row.right and row.nbytes == 64 and row.seconds.keys() >= {"native", "auto", "direct"}
    assert all(seconds > 0 for seconds in row.seconds.values())


@pytest.mark.parametrize("most", [recorder.LEAST, 10])
def test_calls_with_a_timeline(ours, monkeypatch, most):
    """A timeline that lacks calls is noticed: recording less would cost less."""
    monkeypatch.setattr(recorder, "LEAST", most)
    monkeypatch.setattr(recorder, "MOST_MESSAGES", most)
    row = recording.timed(ours, 4 << 20, 0.001)
    assert row.right == (most > 10) and row.nbytes == 4 << 20
    assert row.without > 0 and row.recorded > 0 and row.ratio.median == pytest.approx(row.recorded / row.without)
    assert recording.table([row], ours.size).row_count == 1
