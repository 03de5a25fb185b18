"""Whole programs of torch.distributed: how they start, how they end, and what is said where they cannot."""

import os
import subprocess
import sys
import time
from pathlib import Path

import launcher
import pytest

LIMIT = 90


def ran(tmp_path, text, ranks=2, before=(), environment=None):
    """Return the output and exit status of a program on so many ranks."""
    program = tmp_path / "program.py"
    program.write_text(text)
    command = launcher.command(ranks, [sys.executable, "-W", "ignore", *before, str(program)])
    surroundings = {key: value for key, value in launcher.environment().items()
                    if key not in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")}
    surroundings |= environment or {}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=surroundings)
    return done.stdout + done.stderr, done.returncode


START = """
import sys, time
from datetime import timedelta
import torch, torch.distributed as dist
import mpicoll.torch
dist.init_process_group("mpicoll")
rank = dist.get_rank()
"""
GLOO = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1000) * (dist.get_rank() + 1)
dist.all_reduce(value)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(40, 40))
model(torch.ones(2, 40)).sum().backward()
sys.stdout.write(f"sum {value[0].item()} {dist.get_backend()} {type(dist.group.WORLD).__module__}" + chr(10))
del model  # a group of Gloo that ends with the process may abort it
dist.destroy_process_group()
"""


def test_one_line_is_enough(tmp_path):
    output, status = ran(tmp_path, START + "value = torch.ones(3)\ndist.all_reduce(value)\nprint(value[0].item())")
    assert status == 0 and output.count("2.0") == 2


def test_slow_imports_are_left_to_programs_that_use_them():
    heavy = ("sympy", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor", "rich", "pandas")
    text = f"import sys, mpicoll.torch; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=LIMIT)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_an_unmodified_program_of_gloo(tmp_path):
    run = ["-m", "mpicoll", "run", "--torch", "--summary", "--using", "allreduce=ring"]
    output, status = ran(tmp_path, GLOO, 3, run, {"COLUMNS": "150"})
    assert status == 0 and output.count("sum 6.0 gloo mpicoll.torch.start") == 3
    assert "torch.distributed" in output and "broadcast" in output
    row = next(line for line in output.splitlines() if line.split()[:1] == ["allreduce"])
    assert row.split()[2] == "ring"


def test_an_unmodified_program_of_torchs_own_mpi_backend(tmp_path):
    output, status = ran(tmp_path, GLOO.replace('"gloo"', '"mpi"'), 2, ["-m", "mpicoll", "run", "--torch"])
    assert status == 0 and output.count("sum 3.0 mpi mpicoll.torch.group") == 2


def test_more_groups_of_torchs_own_mpi_backend(tmp_path):
    """torch makes these without a store."""
    text = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("mpi")
for backend in (None, "gloo"):
    value = torch.ones(1)
    dist.all_reduce(value, group=dist.new_group(backend=backend))
    sys.stdout.write(f"sum {value.item()}" + chr(10))
"""
    output, status = ran(tmp_path, text, 2, ["-m", "mpicoll", "run", "--torch"])
    assert status == 0 and output.count("sum 2.0") == 4


def test_gloo_itself_meets_by_mpi_too(tmp_path):
    """Without DDP, after which torch 2.13 on Gloo aborts at its exit now and then, also without mpicoll."""
    plain = "".join(line for line in GLOO.splitlines(keepends=True) if "model" not in line)
    output, status = ran(tmp_path, "import mpicoll.torch\n" + plain)
    assert status == 0 and output.count("sum 3.0 gloo") == 2 and "mpicoll.torch" not in output


BIG = """
x = torch.full(((1 << 31) + 7,), rank + 1, dtype=torch.int8)
dist.all_reduce(x)
assert x.min() == x.max() == 3
x[-1] = 5 + rank
dist.broadcast(x, 1)
assert x[-1] == 6 and x[-2] == 3
if rank == 0:
    dist.send(x, 1)
else:
    x.zero_()
    dist.recv(x, 0)
    assert x[0] == x[-2] == 3 and x[-1] == 6
del x
y = torch.full(((1 << 30) + 9,), rank + 1.0, dtype=torch.bfloat16)
dist.all_reduce(y)
assert y.min() == y.max() == 3
(one, other) = [each for each in mpicoll.torch.explain() if each.kind.operation == "allreduce"]
print("choices", one.choice.algorithm != "native", other.choice.algorithm != "native")
"""


def test_more_than_two_gibibytes(tmp_path):
    output, status = ran(tmp_path, START + BIG)
    assert status == 0 and output.count("choices True True") == 2


def test_the_log_names_buckets_and_algorithms(tmp_path):
    text = START + "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(40, 40))\n" \
                   "model(torch.ones(2, 40)).sum().backward()\n"
    output, status = ran(tmp_path, text, environment={"MPICOLL_LOG": "info"})
    assert status == 0 and "torch's allreduce of DDP's bucket 0 in group 0: 6560 bytes of float32" in output
    assert "allreduce of 6560 bytes on 2 ranks: " in output


# -- what is no world


def test_torchrun_starts_processes_that_mpi_knows_nothing_of(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(START)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*command, "--log-dir", tmp_path, program], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode
    warnings = [f"torch was told that this is rank {rank} of 2, and MPI says rank 0 of 1" for rank in range(2)]
    assert any(warning in done.stderr for warning in warnings)  # torchrun ends the other when one ends
    assert "mpiexec -n 4 python" in done.stderr


