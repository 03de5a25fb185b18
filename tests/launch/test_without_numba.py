"""Where numba cannot be imported, or is not as it was, the mpi4py engine serves with NumPy's kernels, and says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

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
assert {why!r} in serving.WHY_PLAIN, serving.WHY_PLAIN
total = np.zeros((5, 3))
with comm.trace() as records:
    comm.Allreduce(np.full((5, 3), comm.rank + 1.0), total)
    comm.Allreduce(np.full((3, 5), 1.0).T, total[:, ::1], op=MPI.MAX)
assert [record.engine for record in records] == ["mpi4py"] * 2 and (total == 1).all()
sys.stdout.write(f"served {{comm.rank}}\\n")
"""
WAYS = {
    "there is none": ("sys.modules['numba'] = sys.modules['llvmlite'] = None", "import of numba halted"),
    "its inner parts are others": ("import numba.core.caching\ndel numba.core.caching.IndexDataCacheFile",
                                   "cannot import name 'IndexDataCacheFile'"),
    "it does not compile": ("import numba.core.ccallback\nnumba.core.ccallback.CFunc.compile = None",
                            "'NoneType' object is not callable"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_program_is_served_and_told(mpiexec, tmp_path, way):
    without, why = WAYS[way]
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(without=without, why=why))
    done = mpiexec(2, sys.executable, path, env={"MPICOLL_ENGINE": "auto"})
    lines = done.output.splitlines()
    assert done.status == 0 and sorted(line for line in lines if line.startswith("served")) == ["served 0", "served 1"]
    assert sum("the mpi4py engine serves, which is slower; compiled cannot run" in line for line in lines) == 1


def test_algorithms_reductions_and_datatypes(mpiexec):
    """A sample of what holds every algorithm, operator and datatype against MPI's own."""
    options = ["-q", "-p", "support.without_numba", "-k", "not compiled", "--sample", "0.1"]
    done = mpiexec(3, sys.executable, "-m", "pytest", *MODULES, *options, limit=120.0, env={"PYTHONPATH": str(TESTS)})
    assert done.status == 0 and " passed" in done.output, done.output[-3000:]


def test_info_says_why(mpiexec, tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import sys\nsys.modules['numba'] = sys.modules['llvmlite'] = None\n"
                    "from mpicoll.cli import main\nmain()\n")
    words = mpiexec(1, sys.executable, path, "info").output
    assert "numba    not found" in words and "NumPy's, since numba does not serve: ModuleNotFoundError" in words
    found = json.loads(mpiexec(1, sys.executable, path, "info", "--json").output)
    assert found["numba"]["version"] is None and "numba halted" in found["kernels"]["plain"]
