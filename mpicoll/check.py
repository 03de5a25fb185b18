"""Check mode: before a call runs, the ranks compare what they are about to do.

Each rank gives a signature of its call; where they differ, every rank raises, naming who differs in what.
A rank whose own arguments are wrong gives its error instead, so that the others do not wait for it.
"""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import numpy as np
from mpi4py import MPI

from .errors import MismatchError

SIZE = 2048  # bytes of a signature, pickled
LONG = 300  # bytes of one value; ten of them and their names must fit
Signature = dict[str, Any]


class Exchange:
    """A stage: an allgather of signatures on the private communicator, compared when it is in."""

    def __init__(self, comm: MPI.Comm, signature: Signature) -> None:
        self.comm, self.signature = comm, signature
        data = pickle.dumps({what: _short(value) for what, value in signature.items()})
        self.mine = np.zeros(SIZE, np.uint8)
        self.mine[: len(data)] = np.frombuffer(data, np.uint8)
        self.all = np.empty((comm.size, SIZE), np.uint8)
        self.request = comm.Iallgather(self.mine, self.all)

    def advance(self, seconds: float) -> bool:
        """Poll once; when all signatures are in, compare. Raises MismatchError."""
        if not self.request.Test():
            return False
        compare([pickle.loads(row.tobytes()) for row in self.all])
        return True

    @property
    def progress(self) -> tuple[int, int, int]:
        """Nothing moves while signatures are on their way."""
        return 0, 0, 0

    def describe(self) -> list[str]:
        """What it waits for."""
        return ["waits for the signatures of all ranks (MPICOLL_CHECK=1): some rank has not made this call"]


def compare(signatures: list[Signature]) -> None:
    """Raise MismatchError for the first thing the ranks differ in; what a rank leaves None is not compared."""
    for what in (
        "error",
        "sequence",
        "collective",
        "recvcounts",
        "root",
        "bytes",
        "count",
        "type",
        "op",
        "algorithm",
        "chunk_bytes",
    ):
        values = [s.get(what) for s in signatures]
        if what == "error":
            if any(values):
                raise MismatchError("the arguments: a rank refused its own", [v or "fine" for v in values])
            continue
        given = {v for v in values if v is not None}
        if len(given) > 1:
            raise MismatchError(what, values)


def _short(value: Any) -> Any:
    """A value, or what stands for it where it is long: its beginning and a digest of all of it."""
    text = repr(value)
    if len(text.encode()) <= LONG:
        return value
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{text.encode()[: LONG - 40].decode(errors='ignore')}… ({len(text)} characters, {digest})"
