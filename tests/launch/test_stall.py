"""Runs that hang, are killed or abort: what they print, and that they end."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from textwrap import dedent

import launcher
import pytest

from mpicoll.schedules.collectives import FORMS

HEAD = """\
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
import mpicoll
from mpicoll.selection import settings
world = MPI.COMM_WORLD
rank, p, engine = world.rank, world.size, sys.argv[1]
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())     # at once, so that no rank tears it apart
"""
ENGINES = ("mpi4py", "compiled")


def each_and_both_engines(ways):
    """Return ways with the engines in turn, and the first with both engines: they share the code that waits."""
    first, *others = ways
    return [(first, engine) for engine in ENGINES] + [(way, ENGINES[i % 2]) for i, way in enumerate(others)]


@pytest.fixture
def run(mpiexec, tmp_path):
    """Return a function that runs a script on some ranks."""

    def run(code: str, *arguments: str, ranks: int = 3, **variables: str):
        script = tmp_path / "script.py"
        script.write_text(HEAD + dedent(code))
        return mpiexec(ranks, "python", script, *arguments, env=variables)

    return run


LATE = """
comm = mpicoll.Comm(world)
def load():
    time.sleep(15)
with comm.using(engine=engine, allreduce="{algorithm}"):
    comm.Barrier()
    if rank == 0:
        load()
    {call}
say("end of", rank)
"""
X = "np.ones(30), np.zeros(30)"
CALLS = {       # a way to wait: (the call, its method)
    "blocking": (f"comm.Allreduce({X})", "Allreduce"),
    "Wait": (f"comm.Iallreduce({X}).Wait()", "Iallreduce"),
    "the progress thread alone": (f"kept = comm.Iallreduce({X}); time.sleep(15)", "Iallreduce"),
    "Waitall": (f"mpicoll.Request.Waitall([comm.Iallreduce({X}) for _ in range(2)])", "Iallreduce"),
    "MPI's Waitall": (f"MPI.Request.Waitall([comm.Iallreduce({X})])", "Iallreduce"),
    "the end of the program": (f"kept = comm.Iallreduce({X}); sys.exit()", "Iallreduce"),
}
TEST_LOOP = f"""
    request = comm.Iallreduce({X})
    while not request.Test():
        time.sleep(0.01)
"""


def is_reported(output, who, method, call=2, how=r".*", start=""):
    """Check that each rank of who reports the stalled call once, and that rank 0, outside of the call, does not."""
    for r in who:
        report = rf"mpicoll: rank {r}: {method} \(call {call}{start}, {how}\) has not moved for 2 s"
        assert len(re.findall(report, output)) == 1, output
        verb = "started" if start else "made"
        assert f"mpicoll: rank {r}:   rank 0 has not {verb} this call: now at script.py, line 13, in load" in output, (
            output
        )
    assert "MPICOLL_TIMEOUT=2 is over, aborting" in output and "end of" not in output
    assert "rank 0: All" not in output


@pytest.mark.parametrize(("call", "engine"), each_and_both_engines(CALLS))
def test_a_rank_that_never_joins(run, engine, call):
    """Every rank that waits says in what, for whom, and where that one is; and the run ends."""
    started = time.monotonic()
    done = run(LATE.format(call=CALLS[call][0], algorithm="ring"), engine, MPICOLL_TIMEOUT="2")
    assert done.status not in (0, None), done.output
    assert time.monotonic() - started < 14
    is_reported(done.output, (1, 2), CALLS[call][1], how=f"ring, {engine} engine")
    for r in (1, 2):
        steps = re.findall(rf"mpicoll: rank {r}:   (step .*)", done.output)
        assert re.match(rf"step \d of chunk 0, strand 0, waits .*rank.* {r - 1}", steps[0]), steps


def test_sizes_of_a_sparse_exchange_that_a_rank_never_joins(run):
    """The report names the Alltoall of the sizes, and the program's line."""
    call = "comm.Sparse_alltoall({0: [1.0]})"
    done = run(LATE.format(call=call, algorithm="ring"), "compiled", MPICOLL_TIMEOUT="2")
    assert done.status not in (0, None), done.output
    is_reported(done.output, (1, 2), "Alltoall")
    assert re.search(r"to receive from rank.* 0", done.output), done.output


