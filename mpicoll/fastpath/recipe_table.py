"""Store the recipes of datatypes (see recipe.py) in a hash table that compiled code reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels.deferred import njit

NUMBERS = 24  # the most in a recipe, without the combiner and the base datatype
SLOTS = 1024  # of the table, at most half of them in use
FACTS, LENGTH, WORDS = 0, 1, 2  # columns of a slot
SLOT = WORDS + NUMBERS + 2
WRITTEN = 67  # words of the array to which MPI writes

known = np.zeros((SLOTS, SLOT), np.int64)
written = np.zeros(WRITTEN, np.int64)
recipe = np.zeros(NUMBERS + 2, np.int64)
_kept: list[Any] = []


@njit
def mix(mixed, word):  # type: ignore[no-untyped-def]
    """Return the hash that extends a hash by a word."""
    return (mixed * 31 + (word & 0xFFFFFFFF)) & 0xFFFFFF


@njit
def find_slot(words, n, slots):  # type: ignore[no-untyped-def]
    """Return the slot of a recipe of n words, or the empty slot for it."""
    mixed = 0
    for i in range(n):
        mixed = mix(mixed, words[i])
    while True:
        slot = slots[mixed % SLOTS]
        same = slot[LENGTH] == n
        for i in range(n):
            same = same and slot[WORDS + i] == words[i]
        if same or slot[LENGTH] == 0:
            return mixed % SLOTS
        mixed += 1


def add(words: tuple[int, ...], facts: object) -> None:
    """Add a recipe with the facts on its datatype, which are kept; do nothing if it is known or too long."""
    recipe_words = np.array(words, np.int64)
    slot = known[find_slot(recipe_words, len(words), known)]
    if slot[LENGTH] or len(_kept) >= SLOTS // 2 or len(words) > len(recipe):
        return
    _kept.append(facts)
    slot[WORDS : WORDS + len(words)], slot[FACTS] = recipe_words, id(facts)
    slot[LENGTH] = len(words)  # last, since compiled code reads it first
