"""The test runner: what it starts, how it counts, and that nothing it starts outlives its limit."""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import launcher
import mutations
import pytest
import run
from support import golden, harness

from mpicoll.benchmarks import launch

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def any_mpi(monkeypatch):
    """Take the MPI to be MPICH: these tests need none in the environment."""
    monkeypatch.setattr(launch, "flavour", lambda python=None: "mpich")
    monkeypatch.setattr(launcher, "flavour", lambda: "mpich")


def sizes(*words: str) -> list[tuple[str, int, float]]:
    return [(launch.suite, launch.ranks, launch.fraction) for launch in run.plan(run.parse(list(words)))]


def test_default_plan():
    mpi = [(2, run.QUICK), (3, run.FRACTION), (4, run.FRACTION)]
    assert sizes() == [("unit", 1, run.QUICK_UNIT), ("launch", 1, 1.0), *(("mpi", *launch) for launch in mpi)]
    assert [launch.quick for launch in run.plan(run.parse([]))] == [True, True, False, False, False]


def test_slow_tests_run_on_request():
    mpi = [(ranks, fraction) for suite, ranks, fraction in sizes("--thorough") if suite == "mpi"]
    assert mpi == [(2, 1.0), *((ranks, run.THOROUGH_FRACTION) for ranks in (1, 3, 5, 8)), (16, 1.0)]
    words = ("--thorough", "--full")
    core = {word: [launch for launch in run.plan(run.parse([word])) if launch.files] for word in words}
    assert [launch.title for launch in core["--thorough"]] == ["mpi, 16 ranks, the core"]
    assert [launch.ranks for launch in core["--full"]] == [16, 32, 64]
    assert all(launch.options(0)[0] == str(*run.CORE) for launch in core["--full"])
    options = ["--full", "--suites", "mpi", "--files"]
    named = [run.plan(run.parse([*options, files])) for files in ("many_ranks", "stall,threads")]
    others = [*run.FULL_WHOLE, *run.FULL_SAMPLED]
    assert [[launch.ranks for launch in launches] for launches in named] == [[*others, *run.FULL_MANY], others]
    assert sizes("--thorough")[:2] == [("unit", 1, 1.0), ("launch", 1, run.STARTED)]
    assert sizes("--full")[:2] == [("unit", 1, 1.0), ("launch", 1, 1.0)]
    assert not any(launch.quick for words in ("--thorough", "--full") for launch in run.plan(run.parse([words])))
    assert [launch.quick for launch in run.plan(run.parse(["--suites", "launch", "--sample-launch", "1"]))] == [False]


def test_plan_of_some_ranks():
    assert sizes("--suites", "mpi", "--ranks", "2,4", "--sample", "0.3") == [("mpi", 2, 0.3), ("mpi", 4, 0.3)]
    assert sizes("--suites", "unit") == [("unit", 1, 1.0)]
    assert sizes("--suites", "unit,launch", "--sample-launch", "0.5") == [("unit", 1, 1.0), ("launch", 1, 0.5)]
    assert sizes("--suites", "unit", "--sample-unit", "0.2") == [("unit", 1, 0.2)]
    options = ["--sample-launch", "0.5", "--ranks", "1", "--sample", "0.2"]
    titles = [launch.title for launch in run.plan(run.parse(options))]
    assert titles == ["unit, 25% sample, quick", "launch, 50% sample", "mpi, 1 rank, 20% sample"]


def test_plan_of_some_files():
    """A suite without any of them is left out; a name that no suite has is refused."""
    launches = run.plan(run.parse(["--suites", "unit,launch,mpi", "--files", "stall,threads", "--ranks", "2"]))
    assert [(launch.suite, [file.name for file in launch.files]) for launch in launches] == [
        ("launch", ["test_stall.py"]), ("mpi", ["test_threads.py"])]
    assert launches[1].options(0)[0] == str(run.TESTS / "mpi" / "test_threads.py")
    with pytest.raises(SystemExit):
        run.parse(["--files", "stall,nonsense"])


def test_a_run_repeats_the_samples_of_the_one_before(monkeypatch):
    seeds = []
    monkeypatch.setattr(run.Launch, "run", lambda self, arguments, limit: seeds.append(arguments.seed))
    for words in ([], [], ["--seed", "7"], ["--draw"]):
        run.main(["--suites", "unit", *words])
    assert seeds[:3] == [0, 0, 7] and seeds[3] > 0


