"""Reports of crashes: a rank prints its Python stack, then the C stack of the thread that crashed."""

from __future__ import annotations

import ctypes
import faulthandler
import signal
from collections.abc import Callable
from typing import IO

import numpy as np

try:
    from numba import cfunc, types
except ImportError:
    cfunc = None

SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT, signal.SIGILL)
DEEPEST = 32            # frames in C
_kept: list[object] = []    # what the handler of signals uses


def tell(title: str, file: IO[str]) -> None:
    """Print both stacks and a title to a file when this process crashes, which then goes on to die of it.

    faulthandler prints the first, and passes the signal to the handler before it, so that handler is set up first.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if cfunc is None or not hasattr(libc, "backtrace"):     # musl has none
        faulthandler.enable(file, all_threads=False)
        return
    faulthandler.disable()
    handler = _handler(libc, f"\n{title}, the stack in C:\n".encode(), file.fileno())
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    for number in SIGNALS:
        libc.signal(number, handler.address)
    faulthandler.enable(file, all_threads=False)
    _kept.append(handler)


def _handler(libc: ctypes.CDLL, title: bytes, to: int) -> Callable[..., None]:
    """Return compiled code that prints the stack and lets the signal have its usual effect when it comes again."""
    signatures = {
        "write": (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t),
        "backtrace": (ctypes.c_int, ctypes.c_void_p, ctypes.c_int),
        "backtrace_symbols_fd": (None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
        "signal": (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p),
        "raise": (ctypes.c_int, ctypes.c_int),
    }
    write, backtrace, print_symbols, handle, again = (
        ctypes.CFUNCTYPE(*signature)((name, libc)) for name, signature in signatures.items())
    words, frames = np.frombuffer(title, np.uint8).copy(), np.zeros(DEEPEST, np.uintp)
    backtrace(frames.ctypes.data, DEEPEST)      # the first call loads a library, which a crashed process may not
    text, length, stack = words.ctypes.data, len(words), frames.ctypes.data
    _kept.extend((words, frames, write, backtrace, print_symbols, handle, again))

    @cfunc(types.void(types.int32))
    def crashed(number):
        write(to, text, length)
        print_symbols(stack, backtrace(stack, DEEPEST), to)
        handle(number, 0)
        again(number)  # a signal that a process sent does not repeat by itself

    return crashed
