"""The partition of n elements into blocks, and of a block into chunks.

Block boundaries depend on (n, k) alone, never on the chunk size, so that no chunk size can change
which element is reduced in which block, and with it the bits of a result.
"""

from __future__ import annotations

from functools import lru_cache


def sizes(n: int, k: int) -> list[int]:
    """Return the elements of each of k blocks that share n elements as evenly as can be, the larger ones first.

    >>> sizes(10, 4)
    [3, 3, 2, 2]
    """
    share, rest = divmod(n, k)
    return [share + (b < rest) for b in range(k)]


def offsets(lengths: list[int]) -> list[int]:
    """Return the offset of each block if blocks are contiguous.

    >>> offsets([3, 3, 2, 2])
    [0, 3, 6, 8]
    """
    starts, at = [], 0
    for length in lengths:
        starts.append(at)
        at += length
    return starts


def chunks(largest: int, slice_: int) -> int:
    """Return how many chunks of at most `slice_` a block of `largest` has; a schedule has at least one.

    >>> chunks(10, 4), chunks(8, 4), chunks(0, 4)
    (3, 2, 1)
    """
    return max(1, -(-largest // slice_))


def chunk_length(length: int, slice_: int, chunk: int) -> int:
    """Return the length of one chunk of a block: whole slices, then the rest, then nothing.

    >>> [chunk_length(10, 4, c) for c in range(4)]
    [4, 4, 2, 0]
    """
    return max(0, min(slice_, length - chunk * slice_))


@lru_cache(maxsize=256)
def consecutive(first: int, end: int) -> tuple[int, ...]:
    """Return first … end - 1. Ranks that take the same blocks share the tuple: long ones are not made for every rank.

    >>> consecutive(2, 5)
    (2, 3, 4)
    """
    return tuple(range(first, end))


def powers_of_two(below: int) -> list[int]:
    """1, 2, 4 … below a bound.

    >>> powers_of_two(5)
    [1, 2, 4]
    """
    return [1 << i for i in range(max(0, below - 1).bit_length())]


def power_of_two_floor(p: int) -> int:
    """Return the largest power of two that is at most p.

    >>> power_of_two_floor(13)
    8
    """
    return 1 << (p.bit_length() - 1)


def power_floor(p: int, k: int) -> int:
    """Return the largest power of k that is at most p.

    >>> power_floor(13, 3)
    9
    """
    power = 1
    while power * k <= p:
        power *= k
    return power
