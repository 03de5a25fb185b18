"""The error handler of the user's communicator is called for errors of collectives, once each, as MPI does."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.errors import MessageLengthError, RequestError, RootError

FORMS = {
    "blocking": lambda comm, root: comm.Bcast(np.zeros(3), root),
    "nonblocking": lambda comm, root: comm.Ibcast(np.zeros(3), root),
    "persistent": lambda comm, root: comm.Bcast_init(np.zeros(3), root),
}


@pytest.fixture
def handled(comm):
    """Yield a Comm, and the error classes that its handler was called with."""
    plain, classes = comm.Dup(), []

    def handler(which, code):
        assert which == plain
        classes.append(MPI.Get_error_class(code))

    errhandler = MPI.Comm.Create_errhandler(handler)
    plain.Set_errhandler(errhandler)
    yield mpicoll.Comm(plain), classes
    plain.Free()
    errhandler.Free()


@pytest.mark.parametrize("form", FORMS)
def test_an_argument_that_mpi_would_refuse(handled, form):
    ours, classes = handled
    with pytest.raises(MPI.Exception):
        FORMS[form](ours, ours.size)
    assert classes == [MPI.ERR_ROOT]


def test_an_argument_that_mpi4py_refuses(handled):
    """MPI never sees it."""
    ours, classes = handled
    with pytest.raises(TypeError):
        ours.Allreduce("words", np.zeros(2))
    assert not classes


def test_a_start_that_is_refused(handled):
    ours, classes = handled
    request = ours.Allreduce_init(np.ones(3), np.zeros(3))
    request.Start()
    with pytest.raises(RequestError):
        request.Start()
    request.Wait()
    request.Free()
    assert classes == [MPI.ERR_REQUEST]


def test_the_builtin_calls_it_once(handled):
    ours, classes = handled
    pair = MPI.DOUBLE.Create_contiguous(2).Commit()
    with ours.using(allreduce="native"), pytest.raises(MPI.Exception):
        ours.Allreduce([np.zeros(4), 2, pair], [np.zeros(4), 2, pair], MPI.SUM)
    pair.Free()
    assert classes == [MPI.ERR_OP]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("wait", ["Wait", "Test", "blocking", "Start"])
def test_a_message_that_is_too_long(handled, engine, wait):
    ours, classes = handled
    n = 8 if ours.rank == 0 else 4
    buffer = np.zeros(n)

    def call():
        if wait == "blocking":
            ours.Bcast(buffer)
            return
        request = ours.Bcast_init(buffer) if wait == "Start" else ours.Ibcast(buffer)
        if wait == "Start":
            request.Start()
        while wait == "Test" and not request.Test():
            pass
        request.Wait()

    with ours.using(engine=engine, bcast="linear" if "linear" in mpicoll.list_algorithms()["bcast"] else "binomial"):
        if ours.rank == 0:
            call()
        else:
            with pytest.raises(MessageLengthError):
                call()
    assert classes == [MPI.ERR_TRUNCATE] * (ours.rank > 0)


def test_other_errors_are_returned(comm, handled):
    """Without a handler of its own, mpi4py's communicators return errors, which are raised."""
    ours = mpicoll.Comm(comm)
    with pytest.raises(RootError):
        ours.Bcast(np.zeros(3), ours.size)
    assert not handled[1]
