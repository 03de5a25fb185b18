"""What torch asks a process group for besides operations: rank, size, names, timeout, and its end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import ProcessGroup as TorchProcessGroup
from torch.distributed import Work as TorchWork

from ..comm.comm import Comm
from .calls import Calls
from .work import Several

_CPU = torch.device("cpu")


class Group(TorchProcessGroup):  # type: ignore[misc]
    """A group without operations, on an mpicoll.Comm, which is its own and is freed with it."""

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False

    def __init__(
        self, comm: Comm, store: Any = None, timeout: timedelta = dist.default_pg_timeout, name: str = ""
    ) -> None:
        super().__init__(comm.rank, comm.size)
        self.comm, self._store = comm, store
        self.calls = Calls(comm, name, timeout)
        self._group_name, self._desc = name, "undefined"

    def getRank(self) -> int:
        """Return the rank of this process in the group."""
        return self.calls.channel.rank

    def getSize(self) -> int:
        """Return the number of ranks in the group."""
        return self.calls.channel.size

    rank, size = getRank, getSize

    def getBackendName(self) -> str:
        """Return mpicoll, also where the group stands in the place of Gloo's: torch's C++ would look for that one."""
        return "mpicoll"

    name = _get_backend_name = getBackendName

    def getGroupName(self) -> str:
        """Return the name that torch gave the group."""
        return self._group_name

    def setGroupName(self, name: str) -> None:
        """Take the name that torch gives the group."""
        self._group_name = self.calls.name = name

    _set_group_name = setGroupName
    group_name = property(getGroupName, setGroupName)

    def getGroupDesc(self) -> str:
        """Return what the group is for, in words."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        """Take what the group is for, in words."""
        self._desc = desc

    _set_group_desc = setGroupDesc
    group_desc = property(getGroupDesc, setGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return [_CPU]

    def _get_backend(self, device: torch.device) -> Group:
        """Return the group itself. Raises RuntimeError for a device that is not the CPU."""
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"mpicoll moves CPU memory, and has no backend for {device}")
        return self

    @property
    def options(self) -> Any:
        """What this group was made with, as backends of torch have it."""
        return self

    @property
    def _timeout(self) -> timedelta:
        return self.calls.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Give calls that say no timeout of their own this one."""
        self.calls.timeout = timeout

    _set_default_timeout = set_timeout

    def get_group_store(self) -> Any:
        """Return the store that torch made the group with."""
        return self._store

    def supports_tensor_alloc(self, device: Any = None) -> bool:
        """Return False: any memory of the CPU will do."""
        return False

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        """Do nothing: there are no hooks to wait for."""

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: calls are numbered from the first on."""

    def _get_sequence_number_for_group(self) -> int:
        return self.calls.channel.sequence

    def _enable_collectives_timing(self) -> None:
        """Do nothing: nothing is timed."""

    def _start_coalescing(self, device: Any = None) -> None:
        """Do nothing: each operation begins when it is called."""

    def _end_coalescing(self, device: Any = None) -> TorchWork:
        return Several([], [])

    def shutdown(self) -> None:
        """Make no more calls. What is under way goes on, unseen."""
        self.calls.close()

    abort = shutdown
