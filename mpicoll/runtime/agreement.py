"""Agree on settings, engine, nodes, network and tuning table when the first Comm of a communicator is made."""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from mpi4py import MPI

from ..cost import event_loop
from ..cost.network import Network
from ..diagnostics.fault_tolerance import missing, note_hosts
from ..diagnostics.peer_records import note_processes
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
from ..selection.uneven import has_classes
from .calibrate import measure
from .network_cache import cached_network

LOG = logging.getLogger("mpicoll")
COMPILING = "compiling kernels in the background, once per machine; using NumPy meanwhile"
MEASURE_SECONDS = 0.04  # for the network; slow links take longer, since every size is exchanged a few times
HOST_BYTES = 56  # that the ranks exchange of the name of their host
_measured: dict[Hashable, Network | None] = {}  # on rank 0, by MPI library and nodes
_warned = set[str]()  # warnings that this process has logged


@dataclass(frozen=True)
class Agreed:
    """Settings and choices that are equal on every rank, except for the engine.

    With "auto" a rank that cannot run the compiled engine uses the other. Both engines send the same messages.
    """

    settings: Settings
    engine: str
    engine_why: str
    nodes: Partition  # the ranks of every node, in the order of their first ranks
    network: Network | None  # the cost model of auto; None for fixed rules
    table: Table | None
    untuned: str  # why a requested tuning table is not used; empty if it is, or none was requested
    simulates: bool = False  # whether every rank can simulate schedules in compiled code

    @property
    def chooses_by_skew(self) -> bool:
        """Return whether the skew of a call's counts decides, equal on every rank: see selection/uneven.py."""
        return self.simulates and has_classes(self.network, self.nodes)

    def measured(self, collective: str) -> Sequence[Rule]:
        """Return the rules of the tuning table for a collective."""
        return self.table.rules.get(collective, ()) if self.table is not None else ()


def agree(comm: MPI.Intracomm) -> Agreed:
    """Agree with all ranks. Collective, on a communicator that no other call uses meanwhile.

    A rank sends O(log p) messages, apart from a measurement of the network. If rank 0 cannot parse its environment
    variables, every rank raises that error. Raises EngineError if a rank cannot run the engine that they name.
    """
    settings = _broadcast(comm, _settings() if comm.rank == 0 else None)
    if isinstance(settings, Exception):
        raise settings
    if settings.tuning is not None:
        READ.setdefault(settings.tuning.path, settings.tuning)  # this rank may be the first of another communicator
    nodes, simulates = _nodes(comm)
    network = _network(comm, settings, nodes)
    engine = _engine(comm, settings.engine)
    return Agreed(settings, *engine, nodes, network, *_table(comm, settings, nodes), simulates)


def inherit(parent: Agreed, parent_comm: MPI.Intracomm, comm: MPI.Intracomm) -> Agreed:
    """Derive the values for comm from those of a communicator that contains its ranks, without messages.

    Settings are the parent's. Nodes and tuning table are those of the ranks in comm.
    """
    groups = [communicator.Get_group() for communicator in (comm, parent_comm)]
    parent_ranks = MPI.Group.Translate_ranks(groups[0], None, groups[1])
    for group in groups:
        group.Free()
    if parent_ranks == list(range(parent_comm.size)):
        return with_compiled_kernels(parent, comm)
    own_ranks = {parent_rank: rank for rank, parent_rank in enumerate(parent_ranks)}
    parts = (sorted(own_ranks[rank] for rank in node if rank in own_ranks) for node in parent.nodes)
    nodes = tuple(sorted(tuple(part) for part in parts if part))
    table, untuned = _table(comm, parent.settings, nodes)
    return with_compiled_kernels(replace(parent, nodes=nodes, table=table, untuned=untuned), comm)


def with_compiled_kernels(agreed: Agreed, comm: MPI.Intracomm) -> Agreed:
    """Return the same values, with the compiled engine if its kernels have been compiled meanwhile."""
    if agreed.engine_why != COMPILING:
        return agreed
    engine, why = _engine(comm, agreed.settings.engine)
    return replace(agreed, engine=engine, engine_why=why)


def _broadcast(comm: MPI.Intracomm, value: Any) -> Any:
    """Return rank 0's value on every rank, sent down a binomial tree.

    Intel MPI's Bcast hangs if other threads make communicators meanwhile. The messages have a tag of their own: MPI
    may reuse the context of a freed communicator, in which a status message may still be unreceived.
    """
    rank, size = comm.rank, comm.size
    lowest = rank & -rank or 1 << (size - 1).bit_length()  # the lowest bit set in the rank
    if rank:
        value = comm.recv(source=rank - lowest, tag=AGREEMENT)
    while lowest := lowest >> 1:
        if rank + lowest < size:
            comm.send(value, rank + lowest, tag=AGREEMENT)
    return value


