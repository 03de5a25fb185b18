"""Names of numba's for code that may never be compiled here: numba is imported when a function is compiled, not before.

A module that writes kernels uses these in the place of numba's decorators. Where the machine code is kept already, see
cache.py, neither numba nor llvmlite is loaded. In Python each of these is a plain function, so that what is written
with them also runs without numba, slowly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["Deferred", "deferred", "intrinsic", "njit"]

_typing = threading.RLock()


class Deferred:
    """A stand-in for an object of numba's, which is made when compiled code refers to it; in Python, a function."""

    def __init__(self, make: Callable[[], Any], in_python: Callable[..., Any]) -> None:
        self._make, self._type = make, None
        self.py_func = in_python
        self.__name__, self.__doc__ = getattr(in_python, "__name__", ""), in_python.__doc__
        self.__module__ = in_python.__module__

    def __call__(self, *arguments: Any) -> Any:
        return self.py_func(*arguments)

    @property
    def _numba_type_(self) -> Any:
        """Return numba's type of the function, which numba asks every unknown object for."""
        from numba.core.registry import cpu_target

        with _typing:
            if self._type is None:
                self._made = self._make()  # kept, since its type may refer to it weakly
                cpu_target.typing_context.refresh()  # an intrinsic is known from then on
                self._type = cpu_target.typing_context.resolve_value_type(self._made)
        return self._type


def njit(function: Callable[..., Any]) -> Deferred:
    """Decorate as numba.njit(nogil=True) does, with what is compiled into its callers."""

    def make() -> Any:
        from numba import njit

        return njit(nogil=True)(function)

    return Deferred(make, function)


def intrinsic(generate: Callable[..., Any], in_python: Callable[..., Any]) -> Deferred:
    """Return an intrinsic: `generate` is what numba.extending.intrinsic takes, in_python does the same in Python."""

    def make() -> Any:
        from numba.extending import intrinsic

        make_intrinsic: Any = intrinsic  # as decorators numba's types describe the wrong call
        return make_intrinsic(generate)

    return Deferred(make, in_python)


def deferred(module: str, name: str, in_python: Callable[..., Any]) -> Deferred:
    """Return a stand-in for a function of a module of numba's."""
    return Deferred(lambda: getattr(import_module(module), name), in_python)
