"""The sbatch file: bash reads it, sbatch would, and it starts what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mpicoll import jobs

TEXT = jobs.template().read_text()
OPTIONS = dict(re.fullmatch(r"--([a-z-]+)(?:=(.*))?", words).groups()
               for words in re.findall(r"^#SBATCH (\S.*)$", TEXT, re.MULTILINE))


def run(command: list[str], **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, **options)


def test_bash_reads_it():
    done = run(["bash", "-n", str(jobs.template())])
    assert (done.returncode, done.stderr) == (0, "")


def test_shellcheck_has_nothing_to_say():
    if shutil.which("shellcheck"):
        done = run(["shellcheck", str(jobs.template())])
        assert done.stdout == ""


def test_options():
    assert OPTIONS["exclusive"] is None and "exclusive" in OPTIONS
    assert OPTIONS["hint"] == "nomultithread"
    assert OPTIONS["output"] == "%x-%j.out"
    assert int(OPTIONS["nodes"]) * int(OPTIONS["ntasks-per-node"]) >= 2
    assert re.fullmatch(r"\d\d:\d\d:\d\d", OPTIONS["time"])


def test_options_come_where_sbatch_looks_for_them():
    """sbatch stops at the first line that is neither empty nor a comment."""
    lines = TEXT.splitlines()
    assert lines[0] == "#!/bin/bash"
    command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert max(i for i, line in enumerate(lines) if line.startswith("#SBATCH")) < command
    assert lines[command] == "set -euo pipefail"


def test_every_variable_is_explained():
    head = TEXT.partition("set -euo")[0]
    named = set(re.findall(r"\$\{([A-Z_]+):", TEXT)) - {"SLURM_JOB_ID", "SLURM_JOB_NAME"}
    assert named == set(re.findall(r"^#   ([A-Z_]+)=", head, re.MULTILINE))


@pytest.fixture
def job(tmp_path: Path):
    """Runs the job with an srun and a python that write down how they were called."""
    for name, status in (("srun", "${STATUS:-0}"), ("python", "0")):
        program = tmp_path / name
        program.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" >>"{tmp_path}/{name}.words"\nexit {status}\n')
        program.chmod(0o755)

    def start(**variables: str):
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        done = run(["bash", str(jobs.template())], cwd=tmp_path,
                   env={"PATH": path, "SLURM_JOB_ID": "7", **variables})
        words = tmp_path / "srun.words"
        return done, words.read_text().splitlines() if words.exists() else []

    return start


def test_what_it_starts(job, tmp_path):
    done, words = job(MPI_PLUGIN="pmi2", COLLECTIVE="bcast", SIZES="8,64", BENCH_OPTIONS="--root 1 --seed 2")
    assert (done.returncode, done.stderr) == (0, "")
    assert words[:7] == ["--kill-on-bad-exit=1", "--cpu-bind=cores", "--mpi=pmi2", "python", "-m", "mpicoll", "bench"]
    given = dict(zip(words[8::2], words[9::2]))
    assert words[7] == "bcast"
    assert given == {"--sizes": "8,64", "--algorithms": "all", "--engines": "auto", "--seconds": "600",
                     "--json": "results/mpicoll-bench-7-bcast.jsonl", "--root": "1", "--seed": "2"}
    environment = (tmp_path / "results" / "mpicoll-bench-7-bcast.env").read_text()
    assert "SLURM_JOB_ID=7" in environment and "OMP_NUM_THREADS=1" in environment
    assert "PATH=" not in environment


def test_without_a_plugin_srun_takes_its_own(job):
    done, words = job()
    assert done.returncode == 0, done.stderr
    assert not [word for word in words if word.startswith("--mpi=")]


def test_a_benchmark_that_fails_fails_the_job(job):
    assert job(STATUS="3")[0].returncode == 3


def test_its_options_are_those_of_the_command(job):
    from mpicoll.benchmarks.cli import bench

    known = {name for parameter in bench.params for name in parameter.opts}
    assert {word for word in job()[1][7:] if word.startswith("--")} <= known


def test_unknown_template():
    with pytest.raises(FileNotFoundError, match="there is bench"):
        jobs.template("nothing")
