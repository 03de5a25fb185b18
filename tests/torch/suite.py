"""torch's own suite of process-group operations, every test on all ranks: on Gloo, on mpicoll, or both held together.

    .venv-torch/bin/python tests/torch/suite.py --ranks 2,3,4                  # both, and how they differ
    .venv-torch/bin/python tests/torch/suite.py --backend mpicoll -k barrier
    .venv-torch/bin/python tests/torch/suite.py --keep                         # Gloo alone, for later runs

The tests are `torch.testing._internal.distributed.distributed_test`, in the wheel. They run in the ranks that mpiexec
started, one after the other, with a process group of their own each. On mpicoll "gloo" means mpicoll, so that no test
is left out which Gloo runs. What mpicoll does not pass and Gloo does is a failure, a skip too. What Gloo passes depends
on torch's version and the ranks alone: gloo_passes.json has it, and Gloo runs only where that is of another version or
has not so many ranks. The last line is `N passed, M failed, K skipped`.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from collections import Counter
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

BACKENDS = ("gloo", "mpicoll")
KEPT = Path(__file__).with_name("gloo_passes.json")  # {"torch": version, "passed": {ranks: names}}
LIMIT = 90  # seconds for a test; the run ends with it then, and begins again behind it
SLOW = 10.0  # seconds; tests that take longer are named
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
ENDED = FAILED, "the run ended with it"
ONLY_MPI = "all_to_all"  # which tests ask for by the name of torch's own MPI backend
# It holds what torch's C++ calls the group against the name that was asked for.
BY_ITS_OWN_NAME = ("test_ddp_logging_data_cpu",)
# They make a group of ranks 1 and 2, and do not ask for so many ranks.
OF_THREE_RANKS = tuple(f"test_all_to_all{form}_group" for form in ("", "_single_equal_split", "_single_unequal_split"))
Outcomes = dict[str, tuple[str, str]]


# -- under mpiexec


class Rank:
    """One rank's side of a run."""

    def __init__(self, backend: str, name: str, results: Path, pattern: str) -> None:
        from mpi4py import MPI

        self.backend, self.name, self.pattern, self.results = backend, name, pattern, results
        self.world = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.world.rank, self.world.size
        self.directory = Path(self.world.bcast(tempfile.mkdtemp(prefix="suite-") if self.rank == 0 else None))
        for name in ("barrier", "test_dir", "init_dir"):
            (self.directory / name).mkdir(exist_ok=True)
        os.environ |= {
            "BACKEND": self.name, "WORLD_SIZE": str(self.size), "MASTER_ADDR": "127.0.0.1",
            "TEMP_DIR": str(self.directory), "INIT_METHOD": f"file://{self.directory}/init_dir/shared",
        }  # fmt: skip

    def run(self) -> None:
        """Run every test that was not run yet; rank 0 writes what came of each as it goes."""
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        if self.backend == "mpicoll":
            import mpicoll.torch

            mpicoll.torch.alias()
        import torch.testing._internal.distributed.distributed_test as suite
        from torch.testing._internal.common_utils import TestCase

        if self.backend == "mpicoll":  # what its C++ writes into profiles by these names
            suite.PROFILING_SUPPORTED_BACKENDS = suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS = []
        self.suite, self.dist = suite, dist

        class Tests(suite.DistributedTest._DistTestBase, TestCase):
            rank, world_size, file_name = self.rank, self.size, ""
            init_method = property(lambda test: f"file://{test.file_name}")

        known = self.world.bcast(read(self.results) if self.rank == 0 else None)
        for name in unittest.TestLoader().getTestCaseNames(Tests):
            if self.pattern in name and name not in known:
                self.note(name, "begun", "")
                # Not by a thread of Python's, which could not run while C++ hangs and keeps the interpreter's lock.
                faulthandler.dump_traceback_later(LIMIT, exit=True)
                started = time.monotonic()
                outcome = self.outcome(name, Tests(name))
                self.meet()
                outcomes = self.world.allgather(outcome)
                if self.rank == 0 and (seconds := time.monotonic() - started) > SLOW:
                    print(f"{self.backend}, {self.size} ranks: {name} took {seconds:.0f} s", flush=True)
                kinds = [outcome for outcome, _ in outcomes]
                of_all = next((kind for kind in (FAILED, PASSED) if kind in kinds), SKIPPED)
                self.note(name, of_all, "\n".join(why for outcome, why in outcomes if outcome == of_all and why))
        faulthandler.dump_traceback_later(LIMIT, exit=True)  # MPI_Finalize has to end too
        self.meet()
        if self.rank == 0:
            shutil.rmtree(self.directory)

    def meet(self) -> None:
        """Wait for all ranks, asleep: one that spins keeps the threads of others off its core."""
        request = self.world.Ibarrier()
        while not request.Test():
            time.sleep(1e-3)

    def note(self, *entry: str) -> None:
        if self.rank == 0:
            with self.results.open("a") as file:
                file.write(json.dumps(entry) + "\n")

    def outcome(self, name: str, test: Any) -> tuple[str, str]:
        """Return a test's outcome on this rank, and the reason."""
        test.file_name = str(self.directory / name)
        self.meet()
        if self.rank == 0:
            for file in (self.directory / "barrier").iterdir():
                file.unlink()
        self.suite.Barrier.barrier_id = 0
        self.meet()
        try:
            result = self.ran(name, test)
        finally:
            self.meet()
            if self.dist.is_initialized():
                self.dist.destroy_process_group()
        return result

    def ran(self, name: str, test: Any) -> tuple[str, str]:
        function = getattr(test, name)
        if getattr(function, "__unittest_skip__", False):
            return SKIPPED, function.__unittest_skip_why__
        if name in OF_THREE_RANKS and self.size < 3:
            return SKIPPED, "Makes a group that has rank 2."
        try:
            self.dist.init_process_group(
                backend="mpicoll" if self.backend == "mpicoll" and name in BY_ITS_OWN_NAME else self.name,
                init_method=test.init_method, world_size=self.size, rank=self.rank,
                timeout=timedelta(seconds=self.suite.CUSTOM_PG_TIMEOUT.get(name, 30)),
            )  # fmt: skip
            test.setUp()
            try:
                function()
            finally:
                test.tearDown()
        except unittest.SkipTest as skip:
            return SKIPPED, str(skip)
        except SystemExit as left:  # how torch's decorators skip in a process of their own
            reasons = {skip.exit_code: skip.message for skip in self.suite.TEST_SKIPS.values()}
            return (SKIPPED, reasons[left.code]) if left.code in reasons else (FAILED, f"exit status {left.code}")
        except BaseException:
            return FAILED, f"rank {self.rank}: {traceback.format_exc()}"
        return PASSED, ""


