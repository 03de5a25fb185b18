"""tests/run.py leaves nothing behind: it ends and removes what tests leave, and says so."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import launcher
import pytest

TESTS = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.timeout(120)
LEAVES = """
    import os, subprocess, sys, tempfile, time
    from pathlib import Path
    def test_it():
        (Path(tempfile.gettempdir()) / "a-file").write_text("")
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        Path({told!r}).write_text(f"{{left.pid}} {{tempfile.gettempdir()}}")
        {then}
"""


@pytest.fixture
def runner(tmp_path):
    """Yield runner(then): start tests/run.py on one test, which leaves a process behind, then does `then`."""
    (tmp_path / "tests" / "launch").mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    for name in ("run.py", "conftest.py", "allowed_skips.txt"):      # the others are those of the checkout
        shutil.copy(TESTS / name, tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    started = []

    def start(then: str) -> subprocess.Popen:
        code = dedent(LEAVES).format(told=str(tmp_path / "told"), then=then)
        (tmp_path / "tests" / "launch" / "test_it.py").write_text(code)
        command = [sys.executable, str(tmp_path / "tests" / "run.py"), "--suites", "launch", "--sample-launch", "1"]
        process = subprocess.Popen(
            [*command, "--", "-p", "no:cacheprovider", "-c", str(tmp_path / "pytest.ini")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
            env=launcher.environment({"TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(TESTS)}),
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def left_behind(tmp_path: Path, process: subprocess.Popen) -> tuple[int, Path]:
    """Return the process and the directory that the test left behind, once they exist."""
    deadline = time.monotonic() + 90
    while not (words := (tmp_path / "told").read_text().split() if (tmp_path / "told").exists() else []):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.05)
    return int(words[0]), Path(words[1])


def runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def nothing_is_left(tmp_path: Path, pid: int, directory: Path) -> bool:
    return not runs(pid) and not directory.exists() and not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize(("then", "passed"), [("pass", 1), ("assert False", 0), ("os._exit(3)", 0)])
def test_leftovers_of_a_test_fail_the_run_and_are_removed(runner, tmp_path, then, passed):
    process = runner(then)
    pid, directory = left_behind(tmp_path, process)
    output = process.communicate(timeout=100)[0]
    assert process.returncode == 1
    assert "left behind: process" in output and f"process {pid} ({sys.executable} -c import time; time" in output
    assert str(directory / "a-file") in output
    assert f"{passed} passed, 1 failed, 0 skipped" in output
    assert nothing_is_left(tmp_path, pid, directory), output


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_run_that_is_interrupted(runner, tmp_path, how):
    process = runner("time.sleep(600)")
    pid, directory = left_behind(tmp_path, process)
    assert runs(pid) and directory.is_relative_to(tmp_path / "tmp")
    process.send_signal(how)
    output = process.communicate(timeout=100)[0]
    assert process.returncode == 128 + how, output
    assert nothing_is_left(tmp_path, pid, directory), output


def test_a_test_that_is_interrupted_may_tidy_up(runner, tmp_path):
    """Fixtures take down hosts and daemons, of which no directory knows."""
    process = runner(f"try: time.sleep(600)\n    finally: Path({str(tmp_path / 'tidied')!r}).write_text('')")
    left_behind(tmp_path, process)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=100)[0]
    assert (tmp_path / "tidied").exists(), output


def test_directories_have_short_names(tmp_path):
    """Some MPIs have sockets there, whose paths have 107 characters at most."""
    import tidy

    with tidy.place() as place:
        assert len(os.path.relpath(place.temporary, place.directory.parent)) < 15
        assert list(place.temporary.iterdir()) == [] and place.left() == []
    assert not place.directory.exists()
