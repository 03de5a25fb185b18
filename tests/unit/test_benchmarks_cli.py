"""The words of the command line, the table, the environment."""

from __future__ import annotations

import io
import os
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from rich.console import Console
from support import golden

import mpicoll
from mpicoll.benchmarks.bench import cli, options
from mpicoll.benchmarks.cases import scaling
from mpicoll.benchmarks.cases.case import Cases
from mpicoll.benchmarks.cases.contenders import Contender
from mpicoll.benchmarks.cases.patterns import Shape
from mpicoll.benchmarks.command import console as console_module
from mpicoll.benchmarks.command import progress, spmd
from mpicoll.benchmarks.measure.rounds import Timing
from mpicoll.benchmarks.results import environment
from mpicoll.benchmarks.results.records import Place, results
from mpicoll.benchmarks.results.table import conclusion, legend, summary, table
from mpicoll.cli import sizes
from mpicoll.errors import MpicollError
from mpicoll.schedules.collectives import is_of_neighbours

GIVEN = {
    "sizes": "8:1K", "scaling": "osu", "algorithms": "all", "engines": "auto", "peers": "none",
    "dtype": "float64", "op": "sum", "root": "0",
    "in_place": False, "fresh": False, "counts": "even", "form": "blocking", "chunk_bytes": None, "window": None,
    "seconds": 1.0, "iterations": None, "precision": 1.0, "warmup": 2, "sync": "barrier", "rate": None, "memory": "1G",
    "seed": 0,
}


@pytest.mark.parametrize(("text", "bytes_"), [
    ("8", [8]),
    ("8,1K,64K", [8, 1024, 65536]),
    ("64KiB, 8 , 8B", [8, 65536]),
    ("8:64M", [8 * 4**k for k in range(12)] + [64 << 20]),
    ("8:512", [8, 32, 128, 512]),
    ("1:8:2,0", [0, 1, 2, 4, 8]),
    ("5:5", [5]),
])
def test_sizes(text, bytes_):
    assert sizes.parse_sizes(text) == bytes_


@pytest.mark.parametrize(("scaling", "of_each"), [
    ("osu", {"bcast": 4096, "allgather": 4096, "alltoall": 4096, "barrier": 4096}),
    ("strong", {"bcast": 4096, "allgather": 1024, "alltoall": 256, "barrier": 4096}),
    ("weak", {"bcast": 16384, "allgather": 4096, "alltoall": 1024, "barrier": 4096}),
])
def test_sizes_that_scale_with_the_ranks(scaling, of_each):
    asked = options.settings(4, ",".join(of_each), **GIVEN | {"sizes": "4K", "scaling": scaling})
    assert {series.shape.collective: series.sizes[0] for series in asked.series} == of_each
    assert asked.line()["scaling"] == scaling and asked.line()["sizes"] == (4096,)


def test_sizes_that_shrink_stay_whole_elements_and_each_is_once():
    (series,) = options.settings(3, "allgather", **GIVEN | {"sizes": "0,8,24,30,100", "scaling": "strong"}).series
    assert series.sizes == (0, 8, 32) and series.left_out["8 B"] == "less than an element of each block"
    with pytest.raises(ValueError, match="--sizes has none that 3 ranks can share in alltoall"):
        options.settings(3, "alltoall", **GIVEN | {"sizes": "8,64", "scaling": "strong"})


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 49, 64, 1000])
@pytest.mark.parametrize("collective", ["bcast", "gather", "alltoall"])
def test_strong_and_weak_scaling_agree(collective, ranks):
    """A rank's block of so many bytes is what all ranks' blocks, so many times as much, come to."""
    for size in (8, 16, 24, 4096):
        weak = scaling.scaled(size * ranks, collective, ranks, "weak")
        assert weak == scaling.scaled(size * ranks * ranks, collective, ranks, "strong")


