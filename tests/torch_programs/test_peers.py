"""Gloo as a contender of `mpicoll bench`."""

import json
import subprocess
import sys

import launcher
import pytest

LACKS = {"scan", "exscan", "scatterv", "gatherv", "allgatherv", "alltoallv", "alltoallw"}


@pytest.mark.parametrize("more", [[], ["--in-place"], ["--dtype", "float32", "--op", "max"]])
def test_gloo_is_right_in_whatever_it_has(tmp_path, more):
    names = "allreduce,reduce" if more else "all"
    words = ["bench", names, "--sizes", "24,24K", "--algorithms", "native,auto", "--peers", "gloo", "--iterations", "2"]
    command = launcher.command(3, [sys.executable, "-m", "mpicoll", *words, *more, "--json", tmp_path / "found.jsonl"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=launcher.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    gloo = [row for row in rows if row.get("algorithm") == "gloo"]
    assert len(gloo) == sum(row.get("algorithm") == "auto" for row in rows)
    for row in gloo:
        assert row["valid"] if row["collective"] not in LACKS else row["note"].startswith("Gloo has no")
        assert (row["ratio"] is not None) == bool(row["valid"])
