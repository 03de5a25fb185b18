"""The standing comparison: what is planned, in which order it is launched, what is kept, and the table."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from rich.console import Console
from support import golden

from mpicoll.benchmarks.cluster import cli, conduct, installed, plan, summary
from mpicoll.benchmarks.cluster.conduct import Conductor, Found
from mpicoll.benchmarks.cluster.launches import OnLayout, bench, words
from mpicoll.benchmarks.cluster.plan import STANDARD, Layout, Plan, launches, parse_layouts, size_of
from mpicoll.benchmarks.hosts import Done, LaunchError
from mpicoll.benchmarks.peers import Call, Gloo, Imb, Measured, Missing
from mpicoll.benchmarks.peers.peer import PeerFailed
from mpicoll.benchmarks.results.records import read
from mpicoll.errors import MpicollError

SIZES = (1 << 16, 1 << 20, 1 << 22)


# -- the plan


@pytest.mark.parametrize("text", ["", "1x1", "8", "8x0", "4x2-other", "ax2", "8x1;4x2"])
def test_layouts_that_make_no_sense(text):
    with pytest.raises(ValueError, match="HOSTSxRANKS"):
        parse_layouts(text)


def test_more_hosts_than_can_be_made():
    assert parse_layouts("500x1")
    with pytest.raises(ValueError, match="'501x1' has 501 hosts; there can be 500"):
        parse_layouts("8x1,501x1")


@pytest.mark.parametrize("collective, whole", [
    ("allreduce", lambda size, p: size), ("bcast", lambda size, p: size), ("reduce_scatter", lambda size, p: size),
    ("allgather", lambda size, p: size * p), ("alltoall", lambda size, p: size * p),
])
@pytest.mark.parametrize("p", [2, 6, 8])
def test_a_size_is_that_of_the_whole_vector_but_for_less_than_an_element_a_rank(collective, whole, p):
    for n in SIZES:
        size = size_of(collective, n, p)
        assert size % 8 == 0 and n - 8 * p < whole(size, p) <= n


def test_peers_run_before_and_after_ours_in_every_cycle():
    peer, ours = [("peer", "gloo"), ("peer", "IMB")], [("bench", "bcast"), ("bench", "reduce")]
    assert launches(["bcast", "reduce"], ["gloo", "IMB"], 2) == [*peer, *ours, *peer[::-1]] * 2
    assert launches(["bcast", "reduce"], [], 1) == ours


def test_two_launches_of_a_peer_have_rounds_enough_for_an_interval_and_small_sizes_more():
    rounds = Plan(STANDARD, SIZES, "50Mbit").rounds(8)
    counts = [rounds[Call("bcast", n)] for n in SIZES]
    assert counts == [24, 6, 3]
    longer = Plan(STANDARD, SIZES, "50Mbit", seconds=60).rounds(8)
    assert longer[Call("bcast", 1 << 22)] == 29  # 30 s of calls of 1.0066 s


@pytest.mark.parametrize("named", [("auto",), tuple(f"knomial(k={k})" for k in range(2, 10))])
def test_the_largest_size_has_time_for_an_interval_of_everyone(named):
    asked = Plan(("bcast",), SIZES, "50Mbit", algorithms=named)
    rounds = asked.seconds_of("bcast", 16) / asked.expected("bcast", SIZES[-1]) / (len(named) + 1)
    assert rounds == pytest.approx(7)
    assert Plan(("bcast",), SIZES, "50Mbit", algorithms=named, seconds=2).seconds_of("bcast", 16) == 2


def test_the_standard_run_is_planned_for_minutes_not_hours():
    ranks = [layout.ranks for layout in parse_layouts("8x1,6x1,4x2,4x2-cyclic")]
    standard, peers = Plan(STANDARD, SIZES, "50Mbit"), [Gloo(Path("python"), "2"), Imb(Path("python"))]
    assert 10 < plan.minutes(standard, ranks, []) < 20
    assert plan.minutes(standard, ranks, []) < plan.minutes(standard, ranks, peers) < 40
    assert plan.minutes(Plan(STANDARD, SIZES, "100Mbit"), ranks, []) < plan.minutes(standard, ranks, [])


def test_the_algorithm_for_large_vectors_takes_part_where_auto_takes_another(monkeypatch):
    assert plan.algorithms_of("allreduce", 1 << 20, 8) == ["native", "auto"]
    assert plan.algorithms_of("allreduce", 1 << 15, 8) == ["native", "auto", "ring"]  # auto: rabenseifner
    assert plan.algorithms_of("reduce", 1 << 22, 8) == ["native", "auto"]  # rabenseifner would be for one host


def test_named_algorithms_must_be_known_somewhere():
    assert plan.check_algorithms(["auto", "knomial(k=4)"], STANDARD) == ("auto", "knomial(k=4)")
    with pytest.raises(MpicollError, match="'nonsense'"):
        plan.check_algorithms(["nonsense"], STANDARD)
    with pytest.raises(MpicollError, match="q"):
        plan.check_algorithms(["knomial(q=4)"], STANDARD)
    with pytest.raises(ValueError, match="'scan' here; there is allreduce"):
        plan.check_collectives(["bcast", "scan"])


def test_a_named_algorithm_is_left_out_where_it_does_not_suit_the_ranks():
    named = ("auto", "ring", "neighbor_exchange")
    assert plan.algorithms_of("allgather", 1 << 20, 3, named) == ["native", "auto", "ring"]
    assert plan.algorithms_of("allgather", 1 << 20, 4, named) == ["native", *named]
    asked = Plan(("allgather", "bcast"), SIZES, "50Mbit", algorithms=named)
    (why,) = asked.left_out(3)
    assert why.startswith("neighbor_exchange left out: allgather neighbor_exchange needs") and why.endswith("p is 3")
    assert asked.left_out(4) == []


# -- launches


def test_the_command_of_a_launch(tmp_path):
    asked = Plan(("alltoall",), (1 << 20, 1 << 22), "50Mbit", algorithms=("auto", "linear"), seconds=2)
    line = words(asked, "alltoall", 8, tmp_path / "f")
    options = dict(zip(line[3::2], line[4::2]))
    assert line[:3] == ["mpicoll", "bench", "alltoall"]
    assert options["--sizes"] == f"{1 << 17},{1 << 19}" and options["--seconds"] == "4.000"
    assert options["--algorithms"] == "native,auto,linear" and options["--rate"] == "50Mbit"


def test_half_a_line_is_left_out(tmp_path):
    file = tmp_path / "lines"
    file.write_text('{"kind": "run", "environment": {"ranks": 2}}\n{"kind": "result", "size": 8}\n{"kind": "res')
    contents = read(file)
    assert (contents.environment, contents.rows) == ({"ranks": 2}, [{"kind": "result", "size": 8}])


@pytest.mark.parametrize("status, valid, failure", [
    (0, True, ""), (1, False, ""), (1, True, "mpicoll bench bcast: status 1: words"),
    (9, True, "mpicoll bench bcast: status 9: words"), (None, True, "mpicoll bench bcast: time was up: words"),
    (2, None, "mpicoll bench bcast: status 2: words"),  # nothing was measured
])
def test_a_launch_that_ends_early_keeps_its_rows_and_is_a_failure(tmp_path, status, valid, failure):
    def launch(*_: Any, **__: Any) -> Done:
        if valid is not None:
            (tmp_path / "f").write_text(json.dumps(row("bcast", 8, "native", 1.0, valid=valid)) + "\n")
        return Done(status, "mpiexec\nwords\n", status is None)

    (tmp_path / "f").write_text('{"kind": "result"}\n')  # of the launch before
    net: Any = SimpleNamespace(launch=launch)
    results = bench(OnLayout(net, Layout(2, 1), Path("python"), 1.0), Plan(("bcast",), (8,), "50Mbit"), "bcast",
                  tmp_path / "f")
    assert (len(results.rows), results.failure) == (valid is not None, failure)


def test_files_are_utf_8_in_any_locale(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from mpicoll.benchmarks.cluster import conduct, launches, plan\n"
        "here = Path(sys.argv[1])\n"
        "found = conduct.Found('mpich', plan.Layout(2, 1), {}, {'cpu': chr(181)})\n"
        "assert launches.read(found.write(here)).environment == {'cpu': chr(181)}\n"
    )
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=os.environ | ascii_only,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "µ" in (tmp_path / "mpich-2x1.jsonl").read_text(encoding="utf-8")


# -- conducting


def row(collective: str, size: int, algorithm: str, median: float, **more: Any) -> dict[str, Any]:
    return {
        "kind": "result", "schema": 2, "collective": collective, "size": size, "algorithm": algorithm, "engine": None,
        "ran": {}, "paired": True, "valid": True, "note": "", "median_us": median, "interval_us": None, "rounds": 6,
        "late": 0, "algbw": None, "busbw": None, "limit_us": 1000.0, "of_limit": 1000 / median, "ratio": None,
        "ratio_interval": None, "verdict": None, "overlap": None, "samples_us": [median + i for i in range(6)], **more,
    }


class Net:
    """Hosts that run `mpicoll bench` in no time; `order` is what was launched."""

    order: ClassVar[list[str]] = []
    broken = ""

    def __init__(self, count: int, rate: float) -> None:
        self.count, self.rate = count, rate

    def __enter__(self) -> Net:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def launch(self, arguments: list[str], **_: Any) -> Done:
        collective, options = arguments[2], dict(zip(arguments[3::2], arguments[4::2]))
        self.order.append(collective)
        if collective == self.broken:
            return Done(1, "it broke", False)
        lines: list[dict[str, Any]] = [{"kind": "run", "environment": {"mpi": "an MPI"}}]
        for size in map(int, options["--sizes"].split(",")):
            lines += [row(collective, size, "native", 2000.0), row(collective, size, "auto", 1000.0)]
        Path(options["--json"]).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return Done(0, "", False)


class Peer:
    name, about, starting = "gloo", "Gloo of nothing", 0.0

    def calls(self, rounds: int) -> int:
        return rounds

    def measure(self, launch: Any, rounds: Any, directory: Path) -> dict[Call, Measured]:
        Net.order.append(self.name)
        return {call: Measured([500.0] * n, True) for call, n in rounds.items()}


@pytest.fixture
def conductor(monkeypatch, tmp_path):
    monkeypatch.setattr(conduct, "Hosts", Net)
    monkeypatch.setattr(Net, "order", [])
    asked = Plan(("bcast", "reduce"), (1 << 16,), "50Mbit")
    return Conductor(asked, [Peer()], tmp_path, tmp_path, lambda _: None, lambda _: None)


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_layout_has_a_file_with_native_ours_and_peers(conductor, tmp_path):
    conductor.run({"mpich": Path("python")}, [Layout(4, 1), Layout(2, 2, "cyclic")])
    assert Net.order == ["gloo", "bcast", "reduce", "gloo"] * 2
    run, *rows = lines_of(tmp_path / "mpich-2x2-cyclic.jsonl")
    assert run["environment"] == {"mpi": "an MPI"} and run["settings"]["peers"] == {"gloo": "Gloo of nothing"}
    assert [(r["collective"], r["algorithm"]) for r in rows] == [
        (collective, name) for collective in ("bcast", "reduce") for name in ("native", "auto", "gloo")
    ]
    assert rows[2]["rounds"] == 6 and rows[2]["paired"] is False and rows[2]["ratio"] == pytest.approx(4.0, abs=0.02)
    assert conductor.all_valid and not conductor.failures
    assert (tmp_path / "mpich-4x1.jsonl").exists() and not list(tmp_path.glob("*.part"))


def test_a_failure_is_reported_and_measurements_are_kept(conductor, tmp_path, monkeypatch):
    def fail(launch: Any, rounds: Any, directory: Path) -> Any:
        raise PeerFailed("gloo had to be ended", {call: Measured([500.0] * 3, True) for call in rounds})

    monkeypatch.setattr(Net, "broken", "bcast")
    conductor.peers[0].measure = fail
    conductor.run({"mpich": Path("python")}, [Layout(4, 1)])
    rows = [(row["collective"], row["algorithm"], row["rounds"]) for row in lines_of(tmp_path / "mpich-4x1.jsonl")[1:]]
    assert rows == [("reduce", name, 6) for name in ("native", "auto", "gloo")]
    failure = "mpich-4x1: gloo had to be ended"
    assert conductor.failures == [failure, "mpich-4x1: mpicoll bench bcast: status 1: it broke", failure]


def test_an_interruption_leaves_what_there_was(conductor, tmp_path, monkeypatch):
    def interrupted(self: Net, arguments: list[str], **how: Any) -> Done:
        if arguments[2] == "reduce":
            raise KeyboardInterrupt
        return launch(self, arguments, **how)

    launch = Net.launch
    monkeypatch.setattr(Net, "launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        conductor.run({"mpich": Path("python")}, [Layout(4, 1)])
    assert {row["collective"] for row in lines_of(tmp_path / "mpich-4x1.jsonl")[1:]} == {"bcast"}
    assert len(conductor.results) == 1


# -- the table


def shown(rows: list[dict[str, Any]], theirs: dict[Any, Any] | None = None) -> str:
    results = Found("mpich", Layout(4, 1), {})
    results.ours["bcast"].append(rows)
    results.theirs.update({key: [value] for key, value in (theirs or {}).items()})
    screen = Console(file=io.StringIO(), width=180)
    summary.show(screen, [results], [{Call("bcast", 1 << 20): 1 << 20}], "50Mbit links")
    return screen.file.getvalue()  # type: ignore[attr-defined]


def test_tables():
    """Of all there can be; where auto is wrong, where it is the best of ours, and where it did not take part."""
    size = 1 << 20
    native = row("bcast", size, "native", 2500.0)
    auto = row("bcast", size, "auto", 1500.0, ratio=1.67, ratio_interval=[1.5, 1.8], verdict="faster")
    chain = row("bcast", size, "chain", 1100.0, ratio=2.27, verdict="faster")
    theirs = {("gloo", Call("bcast", size)): Measured([5000.0] * 8, True),
              ("IMB", Call("bcast", size)): Measured([], note="IMB-MPI1 has no bcast")}
    tables = [shown([native, auto, chain, row("bcast", size, "ring", 900.0, valid=False)], theirs),
            shown([native, row("bcast", size, "auto", 900.0, valid=False)]),
            shown([native, auto, {**chain, "median_us": 1600.0}]), shown([native, chain])]
    golden.compare("\n".join(tables), "bench-cluster.txt")


def test_without_results_there_is_no_table():
    assert shown([]) == ""


# -- the command


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Return a function that runs the command on simulated hosts; its files go to tmp_path/new/out."""
    monkeypatch.setattr(conduct, "Hosts", Net)
    monkeypatch.setattr(Net, "order", [])
    monkeypatch.setattr(cli, "enter", lambda: None)
    monkeypatch.setattr(cli, "python_of", lambda mpi: Path(sys.executable))
    arguments = ["--sizes", "64K", "--collectives", "bcast", "--peers", "none", "--out", str(tmp_path / "new" / "out")]

    def run(*more: str) -> Any:
        return CliRunner().invoke(cli.cluster, [*arguments, *more], prog_name="cluster")

    return run


