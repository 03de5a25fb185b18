"""Message sizes and link rates as people write them."""

from __future__ import annotations

import re

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
FACTOR = 4  # from one size of a range to the next
_RATE = re.compile(r"(\d+(?:\.\d*)?)\s*([kKmMgGtT]?)(?:[bB]it(?:/s)?|bps|b(?:/s)?)?")
_SIZE = re.compile(r"(\d+)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of one size; K, M and G are powers of 1024. Raises ValueError.

    >>> [parse_size(s) for s in ("8", "64K", "1MiB", "2gb")]
    [8, 65536, 1048576, 2147483648]
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text.strip()!r} is not a size; write 8, 64K, 1M or 2G")
    return int(match[1]) * UNITS[match[2].upper()]


def parse_rate(text: str) -> float:
    """Return the bits per second of a link; k, M, G and T are powers of 1000, as of links and in tc. Raises ValueError.

    >>> [parse_rate(s) for s in ("50Mbit", "100 Gbit/s", "2.5gbps", "25G")]
    [50000000.0, 100000000000.0, 2500000000.0, 25000000000.0]
    """
    match = _RATE.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise ValueError(f"{text.strip()!r} is not a rate in bits; write 50Mbit, 25Gbit or 100Gbit/s")
    return float(match[1]) * 1000.0 ** " kmgt".index(match[2].lower() or " ")


def parse_sizes(text: str) -> list[int]:
    """Return the sizes of a list of sizes and ranges FIRST:LAST[:FACTOR], ascending, each once. Raises ValueError.

    A range multiplies by FACTOR, 4 if not given, and always has its last size.

    >>> parse_sizes("8:1K"), parse_sizes("8:64:2,1K,0")
    ([8, 32, 128, 512, 1024], [0, 8, 16, 32, 64, 1024])
    """
    sizes: set[int] = set()
    for part in text.split(","):
        sizes.update(_range(part) if ":" in part else [parse_size(part)])
    return sorted(sizes)


def _range(text: str) -> list[int]:
    first, last, *rest = text.split(":")
    low, high = parse_size(first), parse_size(last)
    factor = int(rest[0]) if rest and rest[0].strip().isdigit() else FACTOR
    if len(rest) > 1 or (rest and not rest[0].strip().isdigit()) or factor < 2:
        raise ValueError(f"{text!r} is not a range; write FIRST:LAST or FIRST:LAST:FACTOR, the factor 2 or more")
    if not 0 < low <= high:
        raise ValueError(f"the range {text!r} must start above 0 and not end before it starts")
    sizes = [low]
    while sizes[-1] * factor < high:
        sizes.append(sizes[-1] * factor)
    return [*sizes, high]


def format_size(nbytes: int) -> str:
    """Return a size in bytes, short and exact.

    >>> [format_size(n) for n in (0, 8, 1000, 65536, 3 << 20)]
    ['0 B', '8 B', '1000 B', '64 KiB', '3 MiB']
    """
    for unit in ("G", "M", "K"):
        if nbytes and nbytes % UNITS[unit] == 0:
            return f"{nbytes // UNITS[unit]} {unit}iB"
    return f"{nbytes} B"
