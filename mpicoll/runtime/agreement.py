"""Agree on settings, the engine, nodes and the tuning table, when the first Comm of a communicator is made."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from mpi4py import MPI

from ..cost.network import Network
from ..diagnostics.peer_status import AGREEMENT
from ..engines import selftest
from ..errors import EngineError, spans
from ..kernels.background import NotCompiled
from ..kernels.digest import digest
from ..schedules.grouping import Partition
from ..selection.rules import Rule
from ..selection.select import NO
from ..selection.settings import Settings, read
from ..selection.tables import READ, Table, library, node
from .calibrate import measure
from .kept_network import kept_network

LOG = logging.getLogger("mpicoll")
COMPILING = "compiling kernels in the background, once per machine; using NumPy meanwhile"
MEASURING = 0.04  # seconds for measuring the network; slow links take longer, since each size is exchanged a few times
_measured: dict[Hashable, Network | None] = {}  # on rank 0, by library and nodes
_said = set[str]()  # warnings that were given


@dataclass(frozen=True)
class Agreed:
    """The values that are the same on every rank.

    The engine alone may differ: which one serves for "auto". Both engines send the same messages.
    """

    settings: Settings
    engine: str
    engine_why: str
    nodes: Partition  # the ranks of every node, in the order of their first ranks
    network: Network | None  # by whose model auto goes; None for fixed rules
    table: Table | None
    untuned: str  # why there is no table, though one was asked for

    def measured(self, collective: str) -> Sequence[Rule]:
        """Return the rules that the tuning table has for a collective."""
        return self.table.rules.get(collective, ()) if self.table is not None else ()


def agree(comm: MPI.Intracomm) -> Agreed:
    """Agree with all ranks. Collective, on a communicator that no other call uses meanwhile.

    It takes O(log p) messages a rank. Every rank raises the error that rank 0 met in its environment variables, and
    EngineError if a rank cannot run the engine that they name.
    """
    settings = _down_a_tree(comm, _settings() if comm.rank == 0 else None)
    if isinstance(settings, Exception):
        raise settings
    if settings.tuning is not None:
        READ.setdefault(settings.tuning.path, settings.tuning)  # this rank may be the first of another communicator
    nodes = nodes_of(comm)
    network = _network(comm, settings, nodes)
    return Agreed(settings, *_engine(comm, settings.engine), nodes, network, *_table(comm, settings, nodes))


def inherited(parent: Agreed, parent_comm: MPI.Intracomm, comm: MPI.Intracomm) -> Agreed:
    """Return what the ranks of comm would agree on, worked out from what a communicator that holds them all agreed on.

    Settings are the parent's; nodes and the tuning table are those of the ranks in comm. It sends no message.
    """
    groups = [communicator.Get_group() for communicator in (comm, parent_comm)]
    place = MPI.Group.Translate_ranks(groups[0], None, groups[1])
    for group in groups:
        group.Free()
    if place == list(range(parent_comm.size)):
        return with_compiled_kernels(parent, comm)
    here = {rank: i for i, rank in enumerate(place)}
    parts = (sorted(here[rank] for rank in node if rank in here) for node in parent.nodes)
    nodes = tuple(sorted(tuple(part) for part in parts if part))
    table, untuned = _table(comm, parent.settings, nodes)
    return with_compiled_kernels(replace(parent, nodes=nodes, table=table, untuned=untuned), comm)


def with_compiled_kernels(agreed: Agreed, comm: MPI.Intracomm) -> Agreed:
    """Return the same values with the engine that serves now; the compiled one may have arrived meanwhile."""
    if agreed.engine_why != COMPILING:
        return agreed
    engine, why = _engine(comm, agreed.settings.engine)
    return replace(agreed, engine=engine, engine_why=why)


def _down_a_tree(comm: MPI.Intracomm, value: Any) -> Any:
    """Return rank 0's value on every rank. Intel MPI's Bcast hangs where threads make communicators at once.

    The messages have a tag of their own: MPI may reuse the context of a freed communicator, in which a status message
    of a rank outside this one may still be unreceived.
    """
    rank, size = comm.rank, comm.size
    lowest = rank & -rank or 1 << (size - 1).bit_length()  # the lowest bit set: the tree is binomial
    if rank:
        value = comm.recv(source=rank - lowest, tag=AGREEMENT)
    while lowest := lowest >> 1:
        if rank + lowest < size:
            comm.send(value, rank + lowest, tag=AGREEMENT)
    return value


def nodes_of(comm: MPI.Intracomm) -> Partition:
    """Return the ranks of every node, in the order of their first ranks. Names are compared by digests of 64 bits.

    >>> nodes_of(MPI.COMM_SELF)
    ((0,),)
    """
    own = np.frombuffer(digest(node(MPI).encode(), 8), np.int64)
    every = np.empty(comm.size, np.int64)
    comm.Allgather(own, every)
    _, first, number = np.unique(every, return_index=True, return_inverse=True)
    ranks = np.argsort(number, kind="stable")
    ends = np.cumsum(np.bincount(number))[:-1]
    groups = [group.tolist() for group in np.split(ranks, ends)]
    return tuple(tuple(groups[at]) for at in np.argsort(first).tolist())


def _network(comm: MPI.Intracomm, settings: Settings, nodes: Partition) -> Network | None:
    """Return the network by whose model auto goes; measured once in a program for ranks that lie alike on its nodes."""
    if not settings.measures_network or comm.size == 1:
        return settings.network
    key = library(MPI), nodes, settings.keeps_network
    network: Network | None = _down_a_tree(comm, _measured.get(key) if comm.rank == 0 else None)
    if network is None:
        network = measure(comm, nodes, MEASURING, "the network as measured")
        if network is not None:
            network = replace(network, rough=True)
            network = kept_network(network, library(MPI), nodes) if settings.keeps_network else network
        network = _down_a_tree(comm, network)
    if comm.rank == 0:
        _measured[key] = network
    return network


def _settings() -> Settings | Exception:
    try:
        return read()
    except Exception as error:  # every rank raises it
        return error


def _engine(comm: MPI.Intracomm, asked: str) -> tuple[str, str]:
    """Return the engine that auto means on this rank, and why."""
    if asked == "compiled":
        problems = comm.allgather(selftest.check())
        if failed := [rank for rank, problem in enumerate(problems) if problem is not None]:
            where = f"on rank {spans(failed)}: {problems[failed[0]]}"
            raise EngineError(f"MPICOLL_ENGINE asks for the compiled engine, and it cannot run {where}")
    if asked != "auto":
        return asked, "chosen by MPICOLL_ENGINE"
    try:
        problem = selftest.check(wait=False)
    except NotCompiled:
        _say_once(comm, f"mpicoll: {COMPILING}")
        return "mpi4py", COMPILING
    if problem is None:
        return "compiled", "its self-test passed"
    _say_once(comm, f"the mpi4py engine serves, which is slower; compiled cannot run: {problem}")
    return "mpi4py", f"compiled cannot run: {problem}"


def _say_once(comm: MPI.Intracomm, why: str) -> None:
    """Warn once in a process, on rank 0 of a communicator of all ranks."""
    if comm.rank == 0 and comm.size == MPI.COMM_WORLD.size and why not in _said:
        _said.add(why)
        LOG.warning("%s", why)


def _table(comm: MPI.Intracomm, settings: Settings, nodes: Partition) -> tuple[Table | None, str]:
    """Return the tuning table for these ranks; or why there is none, though one was asked for."""
    tuning = settings.tuning
    if tuning is None:
        return None, ""
    if settings.engine != "auto":
        return None, f"MPICOLL_ENGINE chooses, and {tuning.path} was measured without"
    table, why = tuning.table(library(MPI), nodes)
    if table is None and settings.learn != NO:
        return None, ""  # what is learned will be the table
    if why:
        _say_once(comm, f"{why}; run mpicoll tune here")
    return table, why
