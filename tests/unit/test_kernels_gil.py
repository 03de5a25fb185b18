"""While a kernel runs, other Python threads do too."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from mpicoll import kernels


def ticks_during(call: Callable[[], object]) -> int:
    """Count how often another thread, which wants the GIL every millisecond, gets it during one call."""
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        before = ticks[0]
        call()
        return ticks[0] - before
    finally:
        stop.set()
        thread.join()


def test_a_call_that_keeps_the_gil_would_be_seen() -> None:
    keeps = ctypes.PyDLL(None).usleep
    assert ticks_during(lambda: keeps(300_000)) <= 2


def test_reduce_call() -> None:
    sleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value  # a kernel that takes long
    assert ticks_during(lambda: kernels.reduce.call(sleep, 300_000, 0, 0, 0)) >= 5


@pytest.mark.parametrize("name", ["pack_elements", "unpack_elements"])
def test_elements(name: str) -> None:
    function = getattr(kernels.pack, name)
    loop, single, zero = np.array([1 << 26]), np.ones(1, np.int64), np.zeros(1, np.int64)
    layout = kernels.pack.Layout(loop, single, zero, zero)
    assert ticks_during(lambda: function(0, 0, 1, 1, layout.address)) >= 5
