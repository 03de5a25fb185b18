"""Rates of links as people write them, in bits per second."""

from __future__ import annotations

import re

from ..launch import LaunchError

UNITS = {"bit": 1, "kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9}
LOWEST, HIGHEST = 10**6, 10**11  # MPI itself takes minutes to start below; no machine is as fast as above
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?bit)(?:/s)?", re.IGNORECASE)
_SCALE = {name.lower(): factor for name, factor in UNITS.items()}


def parse_rate(text: str) -> int:
    """Bits per second of a rate; k, M and G are powers of 1000, as on a wire. Raises LaunchError.

    >>> parse_rate("50Mbit"), parse_rate("2.5 gbit/s")
    (50000000, 2500000000)
    """
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise LaunchError(f"the rate {text!r} is none; write 50Mbit or 1Gbit, bits per second")
    return check_rate(float(match[1]) * _SCALE[match[2].lower()])


def check_rate(rate: float) -> int:
    """The rate in whole bits per second. Raises LaunchError if no link here can have it."""
    if not LOWEST <= rate <= HIGHEST:
        raise LaunchError(f"a rate of {format_rate(rate)} cannot be made; "
                          f"give one from {format_rate(LOWEST)} to {format_rate(HIGHEST)}")
    return round(rate)


def format_rate(rate: float) -> str:
    """A rate in the largest unit that fits.

    >>> format_rate(50_000_000), format_rate(1.25e9), format_rate(0)
    ('50Mbit', '1.25Gbit', '0bit')
    """
    unit = max((name for name in UNITS if UNITS[name] <= rate), key=UNITS.__getitem__, default="bit")
    return f"{rate / UNITS[unit]:.4g}{unit}"
