"""A schedule in time on a network, as text: what every rank does when, by the cost model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..cost.play import COMPUTES, RECEIVES, SENDS, Play

MARKS = {
    (): "·", (SENDS,): "→", (RECEIVES,): "←", (RECEIVES, SENDS): "↔", (COMPUTES,): "+",
    (COMPUTES, SENDS): "⊕", (COMPUTES, RECEIVES): "⊕", (COMPUTES, RECEIVES, SENDS): "⊕",
}  # fmt: skip
LEGEND = "→ sends   ← receives   ↔ both   + folds or copies   ⊕ beside a message   · waits"
LEAST_SHARE = 0.25  # of a column's time that a rank must spend on something to be marked with it
COLUMNS = 72


def draw(title: str, play: Play, columns: int = COLUMNS) -> str:
    """Return a line per rank, time to the right, and behind it the shares of time for which it sends, receives, folds.

    play: one that was recorded. columns: characters for the whole time.
    """
    assert play.spans is not None
    busy = {what: _busy(play, what, columns) for what in (COMPUTES, RECEIVES, SENDS)}
    width = len(str(play.p - 1))
    total = play.us or 1.0
    lines = [f"{title}: {play.us:.4g} µs, {play.messages} messages", ""]
    head = " " * (width + 6) + _scale(play.us, columns)
    lines += [f"{head}  sends  receives  folds"]
    for rank in range(play.p):
        does = [tuple(what for what in busy if busy[what][rank, i] >= LEAST_SHARE) for i in range(columns)]
        marks = "".join(MARKS[what] for what in does)
        shares = [sum(busy[what][rank]) / columns for what in (SENDS, RECEIVES, COMPUTES)]
        ended = round(columns * play.ends[rank] / total)
        marks = marks[:ended] + " " * (columns - ended)
        lines.append(f"rank {rank:>{width}} {marks}   {shares[0]:4.0%}      {shares[1]:4.0%}   {shares[2]:4.0%}")
    return "\n".join([*lines, "", LEGEND, ""])


def _busy(play: Play, what: str, columns: int) -> np.ndarray:
    """Return for which share of every column's time each rank does something: an array of ranks by columns."""
    shares = np.zeros((play.p, columns))
    spans: Iterable[tuple[int, float, float]] = ((s.rank, s.begin, s.end) for s in play.spans or () if s.what == what)
    edges = np.linspace(0.0, play.us, columns + 1)
    for rank, begin, end in spans:
        overlap = np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin)
        shares[rank] += np.maximum(overlap, 0.0)
    return np.minimum(shares / max(play.us / columns, 1e-12), 1.0)


def _scale(us: float, columns: int) -> str:
    """Return a line with times in µs at the quarters."""
    marks: Sequence[str] = [f"{us * i / 4:.3g}" for i in range(5)]
    line = [" "] * columns
    for i, mark in enumerate(marks):
        at = min(round(columns * i / 4), columns - len(mark))
        line[at : at + len(mark)] = mark
    return "".join(line)
