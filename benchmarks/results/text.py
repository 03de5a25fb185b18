"""Times, rates and intervals as people read them, and the colours of verdicts."""

from __future__ import annotations

from collections.abc import Callable

from ..measure.stats import FASTER, SLOWER, Estimate

RATES = (("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
STYLES = {FASTER: "green", SLOWER: "red"}
WRONG = "bold red"


def microseconds(seconds: float) -> str:
    """Return three or four digits, no exponent.

    >>> [microseconds(t) for t in (1.234e-6, 45.67e-6, 0.0123456)]
    ['1.23', '45.7', '12346']
    """
    value = seconds * 1e6
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def rate(bandwidth: float | None) -> str:
    """Return a bandwidth in bytes per second with three digits, decimal as links are.

    >>> [rate(b) for b in (6.25e6, 1.2e10, 512.0, None)]
    ['6.25 MB/s', '12.0 GB/s', '512 B/s', '']
    """
    if bandwidth is None:
        return ""
    unit, factor = next(((unit, factor) for unit, factor in RATES if bandwidth >= factor), RATES[-1])
    value = bandwidth / factor
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}B/s"


def spread(estimate: Estimate, form: Callable[[float], str]) -> str:
    """Return an interval's ends; a question mark where there are too few values for one."""
    return "–".join(map(form, estimate.spread)) if estimate.spread else "?"
