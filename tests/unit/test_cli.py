"""The command line: what it prints, how it ends, and that errors are one line."""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

import mpicoll
from mpicoll import cli
from mpicoll.cli import proofs
from mpicoll.cli.verify import few
from mpicoll.doctor import info
from mpicoll.errors import spans
from mpicoll.schedules.collectives import PLAIN
from mpicoll.schedules.combinators import then
from mpicoll.schedules.grids import over
from mpicoll.schedules.ir import RecvReduce, Send
from mpicoll.schedules.parameters import Radix
from mpicoll.schedules.registry import _REGISTRY, Requirement, algorithm, find

FIELDS = {
    "name",
    "idea",
    "steps",
    "bytes_per_rank",
    "scratch",
    "cost",
    "excess",
    "source",
    "keeps_operand_order",
    "order_depends_on_parameters",
    "same_bits",
    "parameters",
    "requires",
    "direct",
    "strands",
    "proved_with",
}


@pytest.fixture(autouse=True)
def launched_by_hand(monkeypatch):
    for name in cli.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def run(*args, env=None):
    return CliRunner(env=env).invoke(cli.main, args, prog_name="mpicoll")


def good(*args):
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*args, status=2):
    """The one line of an error."""
    result = run(*args)
    assert result.exit_code == status, result.output
    assert not result.stdout
    line, end = result.stderr[:-1], result.stderr[-1:]
    assert end == "\n" and "\n" not in line and "Traceback" not in line
    return line


@pytest.fixture
def broken():
    """An allreduce that, from 4 ranks on, folds the wrong block at rank 1."""

    @algorithm("allreduce", blocks=lambda p: p)
    def broken_ring(p, rank):
        """A ring that goes wrong.

        Steps: 2 * (p - 1)
        Bytes per rank: 2 * n * (p - 1) / p
        Scratch: n / p * (p > 1)
        Cost: none
        Source: nobody
        """
        right = find("allreduce", "ring")(p, rank)
        if p < 4 or rank != 1:
            return right
        first = [Send(2, (0,)), RecvReduce(0, (2,), "left")]
        return then([tuple(first)], list(right[0][1:]))

    yield broken_ring
    del _REGISTRY["allreduce"]["broken_ring"]


@pytest.fixture
def raising():
    """An algorithm that raises on 3 ranks."""

    @algorithm("barrier")
    def raises(p, rank):
        """A barrier that raises.

        Steps: 0
        Bytes per rank: 0
        Scratch: 0
        Cost: none
        Source: nobody
        """
        if p == 3:
            raise ZeroDivisionError("three")
        return find("barrier", "dissemination")(p, rank)

    yield raises
    del _REGISTRY["barrier"]["raises"]


@pytest.fixture
def even():
    """A barrier for even p, with a parameter that two thirds of these suit."""

    @algorithm(
        "barrier",
        requires=Requirement("an even number of ranks that k divides", lambda p, k: p % 2 == 0 and p % k == 0),
        grid=[over(range(1, 7), k=(3,))],
    )
    def evenly(p, rank, *, k: Radix = 2):
        """A barrier that is choosy.

        Steps: lg(p)
        Bytes per rank: 0
        Scratch: 0
        Cost: none
        Source: nobody
        Excess: none, of course
        """
        return find("barrier", "dissemination")(p, rank)

    yield evenly
    del _REGISTRY["barrier"]["evenly"]


# -- list -------------------------------------------------------------------------------------------------


def test_list_json_has_every_algorithm_with_every_field():
    found = json.loads(good("list", "--json"))
    assert {c: tuple(e["name"] for e in entries) for c, entries in found.items()} == mpicoll.list_algorithms()
    for collective, entries in found.items():
        for entry in entries:
            assert set(entry) == FIELDS
            claims = find(collective, entry["name"]).claims
            assert (entry["steps"], entry["scratch"]) == (claims.steps, claims.scratch)
            assert all(entry[key] for key in ("idea", "steps", "bytes_per_rank", "scratch", "source"))


def test_list_json_tells_operand_order_and_parameters():
    found = {e["name"]: e for e in json.loads(good("list", "--json"))["allreduce"]}
    assert found["ring"]["keeps_operand_order"] is False
    assert found["recursive_doubling"]["keeps_operand_order"] is True
    assert found["recursive_doubling"]["order_depends_on_parameters"] is False
    assert found["ring"]["same_bits"] == {
        "on_all_ranks": True,
        "unless": None,
        "from_run_to_run": True,
        "for_any_chunk_size": True,
        "on_either_engine": True,
    }
    assert found["reduce_bcast"]["parameters"] == {
        name: {"default": "binomial", "range": f"an algorithm of {name}"} for name in ("reduce", "bcast")
    }
    assert found["reduce_bcast"]["order_depends_on_parameters"] is True
    assert found["ring_bidirectional"]["strands"] == 2
    assert json.loads(good("list", "--json"))["bcast"][0]["keeps_operand_order"] is None


def test_list_json_has_the_forms_with_counts_too():
    found = json.loads(good("list", "--json"))
    assert all(found[collective] == found[plain] for collective, plain in PLAIN.items())


