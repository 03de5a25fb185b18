"""How long a nonblocking form stays for messages that may be over at once."""

from __future__ import annotations

BRIEF = 512 << 10  # bytes of a call up to which it stays
MOMENT, BYTES_A_NANOSECOND = 20_000, 2  # how long: nanoseconds at least, and more for more bytes


def moment(nbytes: int) -> int:
    """Return the nanoseconds that a nonblocking form stays for: what ranks of one machine need that are there together.

    Above BRIEF none. To leave costs time too, in Python: a call that stays in vain does not take many times as long.
    """
    return MOMENT + nbytes // BYTES_A_NANOSECOND if nbytes <= BRIEF else 0
