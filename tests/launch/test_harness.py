"""Run failing tests under the MPI harness, and check how it reports them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """\
from support.harness import comm, pytest_addoption
from support.harness import install as pytest_configure
"""
HEAD = "import time\nimport numpy as np\nimport pytest\nfrom mpi4py import MPI\nrank = MPI.COMM_WORLD.rank\n"


@pytest.fixture
def run(mpiexec, tmp_path):
    """Return a function that runs a test file on some ranks and returns its outcome."""

    def run(code: str, *options: str, ranks: int = 2):
        (tmp_path / "conftest.py").write_text(CONFTEST)
        (tmp_path / "test_it.py").write_text(HEAD + dedent(code))
        settings = ["-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "--color=no"]
        return mpiexec(ranks, "pytest", *settings, "-p", "no:cacheprovider", *options, tmp_path)

    return run


def test_header_names_the_mpi_and_only_rank_0_speaks(run):
    done = run("def test_it(comm): assert comm.size == 3", ranks=3)
    assert done.status == 0, done.output
    assert done.output.count("\nmpi: ") == 1
    assert "3 ranks, thread level " in done.output
    assert done.output.count("1 passed") == 1


FAILURE = '''
    @pytest.fixture
    def broken(comm):
        fail_in("fixture")
    @pytest.fixture
    def meeting(comm):
        yield
        comm.Barrier()
    def fail_in(here, where="{where}"):
        if rank == 1 and here == where:
            raise RuntimeError("words of the failing rank")
    def test_it(comm, {fixture}):
        fail_in("test")
        {waits}
'''
ABORTED = "rank 1 of 2: test_it.py::test_it failed", "words of the failing rank"
WRONG = {       # on two ranks: (code, options, what is printed)
    "one rank fails": ("""
        def test_it(comm):
            print("printed by", rank)
            assert rank != 1, "words of the failing rank"
    """, (), ("failed on rank 1 of 2", "words of the failing rank", "printed by 1", "1 failed")),
    "both ranks fail": ("""
        def test_it(comm): assert False, f'words of rank {rank}'
    """, (), ("words of rank 0", "words of rank 1")),
    "they disagree": ("""
        def test_it(comm):
            if rank == 1:
                pytest.skip("only here")
    """, (), ("passed on rank 0 of 2, skipped on rank 1 of 2",)),
    "one fails while others wait in a collective": (
        FAILURE.format(where="test", fixture="broken", waits="comm.Barrier()"), ["--mpi-grace=1"], ABORTED),
    "one fails in a fixture": (
        FAILURE.format(where="fixture", fixture="broken", waits="comm.Barrier()"), ["--mpi-grace=1"], ABORTED),
    "one fails before a teardown with a collective": (
        FAILURE.format(where="test", fixture="meeting", waits="comm.Recv(bytearray(1), source=1)"),
        ["--mpi-grace=1"], ABORTED),
    "one hangs": (
        "def test_it(comm): time.sleep(60 * rank)", ["--timeout=2"],
        ("rank 0 of 2: test_it.py::test_it took more than 2 s; on this rank it has finished",
         "rank 1 of 2: test_it.py::test_it took more than 2 s; on this rank it was here")),
    "a hang holds the interpreter's lock": ("""
        import ctypes
        def test_it(comm):
            ctypes.PyDLL(None).sleep(100)
    """, ["--timeout=1"], ("Timeout",)),
    "one crashes": ("""
        import ctypes
        def test_it(comm):
            if rank == 1:
                ctypes.memset(8, 0, 4)
            comm.Barrier()
    """, (), ("Segmentation fault", "in test_it", "rank 1, the stack in C:", "libffi.so")),
    "one is sent a signal": ("""
        import os, signal
        def test_it(comm):
            if rank == 1:
                os.kill(os.getpid(), signal.SIGSEGV)
    """, (), ("Segmentation fault", "rank 1, the stack in C:")),
    "a message would reach the next test": ("""
        def test_sends_and_fails(comm):
            if rank == 1:
                comm.Send(np.zeros(4), dest=0)
                assert False
        def test_next(comm):
            comm.Barrier()
            assert not comm.Iprobe()
            other = np.full(4, -1.0)
            comm.Sendrecv(np.full(4, rank, float), dest=1 - rank, recvbuf=other, source=1 - rank)
            assert (other == 1 - rank).all()
    """, (), ("1 failed, 1 passed",)),
    "a message is not received": ("""
        def test_it(comm):
            if rank == 0:
                comm.Send(np.zeros(3), dest=1, tag=7)
    """, (), ("a message of 24 bytes from rank 0, tag 7",)),
    "they collect different tests": ("""
        @pytest.mark.parametrize("i", range(2 + rank))
        def test_it(comm, i): pass
    """, (), ("on rank 1 and not on rank 0: test_it.py::test_it[2]", "nothing was run")),
    "one cannot collect": ("""
        assert rank == 0, "words of the failing rank"
        def test_it(comm): pass
    """, (), ("words of the failing rank",)),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_are_reported_and_fail_the_run(run, what):
    code, options, words = WRONG[what]
    done = run(code, *options)
    assert done.status not in (0, None), done.output
    assert all(word in done.output for word in words), done.output


@pytest.mark.parametrize("ranks", [1, 2])
def test_hang_ends_with_the_stack_of_every_rank(run, ranks):
    done = run("""
        def wait_for_ever(comm):
            comm.Recv(bytearray(1), source=MPI.ANY_SOURCE)
        def test_it(comm):
            print("last words of", rank)
            wait_for_ever(comm)
    """, "--timeout=2", ranks=ranks)
    assert done.status not in (0, None), done.output
    assert done.output.count("took more than 2 s") == ranks
    assert done.output.count("in wait_for_ever") == ranks
    assert all(f"last words of {rank}" in done.output for rank in range(ranks))


def test_sample_is_the_same_on_every_rank_and_follows_the_seed(run):
    code = """
        @pytest.mark.parametrize("i", range(100))
        def test_it(comm, i):
            assert comm.allreduce(i, MPI.SUM) == i * comm.size
    """
    seen = {}
    for seed in ("1", "1", "2"):
        done = run(code, "--sample=0.2", f"--sample-seed={seed}", "-v")
        assert done.status == 0, done.output
        names = [line.split()[0] for line in done.output.splitlines() if "PASSED" in line]
        assert 5 < len(names) < 40
        assert seen.setdefault(seed, names) == names
    assert seen["1"] != seen["2"]


def test_rank_bounds_deselect(run):
    done = run("""
        @pytest.mark.mpi(min_size=3)
        def test_more(comm): assert False
        @pytest.mark.mpi(max_size=1)
        def test_fewer(comm): assert False
        @pytest.mark.mpi(min_size=2, max_size=2)
        def test_right(comm): pass
    """)
    assert done.status == 0, done.output
    assert "1 passed, 2 deselected" in done.output


def test_expected_failures_may_be_on_every_rank(run):
    done = run("""
        @pytest.mark.xfail(reason="known")
        def test_it(comm): assert False
    """)
    assert done.status == 0, done.output
    assert "1 xfailed" in done.output
