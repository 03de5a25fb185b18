"""The test runner: what it starts, how it counts, and that nothing it starts outlives its limit."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import launcher
import mpi_harness
import pytest
import run

from mpicoll.benchmarks import launch


@pytest.fixture(autouse=True)
def any_mpi(monkeypatch):
    """These tests need no MPI in the environment."""
    monkeypatch.setattr(launch, "flavour", lambda python=None: "mpich")
    monkeypatch.setattr(launcher, "flavour", lambda: "mpich")


def sizes(*words: str) -> list[tuple[str, int, float]]:
    return [(each.suite, each.ranks, each.fraction) for each in run.plan(run.parse(list(words)))]


def test_default_plan():
    mpi = [(ranks, fraction) for suite, ranks, fraction in sizes() if suite == "mpi"]
    assert mpi == [(1, 1), (2, 1), (3, 1), (4, 1), (5, run.FRACTION), (7, run.FRACTION), (8, run.FRACTION)]


def test_plan_of_some_ranks():
    assert sizes("--suites", "mpi", "--ranks", "2,4", "--sample", "0.3") == [("mpi", 2, 0.3), ("mpi", 4, 0.3)]
    assert sizes("--suites", "unit") == [("unit", 1, 1.0)]


def launch_with(**outcomes: str) -> run.Launch:
    return run.Launch("mpi", 2, outcomes={name: (outcome, "") for name, outcome in outcomes.items()})


def test_totals_are_the_last_line(capsys):
    launches = [launch_with(a="passed", b="skipped", c="failed"), launch_with(a="passed")]
    assert not run.report(launches, strict=False)
    assert capsys.readouterr().out.splitlines()[-1] == "2 passed, 1 failed, 1 skipped"


def test_a_launch_that_dies_is_a_failure(capsys):
    died = launch_with(a="passed")
    died.complaint = "killed after 1 s"
    assert not run.report([died], strict=False)
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"


def test_strict_fails_on_a_skip_that_is_not_listed(capsys):
    skips = run.Launch("mpi", outcomes={"a": ("skipped", "slurm: needs root"), "b": ("skipped", "no idea")})
    assert run.report([skips], strict=False)
    assert not run.report([skips], strict=True)
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed, 1 skipped"


def test_tests_that_no_rank_count_fits_are_named(capsys):
    run.report([launch_with(a="inapplicable", b="inapplicable"), launch_with(a="passed")], strict=False)
    printed = capsys.readouterr().out
    assert "not run on any of these rank counts: b" in printed
    assert "rank counts: a" not in printed


def test_a_failure_stays_a_failure(tmp_path):
    lines = [{"id": "a", "outcome": "failed", "reason": ""}, {"id": "a", "outcome": "passed", "reason": ""}]
    (tmp_path / "results").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run.read_results(tmp_path / "results") == {"a": ("failed", "")}


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
        def __init__(self, nodeid: str) -> None:
            self.nodeid = nodeid

    items = [Item(f"test[{i}]") for i in range(200)]
    first = mpi_harness.sample(items, 0.25, 1)
    assert mpi_harness.sample(items, 0.25, 1) == first != mpi_harness.sample(items, 0.25, 2)
    assert 20 < len(first) < 80
    assert set(mpi_harness.sample(items[::-1], 0.25, 1)) == set(first)
    assert len(mpi_harness.sample(items, 1e-9, 1)) == 1
    assert mpi_harness.sample(items, 1.0, 1) == items
