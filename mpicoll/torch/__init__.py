"""torch.distributed over MPI: importing this module registers the backend "mpicoll".

import mpicoll.torch
torch.distributed.init_process_group("mpicoll")      # rank and size from MPI: mpiexec or srun, no MASTER_ADDR

start       how ranks find each other; ranks: a group gets its communicator; stores: and its store
meeting     an error of one rank is raised on all; shrinking: smaller groups, of the ranks that have not failed
group       the process group: torch's operations as collectives; base: its rank, size and names; arguments: checked
calls       how it makes a call: in which order, counted, waited for
tensors     the memory of tensors; operators: torch's operators as MPI's; sparse: sums of sparse tensors
work        operations in flight; futures: their futures, and the lanes of their callbacks
messages    send, recv, and the barrier that says who is missing
hooks       codecs for DistributedDataParallel and fully_shard
served      what was served: explain(), count(); profiling: ranges for torch's profiler; callers: whether DDP called
"""

from __future__ import annotations

try:
    import ml_dtypes  # noqa: F401
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"{error}; mpicoll.torch needs torch and ml_dtypes: pip install 'mpicoll[torch]'") from None

from . import hooks
from .group import ProcessGroup
from .served import count, explain
from .shrinking import shrink
from .start import alias, register

__all__ = ["ProcessGroup", "alias", "count", "explain", "hooks", "shrink"]

register()
