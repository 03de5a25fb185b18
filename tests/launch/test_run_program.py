"""`mpicoll run` under mpiexec: programs that know nothing of mpicoll, how they end, and what the summary shows."""

from __future__ import annotations

import re
from textwrap import dedent

import pytest
from mine import MINE

HEAD = """\
import os, pickle, sys
import numpy as np
from mpi4py import MPI
from mpi4py.MPI import COMM_WORLD as world
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())     # at once, so that no rank tears it apart
"""
PROGRAM = HEAD + """
x, y = np.ones(1000), np.empty(1000)
world.Allreduce(x, y)
assert (y == world.size).all()
half, copy = world.Split(world.rank % 2), world.Dup()
half.Allreduce(x, y)
copy.Bcast(y)
say(type(MPI.COMM_WORLD).__module__, type(MPI.COMM_SELF).__module__, type(half).__module__, __name__, *sys.argv[1:])
"""


@pytest.fixture
def run(mpiexec, tmp_path):
    """Return a function that runs words on some ranks, where {program} is the file with this code."""

    def start(*words: str, code: str = PROGRAM, ranks: int = 3, **variables: str):
        script = tmp_path / "program.py"
        script.write_text(HEAD + dedent(code) if code is not PROGRAM else code)
        line = [word.replace("{program}", str(script)) for word in words]
        return mpiexec(ranks, "python", "-m", "mpicoll", *line, env={"PYTHONPATH": str(tmp_path), **variables})

    return start


@pytest.mark.parametrize("words", [("{program}", "-h"), ("-m", "program", "-h"), ("-c", PROGRAM, "-h")],
                         ids=["script", "module", "code"])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.quick
def test_communicators_are_ours(run, words, ranks):
    done = run("run", *words, ranks=ranks)
    assert done.status == 0, done.output
    text = "mpicoll.comm.comm mpicoll.comm.comm mpicoll.comm.comm __main__ -h"  # a launcher may mix the ranks' lines
    assert done.output.count(text) == ranks and not done.output.replace(text, "").strip(), done.output


OWN_START = """
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
assert not MPI.Is_initialized()
MPI.Init_thread(MPI.THREAD_FUNNELED)
import os
os.write(1, f"level {MPI.Query_thread() == MPI.THREAD_FUNNELED} {type(MPI.COMM_WORLD).__module__}\\n".encode())
MPI.COMM_WORLD.Barrier()
MPI.Finalize()
"""
LEVEL = """
import mpi4py
mpi4py.rc.thread_level = "serialized"
import mpicoll.comm.comm        # imports mpi4py.MPI itself
from mpi4py import MPI
import os
os.write(1, f"level {MPI.Query_thread() == MPI.THREAD_SERIALIZED} {type(MPI.COMM_WORLD).__module__}\\n".encode())
MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.parametrize("code", [OWN_START, LEVEL], ids=["initialize", "thread_level"])
@pytest.mark.quick
def test_the_program_says_how_mpi_starts(run, code):
    done = run("run", "--using", "barrier=dissemination", "--summary", "-c", code, ranks=2)
    assert done.status == 0, done.output
    assert done.output.count("level True mpicoll.comm.comm\n") == 2, done.output
    assert re.search(r"barrier +blocking +dissemination .* 1 ", done.output), done.output


def test_a_program_that_uses_no_mpi_starts_none(run):
    done = run("run", "-c", "import mpicoll, sys; print('mpi4py.MPI' in sys.modules, flush=True)", ranks=2)
    assert (done.status, done.output) == (0, "False\n" * 2)


def test_summary_counts_what_was_chosen(run):
    done = run("run", "--using", "allreduce=recursive_doubling", "--using", "engine=mpi4py", "--summary", "{program}")
    assert done.status == 0, done.output
    rows = [" ".join(line.split()) for line in done.output.splitlines() if line.startswith("  ") and line.strip()]
    assert rows[0] == "collective form algorithm engine calls bytes sent comms why"
    assert re.fullmatch(r"allreduce blocking recursive_doubling mpi4py 2 16,000 \d+,000 2 chosen by using\(\)", rows[1])
    assert re.fullmatch(r"bcast blocking binomial mpi4py 1 8,000 16,000 1 few rounds: latency decides", rows[2])
    assert len(rows) == 3, done.output


def test_summary_of_nothing(run):
    done = run("run", "--summary", "-c", "pass")
    assert (done.status, done.output) == (0, "mpicoll: no collective of mpicoll's ran on rank 0\n")


def test_algorithms_that_do_not_fit_a_part_of_the_ranks_raise(run):
    code = """
    part = world.Split(int(world.rank == 3))
    part.Bcast(np.ones(3))
    try:
        part.Allgather(np.ones(1), np.empty(part.size))
        say("size", part.size, "ran")
    except Exception as error:
        say("size", part.size, error)
    """
    done = run("run", "--using", "allgather=neighbor_exchange", "{program}", code=code, ranks=4)
    assert done.status == 0, done.output
    refused = "allgather neighbor_exchange needs an even number of ranks, and p is 3"
    assert sorted(done.output.splitlines()) == ["size 1 ran", *(f"size 3 rank {r}: {refused}" for r in range(3))]


def test_the_world_in_mpi4py(run):
    """Pickled, wrapped by pkl5, handed to an executor, and the methods that are mpi4py's own."""
    done = run("run", "{program}", code="""
    from mpi4py.futures import MPICommExecutor
    from mpi4py.util import pkl5
    assert pickle.loads(pickle.dumps(world)) is world is MPI.COMM_WORLD
    assert pickle.loads(pickle.dumps(MPI.COMM_SELF)) is MPI.COMM_SELF
    plain = pickle.loads(pickle.dumps(MPI.Intracomm(world)))
    assert plain == world and type(plain) is MPI.Intracomm
    assert world.bcast(world) is world
    wrapped = pkl5.Intracomm(world)
    assert wrapped.bcast({"a": np.arange(5)})["a"].tolist() == [0, 1, 2, 3, 4]
    assert wrapped.allgather(world.rank) == world.allgather(world.rank) == list(range(world.size))
    assert world.allreduce(1) == world.size and world.alltoall([world.rank] * world.size)[1] == 1
    grid = world.Create_cart([world.size])
    assert isinstance(grid, MPI.Cartcomm) and type(grid).__module__ == "mpicoll.comm.comm" and grid.dims == [world.size]
    grid.Allreduce(np.ones(3), np.empty(3))
    with MPICommExecutor(MPI.COMM_WORLD) as executor:
        if executor is not None:
            assert list(executor.map(abs, [-1, -2])) == [1, 2]
    world.Iallreduce(np.ones(3), np.empty(3)).Wait()
    MPI.Finalize()
    say("end of", os.getpid())
    """)
    assert done.status == 0, done.output
    assert done.output.count("end of") == 3 == len(done.output.splitlines()), done.output


