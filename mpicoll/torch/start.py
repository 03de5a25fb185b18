"""Give a program its process groups: rank and size from MPI, a store to meet at, a communicator for each."""

from __future__ import annotations

import functools
import importlib
import os
import socket
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from mpi4py import MPI
from torch import distributed as dist
from torch.distributed import ProcessGroup as TorchProcessGroup
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join

from ..comm.comm import Comm
from ..errors import CommError
from ..launcher import world_size
from ..runtime.duplicate import without_attributes
from ..runtime.status import describe
from . import meeting
from .group import ProcessGroup

NAME = "mpicoll"
_ENVIRONMENT = ("MASTER_ADDR", "MASTER_PORT")
rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")  # a function hides it in the package
_LONG = timedelta(minutes=30)
_MPIEXEC = "start the program with the mpiexec or srun of this MPI, as in: mpiexec -n 4 python PROGRAM"


def register() -> None:
    """Register the backend and the way by which ranks meet; again is harmless."""
    if NAME.upper() in dist.Backend._plugins:
        return
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
    rendezvous._rendezvous_handlers["env"] = _meet
    for module in (dist, distributed_c10d):
        module.monitored_barrier = _monitored_barrier
    distributed_c10d._new_process_group_helper = functools.partial(meeting.call, _torchs_new_process_group)
    Join.notify_join_context = staticmethod(_notify_join_context)


def alias() -> None:
    """Have mpicoll serve what asks for "gloo" or "mpi" from now on, in programs that do not know of it.

    torch goes on calling such a group by the name that was asked for.
    """
    distributed_c10d.ProcessGroupGloo = InPlaceOfGloo
    distributed_c10d.ProcessGroupMPI = InPlaceOfMPI
    for ask in ("is_gloo_available", "is_mpi_available"):
        for module in (dist, distributed_c10d):
            setattr(module, ask, lambda: True)


def create(options: Any, backend_options: Any = None) -> ProcessGroup:
    """Return the process group that torch asks for. Collective over its ranks, which alone may call.

    Raises CommError where torch and MPI do not agree on rank and size.
    """
    ranks = list(options.global_ranks_in_group)
    if not ranks:
        _check_is_world(_world(), options.group_rank, options.group_size)
    return ProcessGroup(_communicator(ranks, options.group_id), options.store, options.timeout, options.group_id)


def _communicator(ranks: Sequence[int], name: str) -> Comm:
    """Return a new communicator of these ranks of the world, which alone may call; of all where there are none.

    Raises CommError on every rank where one of them raised an error instead of coming here.
    """
    meeting.arrive()
    world = _world()
    if not ranks:
        comm = without_attributes(world)
    else:
        largest: Any = world.Get_attr(MPI.TAG_UB)
        group = world.Get_group().Incl(list(ranks))
        comm = world.Create_group(group, zlib.crc32(str(name).encode()) % largest)
        group.Free()
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    return Comm(comm)


class InPlaceOfGloo(ProcessGroup):
    """The group that torch makes in place of Gloo's; torch sets its ranks after it is constructed."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta = _LONG) -> None:
        TorchProcessGroup.__init__(self, rank, size)
        self.made_with = store, rank, size, timeout

    @property
    def global_ranks_in_group(self) -> list[int]:
        """The ranks of the world that the group has, none for all."""
        return self._ranks

    @global_ranks_in_group.setter
    def global_ranks_in_group(self, ranks: Sequence[int]) -> None:
        store, rank, size, timeout = self.made_with
        self._ranks = list(ranks)
        if not self._ranks:
            _check_is_world(_world(), rank, size)
        name = ",".join(map(str, self._ranks))
        ProcessGroup.__init__(self, _communicator(self._ranks, name), store, timeout, name)


class InPlaceOfMPI:
    """The class in which torch looks for its own MPI backend, which no wheel has."""

    @staticmethod
    def create(ranks: Sequence[int]) -> ProcessGroup | None:
        """Return the group of these ranks, None for a rank outside of it."""
        if ranks and _world().rank not in ranks:
            return None
        return ProcessGroup(_communicator(ranks, ",".join(map(str, ranks))))


def _world() -> MPI.Intracomm:
    return MPI.Intracomm(MPI.COMM_WORLD)  # of mpi4py's class, whatever a program has made of the name


def _check_is_world(world: MPI.Intracomm, rank: int, size: int) -> None:
    """Raise CommError unless the rank and size that torch was given are MPI's own."""
    if (rank, size) != (world.rank, world.size):
        raise CommError(
            f"torch was told that this is rank {rank} of {size}, and MPI says rank {world.rank} of {world.size}; "
            f"{_MPIEXEC}, and leave rank, world_size, RANK and WORLD_SIZE to MPI"
        )
    _check_launched(world)


