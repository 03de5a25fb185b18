"""The core on 16 hosts of four ranks each: collectives as `auto` chooses between hosts, and by hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import launcher
import pytest

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.hosts
@pytest.mark.once
@pytest.mark.timeout(900)
def test_sixty_four_ranks_on_sixteen_hosts():
    command = [sys.executable, "-m", "mpicoll.benchmarks.hosts", "--hosts", "16", "--ranks-per-host", "4"]
    core = [launcher.executable("pytest"), "-q", "--timeout", "600", str(TESTS / "mpi" / "test_many_ranks.py")]
    done = subprocess.run([*command, "--rate", "200Mbit", "--timeout", "800", *core], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 40 and "skipped" not in done.stdout
