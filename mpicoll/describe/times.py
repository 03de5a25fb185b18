"""A simulated schedule as a text Gantt chart, one line per rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..cost.play import COMPUTES, RECEIVES, SENDS, Play

MARKS = {
    (): "·", (SENDS,): "→", (RECEIVES,): "←", (RECEIVES, SENDS): "↔", (COMPUTES,): "+",
    (COMPUTES, SENDS): "⊕", (COMPUTES, RECEIVES): "⊕", (COMPUTES, RECEIVES, SENDS): "⊕",
}  # fmt: skip
LEGEND = "→ sends   ← receives   ↔ both   + folds or copies   ⊕ folds during a message   · waits"
MOST, SOME = 0.5, 0.25  # of a column's time
COLUMNS = 72


def draw(title: str, play: Play, columns: int = COLUMNS) -> str:
    """Return a line per rank, time to the right, and the shares of the time for which it sends, receives and folds.

    The time of a message is its bytes by the rate, without the latency. A column is marked with what takes at least
    MOST of its time, else with the longest if that takes SOME. play: one that was recorded.
    """
    assert play.spans is not None
    busy = {what: _busy(play, what, columns) for what in (COMPUTES, RECEIVES, SENDS)}
    width = len(str(play.p - 1))
    total = play.us or 1.0
    lines = [f"{title}: {play.us:.4g} µs, {play.messages} messages", ""]
    head = " " * (width + 6) + _scale(play.us, columns)
    lines += [f"{head}  sends  receives  folds"]
    for rank in range(play.p):
        marks = "".join(_mark({what: shares[rank, i] for what, shares in busy.items()}) for i in range(columns))
        shares = [sum(busy[what][rank]) / columns for what in (SENDS, RECEIVES, COMPUTES)]
        ended = round(columns * play.ends[rank] / total)
        marks = marks[:ended] + " " * (columns - ended)
        lines.append(f"rank {rank:>{width}} {marks}   {shares[0]:4.0%}      {shares[1]:4.0%}   {shares[2]:4.0%}")
    return "\n".join([*lines, "", LEGEND, ""])


def _mark(shares: dict[str, float]) -> str:
    """Return the mark of a column."""
    longest = max(shares, key=lambda what: shares[what])
    least = MOST if shares[longest] >= MOST else SOME
    return MARKS[tuple(what for what, share in shares.items() if share >= MOST or (what == longest and share >= least))]


def _busy(play: Play, what: str, columns: int) -> np.ndarray:
    """Return, per rank and column, the fraction of time spent in one activity."""
    shares = np.zeros((play.p, columns))
    spans: Iterable[tuple[int, float, float]] = ((s.rank, s.begin, s.end) for s in play.spans or () if s.what == what)
    edges = np.linspace(0.0, play.us, columns + 1)
    for rank, begin, end in spans:
        overlap = np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin)
        shares[rank] += np.maximum(overlap, 0.0)
    return np.minimum(shares / max(play.us / columns, 1e-12), 1.0)


def _scale(us: float, columns: int) -> str:
    """Return a line with times in µs at the quarters."""
    marks: Sequence[str] = [f"{us * i / 4:.4g}" for i in range(5)]
    line = [" "] * columns
    for i, mark in enumerate(marks):
        at = min(round(columns * i / 4), columns - len(mark))
        line[at : at + len(mark)] = mark
    return "".join(line)
