"""Docstrings are plain text: code in single backquotes, and indented blocks that are shown verbatim."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

MARKUP = re.compile(r"(`[^`]*`)|([\\*|]|_(?!\w))")  # or code, which stays
NO_TEXT = re.compile(r"<(?:[^<>]|<\w+>)*>")


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
        read.append(line if inside else MARKUP.sub(lambda match: match[1] or f"\\{match[2]}", line))
    lines[:] = read


def leave_out_fields(app: Sphinx, what: str, name: str, of: object, skip: bool, options: dict[str, Any]) -> bool | None:
    """Leave out the fields of a named tuple, of which Python says their numbers; its signature has them."""
    return True if type(of).__name__ == "_tuplegetter" else None


def shorten_defaults(
    app: Sphinx, what: str, name: str, of: object, options: dict[str, Any], signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Show a default that has no text of its own, such as a lambda, as three dots."""
    return signature and NO_TEXT.sub("...", signature), returns


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx."""
    app.connect("autodoc-process-docstring", read_as_plain)
    app.connect("autodoc-skip-member", leave_out_fields)
    app.connect("autodoc-process-signature", shorten_defaults)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