def test_a_sparse_exchange_that_a_rank_never_joins(run):
    call = "comm.Isparse_alltoall({0: [1.0]})[1].Wait()"
    done = run(LATE.format(call=call, algorithm="ring"), "compiled", MPICOLL_TIMEOUT="2")
    assert done.status not in (0, None), done.output
    is_reported(done.output, (1, 2), "Isparse_alltoall", how="nbx, compiled engine")
    assert done.output.count("waits for rank 0 to receive an array") == 2, done.output


@pytest.mark.parametrize(("record", "words"), [
    ("", r"rank 0 has not made this call: process \d+ has not written for \d s: native code keeps Python's lock"),
    ("0", "rank 0 has not answered: no thread there could"),
])  # fmt: skip
def test_a_loop_of_Test_without_the_progress_thread(run, record, words):
    """No thread writes or answers for the rank that is not there, and the report says so."""
    done = run(LATE.format(call=TEST_LOOP.strip(), algorithm="ring"), "mpi4py",
               MPICOLL_TIMEOUT="3", MPICOLL_PROGRESS="0", MPICOLL_RECORD=record)
    assert done.status not in (0, None), done.output
    assert done.output.count("Iallreduce (call 2, ring, mpi4py engine) has not moved") == 2, done.output
    assert len(re.findall(words, done.output)) == 2, done.output


SILENT = {      # what a rank does so that no thread of it runs: what the others say of it
    "stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", r"is stopped, last at script.py, line \d+, in late"),
    "keeps Python's lock": ("ctypes.PyDLL(None).sleep(15)", r"has not written for \d s: native code keeps Python's"),
}


@pytest.mark.parametrize("fault", SILENT)
def test_a_rank_in_which_no_thread_runs(run, fault):
    """The others read in its record why, and where it was last."""
    other, words = SILENT[fault]
    call = "comm.Allreduce(x, np.zeros(3))"
    code = SOON.format(before="import ctypes", other=f"late(1); {other}", call=call)
    done = run(code, "compiled", MPICOLL_TIMEOUT="4")
    assert done.status not in (0, None), done.output
    report = rf"mpicoll: rank [02]:   rank 1 has not made this call: process \d+ {words}"
    assert len(re.findall(report, done.output)) == 2, done.output


START = """
    request = comm.Allreduce_init(np.ones(30), np.zeros(30))
    request.Start(); request.Wait()
    if rank == 0:
        load()
    request.Start(); request.Wait()
"""


def test_a_communicator_that_a_rank_does_not_make(run):
    output = run("if rank == 0: time.sleep(15)\nmpicoll.Comm(world)", "", MPICOLL_TIMEOUT="2").output
    for who in (1, 2):
        assert f"mpicoll: rank {who}: Comm() has not returned for 2 s: it waits for every rank of the" in output, output
    assert "rank 0: Comm()" not in output and "MPICOLL_TIMEOUT=2 is over, aborting" in output, output


@pytest.mark.parametrize("algorithm", ["ring", "native"])
def test_a_persistent_collective_that_one_rank_does_not_start(run, algorithm):
    """It is known by the call that made it and by how often it was started."""
    code = LATE.format(call=START.strip(), algorithm=algorithm).replace("    if rank == 0:\n        load()\n", "", 1)
    done = run(code, "mpi4py", MPICOLL_TIMEOUT="2")
    assert done.status not in (0, None), done.output
    is_reported(done.output, (1, 2), "Allreduce_init", call=r"\d+", start=", start 2")


MAKING = {      # what is asked before a call proper: (the call, its method, how)
    "recvcounts": ("comm.Reduce_scatter(np.ones(2 * p), np.zeros(2))", "Reduce_scatter", "gathering recvcounts"),
    "recvcounts of Ireduce_scatter": ("comm.Ireduce_scatter(np.ones(2 * p), np.zeros(2))", "Ireduce_scatter",
                                      "gathering recvcounts"),
    "tags": (f"comm.Allreduce_init({X})", "Allreduce_init", "allocating tags for it"),
    "a native one": (f"comm.Allreduce({X})", "Allreduce", ".*using.*"),
    "a native nonblocking one": (f"comm.Iallreduce({X}).Wait()", "Iallreduce", ".*using.*"),
    "Barrier": ("comm.Barrier()", "Barrier", ".* engine"),
}


