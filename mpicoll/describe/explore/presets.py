"""The tours that the page offers: schedules that show one thing well, each with the thing to look for."""

from __future__ import annotations

from typing import NamedTuple


class Preset(NamedTuple):
    """A tour: what to look for, and the key of one schedule or of two side by side."""

    title: str
    words: str
    left: str
    right: str = ""


PRESETS = (
    Preset(
        "The ring on five ranks",
        "Four steps of reduce-scatter: every block collects one more contribution per step. Then four steps of "
        "allgather hand the complete blocks round. Each rank sends less than 2 n bytes, whatever p is.",
        "allreduce/ring/p=5",
    ),
    Preset(
        "13 servers by halving-doubling",
        "Ranks 8 to 12 hand their vectors to ranks 0 to 4 first. The eight that remain halve the vector three times, "
        "then double it three times. The last step hands the result back.",
        "allreduce/halving_doubling/p=13",
    ),
    Preset(
        "Parameter server or ring",
        "Left: every worker sends its vector to one server, whose link carries n (p − 1) bytes each way. Right: the "
        "ring spreads the same work over all links. Compare the bytes per rank.",
        "allreduce/parameter_server/p=8",
        "allreduce/ring/p=8",
    ),
    Preset(
        "Hierarchical on 4 × 2",
        "Four nodes of two ranks. Ranks of a node reduce among themselves, nodes exchange, then the result spreads "
        "inside the nodes. Few messages cross between nodes.",
        "allreduce/hierarchical(groups=2)/p=8",
    ),
)
