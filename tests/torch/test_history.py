"""The history of calls of a torch program, and what torch's own analyser of flight records makes of it."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist
from support.history import make_room
from torch.distributed.flight_recorder import fr_trace

from mpicoll.diagnostics import flight, history_reader
from mpicoll.diagnostics.flight import RECORD
from mpicoll.diagnostics.history_reader import Row
from mpicoll.doctor import torch_dump


@pytest.fixture(autouse=True)
def _room():
    make_room()


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
    rows, lines = history_reader.rows(RECORD.memory[flight.CALLS :])[-40:], lines[-40:]
    name = "test_every_operation_has_its_own_line"
    assert [row.location for row in rows] == [f"test_history.py, line {line}, in {name}" for line in lines]
    assert {row.state for row in rows} == {"done"} and {row.nbytes for row in rows} == {40}
    assert {row.method for row in rows} == {"Iallreduce" if is_asynchronous else "Allreduce"}


def analysed(tmp_path, caplog, rows):
    """Return what torch's analyser prints about the histories of ranks."""
    torch_dump.write(rows, tmp_path)
    fr_trace.main([str(tmp_path), "-p", torch_dump.PREFIX])
    return caplog.text


NAMES = ["Allreduce", "Iallreduce", "Allgather", "Reduce_scatter_block", "Bcast", "Barrier", "Alltoall", "Gather",
         "Scatter", "Reduce", "Allgatherv", "Alltoallv"]  # fmt: skip
CALLS = [
    Row(i, "ranks 0-1", i, 0, name, "blocking", "ring", "", -1, 80, "done", 1e9 + i, 1e-6, f"a.py, line {i}, in f")
    for i, name in enumerate(NAMES, 1)
]


def test_torch_finds_nothing_wrong_where_all_is_right(tmp_path, caplog):
    output = analysed(tmp_path, caplog, {0: CALLS, 1: CALLS})
    assert "has errors" not in output and "Not all ranks" not in output


def test_torch_names_the_rank_that_made_another_call(tmp_path, caplog):
    other = CALLS[4]._replace(method="Barrier", nbytes=0, state="in flight")
    output = analysed(tmp_path, caplog, {0: CALLS[:5], 1: [*CALLS[:4], other]})
    assert "Collective sequence number: 5 has errors" in output and "Culprit rank 1" in output
    assert "COLLECTIVE_TYPE_MISMATCH" in output and "f at a.py:5" in output


def test_torch_names_the_rank_that_is_missing(tmp_path, caplog):
    output = analysed(tmp_path, caplog, {0: CALLS[:5], 1: CALLS[:4]})
    assert "Not all ranks joining collective, sequence number: 5" in output and "missing ranks: {1}" in output
