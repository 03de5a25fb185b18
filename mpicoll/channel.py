"""What mpicoll keeps for a communicator: a private one for its messages, plans, settings, what is in flight.

It hangs on the user's communicator as an MPI attribute, so that every Comm object of the same communicator
shares it and it goes when the communicator does.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import numpy as np
from mpi4py import MPI

from . import progress, stall
from .engines import selftest
from .errors import CommError, EngineError, spans
from .flight import Flight, Record
from .parameters import Partition
from .plan import ALIGN, SEQUENCES
from .select import Choice, Overrides
from .settings import Settings, read

PLANS = 512  # plans kept per communicator and choice of overrides
OVERRIDES = 64  # choices of overrides whose plans are kept
SPIN = 0.01  # seconds an engine may run before signals, stalls and other flights are looked after
KEEP_SCRATCH = 64 << 20  # bytes of scratch kept for the next call

_live: OrderedDict[int, Channel] = OrderedDict()  # type: ignore[name-defined]
_keyval: int | None = None


def attach(comm: MPI.Intracomm) -> Channel:
    """The channel of a communicator, made if there is none yet (collective then)."""
    global _keyval
    if _keyval is None:
        _keyval = MPI.Comm.Create_keyval(delete_fn=_deleted)
    channel: Any = comm.Get_attr(_keyval)
    if channel is None:
        channel = Channel(comm)
        comm.Set_attr(_keyval, channel)
        _live[id(channel)] = channel
    return channel


def _deleted(comm: MPI.Comm, keyval: int, channel: Channel) -> None:
    channel.free()


@atexit.register
def _close() -> None:
    """Before MPI_Finalize: no thread in MPI, no communicator left."""
    progress.THREAD.stop()
    if MPI.Is_initialized() and not MPI.Is_finalized():
        for channel in list(_live.values()):
            channel.free(drain=False)


class Channel:
    """The private side of one communicator."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = MPI.Intracomm(comm).Dup()  # a plain one: its collectives are MPI's own
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = comm.rank, comm.size
        self.settings: Settings = self._agreed_settings()
        self.engine, self.engine_why = self._agree_engine()
        self.caches: dict[Overrides, OrderedDict[Hashable, Any]] = {}
        self.override(Overrides())
        self.sequence = 0
        self.flying: list[Flight] = []
        self.slots: dict[int, Flight] = {}
        self.lock = threading.RLock()
        self.traces: list[list[Record]] = []
        self.said: set[str] = set()
        self.abandoned: list[Any] = []  # what broke off with messages still posted: its memory must stay
        self.scratch: np.ndarray | None = None
        self.freed = False
        self.nodes: Partition | None = None

    def _agreed_settings(self) -> Settings:
        found: Any = None
        if self.rank == 0:
            try:
                found = read()
            except Exception as error:  # every rank raises it
                found = error
        found = self.comm.bcast(found)
        if isinstance(found, Exception):
            self.comm.Free()
            raise found
        return found

    def _agree_engine(self) -> tuple[str, str]:
        """The engine auto means here; a fact of this rank, since both engines send the same messages."""
        if self.settings.engine == "compiled":
            self._all_can_compile()
        if self.settings.engine != "auto":
            return self.settings.engine, "chosen by MPICOLL_ENGINE"
        problem = selftest.check()
        return (
            ("compiled", "its self-test passed") if problem is None else ("mpi4py", f"compiled cannot run: {problem}")
        )

    def find_nodes(self) -> Partition:
        """The ranks that share memory, node by node. Collective the first time, and completes what is in flight."""
        if self.nodes is None:
            self.drain()
            node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
            first = self.comm.allgather(node.bcast(self.rank))
            node.Free()
            self.nodes = tuple(tuple(r for r in range(self.size) if first[r] == f) for f in sorted(set(first)))
        return self.nodes

    def _all_can_compile(self) -> None:
        """Raise on every rank where one cannot do what the environment asks for."""
        problems = self.comm.allgather(selftest.check())
        failed = [rank for rank, problem in enumerate(problems) if problem is not None]
        if failed:
            self.comm.Free()
            where = f"on rank {spans(failed)}: {problems[failed[0]]}"
            raise EngineError(f"MPICOLL_ENGINE asks for the compiled engine, and it cannot run {where}")

    def use_engine(self, engine: str) -> None:
        """Check that an engine chosen by using() can run. Raises EngineError."""
        if engine == "compiled" and (problem := selftest.check()) is not None:
            raise EngineError(f"the compiled engine was asked for and cannot run here: {problem}")

    # -- what calls need --------------------------------------------------------------------------------

    def override(self, overrides: Overrides) -> dict[Hashable, Any]:
        """Put other overrides in force, with a cache of their own for what serves calls."""
        self.overrides = overrides
        self.prepared = self.caches.setdefault(overrides, OrderedDict())
        if len(self.caches) > OVERRIDES:
            del self.caches[next(x for x in self.caches if x is not overrides)]
        return self.prepared

    def remember(self, key: Hashable, prepared: Any) -> None:
        """Keep what serves a kind of call, the oldest going when there are too many."""
        self.prepared[key] = prepared
        if len(self.prepared) > PLANS:
            self.prepared.popitem(last=False)

    def take_scratch(self, nbytes: int) -> np.ndarray:
        """An array that holds nbytes from an aligned address on; see aligned()."""
        kept, self.scratch = self.scratch, None
        if kept is not None and len(kept) >= nbytes + ALIGN:
            return kept
        return np.empty(nbytes + ALIGN, np.uint8)

    def give_scratch(self, array: np.ndarray | None) -> None:
        """Keep the larger one for the next call."""
        if (
            array is not None
            and len(array) <= KEEP_SCRATCH
            and (self.scratch is None or len(self.scratch) < len(array))
        ):
            self.scratch = array

    # -- flights ----------------------------------------------------------------------------------------

    def next_sequence(self) -> int:
        """The number of a call, the same on every rank."""
        self.sequence += 1
        return self.sequence

    def launch(self, flight: Flight) -> None:
        """Take a flight up; it shares its tags with an earlier one only after that is done."""
        with self.lock:
            slot = flight.sequence % SEQUENCES
            earlier = self.slots.get(slot)
            flight.after = earlier if earlier is not None and not earlier.done else None
            self.slots[slot] = flight
            self.flying.append(flight)

    def run(self, flight: Flight) -> None:
        """Launch a flight and stay until it is done, advancing all others too. Raises what it raised."""
        self.launch(flight)
        self.wait(flight)

    def wait(self, flight: Flight) -> None:
        """Advance everything until this flight is done. Raises what it raised."""
        while not flight.done:
            with self.lock:
                if flight.done:
                    break
                alone = len(self.flying) == 1
                if not self.step(SPIN if alone else 0.0):
                    stall.watch(self.flying, self.rank, self.settings, time.monotonic())
            if not flight.done and not alone:
                time.sleep(0)
        if flight.error is not None:
            raise flight.error

    def step(self, seconds: float) -> bool:
        """Advance every flight once; whether any came to its end."""
        ended = [flight for flight in self.flying if flight.step(seconds)]
        for flight in ended:
            self.flying.remove(flight)
            if flight.stage is not None:
                self.abandoned.append(flight)
            if self.slots.get(flight.sequence % SEQUENCES) is flight:
                del self.slots[flight.sequence % SEQUENCES]
        return bool(ended)

    def poll(self) -> bool:
        """A pass of the progress thread; whether anything is left in flight."""
        with self.lock:
            if self.flying and not self.freed:
                self.step(0.0)
                stall.watch(self.flying, self.rank, self.settings, time.monotonic())
            return bool(self.flying)

    def background(self) -> None:
        """Let the progress thread see to what is in flight."""
        if self.flying and self.settings.progress and progress.ProgressThread.possible():
            progress.THREAD.watch(self)

    # -- telling ----------------------------------------------------------------------------------------

    def record(self, record: Record) -> None:
        """Note what ran, where somebody traces."""
        for trace in self.traces:
            trace.append(record)

    def say_once(self, choice: Choice) -> None:
        """Tell the user, once per reason and from rank 0, that a call runs native though nobody asked for it."""
        if self.rank == 0 and not choice.forced and choice.why not in self.said:
            self.said.add(choice.why)
            logging.getLogger("mpicoll").warning("%s runs native: %s", choice.collective, choice.why)

    def drain(self) -> None:
        """Complete what is in flight."""
        with self.lock:
            while self.flying:
                self.step(SPIN)
                stall.watch(self.flying, self.rank, self.settings, time.monotonic())

    # -- the end ----------------------------------------------------------------------------------------

    def free(self, drain: bool = True) -> None:
        """Complete what is in flight and give the private communicator back; again is harmless."""
        if self.freed:
            return
        with self.lock:
            if drain:
                self.drain()
            self.freed = True
            self.caches.clear()
            self.prepared.clear()
            self.abandoned.clear()
            _live.pop(id(self), None)
            if self.comm != MPI.COMM_NULL:
                self.comm.Free()


def check_usable(comm: MPI.Intracomm) -> None:
    """Raises CommError for a communicator no collective can run on."""
    if comm == MPI.COMM_NULL:
        raise CommError("the communicator is MPI.COMM_NULL or was freed; make a Comm from one that is alive")
    if comm.Is_inter():
        raise CommError("this is an intercommunicator; mpicoll serves intracommunicators, Merge() makes one")
