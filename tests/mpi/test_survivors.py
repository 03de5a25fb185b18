"""Methods for what follows the failure of a rank: an error where this run does not survive one."""

from __future__ import annotations

import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.errors import FaultToleranceError
from mpicoll.runtime.fault_tolerance import missing

CALLS = {
    "Shrink": (),
    "Ishrink": (),
    "Agree": (1,),
    "Iagree": (bytearray(4),),
    "Get_failed": (),
    "Ack_failed": (),
    "Revoke": (),
    "Is_revoked": (),
}
LEVEL = MPI.Query_thread()  # before the next line looks
pytestmark = pytest.mark.skipif(not missing(), reason="this run survives the failure of a rank")


@pytest.mark.mpi(max_size=2)
@pytest.mark.parametrize("method", CALLS)
def test_what_would_only_seem_to_work_raises(comm, method):
    ours = mpicoll.Comm(comm)
    grid = ours.Create_cart([comm.size])
    for one in (ours, grid):
        with pytest.raises(FaultToleranceError, match=f"^{method} .*--with-ft ulfm") as caught:
            getattr(one, method)(*CALLS[method])
        assert isinstance(caught.value, (MPI.Exception, NotImplementedError))
        assert caught.value.Get_error_class() == MPI.ERR_UNSUPPORTED_OPERATION
    grid.Free()


def test_looking_leaves_the_level_of_threads():
    """Open MPI takes the level that MPI_T_init_thread asks for as that of the process."""
    assert missing() and MPI.Query_thread() == LEVEL
