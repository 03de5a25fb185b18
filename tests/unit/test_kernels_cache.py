"""One compilation per machine: what processes on an empty cache do, and where nothing can be kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import filelock
import pytest

from mpicoll import kernels

# Asks for the kernels named in argv, checks what they compute and says what it compiled and loaded.
ASK = """
import json, sys
import numpy as np
from {package} import cache, pack, reduce, reference
for kernel in sys.argv[1:]:
    op, dtype = kernel.split(":")
    a, b = np.array([1, 6, 3, 7], dtype), np.array([4, 5, 5, 2], dtype)
    got, want = np.zeros(4, dtype), np.zeros(4, dtype)
    reduce.call(reduce.address(op, got.dtype), got.ctypes.data, a.ctypes.data, b.ctypes.data, 4)
    reference.reduce(op, want, a, b)
    assert (got == want).all(), (kernel, got, want)
assert "mpi4py" not in sys.modules or "{package}" == "mpicoll.kernels"
print(json.dumps([cache.compiled_here(), cache.loaded_here()]))
"""
KERNELS = ["SUM:f4", "PROD:f4", "MAX:f4", "SUM:f8", "BXOR:i4"]
PACKING = sum(name.startswith(("pack_", "unpack_")) for name in kernels.pack.__all__)
IMPORTED = 1 + PACKING  # they and reduce.call are compiled when they are imported
FUNCTIONS = IMPORTED + len(KERNELS)


def start(kernels: list[str], package: str = "mpicoll.kernels", **environment: object) -> subprocess.Popen:
    path = os.pathsep.join(filter(None, [str(environment.pop("path", "")), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-c", ASK.format(package=package), *kernels],
        env={**os.environ, "PYTHONPATH": path, **{key: str(value) for key, value in environment.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(process: subprocess.Popen) -> tuple[list[str], list[str]]:
    out, errors = process.communicate(timeout=50)
    assert process.returncode == 0, errors
    compiled, loaded = json.loads(out.splitlines()[-1])
    return compiled, loaded


def test_four_processes_on_an_empty_cache_compile_each_kernel_once(tmp_path: Path) -> None:
    four = [start(KERNELS, NUMBA_CACHE_DIR=tmp_path) for _ in range(4)]
    outcomes = [outcome(process) for process in four]
    compiled = Counter(label for labels, _ in outcomes for label in labels)
    assert len(compiled) == FUNCTIONS and set(compiled.values()) == {1}, compiled
    loaded = Counter(label for _, labels in outcomes for label in labels)
    assert loaded == dict.fromkeys(compiled, 3)
    assert outcome(start(KERNELS, NUMBA_CACHE_DIR=tmp_path))[0] == []


def test_kernels_from_several_processes_live_together(tmp_path: Path) -> None:
    """Numba numbers its symbols in each process afresh: equal symbols from two processes would be one."""
    for kernel in KERNELS:
        compiled, _ = outcome(start([kernel], NUMBA_CACHE_DIR=tmp_path))
        assert any(label.startswith("reduce.") for label in compiled)
    compiled, loaded = outcome(start(KERNELS, NUMBA_CACHE_DIR=tmp_path))
    assert (len(compiled), len(loaded)) == (0, FUNCTIONS)


def copy(tmp_path: Path, name: str) -> Path:
    """The package under another name, with a file where its cache would be, as if it were read-only."""
    package = tmp_path / "lib" / name
    source = Path(kernels.__file__ or "").parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__pycache__").write_text("")
    return package.parent


def test_a_read_only_package_keeps_its_kernels_in_the_users_cache(tmp_path: Path) -> None:
    environment = {"HOME": tmp_path, "XDG_CACHE_HOME": tmp_path / "user", "NUMBA_CACHE_DIR": ""}
    environment["path"] = copy(tmp_path, "kernels_copy")
    compiled, _ = outcome(start(["SUM:f4"], "kernels_copy", **environment))
    assert len(compiled) == IMPORTED + 1
    compiled, loaded = outcome(start(["SUM:f4"], "kernels_copy", **environment))
    assert (len(compiled), len(loaded)) == (0, IMPORTED + 1)
    assert list((tmp_path / "user").rglob("*.nbc"))


def test_where_nothing_can_be_written_kernels_work_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    nowhere = tmp_path / "file" / "cache"
    environment = {"HOME": nowhere, "XDG_CACHE_HOME": nowhere, "NUMBA_CACHE_DIR": ""}
    environment["path"] = copy(tmp_path, "kernels_copy")
    compiled, loaded = outcome(start(["SUM:f4"], "kernels_copy", **environment))
    assert (len(compiled), len(loaded)) == (IMPORTED + 1, 0)


def test_a_changed_source_is_compiled_again(tmp_path: Path) -> None:
    library = copy(tmp_path, "kernels_copy")
    outcome(start(["SUM:f4"], "kernels_copy", path=library, NUMBA_CACHE_DIR=tmp_path / "cache"))
    with open(library / "kernels_copy" / "pack.py", "a") as file:
        file.write("# changed\n")
    compiled, _ = outcome(start(["SUM:f4"], "kernels_copy", path=library, NUMBA_CACHE_DIR=tmp_path / "cache"))
    assert sorted({label.split(".")[0] for label in compiled}) == ["pack"] and len(compiled) == PACKING


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory for what this process compiles from now on."""
    from numba.core import config

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def add_one(n: int) -> int:
    return n + 1


def test_a_lock_that_is_never_released_delays_but_does_not_stop(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numba import types

    held: list[filelock.BaseFileLock] = []

    def locked_elsewhere(cache_path: str) -> filelock.BaseFileLock:
        held.append(filelock.FileLock(empty_cache / "lock", is_singleton=False))
        held[-1].acquire()
        return filelock.FileLock(empty_cache / "lock", is_singleton=False)

    monkeypatch.setattr(kernels.cache, "_lock", locked_elsewhere)
    monkeypatch.setattr(kernels.cache, "LOCK_SECONDS", 0.1)
    assert kernels.cache.jit(types.int64, types.int64)(add_one)(1) == 2
    assert len(held) == 1
    assert kernels.cache.compiled_here()[-1] == "test_kernels_cache.add_one(int64)"


def test_the_lock_is_free_after_a_failed_compilation(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numba import types
    from numba.core.errors import TypingError

    lock = filelock.FileLock(empty_cache / "lock")
    monkeypatch.setattr(kernels.cache, "_lock", lambda cache_path: lock)

    with pytest.raises(TypingError):
        kernels.cache.jit(types.int64, types.unicode_type)(add_one)
    assert not lock.is_locked
    assert kernels.cache.jit(types.int64, types.int64)(add_one)(1) == 2


def test_a_function_that_is_compiled_in_makes_its_caller_stale(empty_cache: Path) -> None:
    from numba import types

    def state() -> int:
        before = len(kernels.cache.compiled_here())
        kernels.cache.jit(types.int64, types.int64, also=[str(other)])(add_one)
        return len(kernels.cache.compiled_here()) - before

    other = empty_cache / "other.py"
    other.write_text("first")
    assert [state(), state()] == [1, 0]
    other.write_text("second")
    assert [state(), state()] == [1, 0]
