"""On a machine that has compiled nothing yet, programs run at once on NumPy's kernels and switch to compiled ones."""

from __future__ import annotations

import sys

import pytest
from support import compiler

PROGRAM = """\
import sys, time
from pathlib import Path
import numpy as np
from mpi4py import MPI
import mpicoll
from mpicoll.kernels import background
go, way, background.COMMAND = Path(sys.argv[1]), sys.argv[2], tuple(sys.argv[3:])
comm = mpicoll.Comm(MPI.COMM_WORLD)
random = np.random.default_rng(comm.rank)
x = random.standard_normal(1001)
narrow = random.standard_normal(1001).astype(np.float16)
pairs = np.zeros(1001, np.dtype([("value", "f8"), ("index", "i4")], align=True))
pairs["value"], pairs["index"] = x, np.arange(1001)
every_second = MPI.DOUBLE.Create_vector(500, 1, 2).Commit()

def results():
    found = [np.empty_like(x), np.empty_like(x), np.empty_like(narrow), x.copy(), np.zeros_like(pairs)]
    comm.Allreduce(x, found[0])
    comm.Iallreduce(x, found[1], op=MPI.MAX).Wait()
    comm.Allreduce(narrow, found[2])
    comm.Bcast([found[3], 1, every_second])
    comm.Allreduce([pairs, MPI.DOUBLE_INT], [found[4], MPI.DOUBLE_INT], op=MPI.MAXLOC)
    columns = [*found[:4], found[4]["value"], found[4]["index"]]  # not what lies between the elements
    return [each.tobytes() for each in columns]

total = np.empty_like(x)
request = comm.Allreduce_init(x, total)
def persistent():
    request.Start()
    request.Wait()
    return total.tobytes()

with comm.trace() as records:
    before = results(), persistent()
engines = {record.engine for record in records}
assert engines == {"mpi4py"}, engines
comm.Barrier()
go.touch()
deadline = time.monotonic() + 40
while time.monotonic() < deadline:
    with comm.trace() as records:
        after = results(), persistent()
    assert after == before, [a == b for a, b in zip((*after[0], after[1]), (*before[0], before[1]))]
    served = {record.engine for record in records}, all(record.fast_path for record in records[-1:])
    over = served == ({"compiled"}, True) if way == "delivering" else bool(background.state.failed)
    if comm.allreduce(over, op=MPI.LAND):
        break
    time.sleep(0.01)
sys.stdout.write(f"rank {comm.rank}: {sorted(served[0])} {served[1]} {comm.explain('allreduce').slow}\\n")
"""
WORDS = "mpicoll: compiling kernels in the background, once per machine; using NumPy meanwhile"


@pytest.fixture
def cold_run(mpiexec, tmp_path):
    """Return cold_run(way, ranks): run the program on an empty cache; the compiler process ends in this way."""
    program, cache, go = tmp_path / "program.py", tmp_path / "cache", tmp_path / "go"
    program.write_text(PROGRAM)
    cache.mkdir()
    env = {"NUMBA_CACHE_DIR": str(cache), "MPICOLL_COMPILE": "background", "TMPDIR": str(tmp_path)}

    def run(way, ranks):
        done = mpiexec(ranks, sys.executable, program, go, way, *compiler.command(go=go, way=way), env=env)
        assert done.status == 0, done.output
        lines = done.output.splitlines()
        assert lines.count(WORDS) == 1, done.output
        return lines

    return run


@pytest.mark.quick
@pytest.mark.parametrize("ranks", [1, 3])
def test_every_form_of_call_switches_to_compiled_kernels_and_computes_the_same_bits(cold_run, ranks):
    lines = cold_run(compiler.DELIVERING, ranks)
    assert [f"rank {rank}: ['compiled'] True " in lines for rank in range(ranks)] == [True] * ranks, lines


@pytest.mark.parametrize(("way", "reason"), [
    (compiler.KILLED, "2 compiler processes ended without it"),
    (compiler.FULL_DISK, "2 compiler processes ended without it"),
    (compiler.FAILING, "LoweringError: for this test"),
])  # fmt: skip
def test_a_compiler_process_that_fails_costs_speed_only(cold_run, way, reason):
    lines = cold_run(way, 2)
    served = [line for line in lines if line.startswith("rank ")]
    assert len(served) == 2 and all(line.startswith(f"rank {line[5]}: ['mpi4py'] False") for line in served), lines
    assert any("NumPy's kernel serves, which is slower: " in line and reason in line for line in lines), lines


@pytest.mark.quick
def test_a_senseless_variable_is_refused_on_every_rank(mpiexec):
    program = (
        "import mpicoll; from mpi4py import MPI\n"
        "try: mpicoll.Comm(MPI.COMM_WORLD)\n"
        "except mpicoll.errors.ArgumentError as error: print(error)"
    )
    done = mpiexec(2, sys.executable, "-c", program, env={"MPICOLL_COMPILE": "later"})
    text = "MPICOLL_COMPILE is 'later'; it must be background or wait"  # a launcher may mix the lines of two ranks
    assert done.output.count(text) == 2 and not done.output.replace(text, "").strip(), done.output
