"""Codecs in what fully_shard sends: a model learns as well, and what was left out comes with a later step."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import mpicoll.torch
from mpicoll.compression.codecs import parse
from mpicoll.errors import ArgumentError, CodecError
from mpicoll.torch import hooks

pytestmark = pytest.mark.mpi(min_size=2)    # torch shards nothing on one rank


def make(group):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 4))
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("mpicoll",))
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=mesh)
    return model


def losses(model, rank, steps=30):
    draw = torch.Generator().manual_seed(rank)
    x = torch.randn(24, 16, generator=draw)
    expected = x[:, :4] * 2 - x[:, 4:8]
    optimizer, values = torch.optim.SGD(model.parameters(), lr=0.2), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), expected)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def ran(group, operation):
    """Return pairs of algorithms: the one that a group requests for an operation, and the one that ran."""
    kinds = [(entry.kind, entry.choice) for entry in mpicoll.torch.explain() if entry.kind.group == group.group_name]
    return {(kind.algorithm, choice.algorithm) for kind, choice in kinds if kind.operation == operation}


@pytest.mark.parametrize(("gradients", "weights", "feedback", "within"), [
    ("bfloat16", None, False, 0.01),
    ("int8", "bfloat16", False, 0.02),
    ("int4", None, False, 0.1),
    ("int4", None, True, 0.1),
])  # fmt: skip
def test_a_model_learns_as_well(ours, rank, gradients, weights, feedback, within):
    plain = losses(make(dist.group.WORLD), rank)
    model = make(ours)
    hooks.encode(model, gradients, weights, feedback)
    encoded = losses(model, rank)
    assert encoded[-1] < 0.7 * plain[0] and encoded != plain
    assert abs(encoded[-1] - plain[-1]) < within * plain[0]
    spec = f"quantized(codec={parse(gradients)}{', feedback=yes' * feedback})"
    assert ran(ours, "reduce_scatter") == {(spec, spec)}
    spec = f"quantized(codec={parse(weights)})" if weights else None
    assert spec is None or ran(ours, "allgather") == {(spec, spec)}


def test_each_module_has_its_own(ours):
    model, other = make(ours), nn.Linear(2, 2)
    hooks.encode(model, "int4", error_feedback=True)
    groups = [module._get_fsdp_state()._fsdp_param_groups[0] for module in (model, model[0], model[2])]
    assert len({id(group._reduce_scatter_comm) for group in groups}) == 3
    assert all(group._reduce_scatter_comm.error_feedback for group in groups)
    assert not any(isinstance(group._all_gather_comm, hooks.AllGather) for group in groups)
    with pytest.raises(ArgumentError, match="no module of the model is sharded"):
        hooks.encode(other, "int8")


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("op", ["SUM", "AVG", "PREMUL_SUM"])
def test_errors_of_a_codec_are_sent_in_a_later_step(ours, ranks, feedback, op):
    reduce = hooks.ReduceScatter("topk(k=1)", error_feedback=feedback)
    operator = dist._make_nccl_premul_sum(0.5) if op == "PREMUL_SUM" else getattr(dist.ReduceOp, op)
    factor = {"SUM": ranks, "AVG": 1.0, "PREMUL_SUM": 0.5 * ranks}[op]
    total, block = torch.zeros(4), torch.tensor([4.0, 3.0, 2.0, 1.0])
    for _ in range(12):
        output, gradients = torch.empty(4), block.repeat(ranks)
        reduce(output, gradients, ours, operator)
        total += output
    if not feedback:
        assert not bool((total >= factor * 12 * 0.9).all())
        return
    rest = torch.empty(4)
    dist.reduce_scatter_single(rest, reduce.left.clone(), op=dist.ReduceOp.SUM, group=ours)
    if op == "AVG":
        rest /= ranks
    torch.testing.assert_close(total + rest, 12 * factor * block)
    assert bool((total > 0).all())


def test_refusals(ours, gloo, ranks):
    reduce = hooks.ReduceScatter("int8", error_feedback=True)
    reduce(torch.empty(4), torch.ones(4 * ranks), ours, dist.ReduceOp.SUM)
    with pytest.raises(CodecError, match=r"each module needs a ReduceScatter of its own"):
        reduce(torch.empty(5), torch.ones(5 * ranks), ours, dist.ReduceOp.SUM)
    with pytest.raises(CodecError, match=r"gradients are torch.bfloat16"):
        reduce(torch.empty(4).bfloat16(), torch.ones(4 * ranks).bfloat16(), ours, dist.ReduceOp.SUM)
    with pytest.raises(ArgumentError, match="none of mpicoll's"):
        reduce(torch.empty(4), torch.ones(4 * ranks), gloo, dist.ReduceOp.SUM)
    with pytest.raises(CodecError):
        reduce(torch.empty(4), torch.full((4 * ranks,), torch.nan), ours, dist.ReduceOp.SUM)
    output = torch.empty(4)
    reduce(output, torch.ones(4 * ranks), ours, dist.ReduceOp.SUM)  # nothing of that is left
    assert torch.equal(output, torch.full((4,), float(ranks)))
