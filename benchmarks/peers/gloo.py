"""Gloo, the collectives of PyTorch on CPUs, through torch.distributed.

torch is large, and does not need mpi4py: any Python that has torch will do, named by an option or by
MPICOLL_TORCH_PYTHON. Its ranks are started by the mpiexec of the MPI they are compared with, on the same hosts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import gloo_worker
from .peer import Call, Launch, Measured, Missing, PeerFailed, checked

VARIABLE = "MPICOLL_TORCH_PYTHON"
ADVICE = f"name a Python that has torch with --torch-python or {VARIABLE}, or pip install 'mpicoll[peers]'"
ASK = "import torch, torch.distributed as d; print(torch.__version__ if d.is_gloo_available() else '')"


@dataclass(frozen=True)
class Gloo:
    """Gloo in an environment, given by its Python."""

    python: Path
    version: str
    name: str = "gloo"

    @property
    def about(self) -> str:
        return f"Gloo of torch {self.version}"

    @property
    def starting(self) -> float:
        return 11.0

    def calls(self, rounds: int) -> int:
        return rounds + 1

    @classmethod
    def find(cls, python: Path | None = None) -> Gloo:
        """Return Gloo of the named environment, else of MPICOLL_TORCH_PYTHON's, else of this one. Raises Missing."""
        named = python or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
        asked = named or Path(sys.executable)
        try:
            done = subprocess.run([asked, "-c", ASK], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        except OSError as error:
            raise Missing(f"{asked}: {error.strerror}; {ADVICE}") from None
        if done.returncode or not done.stdout.strip():
            raise Missing(f"{asked if named else 'this environment'} has no torch with Gloo; {ADVICE}")
        return cls(asked, done.stdout.strip())

    def measure(self, launch: Launch, rounds: Mapping[Call, int], directory: Path) -> dict[Call, Measured]:
        """Measure everything in one launch, since importing torch takes seconds."""
        cases, results, meeting = (directory / name for name in ("cases.json", "results.jsonl", "meeting"))
        for old in (results, meeting):
            old.unlink(missing_ok=True)
        cases.write_text(json.dumps(plan(rounds)))
        program = [str(self.python), gloo_worker.__file__, str(cases), str(results), meeting.resolve().as_uri()]
        done = launch(program)
        measured = parse(results.read_text() if results.exists() else "")
        checked(done, self.name, measured)
        if not measured:
            raise PeerFailed(f"{self.name} wrote no results")
        return measured


def plan(rounds: Mapping[Call, int], dtype: str = "float64") -> dict[str, Any]:
    """Return what the worker reads."""
    return {"dtype": dtype, "cases": [{**call._asdict(), "rounds": n} for call, n in rounds.items()]}


def parse(text: str) -> dict[Call, Measured]:
    """Return what the worker wrote; a last line that was not finished is left out."""
    entries = [entry for entry in _entries(text) if "collective" in entry]
    return {
        Call(entry["collective"], entry["size"]): Measured(entry["samples_us"], entry["valid"], entry["note"])
        for entry in entries
    }


def _entries(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return
