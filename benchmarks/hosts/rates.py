"""Rates that a link between hosts can have, in bits per second."""

from __future__ import annotations

from mpicoll.cli import sizes

from ..launch import LaunchError

UNITS = {"bit": 1, "kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9}
LOWEST, HIGHEST = 10**6, 10**11  # MPI itself takes minutes to start below; no machine is as fast as above


def parse_rate(text: str) -> int:
    """Return the bits per second of a rate that a link here can have. Raises LaunchError.

    >>> parse_rate("50Mbit"), parse_rate("2.5 gbit/s")
    (50000000, 2500000000)
    """
    try:
        rate = sizes.parse_rate(text)
    except ValueError as error:
        raise LaunchError(str(error)) from None
    return check_rate(rate)


def check_rate(rate: float) -> int:
    """Return the rate in whole bits per second. Raises LaunchError if no link here can have it."""
    if not LOWEST <= rate <= HIGHEST:
        raise LaunchError(f"a rate of {format_rate(rate)} cannot be made; "
                          f"give one from {format_rate(LOWEST)} to {format_rate(HIGHEST)}")
    return round(rate)


def format_rate(rate: float) -> str:
    """Return a rate in the largest unit that fits.

    >>> format_rate(50_000_000), format_rate(1.25e9), format_rate(0)
    ('50Mbit', '1.25Gbit', '0bit')
    """
    unit = max((name for name in UNITS if UNITS[name] <= rate), key=UNITS.__getitem__, default="bit")
    return f"{rate / UNITS[unit]:.4g}{unit}"
