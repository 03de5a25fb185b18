"""Check the fields of a network's file; each error names the field, its value and what it must be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from ..errors import ArgumentError


def check_names(content: Any, wanted: AbstractSet[str], where: str, optional: AbstractSet[str] = frozenset()) -> None:
    """Raise ArgumentError unless an object has all wanted fields, and none beside these and the optional ones."""
    if not isinstance(content, Mapping):
        raise ArgumentError(f"{where} must be an object with {', '.join(sorted(wanted))}")
    missing, unknown = sorted(wanted - content.keys()), sorted(content.keys() - wanted - optional)
    if missing or unknown:
        has = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}, which is unknown"
        raise ArgumentError(f"{where} {has}")


def number(value: Any, where: str, least: float = 0.0) -> float:
    """Return a finite number of at least so much. Raises ArgumentError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < least:
        raise ArgumentError(f"{where} is {value!r}; it must be a number of at least {least:g}")
    return float(value)


def positive(value: Any, where: str) -> float:
    """Return a finite number above 0. Raises ArgumentError for anything else."""
    checked = number(value, where)
    if not checked:
        raise ArgumentError(f"{where} is {value!r}; it must be a number above 0")
    return checked


def whole(value: Any, where: str) -> int:
    """Return a whole number of at least 1. Raises ArgumentError for anything else."""
    checked = number(value, where, 1.0)
    if not checked.is_integer():
        raise ArgumentError(f"{where} is {checked:g}; it must be a whole number")
    return int(checked)
