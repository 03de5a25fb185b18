"""Words in which a rank describes its failures."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Sequence

import pytest

PASSED, SKIPPED, XFAILED, FAILED = range(4)
WORDS = ("passed", "skipped", "failed as expected", "failed")


def outcome_of(reports: Sequence[pytest.TestReport]) -> int:
    if any(report.failed for report in reports):
        return FAILED
    skipped = [report for report in reports if report.skipped]
    if not skipped:
        return PASSED
    return XFAILED if hasattr(skipped[0], "wasxfail") else SKIPPED


def describe(reports: Sequence[pytest.TestReport]) -> str:
    """Return the lines of a rank about a test that did not pass."""
    lines: list[str] = []
    for report in reports:
        if report.passed:
            continue
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longreprtext
        lines += [f"[{report.when}: {report.outcome}]", reason]
        for title, content in report.sections:
            lines += [f"-- {title} --", content.rstrip("\n")]
    return "\n".join([*lines, ""] if lines else [])


def describe_stacks() -> str:
    """Return the stack of each other thread, without pytest's own frames."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines: list[str] = []
    for ident, frame in sys._current_frames().items():
        if ident == threading.get_ident():
            continue
        stack = [entry for entry in traceback.extract_stack(frame)
                 if not {"_pytest", "pluggy"} & set(entry.filename.split(os.sep))]
        lines += [f"-- stack of {names.get(ident, ident)} --\n", *traceback.format_list(stack)]
    return "".join(lines)


def describe_difference(table: Sequence[Sequence[int]], texts: Sequence[str]) -> str:
    lines = [f"rank {rank}: {count} tests, {errors} errors while collecting"
             for rank, (count, errors, _) in enumerate(table)]
    first = Counter(texts[0].splitlines())
    for rank, text in enumerate(texts[1:], 1):
        names = Counter(text.splitlines())
        for there, missing, only in ((0, rank, first - names), (rank, 0, names - first)):
            lines += [f"on rank {there} and not on rank {missing}: {name}" for name in list(only)[:5]]
        if names == first and text != texts[0]:
            lines.append(f"rank {rank} has them in another order than rank 0")
    return "\n".join(lines)


def name_ranks(codes: Sequence[int], code: int, size: int) -> str:
    ranks = [str(rank) for rank, other in enumerate(codes) if other == code]
    if len(ranks) == size:
        return "every rank"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)} of {size}"
