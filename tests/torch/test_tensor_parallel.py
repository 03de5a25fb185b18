"""Tensor parallelism, and the DTensor that it is made of: every change of placement is what it is with Gloo."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, zeros
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

pytestmark = pytest.mark.mpi(min_size=2)    # torch sends nothing on one rank
STEPS = 3


# -- placements


def values(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def placed(mesh, placements, shape=(5, 7)):
    """Return a DTensor of uneven shards; if its placement is partial, ranks have values of their own."""
    seed = dist.get_rank() if any(placement.is_partial() for placement in placements) else 0
    whole = values(*shape, seed=seed)
    begins = [Replicate() if placement.is_partial() else placement for placement in placements]
    local = distribute_tensor(whole, mesh, begins, src_data_rank=None).to_local()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape),
                              stride=(shape[1], 1))


BEGINS = [Replicate(), Shard(0), Shard(1), Partial("sum"), Partial("avg"), Partial("max"), Partial("min")]
ENDS = [Replicate(), Shard(0), Shard(1)]
# what serves each change: from one dimension to the other, torch gathers everything on CPUs
CHANGES = {
    ("S(0)", "R"): "allgather", ("S(1)", "R"): "allgather",
    ("S(0)", "S(1)"): "allgather", ("S(1)", "S(0)"): "allgather",
    ("P", "R"): "allreduce", ("P", "S(0)"): "reduce_scatter", ("P", "S(1)"): "reduce_scatter",
}  # fmt: skip


def kind(placement):
    return "P" if placement.is_partial() else f"S({placement.dim})" if placement.is_shard() else "R"


@pytest.mark.parametrize(("begin", "end"), list(product(BEGINS, ENDS)), ids=str)
def test_every_change_of_placement(meshes, ranks, served, agree, begin, end):
    def on(mesh):
        return placed(mesh, [begin]).redistribute(mesh, [end]).to_local()

    mine, theirs = (on(mesh) for mesh in meshes(ranks))
    agree(mine, theirs)
    operation = CHANGES.get((kind(begin), kind(end)))
    assert dict(served) == ({operation: 1} if operation else {})


@pytest.mark.mpi(min_size=4, max_size=4)
@pytest.mark.parametrize("begin", list(product(BEGINS[:4], repeat=2)), ids=str)
def test_every_change_of_placement_in_two_dimensions(meshes, served, agree, begin):
    def on(mesh):
        return {str(end): placed(mesh, begin).redistribute(mesh, end).to_local() for end in product(ENDS, repeat=2)}

    agree(*map(on, meshes(2, 2)), exactly=False)
    assert served or set(begin) == {Replicate()}


@pytest.mark.parametrize("rows", [0, 1, 3, 8])
def test_shards_of_any_size(meshes, ranks, served, agree, rows):
    def on(mesh):
        tensor = distribute_tensor(values(rows, 3), mesh, [Shard(0)])
        return tensor.to_local(), tensor.full_tensor(), tensor.redistribute(mesh, [Shard(1)]).full_tensor()

    mine, theirs = map(on, meshes(ranks))
    agree(mine, theirs)
    assert torch.equal(mine[1], values(rows, 3)) and torch.equal(mine[2], values(rows, 3))
    assert served["scatter"] and served["allgather"]


def test_distributed_tensors_are_rank_0s(meshes, ranks, rank, served, agree):
    def on(mesh):
        whole = values(4, 6, seed=rank)
        return [distribute_tensor(whole, mesh, [placement]).full_tensor() for placement in ENDS]

    mine, theirs = map(on, meshes(ranks))
    agree(mine, theirs)
    assert all(torch.equal(other, values(4, 6, seed=0)) for other in mine)
    assert served["broadcast"] == 1 and served["scatter"] == 2


def test_gradients_go_back_the_same_way(meshes, ranks, served, agree):
    def on(mesh):
        tensor = distribute_tensor(values(5, 7), mesh, [Shard(0)]).requires_grad_()
        (tensor.redistribute(mesh, [Shard(1)]).sin().full_tensor() ** 2).sum().backward()
        return tensor.grad.full_tensor()

    mine, theirs = map(on, meshes(ranks))
    agree(mine, theirs)
    alone = values(5, 7).requires_grad_()
    (alone.sin() ** 2).sum().backward()
    torch.testing.assert_close(mine, alone.grad)
    assert served["allgather"] == 4


def test_arithmetic(meshes, ranks, served, agree):
    """Operators find the placements by themselves, and what is to be sent."""
    def on(mesh):
        a, b = (distribute_tensor(values(6, 6, seed=seed), mesh, [Shard(0)]) for seed in (1, 2))
        c = distribute_tensor(values(6, 6, seed=3), mesh, [Shard(1)])
        results = [a @ b, a + c, torch.softmax(a, dim=0), a.sum(dim=0), a.mean(), (c @ a).max(), a.norm(),
                zeros(5, 3, device_mesh=mesh, placements=[Shard(0)]) + 1]
        return [result.full_tensor() for result in results]

    agree(*map(on, meshes(ranks)), exactly=False)
    assert served["allgather"] and served["allreduce"]


# -- models


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.rise, self.fall = nn.LayerNorm(12), nn.Linear(12, 24), nn.Linear(24, 12)

    def forward(self, x):
        return self.fall(torch.relu(self.rise(self.norm(x))))


def make():
    torch.manual_seed(4)
    return nn.Sequential(Perceptron(), Perceptron(), nn.Linear(12, 12))


PLANS = {
    "columns and rows": lambda: {"rise": ColwiseParallel(), "fall": RowwiseParallel()},
    "rows of what is sharded": lambda: {
        "rise": ColwiseParallel(output_layouts=Replicate()), "fall": RowwiseParallel(input_layouts=Replicate())},
    "sequence": lambda: {
        "norm": SequenceParallel(),
        "rise": ColwiseParallel(input_layouts=Shard(1)),
        "fall": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    },
}  # fmt: skip


def parallel(mesh, name):
    net = make()
    for layer in net[:2]:
        parallelize_module(layer, mesh, PLANS[name]())
    if name == "sequence":
        begin = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1))
        end = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True)
        parallelize_module(net[0], mesh, begin)
        parallelize_module(net[2], mesh, end)
    return net


def train(net, data):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for x, y in data:
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def batches(seed=0, count=STEPS):
    return [(values(3, 12, 12, seed=seed + 2 * i), values(3, 12, 12, seed=seed + 2 * i + 1)) for i in range(count)]


def whole(net):
    return {name: value.full_tensor().detach() if isinstance(value, DTensor) else value.detach()
            for name, value in net.state_dict().items()}


@pytest.mark.parametrize("name", PLANS)
def test_layers_over_ranks(meshes, ranks, served, agree, name):
    """And they are those of one process."""
    def on(mesh):
        net = parallel(mesh, name)
        return train(net, batches()), whole(net)

    mine, theirs = map(on, meshes(ranks))
    agree(mine, theirs)
    alone = make()
    torch.testing.assert_close((mine[0], mine[1]), (train(alone, batches()), whole(alone)), rtol=1e-4, atol=1e-5)
    assert served["allgather"] and served["reduce_scatter" if name == "sequence" else "allreduce"] >= STEPS


def test_an_embedding_and_a_loss_over_ranks(meshes, ranks, served, agree):
    """The vocabulary is sharded in both."""
    def on(mesh):
        torch.manual_seed(4)
        net = nn.Sequential(nn.Embedding(26, 12), nn.Linear(12, 26))
        parallelize_module(net, mesh, {
            "0": RowwiseParallel(input_layouts=Replicate()),
            "1": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        })
        draw = torch.Generator().manual_seed(5)
        x, y = torch.randint(26, (9,), generator=draw), torch.randint(26, (9,), generator=draw)
        with loss_parallel():
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
        return loss.detach().full_tensor(), [parameter.grad.full_tensor() for parameter in net.parameters()]

    agree(*map(on, meshes(ranks)), exactly=False)
    assert served["allreduce"] >= 3 and served["allgather"]


@pytest.mark.mpi(min_size=4, max_size=4)
def test_layers_over_ranks_and_fully_sharded(meshes, rank, served, agree):
    def on(mesh):
        net = parallel(mesh[mesh.mesh_dim_names[1]], "columns and rows")
        for layer in net[:2]:
            fully_shard(layer, mesh=mesh[mesh.mesh_dim_names[0]])
        fully_shard(net, mesh=mesh[mesh.mesh_dim_names[0]])
        return train(net, batches(seed=100 * (rank // 2))), whole(net)

    agree(*map(on, meshes(2, 2)), exactly=False)
    assert served["allgather"] and served["reduce_scatter"] == 3 * STEPS and served["allreduce"]
