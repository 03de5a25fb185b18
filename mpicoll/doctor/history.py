"""Compare the histories of ranks: find the first calls in which they differ, and print the last ones."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ..diagnostics.history_reader import UNKNOWN, Row
from ..errors import spans


def differences(histories: Mapping[int, Sequence[Row]]) -> dict[str, str]:
    """Return by communicator on which ranks made different calls the first of these, and where each rank was."""
    calls: dict[str, dict[tuple[int, int], dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for rank, its_rows in histories.items():
        for row in its_rows:
            if UNKNOWN not in (row.communicator, row.method):
                calls[row.communicator][row.call, row.start].setdefault(rank, row)
    lines = {}
    for communicator, by_number in sorted(calls.items()):
        for (call, start), by_rank in sorted(by_number.items()):
            if len({row.passed for row in by_rank.values()}) > 1:
                which = f"call {call}{f', start {start}' if start else ''} on {communicator}"
                lines[communicator] = f"{which} is the first in which ranks differ: {_who_made_which(by_rank)}"
                break
    return lines


def _who_made_which(by_rank: Mapping[int, Row]) -> str:
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, row in sorted(by_rank.items()):
        groups[f"{row}, at {row.location}"].append(rank)
    return "; ".join(f"{_ranks(ranks)} made {words}" for words, ranks in groups.items())


def table(histories: Mapping[int, Sequence[Row]], most: int) -> list[str]:
    """Return lines with the last calls of each rank: once for ranks that made the same, with times of the first."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank, its_rows in sorted(histories.items()):
        groups[tuple(row.what for row in its_rows[-most:])].append(rank)
    lines = []
    for ranks in groups.values():
        last = histories[ranks[0]][-most:]
        times = f", times of rank {ranks[0]}" if len(ranks) > 1 else ""
        lines.append(f"{_ranks(ranks)}: the last {len(last)} calls{times}" if last else f"{_ranks(ranks)}: no calls")
        lines += _columns([_cells(row) for row in last])
    return lines


def _cells(row: Row) -> tuple[str, ...]:
    seconds = time.strftime("%H:%M:%S", time.localtime(row.began))
    began = f"{seconds}.{int(row.began % 1 * 1e6):06}"
    took = f"{row.took * 1e6:,.1f} µs" if row.took is not None else ""
    number = f"call {row.call}{f', start {row.start}' if row.start else ''}"
    return began, took, f"{number} on {row.communicator}", str(row), row.state, f"at {row.location}"


def _columns(cells: Sequence[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*cells)]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in cells]


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {spans(ranks)}"
