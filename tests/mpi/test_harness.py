"""The harness from inside: what a test may rely on."""

from __future__ import annotations

import pytest
from mpi4py import MPI
from support.agreement import Agreement
from support.harness import PLUGIN


def test_comm_is_private(comm):
    assert comm.size == MPI.COMM_WORLD.size
    assert MPI.Comm.Compare(comm, MPI.COMM_WORLD) == MPI.CONGRUENT


@pytest.mark.parametrize("_", range(3))
def test_comm_is_another_one_each_time(comm, request, _):
    harness = request.config.pluginmanager.get_plugin(PLUGIN)
    assert harness.communicators == [comm]
    assert harness.agreement.comm != comm


def test_a_test_may_free_its_communicator(comm):
    comm.Free()


def test_agreement_carries_rows_and_texts(comm):
    agreement = Agreement(comm)
    assert agreement.table([agreement.rank, 5], 30) == [[rank, 5] for rank in range(agreement.size)]
    texts = agreement.texts("é" * agreement.rank, 30)
    assert texts == ([] if agreement.rank else ["é" * rank for rank in range(agreement.size)])
    agreement.comm.Free()


@pytest.mark.mpi(min_size=2)
def test_agreement_gives_up_in_time(comm):
    """A rank that waits for absent ranks gets control back; then they join, so that no message is left over."""
    silent = comm.Irecv(bytearray(1), source=(comm.rank + 1) % comm.size)
    with pytest.raises(TimeoutError):
        Agreement._finish(silent, 0.05)
    comm.Barrier()
    comm.Send(bytearray(1), dest=(comm.rank - 1) % comm.size)
    silent.Wait()


def test_ranks_share_no_directory_that_pytest_tidies(comm, tmp_path_factory):
    roots = comm.allgather(str(tmp_path_factory.getbasetemp().parent))
    assert len(set(roots)) == comm.size
