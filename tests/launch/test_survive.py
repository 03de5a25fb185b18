"""Open MPI with fault tolerance: ranks are killed in collectives, and the others go on. `make test-survive` has all."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import launcher
import pytest

TESTS = Path(__file__).resolve().parents[1]
PROGRAMS = re.findall(r"```python\n(.*?)```", (TESTS.parent / "docs" / "SURVIVING.md").read_text(), re.DOTALL)
END = "\nimport atexit; atexit._run_exitfuncs(); os._exit(0)     # see the page\n"
pytestmark = pytest.mark.skipif(launcher.flavour() != "openmpi", reason="group: needs Open MPI")
MISUSE = """
import os, sys
from mpi4py import MPI
import mpicoll

world = MPI.COMM_WORLD

@mpicoll.resilient(world)
def step(comm, number):
    comm.Barrier()
    if number == 2 and comm.rank == 1:
        raise KeyError("of the program")
    comm.Barrier()
    return number

assert step(1) == 1
try:
    step(2)
except (KeyError, mpicoll.errors.StepError) as error:
    print(world.rank, type(error).__name__, flush=True)
"""


def run(program: str, tmp_path: Path, ranks: int = 4) -> str:
    """Run a program with fault tolerance, and return what it printed; it may not hang nor print a traceback."""
    script = tmp_path / "script.py"
    script.write_text(program + END)
    mpiexec, *rest = launcher.command(ranks, ["python", str(script)])
    with tempfile.TemporaryFile() as output:
        launcher.run_group([mpiexec, "--with-ft", "ulfm", *rest], 60, output)
        output.seek(0)
        said = output.read().decode(errors="replace")
    assert "Traceback" not in said, said
    return said


@pytest.mark.timeout(180)
@pytest.mark.parametrize("forms", ["blocking,waitall", "nonblocking,persistent"])
def test_ranks_are_killed_in_calls(forms):
    command = [sys.executable, str(TESTS / "survive.py"), "--forms", forms, "--most", "1", "--ranks", "8"]
    with tempfile.TemporaryFile() as output:
        status = launcher.run_group(command, 150, output)
        output.seek(0)
        said = output.read().decode(errors="replace")
    assert status == 0 and said.endswith(" passed, 0 failed\n"), said


def test_a_rank_that_is_killed_is_named(tmp_path):
    said = run(PROGRAMS[0], tmp_path)
    assert said.count("failed: (1,)") == 3, said


def test_training_goes_on(tmp_path):
    said = run(PROGRAMS[1], tmp_path)
    assert said.count("trained on 3 ranks") == 3, said


def test_an_error_of_a_step_ends_it_on_every_rank(tmp_path):
    said = run(MISUSE, tmp_path)
    assert sorted(said.split("\n"))[1:] == ["0 StepError", "1 KeyError", "2 StepError", "3 StepError"], said


def test_the_page_is_read_whole():
    assert len(PROGRAMS) == 2
