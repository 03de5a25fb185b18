"""Recorded calls of every algorithm find their schedules, so that `mpicoll explore` can show them."""

from __future__ import annotations

import pytest
from support.command import good
from unit.test_explore import unpacked

PROGRAM = """\
import numpy as np
from mpi4py import MPI
import mpicoll
from mpicoll.schedules.registry import registered
comm = mpicoll.Comm(MPI.COMM_WORLD)
p, root = comm.size, comm.size - 1
x, y = np.ones(840 * p, np.float32), np.empty(840 * p, np.float32)
mine = 840
calls = {
    "barrier": lambda: comm.Barrier(),
    "bcast": lambda: comm.Bcast(x, root),
    "scatter": lambda: comm.Scatter(x if comm.rank == root else None, y[:mine], root),
    "gather": lambda: comm.Gather(x[:mine], y if comm.rank == root else None, root),
    "allgather": lambda: comm.Allgather(x[:mine], y),
    "reduce": lambda: comm.Reduce(x, y if comm.rank == root else None, root=root),
    "reduce_scatter": lambda: comm.Reduce_scatter_block(x, y[:mine]),
    "allreduce": lambda: comm.Allreduce(x, y),
    "scan": lambda: comm.Scan(x, y),
    "exscan": lambda: comm.Exscan(x, y),
    "alltoall": lambda: comm.Alltoall(x, y),
}
for entry in registered():
    name = entry.collective.name
    if name in calls and entry.serves(p):
        for chunk in (None, 1024):
            with comm.using(**{name: entry.name}, **({"chunk_bytes": chunk} if chunk else {})):
                calls[name]()
        print("ran", f"{name}/{entry.name}/p={p}", flush=True) if comm.rank == 0 else None
"""


@pytest.mark.parametrize("ranks", [3, 4])
def test_recorded_calls_of_every_algorithm_are_shown(ranks, mpiexec, tmp_path):
    """Every message of the schedule has a recorded time, of whole blocks and of chunks, on any root."""
    (tmp_path / "program.py").write_text(PROGRAM)
    path, out = tmp_path / "run.json", tmp_path / "page.html"
    done = mpiexec(ranks, "python", "-m", "mpicoll", "run", "--timeline", path, tmp_path / "program.py")
    assert done.status == 0, done.output
    ran = {line.split()[1] for line in done.output.splitlines() if line.startswith("ran ")}
    options = "--network", "infiniband", "--ranks-per-node", ranks, "--algorithms", "ring", "-p", ranks
    good("explore", *options, "--measured", path, "-o", out)
    content = unpacked(out.read_text())
    shown = {key: entry for key, entry in content["schedules"].items() if "measured" in entry}
    assert content["measured"]["notes"] == [] and len(ran) > 70
    assert {key.partition("/root=")[0] for key in shown} == ran
    for key, entry in shown.items():
        calls = entry["measured"]
        assert {call["chunk_bytes"] for call in calls} >= {1024} and len(calls) == 2, key
        for call in calls:
            legs = call["measured"]["messages"]
            assert len(legs) == len(entry["messages"]) and all(leave <= arrive for leave, arrive in legs), key
            assert call["took"][0] <= call["measured"]["us"], key