def test_report(capsys):
    """The totals are the last line; what died, what failed and what no number of ranks fits are named."""
    good = run.Launch("unit", outcomes={"z": ("passed", "")})
    bad = run.Launch("mpi", 2, outcomes={"x": ("failed", "AssertionError: 1"), "odd": ("inapplicable", ""),
                                         "large[1]": ("inapplicable", "")})
    skips = {"odd": ("passed", ""), "a": ("skipped", "slurm: needs root"), "b": ("skipped", "no idea")}
    skipping = run.Launch("mpi", 3, outcomes=skips)
    died = run.Launch("mpi", outcomes={"y": ("passed", "")}, complaint="killed after 1 s")
    asked = (([good], True), ([good, bad, skipping], False), ([skipping], False), ([skipping], True), ([died], False))
    assert [run.report(*launches) for launches in asked] == [True, False, True, False, False]
    golden.compare(capsys.readouterr().out, "run-report.txt")


@pytest.mark.parametrize(("outcomes", "result"), [
    ("failed passed", ("failed", "why")),
    ("begun passed", ("passed", "why")),
    ("begun failed begun passed", ("failed", "why")),
    ("begun", ("failed", "it did not end")),
])
def test_a_failure_stays_a_failure(tmp_path, outcomes, result):
    lines = [{"id": "a", "outcome": outcome, "reason": "why"} for outcome in outcomes.split()]
    (tmp_path / "results").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run.read_results(tmp_path / "results") == {"a": result}


@pytest.mark.parametrize(("outcomes", "status", "repeated"), [
    ("begun", 1, True), ("begun passed", None, True), ("begun failed", 1, False), ("begun passed", 0, False)])
def test_the_end_of_a_launch_that_did_not_end_is_repeated(tmp_path, monkeypatch, capfd, outcomes, status, repeated):
    def start(command, limit, output, extra, left):
        results = Path(command[command.index("--results") + 1])
        lines = [json.dumps({"id": "a", "outcome": outcome, "reason": ""}) for outcome in outcomes.split()]
        results.write_text("".join(line + "\n" for line in lines))
        output.write(b"first\n" + b"line\n" * run.LAST_LINES + b"last")
        return status

    monkeypatch.setattr(launcher, "run_group", start)
    monkeypatch.setattr(launcher, "command", lambda ranks, words: words)
    launch = run.Launch("mpi", 2)
    launch.run(run.parse(["--seed", "1"]), 5)
    assert capfd.readouterr().out == "first\n" + "line\n" * run.LAST_LINES + "last"
    run.report([launch], strict=False)
    printed = capfd.readouterr().out
    assert printed.count("said, mpi, 2 ranks: line\n") == (run.LAST_LINES - 1) * repeated
    assert ("said, mpi, 2 ranks: last\n" in printed) == repeated and "first" not in printed


