"""Exchange the counts of all ranks in a stage, before a plan that needs them or to check a call.

In gatherv and scatterv a rank knows its own count, and the root knows all. In alltoallv and alltoallw a rank knows its
row and its column, in neighbourhood collectives the counts of its edges. Counts are in bytes, since datatypes may
differ. The exchange is a plan with the tags of the call. That is safe, since a rank completes the exchange before it
posts a message of the call, and MPI matches messages with the same tag in order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from mpi4py import MPI

from ..engines.load import engine_named
from ..errors import CountMismatch, MismatchError
from ..plans.lowering import lower
from ..plans.plan import ALIGN, Shares
from ..plans.rolled import RolledPlan, rolled
from ..progress.stages import PlanStage
from ..runtime.comm_state import CommState
from ..schedules.collectives import base_collective, is_of_neighbours
from ..schedules.graphs import Graph
from ..schedules.schedule import schedule
from .call import Call

WIDTH = 8  # bytes of a count


def counts_are_local(call: Call) -> bool:
    """Return whether a rank knows only the counts of its own blocks."""
    return isinstance(call.counts, Shares) and call.counts.every is None


class NumbersExchange(PlanStage):
    """A stage that allgathers a few 8-byte numbers, and passes an array with a row for every rank to on_numbers.

    Its messages have the tags of its call. The stage raises the errors of on_numbers.
    """

    def __init__(
        self, comm: MPI.Comm, tags: int, engine: str, mine: np.ndarray, on_numbers: Callable[[np.ndarray], None]
    ) -> None:
        self.mine, self.all, self.on_numbers = mine, np.empty((comm.size, len(mine)), mine.dtype), on_numbers
        plan = plan_of_numbers(comm.size, comm.rank, len(mine))
        self.scratch = np.empty(plan.scratch_bytes + ALIGN, np.uint8)
        source, target, scratch = (MPI.Get_address(x) for x in (self.mine, self.all, self.scratch))
        super().__init__(engine_named(engine).Execution(plan, comm))
        self.execution.bind(tags, (source, target, -(-scratch // ALIGN) * ALIGN))

    def advance(self, seconds: float) -> bool:
        """Progress for at most so many seconds. Return True when done. Raises the errors of on_numbers."""
        if not self.execution.advance(seconds):
            return False
        self.is_over = True
        self.on_numbers(self.all)
        return True


def exchange_counts(
    state: CommState, call: Call, sequence: int, on_counts: Callable[[tuple[int, ...]], None]
) -> NumbersExchange:
    """Return a stage that allgathers the counts, and passes the count of every block that a plan needs to on_counts.

    In check mode ranks also send the counts that they expect; every rank raises MismatchError if any differs. Otherwise
    a rank that expects another count raises CountMismatch.
    """
    rank, check = state.rank, state.is_checked(sequence)
    graph = state.graph if is_of_neighbours(call.collective) else None
    row = np.array(_row(call, rank, state.size, check, graph), np.int64)
    engine = call.prepared.choice.engine
    on_rows = lambda rows: on_counts(_validate(call, rank, rows, check, graph))
    return NumbersExchange(state.comm, sequence, engine, row, on_rows)


@lru_cache(maxsize=64)
def plan_of_numbers(p: int, rank: int, width: int) -> RolledPlan:
    """Return the plan of an allgather of `width` numbers."""
    return rolled(lower(schedule("allgather", "bruck", p), rank, width, WIDTH))


def _row(call: Call, rank: int, p: int, check: bool, graph: Graph | None = None) -> list[int]:
    """Return the counts that a rank contributes: those of its row in an alltoall, of its edges in a graph, or its own.

    With check, the counts that it expects from others are there too.
    """
    shares = call.counts
    assert isinstance(shares, Shares)
    collective = base_collective(call.collective)
    if graph is not None:
        compared = _row_of_edges(shares, rank, p, graph) if check else []
        if not call.prepared.needs_counts:
            return compared
        return [*compared, *shares.sends, *[0] * (graph.most_sent - len(shares.sends))]
    if collective == "alltoall":
        return [*shares.sends, *shares.receives] if check else [*shares.sends]
    own, others = (shares.sends, shares.receives) if collective == "gather" else (shares.receives, shares.sends)
    return [own[0], *(others if rank == call.root else [0] * p)] if check else [own[0]]


def _row_of_edges(shares: Shares, rank: int, p: int, graph: Graph) -> list[int]:
    """Return the blocks and the bytes that this rank sends to every rank, then those that it expects from it."""
    row = np.zeros((4, p), np.int64)
    for first, end, edges, sizes in (
        (0, 1, graph.leaving(rank), shares.sends),
        (2, 0, graph.entering(rank), shares.receives),
    ):
        for edge, size in zip(edges, sizes, strict=True):
            row[[first, first + 1], edge[end]] += (1, size)
    numbers: list[int] = row.ravel().tolist()
    return numbers


def _counts_of_edges(call: Call, rank: int, rows: np.ndarray, check: bool, graph: Graph) -> tuple[int, ...]:
    """Return the bytes of every block of a graph if the plan needs them. Raises MismatchError, CountMismatch."""
    shares, p = call.counts, len(rows)
    assert isinstance(shares, Shares)
    if check:
        _validate_edges(rows[:, : 4 * p])
    if not call.prepared.needs_counts:
        return ()
    own = rows[:, 4 * p * check :].tolist()
    every = {edge: n for sender in range(p) for edge, n in zip(graph.leaving(sender), own[sender])}
    for edge, expected in zip(graph.entering(rank), shares.receives):
        _check_count(call, rank, edge[0], every[edge], expected)
    return tuple(every.values())


def _validate_edges(rows: np.ndarray) -> None:
    """Check that ranks send the blocks and bytes that their neighbours expect. Raises MismatchError."""
    p = len(rows)
    blocks, nbytes, blocks_expected, bytes_expected = rows.reshape(p, 4, p).transpose(1, 0, 2)
    for quantity, sent, expected in (
        ("the blocks they send each other", blocks, blocks_expected.T),
        ("the bytes they send each other", nbytes, bytes_expected.T),
    ):
        if (sent != expected).any():
            raise MismatchError(quantity, [_describe_mismatch_of_pairs(r, sent, expected) for r in range(p)])


def _validate(call: Call, rank: int, rows: np.ndarray, check: bool, graph: Graph | None) -> tuple[int, ...]:
    """Return the bytes of every block, from the rows of all ranks. Raises MismatchError, CountMismatch."""
    if graph is not None:
        return _counts_of_edges(call, rank, rows, check, graph)
    shares, p, pairs = call.counts, len(rows), base_collective(call.collective) == "alltoall"
    assert isinstance(shares, Shares)
    every = rows[:, :p] if pairs else rows[:, 0]
    if check:
        expected = rows[:, p:].T if pairs else rows[call.root, 1:]
        wrong = every != expected
        if wrong.any():
            mismatches = [_describe_mismatch(call, r, every, expected) for r in range(p)]
            raise MismatchError("the bytes they send each other", mismatches)
    else:
        _check_own(call, rank, every, shares)
    return tuple(every.ravel().tolist())


def _check_own(call: Call, rank: int, every: np.ndarray, shares: Shares) -> None:
    """Check that this rank expects the counts that others send; else a message would write over other memory."""
    collective = base_collective(call.collective)
    if collective != "alltoall" and rank != call.root:
        return
    known = shares.sends if collective == "scatter" else shares.receives
    counts = (every[:, rank] if collective == "alltoall" else every).tolist()
    for other, (n, expected) in enumerate(zip(counts, known)):
        _check_count(call, rank, other, n, expected)


def _check_count(call: Call, rank: int, other: int, n: int, expected: int) -> None:
    if n != expected:
        verb = "receives" if base_collective(call.collective) == "scatter" else "sends"
        raise CountMismatch(
            f"{call.collective}: rank {other} {verb} {n} bytes and rank {rank} has {expected} for it; "
            f"the counts of both must be equal"
        )


def _describe_mismatch(call: Call, rank: int, every: np.ndarray, expected: np.ndarray) -> str:
    """Describe how a rank's counts differ from those that another rank expects; "fine" if they do not."""
    if every.ndim == 1:
        if every[rank] == expected[rank]:
            return "fine"
        verb = "receives" if base_collective(call.collective) == "scatter" else "sends"
        return f"{verb} {every[rank]}, and root {call.root} has {expected[rank]} for it"
    return _describe_mismatch_of_pairs(rank, every, expected)


def _describe_mismatch_of_pairs(rank: int, every: np.ndarray, expected: np.ndarray) -> str:
    """Name a rank that expects another count from this one; "fine" if there is none."""
    other = next((i for i, x in enumerate(every[rank] != expected[rank]) if x), None)
    if other is None:
        return "fine"
    return f"sends {every[rank, other]} to rank {other}, which expects {expected[rank, other]}"
