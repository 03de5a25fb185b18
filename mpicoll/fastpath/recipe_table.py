"""The recipes of datatypes by which recipe.py knows a layout, in a hash table that compiled code reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels.deferred import njit

NUMBERS = 24  # of a recipe, at most, beside the combiner and the datatype that it is made of
SLOTS = 1024  # of the table; it is half full at most
FACTS, LENGTH, WORDS = 0, 1, 2  # of a slot
SLOT = WORDS + NUMBERS + 2
WRITTEN = 67  # words that MPI may write to

known = np.zeros((SLOTS, SLOT), np.int64)
written = np.zeros(WRITTEN, np.int64)
recipe = np.zeros(NUMBERS + 2, np.int64)
_kept: list[Any] = []


@njit
def slot_of(mixed, word):  # type: ignore[no-untyped-def]
    """Return a hash of what a hash was of, and of a word."""
    return (mixed * 31 + (word & 0xFFFFFFFF)) & 0xFFFFFF


@njit
def find(words, n, slots):  # type: ignore[no-untyped-def]
    """Return the slot of a recipe of n words, or the one that it may be put in."""
    mixed = 0
    for i in range(n):
        mixed = slot_of(mixed, words[i])
    while True:
        slot = slots[mixed % SLOTS]
        same = slot[LENGTH] == n
        for i in range(n):
            same = same and slot[WORDS + i] == words[i]
        if same or slot[LENGTH] == 0:
            return mixed % SLOTS
        mixed += 1


def add(words: tuple[int, ...], facts: object) -> None:
    """Have datatypes that are made by a recipe be known by these facts, which stay."""
    recipe_words = np.array(words, np.int64)
    slot = known[find(recipe_words, len(words), known)]
    if slot[LENGTH] or len(_kept) >= SLOTS // 2 or len(words) > len(recipe):
        return
    _kept.append(facts)
    slot[WORDS : WORDS + len(words)], slot[FACTS] = recipe_words, id(facts)
    slot[LENGTH] = len(words)  # last, since compiled code looks at it first
