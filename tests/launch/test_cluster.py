"""The standing comparison on real hosts, and peers under mpiexec."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mpicoll.benchmarks import launch as launching
from mpicoll.benchmarks.cluster.installed import python_of
from mpicoll.benchmarks.hosts import Done
from mpicoll.benchmarks.peers import Call, Gloo, Imb, Missing, gloo_worker
from mpicoll.benchmarks.peers.imb import BENCHMARKS

COMMAND = [sys.executable, "-m", "mpicoll.benchmarks.cluster"]


def gloo() -> Gloo:
    try:
        return Gloo.find()
    except Missing as missing:
        pytest.skip(f"peers: needs torch: {missing}")


def imb() -> Imb:
    try:
        return Imb.find(python_of("intel"))
    except ValueError as missing:
        pytest.skip(f"peers: needs Intel's IMB-MPI1: {missing}")


class Here:
    """Launches on this machine, as on a layout."""

    ranks = 3

    def __call__(
        self, arguments: Sequence[str], *, python: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Done:
        line = launching.command(self.ranks, arguments, python)
        done = subprocess.run(line, env=launching.environment(env, python), stdin=subprocess.DEVNULL, timeout=50,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return Done(done.returncode, done.stdout, False)


@pytest.mark.parametrize("size", [8, 1000])  # 125 elements are no multiple of the ranks
def test_gloo_gives_right_answers_of_every_collective(tmp_path, size):
    rounds = {Call(name, size): 2 for name in (*gloo_worker.COLLECTIVES, "exscan")}
    results = gloo().measure(Here(), rounds, tmp_path)
    lacking = results.pop(Call("exscan", size))
    assert (lacking.note, lacking.samples_us) == ("Gloo has no exscan", [])
    assert {call.collective for call in results} == set(gloo_worker.COLLECTIVES)
    for call, measured in results.items():
        assert measured.valid and not measured.note and len(measured.samples_us) == 2, (call, measured)


def test_imb_times_every_collective_as_often_as_asked(tmp_path):
    rounds = {Call(name, size): n for name in BENCHMARKS for size, n in ((8192, 3), (65536, 2))}
    results = imb().measure(Here(), rounds, tmp_path)
    assert {call: len(measured.samples_us) for call, measured in results.items()} == rounds
    assert all(time > 0 for measured in results.values() for time in measured.samples_us)


def peers_here() -> dict[str, str]:
    """Return the installed peers' names in results, by their names on the command line."""
    here = {}
    for name, find in (("gloo", Gloo.find), ("imb", lambda: Imb.find(python_of("intel")))):
        try:
            here[name] = find().name
        except ValueError:
            continue
    return here


def results(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.hosts
@pytest.mark.timeout(240)
def test_a_tiny_comparison(tmp_path):
    peers = peers_here()
    asked = ["--layouts", "2x1,2x2-cyclic", "--sizes", "64K", "--collectives", "allgather", "--seconds", "0.2",
             "--algorithms", "auto,ring", "--peers", ",".join(peers) or "none", "--out", str(tmp_path / "out")]
    done = subprocess.run([*COMMAND, *asked, "--mpi", launching.flavour()], capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, hosts, ranks in (("2x1", 2, 2), ("2x2-cyclic", 2, 4)):
        run, *rows = results(tmp_path / "out" / f"{launching.flavour()}-{name}.jsonl")
        facts = run["environment"]
        assert (facts["hosts"], facts["ranks"], facts["rate"]) == (hosts, ranks, 50_000_000)
        assert facts["host_of"] == [rank % hosts for rank in range(ranks)]
        assert [row["algorithm"] for row in rows] == ["native", "auto", "ring", *peers.values()]
        assert {(row["collective"], row["size"]) for row in rows} == {("allgather", 65536 // ranks)}
        limit = 65536 / 2 * 8 / 50e6 * 1e6  # the half that the other host has
        for row in rows:
            assert row["limit_us"] == pytest.approx(limit) and row["median_us"] > 0 and row["rounds"] >= 6
            assert row["of_limit"] == pytest.approx(limit / row["median_us"], abs=1e-3)
            assert row["paired"] is (row["algorithm"] not in peers.values()) and row["valid"] is not False
            assert (row["ratio"] is None) is (row["algorithm"] == "native")
    assert f"{launching.flavour()}-2x2-cyclic" in done.stdout and "verdict" in done.stdout
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.hosts
@pytest.mark.timeout(120)
def test_interrupted_it_keeps_what_it_has_and_leaves_nothing(tmp_path):
    out = tmp_path / "out"
    asked = ["--layouts", "2x1", "--sizes", "64K", "--collectives", "bcast,reduce", "--seconds", "0.2",
             "--cycles", "50", "--peers", "none", "--out", str(out), "--mpi", launching.flavour()]
    process = subprocess.Popen([*COMMAND, *asked], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    file = out / f"{launching.flavour()}-2x1.jsonl"
    until = time.monotonic() + 60
    while not (file.exists() and len(results(file)) > 1) and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, complained = process.communicate(timeout=60)
    assert process.returncode == 130, output + complained
    assert "interrupted; what was measured is in" in complained
    assert {"native", "auto"} <= {row["algorithm"] for row in results(file)[1:]}
    assert not list(out.glob(".*")) and still_named(str(out)) == []


def still_named(word: str) -> list[str]:
    """Return the commands of processes that have a word in their command."""
    commands = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            command = (directory / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if word in command and int(directory.name) != os.getpid():
            commands.append(command)
    return commands


@pytest.mark.quick
def test_bad_input_is_one_line(tmp_path):
    done = subprocess.run([*COMMAND, "--layouts", "8"], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1 and "HOSTSxRANKS" in done.stderr