@pytest.mark.parametrize("what", MAKING)
def test_whatever_is_waited_for_is_told_of(run, what):
    call, method, how = MAKING[what]
    algorithm = "native" if "native" in what else "auto"
    done = run(LATE.format(call=call, algorithm=algorithm), "mpi4py", MPICOLL_TIMEOUT="2")
    assert done.status not in (0, None), done.output
    is_reported(done.output, (1, 2), method, call=r"\d+", how=how)


@pytest.mark.parametrize("form", [form if form == "blocking" else pytest.param(form, marks=pytest.mark.quick)
                                  for form in FORMS])  # one after the other takes half a minute
def test_every_collective_in_every_form(run, form):
    """Each stalled call is reported while rank 0 is late, then completes. All calls at once, unless they block."""
    done = run(r"""
        import io, re
        from support.calls import collective_calls
        settings.REPORT_AFTER = 0.6
        sys.stderr = told = io.StringIO()
        comm, form = mpicoll.Comm(world), sys.argv[2]
        calls = collective_calls(comm, form)
        for together in [[name] for name in calls] if form == "blocking" else [list(calls)]:
            world.Barrier()
            if rank == 0:
                time.sleep(1.5)
            requests = [calls[name]() for name in together]
            for request in filter(None, requests):
                request.Wait()
            world.Barrier()
        for name in calls:
            waits = r".* has not moved for .*\n(.*  (step|waits) .*\n)+.*  rank 0 has not"
            if re.search(rf"{name} \(call {waits}", told.getvalue()):
                say("told of", name)
        say("asked", *calls)
        say("end of", rank)
    """, "mpi4py", form, PYTHONPATH=str(Path(__file__).parents[1]))
    assert done.status == 0, done.output
    reported = set(re.findall(r"told of (\w+)", done.output))
    assert len(reported) == 17 and reported == set(re.findall(r"asked (.*)", done.output)[0].split()), done.output


RAISES = """
comm = mpicoll.Comm(world)
comm.Barrier()
if rank == 1:
    {what}
comm.Allreduce(np.ones(3), np.zeros(3))
"""
ENDINGS = {     # what one rank does: what the other ranks report of it
    "raises": ("raise ValueError('bad row')", r"ended with ValueError: bad row \(script.py, line \d+, in <module>\)"),
    "ends": ("sys.exit()", "reached the end of the program"),
    "refuses": ("comm.Allreduce(np.ones(3), np.zeros(4))", r"ended with CountMismatch: the buffer to send has 3 .*"),
    "refuses and goes on": ("exec('try: comm.Allreduce(np.ones(3), np.zeros(4))\\nexcept ValueError: time.sleep(15)')",
                            r"raised CountMismatch in Allreduce \(call 2\): the buffer to send has 3 .*; now at .*"),
    "finalizes": ("MPI.Finalize(); time.sleep(15)", "reached the end of the program"),
}


@pytest.mark.parametrize(("what", "timeout", "record"), [
    *((what, 2, "") for what in ENDINGS), ("raises", 6, ""), ("finalizes", 6, ""),
    ("raises", 2, "0"), ("refuses and goes on", 2, "0"), ("finalizes", 6, "0"),
])  # fmt: skip
def test_a_rank_that_ended_or_raised_is_named_with_its_words(run, what, timeout, record):
    """Also where it has gone by the time that the others look, and without records, where they ask by messages."""
    done = run(RAISES.format(what=ENDINGS[what][0]), "mpi4py", MPICOLL_TIMEOUT=str(timeout), MPICOLL_RECORD=record)
    assert done.status not in (0, None), done.output
    for r in (0, 2):
        report = rf"mpicoll: rank {r}:   rank 1 has not made this call: {ENDINGS[what][1]}\n"
        assert len(re.findall(report, done.output)) == 1, done.output