NO_SIZES = ["", "8,,9", "x", "-8", "1.5K", "8:4", "0:8", "8:64:1", "8:64:x", "1:2:3:4", "8T", ":"]


@pytest.mark.parametrize("text", NO_SIZES)
def test_sizes_that_are_none(text):
    with pytest.raises(ValueError, match=r"write|must"):
        sizes.parse_sizes(text)


def ask(p: int, collective: str, **settings) -> options.Asked:
    """Return the request for one collective."""
    (asked,) = options.settings(p, collective, **GIVEN | settings).series
    return asked


def test_settings():
    asked = ask(4, "allreduce")
    assert asked.algorithms[:2] == ("native", "auto")
    assert set(asked.algorithms) > {"ring", "native"}
    assert options.settings(4, "allreduce", **GIVEN).sizes == (8, 32, 128, 512, 1024)
    ours = ask(4, "allreduce", algorithms="ring,native,reduce_bcast(reduce=chain,bcast=chain)")
    assert ours.algorithms == ("native", "ring", "reduce_bcast(reduce=chain,bcast=chain)")


def test_all_are_those_that_suit_the_ranks():
    on_four, on_three = (ask(p, "allgatherv") for p in (4, 3))
    assert set(on_four.algorithms) - set(on_three.algorithms) == {"neighbor_exchange"}
    assert on_four.left_out == {} and options.settings(4, "allgatherv", **GIVEN).notes == []
    why = "neighbor_exchange left out: needs an even number of ranks"
    assert options.settings(3, "allgatherv", **GIVEN).notes == [why]
    both = options.settings(3, "allgather,scan,allgatherv", **GIVEN).notes
    assert both == [f"allgather float64: {why}", f"allgatherv float64 even counts: {why}"]
    named = ask(3, "allgatherv", algorithms="native,ring")
    assert (named.algorithms, named.left_out) == (("native", "ring"), {})


def test_lists_give_all_combinations():
    asked = options.settings(4, "bcast,allreduce", **GIVEN | {"dtype": "float32,int64", "op": "sum,max"})
    titles = [series.shape.title for series in asked.series]
    assert titles == ["bcast float32 root 0", "bcast int64 root 0", "allreduce float32 sum", "allreduce float32 max",
                      "allreduce int64 sum", "allreduce int64 max"]
    everything = options.settings(4, "all", **GIVEN)
    assert [series.shape.collective for series in everything.series] == [
        name for name in mpicoll.list_algorithms() if not is_of_neighbours(name)
    ]
    shares = [everything.budget(series).seconds for series in everything.series]
    assert sum(shares) == pytest.approx(GIVEN["seconds"]) and min(shares) > 0


def test_each_collective_takes_the_algorithms_that_it_has():
    asked = options.settings(4, "bcast,allreduce,scan", **GIVEN | {"algorithms": "native,ring,chain,linear"})
    assert [series.algorithms for series in asked.series] == [
        ("native", "chain", "linear"), ("native", "ring"), ("native", "linear")]


def test_chunks_are_noted_and_rates_and_precision_are_numbers():
    rates = {"chunk_bytes": "256K", "window": 8, "rate": "50Mbit", "precision": 2.5}
    asked = options.settings(4, "scan", **GIVEN | rates)
    assert (asked.chunk_bytes, asked.window, asked.rate, asked.precision) == (256 << 10, 8, 50e6, 0.025)
    assert asked.notes == ["chunks of 256 KiB, 8 chunks in flight, wherever mpicoll runs"]


def test_forms_and_roots():
    shape = ask(4, "bcast", root="rotating").shape
    assert (shape.root, shape.roots(4), shape.turn(5, 4).root) == ("rotating", [0, 1, 2, 3], 1)
    for form in ("nonblocking", "persistent"):
        assert "chain" in ask(4, "bcast", form=form).algorithms


