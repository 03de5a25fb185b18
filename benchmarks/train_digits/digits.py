"""The images of handwritten digits that scikit-learn brings along."""

from __future__ import annotations

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
