"""Define Comm, a drop-in MPI.Intracomm whose buffer collectives mpicoll runs, and its subclasses with topologies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, wraps
from typing import Any, TypeVar, cast

import numpy as np
from mpi4py import MPI

from ..diagnostics.fault_tolerance import missing
from ..dispatch import slow_path
from ..dispatch.methods import Method
from ..errors import CommError
from ..kernels import background
from ..progress.operation import CallId, Operation
from ..progress.stages import RequestStage
from ..runtime import duplicate
from ..runtime.comm_state import CommState
from ..runtime.topology import check_neighbour_ranks, stencil_of
from ..schedules.collectives import NONBLOCKING, PERSISTENT
from ..schedules.stencils import Stencil
from ..selection.select import native_choice
from . import persistent, persistent_turns
from .choosing import Selection
from .failures import FaultTolerance
from .lifetime import attach, check_usable, detach
from .methods import Collectives
from .neighbors import NeighborCollectives
from .objects import Objects
from .requests import Request, keep_buffers_alive
from .sparse import Sparse

CommType = TypeVar("CommType", bound="Comm")
_PREDEFINED = tuple(map(MPI._handleof, (MPI.COMM_WORLD, MPI.COMM_SELF)))


def _calls_errhandler(method: Any) -> Any:
    """Wrap a method to call the communicator's error handler before it raises an MPI.Exception."""

    @wraps(method)
    def calling(self: Comm, *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except MPI.Exception as error:
            state = self._state
            if state is not None:
                state.call_errhandler(error)
                name = next((part.name for part in arguments if isinstance(part, Method)), method.__name__)
                state.raise_if_ranks_failed(error, CallId(state.sequence, 0, name), native_choice(name, ""))
            raise

    return calling


class Comm(Collectives, Objects, Sparse, Selection, FaultTolerance):
    """An MPI.Intracomm whose collectives are mpicoll's; everything else is inherited.

    Comm(comm) is collective over comm: it makes a private communicator for mpicoll's messages, which is freed with
    comm, or at exit. Raises CommError for an intercommunicator. Methods have mpi4py's signatures and buffer forms.
    Errors are classes of mpicoll.errors, each also a subclass of the class that mpi4py raises for the same mistake.
    Vectors may be longer than 2**31 bytes and elements. Several threads may call collectives at once, each on its own
    communicators.
    """

    _state: CommState | None = None

    def __new__(cls, comm: MPI.Intracomm | None = None) -> Comm:
        """Return a new handle on the same MPI communicator."""
        if comm is not None and comm != MPI.COMM_NULL and not isinstance(comm, MPI.Intracomm):
            check_usable(comm)
            raise CommError(f"{comm!r} is not an intracommunicator")
        return super().__new__(cls, comm)

    def __init__(self, comm: MPI.Intracomm | None = None) -> None:
        if self != MPI.COMM_NULL:
            self._set_state(attach(self))

    def _open(self) -> CommState:
        """Return the state of the communicator. Raises CommError for a freed communicator or an intercommunicator."""
        state = self._state
        if state is None or state.freed or self == MPI.COMM_NULL:
            check_usable(self)
            state = attach(self)
            self._set_state(state)
        if background.state.pending or state.kernels != background.state.generation:
            state.update_kernels()
        if self._fast_call is not state.fast_path.fast_call:
            self._set_state(state)
        return state

    def _set_state(self, state: CommState) -> None:
        self._state = state
        self._fast_call = state.fast_path.fast_call

    def free(self) -> None:
        """Call Free, except on COMM_NULL, COMM_WORLD and COMM_SELF."""
        if self != MPI.COMM_NULL and MPI._handleof(self) not in _PREDEFINED:
            self.Free()

    # -- calls ------------------------------------------------------------------------------------------

    @_calls_errhandler
    def _call(self, method: Method, *arguments: Any) -> None:
        """Run a blocking call that the fast path did not serve, or complete one that it began."""
        slow_path.run(self._open(), self, method, *arguments)

    @_calls_errhandler
    def _start(self, method: Method, *arguments: Any) -> MPI.Request:
        """Start a nonblocking call that the fast path did not complete, and return its request."""
        state = self._open()
        started = slow_path.begin(state, self, NONBLOCKING, method, *arguments)
        if started is None:
            return Request.completed()
        if isinstance(started, Operation):
            return Request.launch(state, started)
        return keep_buffers_alive(started.call, started.request)

    @_calls_errhandler
    def begin(self, form: str, method: Method, *arguments: Any) -> Operation | None:
        """Begin a call as its blocking or nonblocking form would, for libraries that wait for it by other means.

        Return an operation for the caller to launch on the state's queue; None if the call is complete. arguments: send
        buffer, receive buffer, operator, root or recvcounts. Raises the errors of the method.
        """
        state, request = self._open(), Request() if form == NONBLOCKING else None
        if not self._fast_call(method, *arguments, *([request] if request is not None else [])):
            state.fast_path.note_line()
            if request is not None:
                MPI.Request.Wait(request)  # frees the complete request
            return None
        operation = slow_path.begin(state, self, form, method, *arguments, only_operations=True)
        return cast(Operation | None, operation)

    @_calls_errhandler
    def _init(self, info: MPI.Info, method: Method, *arguments: Any) -> MPI.Prequest:
        """Return a persistent request, which runs a call at every Start."""
        state = self._open()
        arguments = slow_path.with_recvcounts(state, self, PERSISTENT, method, arguments)
        if (turns := slow_path.prepare_candidates(state, method, *arguments)) is not None:
            return persistent_turns.prepare_turns(state, *turns)
        return persistent.prepare(state, self, slow_path.prepare_call(state, PERSISTENT, method, *arguments), info)

    # -- new communicators ------------------------------------------------------------------------------

    def Free(self) -> None:
        """Complete all collectives in flight on the communicator, and free it."""
        detach(self)
        super().Free()

    def Disconnect(self) -> None:
        """Free the communicator, and wait until all pending communication on the communicator is complete."""
        detach(self)
        super().Disconnect()

    def _child(self, comm_class: type[CommType], comm: Any, stencil: Stencil | None = None) -> CommType:
        """Return a communicator made from this one as an mpicoll class, with this one's settings."""
        if comm != MPI.COMM_NULL:
            try:
                attach(comm, self._open()).stencil = stencil
            except CommError:  # too many communicators: the program could not free this one
                comm.Free()
                raise
        return comm_class(comm)

    def _of_this_class(self, comm: MPI.Comm) -> Any:
        return self._child(type(self), comm)

    def _of_class_without_topology(self, comm: MPI.Comm) -> Any:
        """Return a communicator as this class, or as Comm if this class has a topology."""
        return self._child(Comm if isinstance(self, MPI.Topocomm) else type(self), comm)

    def Dup(self, info: MPI.Info | None = None) -> Any:
        """Return a duplicate of this class."""
        return self._of_this_class(super().Dup(info))

    def Dup_with_info(self, info: MPI.Info) -> Any:
        """Return a duplicate of this class with the hints in info."""
        return self._of_this_class(super().Dup_with_info(info))

    def Idup(self, info: MPI.Info | None = None) -> Any:
        """Return (a duplicate of this class with the same settings, the request that completes when it is usable)."""
        return self._with_request(*duplicate.begin_dup(self, info))

    def Idup_with_info(self, info: MPI.Info) -> Any:
        """Begin to duplicate as Idup does, with the hints in info."""
        return self.Idup(info)

    def _with_request(self, copy: MPI.Intracomm, request: MPI.Request) -> tuple[Any, Request]:
        """Return a duplicate in progress, and a request that completes with it and its private communicators."""
        state = self._open()
        own = state.begin_private_duplicates()

        def stage_of(mpi_request: MPI.Request) -> RequestStage:
            return RequestStage(duplicate.RevocableRequest(mpi_request, state.comm), "a communicator")

        def agreement_of(comm: MPI.Intracomm) -> RequestStage:
            return stage_of(comm.Iagree(np.ones(1, np.intc)))

        stages = [partial(stage_of, mpi_request) for mpi_request in (request, *(r for _, r in own))]
        if not missing():  # Open MPI 5.0 crashes if a rank revokes a duplicate that another rank still makes
            stages.append(partial(agreement_of, own[0][0]))
        finish = lambda: cast(Comm, copy)._set_state(attach(copy, state, [comm for comm, _ in own]))
        choice = native_choice("idup", "making a communicator")
        operation = Operation(choice, state.next_sequence(), stages, finish, own, NONBLOCKING, name="Idup")
        return copy, Request.launch(state, operation)

    def Clone(self) -> Any:
        """Return a duplicate of this class without attributes."""
        return self._of_this_class(super().Clone())

    def Split(self, color: int = 0, key: int = 0) -> Any:
        """Return the part of this rank's color: of this class, or Comm for a class with a topology.

        COMM_NULL for color MPI.UNDEFINED.
        """
        return self._of_class_without_topology(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Any:
        """Return the part of this rank's split_type, of the class that Split returns."""
        return self._of_class_without_topology(super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Any:
        """Return the communicator of a group, of the class that Split returns; COMM_NULL for ranks outside."""
        return self._of_class_without_topology(super().Create(group))

    @classmethod
    def Create_from_group(
        cls,
        group: MPI.Group,
        stringtag: str = "org.mpi4py",
        info: MPI.Info = MPI.INFO_NULL,
        errhandler: MPI.Errhandler | None = None,
    ) -> Any:
        """Return the communicator of a group, of the class that Split returns."""
        comm: Any = MPI.Intracomm.Create_from_group(group, stringtag, info, errhandler)
        return (Comm if issubclass(cls, MPI.Topocomm) else cls)(comm)

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Any:
        """Return the communicator of a group, of the class that Split returns. Collective over the group only."""
        return self._of_class_without_topology(super().Create_group(group, tag))

    # -- topologies -------------------------------------------------------------------------------------

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> Cartcomm:
        """Return a grid of these ranks; COMM_NULL for ranks outside the grid."""
        return self._child(Cartcomm, super().Create_cart(dims, periods, reorder))

    def Create_graph(self, index: Sequence[int], edges: Sequence[int], reorder: bool = False) -> Graphcomm:
        """Return a graph of these ranks, of which every rank passes all edges; COMM_NULL for ranks outside the graph.

        Raises RankError for an edge to a rank that is not in this communicator.
        """
        check_neighbour_ranks("edges", edges, self.size)
        return self._child(Graphcomm, super().Create_graph(index, edges, reorder))

    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int] | None,
        destinations: Sequence[int] | None,
        sourceweights: Sequence[int] | None = None,
        destweights: Sequence[int] | None = None,
        info: MPI.Info = MPI.INFO_NULL,
        reorder: bool = False,
    ) -> Distgraphcomm:
        """Return a graph of these ranks, of which every rank passes its own edges; None is no edges.

        Raises RankError for an edge to a rank that is not in this communicator.
        """
        check_neighbour_ranks("sources", sources, self.size)
        check_neighbour_ranks("destinations", destinations, self.size)
        arguments: Any = sources, destinations, sourceweights, destweights, info, reorder  # its types lack None
        return self._child(Distgraphcomm, super().Create_dist_graph_adjacent(*arguments))

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Sequence[int] | None = None,
        info: MPI.Info = MPI.INFO_NULL,
        reorder: bool = False,
    ) -> Distgraphcomm:
        """Return a graph of these ranks, of which a rank may pass any edges.

        Raises RankError for an edge to a rank that is not in this communicator.
        """
        check_neighbour_ranks("sources", sources, self.size)
        check_neighbour_ranks("destinations", destinations, self.size)
        arguments = sources, degrees, destinations, weights, info, reorder
        return self._child(Distgraphcomm, super().Create_dist_graph(*arguments))


