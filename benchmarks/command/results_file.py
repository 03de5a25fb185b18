"""Open the file for results: the one that was named, or else a new one in the user's state directory."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import click

KEPT = 100  # results files in the state directory; older ones are deleted


@contextlib.contextmanager
def opened(path: str | None, comm: Any, name: str) -> Iterator[IO[str] | None]:
    """Provide the file on rank 0, None elsewhere; a path that cannot be written ends all ranks.

    Without a path it is a new file for the benchmark of that name in the user's state directory, and rank 0 prints
    its name at the end: a user who did not ask for a file still has the results.
    """
    with contextlib.ExitStack() as stack:
        file, trouble = None, None
        if comm.rank == 0:
            try:
                where = kept(name) if path is None else Path(path)
                file = stack.enter_context(where.open("w", encoding="utf-8"))
            except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
                why = getattr(error, "strerror", None) or error
                if path is None:
                    click.echo(f"results are kept nowhere, {why}; --json FILE keeps them", err=True)
                else:
                    trouble = f"--json {path}: {why}"
        trouble = comm.bcast(trouble)
        if trouble:
            raise click.UsageError(trouble)
        try:
            yield file
        finally:
            if path is None and file is not None:
                click.echo(f"results: {file.name}")


def kept(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return where to make a new file in the user's state directory, of which the KEPT newest stay. Raises OSError."""
    state = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = Path(state) / "mpicoll"
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.glob("*.jsonl"), key=lambda file: file.stat().st_mtime)[: -KEPT + 1]:
        old.unlink(missing_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return folder / f"{name}-{stamp}-{os.getpid()}.jsonl"


def write_lines(path: Path, records: Iterable[Any]) -> None:
    """Write records, dataclasses, as a file of JSON lines."""
    path.write_text("".join(json.dumps(asdict(record)) + "\n" for record in records), encoding="utf-8")