def test_list_tells_what_an_algorithm_needs(even):
    found = {e["name"]: e for e in json.loads(good("list", "--json"))["barrier"]}["evenly"]
    assert found["requires"] == "an even number of ranks that k divides"
    assert found["parameters"] == {"k": {"default": 2, "range": "a whole number of at least 2"}}
    assert (found["excess"], found["proved_with"]) == ("none, of course", ["k = 3 for p = 1-6"])
    output = good("list")
    assert "needs an even number of ranks that k divides" in output
    assert "parameter k=2: a whole number of at least 2" in output
    assert "above its source: none, of course" in output and "proved with k = 3 for p = 1-6" in output


def test_list_shows_every_algorithm_to_people():
    output = good("list")
    for collective, names in mpicoll.list_algorithms().items():
        assert f"\n{collective} " in f"\n{output}"
        assert all(f"\n {name} " in output for name in names)
    assert "steps 2 * (p - 1)" in output and "keeps operand order" in output and "reduce=binomial" in output
    assert "\nscatterv is served by the algorithms of scatter\n" in output
    assert "keeps operand order, depending on parameters: kept by default" in output
    text = " ".join(output.split())
    assert text.count("same bits on all ranks, from run to run") == 29  # reduce, reduce_scatter and allreduce
    assert text.count("same bits from run to run") == 4  # scan and exscan
    assert "2 strands side by side" in output and "direct: ranks handle only blocks" in output


def test_list_shows_what_was_just_registered(broken):
    assert "broken_ring" in good("list")


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
    said = "allreduce ring, p = 4: 6 steps, 24 messages, at most 1.5 n bytes per rank"
    assert good("show", "allreduce", "ring", "-p", "4", "--svg", str(path)) == f"{path}: {said}\n"
    assert said in path.read_text(encoding="utf-8")
    assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert good("show", "allreduce", "ring", "-p", "4", "--svg", "-") == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("show", "allreduce", "rng"), "mpicoll show: no allreduce algorithm is called 'rng'; did you mean 'ring'?"),
        (("show", "alreduce", "ring"), "mpicoll show: no collective is called 'alreduce'; did you mean 'allreduce'"),
        (("show", "allreduce", "ring(chunk=3)"), "mpicoll show: allreduce ring has no parameter chunk"),
        (("show", "allreduce", "ring(("), "mpicoll show: cannot read 'ring(('"),
        (("show", "allreduce", "reduce_bcast(reduce=chian)"), "'chian'; did you mean 'chain'?"),
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
    ],
)
def test_what_is_asked_wrongly_is_one_line(args, said):
    assert said in refused(*args)


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
    """The words of each line."""
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


def test_verify_takes_a_collective_and_an_algorithm():
    output = good("verify", "reduce", "--max-ranks", "2", "--jobs", "1")
    assert "chain" in output and "allreduce" not in output
    output = good("verify", "allreduce", "ring", "--max-ranks", "3", "--jobs", "1")
    assert "all hold: 1 algorithm, 3 schedules" in output


def test_verify_takes_the_forms_with_counts():
    assert ["gather", "linear", "1-2"] in [row[:3] for row in rows(good("verify", "gatherv", "--max-ranks", "2"))]
    assert ["gather", "linear", "1-2"] in [
        row[:3] for row in rows(good("verify", "gatherv", "linear", "--max-ranks", "2", "--jobs", "1"))
    ]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_verify_takes_parameters(jobs):
    spec = "reduce_bcast(reduce=chain,bcast=chain)"
    output = good("verify", "allreduce", spec, "--max-ranks", "4", "--jobs", jobs)
    assert ["allreduce", spec, "1-4", "4"] in [row[:4] for row in rows(output)]


def test_verify_says_which_p_will_not_do(even):
    output = good("verify", "barrier", "evenly", "--max-ranks", "8", "--jobs", "1")
    assert ["barrier", "evenly", "2,", "4,", "6,", "8", "5"] in [row[:7] for row in rows(output)]  # and k=3 on 6
    assert "barrier evenly is not for p = 1, 3, 5, 7: needs an even number of ranks that k divides\n" in output
    output = good("verify", "barrier", "evenly(k=3)", "--max-ranks", "8", "--jobs", "1")
    assert ["barrier", "evenly(k=3)", "6", "1"] in [row[:4] for row in rows(output)]
    assert "barrier evenly(k=3) is not for p = 1-5, 7-8: needs an even" in output


def test_verify_refuses_parameters_that_serve_no_p(even):
    line = refused("verify", "barrier", "evenly(k=1)", "--max-ranks", "4", "--jobs", "1")
    assert line == (
        "mpicoll verify: evenly(k=1) serves no number of ranks up to 4: k is 1; it must be a whole number of at least 2"
    )
    assert "has no parameter z; it has: k" in refused("verify", "barrier", "evenly(z=1)")


def test_verify_leaves_out_p_below_a_share():
    output = good("verify", "allreduce", "parameter_server(servers=3)", "--max-ranks", "4", "--jobs", "1")
    assert "is not for p = 1-2: servers is 3; it must be a whole number from 1 to p" in output


