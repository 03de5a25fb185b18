"""One compilation per machine: what processes on an empty cache do, and where nothing can be kept."""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import filelock
import pytest

from mpicoll import kernels
from mpicoll.kernels.digest import digest
from mpicoll.kernels.pack import copy_bytes

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
KERNELS = ["SUM:f4", "MAX:f8", "BXOR:i4"]
FUNCTIONS = 1 + len(KERNELS)  # pack_elements too
started: list[subprocess.Popen] = []


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Yield a directory with an empty cache, and kill at the end the processes that the test started."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path
    while started:
        with started.pop() as process:
            process.kill()


def files(place):
    return [path for path in place.rglob("*") if path.is_file()]


# -- several processes --------------------------------------------------------------------------------------


def start(kernels, package="mpicoll.kernels", path="", **environment):
    path = os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-c", ASK.format(package=package), *kernels],
        env={**os.environ, "PYTHONPATH": path, **{key: str(value) for key, value in environment.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started.append(process)
    return process


def outcome(process):
    """Return what a process compiled, and what it loaded."""
    out, errors = process.communicate(timeout=150)
    assert process.returncode == 0, errors
    return json.loads(out.splitlines()[-1])


def numbers(process):
    compiled, loaded = outcome(process)
    return len(compiled), len(loaded)


@pytest.mark.timeout(300)
def test_four_processes_on_an_empty_cache_compile_each_kernel_once():
    four = [start(KERNELS) for _ in range(4)]
    outcomes = [outcome(process) for process in four]
    compiled = Counter(label for labels, _ in outcomes for label in labels)
    assert len(compiled) == FUNCTIONS and set(compiled.values()) == {1}, compiled
    loaded = Counter(label for _, labels in outcomes for label in labels)
    assert loaded == dict.fromkeys(compiled, 3)
    assert numbers(start(KERNELS)) == (0, FUNCTIONS)


@pytest.mark.slow
def test_kernels_from_several_processes_live_together():
    """All have one symbol of the same name."""
    for kernel in KERNELS:
        compiled, _ = outcome(start([kernel]))
        assert any(label.startswith("reduce.") for label in compiled)
    assert numbers(start(KERNELS)) == (0, FUNCTIONS)


@pytest.fixture
def library(place):
    """Return a copy of the package under another name, with a file in place of its cache, as if read-only."""
    package = place / "lib" / "kernels_copy"
    shutil.copytree(Path(kernels.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__pycache__").write_text("")
    return package.parent


def start_copy(library, **environment):
    return start(["SUM:f4"], "kernels_copy", library, **environment)


@pytest.mark.slow
def test_a_read_only_package_keeps_its_kernels_in_the_users_cache(place, library):
    environment = {"HOME": place, "XDG_CACHE_HOME": place / "user", "NUMBA_CACHE_DIR": ""}
    assert numbers(start_copy(library, **environment)) == (2, 0)
    assert numbers(start_copy(library, **environment)) == (0, 2)
    assert len(list((place / "user").rglob("*.so"))) == 2


@pytest.mark.slow
def test_kernels_work_without_a_writable_cache(place, library):
    (place / "file").write_text("")
    nowhere = place / "file" / "cache"
    environment = {"HOME": nowhere, "XDG_CACHE_HOME": nowhere, "TMPDIR": nowhere, "NUMBA_CACHE_DIR": ""}
    assert numbers(start_copy(library, **environment)) == (2, 0)


@pytest.mark.slow
def test_without_a_home_kernels_are_kept_in_the_users_temporary_directory(place, library):
    (place / "file").write_text("")
    nowhere = place / "file" / "cache"
    environment = {"HOME": nowhere, "XDG_CACHE_HOME": nowhere, "TMPDIR": place, "NUMBA_CACHE_DIR": ""}
    assert numbers(start_copy(library, **environment)) == (2, 0)
    assert numbers(start_copy(library, **environment)) == (0, 2)
    assert len(list((place / f"mpicoll-{os.getuid()}").rglob("*.so"))) == 2


@pytest.mark.slow
def test_a_changed_source_is_compiled_again(place, library):
    outcome(start_copy(library))
    with open(library / "kernels_copy" / "pack.py", "a") as file:
        file.write("# changed\n")
    compiled, _ = outcome(start_copy(library))
    assert [label.partition("(")[0] for label in compiled] == ["pack.pack_elements"]
    assert len(list((place / "cache").rglob("*.so"))) == 2, "what was made from the old source stays"


# -- one process ---------------------------------------------------------------------------------------------


def add_one(n):
    return n + 1


NAME = "test_kernels_cache.add_one(int64)"


def compilations(**options):
    """Count compilations of the function when it is requested anew, as by another process."""
    before = len(kernels.cache.compiled_here())
    assert kernels.cache.jit("int64(int64)", **options)(add_one)(1) == 2
    return len(kernels.cache.compiled_here()) - before


@pytest.fixture
def lock(place, monkeypatch):
    """Return a lock that the package takes for the cache directory's."""
    file_lock = filelock.FileLock(place / "its.lock", is_singleton=False)
    monkeypatch.setattr(kernels.waiting, "_lock", lambda cache_path: file_lock)
    return file_lock


@pytest.fixture
def held(lock):
    """Hold the lock, as another process would."""
    with filelock.FileLock(lock.lock_file, is_singleton=False):
        yield


def test_a_result_is_not_waited_for_until_its_lock_is_free(place, monkeypatch, held):
    """A process that compiles one function after another holds the lock almost all the time."""

    def compile_elsewhere(seconds):
        shutil.copytree(place / "elsewhere", place / "cache", dirs_exist_ok=True)

    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("NUMBA_CACHE_DIR", str(place / "elsewhere"))
        elsewhere.setattr(kernels.waiting, "_lock", lambda cache_path: filelock.FileLock(place / "other.lock"))
        assert compilations() == 1
    monkeypatch.setattr(kernels.waiting.time, "sleep", compile_elsewhere)
    monkeypatch.setattr(kernels.waiting, "LIMIT", 10.0)
    assert compilations() == 0
    assert kernels.cache.loaded_here()[-1] == NAME


def test_a_lock_that_is_never_released_delays_but_does_not_stop(monkeypatch, caplog, held):
    monkeypatch.setattr(kernels.waiting, "LIMIT", 0.1)
    assert compilations() == 1
    (message,) = caplog.messages
    assert message.startswith(f"compiling {NAME}, and not waiting for an unknown process")
    assert compilations() == 0 and len(caplog.messages) == 1  # it was kept


def wait(look=lambda: None):
    return kernels.waiting.turn_or_result("", "a function", look)


@pytest.mark.parametrize(("host", "waits"), [("", False), ("elsewhere", True)])
def test_ended_processes_are_not_waited_for(lock, held, host, waits, caplog, monkeypatch):
    """A child that it left may have the lock still; whether a process of another host has ended is not known."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    holder = [ended.pid, host or socket.gethostname(), "another function"]
    Path(lock.lock_file).with_suffix(".holder").write_text(json.dumps(holder))
    monkeypatch.setattr(kernels.waiting, "GONE", 0.1)
    looks = iter([None] * 10 + ["a result"])
    assert wait(lambda: next(looks)) == (None, "a result" if waits else None)
    words = f"compiling a function, and not waiting for process {holder[0]} on {holder[1]}, which compiles another"
    assert [message.startswith(words) for message in caplog.messages] == [True] * (not waits)


def test_it_is_said_for_whom_one_waits_long(lock, monkeypatch, caplog):
    other = filelock.FileLock(lock.lock_file, is_singleton=False)
    other.acquire()
    turn = kernels.waiting.Turn(other, "another function")
    monkeypatch.setattr(kernels.waiting, "TELL", 0.05)
    looks = iter([None] * 20 + ["a result"])
    assert wait(lambda: next(looks)) == (None, "a result")
    (message,) = caplog.messages
    assert message.startswith(
        f"waiting for process {os.getpid()} on {socket.gethostname()}, which compiles another function"
    )
    turn.release()
    mine, _ = wait()
    assert mine is not None and len(caplog.messages) == 1
    mine.release()


def test_a_holder_that_goes_on_to_another_function_is_waited_for_again(lock, held, monkeypatch):
    def look():
        number = next(looks)
        Path(lock.lock_file).with_suffix(".holder").write_text(json.dumps([os.getpid(), "", f"function {number}"]))
        return "a result" if number == 30 else None

    looks = iter(range(31))
    monkeypatch.setattr(kernels.waiting, "LIMIT", 0.3)
    assert wait(look) == (None, "a result")


def test_a_missing_lock_is_reported(lock, monkeypatch, caplog):
    """A network file system without locks raises this error."""

    def refuse(*_, **__):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "acquire", refuse)
    assert wait() == (None, None)
    assert caplog.messages == ["compiling a function without a lock: [Errno 37] No locks available"]


def test_the_lock_is_named_while_it_is_held_and_free_afterwards(lock):
    turn, _ = wait()
    again, _ = wait()  # a function whose compilation needs another one
    holder = Path(lock.lock_file).with_suffix(".holder")
    again.release()
    assert json.loads(holder.read_text()) == [os.getpid(), socket.gethostname(), "a function"] and lock.is_locked
    turn.release()
    assert not holder.exists() and not lock.is_locked
    assert [path.name for path in holder.parent.iterdir() if "its" in path.name] == ["its.lock"]


def test_the_lock_is_free_after_a_failed_compilation(lock):
    from numba.core.errors import TypingError

    def wrong(n):
        return n + "one"

    with pytest.raises(TypingError):
        kernels.cache.jit("int64(int64)")(wrong)(1)
    assert not lock.is_locked
    assert compilations() == 1


# -- what is kept --------------------------------------------------------------------------------------------


def test_a_result_has_its_name_when_it_is_whole(place, monkeypatch):
    """A process that reads without the lock, on this host or another, finds the whole file or none."""
    seen = []

    def replace(part, path, replace=Path.replace):
        content = part.read_bytes()
        if path.suffix == ".so":
            seen.append((path.exists(), digest(content[:-32], 32) == content[-32:]))
        replace(part, path)

    monkeypatch.setattr(Path, "replace", replace)
    assert compilations() == 1
    assert seen == [(False, True)] and [path.suffix for path in files(place)] == [".so"]


@pytest.mark.parametrize("damage", [lambda content: content[:-900], lambda content: content[:99] + b"!" + content[100:],
                                    lambda content: b""])  # fmt: skip
def test_a_damaged_file_is_compiled_anew(place, damage, caplog):
    assert compilations() == 1
    (path,) = files(place)
    whole = path.read_bytes()
    path.unlink()  # a process that has loaded a file must never see another content of it
    path.write_bytes(damage(whole))
    assert compilations() == 1
    message = f"compiling {NAME} anew: {path} cannot be loaded: its checksum is wrong"
    assert set(caplog.messages) == {message}
    assert 0 <= len(path.read_bytes()) - len(whole) < 64  # names in it have numba's count of functions, which grows


def test_objects_are_kept_without_a_linker(place, monkeypatch):
    with monkeypatch.context() as bare:
        bare.setenv("PATH", str(place))
        assert compilations() == 1
    assert [path.suffix for path in files(place)] == [".o"]
    assert compilations() == 0


def copying(to, source, n):
    copy_bytes(to, source, n)


@pytest.mark.parametrize(("libraries", "named"), [(None, True), (["no/libc.so.6"], False)])
def test_a_library_names_the_c_library(monkeypatch, libraries, named):
    """So it has the memcpy of today, and not the first of its name; where that cannot be linked, it does without."""
    from mpicoll.kernels import compiler

    (own,) = compiler._libc()
    assert Path(own).is_file()
    if libraries:
        monkeypatch.setattr(compiler, "_libc", lambda: libraries)
    content, is_library = compiler.compile_function(copying, ["int64"] * 3, "void").file("entry")
    assert is_library and b"memcpy" in content and (Path(own).name.encode() in content) == named


def test_kernels_load_from_memory_if_files_cannot_be_executed(place, monkeypatch):
    """A file system may be mounted noexec."""
    assert compilations() == 1
    (kept,), loaded = files(place), []

    def refuse(name, load=ctypes.CDLL):
        loaded.append(name)
        if name == str(kept):
            raise OSError("failed to map segment from shared object")
        return load(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert compilations() == 0
    assert [name.startswith("/proc/self/fd/") for name in loaded] == [False, True]


@pytest.mark.parametrize(("shows", "terminal"), [(True, True), (False, True), (True, False)])
def test_a_terminal_is_told_what_takes_so_long(monkeypatch, shows, terminal):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(kernels.cache, "show_progress", shows)
    assert [compilations(), compilations()] == [1, 0]
    notice = r"mpicoll: test_kernels_cache.add_one is compiled, once on this machine \.\.\. \d+\.\d s\n"
    assert re.fullmatch(notice if shows and terminal else "", stream.getvalue()), stream.getvalue()


def test_a_full_disk_stops_nothing(monkeypatch, caplog):
    def full(part, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert compilations() == 1
    (message,) = caplog.messages
    assert message.startswith(f"could not keep {NAME} in ") and "No space left" in message


def test_a_function_that_is_compiled_in_makes_its_caller_stale(place):
    other = place / "other.py"
    for content in ("first", "second"):
        other.write_text(content)
        kernels.cache._digest_of_file.cache_clear()
        assert [compilations(also=[str(other)]), compilations(also=[str(other)])] == [1, 0]


@pytest.mark.parametrize("name", ["compiler", "deferred", "memory"])
def test_changes_of_common_sources_make_every_function_stale(monkeypatch, name):
    assert compilations() == 1
    digest = kernels.cache._digest_of_file
    monkeypatch.setattr(kernels.cache, "_digest_of_file", lambda path: digest(path) + name * (Path(path).stem == name))
    assert compilations() == 1


def test_a_processor_of_another_kind_has_files_of_its_own(place, monkeypatch):
    assert compilations() == 1
    monkeypatch.setattr(kernels.cache, "_processor", lambda: "another")
    assert compilations() == 1
    assert len(files(place / "cache")) == 2
