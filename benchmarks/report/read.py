"""Read any results file: its content, never its name, determines which program wrote it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import imb, lines, osu
from .errors import ReadError
from .model import Run

READERS: tuple[tuple[Callable[[str], bool], Callable[[str, str], Run]], ...] = (
    (lines.is_ours, lines.parse),
    (osu.is_osu, osu.parse),
    (imb.is_imb, imb.parse),
)
KNOWN = "the JSON lines of `mpicoll bench --json`, or what the OSU micro-benchmarks or IMB print"


def read(path: str | Path) -> Run:
    """Return the run in a file. Raises ReadError for a file that is missing, empty or of no known kind."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ReadError(f"cannot read {path}: {error.strerror}") from None
    if not text.strip():
        raise ReadError(f"{path} is empty; expected {KNOWN}")
    for recognises, parse in READERS:
        if recognises(text):
            run = parse(str(path), text)
            if not run.rows:
                raise ReadError(f"{path} is from {run.kind} and has no whole result; was the run cut short?")
            return run
    raise ReadError(f"{path} is no results file; expected {KNOWN}")
