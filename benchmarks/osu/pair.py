"""Latency, bandwidth and bidirectional bandwidth between ranks 0 and 1, with OMB's order of messages and tags.

latency     rank 0 sends and receives, rank 1 receives and sends; half the time of both is one message's
bw          rank 0 sends a window of messages without waiting, rank 1 answers the whole window with one byte
bibw        both send a window, having posted the receives of the other's
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..cases.contents import moved, wrong
from . import layout
from .averages import MICRO, over_ranks, percentiles
from .collective import Clock
from .layout import Row
from .loops import Apart, Call, repeated
from .options import TYPES, Options, Repeats
from .programs import LATENCY, Program

PING, THERE, BACK, DONE = 1, 100, 10, 101  # tags


class Messages:
    """One rank's buffers: so many that it sends, and as many into which it receives, or none.

    A window of messages shares one buffer, as is the rule, or with -b multiple each has one of its own.
    """

    def __init__(self, kind: str, size: int, rank: int, buffers: int, receives: bool) -> None:
        dtype = np.dtype(TYPES[kind])
        n, other = size // dtype.itemsize, 1 - rank
        self.answer = moved(other, rank, n, dtype)
        self.sent = [moved(rank, other, n, dtype) for _ in range(buffers)]
        self.received = [np.zeros(n, dtype) for _ in range(buffers if receives else 0)]

    def poison(self) -> None:
        """Put a wrong value wherever a message may arrive."""
        for buffer in self.received:
            buffer[:] = wrong(self.answer)

    def is_right(self) -> bool:
        """Return whether every buffer holds what the other rank sends."""
        return all(np.array_equal(buffer, self.answer) for buffer in self.received)


class Pair:
    """Measures on a communicator of two ranks. clock tells seconds, as MPI.Wtime does."""

    def __init__(
        self, program: Program, options: Options, comm: Any, mpi: Any, clock: Clock = time.perf_counter
    ) -> None:
        self.program, self.options, self.comm, self.mpi, self.clock = program, options, comm, mpi, clock
        self.other = 1 - comm.rank
        self.window = 1 if program.kind == LATENCY else options.window

    def measure(self, kind: str, size: int, repeats: Repeats) -> Row:
        """Return the row of one type and size in bytes, the same on both ranks, from the time on rank 0. Collective."""
        rank, buffers = self.comm.rank, self.window if self.options.multiple else 1
        messages = Messages(kind, size, rank, buffers, receives=rank == 1 or self.program.name != "osu_bw")
        call = self._call(messages, getattr(self.mpi, kind.upper().removeprefix("MPI_")))
        around = CheckedPair(messages, call, self) if self.options.validate else Apart(self.comm.Barrier, "")
        self.comm.Barrier()
        seconds = repeated(self._once(call), around, repeats)[:, 0]
        self.comm.Bcast(seconds, 0)
        wrong = around.wrong if isinstance(around, CheckedPair) else 0
        right = not over_ranks(self.comm, self.mpi, wrong).most
        return {**self._figures(seconds, size), layout.VALIDATION: right}

    def _figures(self, seconds: np.ndarray, size: int) -> dict[Any, Any]:
        """Return the microseconds of one message, half a round trip's; or megabytes a second, of 10^6 bytes."""
        if self.program.kind == LATENCY:
            return {
                layout.AVERAGE: float(seconds.mean()) * MICRO / 2,
                **percentiles(seconds * MICRO / 2, self.options.percentiles),
            }
        megabytes = size / 1e6 * self.window * (2 if self.program.name == "osu_bibw" else 1)
        return {
            layout.SPEED: megabytes / float(seconds.mean()),
            **percentiles(megabytes / seconds, self.options.percentiles),
        }

    def _once(self, call: Call) -> Callable[[int], tuple[float]]:
        clock = self.clock

        def once(iteration: int) -> tuple[float]:
            began = clock()
            call()
            return (clock() - began,)

        return once

    def _call(self, messages: Messages, datatype: Any) -> Call:
        """Return what this rank does in one iteration."""
        n, first = len(messages.answer), self.comm.rank == 0
        share = self.window // len(messages.sent)
        sent, received = (
            [[buffer, n, datatype] for buffer in buffers] * share for buffers in (messages.sent, messages.received)
        )
        match self.program.name:
            case "osu_latency":
                return self._ping(sent[0], received[0]) if first else self._pong(sent[0], received[0])
            case "osu_bw":
                return self._stream(sent) if first else self._drain(received)
        return self._both_ways(sent, received, *((THERE, BACK) if first else (BACK, THERE)))

    def _ping(self, sent: Any, received: Any) -> Call:
        comm, other = self.comm, self.other

        def call() -> None:
            comm.Send(sent, other, PING)
            comm.Recv(received, other, PING)

        return call

    def _pong(self, sent: Any, received: Any) -> Call:
        comm, other = self.comm, self.other

        def call() -> None:
            comm.Recv(received, other, PING)
            comm.Send(sent, other, PING)

        return call

    def _stream(self, sent: list[Any]) -> Call:
        comm, other, wait, byte = self.comm, self.other, self.mpi.Request.Waitall, bytearray(1)

        def call() -> None:
            wait([comm.Isend(buffer, other, THERE) for buffer in sent])
            comm.Recv(byte, other, DONE)

        return call

    def _drain(self, received: list[Any]) -> Call:
        comm, other, wait, byte = self.comm, self.other, self.mpi.Request.Waitall, bytearray(1)

        def call() -> None:
            wait([comm.Irecv(buffer, other, THERE) for buffer in received])
            comm.Send(byte, other, DONE)

        return call

    def _both_ways(self, sent: list[Any], received: list[Any], there: int, back: int) -> Call:
        comm, other, wait = self.comm, self.other, self.mpi.Request.Waitall
        sends_first = comm.rank == 0

        def call() -> None:
            coming = [comm.Irecv(buffer, other, back) for buffer in received]
            going = [comm.Isend(buffer, other, there) for buffer in sent]
            wait(going if sends_first else coming)
            wait(coming if sends_first else going)

        return call


class CheckedPair:
    """With -c: what arrives is made wrong before each iteration, which begins with rounds that warm up."""

    def __init__(self, messages: Messages, call: Call, pair: Pair) -> None:
        self.messages, self.call = messages, call
        self.barrier, self.warmups = pair.comm.Barrier, pair.options.validation_warmup
        self.wrong = 0

    def before(self, iteration: int) -> None:
        self.messages.poison()
        self.barrier()
        for _ in range(self.warmups):
            self.call()

    def after(self, iteration: int) -> None:
        self.wrong += not self.messages.is_right()
