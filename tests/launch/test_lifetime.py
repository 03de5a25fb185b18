"""Programs that end in any order: Free, garbage collection, Finalize and exit, with whatever is still under way.

Every program ends with status 0, prints nothing but its own words (no warning from MPI, no traceback), and leaves no
process behind.
"""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest

pytestmark = pytest.mark.quick

HEAD = """\
import gc, os, sys, threading, time
import numpy as np
from mpi4py import MPI
import mpicoll
world = MPI.COMM_WORLD
rank, p = world.rank, world.size
LARGE = 1 << 20                                   # bytes: no eager message
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def few():
    return np.ones(5), np.zeros(5)
def works(comm, n=5):
    got = np.zeros(n)
    comm.Allreduce(np.ones(n), got)
    assert (got == comm.size).all()
    comm.Iallreduce(np.ones(n), got).Wait()
    assert (got == comm.size).all()
"""
ENDINGS = {
    # what the program still has at its end
    "nothing, and it asked for no communicator": """
        from mpicoll.engines import selftest
        assert selftest.check() is None
    """,
    "communicators": """
        kept = [mpicoll.Comm(world), mpicoll.Comm(world).Dup(), mpicoll.Comm(world).Split(rank % 2)]
        kept.append(mpicoll.Comm(MPI.COMM_SELF))
        for comm in kept:
            works(comm)
        say("end of", rank)
        sys.exit()
    """,
    "requests in flight on all ranks": """
        comm, alone = mpicoll.Comm(world), mpicoll.Comm(MPI.COMM_SELF)
        requests = [comm.Ibarrier(), comm.Iallreduce(np.ones(LARGE), np.zeros(LARGE)), alone.Iallreduce(*few())]
        started = [c.Allreduce_init(np.ones(n), np.zeros(n)) for c in (comm, alone) for n in (5, LARGE)]
        mpicoll.Prequest.Startall(started)
    """,
    "requests in flight on some ranks": """
        comm = mpicoll.Comm(world)
        request, started = comm.Iallreduce(*few()), comm.Allreduce_init(*few())
        started.Start()
        if rank:
            mpicoll.Request.Waitall([request, started])
    """,
    "requests that no other rank takes part in": """
        comm = mpicoll.Comm(world)
        got = np.zeros(LARGE)
        started = comm.Allreduce_init(np.ones(5), np.zeros(5))
        if rank:
            requests = [comm.Ibarrier(), comm.Iallreduce(np.ones(5), np.zeros(5))]
            started.Start()
    """,
    "a communicator that one rank still has, for a request of MPI's own": """
        plain = world.Dup()
        comm, request = mpicoll.Comm(plain), plain.Barrier_init()
        works(comm)
        if rank:
            request.Free()
        plain.Free()
    """,
    "inactive persistent requests": """
        comm = mpicoll.Comm(world)
        requests = [comm.Allreduce_init(*few()), comm.Allreduce_init(*few()), comm.Barrier_init()]
        with comm.using(engine="mpi4py"):
            requests.append(comm.Bcast_init(np.ones(5)))
        with comm.using(allreduce="native"):
            requests.append(comm.Allreduce_init(*few(), mpicoll.AVG))
            plain = comm.Allreduce_init(*few())
            plain.Free()
        for request in requests[1:]:
            request.Start()
            request.Wait()
    """,
    "a thread still working": """
        comm = mpicoll.Comm(MPI.COMM_SELF)
        def work():
            while True:
                comm.Iallreduce(*few()).Wait()
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
    """,
    "an operator on a datatype of its own": """
        comm = mpicoll.Comm(world)
        pair = MPI.DOUBLE.Create_contiguous(2).Commit()
        op = MPI.Op.Create(lambda a, b, t: np.add(np.frombuffer(a), np.frombuffer(b), out=np.frombuffer(b)), True)
        request = comm.Allreduce_init([np.ones(4), 2, pair], [np.zeros(4), 2, pair], op)
        request.Start()
        request.Wait()
        pair.Free()
    """,
    # what it still calls while Python ends, when nothing can be imported any more
    **{
        f"calls in finalizers and atexit handlers, {how}": f"""
        import atexit
        def calls(comm):
            n, ones, got = comm.size, np.ones(2), np.zeros(2)
            wide, gathered, pairs = np.ones(2 * n), np.zeros(2 * n), np.zeros(2, np.dtype("d,i", align=True))
            counts = [2] * n
            comm.Barrier()
            comm.Bcast(wide, n - 1)
            comm.Gather(ones, gathered if comm.rank == 0 else None)
            comm.Gatherv(ones, [gathered, counts] if comm.rank == 0 else None)
            comm.Scatter(wide if comm.rank == 0 else None, got)
            comm.Scatterv([wide, counts] if comm.rank == 0 else None, got)
            comm.Allgather(ones, gathered)
            comm.Allgatherv(ones, [gathered, counts])
            comm.Alltoall(wide, gathered)
            comm.Alltoallv([wide, counts], [gathered, counts])
            comm.Reduce(ones, got, MPI.SUM, 0)
            comm.Reduce_scatter_block(wide, got, MPI.PROD)
            comm.Reduce_scatter(wide, got, counts)
            comm.Scan(ones, got, MPI.MAX)
            comm.Exscan(ones, got)
            comm.Allreduce([pairs.copy(), 2, MPI.DOUBLE_INT], [pairs, 2, MPI.DOUBLE_INT], MPI.MAXLOC)
            comm.Allreduce(ones.astype("f2"), got.astype("f2"))
            op = MPI.Op.Create(lambda a, b, t: np.add(np.frombuffer(a), np.frombuffer(b), out=np.frombuffer(b)), True)
            comm.Allreduce(ones, got, op)
            op.Free()
            with comm.using(engine="mpi4py", allreduce="ring", chunk_bytes=8):
                comm.Allreduce(wide, gathered)
            with comm.using(allreduce="native"):
                comm.Allreduce(ones, got)
            for request in (comm.Allreduce_init(ones, got), comm.Barrier_init()):
                request.Start()
                request.Wait()
                request.Free()
            for request in [comm.Iallreduce(ones, got), comm.Ibcast(wide), comm.Ibarrier()]:
                request.Wait()                # in lists Open MPI asks mpi4py, which answers no more
            assert (got == n).all() and (gathered == n).all(), (got, gathered)
            works(comm)
        class Last:
            def __init__(self, comm, calls=calls):
                self.comm, self.calls = comm, calls
            def __del__(self):
                if os.getpid() != started:
                    return
                self.calls(self.comm)
                for part in (self.comm.Split(0), self.comm.Dup(), self.comm.Create_cart([p])):
                    self.calls(part)
                    part.Free()
                self.comm.Free()
                say("last calls of", rank)
        started, comm = os.getpid(), mpicoll.Comm(world)
        atexit.register(calls, comm)
        last = Last(comm.Dup())
        {code}
        """
        for how, code in (("the first ones", ""), ("later ones", "[calls(last.comm) for _ in range(3)]"))
    },
    # who finalizes MPI
    "Finalize": """
        comm = mpicoll.Comm(world)
        other = comm.Dup()
        with comm.using(allreduce="native"):
            requests = [comm.Allreduce_init(*few(), mpicoll.AVG)]
        requests.append(comm.Allreduce_init(*few()))
        pair = MPI.DOUBLE.Create_contiguous(2).Commit()
        op = MPI.Op.Create(lambda a, b, t: np.add(np.frombuffer(a), np.frombuffer(b), out=np.frombuffer(b)), True)
        requests.append(comm.Allreduce_init([np.ones(4), 2, pair], [np.zeros(4), 2, pair], op))
        for request in requests:
            request.Start()
            request.Wait()
        works(other)
        pair.Free()
        op.Free()
        MPI.Finalize()
        del other
        requests.clear()
        gc.collect()
    """,
    "Finalize with requests in flight": """
        comm = mpicoll.Comm(world)
        works(comm)
        if rank:
            request = comm.Iallreduce(*few())
        MPI.Finalize()
        time.sleep(0.2)
    """,
    "Finalize at exit": """
        import atexit
        atexit.register(MPI.Finalize)
        comm = mpicoll.Comm(world).Dup()
        request = comm.Iallreduce(*few())
        atexit.register(lambda: (request.Wait(), comm.Free()))
        works(mpicoll.Comm(world))
    """,
    # in which order things go before the end
    "communicators dropped": """
        comm = mpicoll.Comm(world).Dup()
        works(comm)
        del comm
        gc.collect()
        comm = mpicoll.Comm(world).Dup()
        comm.itself, comm.request = comm, comm.Iallreduce(np.ones(LARGE), np.zeros(LARGE))
        comm.request.comm = comm
        comm.request.Wait()
        works(comm)
        del comm
        gc.collect()
        comm = mpicoll.Comm(world).Dup()
        comm.itself = comm
        comm.Free()
        del comm
        gc.collect()
        works(mpicoll.Comm(world))
    """,
    "requests dropped, then Free": """
        for how in ("Free", "Disconnect"):
            comm = mpicoll.Comm(world).Dup()
            got, other = np.zeros(LARGE), np.zeros(LARGE)
            for n in (3, 1000, LARGE):
                comm.Iallreduce(np.ones(n), got[:n])
            comm.Ibarrier()
            request = comm.Allreduce_init(np.ones(LARGE), other)
            request.Start()
            del request
            gc.collect()
            getattr(comm, how)()
            assert comm == MPI.COMM_NULL and (got == p).all() and (other == p).all()
    """,
    "Free, then requests": """
        for _ in range(2):
            plain = world.Dup()
            comm = mpicoll.Comm(plain)
            got, other = np.zeros(LARGE), np.zeros(LARGE)
            requests = [comm.Ibarrier(), comm.Iallreduce(np.ones(LARGE), got)]
            requests += [comm.Allreduce_init(np.ones(LARGE), other), comm.Barrier_init(), comm.Bcast_init(np.ones(3))]
            mpicoll.Prequest.Startall(requests[2:4])
            (plain if _ else comm).Free()
            mpicoll.Request.Waitall(requests)
            assert (got == p).all() and (other == p).all()
            for request in requests[2:]:
                try:
                    request.Start()
                except mpicoll.errors.CommError as error:
                    assert "freed" in str(error)
                else:
                    raise AssertionError("started on a freed communicator")
            requests.pop().Free()
    """,
    "Free by any handle": """
        for i in range(20):
            first = world.Dup()
            second = mpicoll.Comm(mpicoll.Comm(first))
            works(second)
            (second if i % 2 else first).Free()
        for base in (MPI.COMM_WORLD, MPI.COMM_SELF):
            comm = mpicoll.Comm(base)
            try:
                comm.Free()
            except MPI.Exception:
                pass
            works(comm)
    """,
}


