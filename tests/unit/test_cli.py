"""The command line: what it prints, how it ends, and that errors are one line."""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from support import golden
from support.command import good, refused, run
from unit.every import barrier

import mpicoll
from mpicoll.cli import proofs
from mpicoll.doctor import info
from mpicoll.errors import spans
from mpicoll.schedules.collectives import PLAIN
from mpicoll.schedules.combinators import then
from mpicoll.schedules.grids import over
from mpicoll.schedules.ir import RecvReduce, Send
from mpicoll.schedules.parameters import Radix
from mpicoll.schedules.registry import Requirement, algorithm, find

FIELDS = {
    "name", "idea", "steps", "bytes_per_rank", "scratch", "cost", "excess", "source", "keeps_operand_order",
    "order_depends_on_parameters", "same_bits", "parameters", "requires", "direct", "strands", "proved_with",
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Use an empty cache of proofs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def broken(registry):
    """Register an allreduce that, from 4 ranks on, folds the wrong block at rank 1."""

    @algorithm("allreduce", blocks=lambda p: p)
    def broken_ring(p, rank):
        """A ring that goes wrong.

        Steps: 2 * (p - 1)
        Bytes per rank: 2 * n * (p - 1) / p
        Scratch: n / p * (p > 1)
        Cost: none
        Source: none
        """
        right = find("allreduce", "ring")(p, rank)
        if p < 4 or rank != 1:
            return right
        first = [Send(2, (0,)), RecvReduce(0, (2,), "left")]
        return then([tuple(first)], list(right[0][1:]))


@pytest.fixture
def raising(registry):
    """Register a barrier that raises on 3 ranks."""

    def raises(p, rank):
        if p == 3:
            raise ZeroDivisionError("three")
        return find("barrier", "dissemination")(p, rank)

    barrier("raises", raises)


@pytest.fixture
def even(registry):
    """Register a barrier for even p, with a parameter that two thirds of these suit."""

    def evenly(p, rank, *, k: Radix = 2):
        return find("barrier", "dissemination")(p, rank)

    needs = Requirement("an even number of ranks that k divides", lambda p, k: p % 2 == 0 and p % k == 0)
    barrier("evenly", evenly, "none, of course", requires=needs, grid=[over(range(1, 7), k=(3,))])


# -- list -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def listed():
    return json.loads(good("list", "--json"))


def test_list_json_has_every_algorithm_with_every_field(listed):
    assert {c: tuple(e["name"] for e in entries) for c, entries in listed.items()} == mpicoll.list_algorithms()
    assert all(listed[collective] == listed[plain] for collective, plain in PLAIN.items())  # those with counts too
    for collective, entries in listed.items():
        for entry in entries:
            assert set(entry) == FIELDS
            claims = find(collective, entry["name"]).claims
            assert (entry["steps"], entry["scratch"]) == (claims.steps, claims.scratch)
            assert all(entry[key] for key in ("idea", "steps", "bytes_per_rank", "scratch", "source"))


def test_list_json_tells_operand_order_and_parameters(listed):
    by_name = {e["name"]: e for e in listed["allreduce"]}
    names = ("ring", "recursive_doubling", "reduce_bcast")
    assert [by_name[name]["keeps_operand_order"] for name in names] == [False, True, True]
    assert [by_name[name]["order_depends_on_parameters"] for name in names] == [False, False, True]
    always = ("on_all_ranks", "from_run_to_run", "for_any_chunk_size", "on_either_engine")
    assert by_name["ring"]["same_bits"] == {"unless": None, **dict.fromkeys(always, True)}
    assert by_name["reduce_bcast"]["parameters"] == {
        name: {"default": "binomial", "range": f"an algorithm of {name}"} for name in ("reduce", "bcast")
    }
    assert by_name["ring_bidirectional"]["strands"] == 2
    assert listed["bcast"][0]["keeps_operand_order"] is None


def test_list_tells_what_an_algorithm_needs_and_that_one_fails(even, broken):
    facts = {e["name"]: e for e in json.loads(good("list", "--json"))["barrier"]}["evenly"]
    assert facts["requires"] == "an even number of ranks that k divides"
    assert facts["parameters"] == {"k": {"default": 2, "range": "a whole number of at least 2"}}
    assert (facts["excess"], facts["proved_with"]) == ("none, of course", ["k = 3 for p = 1-6"])
    output = good("list")
    assert "needs an even number of ranks that k divides" in output
    assert "parameter k=2: a whole number of at least 2" in output
    assert "above its source: none, of course" in output and "proved with k = 3 for p = 1-6" in output
    assert "\n broken_ring " in output and "not known, since it fails at p = " in " ".join(output.split())


@pytest.mark.once
def test_list_shows_every_algorithm_to_people():
    output = good("list")
    for collective, names in mpicoll.list_algorithms().items():
        assert f"\n{collective} " in f"\n{output}"
        assert all(f"\n {name} " in output for name in names)
    assert "steps 2 * (p - 1)" in output and "keeps operand order" in output and "reduce=binomial" in output
    assert "\nscatterv is served by the algorithms of scatter\n" in output
    assert "keeps operand order, depending on parameters: kept by default" in output
    text = " ".join(output.split())
    names = mpicoll.list_algorithms()
    everywhere, prefixes = ("reduce", "reduce_scatter", "allreduce"), ("scan", "exscan")
    assert text.count("same bits on all ranks, from run to run") == sum(len(names[name]) for name in everywhere)
    assert text.count("same bits from run to run") == sum(len(names[name]) for name in prefixes)
    assert "2 strands side by side" in output and "direct: ranks handle only blocks" in output


@pytest.mark.parametrize("words", [
    ("allreduce",), ("Allreduce",), ("MPI_Allreduce",), ("iallreduce",), ("all-reduce",), ("Allreduce_init",),
])  # fmt: skip
def test_list_takes_a_collective_by_any_name(words, listed):
    (ring,) = (entry for entry in listed["allreduce"] if entry["name"] == "ring")
    assert json.loads(good("list", *words, "ring", "--json")) == {"allreduce": [ring]}


@pytest.mark.once
def test_list_takes_an_algorithm(listed):
    output = good("list", "MPI_Reduce")
    assert "\n rabenseifner " in output and "bcast\n" not in output
    assert [e["name"] for e in json.loads(good("list", "gatherv", "binomial", "--json"))["gatherv"]] == ["binomial"]
    output = good("list", "allreduce", "ring")
    assert "\n ring " in output and "\n naive " not in output


def test_show_and_verify_take_names_as_mpi_has_them():
    assert good("show", "Allreduce", "ring") == good("show", "allreduce", "ring")
    assert " bcast " in good("verify", "broadcast", "chain", "--max-ranks", "2", "--jobs", "1")


# -- show -------------------------------------------------------------------------------------------------


def test_show_is_the_picture():
    output = good("show", "allreduce", "ring", "-p", "5", "--plain")
    assert output == mpicoll.draw(mpicoll.schedule("allreduce", "ring", 5))
    assert good("show", "allreduce", "ring") == output  # 5 ranks are the default, and no colour in a pipe


def test_show_takes_parameters_and_a_root():
    assert "reduce=chain" in good("show", "allreduce", "reduce_bcast(reduce=chain)", "-p", "4")
    assert "root 3" in good("show", "bcast", "binomial", "--root", "3")


def test_show_writes_svg(tmp_path):
    path = tmp_path / "ring.svg"
    headline = "allreduce ring, p = 4: 6 steps, 24 messages, at most 1.5 n bytes per rank"
    assert good("show", "allreduce", "ring", "-p", "4", "--svg", str(path)) == f"{path}: {headline}\n"
    assert headline in path.read_text(encoding="utf-8")
    assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert good("show", "allreduce", "ring", "-p", "4", "--svg", "-") == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("show", "allreduce", "tre"), "mpicoll show: no allreduce algorithm is called 'tre'; did you mean 'tree' or"),
        (("show", "alreduce", "ring"), "mpicoll show: no collective is called 'alreduce'; did you mean 'allreduce'"),
        (("show", "allreduce", "ring(chunk=3)"), "mpicoll show: allreduce ring has no parameter chunk"),
        (("show", "allreduce", "ring(("), "mpicoll show: cannot read 'ring(('"),
        (("show", "allreduce", "reduce_bcast(reduce=chian)"), "'chian'; did you mean 'chain' or 'circulant'?"),
        (("show", "allreduce", "ring", "-p", "0"), "mpicoll show: p is 0"),
        (("show", "allreduce", "ring", "-p", "x"), "mpicoll show: Invalid value for '-p'"),
        (("show", "allreduce", "ring", "--root", "1"), "mpicoll show: allreduce has no root"),
        (("show", "bcast", "chain", "--root", "5"), "mpicoll show: root is 5; it must be in 0..4"),
        (("show", "allreduce"), "mpicoll show: Missing argument 'ALGORITHM'"),
        (("verify", "allreduce", "rng"), "mpicoll verify: no allreduce algorithm is called 'rng'"),
        (("verify", "reduce_scater"), "did you mean 'reduce_scatter'"),
        (("verify", "--max-ranks", "0"), "mpicoll verify: Invalid value for '--max-ranks'"),
        (("verify", "--jobs", "0"), "mpicoll verify: Invalid value for '--jobs'"),
        (("list", "--jsn"), "--json"),
        (("lst",), "mpicoll: No such command 'lst'"),
        (("list", "ring"), "the collective comes first: mpicoll list allgather ring"),
        (("list", "alreduce"), "did you mean 'allreduce'"),
        (("list", "allreduce", "tre"), "no allreduce algorithm is called 'tre'; did you mean 'tree' or 'torus'?"),
        (("show", "ring", "allreduce"), "the collective comes first: mpicoll show allreduce ring"),
        (("verify", "ring", "Allreduce"), "the collective comes first: mpicoll verify allreduce ring"),
        (("verify", "rabenseifner"), "'rabenseifner' is an algorithm of reduce, allreduce"),
        (("show", "Allreduce"), "Missing argument 'ALGORITHM'; allreduce has naive, ring, "),
        (("show", "alreduce"), "no collective is called 'alreduce'; did you mean 'allreduce'"),
        (("show", "allreduce", "ring", "8"), "unexpected extra argument (8); the number of ranks is -p N"),
        (("verify", "allreduce", "ring", "8"), "(8); the largest number of ranks is --max-ranks N"),
        (("show", "allreduce", "ring", "-n", "8"), "No such option '-n'; the number of ranks is -p N"),
        (("verify", "-p", "8"), "No such option '-p'; the largest number of ranks is --max-ranks N"),
        (("info", "allreduce"), "(allreduce); mpicoll list says what serves a collective"),
        (("choose", "alreduce", "-p", "4", "--network", "leonardo"),
         "no collective is called 'alreduce'; did you mean 'allreduce'"),
        (("simulate", "alreduce", "-p", "4"), "no collective is called 'alreduce'; did you mean 'allreduce'"),
        (("info", "-n", "2"), "No such option '-n'; mpiexec starts the ranks: mpiexec -n N mpicoll"),
    ],
)
def test_usage_errors_are_one_line(args, message):
    assert message in refused(*args)


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    path = str(tmp_path / "none" / "ring.svg")
    assert f"cannot write {path}: No such file" in refused("show", "allreduce", "ring", "--svg", path, status=1)


