"""A model that learns: in DistributedDataParallel or fully_shard, on a group, with or without codecs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from mpicoll.torch import hooks


class Training:
    """A model, what changes its parameters, and the losses of its steps."""

    def __init__(self, model: Any, optimizer: Callable[[Any], Any], loss: Callable[[Any, Any], Any]) -> None:
        self.model, self.optimizer, self.loss = model, optimizer(model.parameters()), loss
        self.losses: list[float] = []

    def step(self, x: Any, expected: Any) -> None:
        """Learn from a batch, of which this rank has its part."""
        self.optimizer.zero_grad()
        loss = self.loss(self.model(x), expected)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


def replicated(model: Any, group: Any, codec: str = "") -> Any:
    """Return the model in DistributedDataParallel, with gradients by a codec where one is named. Collective."""
    whole = DistributedDataParallel(model, process_group=group)
    if codec:
        whole.register_comm_hook(group, hooks.compressed(codec))
    return whole


def sharded(model: Any, group: Any, units: Iterable[Any], codec: str = "", weights: str = "") -> Any:
    """Return the model, sharded by units and what is left. Collective.

    codec: of gradients, weights: of weights, as they travel; as they are where none is named.
    """
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=(dist.get_backend(group),))
    for module in (*units, model):
        fully_shard(module, mesh=mesh)
    if codec or weights:
        hooks.encode(model, codec or None, weights or None)
    return model
