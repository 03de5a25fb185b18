"""Symbolic values of proofs: the contributions that a block holds, as a set or in rank order."""

from __future__ import annotations

from typing import NamedTuple


class Interval(NamedTuple):
    """Contributions first..end-1, combined in this order."""

    first: int
    end: int


Value = int | Interval  # a bit mask of contributions, or an interval where the order matters


def mask(ranks: Interval) -> int:
    """Return the contributions of an interval as a bit mask, without their order."""
    return (1 << ranks.end) - (1 << ranks.first)


def combine(left: Value, right: Value) -> Value:
    """Return left∘right. Raises ValueError if a contribution would count twice or be out of order."""
    if isinstance(left, Interval) and isinstance(right, Interval):
        if left.end != right.first:
            raise ValueError(f"{show(left)} before {show(right)} is out of rank order")
        return Interval(left.first, right.end)
    if left & right:  # type: ignore[operator]
        raise ValueError(f"contribution {show(left & right)} would count twice")  # type: ignore[operator]
    return left | right  # type: ignore[operator]


def contributors(value: Value) -> list[int]:
    """Return the ranks whose contributions a value holds."""
    if isinstance(value, Interval):
        return list(range(value.first, value.end))
    return [r for r in range(value.bit_length()) if value >> r & 1]


def show(value: Value | None) -> str:
    """Return a value for an error message: 0..3 or {0, 2}."""
    if value is None:
        return "nothing"
    if isinstance(value, Interval):
        return f"{value.first}..{value.end - 1}"
    return "{" + ", ".join(map(str, contributors(value))) + "}"
