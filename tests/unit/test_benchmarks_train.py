"""The network: its gradient, and that parts of a batch add up whatever their sizes."""

from __future__ import annotations

import sys

import click
import numpy as np
import pytest

from mpicoll.benchmarks.train_digits.agreement import LEAST_ACCURACY, TOLERANCE, complaints
from mpicoll.benchmarks.train_digits.digits import load
from mpicoll.benchmarks.train_digits.network import Mlp
from mpicoll.schedules.blocks import offsets, sizes

RANDOM = np.random.default_rng(3)
X, Y = RANDOM.random((29, 6)), RANDOM.integers(0, 4, 29)


def test_gradient_is_the_slope_of_the_loss():
    model = Mlp(6, 5, 4)
    gradient, scratch = np.empty_like(model.parameters), np.empty_like(model.parameters)
    model.backward(X, Y, gradient)
    for at in range(0, len(gradient), 7):
        losses = []
        for step in (1e-6, -1e-6):
            model.parameters[at] += step
            losses.append(model.backward(X, Y, scratch))
            model.parameters[at] -= step
        assert gradient[at] == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("p", [1, 2, 4, 7, 40])
def test_parts_add_up(p):
    """29 images on 40 ranks: some have none."""
    model = Mlp(6, 5, 4)
    whole, total, part = (np.zeros_like(model.parameters) for _ in range(3))
    loss, summed = model.backward(X, Y, whole), 0.0
    lengths = sizes(len(X), p)
    for first, length in zip(offsets(lengths), lengths):
        summed += model.backward(X[first : first + length], Y[first : first + length], part)
        total += part
    assert summed == pytest.approx(loss, rel=1e-13)
    assert np.allclose(total, whole, rtol=1e-10, atol=1e-12)


def test_scikit_learn_missing_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(click.UsageError, match=r"pip install 'mpicoll\[train\]'"):
        load()


def test_what_does_not_hold_is_said():
    assert complaints(TOLERANCE, LEAST_ACCURACY) == []
    assert "losses differ" in complaints(TOLERANCE * 2, 1.0)[0]
    assert "accuracy" in complaints(0.0, 0.9)[0]
    assert len(complaints(float("nan"), float("nan"))) == 2
