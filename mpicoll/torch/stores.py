"""The store in which the ranks of a program, or of a group that was shrunk, meet: rank 0 serves it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from mpi4py import MPI
from torch import distributed as dist

from ..diagnostics.status import describe
from ..errors import CommError


@contextmanager
def together(world: MPI.Intracomm) -> Iterator[None]:
    """Leave the block when every rank does. Raises CommError on all ranks where the block raises on one. Collective."""
    raised = None
    try:
        yield
    except Exception as error:
        raised = error
    words_by_rank = world.allgather("" if raised is None else describe(raised))
    if raised is not None:
        raise raised
    for rank, words in enumerate(words_by_rank):
        if words:
            raise CommError(f"the ranks did not meet, since rank {rank} raised {words}")


def store(world: MPI.Intracomm, timeout: timedelta) -> Any:
    """Return a store that rank 0 serves, when every rank is connected to it. Collective.

    Rank 0 may raise after that, and its store end with it, so it must not leave before.
    """
    place, served = None, None
    is_one_host = _is_one_host(world)
    with together(world):
        if world.rank == 0:
            host = "127.0.0.1" if is_one_host else _address()
            served = dist.TCPStore(host, 0, world.size, True, timeout, wait_for_workers=False)
            place = host, served.port
    place = world.bcast(place)
    with together(world):
        if served is None:
            served = dist.TCPStore(*place, world.size, False, timeout, wait_for_workers=False)
    return served


def _is_one_host(world: MPI.Intracomm) -> bool:
    """Return whether all ranks share memory. Collective."""
    here = world.Split_type(MPI.COMM_TYPE_SHARED)
    size = here.size
    here.Free()
    return bool(size == world.size)


def _address() -> str:
    """Return an address of this host that others reach: of the interface that leads away from it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # sends nothing
            address: str = probe.getsockname()[0]
        except OSError:
            address = socket.gethostname()
    return address
