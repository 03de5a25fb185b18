"""Methods for what follows the failure of a rank: an error where this run does not survive one."""

from __future__ import annotations

import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.diagnostics.fault_tolerance import is_rank_failure, missing
from mpicoll.errors import FaultToleranceError

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
def test_methods_that_only_seem_to_work_raise(comm, method):
    ours = mpicoll.Comm(comm)
    grid = ours.Create_cart([comm.size])
    for communicator in (ours, grid):
        with pytest.raises(FaultToleranceError, match=f"^{method} .*--with-ft ulfm") as caught:
            getattr(communicator, method)(*CALLS[method])
        assert isinstance(caught.value, (MPI.Exception, NotImplementedError))
        assert caught.value.Get_error_class() == MPI.ERR_UNSUPPORTED_OPERATION
    grid.Free()


def test_looking_leaves_the_level_of_threads():
    """Open MPI takes the level that MPI_T_init_thread asks for as that of the process."""
    assert missing() and MPI.Query_thread() == LEVEL


@pytest.mark.mpi(max_size=3)
def test_steps_run_as_they_are(comm, caplog):
    """A program that could survive elsewhere runs; rank 0 says that it does not survive here."""
    steps = mpicoll.resilient(comm)
    assert [record.args[0] for record in caplog.records] == [missing()] * (comm.rank == 0)

    @steps
    def step(comm, number, factor=1):
        return comm.allreduce(number) * factor

    assert type(steps.comm) is mpicoll.Comm and step.resilient is steps
    assert step(2, factor=3) == 6 * comm.size
    with pytest.raises(KeyError, match="of the program"):
        steps.run(lambda comm: {}["of the program"])


@pytest.mark.mpi(max_size=1)
def test_surviving_may_be_required(comm):
    with pytest.raises(FaultToleranceError, match="--with-ft ulfm"):
        mpicoll.resilient(comm, required=True)


def test_an_error_of_another_kind_is_no_failed_rank(comm):
    """MPIs without fault tolerance have one class for these errors and for others."""
    for code in (MPI.ERR_PROC_FAILED, MPI.ERR_REVOKED, MPI.ERR_OTHER):
        assert not is_rank_failure(MPI.Exception(code), comm)