def leftovers(script: Path) -> list[str]:
    """Return the processes that still run the script."""
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(script) in words:
            commands.append(words.decode(errors="replace"))
    return commands


@pytest.mark.parametrize("ending", ENDINGS)
def test_ends_in_silence(mpiexec, tmp_path, ending):
    code, script = dedent(ENDINGS[ending]), tmp_path / "script.py"
    script.write_text(HEAD + code + ("" if "sys.exit" in code else "say('end of', rank)\n"))
    done = mpiexec(2, "python", script)
    lines = [line for line in done.output.splitlines() if not line.startswith("last calls")]
    assert (done.status, sorted(lines)) == (0, ["end of 0", "end of 1"]), done.output
    assert done.output.count("last calls") == (2 if "Last" in code else 0)
    assert not leftovers(script)


IMPORTS = "from mpicoll.progress import queue\nfrom mpicoll.runtime import comm_state"
CYCLES = """
comm, x, y = mpicoll.Comm(world), np.ones(3), np.zeros(3)
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")
def cycle(i):
    part = comm.Split(0, rank) if i % 4 == 3 else comm.Dup()
    if i % 3 == 0:
        part.Allreduce(x, y)
    elif i % 3 == 1:
        part.Iallreduce(x, y).Wait()
    else:
        request = part.Allreduce_init(x, y)
        request.Start()
        request.Wait()
        request.Free()
    part.Free()
live, levels = len(comm_state.LIVE), []
gc.disable()                                      # what is freed must go without it
for i in range(4000):
    cycle(i)
    if i % 1000 == 999:
        levels.append(resident())
assert (y == p).all()
assert len(comm_state.LIVE) == live and not queue._busy
assert levels[-1] - levels[0] < 2 << 20, levels
"""


@pytest.mark.timeout(220)
def test_thousands_of_communicators(mpiexec, tmp_path):
    """MPICH has 2,046 at a time. After a thousand, memory stays within 2 MiB without garbage collection."""
    script = tmp_path / "script.py"
    script.write_text(HEAD + IMPORTS + CYCLES + "say('end of', rank)\n")
    done = mpiexec(2, "python", script, limit=200.0)
    assert (done.status, sorted(done.output.splitlines())) == (0, ["end of 0", "end of 1"]), done.output