def test_an_exception_on_one_rank_ends_all(run):
    """With its traceback, which begins in the program."""
    done = run("run", "--summary", "{program}", code="""
    def inner():
        raise KeyError("words")
    world.Barrier()
    if world.rank == 1:
        inner()
    world.Barrier()
    world.recv(source=1)
    """)
    assert done.status not in (0, None), done.output
    lines = done.output.splitlines()
    at = lines.index("Traceback (most recent call last):")
    assert "program.py" in lines[at + 1] and "<module>" in lines[at + 1]
    assert "KeyError: 'words'" in lines and done.output.count("Traceback") == 1
    assert "runpy" not in done.output and "mpicoll/cli" not in done.output, done.output


ENDS = {        # how rank 1 ends: what the others report
    "raises": ("raise KeyError('words')", "KeyError: 'words' (program.py, line 10, in <module>)"),
    "exits": ("sys.exit(7)", "SystemExit: 7 (program.py, line 10, in <module>)"),
    "raises with a call in flight": ("kept = half.Iallreduce(x, y); raise KeyError('words')",
                                     "KeyError: 'words' (program.py, line 10, in <module>)"),
}


@pytest.mark.parametrize("how", ENDS)
def test_the_others_are_told_what_ended_a_rank(run, how):
    """Those that are in a collective say it, and then the run ends, without MPICOLL_TIMEOUT."""
    code, ending = ENDS[how]
    done = run("run", "{program}", code=f"""
    x, y = np.ones(3), np.zeros(3)
    half = world.Split(int(world.rank == 0))        # rank 2 makes no call on this one
    if world.rank == 1: {code}
    world.Allreduce(x, y)
    """)
    assert done.status not in (0, None), done.output
    for r in (0, 2):
        report = f"mpicoll: rank {r}:   rank 1 has not made this call: ended with {ending}\n"
        assert done.output.count(report) == 1, done.output


