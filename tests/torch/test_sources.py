"""Tensors that a rank only reads may be any view; nothing is written to them, and their version counters stay."""

import itertools
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from mpicoll import errors

ROWS = 12       # which 1 to 4 ranks divide
ROOT = 0
HALF = dist._make_nccl_premul_sum(0.5)

VIEWS = {
    "contiguous": lambda value: torch.arange(48.0).reshape(ROWS, 4) + value,
    "expanded": lambda value: torch.full((1,), float(value)).expand(ROWS),
    "expanded rows": lambda value: (torch.arange(4.0) + value).expand(ROWS, 4),
    "transposed": lambda value: (torch.arange(48.0) + value).reshape(4, ROWS).t(),
    "strided": lambda value: (torch.arange(24.0) + value)[::2],
    "conjugated": lambda value: torch.full((ROWS,), complex(value, 1)).conj(),
    "negative": lambda value: torch.full((ROWS,), complex(value, 1)).conj().imag,
    "a parameter": lambda value: torch.nn.Parameter(torch.arange(48.0).reshape(ROWS, 4) + value),
}


class Calls:
    """Begins each operation on sources that a view makes of a value, and remembers sources and outputs."""

    def __init__(self, group, view, is_async):
        self.group, self.rank, self.ranks, self.view, self.is_async = group, group.rank(), group.size(), view, is_async
        self.sources, self.outputs, self.before = [], [], []

    def source(self, value):
        tensor = self.view(value + 1)
        self.sources.append(tensor)
        self.before.append((tensor._version, tensor.detach().clone()))
        return tensor

    def output(self, times=1, over=1):
        like = self.view(0)
        self.outputs.append(torch.zeros(like.size(0) * times // over, *like.shape[1:], dtype=like.dtype))
        return self.outputs[-1]

    def options(self, kind, op=None, rooted=False):
        options = kind()
        options.asyncOp, options.timeout = self.is_async, timedelta(seconds=30)
        if op is not None:
            options.reduceOp = op
        if rooted:
            options.rootRank = ROOT
        return options

    def per_rank(self, make):
        return [make() for _ in range(self.ranks)]

    def broadcast(self):
        tensor = self.source(5) if self.rank == ROOT else self.output()
        return self.group.broadcast([tensor], self.options(c10d.BroadcastOptions, rooted=True))

    def reduce(self, op=dist.ReduceOp.SUM):
        tensor = self.output() if self.rank == ROOT else self.source(self.rank)
        return self.group.reduce([tensor], self.options(c10d.ReduceOptions, op, rooted=True))

    def reduce_with_a_factor(self):
        return self.reduce(HALF)

    def all_gather(self):
        arguments = [self.per_rank(self.output)], [self.source(self.rank)]
        return self.group.allgather(*arguments, self.options(c10d.AllgatherOptions))

    def all_gather_single(self):
        arguments = self.output(self.ranks), self.source(self.rank)
        return self.group.all_gather_single(*arguments, self.options(c10d.AllgatherOptions))

    def all_gather_single_coalesced(self):
        arguments = [self.output(self.ranks) for _ in range(2)], [self.source(self.rank), self.source(7)]
        return self.group.all_gather_single_coalesced(*arguments, self.options(c10d.AllgatherOptions))

    def all_gather_coalesced(self):
        arguments = self.per_rank(lambda: [self.output(), self.output()]), [self.source(self.rank), self.source(7)]
        return self.group.allgather_coalesced(*arguments, self.options(c10d.AllgatherOptions))

    def reduce_scatter(self, op=dist.ReduceOp.SUM):
        arguments = [self.output()], [self.per_rank(lambda: self.source(self.rank))]
        return self.group.reduce_scatter(*arguments, self.options(c10d.ReduceScatterOptions, op))

    def reduce_scatter_with_a_factor(self):
        return self.reduce_scatter(HALF)

    def reduce_scatter_single(self, op=dist.ReduceOp.SUM):
        arguments = self.output(over=self.ranks), self.source(self.rank)
        return self.group.reduce_scatter_single(*arguments, self.options(c10d.ReduceScatterOptions, op))

    def reduce_scatter_single_with_a_factor(self):
        return self.reduce_scatter_single(HALF)

    def reduce_scatter_single_coalesced(self):
        arguments = [self.output(over=self.ranks) for _ in range(2)], [self.source(self.rank), self.source(7)]
        return self.group.reduce_scatter_single_coalesced(*arguments, self.options(c10d.ReduceScatterOptions))

    def all_to_all(self):
        arguments = self.per_rank(self.output), self.per_rank(lambda: self.source(self.rank))
        return self.group.alltoall(*arguments, self.options(c10d.AllToAllOptions))

    def all_to_all_single(self):
        arguments = self.output(), self.source(self.rank), [], []
        return self.group.all_to_all_single(*arguments, self.options(c10d.AllToAllOptions))

    def all_to_all_single_with_splits(self):
        rows = ROWS // self.ranks
        arguments = self.output(), self.source(self.rank), [rows] * self.ranks, [rows] * self.ranks
        return self.group.all_to_all_single(*arguments, self.options(c10d.AllToAllOptions))

    def gather(self):
        outputs = [self.per_rank(self.output)] if self.rank == ROOT else []
        return self.group.gather(outputs, [self.source(self.rank)], self.options(c10d.GatherOptions, rooted=True))

    def scatter(self):
        inputs = [self.per_rank(lambda: self.source(self.rank))] if self.rank == ROOT else []
        return self.group.scatter([self.output()], inputs, self.options(c10d.ScatterOptions, rooted=True))

    def send(self):
        if self.rank == ROOT:
            return self.group.send([self.source(5)], self.ranks - 1, 3)
        return self.group.recv([self.output()], ROOT, 3) if self.rank == self.ranks - 1 else None


HELPERS = ("source", "output", "options", "per_rank")
OPERATIONS = [name for name in vars(Calls) if name not in HELPERS and name[0] != "_"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_sources_are_only_read(world, operation):
    if operation == "send" and world.size() == 1:
        pytest.skip("a message needs two ranks")
    for view, is_async in itertools.product(VIEWS, (True, False)):
        calls = Calls(world, VIEWS[view], is_async)
        plain = Calls(world, lambda value, view=view: copied(VIEWS[view](value)), is_async)
        for caller in (calls, plain):
            work = getattr(caller, operation)()
            if work is not None:
                work.wait()
            for source, (version, values) in zip(caller.sources, caller.before):
                assert torch.equal(source.detach(), values) and source._version == version, view
        for output, expected in zip(calls.outputs, plain.outputs, strict=True):
            assert torch.equal(output, expected) and (output.any() or world.size() == 1), view


def copied(tensor):
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


WRITTEN = {
    "broadcast": lambda group, expanded: group.broadcast([expanded], (group.rank() + 1) % group.size()),
    "allreduce": lambda group, expanded: group.allreduce([expanded]),
    "allgather": lambda group, expanded: group.allgather([[expanded] * group.size()], [torch.ones(3)]),
    "recv": lambda group, expanded: group.recv([expanded], 0, 0),
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("operation", WRITTEN)
def test_an_expanded_tensor_receives_nothing(ours, operation):
    """It is refused before anything is sent."""
    expanded = torch.ones(1).expand(3)
    with pytest.raises(errors.BufferAccessError, match=r"is expanded: its shape is \(3,\), its strides are \(0,\)"):
        WRITTEN[operation](ours, expanded)
    value = torch.ones(2)
    dist.all_reduce(value, group=ours)
    assert value.tolist() == [ours.size()] * 2
