"""Write the histories of ranks as torch's flight recorder does, so that `torchfrtrace` reads them.

Its analyser (PyTorch 2.13) takes one pickle a rank, and names of operations that begin with a backend that it knows, as
"gloo:all_reduce" does: no other name is taken for mpicoll. It knows neither scans nor neighbours; these calls are left
out, on all ranks alike. A record has no element types, so sizes are in bytes.
"""

from __future__ import annotations

import pickle
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..diagnostics.history_reader import UNKNOWN, Row
from ..schedules.collectives import PERSISTENT
from ..selection.tables import members

PREFIX = "rank_"  # of the files' names, which end with the number of the rank
VERSION = "2.10"  # of the format
BACKEND = "gloo"
NAMES = {
    "barrier": "barrier", "bcast": "broadcast", "reduce": "reduce", "allreduce": "all_reduce", "gather": "gather",
    "scatter": "scatter", "allgather": "_all_gather_base", "reduce_scatter_block": "_reduce_scatter_base",
    "alltoall": "all_to_all", "gatherv": "gather", "scatterv": "scatter", "allgatherv": "all_gather_v",
    "reduce_scatter": "reduce_scatter_v", "alltoallv": "all_to_all", "alltoallw": "all_to_all",
}  # fmt: skip
STATES = {"done": "completed", "left to MPI": "scheduled"}  # of others, "started"
_LOCATION = re.compile(r"(.*), line (\d+), in (.*)")


def write(histories: Mapping[int, Sequence[Row]], folder: Path) -> None:
    """Write a file for each rank into a folder, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    begins = _begins(histories)
    for rank, its_rows in histories.items():
        (folder / f"{PREFIX}{rank}").write_bytes(pickle.dumps(dump(its_rows, begins)))


def _begins(histories: Mapping[int, Sequence[Row]]) -> dict[str, tuple[int, int]]:
    """Return by communicator the first call that the histories of all its ranks reach back to."""
    begins: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for its_rows in histories.values():
        if its_rows and its_rows[0].serial > 1:  # earlier ones were overwritten
            for name in {row.communicator for row in its_rows}:
                first = min((row.call, row.start) for row in its_rows if row.communicator == name)
                begins[name] = max(begins[name], first)
    return begins


def dump(its_rows: Sequence[Row], begins: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """Return the content of a rank's file, with calls from those on that are named for their communicators."""
    entries: list[dict[str, Any]] = []
    groups: dict[str, Any] = {}
    numbers: dict[str, int] = defaultdict(int)
    for row in its_rows:
        name, is_made = row.communicator, row.form == PERSISTENT and not row.start
        torch_name = NAMES.get(_base(row))
        if torch_name is None or is_made or name == UNKNOWN or (row.call, row.start) < begins.get(name, (0, 0)):
            continue
        (ranks,) = members([name.removeprefix("ranks ").partition(" (")[0]])
        groups[name] = {"name": name, "desc": "undefined", "ranks": str([*ranks])}
        numbers[name] += 1
        entries.append(_entry(row, torch_name, len(entries), numbers[name], len(ranks)))
    return {"version": VERSION, "entries": entries, "pg_config": groups, "pg_status": {}}


def _base(row: Row) -> str:
    return row.method.lower().removesuffix("_init").removeprefix("i")


def _entry(row: Row, name: str, record: int, number: int, size: int) -> dict[str, Any]:
    place = _LOCATION.fullmatch(row.location)
    frames = [{"filename": place[1], "line": int(place[2]), "name": place[3]}] if place else []
    sent = row.nbytes // size if name == "_all_gather_base" else row.nbytes
    received = row.nbytes // size if name == "_reduce_scatter_base" else row.nbytes
    began = int(row.began * 1e9)
    return {
        "record_id": record,
        "pg_id": 0,
        "process_group": (row.communicator, "undefined"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"{BACKEND}:{name}",
        "time_created_ns": began,
        "time_discovered_started_ns": began,
        "time_discovered_completed_ns": began + int(row.took * 1e9) if row.took is not None else None,
        "input_sizes": [[sent]],
        "input_dtypes": ["Byte"],
        "output_sizes": [[received]],
        "output_dtypes": ["Byte"],
        "state": STATES.get(row.state, "started"),
        "retired": row.state == "done",
        "is_p2p": False,
        "timeout_ms": 0,
        "frames": frames,
    }