def read(results: Path) -> Outcomes:
    """Return outcomes by test; a test that began and did not end has failed."""
    outcomes: Outcomes = {}
    for line in results.read_text().splitlines() if results.exists() else ():
        name, outcome, why = json.loads(line)
        outcomes[name] = ENDED if outcome == "begun" else (outcome, why)
    return outcomes


# -- what launches it


def launched(backend: str, ranks: int, pattern: str, directory: Path, name: str = "gloo") -> Outcomes:
    """Run all tests on so many ranks, again behind one that ended a run; name is what they call the backend."""
    results, launcher = directory / f"{backend}-{name}-{ranks}", Path(__file__).parent.parent / "launcher.py"
    command = [sys.executable, launcher, "-n", str(ranks), sys.executable, "-W", "ignore", __file__]
    command += ["--backend", backend, "--name", name, "-k", pattern, "--results", results]
    started, about, known = time.monotonic(), f"{backend}, {ranks} ranks", 0
    while status := subprocess.run(command).returncode:
        outcomes = read(results)
        last = [*outcomes][-1] if outcomes else "none"
        print(f"{about}: exit status {status}, last test: {last}", flush=True)
        if outcomes.get(last) != ENDED or len(outcomes) == known:  # not by a test
            outcomes["the end of the run"] = FAILED, f"exit status {status}"
            break
        known = len(outcomes)
    else:
        outcomes = read(results)
    print(f"{about}: {len(outcomes)} tests in {time.monotonic() - started:.0f} s", flush=True)
    return outcomes


def torch_version() -> str:
    """Return torch's version without its build, such as +cpu."""
    return metadata.version("torch").partition("+")[0]


