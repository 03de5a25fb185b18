"""Errors about a results file, in one line that names it."""

from __future__ import annotations

from mpicoll.errors import MpicollError


class ReadError(MpicollError, ValueError):
    """A file that holds no results this version reads."""