def test_a_missing_drawsvg_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "drawsvg", None)
    line = refused("show", "allreduce", "ring", "--svg", str(tmp_path / "x.svg"), status=1)
    assert "pip install mpicoll[svg]" in line
    assert not list(tmp_path.iterdir())


# -- verify -----------------------------------------------------------------------------------------------


def rows(output):
    """Return the words of each line."""
    return [line.split() for line in output.splitlines()]


@pytest.mark.slow
def test_verify_proves_all_that_is_registered():
    output = good("verify", "--max-ranks", "3", "--jobs", "2")
    plain = {collective: names for collective, names in mpicoll.list_algorithms().items() if collective not in PLAIN}
    for collective, names in plain.items():
        for name in names:
            served = spans(p for p in (1, 2, 3) if find(collective, name).serves(p))
            assert any(line.startswith(f"  {collective} ") and f" {name} " in line and f" {served} " in line
                       for line in output.splitlines()), name
    assert f"all hold: {sum(map(len, plain.values()))} algorithms" in output


SPEC = "reduce_bcast(reduce=chain,bcast=chain)"


@pytest.mark.parametrize(("words", "row", "message"), [
    (("reduce", "--max-ranks", "2", "--jobs", "1"), "reduce chain 1-2", "all hold: "),
    (("allreduce", "ring", "--max-ranks", "3", "--jobs", "1"), "allreduce ring 1-3", "all hold: 1 algorithm, 3"),
    (("gatherv", "--max-ranks", "2", "--jobs", "1"), "gather linear 1-2", "all hold: "),  # forms with counts
    (("gatherv", "linear", "--max-ranks", "2", "--jobs", "1"), "gather linear 1-2", "all hold: 1 algorithm"),
    (("allreduce", SPEC, "--max-ranks", "4", "--jobs", "1"), f"allreduce {SPEC} 1-4", "1 algorithm, 4 schedules"),
    (("allreduce", SPEC, "--max-ranks", "4"), f"allreduce {SPEC} 1-4", "1 algorithm, 4 schedules"),
])
def test_verify_takes_a_collective_an_algorithm_and_parameters(words, row, message):
    output = good("verify", *words)
    assert row.split() in [cells[:3] for cells in rows(output)] and message in output
    assert words[0] == "allreduce" or "allreduce" not in output


