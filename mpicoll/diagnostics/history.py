"""The history in a flight record: a row for each of the last ROWS calls of this process, and the words of its rows.

Compiled code and Python write rows; history_reader.py reads them. A process may be killed at any instruction, so a row
ends with a checksum of what is written when the call begins: one that was being written does not fit, and is skipped.

    words 0 to 15    how many rows were written, the bytes of all words, two pairs of one moment in ticks and in ns
    then             ROWS rows of COLUMNS words; row n is at n modulo ROWS
    then             WORDS bytes: a JSON text a line; an id is the number of its line, 0 where there was no room

A time is in ns since 1970, or minus the ticks of this processor where compiled code wrote it: the pairs convert those.
"""

from __future__ import annotations

import json
import mmap
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..progress.operation import RecordedArguments
from .status import OWN_FILES, at_line

ROWS, COLUMNS, WORDS = 1024, 8, 1 << 17
HEADER = 16
HEAD, WORDS_END, FIRST_TICKS, FIRST_NS, LAST_TICKS, LAST_NS, NEXT_TICKS, TIMESPEC = range(8)  # TIMESPEC has two words
SERIAL, IDS, SEQUENCE, START, NBYTES, BEGAN, ENDED, CHECK = range(COLUMNS)
BYTES = 8 * (HEADER + ROWS * COLUMNS) + WORDS
FAILED, HANDED_OVER = 1, 2  # in the place of the end: an error ended the call; MPI's own request, whose end is not seen
COMM_SHIFT, LOCATION_SHIFT, ID = 16, 32, 0xFFFF  # three ids in a word; that of the kind of call comes first
ROOT_SHIFT = 40  # above the number of the start of a persistent call: the root plus 1, 0 where there is none
MOST_ROOTS = (1 << 22) - 1
NUMBER_SHIFT = 40  # above the number of the call: which communicator of its ranks it is on
MOST_COMMUNICATORS = (1 << 23) - 1
_MASK, _SIGN = (1 << 64) - 1, 1 << 63
_ROW = struct.Struct(f"{COLUMNS}q")


def numbered(ranks: str, number: int) -> str:
    """Return the name of a communicator: that of its ranks, and which one of these it is."""
    return f"{ranks} ({number})" if number > 1 else ranks


class RowWords(NamedTuple):
    """The words that all rows of one kind of call have alike; ids begins with the kind, root is above the start."""

    ids: int
    sequence: int
    root: int
    nbytes: int


def checksum(serial: Any, ids: Any, sequence: Any, start: Any, nbytes: Any, began: Any) -> Any:
    """Return the sum of a row's words, modulo 2**64: of integers, of columns, and in compiled code."""
    return serial * 668265263 + ids * 374761393 + sequence * 1274126177 + start * 69069 + nbytes * 1664525 + began


def _signed(number: int) -> int:
    """Return the word for an integer modulo 2**64."""
    return (number & _MASK) - ((number & _SIGN) << 1)


def with_root(start: int, root: int) -> int:
    """Return the word for the start of a persistent call, 0 for another call, and the root, -1 for none."""
    return start + ((root + 1 if root < MOST_ROOTS else MOST_ROOTS) << ROOT_SHIFT)


