"""pytest under mpiexec, where a test is one thing that all ranks do together.

Four promises. Each test gets communicators of its own, so no message crosses from one test to the next.
After each test the ranks agree on the outcome: if any rank failed, it failed, and rank 0 says so in that
rank's words. If they cannot agree, because one rank failed and the others wait for it inside a collective,
the rank that failed prints its words and aborts the run. And when a test takes too long, every rank prints
what it was doing.

A conftest.py takes it in by

    from support.harness import comm, pytest_addoption
    from support.harness import install as pytest_configure
"""

from __future__ import annotations

import faulthandler
import hashlib
import math
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial

import pytest
from _pytest.runner import runtestprotocol

from support import crashes
from support.words import FAILED, WORDS, describe, describe_difference, describe_stacks, name_ranks, outcome_of

PLUGIN = "mpi-harness"
DUMP_SECONDS = 2.0          # from the first rank's stack dump to the abort: time for the others' dumps
TOO_FEW_OR_MANY = ("ranks", "does not apply to so many")
FINALIZE_SECONDS = 60.0     # MPI_Finalize after the last test


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mpi", "tests under mpiexec")
    group.addoption("--sample", type=float, default=1.0, metavar="FRACTION",
                    help="run only this fraction of the MPI tests, the same ones on every rank")
    group.addoption("--sample-each", action="store_true", help="and at least one case of each function")
    group.addoption("--sample-seed", type=int, default=0, metavar="N", help="which sample")
    group.addoption("--fuzz-seed", type=int, default=0, metavar="N", help="which programs test_fuzz.py makes up")
    group.addoption("--fuzz-programs", type=int, metavar="N", help="how many; as many as fit the number of ranks")
    group.addoption("--mpi-grace", type=float, default=15.0, metavar="SECONDS",
                    help="how long a rank whose test failed waits for the others before it aborts the run")
    group.addoption("--mpi-start", type=float, default=180.0, metavar="SECONDS",
                    help="how long ranks wait for each other to finish collecting")


@pytest.hookimpl(trylast=True)
def install(config: pytest.Config) -> None:
    """Register the harness, after the terminal reporter, which it silences everywhere but on rank 0."""
    config.option.with_mpi = True      # pytest-mpi's own switch
    keep_apart(config)
    config.pluginmanager.register(Harness(config), PLUGIN)


def keep_apart(config: pytest.Config) -> None:
    """Give this rank a root for pytest's temporary directories.

    Ranks that share a root tidy it at the same time, and one fails on a link that another has just removed.
    """
    root = tempfile.mkdtemp(prefix="pytest-of-")
    os.environ["PYTEST_DEBUG_TEMPROOT"] = root
    config.add_cleanup(partial(shutil.rmtree, root, ignore_errors=True))


@pytest.fixture
def comm(request: pytest.FixtureRequest):
    """Return a communicator of all ranks that belongs to this test alone."""
    return request.config.pluginmanager.get_plugin(PLUGIN).private_communicator()


