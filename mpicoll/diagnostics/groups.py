"""The ranks of communicators, as ranks of COMM_WORLD."""

from __future__ import annotations

from mpi4py import MPI


def world_ranks(comm: MPI.Intracomm) -> tuple[int, ...]:
    """Return the ranks of a communicator as ranks of COMM_WORLD. Local."""
    group, world = MPI.Comm.Get_group(comm), MPI.Comm.Get_group(MPI.COMM_WORLD)
    try:
        return tuple(MPI.Group.Translate_ranks(group, range(group.size), world))
    finally:
        group.Free()
        world.Free()
