"""Contenders to time: MPI's own collective, `auto`, or one algorithm, on one engine or the one mpicoll picks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

NATIVE, AUTO = "native", "auto"
ENGINES = (AUTO, "mpi4py", "compiled")


@dataclass(frozen=True)
class Contender:
    """A communicator, and the context in which its method does what is to be timed."""

    algorithm: str
    engine: str | None
    comm: Any
    context: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def label(self) -> str:
        """Return the algorithm, and the engine where one is forced."""
        return f"{self.algorithm} @{self.engine}" if self.engine in ENGINES[1:] else self.algorithm


def base_name(spec: str) -> str:
    """Return the algorithm's name, without parameters."""
    return spec.partition("(")[0].strip()


def line_up(
    collective: str, names: Sequence[str], engines: Sequence[str], plain: Any, ours: Any, **limits: int | None
) -> list[Contender]:
    """Return every algorithm on every engine; native once, on a plain communicator, as without mpicoll.

    limits: chunk_bytes and window for all of ours, None where not given.
    """
    contenders = []
    for name in names:
        if name == NATIVE:
            contenders.append(Contender(NATIVE, None, plain))
        else:
            contenders += [
                Contender(name, engine, ours, _using(ours, collective, name, engine, limits)) for engine in engines
            ]
    return contenders


def _using(
    ours: Any, collective: str, name: str, engine: str, limits: Mapping[str, int | None]
) -> Callable[[], AbstractContextManager[Any]]:
    forced: dict[str, Any] = {} if name == AUTO else {collective: name}
    if engine != AUTO:
        forced["engine"] = engine
    forced.update((key, value) for key, value in limits.items() if value is not None)
    return (lambda: ours.using(**forced)) if forced else nullcontext
