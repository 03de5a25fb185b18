"""Compiled functions: loaded where this machine keeps them, else compiled by numba and kept, once per machine.

A kept function is a shared library of its own, which a process loads without numba or llvmlite: that saves time and
memory (docs/PERFORMANCE.md), and a machine without numba can use what another has compiled. Its file is named after the
function, its signature, the processor, and what the sources contain; numba's version does not count. Files end with a
checksum: one that is damaged is compiled anew, with a warning.

Without a lock all ranks of a job would meet an empty cache together and compile the same function. A process first
looks without locking, which is the usual case. Only if it finds nothing does it wait for its turn, or for the result of
the process that has the turn (waiting.py). A file gets its name when it is complete, so no process of any host loads
half of one.

The files are in NUMBA_CACHE_DIR if that is set, else in __pycache__ beside the source, else in the user's cache
directory, else in a directory of the user's for temporary files. Where none can be written, functions are compiled in
each process and not kept.

A caller that can do without a compiled function for now does not wait for it: see background.py.
"""

from __future__ import annotations

import ctypes
import glob
import logging
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

from . import background
from .background import NotCompiled, Request, instead_of
from .deferred import Deferred
from .digest import digest
from .waiting import turn_or_result

ENTRY = "mpicoll_entry"  # the symbol of the function in its library
LIBRARY, OBJECT = ".so", ".o"  # an object is kept where there is no linker; loading it takes llvmlite
CHECKSUM = 32  # bytes at the end of a file
IN_ALL = tuple(str(Path(__file__).with_name(f"{name}.py")) for name in ("compiler", "deferred", "memory"))  # sources
_C_TYPES: dict[str, Any] = {"int64": ctypes.c_int64, "float64": ctypes.c_double, "void": None}

show_progress = True  # whether this process tells a terminal what it compiles: one process of a run should
_log = logging.getLogger(__name__)
_compiled: list[str] = []
_loaded: list[str] = []
_kept: list[Any] = []  # the machine code goes with the objects that it was loaded by


def compiled_here() -> tuple[str, ...]:
    """Return what this process has compiled itself, as 'module.function(argument types)', oldest first."""
    return tuple(_compiled)


def loaded_here() -> tuple[str, ...]:
    """Return what this process has loaded from the cache, as 'module.function(argument types)', oldest first."""
    return tuple(_loaded)


def native(
    function: Callable[..., Any],
    arguments: Sequence[str],
    returns: str = "void",
    also: Sequence[str] = (),
    types: Callable[[], Sequence[Any]] | None = None,
) -> int:
    """Return the address of `function` as a C function, loaded or compiled; it stays valid.

    arguments and returns name numba's types. types() gives those of the arguments where numba knows none by the names.
    `also` is as for jit(). Raises ImportError, or what numba raises, where it has to be compiled and cannot be, and
    NotCompiled within background.instead_of() where no cache has it.
    """
    label = f"{function.__module__.rpartition('.')[2]}.{function.__name__}({', '.join(arguments)})"
    name = _file_name(function, label, returns, also)
    places = _directories(_source(function))

    def look() -> int | None:
        files = (place / (name + ending) for place in places for ending in (LIBRARY, OBJECT))
        return next((address for file in files if (address := _load(file, label)) is not None), None)

    def build(to: Path | None) -> int:
        return _compile(function, label, types() if types else arguments, returns, to / name if to else None)

    if (address := look()) is None:
        background.defer(label, directory(_source(function)), look)
        began = time.monotonic()
        _say(f"mpicoll: {label.partition('(')[0]} is compiled, once on this machine ...")
        try:
            address = _in_turn(label, places, look, build)
        finally:
            _say(f" {time.monotonic() - began:.1f} s\n")
        return address
    _loaded.append(label)
    return address