class History:
    """The rows and words of this process; without memory nothing is recorded, and the serial of every row is 0."""

    def __init__(self, memory: mmap.mmap | None = None, begin: int = 0, address: int = 0) -> None:
        """Begin a history in the memory of a flight record, at this offset; compiled code takes the address."""
        self.memory, self.begin, self.address = memory, begin, address
        self.words: Any = memoryview(memory)[begin : begin + 8 * (HEADER + ROWS * COLUMNS)].cast("q") if memory else []
        self.ids: dict[Any, int] = {}
        self.end_of_words, self.lines, self.lock = 0, 0, threading.Lock()

    def intern(self, content: Any, part: int = 1, words: Callable[..., str] | None = None) -> int:
        """Return the id of a JSON text, 0 if there is no room in this part of all, half of it for 2.

        words makes the text of content where it is not JSON.
        """
        number = self.ids.get(content)
        if number is None and self.memory is not None:
            text = json.dumps(words(*content) if words is not None else content).encode() + b"\n"
            with self.lock:
                number = self.ids.get(content)
                if number is None:
                    number = self.ids[content] = self._add(text, WORDS // part)
        return number or 0

    def intern_caller(self) -> int:
        """Return the bits in a row for the line of the program that called mpicoll, in this thread."""
        line = caller_line()
        return (self.ids.get(line) or self.intern(line, words=at_line)) << LOCATION_SHIFT

    def _add(self, text: bytes, room: int) -> int:
        if self.end_of_words + len(text) > room or len(self.ids) >= ID:
            return 0
        assert self.memory is not None
        at = self.begin + BYTES - WORDS + self.end_of_words
        self.memory[at : at + len(text)] = text
        self.end_of_words += len(text)
        self.words[WORDS_END] = self.end_of_words
        self.lines += 1
        return self.lines

    def write(self, ids: int, sequence: int, start: int, nbytes: int) -> int:
        """Write the row of a call that begins, and return its serial."""
        if self.memory is None:
            return 0
        serial: int = self.words[HEAD] + 1  # no other thread runs between this and the next line: nothing is called
        self.words[HEAD] = serial
        began = time.time_ns()
        check = _signed(checksum(serial, ids, sequence, start, nbytes, began))
        at = self.begin + 8 * (HEADER + (serial - 1) % ROWS * COLUMNS)
        _ROW.pack_into(self.memory, at, serial, ids, sequence, start, nbytes, began, 0, check)
        return serial

    def set_location(self, serial: int, bits: int) -> None:
        """Set the line in a row that was written without; not if its row has another call by now."""
        at = HEADER + (serial - 1) % ROWS * COLUMNS
        if serial and self.words[at + SERIAL] == serial:
            self.words[at + IDS] = self.words[at + IDS] & ((1 << LOCATION_SHIFT) - 1) | bits
            self.words[at + CHECK] = _signed(checksum(*self.words[at : at + ENDED]))

    def end(self, serial: int, how: int = 0) -> None:
        """Note that the call of a row has ended, now, or how; not if its row has another call by now."""
        if serial:
            at = HEADER + (serial - 1) % ROWS * COLUMNS
            if self.words[at + SERIAL] == serial:
                self.words[at + ENDED] = how or time.time_ns()


class CommHistory:
    """The rows of one communicator's calls.

    bits: the id of its ranks, for the word of ids; number: which communicator of its ranks it is, for the sequence.
    """

    def __init__(self, history: History, name: str, number: int) -> None:
        """Begin a stream for a communicator, named as in its Place; half of the words are left to calls and lines."""
        self.history = history
        self.bits = history.intern(name.partition(" (")[0], 2) << COMM_SHIFT
        self.number = min(number, MOST_COMMUNICATORS) << NUMBER_SHIFT

    def ids(self, name: str, form: str, algorithm: str, operator: str = "") -> int:
        """Return the word of a row that says which kind of call this thread makes, and where."""
        history, kind = self.history, (name, form, algorithm, operator)
        if history.memory is None:
            return 0
        return (history.ids.get(kind) or history.intern(kind)) | self.bits | history.intern_caller()

    def begin(
        self, sequence: int, name: str, form: str, algorithm: str, passed: RecordedArguments, start: int = 0
    ) -> int:
        """Write the row of a call that this thread begins, and return its serial."""
        if self.history.memory is None:
            return 0
        ids = self.ids(name, form, algorithm, passed.operator)
        return self.history.write(ids, sequence | self.number, with_root(start, passed.root), passed.nbytes)

    def end(self, serial: int, how: int = 0) -> None:
        """Note that the call of a row has ended."""
        self.history.end(serial, how)

    def set_line(self, serial: int) -> None:
        """Set the line in a row to the one that called mpicoll in this thread."""
        self.history.set_location(serial, self.history.intern_caller())


class Libraries:
    """Tells the files of mpicoll, mpi4py and torch from those of the program."""

    def __init__(self) -> None:
        self.known: dict[str, bool] = {}

    def has(self, file: str) -> bool:
        """Return whether a file is a library's."""
        torch = sys.modules.get("torch")
        folders = (*OWN_FILES, (torch.__file__ or "").removesuffix("__init__.py")) if torch is not None else OWN_FILES
        answer = self.known[file] = file.startswith(folders)
        return answer


LIBRARIES = Libraries()


def caller_line() -> tuple[str, int, str]:
    """Return file, line and function of the program that called mpicoll, in this thread."""
    known, frame = LIBRARIES.known, sys._getframe(2)
    while (back := frame.f_back) is not None:
        file = frame.f_code.co_filename
        if not (known[file] if file in known else LIBRARIES.has(file)):
            break
        frame = back
    line = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
    del frame, back
    return line
