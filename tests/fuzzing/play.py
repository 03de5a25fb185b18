"""Carrying out a program in one thread of one rank.

Whatever may happen in any order happens in an order of the rank's own, drawn from the program's skew: when it goes on,
which persistent requests it starts first, and when, in which order and by which method it completes what is in flight.
Only what every rank has started before is waited for, so that every program here is a legal one.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI
from support.neighbors import edges

import mpicoll
from mpicoll.schedules.collectives import NONBLOCKING, PERSISTENT

from . import faults, graphs
from .buffers import Buffers, Edges, Nothing, Reducing, buffers
from .program import METHODS, NATIVE, Call, Program, Where

DELAY = 0.005           # the most seconds of one delay


@dataclass
class Pending:
    """A request in flight, and what must come of it."""

    number: int
    request: MPI.Request
    memory: Buffers


class Player:
    """A program in one thread of one rank: `wrong` has what went wrong here, `doing` what the thread is at."""

    def __init__(self, program: Program, world: MPI.Intracomm, thread: int = 0) -> None:
        """Create the communicators, which are this thread's alone. Collective."""
        self.program, self.world, self.thread = program, world, thread
        self.wrong: list[str] = []
        self.doing = "making communicators"
        # Thread 0 does what it would do alone: a program that needs no other thread is found by leaving them out.
        self.draw = random.Random(f"{program.skew} {world.rank}" + f" {thread}" * (thread > 0))
        self.pending: list[Pending] = []
        self.persistent: dict[int, tuple[MPI.Prequest, Buffers]] = {}
        self.plain: dict[Where, MPI.Intracomm] = {}
        self.ours: dict[Where, mpicoll.Comm] = {}
        self.edges: dict[Where, Edges] = {}
        with _variables(MPICOLL_CHECK=str(int(program.check)), MPICOLL_PROGRESS=str(int(program.progress))):
            for where in program.places:
                self._make_communicator(where)
        self.in_background = program.progress and MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.mine = [i for i, call in enumerate(program.calls) if self.plain[call.where] != MPI.COMM_NULL]

    @property
    def label(self) -> str:
        """Return the beginning of a line about this thread, empty if there is one only."""
        return f"thread {self.thread}: " if self.program.threads > 1 else ""

    def play(self) -> None:
        """Carry it out, but for what is collective over communicators: these are made before and freed afterwards."""
        with self._traced() as records:
            for number in range(self.program.rounds):
                self._round(number)
        self._check_records(records)
        for i in self.mine:
            self._ask_builtin(i)
        self._free_requests()
        self.doing = "over"

    def _make_communicator(self, where: Where) -> None:
        on, graph = where
        base = self.plain[on, ""] if graph else _part(self.world, self.program.comms[on])
        if not graph or base == MPI.COMM_NULL:
            self.plain[where], self.ours[where], self.edges[where] = base, mpicoll.Comm(base), ([], 0)
        else:
            self.plain[where], self.ours[where] = graphs.create_communicators(base, graph)
            self.edges[where] = edges(self.plain[where])

    # -- what runs ---------------------------------------------------------------------------------------

    def _round(self, number: int) -> None:
        stretch: list[int] = []
        for i in self.mine:
            call = self.program.calls[i]
            if call.form == PERSISTENT and number == 0:
                self._launch(stretch, number)
                stretch = []
                self._make(i)
            if call.starts:
                stretch.append(i)
                continue
            self._launch(stretch, number)
            stretch = []
            self._launch([i], number) if call.form == NONBLOCKING else self._call(i, number)
        self._launch(stretch, number)
        self._complete(self.pending)

    def _call(self, i: int, number: int) -> None:
        """Make a blocking call."""
        call = self.program.calls[i]
        if call.algorithm == NATIVE and not self.in_background:
            self._complete(self.pending)            # nothing of ours moves in it
        memory = self._memory(call)
        memory.load(self._salt(i, number))
        self._pause()
        self._carry_out(i, lambda method: method(*self._arguments(call, memory)))
        self._inspect(i, memory)

    def _make(self, i: int) -> None:
        """Create a persistent request."""
        call = self.program.calls[i]
        memory = self._memory(call)
        memory.load(self._salt(i, -1))              # no call may read it yet
        self._pause()
        request = self._carry_out(i, lambda method: method(*self._arguments(call, memory)))
        if request is not None:
            self.persistent[i] = request, memory

    def _launch(self, stretch: Sequence[int], number: int) -> None:
        """Start a stretch of calls, none of which waits for another rank, in an order of this rank's own."""
        earlier = list(self.pending)
        for i in self._shuffled(stretch):
            self._pause()
            self._poke(earlier)
            self._start(i, number)
        if self._chance(0.4):
            self._complete(self.draw.sample(self.pending, self.draw.randint(0, len(self.pending))))

    def _start(self, i: int, number: int) -> None:
        call = self.program.calls[i]
        if call.form == PERSISTENT:
            if i not in self.persistent:            # could not be made
                return
            request, memory = self.persistent[i]
            memory.load(self._salt(i, number))
            self.doing = f"starting call {i}: {call}"
            try:
                request.Start()
            except Exception as error:
                return self._note(i, f"Start raised {type(error).__name__}: {error}")
        else:
            memory = self._memory(call)
            memory.load(self._salt(i, number))
            request = self._carry_out(i, lambda method: method(*self._arguments(call, memory)))
        if request is not None:
            self.pending.append(Pending(i, request, memory))

    def _carry_out(self, i: int, make: Callable[[Any], Any]) -> Any:
        call = self.program.calls[i]
        comm = self.ours[call.where]
        self.doing = f"call {i}: {call}"
        try:
            with comm.using(**call.choices):
                return make(getattr(comm, METHODS[call.method].spelled(call.form)))
        except Exception as error:
            self._note(i, f"raised {type(error).__name__}: {error}")
            return None

    def _arguments(self, call: Call, memory: Buffers) -> list[Any]:
        return [*memory.arguments, *[call.root] * call.rooted]

    def _memory(self, call: Call) -> Buffers:
        return buffers(call, self.program.size(call), self.plain[call.where].rank, self.edges[call.where])

    def _salt(self, i: int, number: int) -> int:
        """Return a number by which each call has its own data in each thread."""
        return 1 + i + 7 * (1 + number) + 31 * self.thread

    # -- completion --------------------------------------------------------------------------------------

    def _complete(self, these: Sequence[Pending]) -> None:
        """Complete requests, all of which every rank has started or will without waiting for this one."""
        these = list(these)
        if self._chance(0.8):
            self.draw.shuffle(these)
        ways = [self._one_by_one, self._all, self._any, self._some]
        way = self.draw.choice(ways) if self.program.skew else self._one_by_one
        self.doing = f"completing calls {[call.number for call in these]}, {way.__name__}"
        try:
            way(these)
        except Exception as error:
            self.wrong.append(f"{self.doing}: raised {type(error).__name__}: {error}")
            for call in these:
                with suppress(Exception):
                    call.request.Wait()
        for call in these:
            self.pending.remove(call)
            self._inspect(call.number, call.memory)

    @property
    def _lists(self) -> Any:
        """Return the class whose Waitall to call: any with the progress thread, else one that advances operations."""
        return self.draw.choice([MPI.Request, mpicoll.Request]) if self.in_background else mpicoll.Request

    def _one_by_one(self, these: Sequence[Pending]) -> None:
        for call in these:
            # Without the thread, MPI's own Test and Wait advance none of ours.
            alone = self.in_background or isinstance(call.request, mpicoll.Request | mpicoll.Prequest)
            if self._chance(0.5):
                while not (call.request.Test() if alone else mpicoll.Request.Testall([call.request])):
                    self._pause(0.1)
            elif alone:
                call.request.Wait()
            else:
                mpicoll.Request.Waitall([call.request])

    def _all(self, these: Sequence[Pending]) -> None:
        requests, lists = [call.request for call in these], self._lists
        fails = lists is MPI.Request and faults.of_testall() and any(map(_is_persistent_native, requests))
        if fails or self._chance(0.5):
            lists.Waitall(requests)
            return
        while not lists.Testall(requests):
            self._pause(0.1)

    def _any(self, these: Sequence[Pending]) -> None:
        requests, lists = [call.request for call in these], self._lists
        for _ in requests:
            lists.Waitany(requests)

    def _some(self, these: Sequence[Pending]) -> None:
        requests, lists, done = [call.request for call in these], self._lists, 0
        while done < len(requests):
            done += len(lists.Waitsome(requests) or requests)

    def _poke(self, earlier: list[Pending]) -> None:
        """Advance, or complete, something that was in flight before this stretch."""
        still = [call for call in earlier if call in self.pending]
        if still and self._chance(0.3):
            self._complete([self.draw.choice(still)])

    # -- an order of one's own ---------------------------------------------------------------------------

    def _chance(self, share: float) -> bool:
        return bool(self.program.skew) and self.draw.random() < share

    def _pause(self, share: float = 0.3) -> None:
        if self._chance(share):
            time.sleep(self.draw.uniform(0, DELAY))

    def _shuffled(self, stretch: Sequence[int]) -> list[int]:
        """Return a stretch shuffled; calls on one communicator keep their order unless they run plans of mpicoll."""
        if not self.program.skew:
            return list(stretch)
        order = self.draw.sample(stretch, len(stretch))
        for where in self.plain:
            places = [k for k, i in enumerate(order) if self.program.calls[i].where == where and self._keeps_order(i)]
            for k, i in zip(places, sorted(order[k] for k in places)):
                order[k] = i
        return order

    def _keeps_order(self, i: int) -> bool:
        call = self.program.calls[i]
        return call.form != PERSISTENT or _is_native(call)

    # -- what must hold ----------------------------------------------------------------------------------

    def _note(self, i: int, text: str) -> None:
        self.wrong.append(f"call {i}, {self.program.calls[i].method}: {text}")

    def _inspect(self, i: int, memory: Buffers) -> None:
        if text := memory.wrong():
            self._note(i, text)

    def _check_records(self, records: Sequence[list[Any]]) -> None:
        """Check that the chosen algorithms and engines ran."""
        for where, traced in zip(self.ours, records, strict=True):
            calls = [self.program.calls[i] for i in self.mine if self.program.calls[i].where == where]
            forced = Counter((c.collective, c.form, c.algorithm) for c in calls * self.program.rounds
                             if c.algorithm not in ("auto", NATIVE))
            ran = Counter((r.collective, r.form, r.algorithm) for r in traced)
            if missing := forced - ran:
                self.wrong.append(f"the trace of communicator {where} lacks {dict(missing)}")
            engines = Counter((c.collective, c.form, c.engine) for c in calls * self.program.rounds
                              if c.engine and not _is_native(c))
            if missing := engines - Counter((r.collective, r.form, r.engine) for r in traced):
                self.wrong.append(f"the trace of communicator {where} lacks {dict(missing)}")
            want = sum(self.program.rounds for c in calls if not _is_native(c))
            # of recvcounts that are left out: an Allgather in every call, one for a persistent request
            want += sum(1 if c.form == PERSISTENT else self.program.rounds for c in calls if faults.asks_for_counts(c))
            native = sum(_is_native(c) for c in calls)          # a record when made, or every time
            if not want + native <= len(traced) <= want + native * self.program.rounds:
                self.wrong.append(f"the trace of communicator {where} has {len(traced)} calls, not {want} and {native}")

    def _ask_builtin(self, i: int) -> None:
        """Check that the MPI's own collective gives the same result, unless that MPI has a known fault there."""
        call = self.program.calls[i]
        memory = self._memory(call)
        unsaid = isinstance(memory, Nothing) or (isinstance(memory, Reducing) and memory.nothing_said)
        if call.op == "AVG" or faults.known(call, self.program.size(call), self.program.threads):
            return
        memory.load(self._salt(i, 0))
        self.doing = f"the MPI's own for call {i}: {call}"
        try:
            getattr(self.plain[call.where], call.method)(*self._arguments(call, memory))
        except Exception as error:
            self._note(i, f"the MPI's own collective raised {type(error).__name__}: {error}")
        if not unsaid and (text := memory.wrong()):
            self._note(i, f"the MPI's own collective disagrees with NumPy: {text}")

    # -- the ends ----------------------------------------------------------------------------------------

    @contextmanager
    def _traced(self) -> Iterator[list[list[Any]]]:
        """Yield the traces of every communicator."""
        records: list[list[Any]] = []
        traces = [comm.trace() for comm in self.ours.values() if comm != MPI.COMM_NULL]
        opened = iter([trace.__enter__() for trace in traces])
        records = [next(opened) if comm != MPI.COMM_NULL else [] for comm in self.ours.values()]
        yield records
        for trace in traces:
            trace.__exit__(None, None, None)

    def _free_requests(self) -> None:
        """Free persistent requests in any order, or leave them to the garbage collector."""
        self.doing = "freeing requests"
        requests = [request for request, _ in self.persistent.values()]
        if self.program.skew:
            self.draw.shuffle(requests)
        for request in requests:
            if not isinstance(request, mpicoll.Prequest) or not self._chance(0.3):
                request.Free()
        self.persistent.clear()

    def free(self) -> None:
        """Free the communicators, on which nothing may be left. Collective, once every thread of this rank is over."""
        self.doing = "freeing communicators"
        for comm in self.plain.values():
            if comm != MPI.COMM_NULL:
                if comm.Iprobe():
                    self.wrong.append("a message was left on the user's communicator")
                comm.Free()


def _is_native(call: Call) -> bool:
    """Return whether MPI's own collective serves a call."""
    return call.algorithm == NATIVE


def _is_persistent_native(request: MPI.Request) -> bool:
    return isinstance(request, MPI.Prequest) and not isinstance(request, mpicoll.Prequest)


def _part(world: MPI.Intracomm, members: Sequence[int]) -> MPI.Intracomm:
    """Return a plain communicator of some ranks, in this order; COMM_NULL elsewhere."""
    here = world.rank in members
    return MPI.Intracomm(world).Split(0 if here else MPI.UNDEFINED, members.index(world.rank) if here else 0)


@contextmanager
def _variables(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