SOON = """
comm = mpicoll.Comm(world)
x = np.ones(3)
def refused(call):
    try:
        call()
    except (ValueError, TypeError):
        return
    raise AssertionError("nothing was raised")
def late(seconds):
    time.sleep(seconds)
{before}
comm.Barrier()
began = time.monotonic()
with comm.using(engine=engine):
    if rank == 1:
        {other}
    {call}
say("end of", rank, "after", time.monotonic() - began)
"""
WRONG = "raised CountMismatch in Allreduce \\(call 2\\): the buffer to send has 3 elements"
IN_FORMS = {    # the call, and what rank 1 makes of it instead: what the report says of rank 1
    "blocking": ("comm.Allreduce(x, np.zeros(3))", "refused(lambda: comm.Allreduce(x, np.zeros(4))); late(5)",
                 rf"has not made this call: {WRONG}.*; now at script.py, line \d+, in late"),
    "short way": ("for _ in range(3 - (rank == 1)): comm.Allreduce(x, np.zeros(3))\n"
                  "    if rank == 1: refused(lambda: comm.Allreduce(x, np.zeros(4))); late(5)\n"
                  "    if rank == 1: comm.Allreduce(x, np.zeros(3))", "pass",
                  "has not made this call: raised CountMismatch in Allreduce \\(call 4\\): .*; now at .* in late"),
    "nonblocking": ("comm.Iallreduce(x, np.zeros(3)).Wait()",
                    "late(3); refused(lambda: comm.Iallreduce(x, np.zeros(4))); late(3)",      # when they have asked
                    "has not made this call: raised CountMismatch in Iallreduce \\(call 2\\): .*; now at "),
    "persistent": ("comm.Allreduce_init(x, np.zeros(3))",
                   "refused(lambda: comm.Allreduce_init(x, np.zeros(4))); late(5)",
                   "has not made this call: raised CountMismatch in Allreduce_init \\(call 2\\): .*; now at .*late"),
}


def seconds(output):
    """Return the seconds after which each rank ended."""
    return [float(seconds_text) for seconds_text in re.findall(r"end of \d after ([\d.]+)", output)]


@pytest.mark.parametrize(("form", "engine", "record"), [
    *((form, engine, "") for form, engine in each_and_both_engines(IN_FORMS)),
    ("blocking", "compiled", "0"), ("nonblocking", "mpi4py", "0"),
])  # fmt: skip
def test_an_error_of_a_rank_is_reported_within_seconds(run, form, engine, record):
    """Without MPICOLL_TIMEOUT: the program catches it, and goes on elsewhere; the report does not wait for its time."""
    call, other, words = IN_FORMS[form]
    done = run(SOON.format(before="", call=call, other=other), engine, MPICOLL_RECORD=record)
    assert done.status == 0 and min(seconds(done.output)) > 4, done.output
    for r in (0, 2):
        stands = rf"mpicoll: rank {r}: \w+ \(call \d, .*\) has not moved for [1-6] s"
        assert len(re.findall(stands, done.output)) == 1, done.output
        assert len(re.findall(rf"mpicoll: rank {r}:   rank 1 {words}", done.output)) == 1, done.output


def test_an_error_of_a_start_is_reported_within_seconds(run):
    done = run(SOON.format(
        before="request = comm.Allreduce_init(x, np.zeros(3))",
        other="late(1); wrong = comm.Barrier",
        call="request.Start()\n    if rank == 1: refused_start(request); late(4)\n    request.Wait(); request.Start(); "
             "request.Wait()",
    ).replace("def late(", """def refused_start(request):
    time.sleep(0.5)
    try:
        request.Start()
    except mpicoll.errors.RequestError:
        pass
def late("""), "mpi4py")
    assert done.status == 0, done.output
    words = r"has not started this call: raised RequestError in Allreduce_init \(call 1, start 2\): the request is"
    for r in (0, 2):
        assert len(re.findall(rf"mpicoll: rank {r}:   rank 1 {words}", done.output)) == 1, done.output


