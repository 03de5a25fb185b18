"""The finding of a check: what is wrong, how it knows, and what to type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WRONG, WARNING = "wrong", "warning"
NOT_COMPILED = "not compiled yet: programs use NumPy meanwhile; mpicoll warm compiles it now"
Facts = dict[str, Any]  # what info gathers, with what doctor/facts.py adds
Rank = dict[str, Any]  # one of its ranks


@dataclass(frozen=True)
class Finding:
    """One thing that a check found. A run should not start with one that is wrong; a warning may be meant."""

    severity: str
    what: str
    seen: str
    type: str


def nodes(facts: Facts) -> dict[str, list[Rank]]:
    """Return the ranks of every node, by its host's name and, should names be alike, a number."""
    by_node: dict[str, list[Rank]] = {}
    for rank in facts["ranks"]:
        by_node.setdefault(rank["node"], []).append(rank)
    names: dict[str, list[Rank]] = {}
    for ranks in by_node.values():
        host = ranks[0]["host"]
        same = sum(ranks[0]["host"] == name.partition(" (")[0] for name in names)
        names[f"{host} ({same + 1})" if same else host] = ranks
    return names


def numbered(count: int, thing: str) -> str:
    """Return a count with its noun, plural if the count is not 1.

    >>> numbered(1, "rank"), numbered(2, "CPU")
    ('1 rank', '2 CPUs')
    """
    return f"{count} {thing}{'s' * (count != 1)}"


def named(who: str) -> str:
    """Return ranks in the form of `errors.spans`, after their noun.

    >>> named("3"), named("0-2, 5")
    ('rank 3', 'ranks 0-2, 5')
    """
    return f"rank{'s' * (not who.isdigit())} {who}"
