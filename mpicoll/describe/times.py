"""A simulated schedule as a text Gantt chart, one line per rank."""

from __future__ import annotations

import numpy as np

from ..cost.simulation import COMPUTES, RECEIVES, SENDS, Simulation

MARKS = {
    (): "·", (SENDS,): "→", (RECEIVES,): "←", (RECEIVES, SENDS): "↔", (COMPUTES,): "+",
    (COMPUTES, SENDS): "⊕", (COMPUTES, RECEIVES): "⊕", (COMPUTES, RECEIVES, SENDS): "⊕",
}  # fmt: skip
LEGEND = "→ sends   ← receives   ↔ both   + reduces or copies   ⊕ reduces during a message   · waits"
MOST, SOME = 0.5, 0.25  # of a column's time
COLUMNS = 72


def draw(title: str, simulation: Simulation, columns: int = COLUMNS) -> str:
    """Return a line per rank, time to the right, and the shares of the time for which it sends, receives and reduces.

    The time of a message is its bytes by the rate, without the latency. A column is marked with what takes at least
    MOST of its time, else with the longest if that takes SOME. simulation: with record=True.
    """
    busy, width, total = _busy(simulation, columns), len(str(simulation.p - 1)), simulation.us or 1.0
    lines = [f"{title}: {simulation.us:.4g} µs, {simulation.messages} messages", ""]
    lines.append(" " * (width + 6) + f"{_scale(simulation.us, columns)}  sends  receives  reduces")
    for rank in range(simulation.p):
        ended = round(columns * simulation.ends[rank] / total)
        marks = "".join(_mark({what: shares[rank, i] for what, shares in busy.items()}) for i in range(ended))
        sends, receives, reduces = (busy[what][rank].mean() for what in (SENDS, RECEIVES, COMPUTES))
        lines.append(f"rank {rank:>{width}} {marks:<{columns}}   {sends:4.0%}      {receives:4.0%}   {reduces:6.0%}")
    return "\n".join([*lines, "", LEGEND, ""])


def _mark(shares: dict[str, float]) -> str:
    """Return the mark of a column, from the fractions of its time for which a rank does each thing."""
    longest = max(shares, key=lambda what: shares[what])
    most = tuple(what for what, share in shares.items() if share >= MOST)
    return MARKS[most or ((longest,) if shares[longest] >= SOME else ())]


def _busy(simulation: Simulation, columns: int) -> dict[str, np.ndarray]:
    """Return, for every activity, the fraction of each column's time that each rank spends on it: ranks by columns."""
    assert simulation.spans is not None
    busy, edges = {what: np.zeros((simulation.p, columns)) for what in (COMPUTES, RECEIVES, SENDS)}, np.arange(columns)
    for rank, what, begin, end in simulation.spans:
        first, last = begin / simulation.us * columns, end / simulation.us * columns
        busy[what][rank] += np.clip(np.minimum(edges + 1, last) - np.maximum(edges, first), 0.0, None)
    return {what: np.minimum(shares, 1.0) for what, shares in busy.items()}


def _scale(us: float, columns: int) -> str:
    """Return a line with times in µs at the quarters."""
    line = [" "] * columns
    for i in range(5):
        mark = f"{us * i / 4:.4g}"
        at = min(round(columns * i / 4), columns - len(mark))
        line[at : at + len(mark)] = mark
    return "".join(line)