WRONG_WORDS = [
    ({"collective": "allreduc"}, "did you mean 'allreduce'"),
    ({"sizes": "8:x"}, "'x' is not a size"),
    ({"algorithms": "rign"}, "did you mean 'ring'"),
    ({"algorithms": "ring(k=1)"}, "has no parameter k"),
    ({"algorithms": ","}, "--algorithms is ','; it must name something"),
    ({"collective": "bcast,scan", "algorithms": "rign"}, "no algorithm"),
    ({"collective": "bcast,scan", "algorithms": "chain"}, "names none that scan has"),
    ({"collective": "bcast,"  "scam"}, "did you mean 'scan'"),
    ({"collective": ","}, "COLLECTIVE is ','"),
    ({"dtype": ""}, "--dtype is ''; it must name something"),
    ({"engines": "fast"}, "auto, mpi4py, compiled"),
    ({"peers": "nccl"}, "it takes gloo or none"),
    ({"peers": "gloo,none"}, "it takes gloo or none"),
    ({"dtype": "float99"}, "no dtype is called 'float99'"),
    ({"op": "avg"}, "no operator is called 'avg'"),
    ({"op": "band"}, "does not have the operator band for floating types"),
    ({"root": "4", "collective": "bcast"}, "must be in 0..3, or 'rotating'"),
    ({"root": "1"}, "allreduce has no root"),
    ({"collective": "bcast", "in_place": True}, "no in-place form"),
    ({"collective": "bcast", "fresh": True, "form": "persistent"}, "has its arrays for good"),
    ({"seconds": 0.0}, "--seconds is 0.0"),
    ({"iterations": 0}, "--iterations is 0"),
    ({"root": "round", "collective": "bcast"}, "root is round; with 4 ranks it must be in 0..3, or 'rotating'"),
    ({"root": "-1", "collective": "bcast"}, "root is -1"),
    ({"form": "lazy"}, "--form is 'lazy'; it must be one of blocking, nonblocking, persistent"),
    ({"sync": "clock"}, "--sync is 'clock'; it must be barrier or window"),
    ({"scaling": "big"}, "--scaling is 'big'; it must be osu or strong or weak"),
    ({"rate": "fast"}, "--rate, or MPICOLL_LINK_RATE: 'fast' is not a rate"),
    ({"rate": "12GB/s"}, "'12GB/s' is not a rate in bits"),
    ({"rate": "0Mbit"}, "'0Mbit' is not a rate"),
    ({"precision": -1.0}, "--precision is -1.0"),
    ({"warmup": -1}, "--warmup is -1"),
    ({"counts": "odd", "collective": "gatherv"}, "--counts is 'odd'; it must be one of even, uneven, spike, skewed"),
    ({"counts": "uneven"}, "allreduce has no counts for every rank; scatterv, gatherv"),
    ({"chunk_bytes": "big"}, "'big' is not a size"),
    ({"chunk_bytes": "0"}, "--chunk-bytes is 0"),
    ({"window": 0}, "--window is 0"),
    ({"memory": "much"}, "'much' is not a size"),
]


@pytest.mark.parametrize(("algorithms", "dtype"), [
    ("native,auto,ring", "float64"), ("auto,quantized(codec=int4)", "float32"), ("all", "float64"),
])
def test_codes_are_made_of_float32_where_no_dtype_is_named(algorithms, dtype):
    asked = options.settings(4, "allreduce", **{**GIVEN, "algorithms": algorithms, "dtype": None})
    assert [series.shape.dtype for series in asked.series] == [dtype]