def _check_launched(world: MPI.Intracomm) -> None:
    """Raise CommError where a launcher started several processes and MPI made each of them a world of its own."""
    launched, name = world_size()
    if world.size == 1 and launched > 1:
        raise CommError(
            f"{name} says that {launched} processes were started, and each is rank 0 of 1 for this MPI, which the "
            f"launcher does not know; {_MPIEXEC} (`mpicoll info --check` says more)"
        )


def _meet(url: str, timeout: timedelta = _LONG, **more: Any) -> Iterator[tuple[Any, int, int]]:
    """Yield (store, rank, size) for env://: from the environment where it says where to meet, else from MPI."""
    if all(os.environ.get(name) for name in _ENVIRONMENT) and ("RANK" in os.environ or "rank=" in url):
        yield from rendezvous._env_rendezvous_handler(url, timeout, **more)
        return
    world = _world()
    query = rendezvous._query_to_dict(url.partition("?")[2])
    rank, size = int(query.get("rank", world.rank)), int(query.get("world_size", world.size))
    with _together(world):
        _check_is_world(world, world.rank if rank < 0 else rank, world.size if size < 0 else size)
    yield _store(world, timeout), world.rank, world.size


@contextmanager
def _together(world: MPI.Intracomm) -> Iterator[None]:
    """Leave the block when every rank does. Raises CommError on all ranks where the block raises on one. Collective."""
    raised = None
    try:
        yield
    except Exception as error:
        raised = error
    everyone = world.allgather("" if raised is None else describe(raised))
    if raised is not None:
        raise raised
    for rank, words in enumerate(everyone):
        if words:
            raise CommError(f"the ranks did not meet, since rank {rank} raised {words}")


def _store(world: MPI.Intracomm, timeout: timedelta) -> Any:
    """Return a store that rank 0 serves, when every rank is connected to it. Collective.

    Rank 0 may raise after that, and its store end with it, so it must not leave before.
    """
    place, store = None, None
    is_one_host = _is_one_host(world)
    with _together(world):
        if world.rank == 0:
            host = "127.0.0.1" if is_one_host else _address()
            store = dist.TCPStore(host, 0, world.size, True, timeout, wait_for_workers=False)
            place = host, store.port
    place = world.bcast(place)
    with _together(world):
        if store is None:
            store = dist.TCPStore(*place, world.size, False, timeout, wait_for_workers=False)
    return store


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


_torchs_new_process_group = distributed_c10d._new_process_group_helper
_torchs_monitored_barrier = distributed_c10d.monitored_barrier


def _monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """As torch.distributed.monitored_barrier, which takes no group but Gloo's; of mpicoll's groups it is theirs."""
    ours = distributed_c10d._get_default_group() if group is None else group
    if not isinstance(ours, ProcessGroup):
        _torchs_monitored_barrier(group, timeout, wait_all_ranks)
        return
    seconds = timeout if isinstance(timeout, timedelta) or timeout is None else timedelta(seconds=float(timeout))
    ours.monitored_barrier(seconds, wait_all_ranks)


_torchs_notify_join_context = Join.notify_join_context


def _notify_join_context(joinable: Any) -> Any:
    """As torch's, which hands the Work to C++ that keeps one half of it: the other, in Python, must live as long."""
    joinable._work_of_join = work = _torchs_notify_join_context(joinable)
    return work
