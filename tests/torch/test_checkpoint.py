"""Distributed checkpoints: what one number of ranks saved, read back from its shards."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def build(meshes, ranks, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3))
    fully_shard(model, mesh=meshes(ranks)[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 7)).sum().backward()
    optimizer.step()
    return model, optimizer


def whole(model):
    return {name: value.full_tensor() for name, value in model.state_dict().items()}


def test_saved_state_is_loaded(meshes, ranks, directory, served, agree):
    model, optimizer = build(meshes, ranks, 0)
    weights, state = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=directory)
    other, another = build(meshes, ranks, 1)
    weights, state = get_state_dict(other, another)
    checkpoint.load({"model": weights, "optimizer": state}, checkpoint_id=directory)
    set_state_dict(other, another, model_state_dict=weights, optim_state_dict=state)
    agree(whole(other), whole(model), exactly=True)
    assert ranks == 1 or served["scatter"] or served["broadcast"]
    assert ranks == 1 or served["gather"] or served["allgather"]


def test_asynchronous_saves(meshes, ranks, rank, directory, agree):
    """Objects are gathered by the group of the checkpoint, in a thread, while the program uses another group."""
    model, _ = build(meshes, ranks, 2)
    group = dist.new_group()
    under_way = checkpoint.async_save(
        {"model": model.state_dict()}, checkpoint_id=directory / "later", process_group=group
    )
    value = torch.ones(3)
    for _ in range(5):
        dist.all_reduce(value)
    under_way.result()
    assert value[0] == ranks**5
    other, _ = build(meshes, ranks, 3)
    state = {"model": other.state_dict()}
    checkpoint.load(state, checkpoint_id=directory / "later")
    agree({name: tensor.full_tensor() for name, tensor in state["model"].items()}, whole(model), exactly=True)
    dist.destroy_process_group(group)
