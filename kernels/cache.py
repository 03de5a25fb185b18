"""Compile with numba, once per machine: numba's on-disk cache, with a lock between processes.

Without the lock all ranks of a job meet an empty cache together and all compile the same function. Here a
process first looks without locking (the usual case: 2 ms). Only on a miss does it wait for its turn, or for
the result of whoever has it (waiting.py). Every (function, signature, processor) has its own cache files.
Numba itself numbers the signatures of one function in a shared index, and two hosts that write it together
over a network file system, where a lock on one host does not help, can leave float32 code filed under
float64. A result is complete before the index names it, so that nobody who looks meanwhile, on whatever
host, finds half of it.

The files lie where numba puts them: NUMBA_CACHE_DIR, else __pycache__ beside the source, else the user's
cache directory. Where none can be written, functions are compiled in each process and not kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from numba import njit, types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.registry import cpu_target
from numba.core.sigutils import normalize_signature
from numba.core.typing import Signature, signature

from .waiting import Turn, turn_or_result

_log = logging.getLogger(__name__)
_compiled: list[str] = []
_loaded: list[str] = []
_kept: list[CFunc] = []  # the machine code goes with its CFunc


def compiled_here() -> tuple[str, ...]:
    """Return what this process has compiled itself, as 'function(argument types)', oldest first."""
    return tuple(_compiled)


def loaded_here() -> tuple[str, ...]:
    """Return what this process has loaded from the cache, as 'function(argument types)', oldest first."""
    return tuple(_loaded)


def native(
    function: Callable[..., Any],
    arguments: Sequence[types.Type],
    returns: types.Type = types.void,
    also: Sequence[str] = (),
) -> int:
    """Return the address of `function` as a C function, compiled or loaded; valid to the end. `also` as for jit()."""
    kernel = CFunc(function, (tuple(arguments), returns), {}, {})
    _build(kernel, function, signature(returns, *arguments), kernel.compile, also)
    _kept.append(kernel)
    assert kernel.address is not None  # as mypy cannot know
    return kernel.address


def jit(only: str, also: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Any]:
    """Decorate with njit(nogil=True) and one signature, as numba spells it, compiled or loaded at once.

    `also` names further source files whose jitted functions are compiled in: numba looks for changes only
    in the file of the function itself and would go on using what it compiled before such a change.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(nogil=True)(function)
        arguments, returns = normalize_signature(only)
        wanted = signature(returns, *arguments)
        _build(dispatcher, function, wanted, lambda: dispatcher.compile(wanted), also)
        dispatcher.disable_compile()
        return dispatcher

    return decorate


def _build(
    target: Any, function: Callable[..., Any], wanted: Signature, build: Callable[[], Any], also: Sequence[str] = ()
) -> None:
    """Call build(), which compiles or loads `target`, numba's object for `function`."""
    try:
        cache = _OneAtATime(function, wanted, also)
    except RuntimeError as error:  # numba found no directory that it can write to
        _log.info("not kept on disk: %s", error)
        build()
        _compiled.append(_label(function, wanted))
        return
    target._cache = cache
    try:
        build()
    finally:
        cache.release()


def _label(function: Callable[..., Any], wanted: Signature) -> str:
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}({', '.join(map(str, wanted.args))})"


class _OneAtATime(FunctionCache):
    """Numba's cache of one function and signature, which has the lock from a miss until the result is saved.

    numba calls load_overload, compiles if that gave None, then calls save_overload.
    """

    def __init__(self, function: Callable[..., Any], wanted: Signature, also: Sequence[str]) -> None:
        super().__init__(function)
        self._turn: Turn | None = None
        self._index_seen: tuple[int, ...] | None = None
        self._label = _label(function, wanted)
        locator = self._impl.locator
        self._cache_file = self._files = _DataFirst(
            cache_path=self.cache_path,
            filename_base=f"{self._impl.filename_base}-{_digest(wanted)}",
            source_stamp=(locator.get_source_stamp(), *map(_stamp, also)),
        )

    def _index_key(self, sig: Any, codegen: Any) -> str:
        """Return nothing: the file name says it all, and closures, which numba would hash, pickle differently."""
        return ""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        self._index_seen = self._files.state()
        found = super().load_overload(sig, target_context)
        if found is None:
            self._turn, found = turn_or_result(
                self.cache_path, self._label, lambda: self._if_written(sig, target_context)
            )
        if found is None:
            found = super().load_overload(sig, target_context)
        if found is not None:
            _loaded.append(self._label)
            self.release()
        return found

    def _if_written(self, sig: Any, target_context: Any) -> Any:
        """Return what load_overload finds, if the index has been written since the last look."""
        before, self._index_seen = self._index_seen, self._files.state()
        return None if self._index_seen == before else super().load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        _compiled.append(self._label)
        try:
            super().save_overload(sig, data)
        except OSError as error:  # disk full, quota: the function works, the next process compiles again
            _log.warning("could not keep %s in %s: %s", self._label, self.cache_path, error)
        self.release()

    def release(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.release()


class _DataFirst(IndexDataCacheFile):
    """Numba's files of one function and signature, the data written before the index that names them."""

    def save(self, key: Any, data: Any) -> None:
        name = self._load_index().get(key) or self._data_name(1)  # there is one key
        self._save_data(name, data)
        self._save_index({key: name})

    def state(self) -> tuple[int, ...] | None:
        """Return what changes when the index is written; None while there is none."""
        try:
            status = os.stat(self._index_path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size


def _digest(wanted: Signature) -> str:
    """Sixteen hex digits for a signature on this processor."""
    processor = cpu_target.target_context.codegen().magic_tuple()
    return hashlib.sha256(repr((str(wanted), processor)).encode()).hexdigest()[:16]


def _stamp(path: str) -> tuple[float, int]:
    status = os.stat(path)
    return status.st_mtime, status.st_size