def nodes_of(comm: MPI.Intracomm) -> Partition:
    """Return the ranks of every node, in the order of their first ranks. Collective.

    >>> nodes_of(MPI.COMM_SELF)
    ((0,),)
    """
    return _nodes(comm)[0]


def _nodes(comm: MPI.Intracomm) -> tuple[Partition, bool]:
    """Return the ranks of every node, whose names are compared by 64-bit digests; and whether all ranks can simulate.

    The same messages carry the process ids, by which ranks of one node read each other's records. Where ranks may fail,
    they carry the names of hosts, which errors of failed ranks name.
    """
    name = node(MPI)
    host = b"" if missing() else name.partition(" ")[0].encode()[:HOST_BYTES].ljust(HOST_BYTES, b"\0")
    facts = struct.pack("2q", os.getpid(), event_loop.is_ready(wait=False))
    own = np.frombuffer(digest(name.encode(), 8) + facts + host, np.uint8)
    of_ranks = np.empty((comm.size, len(own)), np.uint8)
    comm.Allgather(own, of_ranks)
    digests, processes, can_simulate = of_ranks[:, :24].copy().view(np.int64).T
    note_processes(comm, processes.tolist())
    if host:
        note_hosts(comm, [row[24:].tobytes().rstrip(b"\0").decode(errors="replace") for row in of_ranks])
    _, first_ranks, node_numbers = np.unique(digests, return_index=True, return_inverse=True)
    ranks = np.argsort(node_numbers, kind="stable")
    ends = np.cumsum(np.bincount(node_numbers))[:-1]
    nodes = [node_ranks.tolist() for node_ranks in np.split(ranks, ends)]
    return tuple(tuple(nodes[number]) for number in np.argsort(first_ranks).tolist()), bool(can_simulate.all())


def _network(comm: MPI.Intracomm, settings: Settings, nodes: Partition) -> Network | None:
    """Return the network for auto's cost model, measured once in a process for each placement of ranks on nodes."""
    if not settings.measures_network or comm.size == 1:
        return settings.network
    key = library(MPI), nodes, settings.keeps_network
    network: Network | None = _broadcast(comm, _measured.get(key) if comm.rank == 0 else None)
    if network is None:
        network = measure(comm, nodes, MEASURE_SECONDS, "the network as measured")
        if network is not None:
            network = replace(network, rough=True)
            network = cached_network(network, library(MPI), nodes) if settings.keeps_network else network
        network = _broadcast(comm, network)
    if comm.rank == 0:
        _measured[key] = network
    return network


def _settings() -> Settings | Exception:
    try:
        return read()
    except Exception as error:  # rank 0 broadcasts it, and every rank raises it
        return error


def _engine(comm: MPI.Intracomm, requested: str) -> tuple[str, str]:
    """Return the engine that this rank uses for a requested one or "auto", and why."""
    if requested == "compiled":
        problems = comm.allgather(selftest.check())
        if failed := [rank for rank, problem in enumerate(problems) if problem is not None]:
            where = f"on rank {spans(failed)}: {problems[failed[0]]}"
            raise EngineError(f"MPICOLL_ENGINE asks for the compiled engine, and it cannot run {where}")
    if requested != "auto":
        return requested, "chosen by MPICOLL_ENGINE"
    try:
        problem = selftest.check(wait=False)
    except NotCompiled:
        _warn_once(comm, f"mpicoll: {COMPILING}")
        return "mpi4py", COMPILING
    if problem is None:
        return "compiled", "its self-test passed"
    _warn_once(comm, f"the mpi4py engine serves, which is slower; compiled cannot run: {problem}")
    return "mpi4py", f"compiled cannot run: {problem}"


def _warn_once(comm: MPI.Intracomm, message: str) -> None:
    """Log a warning once in a process, on rank 0 of a communicator of all ranks."""
    if comm.rank == 0 and comm.size == MPI.COMM_WORLD.size and message not in _warned:
        _warned.add(message)
        LOG.warning("%s", message)


def _table(comm: MPI.Intracomm, settings: Settings, nodes: Partition) -> tuple[Table | None, str]:
    """Return the tuning table for these ranks and "", or None and why a requested table is not used."""
    tuning = settings.tuning
    if tuning is None:
        return None, ""
    if settings.engine != "auto":
        return None, f"{tuning.path} is ignored: it was measured with the default engine, but MPICOLL_ENGINE is set"
    table, why = tuning.table(library(MPI), nodes)
    if table is None and settings.learn != NO:
        return None, ""  # calls will measure a new one
    if why:
        _warn_once(comm, f"{why}; run mpicoll tune here")
    return table, why
