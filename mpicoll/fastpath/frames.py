"""Find the offsets by which compiled code gets from a thread's state to its frames and their instructions.

They differ between versions of Python, so layout() searches known frames for them once, by reads that cannot fail.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from types import CodeType
from typing import NamedTuple

from ..buffers.peek import peek

_FRAME = 24  # offset in a frame object of the pointer to the interpreter's frame
_WORDS = 32  # of a thread's state that are searched


class Layout(NamedTuple):
    """Byte offsets.

    - state: in a thread's state, of a pointer to the current frame, or to a structure that has that pointer.
    - through: in that structure, of the pointer to the frame; -1 if there is no structure.
    - previous, instruction: in a frame, of the caller's frame and of the current instruction.
    """

    state: int
    through: int
    previous: int
    instruction: int


@cache
def layout() -> Layout | None:
    """Return the offsets for this interpreter; None if they are not found."""
    return _layout() if sys.version_info >= (3, 11) and sys.implementation.name == "cpython" else None


def _layout() -> Layout | None:
    frame = sys._getframe()
    caller, codes = frame.f_back, (frame.f_code, frame.f_back.f_code if frame.f_back is not None else frame.f_code)
    addresses = _word(id(frame) + _FRAME), _word(id(caller) + _FRAME)
    del frame, caller
    own, callers = addresses
    in_frame = [8 * i for i in range(16)]
    previous = [at for at in in_frame if own is not None and _word(own + at) == callers]
    instruction = [
        at
        for at in in_frame
        if all(is_within(code, _word((of or 0) + at) or 0) for code, of in zip(codes, addresses))
    ]
    if not (own and callers and previous and instruction):
        return None
    state = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))()
    words = list((ctypes.c_int64 * _WORDS).from_address(state))  # without a Python call, which would change the frame
    if own in words:
        return Layout(8 * words.index(own), -1, previous[0], instruction[0])
    for i, word in enumerate(words):
        if peek(word, 16) is not None:
            pair = list((ctypes.c_int64 * 2).from_address(word))
            if own in pair:
                return Layout(8 * i, 8 * pair.index(own), previous[0], instruction[0])
    return None


def _word(at: int) -> int | None:
    data = peek(at, 8)
    return None if data is None else int.from_bytes(data, sys.byteorder)


def is_within(code: CodeType, instruction: int) -> bool:
    """Return whether an address is within the memory of a code object."""
    return id(code) < instruction < id(code) + sys.getsizeof(code)
