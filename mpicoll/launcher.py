"""Read what a launcher passes to a process in its environment, before MPI starts."""

from __future__ import annotations

import os
from collections.abc import Mapping

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE")


def rank(environ: Mapping[str, str] = os.environ) -> int:
    """Return this process's rank; 0 if no launcher has set one."""
    return next((int(environ[name]) for name in RANK_VARIABLES if environ.get(name, "").isdigit()), 0)


def world_size(environ: Mapping[str, str] = os.environ) -> tuple[int, str]:
    """Return the number of processes that a launcher started, and the variable that has it; (1, "") if none is set."""
    sizes = ((int(environ[name]), name) for name in SIZE_VARIABLES if environ.get(name, "").isdigit())
    return max(sizes, default=(1, ""))