def test_an_error_that_a_test_runner_catches_reaches_the_terminal(run, tmp_path):
    """It hides what the others print, on the one rank goes on to another test, and the others wait for it."""
    (tmp_path / "test_two.py").write_text(dedent("""
        import os, time
        import numpy as np
        from mpi4py import MPI
        world = MPI.COMM_WORLD
        def block(n):
            return [np.ones(n), [1] * world.size, [8 * i for i in range(world.size)], [MPI.DOUBLE] * world.size]
        def test_one():
            world.Alltoallw(block(world.size), block(world.size - (world.rank == 1)))
        def test_two():
            time.sleep(6)
            os._exit(5)
    """))
    done = run("run", "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path / "test_two.py"))
    assert done.status not in (0, None), done.output
    error = r"raised BufferTooSmallError in Alltoallw \(call 1\): the block of rank 2, .*"
    for r in (0, 2):
        stands = rf"mpicoll: rank {r}: Alltoallw \(call 1, .*\) has not moved for [1-5] s\n"
        assert re.search(stands, done.output), done.output
        line = rf"mpicoll: rank {r}:   rank 1 has not made this call: {error}; now at test_two.py"
        assert len(re.findall(line, done.output)) == 1, done.output


@pytest.mark.parametrize(("ranks", "failing"), [(1, 0), (3, 1)])
def test_exit_status(run, ranks, failing):
    code = f"""
    if world.rank == {failing}:
        sys.exit(7)
    world.Barrier()
    """
    done = run("run", "{program}", code=code, ranks=ranks)
    assert done.status == 7, done.output
    assert "Traceback" not in done.output
    assert ranks > 1 or not done.output


@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        (("{program}.no",), {}, "program.py.no': No such file or directory"),
        (("--using", "allreduce=rung", "{program}"), {}, "no allreduce algorithm is called 'rung'"),
        (("--using", "allgather=neighbor_exchange", "{program}"), {}, "needs an even number of ranks, and p is 3"),
        (("--using", "bcast=knomial(k=0)", "{program}"), {}, "k"),
        (("{program}",), {"MPICOLL_ENGINE": "fast"}, "MPICOLL_ENGINE is 'fast'"),
    ],
)
def test_usage_errors_are_one_line(run, words, variables, message):
    done = run("run", *words, **variables)
    assert done.status == 2, done.output
    (line,) = done.own_lines
    assert line.startswith("mpicoll run: ") and message in line
    assert "Traceback" not in done.output


ELSEWHERE = """
import os
from mpi4py import MPI
os.chdir("/" if MPI.COMM_WORLD.rank == 1 else os.path.dirname(__file__))
"""


@pytest.fixture
def mine(tmp_path):
    """Return a file with a bcast, which takes rank 1 to another directory than the others."""
    path = tmp_path / "mine.py"
    path.write_text(MINE + ELSEWHERE, encoding="utf-8")
    return str(path)


def test_a_program_that_one_rank_lacks_ends_all(run, mine):
    done = run("--load", mine, "run", "program.py")
    expected = "mpicoll run: on rank 1: cannot open 'program.py': No such file or directory"
    assert (done.status, done.own_lines) == (2, [expected])


def test_a_loaded_algorithm_runs_the_program(run, mine):
    done = run("--load", mine, "run", "--using", "bcast=mine", "--summary", "{program}")
    assert done.status == 0, done.output
    assert any(line.split()[:3] == ["bcast", "blocking", "mine"] for line in done.output.splitlines()), done.output


def test_startall_of_a_program_that_knows_nothing_of_mpicoll(run):
    """MPI.Prequest is still the type of mpi4py's own requests, and starts ours."""
    done = run("run", "{program}", code="""
        x, y = np.ones(3), np.zeros(3)
        me = world.rank
        requests = [world.Allreduce_init(x, y), world.Send_init(x, me), world.Recv_init(np.zeros(3), me)]
        assert all(isinstance(request, MPI.Prequest) for request in requests)
        MPI.Prequest.Startall(requests)
        MPI.Prequest.Waitall(requests)
        say(y.tolist() == [world.size] * 3)
        for request in requests:
            request.Free()
    """)
    assert done.status == 0 and done.output.split() == ["True"] * 3, done.output


def test_a_program_may_subclass_prequest(run):
    """A subclass of MPI.Prequest as mpi4py's own tests have it is made from a request, and has no other instances."""
    done = run("run", "{program}", code="""
        class Mine(MPI.Prequest):
            def __new__(cls, request=None):
                return super().__new__(cls, request)

        x = np.ones(3)
        others = [world.Allreduce_init(x, np.zeros(3)), world.Send_init(x, MPI.PROC_NULL)]
        mine = Mine(world.Send_init(x, MPI.PROC_NULL))
        mine.Start()
        mine.Wait()
        say(type(mine) is Mine and isinstance(mine, Mine) and not any(isinstance(other, Mine) for other in others))
        for request in [mine, *others]:
            request.Free()
    """)
    assert done.status == 0 and done.output.split() == ["True"] * 3, done.output