@pytest.mark.parametrize("options, words", [
    (["--mpi", ""], "--mpi names none; there is mpich"), (["--mpi", " , "], "--mpi names none"),
    (["--seconds", "nan"], "--seconds is nan"), (["--seconds", "inf"], "--seconds is inf"),
])
def test_bad_input_is_one_line_and_leaves_no_directory(command, tmp_path, options, words):
    done = command(*options)
    assert (done.exit_code, done.stdout) == (2, "") and words in done.stderr and len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_hosts_that_cannot_be_made_leave_no_directory(command, monkeypatch, tmp_path):
    monkeypatch.setattr(Net, "__enter__", refuse)
    done = command()
    assert done.exit_code == 2 and "the machine does not reach 90Gbit" in done.stderr
    assert not list(tmp_path.iterdir())
    (tmp_path / "new" / "out").mkdir(parents=True)
    command()
    assert (tmp_path / "new" / "out").exists()  # which was there before


def refuse(self: Net) -> Net:
    raise LaunchError("the machine does not reach 90Gbit")


@pytest.mark.slow
def test_a_later_layout_that_cannot_be_made_costs_nothing_of_the_earlier(command, monkeypatch, tmp_path):
    monkeypatch.setattr(Net, "__enter__", lambda self: self if self.count == 2 else refuse(self))
    done = command("--layouts", "2x1,3x1")
    assert done.exit_code == 2 and done.stderr.splitlines()[-1].endswith("the machine does not reach 90Gbit")
    assert "mpich-2x1" in done.stdout and "verdict" in done.stdout and "page:" in done.stdout
    assert {file.name for file in (tmp_path / "new" / "out").iterdir()} == {"mpich-2x1.jsonl", "report.html"}


