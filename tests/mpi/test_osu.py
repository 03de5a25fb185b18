"""`mpicoll bench … --osu` on however many ranks there are: it parses, what is right passes, what is wrong fails."""

from __future__ import annotations

import re

import numpy as np
import pytest
from click.testing import CliRunner
from mpi4py import MPI

import mpicoll
from mpicoll.benchmarks.bench.cli import bench
from mpicoll.benchmarks.cases.forms import FORMS
from mpicoll.benchmarks.cases.patterns import PATTERNS
from mpicoll.benchmarks.osu import pair
from mpicoll.benchmarks.osu.programs import NAMES, PAIRS

QUICK = ["-m", "4:8", "-i", "2", "-x", "1"]
CHECKED = [*QUICK, "-c", "-u", "1"]
ROW = re.compile(r"(\d+)((?: +\d+\.\d\d)+)(?: +(Pass|Fail))?")
# Of Intel MPI 2021, a rank's own part arrives with the first start of a request only; others end in errors.
WRONG_FROM_THE_SECOND_START = [("Intel MPI", name) for name in ("scatter", "gather", "allgather")]


several = pytest.mark.mpi(min_size=2)


def invoke(*words: str):
    return CliRunner().invoke(bench, [*words, "--osu"], catch_exceptions=False)


def rows(comm, *words: str) -> list[tuple[int, list[float], str | None]]:
    """Return each line's size, numbers and validation on rank 0, and an empty list on ranks that print nothing."""
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    if comm.rank:
        assert not done.output
        return []
    matches = [ROW.fullmatch(line) for line in done.output.splitlines() if line and not line.startswith("#")]
    assert all(matches), done.output
    return [(int(match[1]), [float(x) for x in match[2].split()], match[3]) for match in matches]


def headings(line: str) -> list[str]:
    """Return the headings of one line, which two or more blanks separate."""
    return re.split(r" {2,}", line)


def refused(comm, *words: str) -> str:
    """Return the line of rank 0."""
    done = invoke(*words)
    assert done.exit_code == 2
    assert len(done.output.splitlines()) == (1 if comm.rank == 0 else 0), done.output
    return done.output


@pytest.mark.mpi(max_size=1)
def test_one_rank_is_too_few(comm):
    assert "This test requires at least two processes" in refused(comm, "allreduce")


def passes(comm, *words: str, sizes=(4, 8), columns: int = 1) -> None:
    printed = rows(comm, *words)
    if comm.rank == 0:
        assert [(size, len(numbers), valid) for size, numbers, valid in printed] == [
            (size, columns, "Pass") for size in sizes]
        assert all(x >= 0 for _, numbers, _ in printed for x in numbers)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("collective", [name for name in NAMES if name != "barrier"])
@several
def test_every_collective_of_the_library(comm, collective, form):
    words = (collective, "--form", form, "--algorithms", "native", *CHECKED)
    if form == "persistent" and not has_persistent_ones(comm):
        assert f"this MPI has no {form} {collective}" in refused(comm, *words) or comm.rank
        return
    if form == "persistent" and (MPI.get_vendor()[0], collective) in WRONG_FROM_THE_SECOND_START:
        return
    passes(comm, *words, columns=4 if form == "nonblocking" else 1)


def has_persistent_ones(comm) -> bool:
    """Tell whether this MPI has persistent collectives, which came with MPI 4 and some had before."""
    try:
        comm.Barrier_init().Free()
    except NotImplementedError:
        return False
    return True


@pytest.mark.parametrize("collective", [name for name in NAMES if name != "barrier"])
@several
def test_every_collective_of_ours(comm, collective):
    passes(comm, collective, *CHECKED)
    pattern = PATTERNS[collective]
    if pattern.meaning.rooted and collective != "bcast":
        passes(comm, collective, *CHECKED, "-k", "rotate")
        passes(comm, collective, *CHECKED, "-k", f"fixed:{comm.size - 1}")
    if pattern.in_place:
        passes(comm, collective, *CHECKED, "-l", "-T", "mpi_float")


@several
def test_nonblocking_of_ours(comm):
    passes(comm, "allreduce", "--form", "nonblocking", *CHECKED, "-t", "2", "-f", columns=9)
    passes(comm, "allreduce", "--form", "nonblocking", "--algorithms", "ring", *CHECKED, columns=4)
    passes(comm, "bcast", "--form", "nonblocking", *CHECKED, columns=4)


@pytest.mark.parametrize("form", ["blocking", "nonblocking"])
@several
def test_barriers_have_one_line_without_a_size(comm, form):
    done = invoke("barrier", "--form", form, "--algorithms", "native", *QUICK, "-f")
    assert done.exit_code == 0
    if comm.rank == 0:
        *_, heading, line = done.output.splitlines()
        count = {"blocking": 4, "nonblocking": 9}[form]
        assert len(headings(heading)) == len(line.split()) == count and line.startswith(" ")