def test_verify_large_takes_logarithmic_algorithms():
    output = good("verify", "allgather", "--max-ranks", "2", "--large", "40", "--jobs", "1")
    proved = {row[1]: " ".join(row[2:4]) for row in rows(output) if row[:1] == ["allgather"]}
    assert proved["bruck"] == proved["circulant"] == "1-2, 40"
    assert "40" not in proved["ring"] + proved["linear"] + proved["sparbit"]  # 39 steps, or 39 messages in fewer


def test_verify_says_which_p_will_not_do(even):
    output = good("verify", "barrier", "evenly", "--max-ranks", "8", "--jobs", "1")
    assert ["barrier", "evenly", "2,", "4,", "6,", "8", "5"] in [row[:7] for row in rows(output)]  # and k=3 on 6
    assert "barrier evenly is not for p = 1, 3, 5, 7: needs an even number of ranks that k divides\n" in output
    output = good("verify", "barrier", "evenly(k=3)", "--max-ranks", "8", "--jobs", "1")
    assert ["barrier", "evenly(k=3)", "6", "1"] in [row[:4] for row in rows(output)]
    assert "barrier evenly(k=3) is not for p = 1-5, 7-8: needs an even" in output


def test_verify_refuses_parameters_that_serve_no_p(even):
    line = refused("verify", "barrier", "evenly(k=1)", "--max-ranks", "4", "--jobs", "1")
    assert "evenly(k=1) serves no number of ranks up to 4: k is 1; it must be a whole number of at least 2" in line
    assert "has no parameter z; it has: k" in refused("verify", "barrier", "evenly(z=1)")


