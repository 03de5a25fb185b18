"""mpicoll.AVG where it cannot average: MPI's own reductions end the run and say why."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.quick

CODE = r"""
import os
import time
import numpy as np
from mpi4py import MPI
import mpicoll
comm = mpicoll.Comm(MPI.COMM_WORLD)
y = np.zeros(3)
comm.Allreduce(np.full(3, comm.rank + 1.0), y, mpicoll.AVG)
os.write(1, b"averaged %g\n" % y[0])       # at once, so that no rank tears it apart
{call}
time.sleep(30)                  # MPI_Abort may return: the rank goes on until the launcher ends it
os.write(1, b"passed unseen\n")
"""


@pytest.mark.parametrize(
    "call",
    [
        "MPI.COMM_WORLD.Allreduce(np.ones(3), y, mpicoll.AVG)",
        "MPI.Intracomm.Allreduce(comm, np.ones(3), y, mpicoll.AVG)",
    ],
    ids=["a plain communicator", "the plain method"],
)
def test_the_run_ends_with_a_message(mpiexec, tmp_path, call):
    script = tmp_path / "script.py"
    script.write_text(CODE.format(call=call))
    done = mpiexec(2, "python", script)
    assert done.status not in (0, None), done.output
    assert "averaged 1.5" in done.output and "passed unseen" not in done.output
    assert "mpicoll.AVG averages on an mpicoll.Comm" in done.output
