"""Texts that are compared whole with a file below tests/unit/data. Where they are meant to differ,

    MPICOLL_REWRITE=1 .venv/bin/pytest tests/unit/test_draw.py

writes the files of these tests anew: look at what git shows then.
"""

from __future__ import annotations

import os
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "unit" / "data"


def compare(text: str, name: str) -> None:
    """Compare with DATA/name, without blanks at ends of lines."""
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    file = DATA / name
    if os.environ.get("MPICOLL_REWRITE"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), f"{name}: tests/support/golden.py says how to write it anew"
