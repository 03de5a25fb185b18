"""Data to learn: images of handwritten digits, which scikit-learn brings along, and some Shakespeare."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

SEED = 0
MISSING = "scikit-learn is missing; pip install 'mpicoll[train]'"


class Digits(NamedTuple):
    """Images as rows of 64 values from 0 to 1, and the digits they show."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def load() -> Digits:
    """1,437 images to train on and 360 to test on, always the same. Raises UsageError."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise click.UsageError(MISSING) from None
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(x))
    x, y = x[order] / 16.0, y[order]
    return Digits(x[:1437], y[:1437], x[1437:], y[1437:])


class Text(NamedTuple):
    """Characters as numbers, and the characters."""

    tokens: np.ndarray
    characters: str

    def batch(self, number: int, size: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return so many windows of the text, drawn by the number of the step, and the characters that follow."""
        first = np.random.default_rng([SEED, number]).integers(0, len(self.tokens) - length - 1, size)
        windows = self.tokens[first[:, None] + np.arange(length + 1)]
        return windows[:, :-1], windows[:, 1:]


def text() -> Text:
    """Return eight sonnets and two speeches of Shakespeare's, 7,552 characters in the public domain."""
    whole = (Path(__file__).parent / "shakespeare.txt").read_text(encoding="ascii")
    characters = "".join(sorted(set(whole)))
    return Text(np.array([characters.index(character) for character in whole]), characters)
