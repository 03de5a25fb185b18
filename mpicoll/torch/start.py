"""Give a program its process groups: rank and size from MPI, a store to meet at, a communicator for each."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from torch import distributed as dist
from torch.distributed import ProcessGroup as TorchProcessGroup
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join

from . import meeting, ranks, stores
from .group import ProcessGroup
from .shrinking import create_shrunk

NAME = "mpicoll"
_ENVIRONMENT = ("MASTER_ADDR", "MASTER_PORT")
rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")  # a function hides it in the package
_LONG = timedelta(minutes=30)


def register() -> None:
    """Register the backend and the way by which ranks meet; again is harmless."""
    if NAME.upper() in dist.Backend._plugins:
        return
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
    rendezvous._rendezvous_handlers["env"] = _meet
    for module in (dist, distributed_c10d):
        module.monitored_barrier = _monitored_barrier
    distributed_c10d._new_process_group_helper = functools.partial(meeting.call, _torchs_new_process_group)
    if hasattr(distributed_c10d, "shrink_group"):
        original = distributed_c10d._create_shrunk_process_group
        distributed_c10d._create_shrunk_process_group = functools.partial(create_shrunk, original)
    Join.notify_join_context = staticmethod(_notify_join_context)


def alias() -> None:
    """Have mpicoll serve what asks for "gloo" or "mpi" from now on, in programs that do not know of it.

    torch still names such a group by the requested name.
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
    of_group, name = list(options.global_ranks_in_group), options.group_id
    if not of_group:
        ranks.begin(options.group_rank, options.group_size)
    return ProcessGroup(ranks.communicator(of_group, name), options.store, options.timeout, name)


class InPlaceOfGloo(ProcessGroup):
    """The group that torch makes in place of Gloo's; torch sets its ranks after it is constructed."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta = _LONG) -> None:
        TorchProcessGroup.__init__(self, rank, size)
        self.made_with = store, rank, size, timeout

    @property
    def global_ranks_in_group(self) -> list[int]:
        """Return the ranks of the world that the group has, none for all."""
        return self._ranks

    @global_ranks_in_group.setter
    def global_ranks_in_group(self, of_group: Sequence[int]) -> None:
        store, rank, size, timeout = self.made_with
        self._ranks = list(of_group)
        if not self._ranks:
            ranks.begin(rank, size)
        name = ",".join(map(str, self._ranks))
        ProcessGroup.__init__(self, ranks.communicator(self._ranks, name), store, timeout, name)


class InPlaceOfMPI:
    """The class in which torch looks for its own MPI backend, which no wheel has."""

    @staticmethod
    def create(of_group: Sequence[int]) -> ProcessGroup | None:
        """Return the group of these ranks, None for a rank outside of it."""
        if of_group and ranks.world().rank not in of_group:
            return None
        return ProcessGroup(ranks.communicator(of_group, ",".join(map(str, of_group))))


def _meet(url: str, timeout: timedelta = _LONG, **more: Any) -> Iterator[tuple[Any, int, int]]:
    """Yield (store, rank, size) for env://: from the environment where it says where to meet, else from MPI."""
    if all(os.environ.get(name) for name in _ENVIRONMENT) and ("RANK" in os.environ or "rank=" in url):
        yield from rendezvous._env_rendezvous_handler(url, timeout, **more)
        return
    world = ranks.world()
    query = rendezvous._query_to_dict(url.partition("?")[2])
    rank, size = int(query.get("rank", world.rank)), int(query.get("world_size", world.size))
    with stores.together(world):
        ranks.check_is_world(world.rank if rank < 0 else rank, world.size if size < 0 else size)
    yield stores.store(world, timeout), world.rank, world.size


_torchs_new_process_group = distributed_c10d._new_process_group_helper
_torchs_monitored_barrier = distributed_c10d.monitored_barrier


def _monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """Run mpicoll's monitored barrier, or torch's for other groups, which takes Gloo's alone."""
    ours = distributed_c10d._get_default_group() if group is None else group
    if not isinstance(ours, ProcessGroup):
        _torchs_monitored_barrier(group, timeout, wait_all_ranks)
        return
    seconds = timeout if isinstance(timeout, timedelta) or timeout is None else timedelta(seconds=float(timeout))
    ours.monitored_barrier(seconds, wait_all_ranks)


_torchs_notify_join_context = Join.notify_join_context


def _notify_join_context(joinable: Any) -> Any:
    """Notify as torch does, and keep the Work's Python half alive, since C++ keeps only the other half."""
    joinable._work_of_join = work = _torchs_notify_join_context(joinable)
    return work
