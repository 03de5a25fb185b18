"""Print the CPU seconds of each file of tests, child processes included: they are right on a busy machine too.

    PYTHONPATH=tests .venv/bin/pytest -p support.cputime tests/unit --quick

With MPICOLL_CPU_TIMES=FILE it also writes one line of JSON per test. Under mpiexec the seconds are rank 0's.
"""

from __future__ import annotations

import json
import os
import resource
from collections import defaultdict
from collections.abc import Iterator

import pytest

SHOWN = 25  # files

_seconds: dict[str, float] = {}


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    start = cpu_seconds()
    try:
        return (yield)
    finally:
        _seconds[item.nodeid] = cpu_seconds() - start


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    files: dict[str, list[float]] = defaultdict(list)
    for name, seconds in _seconds.items():
        files[name.partition("::")[0]].append(seconds)
    total = cpu_seconds()
    terminalreporter.section(f"CPU time: {sum(_seconds.values()):.1f} s in {len(_seconds)} tests, {total:.1f} s in all")
    for name, times in sorted(files.items(), key=lambda pair: -sum(pair[1]))[:SHOWN]:
        terminalreporter.write_line(f"{sum(times):8.1f} s {len(times):6} tests  {name}")
    if path := os.environ.get("MPICOLL_CPU_TIMES"):
        with open(path, "w") as file:
            file.writelines(json.dumps(pair) + "\n" for pair in _seconds.items())
