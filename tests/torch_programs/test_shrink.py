"""Process groups that become smaller: ranks leave, or, on Open MPI with fault tolerance, are killed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import launcher
import pytest

LIMIT = 180
PAGE = Path(__file__).resolve().parents[2] / "docs" / "SURVIVING.md"
PROGRAMS = [text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "torch" in text]
START = """
import os, signal, sys
import torch, torch.distributed as dist
from mpi4py import MPI
import mpicoll.torch
from mpicoll.errors import CommError, FaultToleranceError, ProcFailedError
dist.init_process_group("mpicoll")
me = MPI.COMM_WORLD.rank

def total(group=None):
    value = torch.ones(3)
    dist.all_reduce(value, group=group)
    return int(value[0])

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + chr(10))
    sys.stdout.flush()
"""
LEAVE = """
other = dist.new_group([0, 2])
try:
    mpicoll.torch.shrink()
except FaultToleranceError as error:
    say("refused:", error)
if me != 1:
    new = dist.shrink_group([1])
    assert new is dist.group.WORLD and dist.get_process_group_ranks(new) == [0, 1]
    assert (dist.get_rank(), dist.get_world_size(), total()) == (me // 2, 2, 2)
    value = torch.full((2,), float(dist.get_rank()))
    dist.broadcast(value, src=1)
    everyone = [None, None]
    dist.all_gather_object(everyone, me)
    again = dist.new_group([1, 0])
    say("left:", me, int(value[0]), everyone, total(again))
    dist.destroy_process_group()
"""
GROUP = """
group = dist.new_group()
for wrong, kind in (([], ValueError), ([3], ValueError), ([0, 1, 2], ValueError), ([me], RuntimeError)):
    try:
        dist.shrink_group(wrong, group)
    except kind:
        continue
    raise AssertionError(wrong)
if me != 0:
    group = dist.shrink_group([0], group)
    assert dist.get_world_size() == 3 and dist.get_process_group_ranks(group) == [1, 2]
    say("of the group:", total(group))
say("of all:", total())
"""
KILLED = """
def die(*ranks):
    if me in ranks:
        os.kill(os.getpid(), signal.SIGKILL)

try:
    mpicoll.torch.shrink()
except CommError as error:
    say("refused:", error)
half = dist.new_group([0, 1])
for victims, shrink in (((0, 2), mpicoll.torch.shrink), ((3,), lambda: dist.shrink_group([1]))):
    assert total() == dist.get_world_size()
    die(*victims)
    try:
        total()
    except ProcFailedError as error:
        pass
    group = shrink()
    assert group is dist.group.WORLD
    group = dist.new_group([0, 1])
    say("after", victims, ":", dist.get_world_size(), total(), total(group) if dist.get_rank() < 2 else 2)
os._exit(0)
"""
of_openmpi = pytest.mark.skipif(launcher.flavour() != "openmpi", reason="group: needs Open MPI")


def ran(tmp_path: Path, text: str, ranks: int, *options: str) -> str:
    """Run a program, and return what it printed."""
    program = tmp_path / "program.py"
    program.write_text(text)
    mpiexec, *rest = launcher.command(ranks, [sys.executable, "-W", "ignore", str(program)])
    done = subprocess.run([mpiexec, *options, *rest], capture_output=True, text=True, timeout=LIMIT,
                          env=launcher.environment())
    output = done.stdout + done.stderr
    assert "Traceback" not in output, output
    return output


def test_ranks_that_leave(tmp_path):
    output = ran(tmp_path, START + LEAVE, 3)
    assert output.count("refused: Shrink does not work here after a rank has failed") == 3, output
    assert sorted(re.findall("left: .*", output)) == ["left: 0 1 [0, 2] 2", "left: 2 1 [0, 2] 2"], output


def test_a_group_that_ranks_leave(tmp_path):
    output = ran(tmp_path, START + GROUP, 3)
    assert output.count("of the group: 2") == 2 and output.count("of all: 3") == 3, output


@of_openmpi
def test_ranks_that_are_killed(tmp_path):
    """The rank that serves the store, and another; then one more, named by the others."""
    output = ran(tmp_path, START + KILLED, 6, "--with-ft", "ulfm")
    assert output.count("refused: no rank of process group 0 has failed") == 6, output
    assert output.count("after (0, 2) : 4 4 2") == 4 and output.count("after (3,) : 3 3 2") == 3, output


@of_openmpi
def test_training_goes_on(tmp_path):
    output = ran(tmp_path, PROGRAMS[0], 4, "--with-ft", "ulfm")
    assert output.count("trained on 3 ranks") == 3, output


@of_openmpi
@pytest.mark.timeout(2 * LIMIT)
def test_sharded_training_goes_on(tmp_path):
    """The losses equal those of a run in which no rank is killed."""
    runs = [ran(tmp_path, f"import sys; sys.argv.append({word!r})\n{PROGRAMS[1]}", 4, "--with-ft", "ulfm")
            for word in ("", "kill")]  # fmt: skip
    losses = [re.findall(r"loss after (\d+) steps on (\d) ranks: (\S+)", output) for output in runs]
    assert [[ranks for _, ranks, _ in of] for of in losses] == [["4"] * 4, ["4", "4", "3", "3"]], runs
    whole, killed = ([float(loss) for *_, loss in of] for of in losses)
    assert killed == pytest.approx(whole, rel=1e-4), runs
