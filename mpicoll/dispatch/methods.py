"""List the collective methods of MPI.Intracomm and MPI.Topocomm: names in every form, and parsers of arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mpi4py import MPI

from ..buffers import arguments as plain
from ..buffers import neighbor_arguments as near
from ..buffers import vector_arguments as vectors
from ..buffers.arguments import Arguments
from ..buffers.datatypes import TypeFacts
from ..buffers.operators import native
from ..buffers.parse import for_mpi
from ..buffers.snapshot import snapshot, values
from ..schedules.collectives import BLOCKING, NONBLOCKING, is_of_neighbours
from ..schedules.graphs import Ends


class Method(NamedTuple):
    """A collective method.

    - name: of the blocking form, as mpi4py spells it.
    - takes: its parameters in mpi4py's order.
    - parse: called with (state, send buffer, receive buffer, root); Reduce_scatter has recvcounts in place of a root.
    """

    name: str
    collective: str
    takes: str
    parse: Callable[[Any, Any, Any, Any], Arguments | None]

    def spelled(self, form: str) -> str:
        """Return the method's name in a form.

        >>> [ALLREDUCE.spelled(form) for form in ("blocking", "nonblocking", "persistent")]
        ['Allreduce', 'Iallreduce', 'Allreduce_init']
        """
        if form == BLOCKING:
            return self.name
        return f"I{self.name.lower()}" if form == NONBLOCKING else f"{self.name}_init"


class Invocation(NamedTuple):
    """A method and its arguments, in the order of the fast path."""

    method: Method
    send: Any
    recv: Any
    op: MPI.Op | None
    root: Any

    @property
    def counts(self) -> Any:
        """Return the recvcounts of Reduce_scatter, which are in the place of a root."""
        return self.root

    @property
    def root_rank(self) -> int:
        """Return the root; 0 if the collective has none."""
        return int(self.root) if "root" in self.method.takes else 0

    def snapshot(self) -> Invocation:
        """Return a copy that other threads cannot change while the call reads it; see buffers/snapshot.py."""
        send, recv = snapshot(self.send, self.recv)
        return Invocation(self.method, send, recv, self.op, self.root if type(self.root) is int else values(self.root))

    def native(self, shared_buffer: Any, facts: TypeFacts | None, form: str, comm: MPI.Intracomm, *more: Any) -> Any:
        """Call MPI's own method in a form.

        shared_buffer: the buffer, if send and receive buffer are the same; else None. facts: on the datatype, None if
        the method has no buffers.
        """
        to_mpi = self if shared_buffer is None else self._replace(send=MPI.IN_PLACE, recv=shared_buffer)
        to_mpi = to_mpi._replace(send=for_mpi(to_mpi.send), recv=for_mpi(to_mpi.recv))
        if self.op is not None and facts is not None:
            to_mpi = to_mpi._replace(op=native(self.op, facts))
        of_neighbours = is_of_neighbours(self.method.collective)
        mpi_method = getattr(MPI.Topocomm if of_neighbours else MPI.Intracomm, self.method.spelled(form))
        arguments = (getattr(to_mpi, name) for name in self.method.takes.split())
        return mpi_method(MPI.Topocomm(comm) if of_neighbours else comm, *arguments, *more)


BARRIER = Method("Barrier", "barrier", "", lambda c, s, r, root: None)
BCAST = Method("Bcast", "bcast", "recv root", lambda c, s, r, root: plain.parse_bcast(r, root, c.rank, c.size))
SCATTER = Method(
    "Scatter", "scatter", "send recv root", lambda c, s, r, root: plain.parse_scatter(s, r, root, c.rank, c.size)
)
GATHER = Method(
    "Gather", "gather", "send recv root", lambda c, s, r, root: plain.parse_gather(s, r, root, c.rank, c.size)
)
ALLGATHER = Method("Allgather", "allgather", "send recv", lambda c, s, r, root: plain.parse_allgather(s, r, c.size))
ALLTOALL = Method("Alltoall", "alltoall", "send recv", lambda c, s, r, root: plain.parse_alltoall(s, r, c.size))
SCATTERV = Method(
    "Scatterv", "scatterv", "send recv root", lambda c, s, r, root: vectors.parse_scatterv(s, r, root, c.rank, c.size)
)
GATHERV = Method(
    "Gatherv", "gatherv", "send recv root", lambda c, s, r, root: vectors.parse_gatherv(s, r, root, c.rank, c.size)
)
ALLGATHERV = Method(
    "Allgatherv", "allgatherv", "send recv", lambda c, s, r, root: vectors.parse_allgatherv(s, r, c.rank, c.size)
)
ALLTOALLV = Method(
    "Alltoallv", "alltoallv", "send recv", lambda c, s, r, root: vectors.parse_alltoallv(s, r, c.rank, c.size)
)
ALLTOALLW = Method(
    "Alltoallw", "alltoallw", "send recv", lambda c, s, r, root: vectors.parse_alltoallw(s, r, c.rank, c.size)
)
REDUCE = Method(
    "Reduce", "reduce", "send recv op root", lambda c, s, r, root: plain.parse_reduce(s, r, root, c.rank, c.size)
)
ALLREDUCE = Method("Allreduce", "allreduce", "send recv op", lambda c, s, r, root: plain.parse_allreduce(s, r))
REDUCE_SCATTER_BLOCK = Method(
    "Reduce_scatter_block",
    "reduce_scatter",
    "send recv op",
    lambda c, s, r, root: plain.parse_reduce_scatter_block(s, r, c.size),
)
REDUCE_SCATTER = Method(
    "Reduce_scatter",
    "reduce_scatter",
    "send recv counts op",
    lambda c, s, r, counts: plain.parse_reduce_scatter(s, r, counts, c.rank, c.size),
)
SCAN = Method("Scan", "scan", "send recv op", lambda c, s, r, root: plain.parse_allreduce(s, r))
EXSCAN = Method("Exscan", "exscan", "send recv op", lambda c, s, r, root: plain.parse_allreduce(s, r))

METHODS: dict[str, Method] = {m.name: m for m in list(vars().values()) if isinstance(m, Method)}
"""Every method of MPI.Intracomm by its name in the blocking form."""


def _of_neighbours(name: str, parse: Callable[[Any, Any, Ends], Arguments]) -> Method:
    """Return a method of MPI.Topocomm whose parser takes the buffers and the edges of this rank."""
    return Method(name, name.lower(), "send recv", lambda c, s, r, root: parse(s, r, c.graph.ends(c.rank)))


NEIGHBOR_ALLGATHER = _of_neighbours("Neighbor_allgather", near.parse_neighbor_allgather)
NEIGHBOR_ALLGATHERV = _of_neighbours("Neighbor_allgatherv", near.parse_neighbor_allgatherv)
NEIGHBOR_ALLTOALL = _of_neighbours("Neighbor_alltoall", near.parse_neighbor_alltoall)
NEIGHBOR_ALLTOALLV = _of_neighbours("Neighbor_alltoallv", near.parse_neighbor_alltoallv)
NEIGHBOR_ALLTOALLW = _of_neighbours("Neighbor_alltoallw", near.parse_neighbor_alltoallw)
NEIGHBOR_METHODS: dict[str, Method] = {
    m.name: m for m in list(vars().values()) if isinstance(m, Method) and m.name not in METHODS
}
"""Every method of MPI.Topocomm by its name in the blocking form."""
