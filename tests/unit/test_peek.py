"""Memory that may not be there."""

from __future__ import annotations

import ctypes
import mmap

import pytest

from mpicoll.buffers.peek import peek


def test_readable_memory():
    data = ctypes.create_string_buffer(b"0123456789abcdef")
    assert peek(ctypes.addressof(data) + 3, 5) == b"34567"
    assert peek(ctypes.addressof(data), 0) == b""


@pytest.mark.parametrize("address", [8, 1 << 40, (1 << 63) + 8, 1 << 64, -8])
def test_unreadable_memory(address):
    assert peek(address, 8) is None


def test_partly_readable_memory():
    with mmap.mmap(-1, 2 * mmap.PAGESIZE) as pages:
        held = ctypes.c_char.from_buffer(pages)
        start = ctypes.addressof(held)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
        assert peek(start + mmap.PAGESIZE - 8, 8) == bytes(8)
        assert peek(start + mmap.PAGESIZE, 8) is None
        assert peek(start + mmap.PAGESIZE - 4, 8) is None
        libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
        del held
