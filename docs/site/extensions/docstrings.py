"""Docstrings are plain text: code in single backquotes, and indented blocks that are shown as they stand."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

MARKUP = re.compile(r"(`[^`]*`)|([\\*|]|_(?!\w))")  # or code, which stays


def read_as_plain(app: Sphinx, what: str, name: str, of: object, options: dict[str, Any], lines: list[str]) -> None:
    """Mark each indented block after an empty line as literal, and escape what would be markup elsewhere."""
    read: list[str] = []
    inside = False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not inside and read and not read[-1]:
            read += ["::", ""]
            inside = True
        elif line and not indented:
            inside = False
        read.append(line if inside else MARKUP.sub(lambda found: found[1] or f"\\{found[2]}", line))
    lines[:] = read


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx."""
    app.connect("autodoc-process-docstring", read_as_plain)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