@several
def test_full_with_percentiles(comm):
    done = invoke("allgather", *QUICK, "-f", "-z9,100", "-T", "all")
    assert done.exit_code == 0
    if comm.rank == 0:
        lines = done.output.splitlines()
        for line in lines:
            if line[:1].isdigit():
                _, mean, least, most, _, low, high = map(float, line.split())
                assert least <= mean <= most and low <= high
        assert [line for line in lines if line.startswith("# D")] == [
            f"# Datatype: MPI_{name}." for name in ("CHAR", "INT", "FLOAT")]
        assert {len(line.split()) for line in lines if line[:1].isdigit()} == {7}
        assert [line.split()[4] for line in lines if line[:1].isdigit()] == ["2"] * 6


@pytest.mark.parametrize("benchmark", PAIRS)
def test_pairs(comm, benchmark):
    if comm.size != 2:
        output = refused(comm, benchmark)
        assert comm.rank or "This test requires exactly two processes" in output
        return
    passes(comm, benchmark, *CHECKED)
    passes(comm, benchmark, *CHECKED, "-b", "multiple", "-T", "mpi_float")


@pytest.mark.parametrize("benchmark", PAIRS)
@pytest.mark.parametrize("liar", [0, 1])
def test_a_pair_of_which_one_sends_what_is_wrong(comm, benchmark, liar, monkeypatch):
    if comm.size != 2:
        return
    moved = pair.moved

    def altered(source, destination, n, dtype):
        result = moved(source, destination, n, dtype)
        result[-1] += source == comm.rank == liar
        return result

    monkeypatch.setattr(pair, "moved", altered)
    done = invoke(benchmark, *CHECKED)
    fails = benchmark != "bw" or liar == 0      # in bw nothing but a byte comes back
    assert done.exit_code == (1 if fails else 0)
    assert ("Fail" in done.output) == (fails and comm.rank == 0)


@several
class TestWhatIsWrong:
    """A method that gets one element wrong, on one rank."""

    @pytest.fixture(autouse=True)
    def broken(self, comm, monkeypatch):
        def allreduce(communicator, send, recv, op):
            MPI.Intracomm.Allreduce(communicator, send, recv, op)
            if communicator.rank == communicator.size - 1:
                recv[-1] += np.int8(1)

        class Request:
            def __init__(self, *arguments) -> None:
                self.arguments = arguments

            def Test(self) -> bool:
                return False

            def Wait(self) -> None:
                allreduce(*self.arguments)

        monkeypatch.setattr(mpicoll.Comm, "Allreduce", allreduce)
        monkeypatch.setattr(mpicoll.Comm, "Iallreduce", lambda *arguments: Request(*arguments))

    @pytest.mark.parametrize("form", ["blocking", "nonblocking"])
    def test_fails(self, comm, form):
        done = invoke("allreduce", "--form", form, *CHECKED)
        assert done.exit_code == 1
        if comm.rank == 0:
            *_, row, last = done.output.splitlines()
            match = ROW.fullmatch(row)
            assert match and (match[1], match[3]) == ("4", "Fail")
            name = "osu_allreduce" if form == "blocking" else "osu_iallreduce"
            assert last == f"DATA VALIDATION ERROR: {name} exited with status 1 on message size 4."
        else:
            assert not done.output

    def test_is_not_seen_unasked(self, comm):
        assert {valid for _, _, valid in rows(comm, "allreduce", *QUICK)} <= {None}


@pytest.mark.parametrize(("words", "message"), [
    ("allreduce -m 8:4", "the smallest message, 8 bytes, is above the largest, 4"),
    ("allreduce -m 8k", "-m is '8k'"), ("allreduce -T float", "-T is 'float'"),
    ("gather -k fixed:99", "root is 99"), ("allreduce --algorithms rign", "rign"),
    ("allreduce --algorithms all", "it takes one"), ("allreduce --engine fast", "--engine is 'fast'"),
    ("allreduce --algorithms parameter_server(servers=99)", "servers is 99"),
])
@several
def test_bad_input(comm, words, message):
    output = refused(comm, *words.split())
    assert comm.rank or message in output


@several
def test_an_algorithm_that_does_not_suit(comm):
    words = ("allgather", "--algorithms", "neighbor_exchange", *CHECKED)
    if comm.size % 2 == 0:
        passes(comm, *words)
    else:
        output = refused(comm, *words)
        assert comm.rank or "needs an even number of ranks" in output


@several
def test_memory_limits_the_largest(comm):
    done = invoke("allgather", "-m", "262144:4194304", "-i", "1", "-x", "0", "-M", str(1 << 20))
    assert done.exit_code == 0
    if comm.rank == 0:
        most = (1 << 20) // comm.size
        assert f"Limiting max message size to: {most}." in done.stderr
        sizes = [int(line.split()[0]) for line in done.stdout.splitlines() if line[:1].isdigit()]
        assert sizes == [size for size in (1 << 18, 1 << 19, 1 << 20) if size <= most]
        assert done.stdout.startswith("\n# OSU MPI Allgather Latency Test v7.4\n")
