"""The examples of docs/SHARP_BITS.md: their headings, whether they need a process of their own, and the code."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "SHARP_BITS.md"
ALONE = "<!-- alone -->\n"
PART = re.compile(r"^### (.*?)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
FENCE = re.compile(rf"({ALONE})?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def beginning() -> str:
    """Return the lines that every example begins with."""
    return FENCE.search(GUIDE.read_text())[2]


def examples(alone: bool) -> dict[str, str]:
    """Return examples by heading: those that need a process of their own if `alone`, else the others."""
    programs = {}
    for heading, text in PART.findall(GUIDE.read_text()):
        (fence,) = FENCE.findall(text)          # each has one
        if bool(fence[0]) == alone:
            programs[heading] = fence[1]
    return programs
