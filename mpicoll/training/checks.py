"""Raise on every rank for errors that would silently change the results of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from ..errors import TrainingError, spans
from .modules import Parameter


def same_model(comm: Any, parameters: Sequence[Parameter]) -> None:
    """Check that all ranks have parameters of the same shapes and types. Collective; raises TrainingError on each."""
    shapes = [f"{parameter.dtype} {parameter.shape}" for parameter in parameters]
    own = np.frombuffer(blake2b("\n".join(shapes).encode(), digest_size=16).digest(), np.uint8)
    every = np.empty((comm.size, 16), np.uint8)
    comm.Allgather(own, every)
    others = [rank for rank in range(comm.size) if not np.array_equal(every[rank], every[0])]
    if others:
        size = sum(parameter.size for parameter in parameters)
        last = f", the last of them {shapes[-1]}" if shapes else ""
        raise TrainingError(
            f"rank{'s' * (len(others) > 1)} {spans(others)} and rank 0 have different models; this rank has "
            f"{len(parameters)} parameters of {size:,} elements in all{last}"
        )


def finite(loss: float, step: int) -> float:
    """Return a loss that all ranks have. Raises TrainingError where it is no finite number."""
    if not math.isfinite(loss):
        raise TrainingError(
            f"the loss of step {step} is {loss}, and the parameters are of no use any more; "
            f"try a smaller rate, or look at the data"
        )
    return loss
