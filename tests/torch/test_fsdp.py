"""fully_shard and FullyShardedDataParallel: losses, gradients, parameters and state dicts are those with Gloo."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

pytestmark = pytest.mark.mpi(min_size=2)    # torch shards nothing on one rank
STEPS = 3
WHOLE = StateDictOptions(full_state_dict=True)


class Block(nn.Module):
    """Its widths are no multiples of anything: shards are uneven, and padded."""

    def __init__(self):
        super().__init__()
        self.norm, self.rise, self.fall = nn.LayerNorm(11), nn.Linear(11, 19), nn.Linear(19, 11)

    def forward(self, x):
        return x + self.fall(nn.functional.gelu(self.rise(self.norm(x))))


def make(seed=5):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 11), Block(), Block(), nn.Linear(11, 3))


def batches(rank, count=STEPS):
    draw = torch.Generator().manual_seed(200 + rank)
    return [(torch.randn(5, 7, generator=draw), torch.randn(5, 3, generator=draw)) for _ in range(count)]


def sharded(mesh, net=None, configure=None, **options):
    net = net or make()
    for block in net[1:3]:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(net, mesh=mesh, **options)
    if configure:
        configure(net)
    return net


def train(net, data, optimizer=None, clip=None):
    optimizer = optimizer or torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for x, y in data:
        loss = nn.functional.mse_loss(net(x).float(), y)
        loss.backward()
        if clip:
            norm = nn.utils.clip_grad_norm_(net.parameters(), clip)
            losses.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def whole(net):
    """Return whole parameters, without shards."""
    return {name: value.full_tensor().detach() for name, value in net.state_dict().items()}


def trained(mesh, clip=None, **options):
    net = sharded(mesh, **options)
    losses = train(net, batches(dist.get_rank()), clip=clip)
    return losses, whole(net)


def half(**options):
    return {"mp_policy": MixedPrecisionPolicy(**options)}


OPTIONS = {
    "defaults": {},
    "kept whole after forward": {"reshard_after_forward": False},
    "bfloat16": half(param_dtype=torch.bfloat16),
    "bfloat16, reduced in float32": half(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    "reduced in bfloat16": half(reduce_dtype=torch.bfloat16),
    "reduced in float16": half(reduce_dtype=torch.float16),
    "output in bfloat16": half(param_dtype=torch.bfloat16, output_dtype=torch.bfloat16),
    "offloaded": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
}


def test_losses_and_parameters_are_those_with_gloo(meshes, ranks, served, agree):
    mine, others = (trained(mesh) for mesh in meshes(ranks))
    agree(mine, others)
    # the root and two blocks: each is gathered forward, the blocks backward again, and at the end each parameter
    assert served["allgather"] == STEPS * (3 + 2) + len(mine[1]) and served["reduce_scatter"] == STEPS * 3


@pytest.mark.parametrize("name", list(OPTIONS)[1:])
def test_options(meshes, ranks, served, agree, name):
    mine, others = (trained(mesh, **OPTIONS[name]) for mesh in meshes(ranks))
    if ranks <= 2 or "16" not in name:
        agree(mine, others)
    else:       # a rounding of float16 decides of steps of AdamW, each of which is as large as the learning rate
        torch.testing.assert_close(mine, others, rtol=0.05, atol=0.02)
    assert served["allgather"] and served["reduce_scatter"] == STEPS * 3


def test_it_is_what_one_process_does_with_all_batches(meshes, ranks, served):
    _, mine = trained(meshes(ranks)[0])
    alone = make()
    train(alone, [tuple(map(torch.cat, zip(*parts))) for parts in zip(*map(batches, range(ranks)))])
    torch.testing.assert_close(mine, {name: value.detach() for name, value in alone.state_dict().items()},
                               rtol=1e-4, atol=1e-5)
    assert served["allgather"] and served["reduce_scatter"]


@pytest.mark.parametrize("factor", ["ranks", 3.0])
def test_a_divisor_of_gradients(meshes, ranks, served, agree, factor):
    """Gloo has no sum with a factor: torch has it divide by itself."""
    def on(mesh, is_gloo):
        def configure(net):
            for module in (net, *net[1:3]):
                module.set_gradient_divide_factor(float(ranks) if factor == "ranks" else factor)
                module.set_force_sum_reduction_for_comms(is_gloo)

        return trained(mesh, configure=configure)

    mine, theirs = (on(mesh, is_gloo) for mesh, is_gloo in zip(meshes(ranks), (False, True)))
    agree(mine, theirs, exactly=False)
    assert served["reduce_scatter"] == STEPS * 3


def test_gradients_accumulate_without_synchronisation(meshes, ranks, served, agree):
    def on(mesh):
        net = sharded(mesh)
        *held, last = batches(dist.get_rank())
        net.set_requires_gradient_sync(False)
        before = served["reduce_scatter"]
        for x, y in held:
            nn.functional.mse_loss(net(x), y).backward()
        assert served["reduce_scatter"] == before
        net.set_requires_gradient_sync(True)
        return train(net, [last]), whole(net)

    agree(*map(on, meshes(ranks)))
    assert served["reduce_scatter"] == 3


def test_gradients_are_clipped_by_the_norm_of_all_shards(meshes, ranks, served, agree):
    agree(*(trained(mesh, clip=0.1) for mesh in meshes(ranks)))
    assert served["allreduce"] >= STEPS


def test_prefetching_and_explicit_gathering(meshes, ranks, served, agree):
    def configure(net):
        first, second = net[1:3]
        net.set_modules_to_forward_prefetch([first, second])
        first.set_modules_to_forward_prefetch([second])
        second.set_modules_to_backward_prefetch([first])
        net.unshard(async_op=True).wait()

    agree(*(trained(mesh, configure=configure) for mesh in meshes(ranks)))
    assert served["allgather"] and served["reduce_scatter"] == STEPS * 3


@pytest.mark.mpi(min_size=4, max_size=4)
@pytest.mark.parametrize("name", ["defaults", "bfloat16, reduced in float32"])
def test_shards_that_have_replicas(meshes, served, agree, name):
    mine, others = (trained(mesh, **OPTIONS[name]) for mesh in meshes(2, 2))
    agree(mine, others, exactly=False)
    assert served["allgather"] and served["reduce_scatter"] == served["allreduce"] == STEPS * 3


# -- state dicts


def test_state_dicts_in_one_piece(meshes, ranks, rank, served, agree):
    """Rank 0 has them; a model that began otherwise takes them and goes on as the first would have."""
    def on(mesh):
        net = sharded(mesh)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        train(net, batches(rank), optimizer)
        kept = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        moments = deepcopy(get_optimizer_state_dict(net, optimizer, options=WHOLE))     # steps are shared
        assert bool(kept) == (rank == 0)

        other = sharded(mesh, make(seed=6))
        another = torch.optim.AdamW(other.parameters(), lr=0.01)
        from_rank_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(other, kept, options=from_rank_0)
        set_optimizer_state_dict(other, another, moments if rank == 0 else {}, options=from_rank_0)
        agree(whole(other), whole(net), exactly=True)
        agree(train(other, batches(rank), another), train(net, batches(rank), optimizer), exactly=True)
        return whole(net)

    agree(*map(on, meshes(ranks)))
    assert served["allgather"] and served["broadcast"]


def test_state_dicts_of_shards(meshes, ranks, rank, served, agree):
    def on(mesh):
        net = sharded(mesh)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        train(net, batches(rank), optimizer)
        kept = {name: value.detach().clone() for name, value in get_model_state_dict(net).items()}
        assert all(isinstance(value, DTensor) for value in kept.values())
        moments = deepcopy(get_optimizer_state_dict(net, optimizer))
        other = sharded(mesh, make(seed=6))
        another = torch.optim.AdamW(other.parameters(), lr=0.01)
        set_model_state_dict(other, kept)
        set_optimizer_state_dict(other, another, moments)
        agree(train(other, batches(rank), another), train(net, batches(rank), optimizer), exactly=True)
        return {name: value.to_local() for name, value in kept.items()}

    mine, theirs = map(on, meshes(ranks))
    assert served["allgather"]
    agree(mine, theirs)
    assert sum(value.numel() for value in mine.values()) < sum(value.numel() for value in make().parameters())


# -- FullyShardedDataParallel, its predecessor


def old(group, **options):
    policy = ModuleWrapPolicy({Block})
    return FullyShardedDataParallel(make(), process_group=group, auto_wrap_policy=policy,
                                    device_id=torch.device("cpu"), **options)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("options", [
    {},
    {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
    {"sharding_strategy": ShardingStrategy.NO_SHARD},
    {"use_orig_params": True},
    {"mixed_precision": MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)},
], ids=["defaults", "gradients", "nothing sharded", "original parameters", "bfloat16"])  # fmt: skip
def test_fully_sharded_data_parallel(ours, gloo, rank, served, agree, options):
    def on(group):
        net = old(group, **options)
        losses = train(net, batches(rank))
        with FullyShardedDataParallel.summon_full_params(net):
            return losses, {name: value.detach().clone() for name, value in net.named_parameters()}

    mine, theirs = on(ours), on(gloo)
    agree(mine, theirs, exactly=None if "mixed_precision" not in options else False)
    assert served["allreduce" if options.get("sharding_strategy") is ShardingStrategy.NO_SHARD else "reduce_scatter"]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", ["full", "sharded"])
def test_state_dicts_of_fully_sharded_data_parallel(ours, gloo, rank, served, agree, kind):
    def on(group):
        net = old(group, use_orig_params=True)
        train(net, batches(rank))
        if kind == "full":
            how = StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False)
        else:
            how = StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()
        other = old(group, use_orig_params=True)
        for model in (net, other):
            FullyShardedDataParallel.set_state_dict_type(model, *how)
        kept = net.state_dict()
        other.load_state_dict(kept)
        agree(train(other, batches(rank)), train(net, batches(rank)), exactly=True)
        return {name: value.local_shards()[0].tensor if kind == "sharded" and value.local_shards() else value
                for name, value in kept.items() if kind == "full" or value.local_shards()}

    mine = on(ours)
    assert served["allgather"]
    agree(mine, on(gloo))
