"""Read memory that may be unmapped, without a crash."""

from __future__ import annotations

import ctypes
import os
from contextlib import closing, suppress


def peek(address: int, nbytes: int) -> bytes | None:
    """Return the bytes at an address; None if this process may not read them.

    The kernel copies them into a pipe, and returns an error for memory that is not mapped. An address out of range
    returns None, too. nbytes: at most 4 KiB, the smallest capacity of a pipe.
    """
    source, sink = os.pipe()
    unreadable = suppress(OSError, OverflowError)
    with closing(os.fdopen(source, "rb", 0)) as output, closing(os.fdopen(sink, "wb", 0)), unreadable:
        if os.write(sink, (ctypes.c_char * nbytes).from_address(address)) == nbytes:
            return output.read(nbytes)
    return None
