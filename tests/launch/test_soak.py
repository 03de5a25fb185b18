"""`make soak`, on a library that is all right and on one that was broken on purpose."""

from __future__ import annotations

import random

import pytest
import soak
from fuzzing.program import Call, Program


def create_soak(tmp_path, patience=20.0):
    return soak.Soak(random.Random(1), [2], tmp_path, patience)


def test_it_counts_what_it_played(capsys):
    assert soak.main(["--minutes", "0.15", "--ranks", "2", "--seed", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "0 failures" in lines[-1]
    assert int(lines[-1].split()[0]) > 0
    assert any(line.startswith("seeds (ranks:seed): 2:") for line in lines)


BREAKS = """
import os, sys
from fuzzing import play
from mpi4py import MPI
{how}
sys.argv[0] = {worker!r}
exec(compile(open({worker!r}).read(), {worker!r}, "exec"))
"""
WRONG = "from support import ops; play.DELAY = 0; ops.COMBINE['SUM'] = lambda a, b: ops.np.add(a, b) + 1"
STILL = """
real = play.Player._call
def stuck(self, i, number):
    if self.program.calls[i].method == "Barrier" and self.world.rank == 0:
        while True:
            pass
    real(self, i, number)
play.Player._call = stuck
"""


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """Return a function that creates a soak whose launches first run a program that breaks in some way."""
    def start(how, patience):
        worker = tmp_path / "worker.py"
        worker.write_text(BREAKS.format(how=how, worker=str(soak.WORKER)))
        monkeypatch.setattr(soak, "WORKER", worker)
        monkeypatch.setenv("PYTHONPATH", str(soak.launcher.ROOT / "tests"))
        return create_soak(tmp_path, patience)

    return start


@pytest.mark.timeout(400)
def test_a_wrong_answer_is_reported_as_the_least_program(broken):
    run = broken(WRONG, 100.0)  # kernels that are not in the cache yet compile on a busy machine
    run.launch(60)  # it ends with the first wrong answer
    [failure] = run.failures
    program = eval(failure.program, {"Program": Program, "Call": Call})
    assert len(program.calls) == 1 and program.calls[0].op == "SUM" and program.rounds == 1
    assert failure.what == "wrong" and "expected" in failure.output
    assert f"--play \"{failure.program}\"" in str(failure)


@pytest.mark.timeout(400)
def test_stalls_are_reported_with_the_program(broken, monkeypatch):
    monkeypatch.setattr(soak, "ATTEMPTS", 3)
    run = broken(STILL, 4.0)
    run.launch(60)  # it ends with the first barrier
    [failure] = run.failures
    assert "Barrier" in failure.program and failure.what.startswith(("exit status", "killed"))
    assert "took more than 4 s" in failure.output and "has not moved for 4 s" in failure.output