def test_left_out_peers_are_named(command, monkeypatch):
    monkeypatch.setattr(cli, "page", lambda *_: None)  # which takes seconds
    done = command("--layouts", "2x1,3x1", "--collectives", "allgather", "--algorithms", "ring,neighbor_exchange")
    assert done.exit_code == 0, done.output
    assert "neighbor_exchange left out: allgather neighbor_exchange needs" in done.stdout


# -- what is here


def test_an_mpi_without_its_environment(monkeypatch, tmp_path):
    monkeypatch.setattr(installed, "ROOT", tmp_path)
    monkeypatch.setattr(installed, "flavour", lambda: "openmpi")
    assert installed.python_of("openmpi").exists()
    with pytest.raises(ValueError, match=r"\.venv-intel is missing; `make MPI=intel env` makes it"):
        installed.python_of("intel")
    with pytest.raises(ValueError, match="no MPI is called 'lam'"):
        installed.python_of("lam")


def test_a_peer_that_is_missing_is_a_line_unless_it_was_named(monkeypatch, tmp_path):
    monkeypatch.setattr(installed, "ROOT", tmp_path)
    monkeypatch.setattr(installed, "flavour", lambda: "mpich")
    missing = tmp_path / "python"
    peers, lines = installed.find_peers("found", missing)
    assert peers == [] and [line.partition(":")[0] for line in lines] == ["without gloo", "without imb"]
    assert "--torch-python" in lines[0] and "make MPI=intel env" in lines[1]
    assert installed.find_peers("none", missing) == ([], [])
    for name in ("gloo", "imb"):
        with pytest.raises(Missing):
            installed.find_peers(name, missing)
    with pytest.raises(ValueError, match="no peer is called 'nccl'"):
        installed.find_peers("nccl", None)
