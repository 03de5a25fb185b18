"""Read the options of OMB: which sizes, how many iterations, which types and percentiles.

Functions that read a value raise ValueError, in words that name the option.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..cases.patterns import Shape
from .programs import BANDWIDTH, COLLECTIVE, LATENCY, Program

LARGE = 8192  # bytes above which a message is large
TYPES = {"mpi_char": "int8", "mpi_int": "int32", "mpi_float": "float32"}
MOST = {COLLECTIVE: 1 << 20, LATENCY: 1 << 22, BANDWIDTH: 1 << 22}  # bytes of the largest message, unless -m says
MEMORY, LEAST_MEMORY = 512 << 20, 1 << 20  # bytes
PERCENTILES, MOST_PERCENTILES = "50,90,99", 5
ROTATE = "rotate"


class Repeats(NamedTuple):
    """Iterations of one size: so many that are not timed, then so many that are."""

    warmup: int
    timed: int


# For small and for large messages.
REPEATS = {
    COLLECTIVE: (Repeats(100, 1000), Repeats(10, 100)),
    LATENCY: (Repeats(100, 10000), Repeats(10, 1000)),
    BANDWIDTH: (Repeats(10, 100), Repeats(2, 20)),
}


@dataclass(frozen=True)
class Options:
    """The checked options of a program. Sizes in bytes; root is a rank, or None, which rotates."""

    low: int = 1
    high: int = 1 << 20
    iterations: int | None = None
    warmup: int | None = None
    full: bool = False
    percentiles: tuple[int, ...] = ()
    validate: bool = False
    validation_warmup: int = 5
    window: int = 64
    tests: int = 0
    types: tuple[str, ...] = ("mpi_char",)
    in_place: bool = False
    root: int | None = 0
    multiple: bool = False

    def sizes(self) -> Iterator[int]:
        """Bytes: the smallest, and twice as much each time.

        >>> list(Options(low=3, high=20).sizes())
        [3, 6, 12]
        """
        size = self.low
        while size <= self.high:
            yield size
            size *= 2

    def shapes(self, collective: str, kind: str, p: int) -> list[Shape]:
        """Return how a collective is called with one of TYPES: a shape for each root."""
        roots = range(p) if self.root is None else [self.root]
        return [Shape(collective, TYPES[kind], root=root, in_place=self.in_place) for root in roots]


class Pace:
    """The number of iterations for each size. Once one was large, those of the next type are few as well, as in OMB."""

    def __init__(self, program: Program, options: Options) -> None:
        asked = {"warmup": options.warmup, "timed": options.iterations}
        overrides = {key: value for key, value in asked.items() if value is not None}
        small, self.large = (default._replace(**overrides) for default in REPEATS[program.kind])
        # OMB's nonblocking barrier takes the few from the start.
        self.now = self.large if program.overlaps and not program.sized else small

    def at(self, size: int) -> Repeats:
        """Return the iterations of the next size, in bytes."""
        if size > LARGE:
            self.now = self.large
        return self.now


def itemsize(kind: str) -> int:
    """Return the bytes of one element of a type, which is one of TYPES."""
    return np.dtype(TYPES[kind]).itemsize


def read_range(text: str | None, most: int) -> tuple[int, int]:
    """Return the smallest and the largest message of -m, in bytes; most where it names no largest.

    >>> read_range("64", 1 << 20), read_range("8:64", 1 << 20), read_range("8:", 1 << 20), read_range(None, 1 << 20)
    ((1, 64), (8, 64), (8, 1048576), (1, 1048576))
    """
    if text is None:
        return 1, most
    match = re.fullmatch(r"(?:(\d*):)?(\d*)", text)
    if match is None or not (match[1] or match[2]):
        raise ValueError(f"-m is {text!r}; it takes [MIN:]MAX, whole numbers of bytes such as 128, 2:128 or 2:")
    low, high = max(1, int(match[1] or 1)), int(match[2] or most)
    if low > high:
        raise ValueError(f"-m is {text!r}; the smallest message, {low} bytes, is above the largest, {high}")
    return low, high


def read_percentiles(text: str | None) -> tuple[int, ...]:
    """Return those of -z: none if it is not there."""
    if text is None:
        return ()
    words = text.split(",")
    if len(words) > MOST_PERCENTILES or not all(word.isdecimal() and int(word) <= 100 for word in words):
        raise ValueError(
            f"-z is {text!r}; attached to it come up to {MOST_PERCENTILES} whole numbers from 0 to 100, as in -z50,99"
        )
    return tuple(map(int, words))


def read_types(words: Sequence[str]) -> tuple[str, ...]:
    """Return those of every -T, mpi_char if there is none."""
    types: list[str] = []
    for word in words:
        name = word.lower()
        if name != "all" and name not in TYPES:
            raise ValueError(f"-T is {word!r}; it takes all, {', '.join(TYPES)}")
        types += TYPES if name == "all" else [name]
    return tuple(types) or ("mpi_char",)


def read_root(text: str) -> int | None:
    """Return the rank of -k fixed:RANK, or None of -k rotate."""
    if text == ROTATE:
        return None
    match = re.fullmatch(r"fixed:(\d+)", text)
    if match is None:
        raise ValueError(f"-k is {text!r}; it takes fixed:RANK or {ROTATE}")
    return int(match[1])


def read_memory(memory: int) -> tuple[int, str]:
    """Return the limit of -M in bytes, and what there is to say if it is raised."""
    if memory >= LEAST_MEMORY:
        return memory, ""
    return LEAST_MEMORY, f"Requested memory limit too low, using [{LEAST_MEMORY}] instead."


def limited(program: Program, high: int, memory: int, p: int) -> tuple[int, str]:
    """Return the largest message that memory allows on p ranks, and what there is to say if that is less."""
    most = memory // p if program.collects else memory
    if program.kind != COLLECTIVE or not program.sized or high <= most:
        return high, ""
    return most, f"Warning! Limiting max message size to: {most}. Increase -M, --mem-limit for higher message sizes."