def test_a_call_left_by_an_interrupt_is_told_of(run):
    """Interrupt a call: it stays in flight, and the report says so."""
    done = run(SOON.format(before="""
def alarm(*_):
    raise ValueError("too late")
signal.signal(signal.SIGALRM, alarm)
""", other="signal.setitimer(signal.ITIMER_REAL, 1.0); refused(lambda: comm.Allreduce(x, np.zeros(3))); late(6)",
        call="if rank == 2: late(5)\n    if rank != 1: comm.Allreduce(x, np.zeros(3))\n    comm.Barrier()"), "mpi4py")
    assert done.status == 0, done.output
    line = "mpicoll: rank 0:   rank 1 has raised ValueError in Allreduce (call 2): too late; now in Allreduce (call 2)"
    assert line in done.output, done.output


@pytest.mark.parametrize("call", ["comm.Allreduce(x, np.zeros(3))", "comm.Iallreduce(x, np.zeros(3)).Wait()"])
def test_an_error_of_MPI_in_a_call_is_reported(run, call):
    """The program catches it; the others can never end."""
    done = run(SOON.format(before="", call=call, other=f"""
        from mpicoll.engines import mpi4py as engine_of_all
        def advance(self, seconds):
            raise MPI.Exception(MPI.ERR_OTHER)
        engine_of_all.Execution.advance = advance
        try:
            {call}
        except MPI.Exception:
            late(15)
    """.strip()), "mpi4py", MPICOLL_TIMEOUT="6")
    for r in (0, 2):
        report = rf"rank {r}: I?[Aa]llreduce \(call 2, .*\) has not moved for [1-4] s\n.*\n.*  rank 1 has raised Exc"
        assert len(re.findall(report, done.output)) == 1, done.output


OTHERWISE = {   # what rank 1 calls, and what the others do: what both sides report
    "another": ("comm.Bcast(x, 0)", "comm.Allgather(x, np.zeros(3 * p))",
                "rank 1 has made another call here: Bcast, at script.py",
                "ranks 0, 2 have made another call here: Allgather, at script.py"),
    "a later one": ("comm.Gather(x, None, 0); comm.Barrier()", "comm.Bcast(x, 1); late(15)",   # rank 0 gets enough
                    "rank 1 has made another call here, or with other counts: now in Barrier (call 3), at script.py",
                    "rank 2 has not made this call: now in Bcast (call 2), at script.py"),
}


@pytest.mark.parametrize(("what", "record"), [*((what, "") for what in OTHERWISE), ("a later one", "0")])
def test_ranks_in_different_calls_say_so_within_seconds(run, what, record):
    """Report a call that cannot complete long before MPICOLL_TIMEOUT."""
    other, call, report, here = OTHERWISE[what]
    code = SOON.format(before="", other=f"{other}; sys.exit()", call=call)
    done = run(code, "compiled", MPICOLL_TIMEOUT="6", MPICOLL_RECORD=record)
    assert report in done.output and re.search(r"rank 2: \w+ \(call 2, .*\) has not moved for [1-4] s", done.output), (
        done.output
    )
    assert here in done.output, done.output


QUIET = {       # what ranks do that takes long, and is no reason to report anything
    "computes": ("", "late(8)", "comm.Allreduce(x, np.zeros(3))"),
    "all refuse first": ("refused(lambda: comm.Allreduce(x, np.zeros(4)))", "late(5)",
                         "comm.Allreduce(x, np.zeros(3))"),
    "one refuses, and makes it good": ("", "refused(lambda: comm.Allreduce(x, np.zeros(4)))",
                                       "if rank == 2: late(5)\n    comm.Allreduce(x, np.zeros(3))"),
    "has done its part": ("", "comm.Bcast(x, 1); late(5)", "if rank == 2: late(5)\n    if rank != 1: comm.Bcast(x, 1)\n"
                          "    comm.Barrier()"),
    "nonblocking": ("", "late(5)", "many = [comm.Iallreduce(x, np.zeros(3)) for _ in range(70)]\n"
                    "    mpicoll.Request.Waitall(many)"),
}