def _in_turn(
    label: str, places: Sequence[Path], look: Callable[[], int | None], build: Callable[[Path | None], int]
) -> int:
    """Compile a function, or wait for the process that does."""
    to = next((place for place in places if _is_writable(place)), None)
    turn, address = None, None
    if to is None:
        _log.info("not kept on disk: no directory for %s can be written", label)
    else:
        turn, address = turn_or_result(str(to), label, look)
    try:
        if address is None and turn is not None:
            address = look()  # by the one before
        if address is not None:
            _loaded.append(label)
            return address
        address = build(to)
        _compiled.append(label)
        return address
    finally:
        if turn is not None:
            turn.release()


def _say(words: str) -> None:
    """Write progress to standard error if that is a terminal and show_progress is set."""
    if show_progress and sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(words)
        sys.stderr.flush()


def jit(
    signature: str, also: Sequence[str] = (), in_python: Callable[..., Any] | bool = True
) -> Callable[[Any], Jitted]:
    """Decorate a function that Python calls, and compiled ones: numba.njit(nogil=True) of one signature.

    The signature is of int64, float64 and void. `also` names further source files that go into the machine code, beside
    the function's own. Where the function can be neither loaded nor compiled, in_python is called instead: True stands
    for the function itself, False for none, so that the error is raised.
    """
    returns, _, rest = signature.partition("(")
    arguments = [type_name.strip() for type_name in rest.rstrip(")").split(",")]
    return lambda function: Jitted(function, arguments, returns, also, in_python)


class Jitted(Deferred):
    """A function that is loaded or compiled when it is called for the first time, and then called without the GIL."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Sequence[str],
        returns: str,
        also: Sequence[str],
        in_python: Callable[..., Any] | bool,
    ) -> None:
        def make() -> Any:
            from numba import njit

            return njit(nogil=True)(function)

        super().__init__(make, function if isinstance(in_python, bool) else in_python)
        self._has_python = in_python is not False
        self.__name__, self.__doc__, self.__module__ = function.__name__, function.__doc__, function.__module__
        self._given = function, arguments, returns, also
        self.entry = self._first
        self.address = 0  # of the compiled function
        self._asked = -1  # the generation of kernels in which the cache did not have it

    def __call__(self, *arguments: Any) -> Any:
        return self.entry(*arguments)

    def _first(self, *arguments: Any) -> Any:
        if self._asked != background.state.generation:
            try:
                self.prepare()
            except NotCompiled:
                if not self._has_python:
                    raise
                self._asked = background.state.generation
        return self.py_func(*arguments) if self.entry == self._first else self.entry(*arguments)

    def prepare(self) -> None:
        """Load or compile it now."""
        if self.address:
            return
        function, names, returns, also = self._given
        request = Request(function.__module__, function.__name__)
        try:
            with instead_of(request) if self._has_python else nullcontext():
                address = native(function, names, returns, also)
        except NotCompiled:
            raise
        except Exception as error:  # there is no numba, or its inner parts are others
            if not self._has_python or type(error).__module__.startswith("numba."):  # numba's word on the function
                raise
            _log.info("%s runs in Python: %s: %s", self.__name__, type(error).__name__, error)
            self.entry = self.py_func
        else:
            self.address = address
            self.entry = ctypes.CFUNCTYPE(_C_TYPES[returns], *(_C_TYPES[name] for name in names))(address)


# -- files --------------------------------------------------------------------------------------------------


def directory(source: str) -> Path | None:
    """Return where functions of a source file are kept; None where no directory can be written."""
    return next((place for place in _directories(source) if _is_writable(place)), None)


def _source(function: Callable[..., Any]) -> str:
    return function.__code__.co_filename


def _directories(source: str) -> tuple[Path, ...]:
    """Return where functions of a source file may be kept, the first choice first."""
    beside = Path(source).resolve().parent
    of_source = f"{beside.name}_{_digest(str(beside))}"
    temporary = Path(background.temporary_directory(), f"mpicoll-{os.getuid()}")
    last = (temporary / of_source,) if _is_private(temporary) else ()
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return (Path(chosen) / of_source, *last)
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (beside / "__pycache__", users / "mpicoll" / of_source, *last)


def _is_private(place: Path) -> bool:
    """Return whether a directory is missing, or this user's and written by no other."""
    try:
        status = place.lstat()
    except OSError:
        return True
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _is_writable(place: Path) -> bool:
    with suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        place.joinpath(f".{os.getpid()}.{threading.get_ident()}").touch()
        place.joinpath(f".{os.getpid()}.{threading.get_ident()}").unlink()
        return True
    return False