class Harness:
    """The pytest plugin: one instance per rank."""

    def __init__(self, config: pytest.Config) -> None:
        from mpi4py import MPI  # not at the top: unit tests read this module's options

        from support.agreement import Agreement

        self.MPI = MPI
        self.config = config
        self.rank, self.size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        self.agreement = Agreement(MPI.COMM_WORLD)
        self.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="replace")    # not the captured one
        crashes.tell(f"rank {self.rank}", self.stderr)
        self.communicators: list = []       # of the running test
        self.failed_calls: list = []        # keeps alive what requests left behind still point to
        self.reports: list[pytest.TestReport] = []
        self.waiting = False
        self.any_failed = False
        if self.rank:
            nowhere = open(os.devnull, "w")  # noqa: SIM115 - it lives as long as the reporter
            config.pluginmanager.get_plugin("terminalreporter")._tw._file = nowhere
            config.option.results = None

    def private_communicator(self):
        self.communicators.append(self.MPI.COMM_WORLD.Dup())
        return self.communicators[-1]

    # -- the start of the run

    def pytest_report_header(self) -> str:
        levels = {getattr(self.MPI, f"THREAD_{name}"): name
                  for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")}
        vendor, version = self.MPI.get_vendor()
        return (f"mpi: {vendor} {'.'.join(map(str, version))}, {self.size} rank{'s' * (self.size > 1)}, "
                f"thread level {levels[self.MPI.Query_thread()]}")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        fits = [item for item in items if self._fits(item)]
        options = config.option
        chosen = sample(fits, options.sample, options.sample_seed, self.size, options.sample_each)
        for item in items:
            if not self._fits(item):
                item.user_properties.append(TOO_FEW_OR_MANY)
        keep(config, items, chosen)

    def _fits(self, item: pytest.Item) -> bool:
        """Return whether mpi(min_size=, max_size=) admits so many ranks."""
        bounds = [mark.kwargs for mark in item.iter_markers("mpi")]
        return all(b.get("min_size", 1) <= self.size <= b.get("max_size", math.inf) for b in bounds)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """End the run if the ranks are about to run different tests."""
        names = [item.nodeid for item in session.items]
        digest = hashlib.sha256("\n".join([*names, str(session.testsfailed)]).encode()).digest()
        row = [len(names), session.testsfailed, int.from_bytes(digest[:7], "big")]
        seconds = self.config.option.mpi_start
        try:
            table = self.agreement.table(row, seconds)
            if all(other == table[0] for other in table):
                return
            texts = self.agreement.texts("\n".join(names), seconds)
        except TimeoutError:
            self.abort(f"the other ranks have not collected their tests after {seconds:g} s")
        if self.rank == 0:
            difference = describe_difference(table, texts)
            self.say("the ranks collected different tests; nothing was run", difference)
        pytest.exit("the ranks collected different tests", returncode=4)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.rank:
            self.say(f"{report.nodeid} could not be collected", report.longreprtext)

    # -- a test

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self.reports = []
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        agreed = self._agree(item, reports)
        for report in agreed:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        self._release_communicators(failed=any(report.failed for report in agreed))
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo):
        report = yield
        self.reports.append(report)
        if report.failed:
            self.failed_calls.append(call)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Begin the teardown, which may make collective calls, once every rank has left the test."""
        if FAILED not in self._outcomes(item, self.reports):
            self._note_unreceived()

    def _note_unreceived(self) -> None:
        """Fail a test that left a message unreceived; all ranks have left it by now."""
        status = self.MPI.Status()
        for comm in self.communicators:
            if comm != self.MPI.COMM_NULL and any(comm.Iprobe(status=status) for _ in range(3)):
                last = self.reports[-1]
                last.outcome = "failed"
                last.longrepr = (f"the test ended with a message of {status.Get_count(self.MPI.BYTE)} bytes "
                                 f"from rank {status.source}, tag {status.tag}, that it did not receive")

    def _outcomes(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> list[int]:
        """Return every rank's outcome. A rank that failed waits only for a limited time for the others."""
        mine = outcome_of(reports)
        self.waiting = True
        try:
            seconds = self.config.option.mpi_grace if mine == FAILED else math.inf
            return [code for (code,) in self.agreement.table([mine], seconds)]
        except TimeoutError:
            self.abort(f"{item.nodeid} failed, and after {seconds:g} s other ranks are still in it: aborting",
                       describe(reports))
        finally:
            self.waiting = False

    def _agree(self, item: pytest.Item, reports: list[pytest.TestReport]) -> list[pytest.TestReport]:
        """Return the reports that all ranks log: this rank's own, changed to a failure if another rank's failed."""
        codes = self._outcomes(item, reports)
        if len(set(codes)) == 1 and codes[0] != FAILED:
            return reports
        try:
            texts = self.agreement.texts(describe(reports), self.config.option.mpi_grace)
        except TimeoutError:
            self.abort(f"{item.nodeid} failed and the ranks could not tell each other why", describe(reports))
        if FAILED in codes:
            verdict = f"failed on {name_ranks(codes, FAILED, self.size)}"
            shown = [rank for rank, code in enumerate(codes) if code == FAILED]
        else:
            verdict = "the ranks do not agree: " + ", ".join(
                f"{WORDS[code]} on {name_ranks(codes, code, self.size)}" for code in sorted(set(codes)))
            shown = list(range(self.size))
        sections = [(f"rank {rank}", texts[rank]) for rank in shown if texts and texts[rank] and rank]
        if codes[self.rank] == FAILED:
            spoken = next(report for report in reports if report.failed)
            spoken.sections += [("mpi", f"{item.nodeid} {verdict}"), *sections]
        else:
            spoken = [report for report in reports if report.when != "teardown"][-1]
            spoken.outcome = "failed"
            vars(spoken).pop("wasxfail", None)
            lines = [f"\n---- {title} ----\n{text}" for title, text in sections]
            spoken.longrepr = "\n".join([verdict, *lines])
        return reports

    def _release_communicators(self, failed: bool) -> None:
        """Free communicators if no test failed.

        After a failure they may hold messages, which would pass to the next communicator with the same identity.
        """
        self.any_failed |= failed
        for comm in [] if failed else self.communicators:
            if comm != self.MPI.COMM_NULL:
                comm.Free()
        self.communicators = []

    # -- trouble

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings) -> bool:
        """Set a timer that reports on every rank, in place of pytest-timeout's; return True.

        The timer of faulthandler needs no interpreter lock: it ends a rank that hangs in native code holding it.
        """
        timer = threading.Timer(settings.timeout, self._expire, (item, settings.timeout))
        timer.daemon = True
        faulthandler.dump_traceback_later(settings.timeout + 3 * DUMP_SECONDS, exit=True, file=self.stderr)

        def cancel() -> None:
            timer.cancel()
            faulthandler.cancel_dump_traceback_later()

        item.cancel_timeout = cancel
        timer.start()
        return True

    def _expire(self, item: pytest.Item, seconds: float) -> None:
        state = "it has finished and waits for the others" if self.waiting else "it was here"
        capture = self.config.pluginmanager.get_plugin("capturemanager")
        capturing = capture is not None and capture.is_globally_capturing()
        captured = "".join(capture.read_global_capture()) if capturing else ""
        self.say(f"{item.nodeid} took more than {seconds:g} s; on this rank {state}",
                 describe(self.reports) + captured + describe_stacks())
        time.sleep(DUMP_SECONDS)
        self.abort("aborting after the timeout")

    def pytest_internalerror(self, excrepr) -> None:
        self.abort("pytest itself failed", str(excrepr))

    def pytest_unconfigure(self) -> None:
        """End a rank that cannot leave MPI_Finalize, for instance since a test left a message behind."""
        seconds = FINALIZE_SECONDS / (6 if self.any_failed else 1)
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)

    def say(self, headline: str, text: str = "") -> None:
        message = f"\n==== rank {self.rank} of {self.size}: {headline} ====\n{text}\n"
        os.write(self.stderr.fileno(), message.encode(errors="replace"))

    def abort(self, headline: str, text: str = "") -> None:
        """Print and end all ranks, from any thread, whatever the others do."""
        self.say(headline, text)
        time.sleep(1.0)         # the launcher forwards what was printed only while it runs
        threading.Timer(3.0, os._exit, (1,)).start()
        self.MPI.COMM_WORLD.Abort(1)


def keep(config: pytest.Config, items: list[pytest.Item], chosen: list[pytest.Item]) -> None:
    """Deselect the tests that were not chosen."""
    kept = set(chosen)
    if dropped := [item for item in items if item not in kept]:
        config.hook.pytest_deselected(items=dropped)
        items[:] = chosen


def sample(items: list[pytest.Item], fraction: float, seed: int, size: int,
           of_each: bool = False) -> list[pytest.Item]:
    """Return a part of the tests that depends on their names and the seed only, and all `unsampled` ones.

    The part has at least one test; with of_each, at least one of each function.
    """
    def always(item: pytest.Item) -> bool:
        mark = item.get_closest_marker("unsampled")
        return mark is not None and size <= mark.kwargs.get("max_size", math.inf)

    def draw(item: pytest.Item) -> float:
        digest = hashlib.sha256(f"{seed} {item.nodeid}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64

    if fraction >= 1:
        return items
    least: dict[str, pytest.Item] = {}
    for item in sorted(items, key=draw, reverse=True):
        least[item.nodeid.partition("[")[0] if of_each else ""] = item
    kept = set(least.values())
    return [item for item in items if draw(item) < fraction or item in kept or always(item)]
