"""Sums of bfloat16 and float16 that are rounded once: by a setting, by hooks of DDP and fully_shard."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from mpicoll.errors import ArgumentError
from mpicoll.torch import hooks

N = 4000


def rows(ranks, dtype):
    draw = torch.Generator().manual_seed(ranks)
    return torch.randn(ranks, N, generator=draw).to(dtype)


def off(got, every, average=False):
    """Return the largest error, in units of the last place of the exact result."""
    exact = every.double().sum(dim=0) / (len(every) if average else 1)
    bits = {torch.bfloat16: 7, torch.float16: 10}[every.dtype]
    unit = torch.exp2(torch.floor(torch.log2(exact.abs().clamp(min=2.0**-10))) - bits)
    return ((got.double() - exact).abs() / unit).max().item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_reduce_follows_the_environment(ranks, rank, dtype, monkeypatch, world):
    every, errors = rows(ranks, dtype), {}
    for how in ("float32", "none"):
        monkeypatch.setenv("MPICOLL_ACCUMULATE", how)
        group = dist.new_group()
        x = every[rank].clone()
        dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
        errors[how] = off(x, every)
    assert errors["float32"] <= 0.51
    assert ranks < 3 or errors["none"] > 0.51


class Bucket:
    """A bucket of DDP with the attributes that a hook reads."""

    def __init__(self, buffer):
        self.buffer = lambda: buffer


def test_averages_of_buckets(ours, ranks, rank):
    every = rows(ranks, torch.bfloat16)
    with_sums, without = (
        hooks.averaged(accumulate=how)(ours, Bucket(every[rank].clone())).wait() for how in ("float32", "none")
    )
    assert off(with_sums, every, average=True) <= 0.51
    assert ranks < 3 or off(without, every, average=True) > 0.51
    with pytest.raises(ArgumentError, match="accumulate is 'float64'; it must be one of float32, none"):
        hooks.averaged(accumulate="float64")


def test_ddp(ours, rank, served):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).to(torch.bfloat16)
    model = DistributedDataParallel(model, process_group=ours)
    model.register_comm_hook(ours, hooks.averaged())
    model(torch.full((4, 8), rank + 1.0, dtype=torch.bfloat16)).float().sum().backward()
    assert served["allreduce"] >= 1
    mine = torch.cat([p.grad.flatten() for p in model.parameters()])
    every = [torch.empty_like(mine) for _ in range(ours.size())]
    dist.all_gather(every, mine, group=ours)
    assert all(torch.equal(other, mine) for other in every) and mine.abs().sum() > 0


@pytest.mark.mpi(min_size=2)  # torch shards nothing on one rank
def test_fully_shard(ours, rank, ranks):
    torch.manual_seed(1)
    model = nn.Linear(N, 1, bias=False)
    mesh = DeviceMesh.from_group(ours, "cpu", mesh_dim_names=("mpicoll",))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
    hooks.encode(model, accumulate="float32")
    every = rows(ranks, torch.bfloat16)
    model(every[rank].float()[None]).sum().backward()
    got = model.weight.grad.full_tensor()[0].bfloat16()
    assert off(got, every, average=True) <= 1.01, "rounded by the sum, and by the average of torch's own"
    with pytest.raises(ArgumentError, match="there is no codec"):
        hooks.ReduceScatter(None, error_feedback=True)
