"""Proofs kept from one run of `mpicoll verify` to the next, for as long as no source that they depend on changes.

One file in the user's cache directory holds the proofs of one state of the sources. Its name is a digest of everything
that a proof runs: the source files, and the versions of Python and NumPy. A file that is damaged is ignored. Only
proofs that held are kept, and none while an algorithm from outside the package is registered: such an algorithm also
becomes a part of the algorithms that are proved with every algorithm of a collective.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable
from pathlib import Path

from .. import user_cache
from .proofs import Name, Proof, Task

PACKAGE = Path(__file__).resolve().parent.parent
# What a proof imports; tests/unit/test_kept_proofs.py holds this list against the modules that are loaded.
SOURCES = ("schedules", "algorithms", "plans", "proofs", "compression", "kernels", "cli/proofs.py", "errors.py")
FILES = 8  # files that are kept, the newest


class KeptProofs:
    """The proofs of earlier runs, and those of this run, which save() adds to them."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known = _read(path) if path is not None else {}
        self.new: dict[str, list[float]] = {}

    def split(self, tasks: Iterable[Task]) -> tuple[list[Proof], list[Task]]:
        """Return the proofs that are kept, and the tasks left to prove."""
        proofs, left = [], []
        for name, p in tasks:
            if (kept := self.known.get(_key(name, p))) is None:
                left.append((name, p))
            else:
                proofs.append(Proof(name, p, int(kept[0]), kept[1]))
        return proofs, left

    def add(self, proof: Proof) -> None:
        """Keep a proof, if it holds."""
        if proof.failure is None and proof.unfit is None and proof.schedules:
            self.new[_key(proof.algorithm, proof.p)] = [proof.schedules, proof.seconds]

    def save(self) -> None:
        """Write the proofs, if no source has changed since the run began and the directory can be written."""
        if self.path is None or not self.new or self.path != _path():
            return
        text = json.dumps({**_read(self.path), **self.new})
        user_cache.write(self.path, user_cache.with_checksum(text), FILES)


def kept_proofs(use: bool) -> KeptProofs:
    """Return the proofs kept for these sources; an empty collection that saves nothing if they are not to be used."""
    return KeptProofs(_path() if use and not _has_foreign_algorithms() else None)


def source_files() -> list[Path]:
    """Return the files that a proof depends on."""
    files: list[Path] = []
    for name in SOURCES:
        place = PACKAGE / name
        files += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return files


def _path() -> Path | None:
    """Return the file for the sources as they are now; None if they cannot be read."""
    import numpy

    digest = hashlib.sha256(f"{platform.python_version()} {numpy.__version__}".encode())
    try:
        for file in source_files():
            content = file.read_bytes()
            digest.update(f"\n{file.relative_to(PACKAGE)} {len(content)}\n".encode())
            digest.update(content)
    except OSError:
        return None
    directory = user_cache.directory("proofs")
    return directory and directory / f"{digest.hexdigest()}.json"


def _has_foreign_algorithms() -> bool:
    """Return whether an algorithm is registered that the digest of the sources does not cover."""
    from ..schedules.registry import registered

    own = f"{__package__.partition('.')[0]}.algorithms."
    return any(not entry.body.__module__.startswith(own) for entry in registered())


def _key(algorithm: Name, p: int) -> str:
    return " ".join((*algorithm, str(p)))


def _read(path: Path) -> dict[str, list[float]]:
    """Return the proofs in a file; none if it is absent or damaged."""
    text = user_cache.read(path)
    proofs: dict[str, list[float]] = {} if text is None else json.loads(text)
    return proofs
