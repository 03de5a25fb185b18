"""The file of tables: what is in it stays, beside the table that was measured now."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpicoll.errors import TuningError
from mpicoll.selection.tables import SCHEMA, read, validator


def others(comm: Any, path: Path) -> list[dict[str, Any]]:
    """Return the tables that are in the file.

    A file that is none, or cannot be written, ends all ranks before any work.
    """
    kept, trouble = [], ""
    if comm.rank == 0:
        try:
            validator()     # without which no program can go by the table
            if path.exists():
                read(path)
                kept = json.loads(path.read_text(encoding="utf-8"))["tables"]
            if path.is_dir() or not os.access(path.parent, os.W_OK):
                trouble = f"-o {path}: cannot be written"
        except TuningError as error:
            trouble = f"{error}; name another file with -o"
    if trouble := comm.bcast(trouble) if comm.size > 1 else trouble:
        raise ValueError(trouble)
    return kept


def write(path: Path, others: Sequence[dict[str, Any]], made: dict[str, Any]) -> None:
    """Put the new table in the place of an older one of the same kind; rules of collectives not measured now stay."""
    same = [old for old in others if (old["mpi"], old["nodes"]) == (made["mpi"], made["nodes"])]
    made = {**made, "rules": {**(same[0]["rules"] if same else {}), **made["rules"]}}
    content = {"schema": SCHEMA, "tables": [made, *(old for old in others if old not in same)]}
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)
