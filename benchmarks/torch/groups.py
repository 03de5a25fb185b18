"""Both groups of all ranks: mpicoll's, which is the default one, and Gloo's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import mpicoll.torch  # noqa: F401 - registers the backend
from mpicoll.torch.calls import COMPARED

from ..peers.gloo_worker import interface

OURS, GLOO = "mpicoll", "gloo"


class Groups(NamedTuple):
    """The groups of all ranks."""

    ours: Any
    gloo: Any


@contextmanager
def groups() -> Iterator[Groups]:
    """Provide both groups, and one thread a rank. Collective. Raises CommError where no launcher started the ranks.

    The calls that a group compares between ranks, its first ones, are over.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface())
    torch.set_num_threads(1)  # ranks share the cores already
    dist.init_process_group(OURS)
    try:
        both = Groups(dist.group.WORLD, dist.new_group(backend=GLOO))
        for _ in range(COMPARED):
            dist.all_reduce(torch.zeros(1))
        yield both
    finally:
        dist.destroy_process_group()
