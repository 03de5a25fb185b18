"""The command line under mpiexec: info hears of every rank, and only rank 0 speaks."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner
from mpi4py import MPI

from mpicoll import cli
from mpicoll.doctor import info

ON_RANK_0 = {"list": ["list"], "show": ["show", "bcast", "chain"], "error": ["show", "bcast", "chian"]}


def run(*args):
    return CliRunner().invoke(cli.main, args, prog_name="mpicoll")


def test_the_launchers_variables_tell_the_rank():
    if MPI.COMM_WORLD.size > 1:
        assert any(name in os.environ for name in cli.RANK_VARIABLES)
    assert cli.rank() == MPI.COMM_WORLD.rank


@pytest.mark.parametrize("args", ON_RANK_0.values(), ids=ON_RANK_0)
def test_only_rank_0_speaks(args):
    result = run(*args)
    assert bool(result.output) == (MPI.COMM_WORLD.rank == 0)


def test_info_hears_of_every_rank(comm):
    result = run("info", "--json")
    assert result.exit_code == 0, result.output
    assert bool(result.output) == (MPI.COMM_WORLD.rank == 0)
    if result.output:
        report = json.loads(result.stdout)
        assert [rank["rank"] for rank in report["ranks"]] == list(range(MPI.COMM_WORLD.size))
        assert report["ranks"][0]["host"] == MPI.Get_processor_name()
        assert report["ranks"][0]["cpus"] == info.affinity()
        assert report["mpi"]["thread_level"] in info.THREAD_LEVELS
        assert os.path.exists(report["mpi"]["path"])
        assert report["ranks"][0]["compiled_engine"] is None, report["ranks"][0]["compiled_engine"]
        assert report["numba"]["cache_directory"]
        assert any(name.startswith("compiled.advance(") for kind in report["kernels"].values() for name in kind)


def test_info_says_it_to_people(comm):
    output = run("info").output
    if MPI.COMM_WORLD.rank == 0:
        assert MPI.get_vendor()[0] in output
        assert f"ranks    {MPI.COMM_WORLD.size} on " in output
        assert "passes its self-test" in output and "fast path: open" in output
    else:
        assert output == ""
