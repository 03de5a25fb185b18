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


def create_shrunk(
    original: Callable[..., Any], backend: Any, remaining_ranks: list[int], metadata: Any, is_default: bool
) -> Any:
    """Do what torch's _create_shrunk_process_group does, the original: make a process group around a new backend.

    mpicoll's backend is a process group itself, with a store of its own. torch takes store and ranks from metadata and
    remaining_ranks afterwards; the latter are numbers in the old group, and those of a new default group begin at 0.
    """
    if not isinstance(backend, ProcessGroup):
        return original(backend, remaining_ranks, metadata, is_default)
    metadata["store"] = backend.get_group_store()
    backend.setGroupName(metadata["new_group_name"])
    backend.setGroupDesc("default:shrunken" if is_default else f"{metadata['original_group_name']}:shrunk")
    if is_default:
        ranks.renumber(backend.comm)
        remaining_ranks[:] = range(len(remaining_ranks))
    return backend
