"""The drop-in communicator: MPI.Intracomm with its buffer collectives carried out by mpicoll."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mpi4py import MPI

from . import arguments, calls, check, operators, prepared, vector_arguments
from .arguments import Arguments
from .channel import Channel, attach, check_usable
from .errors import ArgumentError, CommError, MismatchError, MpicollError
from .flight import Record
from .prepared import Call, Prepared
from .requests import Request
from .select import RULES, Choice
from .settings import ENGINES

Native = Callable[[], Any]
Parse = Callable[[Channel], Arguments | None]


class Comm(MPI.Intracomm):
    """An MPI.Intracomm whose collectives are mpicoll's; everything else is inherited.

    Comm(comm) is collective over comm: it makes a private communicator for mpicoll's messages, which goes when
    comm is freed. Raises CommError for an intercommunicator. Methods have mpi4py's signatures and take its
    buffer forms; errors are mpicoll.errors, each also what mpi4py raises for the same mistake.
    """

    _channel: Channel | None = None

    def __new__(cls, comm: MPI.Intracomm | None = None) -> Comm:
        """A new handle on the same communicator."""
        if comm is not None and comm != MPI.COMM_NULL and not isinstance(comm, MPI.Intracomm):
            check_usable(comm)
            raise CommError(f"{comm!r} is not an intracommunicator")
        return super().__new__(cls, comm)

    def __init__(self, comm: MPI.Intracomm | None = None) -> None:
        if self != MPI.COMM_NULL:
            self._channel = attach(self)

    def _open(self) -> Channel:
        """The channel. Raises CommError where there can be none."""
        channel = self._channel
        if channel is None or channel.freed or self == MPI.COMM_NULL:
            check_usable(self)
            channel = self._channel = attach(self)
        return channel

    # -- choosing ---------------------------------------------------------------------------------------

    @contextmanager
    def using(
        self, *, chunk_bytes: int | None = None, window: int | None = None, engine: str | None = None, **algorithms: str
    ) -> Iterator[Comm]:
        """Within the block, run collectives as said: comm.using(allreduce="ring", chunk_bytes=1 << 18).

        Every rank must say the same. An algorithm is a name, "name(key=value)", "native" or "auto"; chunk_bytes the
        most of each block in one message; window how many chunks are in flight; engine "auto", "mpi4py" or
        "compiled". What is forced never falls back. Raises UnknownAlgorithm, ParameterError, PreconditionError for an
        algorithm that this number of ranks does not suit, ArgumentError, EngineError.
        """
        channel = self._open()
        if engine not in (None, *ENGINES):
            raise ArgumentError(f"engine is {engine!r}; it must be one of {', '.join(ENGINES)}")
        before = channel.overrides
        after = before.merged(algorithms, chunk_bytes, window, engine)
        prepared.check_choices(channel, algorithms)  # may ask all ranks, so before what only one may refuse
        if engine is not None:
            channel.use_engine(engine)
        channel.override(after)
        try:
            yield self
        finally:
            channel.override(before)

    def explain(self, collective: str, nbytes: int = 0, op: MPI.Op = MPI.SUM) -> Choice:
        """What would run for a call of nbytes, and why. See Claims for whose bytes. Raises UnknownAlgorithm."""
        channel = self._open()
        if collective not in RULES:
            from .registry import find

            find(collective, "")
        return prepared.select(channel, collective, nbytes, op.Is_commutative())

    @contextmanager
    def trace(self) -> Iterator[list[Record]]:
        """Within the block, collect a Record of every collective that ran to its end."""
        channel, records = self._open(), list[Record]()
        channel.traces.append(records)
        try:
            yield records
        finally:
            channel.traces.remove(records)

    # -- the way of a call ------------------------------------------------------------------------------

    def _collective(self, name: str, parse: Parse, native: Native, root: Any = 0, op: MPI.Op | None = None) -> None:
        """Check, select, run; or let MPI's own collective do it."""
        channel = self._open()
        call, served = self._prepare(channel, name, parse, root, op)
        if served.plan is None and not served.asks:
            calls.run_native(channel, call, served, native)
        else:
            calls.run(channel, call, served)

    def _prepare(
        self, channel: Channel, name: str, parse: Parse, root: Any, op: MPI.Op | None
    ) -> tuple[Call, Prepared]:
        try:
            given = parse(channel)
            if given is not None and given.unsettled:
                check.settle(channel, given)
            call = prepared.describe(name, given, int(root), op)
            return call, prepared.prepare(channel, call)
        except MismatchError:
            raise
        except MpicollError as error:
            error.rank = channel.rank
            check.refuse(channel, error)
            raise

    # -- collectives ------------------------------------------------------------------------------------

    def Barrier(self) -> None:
        """Nobody leaves before everybody has come."""
        self._collective("barrier", lambda c: None, super().Barrier)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Broadcast from one rank to all others."""
        native = super().Bcast
        self._collective(
            "bcast", lambda c: arguments.parse_bcast(buf, root, c.rank, c.size), lambda: native(buf, root), root
        )

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Scatter the root's blocks, one to every rank."""
        native = super().Scatter
        self._collective(
            "scatter",
            lambda c: arguments.parse_scatter(sendbuf, recvbuf, root, c.rank, c.size),
            lambda: native(sendbuf, recvbuf, root),
            root,
        )

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather one block of every rank at the root."""
        native = super().Gather
        self._collective(
            "gather",
            lambda c: arguments.parse_gather(sendbuf, recvbuf, root, c.rank, c.size),
            lambda: native(sendbuf, recvbuf, root),
            root,
        )

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather one block of every rank everywhere."""
        native = super().Allgather
        self._collective(
            "allgather",
            lambda c: arguments.parse_allgather(sendbuf, recvbuf, c.size),
            lambda: native(sendbuf, recvbuf),
        )

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """A block from every rank to every rank."""
        native = super().Alltoall
        self._collective(
            "alltoall", lambda c: arguments.parse_alltoall(sendbuf, recvbuf, c.size), lambda: native(sendbuf, recvbuf)
        )

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Scatter the root's blocks, of any sizes and from any places, one to every rank."""
        native = super().Scatterv
        self._collective(
            "scatterv",
            lambda c: vector_arguments.parse_scatterv(sendbuf, recvbuf, root, c.rank, c.size),
            lambda: native(sendbuf, recvbuf, root),
            root,
        )

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather one block of every rank at the root, of any sizes and to any places."""
        native = super().Gatherv
        self._collective(
            "gatherv",
            lambda c: vector_arguments.parse_gatherv(sendbuf, recvbuf, root, c.rank, c.size),
            lambda: native(sendbuf, recvbuf, root),
            root,
        )

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather one block of every rank everywhere, of any sizes and to any places."""
        native = super().Allgatherv
        self._collective(
            "allgatherv",
            lambda c: vector_arguments.parse_allgatherv(sendbuf, recvbuf, c.rank, c.size),
            lambda: native(sendbuf, recvbuf),
        )

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """A block from every rank to every rank, of any sizes and places."""
        native = super().Alltoallv
        self._collective(
            "alltoallv",
            lambda c: vector_arguments.parse_alltoallv(sendbuf, recvbuf, c.rank, c.size),
            lambda: native(sendbuf, recvbuf),
        )

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """A block from every rank to every rank, each with a datatype of its own; displacements are in bytes."""
        native = super().Alltoallw
        self._collective(
            "alltoallw",
            lambda c: vector_arguments.parse_alltoallw(sendbuf, recvbuf, c.rank, c.size),
            lambda: native(sendbuf, recvbuf),
        )

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        """Combine everybody's vectors at the root."""
        native = super().Reduce
        self._collective(
            "reduce",
            lambda c: arguments.parse_reduce(sendbuf, recvbuf, root, c.rank, c.size),
            lambda: native(sendbuf, recvbuf, operators.native(op), root),
            root,
            op,
        )

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combine everybody's vectors everywhere."""
        native = super().Allreduce
        self._collective(
            "allreduce",
            lambda c: arguments.parse_allreduce(sendbuf, recvbuf),
            lambda: native(sendbuf, recvbuf, operators.native(op)),
            op=op,
        )

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combine everybody's vectors, a block of the result at every rank; blocks are equal."""
        native = super().Reduce_scatter_block
        self._collective(
            "reduce_scatter",
            lambda c: arguments.parse_reduce_scatter_block(sendbuf, recvbuf, c.size),
            lambda: native(sendbuf, recvbuf, operators.native(op)),
            op=op,
        )

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM
    ) -> None:
        """Combine everybody's vectors, recvcounts[r] elements of the result at rank r."""
        native = super().Reduce_scatter
        self._collective(
            "reduce_scatter",
            lambda c: arguments.parse_reduce_scatter(sendbuf, recvbuf, recvcounts, c.rank, c.size),
            lambda: native(sendbuf, recvbuf, recvcounts, operators.native(op)),
            op=op,
        )

    def Scan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combine the vectors of the ranks up to this one."""
        native = super().Scan
        self._collective(
            "scan", lambda c: arguments.parse_allreduce(sendbuf, recvbuf), lambda: native(sendbuf, recvbuf, op), op=op
        )

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combine the vectors of the ranks before this one; rank 0's receive buffer stays as it is."""
        native = super().Exscan
        self._collective(
            "exscan", lambda c: arguments.parse_allreduce(sendbuf, recvbuf), lambda: native(sendbuf, recvbuf, op), op=op
        )

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Start combining everybody's vectors everywhere; the buffers are mpicoll's until the request completes."""
        channel = self._open()
        call, served = self._prepare(channel, "allreduce", lambda c: arguments.parse_allreduce(sendbuf, recvbuf), 0, op)
        native = super().Iallreduce
        if served.plan is None:
            begin = lambda: native(sendbuf, recvbuf, operators.native(op))
            begun = calls.start_native(channel, call, served, begin)
            return begun if isinstance(begun, MPI.Request) else Request.launch(channel, begun)
        return Request.launch(channel, calls.flight(channel, call, served))

    # -- communicators out of this one ------------------------------------------------------------------

    def _same_class(self, comm: MPI.Comm) -> Any:
        return type(self)(comm)  # type: ignore[arg-type]

    def Dup(self, info: MPI.Info | None = None) -> Any:
        """A duplicate, of this class."""
        return self._same_class(super().Dup(info))

    def Clone(self) -> Any:
        """A duplicate without attributes, of this class."""
        return self._same_class(super().Clone())

    def Split(self, color: int = 0, key: int = 0) -> Any:
        """Parts of this communicator, of this class; COMM_NULL for color MPI.UNDEFINED."""
        return self._same_class(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Any:
        """Parts by split_type, of this class."""
        return self._same_class(super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Any:
        """The communicator of a group, of this class; COMM_NULL for ranks outside."""
        return self._same_class(super().Create(group))

    @classmethod
    def Create_from_group(cls, *args: Any, **kwargs: Any) -> Any:
        """The communicator of a group, of this class."""
        return cls(MPI.Intracomm.Create_from_group(*args, **kwargs))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Any:
        """The communicator of a group, collective over the group only, of this class."""
        return self._same_class(super().Create_group(group, tag))
