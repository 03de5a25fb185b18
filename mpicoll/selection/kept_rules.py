"""Keep the model's rules in files, so that a later run on the same ranks and network need not evaluate the model.

The rules are the same on every rank, whether a rank reads or computes them. A file is for one collective, number and
placement of ranks, and network, and for the sources from which its rules were computed. A damaged file is replaced.
"""

from __future__ import annotations

import json
import os
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np

from .. import user_cache
from ..cost.network import Network
from ..kernels.digest import digest
from ..schedules.grouping import Partition
from .modelled import modelled_rules
from .rules import UNKNOWN_TO_ALL, Rule
from .uneven import EVEN, uneven_rules

FILES = 256  # that are kept, the newest
SOURCES = "algorithms", "cost", "plans", "schedules", "selection"


@lru_cache(maxsize=256)
def kept_rules(
    network: Network,
    collective: str,
    p: int,
    commutative: bool,
    nodes: Partition | None,
    forced: str = "",
    skew: int = EVEN,
) -> tuple[Rule, ...]:
    """Return the rules of modelled_rules, or of uneven_rules for a class of skew.

    They are read from a file if an earlier run wrote it.
    """

    def new() -> tuple[Rule, ...]:
        if skew:
            return uneven_rules(network, collective, p, commutative, nodes, skew)
        return modelled_rules(network, collective, p, commutative, nodes, forced)

    is_fixed = collective in UNKNOWN_TO_ALL and network.rough
    path = None if is_fixed else _path(network, collective, p, commutative, nodes, forced, skew)
    if path is None:
        return new()
    text = user_cache.read(path)
    if text is None:
        text = json.dumps(new())
        if user_cache.read(path) is None:  # no other rank has written it meanwhile
            user_cache.write(path, user_cache.with_checksum(text), FILES)
    return tuple(Rule(*row) for row in json.loads(text))


def _path(
    network: Network, collective: str, p: int, commutative: bool, nodes: Partition | None, forced: str, skew: int
) -> Path | None:
    """Return the file for these arguments and sources; None if there is no home directory, or no source file."""
    directory, sources = user_cache.directory("rules"), _sources()
    if directory is None or not sources:
        return None
    text = f"{sources} {network!r} {collective} {p} {commutative} {nodes} {forced} {skew}"
    return directory / f"{digest(text.encode(), 16).hex()}.json"


@lru_cache(maxsize=1)
def _sources() -> str:
    """Return versions, and names, sizes and times of change of the sources; "" if they are not in files."""
    package = Path(__file__).parent.parent
    try:
        files = sorted(
            (file.name, file.stat().st_size, file.stat().st_mtime_ns)
            for name in SOURCES
            for file in os.scandir(package / name)
            if file.name.endswith(".py")
        )
    except OSError:
        return ""
    return f"{sys.version} {np.__version__} {files}"
