"""The file of tables, before anything is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpicoll.cli.group import unwritable
from mpicoll.errors import TuningError
from mpicoll.selection.tables import read, validator


def check(comm: Any, path: Path) -> None:
    """Raise ValueError on all ranks, before any work, for a file that holds no tables or cannot be written."""
    trouble = ""
    if comm.rank == 0:
        try:
            validator()     # without which no program can go by the table
            if path.exists():
                read(path)
            if trouble := unwritable(path):
                trouble = f"-o {path}: {trouble}"
        except TuningError as error:
            trouble = f"{error}; name another file with -o"
    if trouble := comm.bcast(trouble) if comm.size > 1 else trouble:
        raise ValueError(trouble)