def test_verify_leaves_out_p_below_a_share():
    output = good("verify", "allreduce", "parameter_server(servers=3)", "--max-ranks", "4", "--jobs", "1")
    assert "is not for p = 1-2: servers is 3; it must be a whole number from 1 to p" in output


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_verify_fails_with_coordinates(broken, jobs):
    result = run("verify", "allreduce", "broken_ring", "--max-ranks", "8", "--jobs", jobs)
    assert result.exit_code == 1
    assert ["allreduce", "broken_ring", "1-3", "4-8"] in [row[:4] for row in rows(result.stdout)]
    where = "rank 1: allreduce broken_ring on p=4, strand 0, step 0, op RecvReduce(peer=0, blocks=(2,)"
    assert any(line.startswith(where) for line in result.stdout.splitlines())
    assert "expected blocks (2,), got rank 0 sent blocks (3,)" in result.stdout
    assert "… and on p = 7-8" in result.stdout
    assert "1 of 1 fail: 1 algorithm" in result.stdout


def test_verify_fails_if_one_of_many_raises(raising):
    result = run("verify", "barrier", "--max-ranks", "4", "--jobs", "1")
    assert result.exit_code == 1
    assert "barrier raises on p=3: ZeroDivisionError: three" in result.stdout
    table = [row[:5] for row in rows(result.stdout)]
    assert ["barrier", "raises", "1-2,", "4", "3"] in table
    assert ["barrier", "dissemination", "1-4"] in [row[:3] for row in table]
    every = len(mpicoll.list_algorithms()["barrier"])
    assert f"1 of {every} fail: {every} algorithms" in result.stdout