@pytest.mark.parametrize(("change", "message"), WRONG_WORDS, ids=[str(change) for change, _ in WRONG_WORDS])
def test_settings_that_are_wrong(change, message):
    words = {"collective": "allreduce", **GIVEN, **change}
    with pytest.raises((ValueError, MpicollError)) as caught:
        options.settings(4, words.pop("collective"), **words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("words", ["allreduce --sizes x", "allreduce --nope", "", "allreduce --root x"])
def test_bad_input_is_one_line_of_rank_0_and_status_2(monkeypatch, rank, words):
    world = lambda: SimpleNamespace(rank=rank, size=2)
    monkeypatch.setattr(spmd, "world", world)
    monkeypatch.setattr(cli, "world", world)
    done = CliRunner().invoke(cli.bench, words)
    assert done.exit_code == 2
    assert len(done.output.splitlines()) == (1 if rank == 0 else 0)
    assert rank or done.output.startswith("mpicoll bench: ")


def test_the_error_comes_before_the_traceback(monkeypatch, capsys):
    """A launcher may end the run before it has passed all of it on."""
    aborts: list[int] = []
    monkeypatch.setattr(spmd, "world", lambda: SimpleNamespace(rank=1, size=2, Abort=aborts.append))
    with spmd.rank0_speaks("bench"):
        raise LookupError("no such thing")
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert (first, second) == ("rank 1: LookupError: no such thing", "Traceback (most recent call last):")
    assert aborts == [spmd.WRONG]


@pytest.mark.parametrize("rank", [0, 1])
def test_help_is_of_rank_0(monkeypatch, rank):
    monkeypatch.setattr(spmd, "world", lambda: SimpleNamespace(rank=rank, size=2))
    done = CliRunner().invoke(cli.bench, ["--help"])
    assert done.exit_code == 0
    assert ("--algorithms" in done.output) == (rank == 0)


def some_results(valid: bool = True, note: str = "", rate: float | None = None):
    native = Timing(Contender("native", None, None), rounds=[[2e-6]] * 8)
    auto = Timing(Contender("auto", "auto", None), rounds=[[1e-6]] * 8, ran={"algorithm": "ring"})
    other = Timing(Contender("ring", "compiled", None), valid=valid, rounds=[[4e-6]] * 8)
    if note:
        other.note, other.rounds = note, []
    return results(Cases(Shape("allreduce"), 64 << 10, 0, 2), [native, auto, other], Place([0, 1], rate))


def test_tables():
    """Of what is right, how near the limit (64 KiB must cross a link: 1 µs), what is wrong, and what did not run."""
    output = io.StringIO()
    console = Console(width=120, file=output, markup=False)
    cases = {}, {"rate": 8 * 65.536e9}, {"valid": False}, {"note": "only p = 2"}
    for table_results in (some_results(**case) for case in cases):
        for part in (table(table_results, "allreduce"), summary(table_results), legend(table_results)):
            console.print(part)
    golden.compare(output.getvalue(), "bench-tables.txt")


@pytest.mark.parametrize(("valid", "right"), [(True, 3), (False, 2)])
def test_the_conclusion_counts_right_answers_and_verdicts(valid, right):
    assert conclusion(some_results(valid)).startswith(
        f"{right} of 3 timed calls gave the right answer; auto was faster than native in 1 of 1 and slower in 0, 2.00 "
        "times as fast in geometric mean"
    )


def test_environment_names_no_host_and_no_path(monkeypatch):
    mpi = SimpleNamespace(Get_processor_name=lambda: "secret", get_vendor=lambda: ("MPICH", (5, 0)),
                          Get_version=lambda: (5, 0))
    comm = SimpleNamespace(size=3, allgather=lambda name: [name, name, "other"])
    variables = {
        "UCX_TLS": "tcp,self", "I_MPI_PMI_LIBRARY": sys.prefix + "/lib.so", "HOME": "/root", "I_MPI_PIN_INFO": "0",
        "PRTE_MCA_prte_default_host": "secret:4", "MPICOLL_LAUNCH": "8f3a", "MPICOLL_CHECK": "1",
        "OMPI_MCA_btl_tcp_if_include": "10.77.0.0/16"}
    monkeypatch.setattr(os, "environ", variables)
    described = environment.describe(comm, mpi, environment.hosts_of(comm, mpi), 50e6)
    counts = described["hosts"], described["ranks"], described["ranks_per_host"]
    assert counts == (2, 3, [2, 1]) and described["mpi"] == "MPICH 5.0"
    assert described["mpi_settings"] == {"I_MPI_PMI_LIBRARY": "(a path)", "UCX_TLS": "tcp,self", "MPICOLL_CHECK": "1",
                                    "OMPI_MCA_btl_tcp_if_include": "10.77.0.0/16"}
    assert "secret" not in str(described) and sys.prefix not in str(described)
    assert environment.headline(described).startswith(
        "MPICH 5.0; 3 ranks on 2 hosts, block placement, 50 Mbit/s a host; Python 3.")


def test_caches_and_what_cannot_be_read(tmp_path):
    for number, (level, kind, size) in enumerate([(1, "Data", "48K"), (2, "Unified", "2048K"), (3, "Unified", "odd")]):
        (index := tmp_path / f"index{number}").mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (index / name).write_text(f"{text}\n")
    assert environment.caches(tmp_path) == {"L1d": 48 << 10, "L2": 2 << 20}


def test_commit_is_read_from_the_checkout(tmp_path):
    assert environment.commit(tmp_path) is None
    (tmp_path / "mpicoll").mkdir()
    git = tmp_path / ".git"
    git.mkdir()
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text("# pack-refs\nabc123 refs/heads/main\n")
    assert environment.commit(tmp_path) == "abc123"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "main").write_text("def456\n")
    assert environment.commit(tmp_path) == "def456"
    (git / "HEAD").write_text("0123ab\n")
    assert environment.commit(tmp_path) == "0123ab"


