"""Optimizers and samplers that know of ranks, and batch normalisation over them."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.algorithms.model_averaging.averagers as averagers
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local_sgd
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 4))


def batches(rank, count=4):
    draw = torch.Generator().manual_seed(rank)
    return [(torch.randn(5, 6, generator=draw), torch.randint(4, (5,), generator=draw)) for _ in range(count)]


def trained(model, optimizer, rank):
    losses = []
    for x, y in batches(rank):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("as_buckets", [False, True])
def test_an_optimizer_without_redundancy(world, gloo, rank, served, agree, as_buckets):
    def on(group):
        model = DistributedDataParallel(network(), process_group=group)
        options = {"process_group": group, "parameters_as_bucket_view": as_buckets, "lr": 0.05}
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, **options)
        result = trained(model, optimizer, rank)
        optimizer.consolidate_state_dict(0)
        return result, len(optimizer.state_dict()["state"]) if rank == 0 else 0

    mine = on(world)
    assert served["broadcast"] and served["allreduce"]
    agree(mine, on(gloo))


def test_models_that_are_averaged_now_and_then(world, gloo, rank, served, agree):
    def on(group):
        model = DistributedDataParallel(network(), process_group=group)
        state = local_sgd.PostLocalSGDState(process_group=group, subgroup=group, start_localSGD_iter=1)
        model.register_comm_hook(state, local_sgd.post_localSGD_hook)
        averager = averagers.PeriodicModelAverager(period=2, warmup_steps=1, process_group=group)
        optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), averager)
        return trained(model, optimizer, rank)

    mine = on(world)
    assert served["allreduce"]
    agree(mine, on(gloo))


def test_a_sampler_gives_every_rank_its_part(rank, ranks):
    data = TensorDataset(torch.arange(10 * ranks + 1))
    sampler = DistributedSampler(data)
    sampler.set_epoch(3)
    mine = torch.cat([batch for (batch,) in DataLoader(data, batch_size=2, sampler=sampler)])
    gathered = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(gathered, mine)
    assert set(torch.cat(gathered).tolist()) == set(range(10 * ranks + 1))


def test_batch_normalisation_over_ranks_is_not_for_the_cpu(world, gloo):
    """With Gloo it is refused, too."""
    messages = []
    for group in (world, gloo):
        layer = nn.SyncBatchNorm(4, process_group=group)
        with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on") as raised:
            layer(torch.ones(3, 4))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
