"""Timelines of torch programs, and torch's analyser of flight records on those of a run that hangs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import faults
import launcher
import pytest
from support.trace_events import check_format

from mpicoll.timeline import read

LIMIT = 60
FSDP = """\
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
torch.set_num_threads(1)
dist.init_process_group("gloo")
net = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Linear(30, 40))
for layer in (*net, net):
    fully_shard(layer)
for _ in range(3):
    net(torch.ones(2, 40)).sum().backward()
dist.all_reduce(torch.ones(5))
dist.destroy_process_group()
"""
HANGS = """\
import sys, time
import torch, torch.distributed as dist
import mpicoll.torch
dist.init_process_group("mpicoll")
x = torch.ones(10)


def step():
    dist.all_reduce(x)


def load():
    dist.broadcast(x, 0)


def sleep():
    time.sleep(100)


for _ in range(100):  # the ranks compare the first calls of a group, and raise if they differ
    step()
{"rank that makes another call": load, "rank that sleeps": sleep}[sys.argv[1]]() if dist.get_rank() == 2 else step()
time.sleep(100)
"""


def test_a_step_of_fsdp_in_a_timeline(tmp_path):
    """Every message has its two ends, and torch's operations their names."""
    path, program = tmp_path / "t.json", tmp_path / "program.py"
    program.write_text(FSDP)
    words = [sys.executable, "-W", "ignore", "-m", "mpicoll", "run", "--torch", "--timeline", path, program]
    line = launcher.command(3, [str(word) for word in words])
    environment = {name: value for name, value in launcher.environment().items()
                   if name not in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")}
    done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(path.read_text())
    facts = content["otherData"]
    assert check_format(content) == facts["messages"] > 20 and facts["unmatched_messages"] == 0
    recorded = read.read(path)
    names = {parts[0].facts["collective"] for parts in recorded.calls.values()}
    assert {"allgather", "reduce_scatter", "allreduce"} <= names
    spans = [part for part in recorded.program if part.name.startswith("torch:")]
    counts = {name: [part.rank for part in spans if part.name == name].count(0) for name in {s.name for s in spans}}
    assert counts["torch:allreduce"] == 1 and len({part.rank for part in spans}) == 3
    sharded = sum(counts[name] for name in counts if "reduce_scatter" in name)
    assert sharded == 6, counts  # of two layers with parameters, in three steps
    (last,) = (part for part in spans if part.rank == 0 and part.name == "torch:allreduce")
    (call,) = (part for parts in recorded.calls.values() for part in parts
               if part.rank == 0 and part.facts["collective"] == "allreduce" and part.facts["bytes"] == 20)
    assert last.began <= call.began and call.ended <= last.ended


@pytest.mark.parametrize("fault", ["rank that makes another call", "rank that sleeps"])
def test_torchs_analyser_names_the_culprit(tmp_path, fault):
    program, records, dumps = tmp_path / "program.py", tmp_path / "records", tmp_path / "dumps"
    program.write_text(HANGS)
    process = faults.start([sys.executable, "-W", "ignore", str(program), fault], records)
    try:
        deadline = time.monotonic() + LIMIT
        while (verdict := faults.report(records, "--torch", str(dumps)).get("verdict")) not in ("stalled", "mismatch"):
            assert time.monotonic() < deadline, verdict
    finally:
        faults.end(process, records)
    tool = Path(sys.executable).parent / "torchfrtrace"
    done = subprocess.run([tool, dumps], capture_output=True, text=True, timeout=LIMIT)
    words = done.stdout + done.stderr
    if fault == "rank that sleeps":
        assert "Not all ranks joining collective" in words and "missing ranks: {2}" in words, words
        assert "step at program.py:9" in words, words
    else:
        assert "Culprit rank 2; Error type: COLLECTIVE_TYPE_MISMATCH" in words and "has errors" in words, words
