"""Open MPI with fault tolerance: the other ranks go on after one was killed."""

from __future__ import annotations

import tempfile

import launcher
import pytest

PROGRAM = """
import os, signal
import numpy as np
from mpi4py import MPI
import mpicoll

world = MPI.COMM_WORLD
world.Set_errhandler(MPI.ERRORS_RETURN)
comm = mpicoll.Comm(world)
comm.Barrier()
if world.rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
while not comm.Get_failed().size:
    comm.Ack_failed()
survivors = comm.Shrink()
assert type(survivors) is mpicoll.Comm and survivors.size == 3
y = np.zeros(1000)
with survivors.using(allreduce="ring"):
    survivors.Allreduce(np.ones(1000), y)
assert (y == 3).all() and not survivors.Is_revoked()
os.write(1, b"sum is right\\n")
os._exit(0)  # MPI_Finalize would wait for the rank that was killed
"""


@pytest.mark.skipif(launcher.flavour() != "openmpi", reason="group: needs Open MPI")
def test_the_others_shrink_and_go_on(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    mpiexec, *rest = launcher.command(4, ["python", str(script)])
    with tempfile.TemporaryFile() as output:
        launcher.run_group([mpiexec, "--with-ft", "ulfm", *rest], 60, output)
        output.seek(0)
        said = output.read().decode(errors="replace")
    assert said.count("sum is right") == 3, said