@pytest.mark.parametrize(("what", "engine"), each_and_both_engines(QUIET))
def test_a_rank_that_is_long_in_coming_is_not_told_of(run, what, engine):
    before, other, call = QUIET[what]
    done = run(SOON.format(before=before, other=other, call=call), engine)
    assert done.status == 0 and len(seconds(done.output)) == 3 and max(seconds(done.output)) > 4, done.output
    assert "mpicoll" not in done.output, done.output


@pytest.mark.parametrize("record", ["", "0"])
def test_questions_are_few(run, record):
    """Ranks with a record are not asked, the others at growing intervals while a call stalls, and not at all else."""
    done = run("""
        from mpicoll.diagnostics.peer_status import ASK, PeerStatus
        asked, send = [0], PeerStatus._send
        def counted(self, note, rank, tag):
            asked[0] += tag == ASK
            return send(self, note, rank, tag)
        PeerStatus._send = counted
        comm = mpicoll.Comm(world)
        comm.Barrier()
        for seconds in (1, 9):
            if rank == 1:
                time.sleep(seconds)
            comm.Allreduce(np.ones(3), np.zeros(3))
            say("asked", rank, seconds, asked[0])
    """, "compiled", MPICOLL_RECORD=record)
    assert done.status == 0, done.output
    questions = {(int(r), int(s)): int(n) for r, s, n in re.findall(r"asked (\d) (\d) (\d+)", done.output)}
    several = 6 if record else 0  # three times two ranks
    assert questions == {**{(r, 1): 0 for r in range(3)}, (0, 9): several, (2, 9): several, (1, 9): 0}


def test_an_error_under_mpi4py_ends_the_run(mpiexec, tmp_path):
    """Though the rank has a call under way that never ends; the others say first what they waited for."""
    script = tmp_path / "script.py"
    script.write_text(HEAD + dedent("""
        comm = mpicoll.Comm(world)
        half = comm.Split(int(rank == 0))
        if rank == 1:
            kept = half.Iallreduce(np.ones(3), np.zeros(3))
            raise ValueError("bad row")
        comm.Allreduce(np.ones(3), np.zeros(3))
    """))
    done = mpiexec(3, "python", "-m", "mpi4py", script, "compiled")
    assert done.status not in (0, None), done.output
    for r in (0, 2):
        report = f"mpicoll: rank {r}:   rank 1 has not made this call: ended with ValueError: bad row (script.py, line "
        assert done.output.count(report) == 1, done.output


def test_an_error_that_was_made_good_is_not_told_of(run):
    """Rank 1 has made calls since."""
    done = run(RAISES.format(what="""
    try:
        comm.Allreduce(np.ones(3), np.zeros(4))
    except ValueError:
        comm.Allreduce(np.ones(3), np.zeros(3))
        time.sleep(15)
else:
    comm.Allreduce(np.ones(3), np.zeros(3))
    """.strip()), "mpi4py", MPICOLL_TIMEOUT="2")
    assert "rank 1 has not made this call: now at script.py" in done.output and "raised" not in done.output


def test_a_program_that_ends_one_rank_after_the_other_ends(run):
    """Ranks that are done wait for the others, however these end, and print nothing."""
    done = run("""
        comm = mpicoll.Comm(world)
        kept = comm.Split(rank % 2)
        comm.Barrier()
        time.sleep(rank)
        if rank == 0:
            MPI.Finalize()
        say("end of", rank)
    """, "mpi4py")
    assert done.status == 0 and done.output.count("end of") == 3 and "mpicoll" not in done.output, done.output


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_is_late_is_only_told_of(run, engine):
    """Without MPICOLL_TIMEOUT mpicoll aborts no call."""
    done = run("""
        settings.REPORT_AFTER = 1.0
        comm = mpicoll.Comm(world)
        got = np.zeros(30)
        with comm.using(engine=engine, allreduce="ring", chunk_bytes=16):
            comm.Barrier()
            if rank == 0:
                time.sleep(3)
            comm.Allreduce(np.ones(30), got)
        assert (got == p).all()
        say("end of", rank)
    """, engine)
    assert done.status == 0, done.output
    assert all(f"end of {r}" in done.output for r in range(3))
    for r in (1, 2):
        report = f"mpicoll: rank {r}: Allreduce (call 2, ring, {engine} engine) has not moved for 1 s"
        assert done.output.count(report) == 1, done.output
    assert "aborting" not in done.output


