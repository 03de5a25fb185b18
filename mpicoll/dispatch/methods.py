"""The collective methods of MPI.Intracomm: their names in each form, and how their arguments are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpi4py import MPI

from ..buffers import arguments as plain
from ..buffers import vector_arguments as vectors
from ..buffers.arguments import Arguments
from ..buffers.operators import native
from ..schedules.collectives import BLOCKING, COLLECTIVES, NONBLOCKING
from ..schedules.collectives import plain as plain_name

On = Callable[[MPI.Intracomm], Any]
Native = Callable[..., On]  # (form, *what a form needs besides): MPI's own method on given arguments


class Method(NamedTuple):
    """A collective as a method: mpi4py's name of the blocking form, and what reads (channel, root, *buffers)."""

    name: str
    collective: str
    parse: Callable[..., Arguments | None]

    def spelled(self, form: str) -> str:
        """Return the method's name in a form.

        >>> [ALLREDUCE.spelled(form) for form in ("blocking", "nonblocking", "persistent")]
        ['Allreduce', 'Iallreduce', 'Allreduce_init']
        """
        return {BLOCKING: self.name, NONBLOCKING: f"I{self.name.lower()}"}.get(form, f"{self.name}_init")

    def native(self, given: Arguments | None, buffers: Sequence[Any], root: Any, op: MPI.Op | None) -> Native:
        """MPI's own methods on these arguments, by form, as functions of the communicator."""
        if given is not None and given.one is not None:
            buffers = (MPI.IN_PLACE, given.one, *buffers[2:])
        operator = () if op is None else (native(op),)
        where = (root,) if COLLECTIVES[plain_name(self.collective)].rooted else ()

        def on(form: str, *more: Any) -> On:
            function = getattr(MPI.Intracomm, self.spelled(form))
            return lambda comm: function(comm, *buffers, *operator, *where, *more)

        return on


BARRIER = Method("Barrier", "barrier", lambda c, root: None)
BCAST = Method("Bcast", "bcast", lambda c, root, buf: plain.parse_bcast(buf, root, c.rank, c.size))
SCATTER = Method("Scatter", "scatter", lambda c, root, s, r: plain.parse_scatter(s, r, root, c.rank, c.size))
GATHER = Method("Gather", "gather", lambda c, root, s, r: plain.parse_gather(s, r, root, c.rank, c.size))
ALLGATHER = Method("Allgather", "allgather", lambda c, root, s, r: plain.parse_allgather(s, r, c.size))
ALLTOALL = Method("Alltoall", "alltoall", lambda c, root, s, r: plain.parse_alltoall(s, r, c.size))
SCATTERV = Method("Scatterv", "scatterv", lambda c, root, s, r: vectors.parse_scatterv(s, r, root, c.rank, c.size))
GATHERV = Method("Gatherv", "gatherv", lambda c, root, s, r: vectors.parse_gatherv(s, r, root, c.rank, c.size))
ALLGATHERV = Method("Allgatherv", "allgatherv", lambda c, root, s, r: vectors.parse_allgatherv(s, r, c.rank, c.size))
ALLTOALLV = Method("Alltoallv", "alltoallv", lambda c, root, s, r: vectors.parse_alltoallv(s, r, c.rank, c.size))
ALLTOALLW = Method("Alltoallw", "alltoallw", lambda c, root, s, r: vectors.parse_alltoallw(s, r, c.rank, c.size))
REDUCE = Method("Reduce", "reduce", lambda c, root, s, r: plain.parse_reduce(s, r, root, c.rank, c.size))
ALLREDUCE = Method("Allreduce", "allreduce", lambda c, root, s, r: plain.parse_allreduce(s, r))
REDUCE_SCATTER_BLOCK = Method(
    "Reduce_scatter_block", "reduce_scatter", lambda c, root, s, r: plain.parse_reduce_scatter_block(s, r, c.size)
)
REDUCE_SCATTER = Method(
    "Reduce_scatter",
    "reduce_scatter",
    lambda c, root, s, r, counts: plain.parse_reduce_scatter(s, r, counts, c.rank, c.size),
)
SCAN = Method("Scan", "scan", lambda c, root, s, r: plain.parse_allreduce(s, r))
EXSCAN = Method("Exscan", "exscan", lambda c, root, s, r: plain.parse_allreduce(s, r))

METHODS: dict[str, Method] = {m.name: m for m in list(vars().values()) if isinstance(m, Method)}
"""Every method by its name in the blocking form."""
