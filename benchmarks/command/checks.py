"""Words and numbers of a command line, checked: lists of names, values above 0."""

from __future__ import annotations

from typing import TypeVar

from mpicoll.cli.names import split_names

Number = TypeVar("Number", int, float)
ALL = "all"


def listed(option: str, text: str) -> list[str]:
    """Return the words of a list. Raises ValueError without any."""
    words = split_names(text)
    if not words:
        raise ValueError(f"{option} is {text!r}; it must name something")
    return words


def positive(name: str, value: Number) -> Number:
    """Raise ValueError unless above 0."""
    if not value > 0:
        raise ValueError(f"{name} is {value}; it must be above 0")
    return value


def not_negative(name: str, value: Number) -> Number:
    """Raise ValueError below 0."""
    if not value >= 0:
        raise ValueError(f"{name} is {value}; it must not be below 0")
    return value
