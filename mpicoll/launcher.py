"""What a launcher tells a process before MPI is started."""

from __future__ import annotations

import os
from collections.abc import Mapping

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def rank(environ: Mapping[str, str] = os.environ) -> int:
    """Return this process's rank, 0 where no launcher names one."""
    return next((int(environ[name]) for name in RANK_VARIABLES if environ.get(name, "").isdigit()), 0)
