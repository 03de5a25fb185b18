"""Files that later runs read, in the user's cache directory: $XDG_CACHE_HOME/mpicoll, or ~/.cache/mpicoll."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

__all__ = ["directory", "read", "with_checksum", "write"]


def directory(name: str) -> Path | None:
    """Return the directory of files of one kind, which may not exist yet; None where there is no home directory."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mpicoll" / name
    except RuntimeError:
        return None


def write(path: Path, text: str, most: int | None = None) -> None:
    """Write a file, of which another process reads all or nothing. Do nothing if it cannot be written.

    most: how many files with its suffix remain in its directory, the newest.
    """
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        if most is not None:
            files = sorted(path.parent.glob(f"*{path.suffix}"), key=lambda file: file.stat().st_mtime, reverse=True)
            for old in files[most:]:
                old.unlink()


def with_checksum(text: str) -> str:
    """Return a text for read(), which has a checksum in its first line."""
    return f"{zlib.crc32(text.encode()):08x}\n{text}"


def read(path: Path) -> str | None:
    """Return a text that was written with a checksum; None if it is damaged, or there is none."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    text = content.partition("\n")[2]
    return text if content == with_checksum(text) else None
