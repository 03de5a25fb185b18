"""Settings from the environment. Rank 0 reads and broadcasts them when a Comm is made, so that all ranks agree.

MPICOLL_ENGINE    auto (default), mpi4py or compiled
MPICOLL_COMPILE   background (default): use NumPy's kernels until compiled ones are ready; wait: compile first
MPICOLL_CHECK     1: exchange a signature of each call and raise on every rank where they differ
MPICOLL_TIMEOUT   seconds after which a stalled call is reported and the run aborted (unset: the call is reported after
                  300 s, without an abort); a call that can never complete is reported within seconds
MPICOLL_PROGRESS  0: no progress thread for nonblocking collectives
MPICOLL_TUNING    a tuning table written by `mpicoll tune`, which auto uses; read once
MPICOLL_NETWORK   the network by a model of which auto goes where a tuning table says nothing: a file, the name of a
                  preset, or `measure` to measure it when the first Comm is made. Unset: measured too, but what an
                  earlier run measured stands while it holds. `none`: fixed rules, the same on every machine
MPICOLL_LEARN     1 or bits: the first blocking calls of a size take turns among algorithms that give the same bits,
                  and later ones use the fastest; any: among all. What is learned goes to the table of MPICOLL_TUNING
MPICOLL_LOG       info: rank 0 logs to standard error, for every call, what ran and why
MPICOLL_TIMELINE  a file to which, as the program ends, rank 0 writes what the collectives of all ranks did, and when
MPICOLL_ACCUMULATE  float32: sums of elements of less than 32 bits are rounded once, at the end; none (default): at
                  every fold
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..cost.network import Network, network
from ..errors import ArgumentError
from .select import BITS, NO, check_accumulate, check_learn
from .tables import Tuning, once

ENGINES = ("auto", "mpi4py", "compiled")
REPORT_AFTER = 300.0
MEASURE, NONE = "measure", "none"
SHORT = {"": NO, "0": NO, "1": BITS}  # of MPICOLL_LEARN


@dataclass(frozen=True)
class Settings:
    """One communicator's settings; timeout in seconds."""

    engine: str = "auto"
    check: bool = False
    timeout: float = REPORT_AFTER
    abort: bool = False
    progress: bool = True
    tuning: Tuning | None = None
    network: Network | None = None  # that the user names
    measures_network: bool = True
    keeps_network: bool = True  # whether what an earlier run measured stands while it holds
    learn: str = NO
    log: bool = False
    timeline: str = ""  # the file to write
    accumulate: str = "none"

    @property
    def watched(self) -> bool:
        """Return whether a stall of MPI's own collectives must be reported too."""
        return self.check or self.abort


def read(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read settings from MPICOLL_* variables. Raises TuningError, or ArgumentError for an invalid variable."""
    engine = environ.get("MPICOLL_ENGINE", "auto")
    if engine not in ENGINES:
        raise ArgumentError(f"MPICOLL_ENGINE is {engine!r}; it must be one of {', '.join(ENGINES)}")
    compiles = environ.get("MPICOLL_COMPILE", "background")
    if compiles not in ("background", "wait"):
        raise ArgumentError(f"MPICOLL_COMPILE is {compiles!r}; it must be background or wait")
    seconds = environ.get("MPICOLL_TIMEOUT")
    learn = check_learn("MPICOLL_LEARN", SHORT.get(value := environ.get("MPICOLL_LEARN", ""), value))
    return Settings(
        engine=engine,
        check=_flag(environ, "MPICOLL_CHECK", False),
        timeout=REPORT_AFTER if seconds is None else _seconds(seconds),
        abort=seconds is not None,
        progress=_flag(environ, "MPICOLL_PROGRESS", True),
        tuning=once(path, may_be_absent=learn != NO) if (path := environ.get("MPICOLL_TUNING", "")) else None,
        network=network(name) if (name := environ.get("MPICOLL_NETWORK", "")) not in ("", MEASURE, NONE) else None,
        measures_network=name in ("", MEASURE),
        keeps_network=not name,
        learn=learn,
        timeline=_writable(environ.get("MPICOLL_TIMELINE", "")),
        log=_is_info(environ.get("MPICOLL_LOG", "")),
        accumulate=check_accumulate("MPICOLL_ACCUMULATE", environ.get("MPICOLL_ACCUMULATE", "") or "none"),
    )


def _is_info(text: str) -> bool:
    if text not in ("", "info"):
        raise ArgumentError(f"MPICOLL_LOG is {text!r}; it must be info or nothing")
    return text == "info"


def _writable(path: str) -> str:
    if path and (Path(path).is_dir() or not os.access(Path(path).parent, os.W_OK)):
        raise ArgumentError(f"MPICOLL_TIMELINE is {path!r}, which cannot be written; name a file in a directory")
    return str(Path(path).absolute()) if path else ""  # the program may change its directory


def _flag(environ: Mapping[str, str], name: str, default: bool) -> bool:
    value = environ.get(name, str(int(default)))
    if value not in ("0", "1"):
        raise ArgumentError(f"{name} is {value!r}; it must be 0 or 1")
    return value == "1"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentError(f"MPICOLL_TIMEOUT is {text!r}; it must be a number of seconds above 0")
    return value
