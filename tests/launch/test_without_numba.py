"""Without numba: what the machine has kept serves; else the mpi4py engine with NumPy's kernels, which is said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
MODULES = [TESTS / "mpi" / f"test_{name}.py" for name in ("collectives", "reductions", "datatypes", "operators")]

PROGRAM = """\
import sys
import numpy as np
from mpi4py import MPI
{without}
import mpicoll
from mpicoll.kernels import serving
comm = mpicoll.Comm(MPI.COMM_WORLD)
assert {why!r} in serving.why_plain(), serving.why_plain()
total = np.zeros((5, 3))
with comm.trace() as records:
    comm.Allreduce(np.full((5, 3), comm.rank + 1.0), total)
    comm.Allreduce(np.full((3, 5), 1.0).T, total[:, ::1], op=MPI.MAX)
assert [record.engine for record in records] == ["mpi4py"] * 2 and (total == 1).all()
sys.stdout.write(f"served {{comm.rank}}\\n")
"""
WAYS = {
    "there is none": ("sys.modules['numba'] = sys.modules['llvmlite'] = None", "import of numba halted"),
    "its inner parts are others": ("import numba.core.ccallback\ndel numba.core.ccallback.CFunc",
                                   "cannot import name 'CFunc'"),
    "it does not compile": ("import numba.core.ccallback\nnumba.core.ccallback.CFunc.compile = None",
                            "'NoneType' object is not callable"),
}


@pytest.mark.quick
@pytest.mark.parametrize("way", WAYS)
def test_a_program_is_served_and_told(mpiexec, tmp_path, way):
    without, why = WAYS[way]
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(without=without, why=why))
    done = mpiexec(2, sys.executable, path, env={"MPICOLL_ENGINE": "auto", "NUMBA_CACHE_DIR": str(tmp_path / "empty")})
    lines = done.output.splitlines()
    assert done.status == 0 and sorted(line for line in lines if line.startswith("served")) == ["served 0", "served 1"]
    assert sum("the mpi4py engine serves, which is slower; compiled cannot run" in line for line in lines) == 1


WARM = """\
import sys
import numpy as np
from mpi4py import MPI
{without}
import mpicoll
comm = mpicoll.Comm(MPI.COMM_WORLD)
total = np.zeros((5, 3))
with comm.trace() as records:
    for _ in range(4):
        comm.Allreduce(np.full((5, 3), comm.rank + 1.0), total)
    comm.Allreduce(np.full((3, 5), 1.0).T, total[:, ::1], op=MPI.MAX)
assert [record.engine for record in records] == ["compiled"] * 5 and (total == 1).all()
assert [record.fast_path for record in records] == [False, False, True, True, False]
assert not any(sys.modules.get(name) for name in ("numba", "llvmlite", "hashlib", "tempfile"))
sys.stdout.write(f"served {{comm.rank}}\\n")
"""


def test_cached_kernels_serve_without_a_compiler(mpiexec, tmp_path):
    """Import neither numba nor LLVM in a process with all kernels cached, with numba installed or not."""
    env = {"MPICOLL_ENGINE": "auto", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for number, without in enumerate(("", "", WAYS["there is none"][0])):
        path = tmp_path / f"program{number}.py"
        program = WARM if number else WARM.replace("assert not any", "any")
        path.write_text(program.format(without=without))
        done = mpiexec(2, sys.executable, path, env=env, limit=150.0)  # the first compiles all kernels
        assert done.status == 0 and sorted(done.output.splitlines()) == ["served 0", "served 1"], done.output


def test_algorithms_reductions_and_datatypes(mpiexec, tmp_path):
    """A sample of what holds every algorithm, operator and datatype against MPI's own."""
    options = ["-q", "-p", "support.without_numba", "-k", "not compiled", "--sample", "0.1"]
    done = mpiexec(3, sys.executable, "-m", "pytest", *MODULES, *options, limit=120.0,
                   env={"PYTHONPATH": str(TESTS), "NUMBA_CACHE_DIR": str(tmp_path)})
    assert done.status == 0 and " passed" in done.output, done.output[-3000:]


@pytest.mark.quick
def test_info_says_why(mpiexec, tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import sys\nsys.modules['numba'] = sys.modules['llvmlite'] = None\n"
                    "from mpicoll.cli import main\nmain()\n")
    env = {"NUMBA_CACHE_DIR": str(tmp_path / "empty")}
    words = mpiexec(1, sys.executable, path, "info", env=env).output
    assert "NumPy's, since numba does not serve: ModuleNotFoundError" in words
    output = mpiexec(1, sys.executable, path, "info", "--json", env=env).output
    warning, brace, rest = output.partition("{")    # the warning is on standard error
    assert warning.startswith("the mpi4py engine serves, which is slower") and warning.count("\n") == 1
    report = json.loads(brace + rest)
    assert "numba halted" in report["kernels"]["plain"] and report["kernels"]["compiled"] == []
