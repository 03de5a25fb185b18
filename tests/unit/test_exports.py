"""Check the names that `import mpicoll` gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mpicoll

ROOT = Path(__file__).resolve().parents[2]
NEED_MPI = {"AVG", "Cartcomm", "Comm", "Distgraphcomm", "Graphcomm", "Request", "resilient"}
WITHOUT_MPI = (
    "algorithms", "buffers.typemap", "cli.program", "describe.generate", "describe.svg", "describe.text", "errors",
    "kernels", "plans.lowering", "proofs.check_plan", "proofs.prove", "diagnostics.trace", "schedules.nested",
    "selection.select", "selection.settings", "selection.tables",
)
PROMISED = {"Comm", "algorithm", "draw", "list_algorithms", "schedule", "verify"}


def python(code: str) -> subprocess.CompletedProcess[str]:
    start = f"import sys; sys.path[0] = {str(ROOT)!r}; "
    return subprocess.run([sys.executable, "-c", start + code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_names():
    assert set(mpicoll.__all__) >= PROMISED
    assert sorted(mpicoll.__all__) == sorted(set(mpicoll.__all__))
    assert all(getattr(mpicoll, name) is not None for name in set(mpicoll.__all__) - NEED_MPI)


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="module 'mpicoll' has no attribute 'Allreduce'"):
        mpicoll.Allreduce  # noqa: B018


def test_importing_and_proving_does_not_start_mpi():
    done = python(
        "import mpicoll; mpicoll.verify(mpicoll.schedule('allreduce', 'ring', p=5)); mpicoll.list_algorithms(); "
        "sys.exit(any(name.startswith('mpi4py') for name in sys.modules))"
    )
    assert done.returncode == 0, done.stderr


def test_modules_need_no_mpi():
    done = python("sys.modules['mpi4py'] = None; " + "; ".join(f"import mpicoll.{name}" for name in WITHOUT_MPI))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(NEED_MPI))
def test_names_that_need_mpi_raise_without_it(name):
    done = python(f"sys.modules['mpi4py'] = None; import mpicoll; mpicoll.{name}")
    assert done.returncode != 0
    assert "mpi4py" in done.stderr.splitlines()[-1]


def test_a_communicator_loads_neither_a_compiler_nor_what_is_slow_to_load():
    """A communicator loads no such module beside those that mpi4py and NumPy load."""
    code = (
        "import sys, numpy\n"
        "from mpi4py import MPI\nbefore = set(sys.modules)\nfrom mpicoll import Comm\n"
        "heavy = {'numba', 'llvmlite', 'hashlib', 'tempfile', 'importlib.resources'}\n"
        "print(*heavy & (set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
