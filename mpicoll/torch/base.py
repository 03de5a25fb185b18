"""A process group without its operations: rank, size, names, timeout and shutdown."""

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
    supports_shrinking = True

    def __init__(
        self, comm: Comm, store: Any = None, timeout: timedelta = dist.default_pg_timeout, name: str = ""
    ) -> None:
        super().__init__(comm.rank, comm.size)
        self.comm, self._store = comm, store
        self.calls = Calls(comm, name, timeout)
        self._group_name, self._desc = name, "undefined"

    def getRank(self) -> int:
        """Return the rank of this process in the group."""
        return self.calls.state.rank

    def getSize(self) -> int:
        """Return the number of ranks in the group."""
        return self.calls.state.size

    rank, size = getRank, getSize

    def getBackendName(self) -> str:
        """Return mpicoll, even if the group replaces Gloo's: by that name torch's C++ would look for Gloo's."""
        return "mpicoll"

    name = _get_backend_name = getBackendName

    def getGroupName(self) -> str:
        """Return the name that torch gave the group."""
        return self._group_name

    def setGroupName(self, name: str) -> None:
        """Set the name that torch gives the group."""
        self._group_name = self.calls.name = name

    _set_group_name = setGroupName
    group_name = property(getGroupName, setGroupName)

    def getGroupDesc(self) -> str:
        """Return the description of the group."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        """Set the description of the group."""
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
        """Return the group itself, in place of the options that backends of torch are made with."""
        return self

    @property
    def _timeout(self) -> timedelta:
        return self.calls.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of calls that have none of their own."""
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
        """Return at once: there are no hooks to wait for."""

    def _set_sequence_number_for_group(self) -> None:
        """Accept the call: mpicoll numbers calls from the first on."""

    def _get_sequence_number_for_group(self) -> int:
        return self.calls.state.sequence

    def _enable_collectives_timing(self) -> None:
        """Accept the call: nothing is timed."""

    def _start_coalescing(self, device: Any = None) -> None:
        """Accept the call: each operation still begins when it is called."""

    def _end_coalescing(self, device: Any = None) -> TorchWork:
        return Several([], [])

    def shutdown(self) -> None:
        """Refuse further calls. Operations in flight continue, unobserved."""
        self.calls.close()

    abort = shutdown