def kept(ranks: int, pattern: str, path: Path = KEPT) -> Outcomes | None:
    """Return the tests that Gloo passes on so many ranks, None if this version of torch was not run on them."""
    known = json.loads(path.read_text())
    names = known["passed"].get(str(ranks)) if known["torch"] == torch_version() else None
    return None if names is None else {name: (PASSED, "") for name in names if pattern in name}


def keep(by_ranks: dict[int, Outcomes], path: Path = KEPT) -> None:
    """Write which tests Gloo passes; exit if it failed any, as it does where others load the machine."""
    every = [(name, outcome) for outcomes in by_ranks.values() for name, (outcome, _) in outcomes.items()]
    if failed := {name for name, outcome in every if outcome == FAILED}:
        sys.exit(f"{path.name} is as it was, since Gloo failed {', '.join(sorted(failed))}; run it on an idle machine")
    passed = {str(ranks): sorted(name for name, (outcome, _) in outcomes.items() if outcome == PASSED)
              for ranks, outcomes in by_ranks.items()}  # fmt: skip
    path.write_text(json.dumps({"torch": torch_version(), "passed": passed}, indent=1) + "\n")


def theirs_of(ranks: int, pattern: str, directory: Path) -> Outcomes:
    """Return Gloo's outcomes: those that are kept, else of a run."""
    if (known := kept(ranks, pattern)) is not None:
        print(f"gloo, {ranks} ranks: {len(known)} tests pass on torch {torch_version()}, by {KEPT.name}", flush=True)
        return known
    return launched("gloo", ranks, pattern, directory)


def compared(ours: Outcomes, theirs: Outcomes) -> Outcomes:
    """Return our outcomes, with tests that Gloo passes and mpicoll skips as failed."""
    for name, (outcome, _) in theirs.items():
        mine, reason = ours.get(name, (SKIPPED, "not run"))
        if outcome == PASSED and mine == SKIPPED:
            ours[name] = FAILED, f"Gloo passes, and here it was skipped: {reason}"
    return ours


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=BACKENDS, help="one alone, without comparing")
    parser.add_argument("--keep", action="store_true", help=f"run Gloo alone, and write what it passes to {KEPT.name}")
    parser.add_argument("--ranks", default="2,3,4")
    parser.add_argument("-k", dest="pattern", default="", help="tests whose name has this in it")
    parser.add_argument("--name", default="gloo", help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.results:
        Rank(options.backend, options.name, options.results, options.pattern).run()
        return 0
    total = Counter({PASSED: 0, FAILED: 0, SKIPPED: 0})
    with tempfile.TemporaryDirectory(prefix="suite-") as directory:
        counts = [int(ranks) for ranks in options.ranks.split(",")]
        if options.keep:
            keep({ranks: launched("gloo", ranks, "", Path(directory)) for ranks in counts})
            return 0
        for ranks in counts:
            by_backend = {} if options.backend else {"gloo": theirs_of(ranks, options.pattern, Path(directory))}
            backend = options.backend or "mpicoll"
            by_backend[backend] = launched(backend, ranks, options.pattern, Path(directory))
            if "mpicoll" in by_backend and (options.pattern or ONLY_MPI) in ONLY_MPI:
                alone = launched("mpicoll", ranks, ONLY_MPI, Path(directory), "mpi")
                by_backend["mpicoll"] |= {name: outcome for name, outcome in alone.items() if outcome[0] != SKIPPED}
            outcomes = compared(by_backend.get("mpicoll") or by_backend["gloo"], by_backend.get("gloo", {}))
            total += print_totals(ranks, outcomes)
    print(f"{total[PASSED]} passed, {total[FAILED]} failed, {total[SKIPPED]} skipped")
    return 1 if total[FAILED] or not total[PASSED] else 0


def print_totals(ranks: int, outcomes: Outcomes) -> Counter[str]:
    """Print failures, and skips by their reasons; the counts."""
    for name, (outcome, why) in outcomes.items():
        if outcome == FAILED:
            print(f"\nFAILED, torch's suite, {ranks} ranks: {name}\n{why}")
    reasons = Counter(why.splitlines()[0] if why else "" for outcome, why in outcomes.values() if outcome == SKIPPED)
    print(f"\n{ranks} ranks, skipped as on Gloo:")
    for reason, number in reasons.most_common():
        print(f"  {number:4} {reason}")
    return Counter(outcome for outcome, _ in outcomes.values())


if __name__ == "__main__":
    sys.exit(main())