class Cartcomm(NeighborCollectives, MPI.Cartcomm, Comm):
    """An MPI.Cartcomm whose collectives are mpicoll's. Cartcomm(comm) is collective as Comm(comm) is."""

    def Sub(self, remain_dims: Sequence[bool]) -> Any:
        """Return the subgrid of this rank with the remaining dimensions, of this class."""
        return self._of_this_class(super().Sub(remain_dims))

    def Create_stencil(self, offsets: Sequence[Sequence[int]], info: MPI.Info = MPI.INFO_NULL) -> Distgraphcomm:
        """Return a graph of these ranks in which every rank sends to those at the same offsets in the grid.

        Collective. Every rank passes the same offsets: for every neighbour, one integer per dimension of the grid.
        Blocks are in the order of offsets: block i is sent to the rank at offsets[i] from this one, and received from
        the rank at -offsets[i]. Neighbours beyond the border of a dimension that is not periodic have no block. One
        message may carry equal blocks of several neighbours, see "combining". Raises ArgumentError if offsets are not
        integers for every dimension, MismatchError if the ranks' offsets differ.
        """
        stencil = stencil_of(self, offsets)
        without_grid = duplicate.dup_without_attributes(self)  # Open MPI 5.0.11 makes a grid's graph a grid
        try:
            comm = without_grid.Create_dist_graph_adjacent(*stencil.lists(self.rank), info=info)
        finally:
            without_grid.Free()
        return self._child(Distgraphcomm, comm, stencil)


class Graphcomm(NeighborCollectives, MPI.Graphcomm, Comm):
    """An MPI.Graphcomm whose collectives are mpicoll's. Graphcomm(comm) is collective as Comm(comm) is."""


class Distgraphcomm(NeighborCollectives, MPI.Distgraphcomm, Comm):
    """An MPI.Distgraphcomm whose collectives are mpicoll's. Distgraphcomm(comm) is collective as Comm(comm) is."""

    def _of_this_class(self, comm: MPI.Comm) -> Any:
        return self._child(type(self), comm, self._open().stencil)