def process(proc, pid, name, parent, output):
    """Make an entry of /proc."""
    (proc / str(pid) / "fd").mkdir(parents=True)
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 0 0\n")
    (proc / str(pid) / "fd" / "1").symlink_to(output)


@pytest.mark.parametrize(("launcher", "output", "own", "width"), [
    ("mpiexec.hydra", "/dev/pts/7", False, 77),         # MPICH: a pipe that ends on a terminal
    ("mpiexec", "/dev/null", True, None),               # Open MPI: a terminal that ends in a file
    ("bash", "/dev/pts/7", False, None),                # no launcher: standard output itself decides
    ("bash", "/dev/null", True, 99),
])
def test_the_terminal_behind_a_launcher(monkeypatch, tmp_path, launcher, output, own, width):
    monkeypatch.setattr(os, "getppid", lambda: 200)      # its own may be 1, if the process that started it has ended
    process(tmp_path, 200, "a (proxy", 300, "pipe:[1]")
    process(tmp_path, 300, launcher, 1, output)
    monkeypatch.setattr(console_module, "columns_of", lambda device: 77 if device == "/dev/pts/7" else None)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: own, fileno=lambda: 1))
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((99, 50)))
    assert console_module.terminal_width(tmp_path) == width


def test_pipes_have_no_columns():
    assert console_module.columns_of("/dev/null") is None
    assert console_module.columns_of("pipe:[1]") is None


def test_a_narrow_terminal_folds_names_and_cuts_no_number():
    console = Console(width=80, file=io.StringIO(), markup=False)
    console.print(table(some_results(), "allreduce"))
    text = console.file.getvalue()
    assert "…" not in text and "2.00–2.00" in text and max(map(len, text.splitlines())) <= 80


def test_the_bar_shows_nothing_but_on_a_terminal():
    pipe = Console(file=io.StringIO())
    with progress.bar(pipe, 3, here=True) as bar:
        bar.begin("a")
        bar.end()
    assert pipe.file.getvalue() == ""
    terminal = Console(file=io.StringIO(), force_terminal=True)
    with progress.bar(terminal, 2, here=False) as bar:
        bar.begin("a")
    assert terminal.file.getvalue() == ""
    with progress.bar(terminal, 2, here=True) as bar:
        bar.begin("a")
        bar.end()
    assert " 50 %" in terminal.file.getvalue()