def test_a_call_that_moves_is_not_told_of(run):
    """Longer than the time, but never still for so long."""
    done = run("""
        settings.REPORT_AFTER = 1.0
        comm = mpicoll.Comm(world)
        with comm.using(engine=engine):
            request = comm.Iallreduce(np.ones(3), np.zeros(3))
            request.Wait()
            for _ in range(4):
                time.sleep(0.5)
                comm.Allreduce(np.ones(3), np.zeros(3))
        say("end of", rank)
    """, "compiled")
    assert done.status == 0 and "has not moved" not in done.output, done.output


def test_check_mode_says_that_it_waits_for_signatures(run):
    call, method = CALLS["blocking"]
    done = run(LATE.format(call=call, algorithm="ring"), "mpi4py", MPICOLL_TIMEOUT="2", MPICOLL_CHECK="1")
    is_reported(done.output, (1, 2), method)
    assert done.status not in (0, None), done.output
    assert "waits for the signatures of all ranks" in done.output


KILLED = """
comm = mpicoll.Comm(world)
say("pid", os.getpid(), "of rank", rank)
world.Barrier()
x, y = np.ones(1 << 16), np.zeros(1 << 16)
with comm.using(engine=engine, allreduce="ring", chunk_bytes=4096):
    if rank == 1:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, 1.0)
    persistent = comm.Allreduce_init(x, y)
    while True:
        {call}
"""
KILLED_IN = {
    "blocking": "comm.Allreduce(x, y)",
    "nonblocking": "comm.Iallreduce(x, y); time.sleep(15)",
    "persistent": "persistent.Start(); persistent.Wait()",
}
NAMES = {       # what a launcher says; Hydra may name a rank that it has ended itself since
    "mpich": lambda pids: f"PID ({'|'.join(map(str, pids.values()))}) RUNNING",
    "openmpi": lambda pids: f"rank 1 with PID {pids[1]} ",
    "intel": lambda pids: f"RANK 1 PID {pids[1]} ",
}


@pytest.mark.parametrize(("form", "engine"), each_and_both_engines(KILLED_IN))
def test_a_rank_that_is_killed_ends_the_run(tmp_path, engine, form):
    """A rank dies in the middle of a collective: the others end by themselves, and the launcher names the rank."""
    script = tmp_path / "script.py"
    script.write_text(HEAD + KILLED.format(call=KILLED_IN[form]))
    command = launcher.command(3, ["python", str(script), engine])
    done = subprocess.run(command, env=launcher.environment({"MPICOLL_TIMEOUT": "5"}), timeout=40, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode != 0, done.stdout
    pids = {int(rank): int(pid) for pid, rank in re.findall(r"pid (\d+) of rank (\d)", done.stdout)}
    assert sorted(pids) == [0, 1, 2], done.stdout
    assert re.search(NAMES[launcher.flavour()](pids), done.stdout.replace("\n", " ")), done.stdout
    until = time.monotonic() + 5
    while any(map(is_python, pids.values())) and time.monotonic() < until:
        time.sleep(0.1)
    assert not [pid for pid in pids.values() if is_python(pid)]


def is_python(pid: int) -> bool:
    """Tell whether a process of that number is alive and runs Python."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return status != "Z" and b"script.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize("engine", ENGINES)
def test_an_exception_in_a_user_operator_ends_the_run_with_its_words(run, engine, tmp_path):
    """mpi4py prints it and aborts, since no exception can pass through MPI; with ours it is the same.

    It aborts at once, and a launcher may end the run before it has passed the words on: they go to a file.
    """
    done = run("""
        os.dup2(os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        def refuse(a, b, datatype):
            raise RuntimeError("words of the operator")
        comm = mpicoll.Comm(world)
        op = MPI.Op.Create(refuse, True)
        with comm.using(engine=engine, allreduce="ring"):
            comm.Allreduce(np.ones(5), np.zeros(5), op)
    """, engine, str(tmp_path / "words"), ranks=2)
    assert done.status not in (0, None), done.output
    assert "words of the operator" in (tmp_path / "words").read_text()
