"""`mpicoll --load` under mpiexec: loaded on every rank; one rank's trouble ends all, in one line."""

from __future__ import annotations

import pytest
from mine import MINE

from mpicoll.cli import main
from mpicoll.cli.group import uses_mpi

WRONG = """\
from mpi4py import MPI

if MPI.COMM_WORLD.rank in {wrong}:
    raise OSError("not here")
"""
BENCH = ("bench", "bcast", "--sizes", "1K", "--algorithms", "mine", "--iterations", "2")


@pytest.fixture
def run(mpiexec, tmp_path):
    """Return a function that runs mpicoll on 3 ranks, with a file that does not load on the ranks named."""

    def start(*arguments: str, wrong: tuple[int, ...] = ()):
        (tmp_path / "mine.py").write_text(WRONG.format(wrong=wrong) + MINE, encoding="utf-8")
        return mpiexec(3, "mpicoll", "--load", tmp_path / "mine.py", *arguments)

    return start


@pytest.mark.quick
def test_bench_times_it(run):
    done = run(*BENCH)
    assert done.status == 0, done.output
    assert "mine" in done.output and "yes" in done.output


OF_MPI = {name: [name] for name, command in main.commands.items() if uses_mpi(command)} | {"bench": BENCH}


@pytest.mark.parametrize(("wrong", "message"), [((1,), "on rank 1: "), ((0, 1, 2), "")])
@pytest.mark.parametrize("command", OF_MPI)
def test_trouble_on_a_rank_ends_all_in_one_line(run, command, wrong, message):
    done = run(*OF_MPI[command], wrong=wrong)
    assert done.status not in (0, None), done.output
    lines = [line for line in done.output.splitlines() if "mine.py" in line]
    assert len(lines) == 1 and lines[0].startswith(f"mpicoll: {message}"), done.output
    assert lines[0].endswith("mine.py, line 4: OSError: not here")
    assert "Traceback" not in done.output
