"""Build the command line of mpiexec, on this machine and across hosts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mpicoll.benchmarks import launch
from mpicoll.benchmarks.launch import Across, LaunchError

SAYS = {"mpich": "HYDRA build details:", "openmpi": "mpiexec (Open MPI) 5.0.8", "intel": "Intel(R) MPI Library"}


@pytest.fixture
def environment_of(tmp_path):
    """Yield a function that makes an environment whose mpiexec prints a version text."""

    def make(says: str) -> Path:
        for name in ("python", "program"):
            (tmp_path / name).touch(mode=0o755)
        (tmp_path / "mpiexec").write_text(f"#!/bin/sh\necho '{says}'\n")
        (tmp_path / "mpiexec").chmod(0o755)
        launch.flavour.cache_clear()
        return tmp_path / "python"

    yield make
    launch.flavour.cache_clear()


def across(placement: str) -> Across:
    return Across(("host0", "host1"), 3, placement, Path("/agent"), "switch0", "10.0.0.0/8")


@pytest.mark.parametrize("kind", SAYS)
def test_the_launcher_is_known_by_what_it_says(environment_of, kind):
    assert launch.flavour(environment_of(SAYS[kind])) == kind


def test_an_unknown_launcher_is_refused(environment_of):
    with pytest.raises(LaunchError, match=r"no MPI known here.*slurm 23"):
        launch.flavour(environment_of("slurm 23"))


def test_the_environment_is_that_of_the_python_given(environment_of):
    python = environment_of(SAYS["openmpi"])
    line = launch.command(2, ["program", "-x"], python)
    beside = str(python.parent)
    assert line == [f"{beside}/mpiexec", "--oversubscribe", "--bind-to", "none", "-n", "2", f"{beside}/program", "-x"]
    assert launch.environment({"X": "y"}, python)["PATH"].split(os.pathsep)[0] == beside


def test_a_link_to_python_is_not_followed(environment_of, tmp_path, monkeypatch):
    """An environment's Python is a link out of it."""
    python = environment_of(SAYS["mpich"])
    python.unlink()
    python.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path.parent)
    assert launch.directory(Path(tmp_path.name, "python")) == tmp_path


def follows(line: list[str], *words: str) -> bool:
    return any(tuple(line[i : i + len(words)]) == words for i in range(len(line)))


@pytest.mark.parametrize("kind", ["mpich", "intel"])
@pytest.mark.parametrize(("placement", "together"), [("block", "3"), ("cyclic", "1")])
def test_hydra_across_hosts(environment_of, kind, placement, together):
    line = launch.command(6, ["program"], environment_of(SAYS[kind]), across(placement))
    assert follows(line, "-hosts", "host0,host1") and follows(line, "-ppn", together) and follows(line, "-n", "6")
    assert follows(line, "-launcher", "rsh", "-launcher-exec", "/agent") and follows(line, "-iface", "switch0")


@pytest.mark.parametrize(("placement", "by"), [("block", "slot"), ("cyclic", "node")])
def test_open_mpi_across_hosts(environment_of, placement, by):
    line = launch.command(6, ["program"], environment_of(SAYS["openmpi"]), across(placement))
    assert follows(line, "--host", "host0:3,host1:3") and follows(line, "--map-by", by, "--rank-by", by)
    assert follows(line, "plm_ssh_agent", "/agent") and follows(line, "btl_tcp_if_include", "10.0.0.0/8")


def test_the_network_between_hosts_is_not_the_users(environment_of, monkeypatch):
    """Override the user's UCX_TLS across hosts, which cannot share memory."""
    monkeypatch.setenv("UCX_TLS", "posix")
    python = environment_of(SAYS["mpich"])
    assert launch.environment(python=python)["UCX_TLS"] == "posix"
    assert launch.environment(python=python, across=True)["UCX_TLS"] == "tcp,self"
    assert launch.environment({"UCX_TLS": "tcp"}, python, across=True)["UCX_TLS"] == "tcp"


@pytest.mark.parametrize(("name", "says"), [
    ("no-such-program", "no-such-program: neither in .* nor on PATH$"),
    ("mpiexec", "install one MPI"),
    ("./no/such", "./no/such: no such file"),
    (__file__, "not executable"),
])
def test_programs_that_are_not_there(tmp_path, monkeypatch, name, says):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match=says):
        launch.program(name, tmp_path / "python")
