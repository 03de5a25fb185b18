"""Remember calls before the fast path serves their kind."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

from mpicoll.fastpath.table import MAX_SEEN, Table

SIDES = ((0, 8), (8, 8))


class Prepared:
    """Stands for what served a call."""


def key(digest: int) -> Any:
    return SimpleNamespace(digest=digest)


def test_a_kind_was_seen_when_the_same_served_it_twice():
    table, first, other = Table(), Prepared(), Prepared()
    assert not table.was_served_alike(key(1), (weakref.ref(first), SIDES))
    assert not table.was_served_alike(key(1), (weakref.ref(other), SIDES))
    assert not table.was_served_alike(key(1), (weakref.ref(other), ((0, 8), (0, 8))))
    assert table.was_served_alike(key(1), (weakref.ref(other), ((0, 8), (0, 8))))


def test_kinds_seen_long_ago_are_forgotten():
    table, prepared = Table(), Prepared()
    for digest in range(MAX_SEEN + 1):
        table.was_served_alike(key(digest), (weakref.ref(prepared), SIDES))
    assert not table.was_served_alike(key(0), (weakref.ref(prepared), SIDES))
    assert table.was_served_alike(key(MAX_SEEN), (weakref.ref(prepared), SIDES))
