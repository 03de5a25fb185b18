"""The lines of a torch program in the history of calls of its flight record."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist

from mpicoll.doctor import history
from mpicoll.runtime import flight
from mpicoll.runtime.flight import RECORD


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_every_operation_has_its_own_line(ours, is_asynchronous):
    """Torch's own lines are between the program's and the call."""
    if RECORD.memory is None:
        pytest.skip("no flight record is kept here")
    x = torch.ones(10)
    lines = []
    for _ in range(60):  # the ranks compare the first calls of a group
        first = dist.all_reduce(x, group=ours, async_op=is_asynchronous)
        other = dist.all_reduce(x, group=ours, async_op=is_asynchronous)
        at = sys._getframe().f_lineno
        lines += [at - 2, at - 1]
        for work in (first, other):
            if work is not None:
                work.wait()
    rows, lines = history.rows(RECORD.memory[flight.CALLS :])[-40:], lines[-40:]
    name = "test_every_operation_has_its_own_line"
    assert [row.location for row in rows] == [f"test_history.py, line {line}, in {name}" for line in lines]
    assert {row.state for row in rows} == {"done"} and {row.nbytes for row in rows} == {40}
    assert {row.method for row in rows} == {"Iallreduce" if is_asynchronous else "Allreduce"}
