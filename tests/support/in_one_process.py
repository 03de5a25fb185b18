"""All ranks' plans run in one process, without MPI, by the local work of both engines."""

from __future__ import annotations

import ctypes
from collections import defaultdict, deque
from typing import Any

import numpy as np

from mpicoll.engines.kernel_args import KernelArgs
from mpicoll.engines.local_ops import Tables, finish_step, geometry, prepare_row
from mpicoll.plans.plan import ALIGN, RECV, REDUCE, SEND
from mpicoll.plans.rolled import PEER_STRIDE, RolledPlan, following


def _bytes(address: int, n: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_uint8 * n).from_address(address), np.uint8)


class _Rank:
    """One rank's memory and lanes."""

    def __init__(self, plan: RolledPlan, source: np.ndarray, result: np.ndarray, work: KernelArgs) -> None:
        self.plan = plan
        self.keep = source, result, np.zeros(plan.scratch_bytes + 2 * ALIGN, np.uint8)
        at = [array.ctypes.data for array in self.keep]
        bases = np.array([at[0], at[1], -(-at[2] // ALIGN) * ALIGN], np.int64)
        self.tables = Tables(plan.rows, plan.segments, geometry(plan), bases, np.array(work, np.int64))
        self.lanes = [
            [strand, slot, slot, first, 0, None]                # strand, slot, lane, step, turn, what it waits for
            for strand, (first, end) in enumerate(plan.strands.tolist())
            for slot in range(plan.window)
            if first < end
        ]


def run(plans: list[RolledPlan], sources: list[np.ndarray], results: list[np.ndarray], work: KernelArgs) -> list[int]:
    """Run all ranks' plans; a message waits in a queue until it is received. Return the bytes that each rank sends."""
    ranks = [_Rank(*arguments, work) for arguments in zip(plans, sources, results, strict=True)]
    queues: dict[Any, deque[np.ndarray]] = defaultdict(deque)
    sent = [0] * len(ranks)
    moved = True
    while moved:
        moved = False
        for number, rank in enumerate(ranks):
            for lane in rank.lanes:
                while lane[2] < rank.plan.lanes and _advance(number, rank, lane, queues, sent):
                    moved = True
    assert all(lane[2] >= rank.plan.lanes for rank in ranks for lane in rank.lanes), "a deadlock"
    assert not any(queues.values()), "messages that no rank received"
    return sent


def _advance(number: int, rank: _Rank, lane: list[Any], queues: Any, sent: list[int]) -> bool:
    """Take a lane one step on, if what it waits for is there."""
    plan, tables = rank.plan, rank.tables
    strand, slot, chunk, step, turn, waits = lane
    first, posts, bottom, body, turns = plan.steps[step].tolist()
    if waits is None:
        waits = []
        for r in range(first, posts):
            kind, peer, a, b, _, _ = plan.rows[r].tolist()
            peer += turn * int(plan.rows[r, PEER_STRIDE])
            prepare_row(tables.address, r, chunk, slot, turn)
            at, n = tables.message.tolist()
            if kind == REDUCE or (a < b and not n):
                continue
            if kind == SEND:
                queues[number, peer, strand, slot].append(_bytes(at, n).copy())
                sent[number] += n
            else:
                assert kind == RECV
                waits.append((peer, at, n))
        lane[5] = waits
    needed: dict[int, int] = defaultdict(int)
    for peer, _, _ in waits:
        needed[peer] += 1
    if any(len(queues[peer, number, strand, slot]) < n for peer, n in needed.items()):
        return False
    for peer, at, n in waits:
        data = queues[peer, number, strand, slot].popleft()
        assert len(data) == n, f"rank {number} waits for {n} bytes of rank {peer}, and gets {len(data)}"
        _bytes(at, n)[:] = data
    finish_step(tables.address, first, posts, bottom, chunk, slot, turn)
    lane[3], lane[4], lane[5] = *following(step, turn, body, turns), None
    if lane[3] == plan.strands[strand, 1]:
        lane[2], lane[3] = chunk + plan.window, int(plan.strands[strand, 0])
    return True
