"""A pytest plugin: every rank notes what it began and how it ended, in a file of its own in the directory $OUTCOMES."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def _note(name: str, outcome: str) -> None:
    with (Path(os.environ["OUTCOMES"]) / str(os.getpid())).open("a") as file:
        file.write(json.dumps([name, outcome]) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    _note(nodeid, "begun")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _note(report.nodeid, "skipped" if report.outcome == "skipped" else report.outcome)
