"""Pipelines: a stage a rank, activations and gradients from rank to rank."""

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

WIDTH, BATCH, PARTS = 8, 8, 4


def layers(count):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
def test_a_pipeline(world, gloo, rank, ranks, served, agree, schedule):
    """Gradients are those of all layers on one rank; of Gloo's group they are, to the bit."""
    x, y = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1)), torch.zeros(BATCH, WIDTH)

    def on(group):
        mine = layers(ranks)[rank]
        stage = PipelineStage(mine, rank, ranks, torch.device("cpu"), group=group)
        running = schedule(stage, PARTS, loss_fn=nn.functional.mse_loss)
        losses = []
        if rank == 0:
            running.step(x)
        elif rank == ranks - 1:
            running.step(target=y, losses=losses)
        else:
            running.step()
        return [tensor.grad for tensor in mine.parameters()], [tensor.detach() for tensor in losses]

    ours = on(world)
    assert served["send"] and served["recv"]
    agree(ours, on(gloo), exactly=True)
    whole = nn.Sequential(*layers(ranks))
    nn.functional.mse_loss(whole(x), y).backward()
    for grad, expected in zip(ours[0], whole[rank].parameters()):
        torch.testing.assert_close(grad, expected.grad, rtol=1e-4, atol=1e-6)
