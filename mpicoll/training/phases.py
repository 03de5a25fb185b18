"""The phases of a step, by the names of their spans in timelines."""

from __future__ import annotations

PHASES = FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
