"""Join adjacent rows and segments of a template, and write them to tables."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from .plan import CODED, RECV

Segment = tuple[int, int, int]  # base, first entry, number of entries; see template.py
Row = tuple[int, int, list[Segment], int]  # kind, peer, segments, stage


def joined(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments, with adjacent ones joined."""
    out: list[Segment] = []
    last_base = first = end = -1  # of the last segment
    for base, entry, count in segments:
        if base == last_base and entry == end:
            end += count
            out[-1] = (base, first, end - first)
        else:
            out.append((base, entry, count))
            last_base, first, end = base, entry, entry + count
    return out


def merged(rows: Sequence[Row], with_codes: bool = False) -> list[Row]:
    """Return the local rows, with those joined whose segments are all adjacent.

    with_codes: also join segments of codes. That is valid only if elements are encoded one by one.
    """
    out: list[Row] = []
    for row in rows:
        is_similar = out and out[-1][0] == row[0] and len(out[-1][2]) == len(row[2])
        if is_similar and all(_follows(a, b, with_codes) for a, b in zip(out[-1][2], row[2])):
            segments = [(a[0], a[1], a[2] + b[2]) for a, b in zip(out[-1][2], row[2], strict=True)]
            out[-1] = (row[0], 0, segments, -1)
        else:
            out.append(row)
    return out


class Tables:
    """The tables of a plan while steps are added, as flat arrays of numbers, which need little memory."""

    def __init__(self) -> None:
        self.rows, self.segments, self.steps, self.strands = (array("q") for _ in range(4))
        self.n_rows = self.n_segments = self.n_steps = self.most_messages = 0
        self.strand_begin = 0

    def add_step(self, post: Sequence[Row], finish: Sequence[Row]) -> None:
        """Add a step: rows to post, and rows of local work after them."""
        first, posts = self.n_rows, self.n_rows + len(post)
        for kind, peer, pieces, stage in (*post, *finish):
            begin = self.n_segments
            self.n_segments += len(pieces)
            self.rows.extend((kind, peer, begin, self.n_segments, stage))
            for piece in pieces:
                self.segments.extend(piece)
        self.n_rows = posts + len(finish)
        self.most_messages = max(self.most_messages, sum([row[0] <= RECV for row in post]))
        self.n_steps += 1
        self.steps.extend((first, posts, self.n_rows))

    def end_strand(self) -> None:
        """End a strand after the last step added."""
        self.strands.extend((self.strand_begin, self.n_steps))
        self.strand_begin = self.n_steps

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return rows, segments, steps and strands."""
        return _table(self.rows, 5), _table(self.segments, 3), _table(self.steps, 3), _table(self.strands, 2)


def _follows(a: Segment, b: Segment, with_codes: bool) -> bool:
    return a[0] == b[0] and (with_codes or a[0] != CODED) and a[1] + a[2] == b[1]


def _table(numbers: array[int], width: int) -> np.ndarray:
    return np.array(numbers, np.int64).reshape(-1, width)
