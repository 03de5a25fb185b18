"""The graphs of programs, by name, on any number of ranks: MPI's communicators, mpicoll's, and what schedules see."""

from __future__ import annotations

from mpi4py import MPI
from support.neighbors import lists

import mpicoll
from mpicoll.schedules.graphs import Graph, cartesian, listed
from mpicoll.schedules.stencils import Stencil

OFFSETS = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (2, 0))
PERIODS = {"ring": (True,), "grid": (True, False), "stencil": (True, False)}
NAMES = (*PERIODS, "lists")


def dims(name: str, p: int) -> list[int]:
    """Return the ranks in each dimension of a grid."""
    return MPI.Compute_dims(p, len(PERIODS[name]))


def create_communicators(base: MPI.Intracomm, name: str) -> tuple[MPI.Topocomm, MPI.Topocomm]:
    """Return the communicator of a graph as MPI's and as mpicoll's, both of one handle. Collective."""
    if name == "lists":
        plain = base.Create_dist_graph_adjacent(*lists(base.rank, base.size))
        return plain, mpicoll.Distgraphcomm(plain)
    plain = base.Create_cart(dims(name, base.size), PERIODS[name])
    grid = mpicoll.Cartcomm(plain)
    if name != "stencil":
        return plain, grid
    stencil = grid.Create_stencil(OFFSETS)
    plain.Free()
    return MPI.Distgraphcomm(stencil), stencil


def graph(name: str, p: int) -> Graph:
    """Return the same graph for schedules."""
    if name == "lists":
        return listed(p, name, lambda rank: lists(rank, p))
    of_grid = dims(name, p), PERIODS[name]
    return Stencil(*of_grid, OFFSETS) if name == "stencil" else cartesian(*of_grid)


def names_twice(name: str, p: int) -> bool:
    """Return whether a rank of a grid has another one as the neighbour before and behind."""
    return name in ("ring", "grid") and any(n < 3 and around for n, around in zip(dims(name, p), PERIODS[name]))
