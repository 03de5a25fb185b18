"""What `import mpicoll` gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mpicoll
from mpicoll import errors

ROOT = Path(__file__).resolve().parents[2]
NEED_MPI = {"AVG", "Cartcomm", "Comm", "Distgraphcomm", "Graphcomm", "Request"}
WITHOUT_MPI = (
    "algorithms", "buffers.typemap", "cli.program", "describe.generate", "describe.svg", "errors", "proofs.prove",
    "plans.lowering", "runtime.trace", "schedules.nested", "selection.select", "selection.settings", "selection.tables",
)
PROMISED = {"Comm", "algorithm", "draw", "list_algorithms", "schedule", "verify"}


def python(code: str) -> subprocess.CompletedProcess[str]:
    start = f"import sys; sys.path[0] = {str(ROOT)!r}; "
    return subprocess.run([sys.executable, "-c", start + code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_promised_names():
    assert set(mpicoll.__all__) >= PROMISED
    assert sorted(mpicoll.__all__) == sorted(set(mpicoll.__all__))


@pytest.mark.parametrize("name", sorted(set(mpicoll.__all__) - NEED_MPI))
def test_exported(name):
    assert getattr(mpicoll, name) is not None


@pytest.mark.parametrize("name", errors.__all__)
def test_errors_are_reached_through_the_package(name):
    assert getattr(mpicoll.errors, name).__doc__


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
def test_what_needs_mpi_says_so_when_asked_for(name):
    done = python(f"sys.modules['mpi4py'] = None; import mpicoll; mpicoll.{name}")
    assert done.returncode != 0
    assert "mpi4py" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "file",
    sorted((ROOT / "mpicoll").rglob("*.py")),
    ids=lambda f: f.parent.name + "." + f.stem,
)
def test_every_module_says_what_it_is(file):
    first = file.read_text().lstrip()
    assert first.startswith('"""'), file
    assert first[3:].split("\n")[0].rstrip('"').endswith((".", ":")), "a sentence"


def test_examples_of_the_package():
    """The lines of its docstring that need no MPI."""
    assert "ring" in mpicoll.list_algorithms()["allreduce"]
    mpicoll.verify(mpicoll.schedule("allreduce", "ring", p=5))
    assert mpicoll.__version__.count(".") == 2