def _file_name(function: Callable[..., Any], label: str, returns: str, also: Sequence[str]) -> str:
    """Return the name of a function's file, without its ending."""
    of_sources = _digest(*(_digest_of_file(path) for path in (_source(function), *IN_ALL, *also)))
    return f"{label.partition('(')[0]}-{_digest(label, returns, _processor())}-{of_sources}"


def _digest(*words: str) -> str:
    return digest(repr(words).encode(), 8).hex()


@cache
def _digest_of_file(path: str) -> str:
    return digest(Path(path).read_bytes(), 32).hex()


@cache
def _processor() -> str:
    """Return the facts that LLVM's code depends on: the processor, NUMBA_CPU_NAME and NUMBA_CPU_FEATURES."""
    facts = [os.uname().machine, *(os.environ.get(f"NUMBA_CPU_{what}", "") for what in ("NAME", "FEATURES"))]
    with suppress(OSError), Path("/proc/cpuinfo").open() as file:
        for line in file:
            name, _, value = line.partition(":")
            if not value:  # the end of the first processor
                break
            if name.strip() in ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part"):
                facts.append(value.strip())
    return repr(facts)


def _load(path: Path, label: str) -> int | None:
    """Return the address of the function in a file; None where there is no such file, or it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    try:
        if digest(content[:-CHECKSUM], CHECKSUM) != content[-CHECKSUM:]:
            raise OSError("its checksum is wrong")
        if path.suffix == OBJECT:
            from .compiler import load_object

            return load_object(content[:-CHECKSUM], ENTRY)
        try:
            library = ctypes.CDLL(str(path))
        except OSError:  # its file system is mounted noexec
            library = _from_memory(content)
        _kept.append(library)
        return ctypes.cast(library[ENTRY], ctypes.c_void_p).value
    except (OSError, AttributeError, ImportError) as error:
        _log.warning("compiling %s anew: %s cannot be loaded: %s", label, path, error)
        return None


def _from_memory(content: bytes) -> ctypes.CDLL:
    """Load a library from a file that exists in memory only."""
    handle = os.memfd_create(ENTRY)
    try:
        os.write(handle, content)
        return ctypes.CDLL(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


def _compile(function: Callable[..., Any], label: str, arguments: Sequence[Any], returns: str, to: Path | None) -> int:
    """Compile a function, keep it in a file, and return its address."""
    from . import compiler

    machine_code = compiler.compile_function(function, arguments, returns)
    if to is not None:
        try:
            content, is_library = machine_code.file(ENTRY)
            path = to.with_name(to.name + (LIBRARY if is_library else OBJECT))
            _write(path, content + digest(content, CHECKSUM))
            if (address := _load(path, label)) is not None:
                return address
        except OSError as error:  # disk full, quota: the function works, the next process compiles again
            _log.warning("could not keep %s in %s: %s", label, to.parent, error)
    _kept.append(machine_code)
    return machine_code.address


def _write(path: Path, content: bytes) -> None:
    """Write a file that has its name when it is complete, in the place of those made from other sources."""
    part = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        part.write_bytes(content)
        part.replace(path)
        for other in path.parent.glob(f"{glob.escape(path.name.rpartition('-')[0])}-*"):
            if other != path:
                other.unlink(missing_ok=True)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
