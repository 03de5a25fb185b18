"""One compilation per machine: what processes on an empty cache do, and where nothing can be kept."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
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
one, packed = np.array([3]), np.zeros(3, np.uint8)
layout = pack.Layout(one[:0], one[:0], one - 3, one)
source = np.arange(3, dtype=np.uint8)
assert pack.pack_elements(packed.ctypes.data, source.ctypes.data, 1, 3, layout.address) == 3
assert packed.tolist() == [0, 1, 2]
assert "numba" not in sys.modules or cache.compiled_here()
assert "mpi4py" not in sys.modules or "{package}" == "mpicoll.kernels"
print(json.dumps([cache.compiled_here(), cache.loaded_here()]))
"""
KERNELS = ["SUM:f4", "PROD:f4", "MAX:f4", "SUM:f8", "BXOR:i4"]
FUNCTIONS = 1 + len(KERNELS)  # pack_elements too
started: list[subprocess.Popen] = []


def start(kernels: list[str], package: str = "mpicoll.kernels", **environment: object) -> subprocess.Popen:
    path = os.pathsep.join(filter(None, [str(environment.pop("path", "")), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-c", ASK.format(package=package), *kernels],
        env={**os.environ, "PYTHONPATH": path, **{key: str(value) for key, value in environment.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started.append(process)
    return process


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """However a test ends, so do the processes that it started."""
    yield
    while started:
        with started.pop() as process:
            process.kill()


def outcome(process: subprocess.Popen) -> tuple[list[str], list[str]]:
    out, errors = process.communicate(timeout=150)
    assert process.returncode == 0, errors
    compiled, loaded = json.loads(out.splitlines()[-1])
    return compiled, loaded


@pytest.mark.timeout(300)
def test_four_processes_on_an_empty_cache_compile_each_kernel_once(tmp_path: Path) -> None:
    four = [start(KERNELS, NUMBA_CACHE_DIR=tmp_path) for _ in range(4)]
    outcomes = [outcome(process) for process in four]
    compiled = Counter(label for labels, _ in outcomes for label in labels)
    assert len(compiled) == FUNCTIONS and set(compiled.values()) == {1}, compiled
    loaded = Counter(label for _, labels in outcomes for label in labels)
    assert loaded == dict.fromkeys(compiled, 3)
    assert outcome(start(KERNELS, NUMBA_CACHE_DIR=tmp_path))[0] == []


@pytest.mark.slow
def test_kernels_from_several_processes_live_together(tmp_path: Path) -> None:
    """All have one symbol of the same name."""
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


@pytest.mark.slow
def test_a_read_only_package_keeps_its_kernels_in_the_users_cache(tmp_path: Path) -> None:
    environment = {"HOME": tmp_path, "XDG_CACHE_HOME": tmp_path / "user", "NUMBA_CACHE_DIR": ""}
    environment["path"] = copy(tmp_path, "kernels_copy")
    compiled, _ = outcome(start(["SUM:f4"], "kernels_copy", **environment))
    assert len(compiled) == 2
    compiled, loaded = outcome(start(["SUM:f4"], "kernels_copy", **environment))
    assert (len(compiled), len(loaded)) == (0, 2)
    assert len(list((tmp_path / "user").rglob("*.so"))) == 2


@pytest.mark.slow
def test_where_nothing_can_be_written_kernels_work_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    nowhere = tmp_path / "file" / "cache"
    environment = {"HOME": nowhere, "XDG_CACHE_HOME": nowhere, "NUMBA_CACHE_DIR": ""}
    environment["path"] = copy(tmp_path, "kernels_copy")
    compiled, loaded = outcome(start(["SUM:f4"], "kernels_copy", **environment))
    assert (len(compiled), len(loaded)) == (2, 0)


@pytest.mark.slow
def test_a_changed_source_is_compiled_again(tmp_path: Path) -> None:
    library = copy(tmp_path, "kernels_copy")
    outcome(start(["SUM:f4"], "kernels_copy", path=library, NUMBA_CACHE_DIR=tmp_path / "cache"))
    with open(library / "kernels_copy" / "pack.py", "a") as file:
        file.write("# changed\n")
    compiled, _ = outcome(start(["SUM:f4"], "kernels_copy", path=library, NUMBA_CACHE_DIR=tmp_path / "cache"))
    assert [label.partition("(")[0] for label in compiled] == ["pack.pack_elements"]
    assert len(list((tmp_path / "cache").rglob("*.so"))) == 2, "what was made from the old source stays"


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory for what this process compiles from now on."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def add_one(n: int) -> int:
    return n + 1


@pytest.fixture
def lock(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> filelock.BaseFileLock:
    """The lock of that directory, as it is to whoever compiles here."""
    found = filelock.FileLock(empty_cache / "its.lock", is_singleton=False)
    monkeypatch.setattr(kernels.waiting, "_lock", lambda cache_path: found)
    return found


@pytest.fixture
def held(lock: filelock.BaseFileLock) -> Iterator[None]:
    """Another one has it."""
    with filelock.FileLock(lock.lock_file, is_singleton=False):
        yield


def test_a_result_is_not_waited_for_until_its_lock_is_free(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, held: None
) -> None:
    """A process that compiles one function after another hardly lets go of the lock between two."""

    def compile_elsewhere(seconds: float) -> None:
        shutil.copytree(empty_cache / "elsewhere", empty_cache / "cache", dirs_exist_ok=True)

    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("NUMBA_CACHE_DIR", str(empty_cache / "elsewhere"))
        elsewhere.setattr(kernels.waiting, "_lock", lambda cache_path: filelock.FileLock(empty_cache / "other.lock"))
        kernels.cache.jit("int64(int64)")(add_one).prepare()
    monkeypatch.setattr(kernels.waiting.time, "sleep", compile_elsewhere)
    monkeypatch.setattr(kernels.waiting, "LIMIT", 10.0)
    compiled = len(kernels.cache.compiled_here())
    assert kernels.cache.jit("int64(int64)")(add_one)(1) == 2
    assert len(kernels.cache.compiled_here()) == compiled
    assert kernels.cache.loaded_here()[-1] == "test_kernels_cache.add_one(int64)"


def test_a_lock_that_is_never_released_delays_but_does_not_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, held: None
) -> None:

    monkeypatch.setattr(kernels.waiting, "LIMIT", 0.1)
    assert kernels.cache.jit("int64(int64)")(add_one)(1) == 2
    assert kernels.cache.compiled_here()[-1] == "test_kernels_cache.add_one(int64)"
    (said,) = caplog.messages
    assert said.startswith("compiling test_kernels_cache.add_one(int64), and not waiting for an unknown process")
    assert kernels.cache.jit("int64(int64)")(add_one)(1) == 2 and len(caplog.messages) == 1  # it was kept


def wait(look: Callable[[], str | None] = lambda: None) -> tuple[kernels.waiting.Turn | None, str | None]:
    return kernels.waiting.turn_or_result("", "a function", look)


def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize(("host", "waits"), [("", False), ("elsewhere", True)])
def test_who_has_ended_is_not_waited_for(
    lock: filelock.BaseFileLock, held: None, host: str, waits: bool, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A child that it left may have the lock still; whether a process of another host has ended is not known."""
    holder = [ended(), host or socket.gethostname(), "another function"]
    Path(lock.lock_file).with_suffix(".holder").write_text(json.dumps(holder))
    monkeypatch.setattr(kernels.waiting, "GONE", 0.1)
    looks = iter([None] * 10 + ["a result"])
    assert wait(lambda: next(looks)) == (None, "a result" if waits else None)
    words = f"compiling a function, and not waiting for process {holder[0]} on {holder[1]}, which compiles another"
    assert [message.startswith(words) for message in caplog.messages] == [True] * (not waits)


def test_it_is_said_for_whom_one_waits_long(
    lock: filelock.BaseFileLock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = filelock.FileLock(lock.lock_file, is_singleton=False)
    other.acquire()
    turn = kernels.waiting.Turn(other, "another function")
    monkeypatch.setattr(kernels.waiting, "TELL", 0.05)
    looks = iter([None] * 20 + ["a result"])
    assert wait(lambda: next(looks)) == (None, "a result")
    (said,) = caplog.messages
    words = f"waiting for process {os.getpid()} on {socket.gethostname()}, which compiles another function"
    assert said.startswith(words)
    turn.release()
    mine, _ = wait()
    assert mine is not None and len(caplog.messages) == 1
    mine.release()


def test_a_holder_that_goes_on_to_another_function_is_waited_for_again(
    lock: filelock.BaseFileLock, held: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> str | None:
        number = next(looks)
        Path(lock.lock_file).with_suffix(".holder").write_text(json.dumps([os.getpid(), "", f"function {number}"]))
        return "a result" if number == 30 else None

    looks = iter(range(31))
    monkeypatch.setattr(kernels.waiting, "LIMIT", 0.3)
    assert wait(look) == (None, "a result")


def test_where_no_lock_can_be_had_there_is_a_word(
    lock: filelock.BaseFileLock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a network file system without locks."""
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "acquire", refuse)
    assert wait() == (None, None)
    assert caplog.messages == ["compiling a function without a lock: [Errno 37] No locks available"]


def test_the_lock_is_named_while_it_is_held_and_free_afterwards(lock: filelock.BaseFileLock) -> None:
    turn, _ = wait()
    again, _ = wait()  # a function whose compilation needs another one
    assert turn is not None and again is not None
    holder = Path(lock.lock_file).with_suffix(".holder")
    again.release()
    assert json.loads(holder.read_text()) == [os.getpid(), socket.gethostname(), "a function"] and lock.is_locked
    turn.release()
    assert not holder.exists() and not lock.is_locked
    assert [path.name for path in holder.parent.iterdir() if "its" in path.name] == ["its.lock"]


def test_the_lock_is_free_after_a_failed_compilation(lock: filelock.BaseFileLock) -> None:
    from numba.core.errors import TypingError

    def wrong(n: int) -> int:
        return n + "one"  # type: ignore[operator]

    with pytest.raises(TypingError):
        kernels.cache.jit("int64(int64)")(wrong)(1)
    assert not lock.is_locked
    assert kernels.cache.jit("int64(int64)")(add_one)(1) == 2


def kept(place: Path) -> Path:
    """The only file in the cache."""
    (found,) = [path for path in place.joinpath("cache").rglob("*") if path.is_file()]
    return found


def test_a_result_has_its_name_when_it_is_whole(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks without the lock, on this host or another, finds all of it or nothing."""
    seen = []

    def replace(part: Path, path: Path, replace: Callable = Path.replace) -> None:
        content = part.read_bytes()
        if path.suffix == ".so":
            seen.append((path.exists(), hashlib.sha256(content[:-32]).digest() == content[-32:]))
        replace(part, path)

    monkeypatch.setattr(Path, "replace", replace)
    kernels.cache.jit("int64(int64)")(add_one).prepare()
    assert seen == [(False, True)] and kept(empty_cache).suffix == ".so"


@pytest.mark.parametrize("damage", [lambda content: content[:-900], lambda content: content[:99] + b"!" + content[100:],
                                    lambda content: b""])  # fmt: skip
def test_a_damaged_file_is_compiled_anew(
    empty_cache: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    kernels.cache.jit("int64(int64)")(add_one).prepare()
    path = kept(empty_cache)
    whole = path.read_bytes()
    path.unlink()  # a process that has loaded a file must never see another content of it
    path.write_bytes(damage(whole))
    before = len(kernels.cache.compiled_here())
    assert kernels.cache.jit("int64(int64)")(add_one)(1) == 2
    assert len(kernels.cache.compiled_here()) == before + 1
    said = f"compiling test_kernels_cache.add_one(int64) anew: {path} cannot be loaded: its checksum is wrong"
    assert set(caplog.messages) == {said} and len(path.read_bytes()) == len(whole)


def test_where_there_is_no_linker_an_object_is_kept(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as bare:
        bare.setenv("PATH", str(empty_cache))
        assert kernels.cache.jit("int64(int64)")(add_one)(1) == 2
    assert kept(empty_cache).suffix == ".o"
    before = len(kernels.cache.compiled_here())
    assert kernels.cache.jit("int64(int64)")(add_one)(41) == 42
    assert len(kernels.cache.compiled_here()) == before


def test_where_nothing_may_be_executed_it_is_loaded_from_memory(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may be mounted noexec."""
    kernels.cache.jit("int64(int64)")(add_one).prepare()
    loaded = []

    def refuse(name: str, load: Callable = ctypes.CDLL) -> ctypes.CDLL:
        loaded.append(name)
        if name == str(kept(empty_cache)):
            raise OSError("failed to map segment from shared object")
        return load(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    before = len(kernels.cache.compiled_here())
    assert kernels.cache.jit("int64(int64)")(add_one)(1) == 2
    assert len(kernels.cache.compiled_here()) == before
    assert [name.startswith("/proc/self/fd/") for name in loaded] == [False, True]


@pytest.mark.parametrize(("shows", "terminal"), [(True, True), (False, True), (True, False)])
def test_a_terminal_is_told_what_takes_so_long(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, shows: bool, terminal: bool
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(kernels.cache, "show_progress", shows)
    for _ in range(2):
        assert kernels.cache.jit("int64(int64)")(add_one)(1) == 2
    said = r"mpicoll: test_kernels_cache.add_one is compiled, once on this machine \.\.\. \d+\.\d s\n"
    assert re.fullmatch(said if shows and terminal else "", stream.getvalue()), stream.getvalue()


def test_a_full_disk_stops_nothing(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(part: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert kernels.cache.jit("int64(int64)")(add_one)(1) == 2
    (said,) = caplog.messages
    assert said.startswith("could not keep test_kernels_cache.add_one(int64) in ") and "No space left" in said


def test_a_function_that_is_compiled_in_makes_its_caller_stale(empty_cache: Path) -> None:

    def state() -> int:
        before = len(kernels.cache.compiled_here())
        kernels.cache._digest_of_file.cache_clear()
        kernels.cache.jit("int64(int64)", also=[str(other)])(add_one).prepare()
        return len(kernels.cache.compiled_here()) - before

    other = empty_cache / "other.py"
    other.write_text("first")
    assert [state(), state()] == [1, 0]
    other.write_text("second")
    assert [state(), state()] == [1, 0]


@pytest.mark.parametrize("name", ["compiler", "deferred", "memory"])
def test_what_goes_into_every_function_makes_it_stale(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kernels.cache.jit("int64(int64)")(add_one).prepare()
    digest = kernels.cache._digest_of_file
    monkeypatch.setattr(kernels.cache, "_digest_of_file", lambda path: digest(path) + name * (Path(path).stem == name))
    before = len(kernels.cache.compiled_here())
    kernels.cache.jit("int64(int64)")(add_one).prepare()
    assert len(kernels.cache.compiled_here()) == before + 1


def test_a_processor_of_another_kind_has_files_of_its_own(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels.cache.jit("int64(int64)")(add_one).prepare()
    monkeypatch.setattr(kernels.cache, "_processor", lambda: "another")
    before = len(kernels.cache.compiled_here())
    assert kernels.cache.jit("int64(int64)")(add_one)(1) == 2
    assert len(kernels.cache.compiled_here()) == before + 1
    assert len([path for path in empty_cache.joinpath("cache").rglob("*") if path.is_file()]) == 2
