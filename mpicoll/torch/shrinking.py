"""Smaller process groups: of the ranks that have not failed, or without ranks that torch's shrink_group names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed import distributed_c10d

from ..errors import CommError
from . import ranks
from .group import ProcessGroup


def shrink(group: Any = None) -> ProcessGroup:
    """Return a process group of the ranks of a group that have not failed. Collective over these.

    The group, by default the default one, is destroyed; the new one takes its place as the default. Then torch numbers
    the ranks anew, and all other groups are gone. Raises FaultToleranceError where no rank may fail, and CommError
    where none has failed, or with a torch without shrink_group.
    """
    if not hasattr(distributed_c10d, "shrink_group"):
        raise CommError("this torch has no torch.distributed.shrink_group; mpicoll.torch.shrink needs one that has")
    old = distributed_c10d._get_default_group() if group is None else group
    left = old.comm.Shrink()
    failed = sorted({*range(old.size())} - {*ranks.translated(left, old.comm)})
    if not failed:
        left.Free()
        raise CommError(f"no rank of process group {old.group_name} has failed")
    old.survivors = left
    smaller: ProcessGroup = distributed_c10d.shrink_group(failed, old)
    return smaller


def create_shrunk(torchs: Callable[..., Any], backend: Any, left: list[int], facts: Any, is_default: bool) -> Any:
    """As torch's own function, which makes a group around a backend; mpicoll's are groups, with a store of their own.

    left are the ranks as the old group's. torch keeps them for the new group, where the default one is numbered anew.
    """
    if not isinstance(backend, ProcessGroup):
        return torchs(backend, left, facts, is_default)
    facts["store"] = backend.get_group_store()
    backend.setGroupName(facts["new_group_name"])
    backend.setGroupDesc("default:shrunken" if is_default else f"{facts['original_group_name']}:shrunk")
    if is_default:
        ranks.renumber(backend.comm)
        left[:] = range(len(left))
    return backend
