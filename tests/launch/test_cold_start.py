"""On a machine that has compiled nothing yet, programs run at once on NumPy's kernels and switch to compiled ones."""

from __future__ import annotations

import sys

import pytest

# Takes the place of the compiler process: it waits until the program has made its calls, and then delivers what this
# checkout has compiled already, or ends as a compiler process may that fails.
COMPILER = """\
import os, shutil, signal, sys, time
from pathlib import Path
import mpi4py
mpi4py.rc.initialize = False
go, way = Path(sys.argv[1]), sys.argv[2]
while not go.exists():
    time.sleep(0.01)
if way == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if way == "full disk":
    sys.exit(0)
from mpicoll.kernels import background, cache
requests = background.read_requests()
if way == "failing":
    for request in requests:
        sys.stderr.write(f"{request}\\tLoweringError: for this test\\n")
    sys.exit(0)
cold = os.environ.pop("NUMBA_CACHE_DIR")
status = background.compile_all(requests)
import mpicoll
for package in ("kernels", "engines", "fastpath"):
    kept = Path(cache.directory(str(Path(mpicoll.__path__[0], package, "__init__.py"))))
    os.environ["NUMBA_CACHE_DIR"] = cold
    place = cache.directory(str(Path(mpicoll.__path__[0], package, "__init__.py")))
    del os.environ["NUMBA_CACHE_DIR"]
    for file in kept.glob("*.so"):
        shutil.copyfile(file, place / f".{file.name}")
        os.replace(place / f".{file.name}", place / file.name)
sys.exit(status)
"""

PROGRAM = """\
import sys, time
from pathlib import Path
import numpy as np
from mpi4py import MPI
import mpicoll
from mpicoll.kernels import background
go, way, compiler = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
background.COMMAND = sys.executable, compiler, str(go), way
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
    """cold_run(way, ranks) runs the program on an empty cache; the compiler process ends in this way."""
    program, compiler, cache = tmp_path / "program.py", tmp_path / "compiler.py", tmp_path / "cache"
    program.write_text(PROGRAM)
    compiler.write_text(COMPILER)
    cache.mkdir()
    env = {"NUMBA_CACHE_DIR": str(cache), "MPICOLL_COMPILE": "background", "TMPDIR": str(tmp_path)}

    def run(way, ranks):
        done = mpiexec(ranks, sys.executable, program, tmp_path / "go", way, compiler, env=env)
        assert done.status == 0, done.output
        lines = done.output.splitlines()
        assert lines.count(WORDS) == 1, done.output
        return lines

    return run


@pytest.mark.quick
@pytest.mark.parametrize("ranks", [1, 3])
def test_every_form_of_call_switches_to_compiled_kernels_and_computes_the_same_bits(cold_run, ranks):
    lines = cold_run("delivering", ranks)
    assert [f"rank {rank}: ['compiled'] True " in lines for rank in range(ranks)] == [True] * ranks, lines


@pytest.mark.parametrize(("way", "reason"), [
    ("killed", "2 compiler processes ended without it"),
    ("full disk", "2 compiler processes ended without it"),
    ("failing", "LoweringError: for this test"),
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
    assert done.output.splitlines() == ["MPICOLL_COMPILE is 'later'; it must be background or wait"] * 2
