"""Rows and segments while a plan is made: which of them become one, and the tables they end in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .plan import RECV, SEND, Plan

Segment = tuple[int, int, int]  # base; offset and length in bytes
Row = tuple[int, int, list[Segment], int]  # kind, peer, segments, stage


def joined(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments but for empty ones, with neighbours in memory as one."""
    out: list[Segment] = []
    at = first = end = -1  # of the last one: base, offset and the byte behind it
    for base, offset, length in segments:
        if not length:
            continue
        if base == at and offset == end:
            end += length
            out[-1] = (base, first, end - first)
        else:
            out.append((base, offset, length))
            at, first, end = base, offset, offset + length
    return out


def merged(rows: Sequence[Row]) -> list[Row]:
    """Return the local rows with those as one whose every segment follows on."""
    out: list[Row] = []
    for row in rows:
        alike = out and out[-1][0] == row[0] and len(out[-1][2]) == len(row[2])
        if alike and all(map(_follows, out[-1][2], row[2])):
            segments = [(a[0], a[1], a[2] + b[2]) for a, b in zip(out[-1][2], row[2], strict=True)]
            out[-1] = (row[0], 0, segments, -1)
        else:
            out.append(row)
    return out


def tables(
    steps: Sequence[tuple[list[Row], list[Row]]],
    spans: Sequence[tuple[int, int]],
    *,
    slice_: int,
    lanes: int,
    window: int,
    lane_scratch: int,
    itemsize: int,
) -> Plan:
    """Return the plan of these steps, (rows to post, rows to finish) each; spans: the steps of each strand."""
    rows: list[tuple[int, ...]] = []
    segments: list[Segment] = []
    bounds: list[tuple[int, ...]] = []
    for post, finish in steps:
        first = len(rows)
        for kind, peer, pieces, stage in post + finish:
            rows.append((kind, peer, len(segments), len(segments) + len(pieces), stage))
            segments += pieces
        bounds.append((first, first + len(post), len(rows)))
    most = max((sum(row[0] in (SEND, RECV) for row in post) for post, _ in steps), default=0)
    return Plan(
        _table(rows, 5),
        _table(segments, 3),
        _table(bounds, 3),
        _table(spans, 2),
        slice_,
        lanes,
        window,
        lane_scratch,
        most,
        itemsize,
    )


def _follows(a: Segment, b: Segment) -> bool:
    return a[0] == b[0] and a[1] + a[2] == b[1]


def _table(rows: Sequence[Sequence[int]], width: int) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, width)
