"""A peer: a program that times collectives of its own, in launches of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

Times = list[float]  # microseconds, one a round: the longest over ranks


class Missing(ValueError):
    """A peer that is not installed here; the message is what is missing and how to get it, in one line."""


class Call(NamedTuple):
    """A collective to time, and its size in bytes as patterns.py defines it."""

    collective: str
    size: int


@dataclass(frozen=True)
class Measured:
    """The times of a call. note: why there are none; valid: None where answers are not checked."""

    samples_us: Times
    valid: bool | None = None
    note: str = ""


class PeerFailed(RuntimeError):
    """A launch that did not complete; the message is its last output, in one line.

    measured: what it had timed until then.
    """

    def __init__(self, message: str, measured: Mapping[Call, Measured] | None = None) -> None:
        super().__init__(message)
        self.measured = dict(measured or {})


class Finished(Protocol):
    """A launch that is over: its exit status, None if time was up, and all that it printed."""

    @property
    def status(self) -> int | None: ...

    @property
    def output(self) -> str: ...


class Launch(Protocol):
    """Starts a program on every rank of a layout, and waits for it. `python` names the environment of its mpiexec."""

    @property
    def ranks(self) -> int: ...

    def __call__(
        self, arguments: Sequence[str], *, python: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Finished: ...


class Peer(Protocol):
    """A program to time beside native. name: as in results; about: name and version, for people."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str: ...

    @property
    def starting(self) -> float:
        """Return the seconds from its launch to its first call, about."""
        ...

    def calls(self, rounds: int) -> int:
        """Return how many calls so many rounds are, those included that are not timed."""
        ...

    def measure(self, launch: Launch, rounds: Mapping[Call, int], directory: Path) -> dict[Call, Measured]:
        """Time these calls in so many rounds each, in one launch or few; files go to the directory, which is shared.

        Raises PeerFailed.
        """
        ...


def checked(done: Finished, name: str, measured: Mapping[Call, Measured] | None = None) -> None:
    """Raise PeerFailed, which has what was measured, unless the launch went well."""
    if done.status:
        words = done.output.strip().splitlines() or ["it said nothing"]
        raise PeerFailed(f"{name} ended with status {done.status}: {words[-1].strip()}", measured)
    if done.status is None:
        raise PeerFailed(f"{name} had to be ended: time was up", measured)
