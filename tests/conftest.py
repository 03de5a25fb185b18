"""Share fixtures between unit and MPI tests. Importing this module must not start MPI."""

from __future__ import annotations

import gc
import json
import os
import shutil
import tempfile
from functools import partial

import changed
import pytest
from support import harness

ON_REQUEST = {
    "browser": "a web browser",
    "hosts": "root, ip and tc",
    "slurm": "Slurm's daemons",
}

SMOKE = 0.1     # of the tests of tools


def pytest_addoption(parser: pytest.Parser) -> None:
    harness.pytest_addoption(parser)
    group = parser.getgroup("mpicoll")
    for name, needs in ON_REQUEST.items():
        group.addoption(f"--run-{name}", action="store_true", help=f"run the tests that need {needs}")
    group.addoption("--quick", action="store_true",
                    help="leave out what is marked slow, and launches that are not marked quick; prove less")
    group.addoption("--smoke-tools", action="store_true",
                    help="of each file about benchmarks, jobs and the like (tests/changed.py) run one test in ten")
    group.addoption("--results", metavar="FILE", help="append one line of JSON per test")


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("MPICOLL_COMPILE", "wait")  # tests assert which engine ran
    os.environ.setdefault("MPICOLL_NETWORK", "none")  # tests assert which algorithm ran, on any machine
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="mpicoll-tests-")  # benchmarks keep results there
    config.add_cleanup(partial(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True))
    if config.option.results and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(config.option.results))


def pytest_collection_finish() -> None:
    """Freeze the tests and modules loaded so far, since the many calls of gc.collect() in tests would scan them."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.quick:
        harness.keep(config, items, [item for item in items if not item.get_closest_marker("slow")])
    if config.option.smoke_tools:
        harness.keep(config, items, smoke(items))
    for item in items:
        if any(item.get_closest_marker(name) for name in ON_REQUEST):
            item.add_marker(pytest.mark.xdist_group("machine"))     # no two at once: they share addresses and ports
    required = os.environ.get("MPICOLL_REQUIRE", "").replace(",", " ").split()
    for name, needs in ON_REQUEST.items():
        if not config.getoption(f"--run-{name}") and name not in required:
            skip = pytest.mark.skip(reason=f"{name}: needs {needs}; run it with --run-{name}")
            for item in items:
                if item.get_closest_marker(name):
                    item.add_marker(skip)


def smoke(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return all tests but those of tools; of each file of these the same tenth of its tests, at least one."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        if changed.is_of_tools(item.path.name):
            files.setdefault(item.path.name, []).append(item)
    kept = {item for group in files.values() for item in harness.sample(group, SMOKE, seed=0, size=1)}
    return [item for item in items if item in kept or not changed.is_of_tools(item.path.name)]


class Results:
    """Writes each test's outcome as it is known, so that what an aborted run did is not lost."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.outcomes: dict[str, tuple[str, str]] = {}  # several tests may run at once

    def write(self, **entry: object) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(entry) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(id=nodeid, outcome="begun", reason="")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.outcomes[report.nodeid] = "failed", headline(report)
        elif report.skipped:
            self.outcomes.setdefault(report.nodeid, ("skipped", reason_of(report)))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        outcome, reason = self.outcomes.pop(nodeid, ("passed", ""))
        self.write(id=nodeid, outcome=outcome, reason=reason)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self.write(id=report.nodeid, outcome=report.outcome,
                       reason=headline(report) if report.failed else reason_of(report))

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        for item in items:
            if harness.TOO_FEW_OR_MANY in item.user_properties:
                self.write(id=item.nodeid, outcome="inapplicable", reason="")


def headline(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the first words of a failing test's message."""
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash is not None else str(report.longrepr)
    return " ".join(message.split())[:300]


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"xfail: {report.wasxfail}"
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[-1].removeprefix("Skipped: ")
    return ""