def test_numbers_of_ranks_are_few():
    assert few([]) == "" and few([4, 1, 2]) == "1-2, 4"
    assert few([1, 2, 4, 8, 16, 32, 64]) == "1-2, 4, 8, 16, 32, 64"
    assert few(range(2, 65, 2)) == "2, 4, 6, …, 64"


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


@pytest.mark.slow
def test_verify_fails_if_one_of_many_does(broken):
    result = run("verify", "allreduce", "--max-ranks", "4")
    assert result.exit_code == 1
    assert ["allreduce", "broken_ring", "1-3", "4"] in [row[:4] for row in rows(result.stdout)]
    assert ["allreduce", "ring", "1-4"] in [row[:3] for row in rows(result.stdout)]
    every = len(mpicoll.list_algorithms()["allreduce"])
    assert f"1 of {every} fail: {every} algorithms" in result.stdout


def test_verify_reports_an_algorithm_that_raises(raising):
    result = run("verify", "barrier", "--max-ranks", "4", "--jobs", "1")
    assert result.exit_code == 1
    assert "barrier raises on p=3: ZeroDivisionError: three" in result.stdout


def test_verify_starts_with_the_largest():
    every = list(proofs.run([("bcast", "chain"), ("allreduce", "ring")], 3, 1))
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
    assert done.stderr == "mpicoll show: no allreduce algorithm is called 'rng'; did you mean 'ring'?\n"


@pytest.mark.parametrize("name", ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"])
@pytest.mark.parametrize(
    "args", [("list",), ("show", "allreduce", "rng"), ("verify", "bcast", "--max-ranks", "2")], ids=lambda a: a[0]
)
def test_only_rank_0_speaks(name, args):
    assert run(*args, env={name: "1"}).output == ""
    assert run(*args, env={name: "1"}).exit_code == 0
    assert run(*args, env={name: "0"}).output != ""


def test_a_batch_scripts_task_number_does_not_hide_the_launchers_rank():
    assert run("list", env={"PMI_RANK": "0", "SLURM_PROCID": "3"}).output != ""


def test_a_benchmark_that_does_not_load_spoils_nothing_else(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpicoll.benchmarks.bench.cli", None)
    assert "bench" in good("--help")
    assert "allreduce" in good("list")
    assert "mpicoll.benchmarks.bench.cli does not load" in refused("bench", "allreduce", status=1)


def test_bench_is_the_benchmarks_own_command():
    output = good("bench", "--help")
    assert "Usage: mpicoll bench" in output and "--sizes" in output and "--algorithms" in output


def test_info_without_mpi_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert refused("info", status=1).startswith("mpicoll: MPI does not start: ")


def facts(*ranks):
    """What info gathers, from (host, CPUs, why the compiled engine does not work) of each rank."""
    mpi = {"library": "MPICH 5.0.2", "library_version": "MPICH Version: 5.0.2", "standard": "5.0", "path": None}
    return {
        "mpicoll": "0.1",
        "python": "3.11.0",
        "mpi": {**mpi, "mpi4py": "4.1.2", "thread_level": "MULTIPLE"},
        "ranks": [
            {"rank": i, "host": host, "cpus": cpus, "compiled_engine": why, "fast_path": why}
            for i, (host, cpus, why) in enumerate(ranks)
        ],
        "hosts": len({host for host, _, _ in ranks}),
        "numba": {"version": "0.60", "cache_directory": None, "cache_writable": False},
        "kernels": {"compiled": ["reduce.sum(float64*)", "reduce.sum(int32*)"], "loaded": [], "plain": ""},
    }


def test_info_puts_ranks_that_agree_on_one_line():
    lines = info.lines(facts(("a", [0, 1], None), ("a", [0, 1], None), ("b", [3], "no luck"))).splitlines()
    assert "ranks    3 on 2 hosts" in lines
    assert "         rank 0-1 on a: CPUs 0-1" in lines
    assert "         rank 2 on b: CPU 3" in lines
    assert "         compiled: passes its self-test on rank 0-1" in lines
    assert "         compiled: not used, no luck; on rank 2" in lines
    assert "         fast path: open on rank 0-1" in lines
    assert "         fast path: closed, no luck; on rank 2" in lines
    assert "library  unknown" in lines
    assert "kernels  2 compiled, 0 loaded from the cache" in lines
    assert "         compiled reduce.sum" in lines
    assert any("set NUMBA_CACHE_DIR" in line for line in lines)


def test_info_finds_the_library_that_is_loaded(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r--p 0 fe:00 1 /opt/x/lib/libmpifort.so.12\n7f02-7f03 r-xp 0 fe:00 2 /opt/x/lib/libmpi.so.12.0\n"
    )
    assert info.library_path(maps) == "/opt/x/lib/libmpi.so.12.0"
    assert info.library_path(tmp_path / "none") is None


def test_help_names_every_command():
    output = good("--help")
    assert all(f"\n  {name} " in output for name in ("list", "show", "verify", "info", "bench"))
    assert run().exit_code == 2


def test_version():
    assert mpicoll.__version__ in good("--version")
