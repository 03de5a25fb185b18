"""Rows and segments while a template is made: which of them become one, and the tables they end in."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from .plan import CODED

Segment = tuple[int, int, int]  # base, first entry, number of entries; see template.py
Row = tuple[int, int, list[Segment], int]  # kind, peer, segments, stage


def joined(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments, with neighbours in memory as one."""
    out: list[Segment] = []
    at = first = end = -1  # of the last one: base, offset and the byte behind it
    for base, offset, length in segments:
        if base == at and offset == end:
            end += length
            out[-1] = (base, first, end - first)
        else:
            out.append((base, offset, length))
            at, first, end = base, offset, offset + length
    return out


def merged(rows: Sequence[Row], with_codes: bool = False) -> list[Row]:
    """Return the local rows with those as one whose every segment follows on.

    Not those of codes, unless elements are encoded one by one: the codes of two blocks are not the codes of one.
    """
    out: list[Row] = []
    for row in rows:
        alike = out and out[-1][0] == row[0] and len(out[-1][2]) == len(row[2])
        if alike and all(_follows(a, b, with_codes) for a, b in zip(out[-1][2], row[2])):
            segments = [(a[0], a[1], a[2] + b[2]) for a, b in zip(out[-1][2], row[2], strict=True)]
            out[-1] = (row[0], 0, segments, -1)
        else:
            out.append(row)
    return out


class Tables:
    """The tables of a plan while they are written, step after step: numbers in a row, which take little memory."""

    def __init__(self) -> None:
        self.rows, self.segments, self.steps, self.strands = (array("q") for _ in range(4))
        self.n_rows = self.n_segments = self.n_steps = 0
        self.begun = 0

    def add_step(self, post: Sequence[Row], finish: Sequence[Row]) -> None:
        """Add a step: rows to post, and rows to finish with."""
        first, posts = self.n_rows, self.n_rows + len(post)
        for kind, peer, pieces, stage in (*post, *finish):
            begin = self.n_segments
            self.n_segments += len(pieces)
            self.rows.extend((kind, peer, begin, self.n_segments, stage))
            for piece in pieces:
                self.segments.extend(piece)
        self.n_rows = posts + len(finish)
        self.n_steps += 1
        self.steps.extend((first, posts, self.n_rows))

    def end_strand(self) -> None:
        """End a strand with the last step that was added."""
        self.strands.extend((self.begun, self.n_steps))
        self.begun = self.n_steps

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return rows, segments, steps and strands."""
        return _table(self.rows, 5), _table(self.segments, 3), _table(self.steps, 3), _table(self.strands, 2)


def _follows(a: Segment, b: Segment, with_codes: bool) -> bool:
    return a[0] == b[0] and (with_codes or a[0] != CODED) and a[1] + a[2] == b[1]


def _table(numbers: array[int], width: int) -> np.ndarray:
    return np.array(numbers, np.int64).reshape(-1, width)