def test_a_launcher_of_another_mpi(tmp_path):
    """It starts two processes that are rank 0 of 1 each."""
    program = tmp_path / "program.py"
    program.write_text(START)
    environment = {**os.environ, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=LIMIT, env=environment)
    assert done.returncode == 1
    assert "OMPI_COMM_WORLD_SIZE says that 2 processes were started, and each is rank 0 of 1" in done.stderr


def test_a_process_alone(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(START + "dist.barrier()\nprint(dist.get_world_size())")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stdout.strip()) == (0, "1")


def test_other_ranks_than_mpis(tmp_path):
    text = START.replace('("mpicoll")', '("mpicoll", rank=0, world_size=1)')
    output, status = ran(tmp_path, text)
    assert status and "torch was told that this is rank 0 of 1, and MPI says rank" in output


REFUSED = """
import sys
import torch, torch.distributed as dist
import mpicoll.torch
from mpi4py import MPI
wrong = {"device_id": torch.device("cpu:0")}     # torch refuses it when the ranks have met
rank = MPI.COMM_WORLD.rank
"""


BY_FILE = "**{'store': dist.FileStore(sys.argv[0] + '.store'), 'rank': rank, 'world_size': 3}"


@pytest.mark.parametrize(("refused", "meet"), [((0,), ""), ((0, 1, 2), ""), ((1,), BY_FILE)],
                         ids=["the first", "all", "one that meets in a file"])
def test_a_group_that_torch_refuses_on_some_ranks(tmp_path, refused, meet):
    """All ranks raise at once; the timeout is half an hour."""
    text = f"""
try:
    dist.init_process_group('mpicoll', **(wrong if rank in {refused} else {{}}), {meet})
except Exception as error:  # one write, since tracebacks of several ranks mix
    sys.stdout.write(f"raised {{type(error).__name__}}: {{error}}" + chr(10))
"""
    output, status = ran(tmp_path, REFUSED + text, 3)
    own = "raised ValueError: init_process_group device_id"
    assert status == 0 and output.count(own) == 3  # in the words of others too
    words = f"raised CommError: process group 0 was not made, since rank {refused[0]} raised ValueError: init_process"
    assert output.count(words) == 3 - len(refused)


def test_a_second_group_that_torch_refuses_on_one_rank(tmp_path):
    """The first group can be used after that, and another can be made."""
    text = REFUSED + """
dist.init_process_group("mpicoll")
for attempt in range(2):
    try:
        dist.new_group(**(wrong if rank == attempt else {}))
    except ValueError:
        assert rank == attempt
    except RuntimeError as error:
        assert f"since rank {attempt} raised ValueError" in str(error) and rank != attempt
for group in (None, dist.new_group(), dist.new_group()):
    value = torch.ones(1)
    dist.all_reduce(value, group=group)
    sys.stdout.write(f"sum {value.item()}" + chr(10))
"""
    output, status = ran(tmp_path, text, 3)
    assert status == 0 and output.count("sum 3.0") == 9


def test_a_rank_that_is_given_another_number(tmp_path):
    text = """
try:
    dist.init_process_group('mpicoll', **({'rank': 1, 'world_size': 3} if rank < 2 else {}))
except RuntimeError as error:
    sys.stdout.write(f"raised {error}" + chr(10))
"""
    output, status = ran(tmp_path, REFUSED + text, 3)
    words = "torch was told that this is rank 1 of 3, and MPI says rank 0 of 3"
    assert status == 0 and output.count(f"raised {words}") == 1
    assert output.count(f"raised the ranks did not meet, since rank 0 raised CommError: {words}") == 2


# -- how they end


@pytest.mark.parametrize("end", ["", "dist.destroy_process_group()", "del work"])
def test_a_program_that_ends_with_work_under_way(tmp_path, end):
    text = f"work = dist.all_reduce(torch.ones(1 << 20), async_op=True)\ngroup = dist.new_group()\n{end}\nprint('over')"
    output, status = ran(tmp_path, START + text)
    assert status == 0 and output.count("over") == 2


@pytest.mark.parametrize(
    ("call", "first"),
    [
        ("dist.all_reduce(torch.ones(4))", "Allreduce"),
        ("dist.all_reduce(torch.ones(4), async_op=True).get_future().wait()", "Iallreduce"),
        ("torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))", "Iallgather"),
        ("dist.recv(torch.ones(4), 1)", "recv from rank 1"),
    ],
)
def test_no_rank_waits_for_a_rank_that_has_ended(tmp_path, call, first):
    begun = time.monotonic()
    output, status = ran(tmp_path, START + f"if rank == 1: raise RuntimeError('the loader broke')\n{call}")
    assert status and "StallError" in output and first in output and "was given up after" in output
    assert "the loader broke" in output and time.monotonic() - begun < 30


def test_a_bucket_that_another_rank_never_reduces(tmp_path):
    """Backward waits in C++, where errors come out as torch's."""
    text = START + """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for step in range(40): model(torch.ones(2, 4)).sum().backward()
if rank == 1: sys.exit(0)
try:
    model(torch.ones(2, 4)).sum().backward()
except RuntimeError as error:
    print("told:", error)
"""
    output, status = ran(tmp_path, text)
    assert "StallError" in output and "rank 1 has not made this call: reached the end of the program" in output
    assert "told:" in output and status == 0


def test_versions_are_said_where_torch_is_missing():
    text = "import sys; sys.modules['torch'] = None; import mpicoll.torch"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=Path("/"))
    assert "pip install 'mpicoll[torch]'" in done.stderr