def test_verify_starts_with_the_largest():
    every = list(proofs.run(proofs.tasks([("bcast", "chain"), ("allreduce", "ring")], 3), 1))
    assert [proof.p for proof in every] == [3, 3, 2, 2, 1, 1]


# -- info, bench, and the whole ---------------------------------------------------------------------------


def test_commands_that_look_at_schedules_start_no_mpi():
    code = (
        "import sys; from mpicoll.cli import main\n"
        "for args in (['list'], ['show', 'bcast', 'chain'], ['verify', 'bcast', '--max-ranks', '2']):\n"
        "    main(args, standalone_mode=False)\n"
        "print('MPI' if 'mpi4py.MPI' in sys.modules else 'no MPI')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.stdout.splitlines()[-1:] == ["no MPI"], done.stderr


def test_python_m_is_the_same_and_ends_with_the_same_status():
    done = subprocess.run(
        [sys.executable, "-m", "mpicoll", "show", "allreduce", "rng"], capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, done.stdout) == (2, "")
    near = "'ring' or 'k_ring' or 'swing'"
    assert done.stderr == f"mpicoll show: no allreduce algorithm is called 'rng'; did you mean {near}?\n"


@pytest.mark.parametrize(("name", "args"), [
    ("PMI_RANK", ("list",)), ("PMIX_RANK", ("show", "allreduce", "rng")),
    ("OMPI_COMM_WORLD_RANK", ("verify", "barrier", "linear", "--max-ranks", "2", "--jobs", "1")),
    ("SLURM_PROCID", ("show", "bcast", "chain")),
])  # fmt: skip
def test_only_rank_0_speaks(name, args):
    silent = run(*args, env={name: "1"})
    assert (silent.output, silent.exit_code) == ("", 0)
    assert run("show", "bcast", "chain", env={name: "0"}).output != ""
    # A batch script's number of the task does not hide the launcher's.
    assert run("show", "bcast", "chain", env={"SLURM_PROCID": "3", "PMI_RANK": "0"}).output != ""


def test_a_benchmark_that_does_not_load_spoils_nothing_else(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpicoll.benchmarks.bench.cli", None)
    assert "bench" in good("--help")
    assert "allreduce" in good("show", "allreduce", "ring")
    assert "mpicoll.benchmarks.bench.cli does not load" in refused("bench", "allreduce", status=1)


def test_info_without_mpi_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert refused("info", status=1).startswith("mpicoll: MPI does not start: ")


def facts(*ranks):
    """Return what info gathers, from (host, CPUs, why the compiled engine does not work) of each rank."""
    mpi = {"library": "MPICH 5.0.2", "library_version": "MPICH Version: 5.0.2", "standard": "5.0", "path": None}
    return {
        "mpicoll": "0.1",
        "python": "3.11.0",
        "mpi": {**mpi, "mpi4py": "4.1.2", "thread_level": "MULTIPLE", "survives": "it is off"},
        "ranks": [
            {"rank": i, "host": host, "cpus": cpus, "compiled_engine": why, "fast_path": why}
            for i, (host, cpus, why) in enumerate(ranks)
        ],
        "hosts": len({host for host, _, _ in ranks}),
        "numba": {"version": "0.60", "cache_directory": None, "cache_writable": False},
        "kernels": {"compiled": ["reduce.sum(float64*)", "reduce.sum(int32*)"], "loaded": [], "plain": ""},
        "auto": ["a model of the network as measured", "inside a node: 5 µs"],
    }


def test_info_puts_ranks_that_agree_on_one_line():
    ranks = facts(("a", [0, 1], None), ("a", [0, 1], None), ("b", [3], "no luck"))
    golden.compare(info.lines(ranks), "info.txt")


def test_info_finds_the_library_that_is_loaded(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r--p 0 fe:00 1 /opt/x/lib/libmpifort.so.12\n7f02-7f03 r-xp 0 fe:00 2 /opt/x/lib/libmpi.so.12.0\n"
    )
    assert info.library_path(maps) == "/opt/x/lib/libmpi.so.12.0"
    assert info.library_path(tmp_path / "none") is None


def test_help_and_version():
    output = good("--help")
    assert all(f"\n  {name} " in output for name in ("list", "show", "verify", "info", "bench"))
    assert "Usage: mpicoll bench" in good("bench", "--help")
    assert run().exit_code == 2 and mpicoll.__version__ in good("--version")