@pytest.mark.parametrize("precaution", ["", "os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_nothing_outlives_the_limit(tmp_path, monkeypatch, precaution):
    monkeypatch.setattr(launch, "KILL_AFTER", 0.5)
    code = f"import os, signal, time\nprint(os.getpid(), flush=True)\n{precaution}\ntime.sleep(60)\n"
    (tmp_path / "child.py").write_text(code)
    parent = (f"import subprocess, sys; subprocess.Popen([sys.executable, {str(tmp_path / 'child.py')!r}], "
              f"stdout=open({str(tmp_path / 'pid')!r}, 'w')).wait()")
    started = time.monotonic()
    assert launcher.run_group([sys.executable, "-c", parent], 1.5) is None
    assert time.monotonic() - started < 10
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def test_processes_of_a_nested_launch_are_named_and_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "GRACE", 0.1)
    code = ("import os, subprocess, sys; from mpicoll.benchmarks.launch import labels; "
            "subprocess.Popen(['sleep', '600'], env={**os.environ, **labels('inner')}, start_new_session=True)")
    left: list[str] = []
    assert launcher.run_group([sys.executable, "-c", code], 60, left=left) == 0
    (line,) = left
    assert line.startswith("process ") and line.endswith("(sleep 600)")
    assert not _runs(int(line.split()[1]))


def test_status_and_output_of_a_launch(tmp_path):
    with open(tmp_path / "out", "wb") as output:
        command = [sys.executable, "-c", "import os; print(os.environ['X']); raise SystemExit(3)"]
        assert launcher.run_group(command, 20, output, {"X": "y"}) == 3
    assert (tmp_path / "out").read_text() == "y\n"


def test_the_path_begins_with_this_environment():
    path = launcher.environment()["PATH"].split(os.pathsep)
    assert path[0] == str(Path(sys.executable).parent)


def test_a_sample_depends_on_names_and_seed_only():
    class Item:
        def __init__(self, nodeid: str, **bounds: int) -> None:
            self.nodeid, self.mark = nodeid, SimpleNamespace(kwargs=bounds)

        def get_closest_marker(self, name: str) -> SimpleNamespace | None:
            return None if "[" in self.nodeid else self.mark

    items = [Item(f"test[{i}]") for i in range(200)]
    first = harness.sample(items, 0.25, 1, 4)
    assert harness.sample(items, 0.25, 1, 4) == first != harness.sample(items, 0.25, 2, 4)
    assert 20 < len(first) < 80
    assert set(harness.sample(items[::-1], 0.25, 1, 4)) == set(first)
    assert len(harness.sample(items, 1e-9, 1, 4)) == 1
    others = [*items, *(Item(f"other[{i}]") for i in range(9))]
    assert sorted(item.nodeid[:4] for item in harness.sample(others, 1e-9, 1, 4, of_each=True)) == ["othe", "test"]
    assert harness.sample(items, 1.0, 1, 4) == items
    always, few = Item("test_always"), Item("test_few", max_size=4)
    for seed in range(5):
        assert {always, few} <= set(harness.sample([*items, always, few], 0.01, seed, 4))
    assert any(few not in harness.sample([*items, few], 0.01, seed, 5) for seed in range(5))


def test_quick_leaves_out_what_is_slow():
    file = "tests/unit/test_cli.py"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--quick", file]
    listed = subprocess.run(command, capture_output=True, text=True, cwd=run.ROOT).stdout
    assert "test_show_is_the_picture" in listed and "test_verify_proves_all_that_is_registered" not in listed
    assert "@pytest.mark.slow\ndef test_verify_proves_all_that_is_registered" in (run.ROOT / file).read_text()


def test_a_part_of_the_unit_tests():
    file = "tests/unit/test_cli.py"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--sample", "0.2", file]
    listed = subprocess.run(command, capture_output=True, text=True, cwd=run.ROOT).stdout
    chosen, every = re.search(r"(\d+)/(\d+) tests collected", listed).groups()
    assert 0.1 < int(chosen) / int(every) < 0.3


def test_mutations_are_of_the_source_as_it_is():
    """Find the text of each mutation exactly once in the source, and no mutation twice."""
    mutations.check()
    assert len({(mutation.path, mutation.after) for mutation in mutations.MUTATIONS}) == len(mutations.MUTATIONS) >= 50


def test_mutations_are_made_in_copies_side_by_side(tmp_path, monkeypatch, capsys):
    """Each copy has one change at a time, and none afterwards; what no test notices is returned."""
    changes = [mutations.Mutation("code.py", f"value {i}", f"broken {i}", "unit/test_code.py") for i in range(6)]
    source = " ".join(change.before for change in changes)
    trees: mutations.Trees = queue.SimpleQueue()
    copies = [tmp_path / name for name in "ab"]
    for copy in copies:
        copy.mkdir()
        (copy / "code.py").write_text(source)
        trees.put(copy)
    both_work = threading.Barrier(2)

    def first_failure(commands, tree):
        both_work.wait(20)
        (broken,) = re.findall(r"broken (\d)", (tree / "code.py").read_text())
        return "" if broken in "14" else f"FAILED test_{broken}"

    monkeypatch.setattr(mutations, "MUTATIONS", changes)
    monkeypatch.setattr(mutations, "first_failure", first_failure)
    assert mutations.hold(list(range(6)), lambda mutation: [], trees) == [1, 4]
    assert [(copy / "code.py").read_text() for copy in copies] == [source] * 2
    output = capsys.readouterr().out
    assert [line[:3] for line in output.splitlines()] == [f"{i:>3}" for i in range(6)]
    assert output.count("NOT NOTICED") == 2
