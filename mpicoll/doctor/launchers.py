"""Check which launcher started the processes, and whether they became the ranks of one world."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .finding import WARNING, WRONG, Facts, Finding

LAST_STEP = 0xFFFFFFF0  # Slurm numbers batch scripts and interactive shells from here on


@dataclass(frozen=True)
class Flavour:
    """A family of MPI libraries.

    How its library's version begins, a variable by which its ranks know a launcher that they understand, and what to
    type to start and to bind them.
    """

    name: str
    signature: str
    known_by: str
    srun: str
    bind: str


MPICH = Flavour("MPICH", r"MPICH|MVAPICH", "PMI_RANK", "srun --mpi=pmi2 PROGRAM", "mpiexec -bind-to core PROGRAM")
INTEL = Flavour(
    "Intel MPI",
    r"Intel\(?R?\)? MPI",
    "PMI_RANK",
    "export I_MPI_PMI_LIBRARY=/usr/lib/x86_64-linux-gnu/libpmi2.so (where this cluster has libpmi2.so), "
    "then srun --mpi=pmi2 PROGRAM",
    "I_MPI_PIN=1 I_MPI_PIN_DOMAIN=core mpiexec PROGRAM",
)
OPENMPI = Flavour(
    "Open MPI",
    r"Open MPI",
    "PMIX_RANK",
    "srun --mpi=pmix PROGRAM; where `srun --mpi=list` has no pmix: mpirun PROGRAM, inside the allocation",
    "mpiexec --map-by core --bind-to core PROGRAM",
)
OTHER = Flavour(
    "this MPI", "", "", "srun --mpi=TYPE PROGRAM, with a TYPE of `srun --mpi=list`", "its mpiexec's option for it"
)
FLAVOURS = (INTEL, OPENMPI, MPICH, OTHER)

# What tells how many processes a launcher started, and whose launcher that is.
SIZES = {"PMI_SIZE": "a launcher that speaks PMI", "OMPI_COMM_WORLD_SIZE": "Open MPI's launcher"}
STEP = "SLURM_STEP_NUM_TASKS"


def flavour(version: str) -> Flavour:
    """Return the family of a library, by what it says of itself."""
    return next(family for family in FLAVOURS if re.search(family.signature, version))


def by_srun(environ: dict[str, str]) -> bool:
    """Return whether srun started this process as a task. Batch scripts and salloc's shells are none."""
    step = environ.get("SLURM_STEP_ID", "")
    return STEP in environ and (not step.isdigit() or int(step) < LAST_STEP)


def started(environ: dict[str, str]) -> dict[str, int]:
    """Return how many processes were started, by the variables that say so.

    A launcher within a step of Slurm's may start its helpers by srun, so the step counts only where no launcher speaks.
    """
    counts = {name: int(environ[name]) for name in SIZES if environ.get(name, "").isdigit()}
    if not counts and by_srun(environ) and environ[STEP].isdigit():
        counts = {STEP: int(environ[STEP])}
    return counts


def one_world(facts: Facts) -> Iterator[Finding]:
    """Check that all processes a launcher started are ranks of one world."""
    environ, mpi, size = facts["ranks"][0]["environ"], facts["mpi"], len(facts["ranks"])
    counts = started(environ)
    if max(counts.values(), default=0) <= size or size in counts.values():
        return
    name, number, who = _most(environ)
    own = flavour(mpi["library_version"])
    apart = "and each is rank 0 of 1" if size == 1 else f"and MPI.COMM_WORLD has {size}"
    asked = [f"{key}={environ[key]}" for key in (name, "SLURM_MPI_TYPE", "I_MPI_PMI_LIBRARY") if key in environ]
    yield Finding(
        WRONG,
        f"{who} started {number} processes, {apart}: {own.name} and this launcher do not understand each other",
        f"{', '.join(asked)}; {mpi['library']}, loaded from {mpi['path'] or 'an unknown place'}",
        instead(environ, own, facts["mpiexec"]),
    )


def doubt(environ: dict[str, str], version: str) -> str:
    """Return what to type if MPI ends the process as it starts; "" if MPI surely understands its launcher.

    Call this before MPI starts, since mpicoll cannot print anything once MPI has ended the process.
    """
    own = flavour(version)
    if max(started(environ).values(), default=0) < 2 or own.known_by in environ or not own.known_by:
        return ""
    _, number, who = _most(environ)
    return (
        f"{who} started {number} processes, perhaps in a way that {own.name} does not understand; "
        f"should MPI not start, type: {instead(environ, own, None)}"
    )


def instead(environ: dict[str, str], own: Flavour, mpiexec: str | None) -> str:
    """Return the launcher to use for a library, and how."""
    if by_srun(environ):
        return own.srun
    return f"{mpiexec or f'the mpiexec of {own.name}, which stands beside its library:'} -n {_most(environ)[1]} PROGRAM"


def _most(environ: dict[str, str]) -> tuple[str, int, str]:
    """Return the variable that tells of the most processes, how many, and who started them."""
    name, number = max(started(environ).items(), key=lambda item: item[1])
    srun = by_srun(environ) and name != "OMPI_COMM_WORLD_SIZE"
    return name, number, "srun" if srun else SIZES[name]


def all_of_it(facts: Facts) -> Iterator[Finding]:
    """Check that this run covers the whole job, and is not one process in the job's shell."""
    environ = facts["ranks"][0]["environ"]
    tasks = environ.get("SLURM_NTASKS", "")
    if len(facts["ranks"]) > 1 or started(environ) or not tasks.isdigit() or int(tasks) < 2:
        return
    yield Finding(
        WARNING,
        f"this is one process in a job of {tasks} tasks: nothing was seen of the others",
        f"SLURM_JOB_ID={environ.get('SLURM_JOB_ID', '?')}, SLURM_NTASKS={tasks}; no launcher says that it started this",
        flavour(facts["mpi"]["library_version"]).srun.replace("PROGRAM", "python -m mpicoll info --check"),
    )
