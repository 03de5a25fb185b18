"""Let blocking calls take turns among algorithms, and agree with the other ranks on the fastest."""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from mpi4py import MPI

from ..cost.network import network
from ..errors import MpicollError
from ..progress.operation import Operation
from ..progress.stages import RequestStage
from ..runtime.calibrate import UNKNOWN
from ..runtime.channel import Channel
from ..selection.learning import Lesson, candidates, size_class
from ..selection.rules import UNKNOWN_TO_ALL
from ..selection.select import BITS, choose, native_choice
from ..selection.tables import layout, library, row, write
from . import methods, sums
from .call import Call
from .prepare import select

LOG = logging.getLogger("mpicoll")


def lesson(channel: Channel, call: Call) -> Lesson | None:
    """Return the lesson in which calls of a kind take turns: all ranks know its bytes, and nothing says what is to run.

    The answer is the same on every rank. It is asked before the call is prepared.
    """
    kernel, overrides = call.operator, channel.overrides
    plain = kernel is None or not (call.missing or call.averages or kernel.is_low or sums.are_float32(channel, kernel))
    if (
        not overrides.learns
        or channel.size == 1
        or not (plain and call.commutative)
        or call.collective in UNKNOWN_TO_ALL
        or call.invocation.method is methods.REDUCE_SCATTER  # whose recvcounts a rank may leave out
        or channel.settings.check
        or channel.compared_until
        or (overrides.chunk_bytes or overrides.window or overrides.engine or overrides.seed is not None)
    ):
        return None
    nbytes = call.nbytes(channel.size)
    choice = select(channel, call.collective, nbytes, True)
    return None if choice.forced or choice.measured else _lesson(channel, call.collective, nbytes)


def _lesson(channel: Channel, collective: str, nbytes: int) -> Lesson | None:
    """Return the lesson of a size class; None where there is nothing to choose from.

    It depends on the class alone, not on which call is the first to ask.
    """
    learns, lessons = channel.overrides.learn or BITS, channel.lessons.under_way
    least, most = size_class(nbytes)
    key = collective, least, learns
    if key not in lessons:
        agreed, typical = channel.agreed, (least + most) // 2
        net, table = agreed.network or network(UNKNOWN), agreed.measured(collective)
        overrides, size, nodes = channel.overrides, channel.size, agreed.nodes
        choice = choose(collective, typical, size, True, overrides, agreed.engine, nodes, table, agreed.network)
        what = candidates(choice, typical, size, nodes, net, learns)
        lessons[key] = Lesson(collective, typical, what) if len(what) > 1 else None
    return lessons[key]


def end(channel: Channel, over: Lesson) -> None:
    """Agree with the other ranks on what was the fastest, and go by it from the next call on. Collective.

    The lesson begins again if a rank ran a turn without its compiled kernels.
    """
    us = over.measured()
    *slowest, in_doubt = _slowest(channel, np.append(us, over.is_in_doubt))
    if in_doubt:
        over.begin()
        return
    rule = channel.lessons.end(over, channel.overrides.learn or BITS, np.reshape(slowest, us.shape))
    channel.forget()
    if channel.rank == 0:
        LOG.info("%s: %s: %s", over.collective, rule.algorithm, rule.why)
        _write(channel, over.collective)


def meet(channel: Channel) -> None:
    """Wait for all ranks before a turn, so that it is not timed with what an earlier call left under way."""
    _wait(channel, channel.comm.Ibarrier(), "barrier", None)


def _slowest(channel: Channel, us: np.ndarray) -> np.ndarray:
    """Return the most that any rank measured."""
    every = np.empty_like(us)
    _wait(channel, channel.comm.Iallreduce(us, every, MPI.MAX), "allreduce", (us, every))
    return every


def _wait(channel: Channel, request: MPI.Request, collective: str, keep: object) -> None:
    """Wait for all ranks, in a call that is counted and watched as others are."""
    stage = RequestStage(request, "the other ranks, to learn which algorithm is the fastest")
    choice, sequence = native_choice(collective, "learning"), channel.next_sequence()
    channel.queue.run(Operation(choice, sequence, [lambda: stage], lambda: None, keep, name="learning"))


def _write(channel: Channel, collective: str) -> None:
    """Add what was learned of a collective to the tuning table, if there is one; rank 0 does."""
    tuning = channel.settings.tuning
    if tuning is None:
        return
    rules = [row(rule) for rule in channel.measured(collective)]
    table = {"mpi": library(MPI), "nodes": list(layout(channel.agreed.nodes)), "rules": {collective: rules}}
    path = Path(tuning.path)
    try:
        with _locked(path):
            write(path, table)
    except (OSError, ValueError, KeyError, TypeError, MpicollError) as error:
        LOG.warning("what was learned is not kept: cannot write %s: %s", path, error)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time change a file."""
    with path.with_name(f"{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
