"""The ranks of torch's default group, and a communicator for some of them.

torch numbers them anew when that group is shrunk. MPI makes no communicator from one of which a rank has failed.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from ..comm.comm import Comm
from ..errors import CommError
from ..launcher import world_size
from ..runtime.duplicate import dup_without_attributes
from . import meeting

_MPIEXEC = "start the program with the mpiexec or srun of this MPI, as in: mpiexec -n 4 python PROGRAM"
_shrunk: list[MPI.Intracomm] = []  # of the default group since it was shrunk, if it was


def world() -> MPI.Intracomm:
    """Return COMM_WORLD, of mpi4py's class, whatever a program has made of the name."""
    return MPI.Intracomm(MPI.COMM_WORLD)


def of_default_group() -> MPI.Intracomm:
    """Return a communicator whose ranks are those of the default group."""
    return _shrunk[-1] if _shrunk else world()


def communicator(ranks: Sequence[int], name: str) -> Comm:
    """Return a new communicator of these ranks of the default group, which alone may call; of all where there are none.

    Raises CommError on every rank where one of them raised an error instead of coming here.
    """
    meeting.arrive()
    return communicator_of(ranks, name)


def communicator_of(ranks: Sequence[int], name: str) -> Comm:
    """Return the communicator without an exchange of errors, for callers that are inside one."""
    default = of_default_group()
    if ranks:
        largest: Any = world().Get_attr(MPI.TAG_UB)
        whole = default.Get_group()
        group = whole.Incl(list(ranks))
        comm = default.Create_group(group, zlib.crc32(str(name).encode()) % largest)
        group.Free()
        whole.Free()
    else:
        comm = dup_without_attributes(default)
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    return Comm(comm)


def translated(comm: MPI.Comm, other: MPI.Comm) -> list[int]:
    """Return the ranks of a communicator as another one numbers them."""
    groups = comm.Get_group(), other.Get_group()
    try:
        return list(MPI.Group.Translate_ranks(groups[0], None, groups[1]))
    finally:
        for group in groups:
            group.Free()


def begin(rank: int, size: int) -> None:
    """Begin with a default group of all ranks. Raises CommError where torch and MPI do not agree on rank and size."""
    check_is_world(rank, size)
    _shrunk.clear()


def renumber(comm: MPI.Intracomm) -> None:
    """Count the ranks as a communicator does, which the default group has from now on. Collective."""
    _shrunk.append(dup_without_attributes(comm))


def check_is_world(rank: int, size: int) -> None:
    """Raise CommError unless the rank and size that torch was given are MPI's own."""
    all_ranks = world()
    if (rank, size) != (all_ranks.rank, all_ranks.size):
        raise CommError(
            f"torch was told that this is rank {rank} of {size}, and MPI says "
            f"rank {all_ranks.rank} of {all_ranks.size}; "
            f"{_MPIEXEC}, and leave rank, world_size, RANK and WORLD_SIZE to MPI"
        )
    _check_launched(all_ranks)


def _check_launched(world: MPI.Intracomm) -> None:
    """Raise CommError where a launcher started several processes and MPI made each of them a world of its own."""
    launched, name = world_size()
    if world.size == 1 and launched > 1:
        raise CommError(
            f"{name} says that {launched} processes were started, and each is rank 0 of 1 for this MPI, which the "
            f"launcher does not know; {_MPIEXEC} (`mpicoll info --check` says more)"
        )
