"""Who is timed: MPI's own collective, `auto`, or one algorithm, on one engine or the one mpicoll picks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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
        """The algorithm, and the engine where one is forced."""
        return f"{self.algorithm} @{self.engine}" if self.engine in ENGINES[1:] else self.algorithm


def split_names(text: str) -> list[str]:
    """The names of a comma-separated list, each once; commas in parentheses belong to a name.

    >>> split_names("auto, reduce_bcast(reduce=chain, bcast=chain),auto")
    ['auto', 'reduce_bcast(reduce=chain, bcast=chain)']
    """
    names = [name.strip() for name in re.split(r",(?![^(]*\))", text)]
    return list(dict.fromkeys(name for name in names if name))


def line_up(
    collective: str, names: Sequence[str], engines: Sequence[str], plain: Any, ours: Any
) -> list[Contender]:
    """Every algorithm on every engine; native once, on a plain communicator, as without mpicoll."""
    found = []
    for name in names:
        if name == NATIVE:
            found.append(Contender(NATIVE, None, plain))
        else:
            found += [
                Contender(name, engine, ours, _using(ours, collective, name, engine)) for engine in engines
            ]
    return found


def _using(ours: Any, collective: str, name: str, engine: str) -> Callable[[], AbstractContextManager[Any]]:
    forced = {} if name == AUTO else {collective: name}
    if engine != AUTO:
        forced["engine"] = engine
    return (lambda: ours.using(**forced)) if forced else nullcontext
