"""What the MPI harness promises about tests that go wrong, held by running such tests."""

from __future__ import annotations

import time
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
    """Runs a test file on some ranks and returns how that ended."""

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


def test_failure_on_one_rank_is_told_by_rank_0_and_fails_the_run(run):
    done = run("""
        def test_it(comm):
            print("printed by", rank)
            assert rank != 1, "words of the failing rank"
    """)
    assert done.status not in (0, None), done.output
    assert "failed on rank 1 of 2" in done.output
    assert "words of the failing rank" in done.output
    assert "printed by 1" in done.output
    assert "1 failed" in done.output


def test_failure_on_two_ranks_is_told_in_the_words_of_both(run):
    done = run("def test_it(comm): assert False, f'words of rank {rank}'")
    assert done.status not in (0, None), done.output
    assert "words of rank 0" in done.output
    assert "words of rank 1" in done.output


def test_ranks_that_disagree_fail(run):
    done = run("""
        def test_it(comm):
            if rank == 1:
                pytest.skip("only here")
    """)
    assert done.status not in (0, None), done.output
    assert "passed on rank 0 of 2, skipped on rank 1 of 2" in done.output


@pytest.mark.parametrize("where", ["test", "fixture"])
def test_failure_while_others_wait_in_a_collective_aborts_with_the_words(run, where):
    started = time.monotonic()
    done = run(f"""
        @pytest.fixture
        def broken(comm):
            if {where == "fixture"} and rank == 1:
                raise RuntimeError("words of the failing rank")
        def test_it(comm, broken):
            if rank == 1:
                raise RuntimeError("words of the failing rank")
            comm.Barrier()
    """, "--mpi-grace=1")
    assert done.status not in (0, None), done.output
    assert "rank 1 of 2: test_it.py::test_it failed" in done.output
    assert "words of the failing rank" in done.output
    assert time.monotonic() - started < 30


def test_failure_before_a_collective_teardown_aborts_with_the_words(run):
    done = run("""
        @pytest.fixture
        def meeting(comm):
            yield
            comm.Barrier()
        def test_it(comm, meeting):
            if rank == 1:
                raise RuntimeError("words of the failing rank")
            comm.Recv(bytearray(1), source=1)
    """, "--mpi-grace=1")
    assert done.status not in (0, None), done.output
    assert "words of the failing rank" in done.output


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


def test_hang_of_one_rank_tells_who_waits(run):
    done = run("def test_it(comm): time.sleep(60 * rank)", "--timeout=2")
    assert done.status not in (0, None), done.output
    assert "rank 0 of 2: test_it.py::test_it took more than 2 s; on this rank it has finished" in done.output
    assert "rank 1 of 2: test_it.py::test_it took more than 2 s; on this rank it was here" in done.output


def test_hang_that_holds_the_interpreter_lock_ends(run):
    done = run("""
        import ctypes
        def test_it(comm):
            ctypes.PyDLL(None).sleep(100)
    """, "--timeout=1")
    assert done.status not in (0, None), done.output
    assert "Timeout" in done.output


def test_no_message_reaches_the_next_test(run):
    done = run("""
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
    """)
    assert done.status not in (0, None), done.output
    assert "1 failed, 1 passed" in done.output


def test_message_left_unreceived_fails_the_test(run):
    done = run("""
        def test_it(comm):
            if rank == 0:
                comm.Send(np.zeros(3), dest=1, tag=7)
    """)
    assert done.status not in (0, None), done.output
    assert "a message of 24 bytes from rank 0, tag 7" in done.output


def test_ranks_that_collect_different_tests_end_the_run(run):
    done = run("""
        @pytest.mark.parametrize("i", range(2 + rank))
        def test_it(comm, i): pass
    """)
    assert done.status not in (0, None), done.output
    assert "on rank 1 and not on rank 0: test_it.py::test_it[2]" in done.output
    assert "passed" not in done.output


def test_collection_error_on_one_rank_is_told(run):
    done = run("""
        assert rank == 0, "words of the failing rank"
        def test_it(comm): pass
    """)
    assert done.status not in (0, None), done.output
    assert "words of the failing rank" in done.output


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
