"""Training on all ranks beside training on one: the losses must agree, and digits be known."""

from __future__ import annotations

from typing import Any

from mpicoll.schedules.blocks import sizes

from ..command.console import console
from ..command.progress import bar
from .digits import Digits
from .trainer import BATCH, Trainer

LEAST_ACCURACY = 0.95
TOLERANCE = 1e-9  # relative, between losses; the sums differ in their order only


def compare(world: Any, alone: Any, digits: Digits, epochs: int) -> list[str]:
    """Train on 1 rank beside all, printing losses; returns what does not hold, the same on all ranks."""
    out, here = console(), world.rank == 0
    with bar(out, epochs, here) as progress:
        progress.begin("training on 1 rank")
        single = [Trainer(alone, digits)] if here else []
        losses = [trainer.epoch() for trainer in single for _ in range(epochs)]
        losses = world.bcast(losses)
        together, worst = Trainer(world, digits), 0.0
        if here:
            out.print(f"epoch    loss, 1 rank     loss, {world.size} ranks    difference")
        for epoch, expected in enumerate(losses, 1):
            progress.begin(f"epoch {epoch}")
            loss = together.epoch()
            worst = max(worst, abs(loss - expected) / expected)
            if here:
                out.print(f"{epoch:5}  {expected:14.10f}  {loss:14.10f}  {loss - expected:12.1e}")
            progress.end()
    accuracy = together.model.accuracy(digits.test_x, digits.test_y)
    if here:
        shares = sizes(len(digits.x) % BATCH, world.size)
        out.print(
            f"{len(digits.x)} images, the last batch shared out as {shares}\n"
            f"largest relative difference of losses {worst:.1e} (limit {TOLERANCE:.0e}), "
            f"test accuracy {accuracy:.1%} (at least {LEAST_ACCURACY:.0%})"
        )
    wrong: list[str] = world.bcast(complaints(worst, accuracy))
    return wrong


def complaints(worst: float, accuracy: float) -> list[str]:
    """Return what does not hold. Written so that NaN does not pass."""
    found = []
    if not worst <= TOLERANCE:
        found.append(f"the losses differ by {worst:.1e}, more than {TOLERANCE:.0e}")
    if not accuracy >= LEAST_ACCURACY:
        found.append(f"test accuracy is {accuracy:.1%}, less than {LEAST_ACCURACY:.0%}")
    return found
