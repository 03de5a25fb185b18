"""The least number of rounds of a scan, as docs/SCHEDULES.md proves it, beside the scans of this library."""

import re
from collections import Counter
from pathlib import Path

import pytest

from mpicoll.proofs.symbolic import Trace, execute
from mpicoll.schedules.registry import registered
from mpicoll.schedules.schedule import Schedule

SCANS = [entry for entry in registered() if entry.collective.name in ("scan", "exscan")]
PAGE = Path(__file__).parents[2] / "docs" / "SCHEDULES.md"
ROW = re.compile(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)


def least_messages(p: int, rounds: int) -> int:
    """Return the least messages of one segment whose sum reaches rank p - 1 within these rounds."""
    return 2 * (p - 1) - min(p - 1, rounds)


def least_rounds(p: int, segments: int) -> int:
    """Return the rounds that a scan takes at least; in one of them, a rank receives at most one message."""
    rounds = segments - 1 + (p - 1).bit_length()
    while sum(least_messages(p, rounds - b) for b in range(segments)) > p * rounds:
        rounds += 1
    return rounds


def messages_and_rounds(trace: Trace, p: int) -> dict[int, tuple[int, int]]:
    """Return for each block its messages, and the round in which the last of them reaches rank p - 1."""
    messages, rounds = Counter[int](), dict[int, int]()
    for message in trace.messages:
        messages.update(message.blocks)
        if message.destination == p - 1:
            rounds.update(dict.fromkeys(message.blocks, message.end))
    return {block: (messages[block], rounds[block]) for block in messages}


@pytest.mark.parametrize("entry", SCANS, ids=lambda entry: entry.title)
def test_scan_sends_at_least_the_messages_of_the_proof(entry):
    for p in (*range(2, 18), 31, 33):
        for messages, rounds in messages_and_rounds(execute(Schedule(entry, p)), p).values():
            assert messages >= least_messages(p, rounds)


def test_linear_scan_sends_no_more_messages_than_the_proof_asks_for():
    (linear,) = (entry for entry in SCANS if entry.title == "scan linear")
    for p in (*range(2, 18), 31, 33):
        assert messages_and_rounds(execute(Schedule(linear, p)), p) == {0: (least_messages(p, p - 1), p - 1)}


def test_table_of_rounds_is_computed():
    rows = [tuple(map(int, row)) for row in ROW.findall(PAGE.read_text())]
    assert len(rows) == 7
    assert rows == [(p, n, n - 1 + (p - 1).bit_length(), least_rounds(p, n), p - 2 + n) for p, n, *_ in rows]


@pytest.mark.once
def test_segments_for_which_64_ranks_need_more_rounds():
    more = [n for n in range(1, 2000) if least_rounds(64, n) > n - 1 + 6]
    assert (more[0], more[-1], len(more)) == (6, 1332, 1327)


def test_as_many_segments_as_ranks():
    assert all(least_rounds(p, p) >= p + p // 4 for p in range(4, 200))
