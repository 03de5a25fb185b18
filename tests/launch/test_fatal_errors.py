"""A communicator whose errors are fatal: an error of a collective ends the run, as an error of MPI's own does."""

from __future__ import annotations

import pytest

PROGRAM = """
import sys
import numpy as np
from mpi4py import MPI
import mpicoll

plain = MPI.COMM_WORLD.Dup()
comm = mpicoll.Comm(plain)
plain.Set_errhandler(MPI.ERRORS_ARE_FATAL)
try:
    getattr(comm, sys.argv[1])(np.zeros(3), comm.size)
except MPI.Exception:
    print("went on", flush=True)
"""


@pytest.mark.quick
@pytest.mark.parametrize("method", ["Bcast", "Ibcast"])
def test_the_run_ends(mpiexec, tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    done = mpiexec(2, "python", script, method)
    assert done.status not in (0, None) and "went on" not in done.output, done.output
