"""Every reader turns its file into a run, with a row for each contender at each size.

A fact that a file does not tell is None. Times are in microseconds, sizes in bytes, rates in bytes per second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mpicoll.schedules.collectives import COLLECTIVES, base_collective

from ..cases.contenders import AUTO, NATIVE, Contender

# What the time of a row is, for what was measured by programs that keep no times of single calls.
MEDIAN_OF_LONGEST = "median over rounds of the longest time over ranks"
MEAN_OF_SLOWEST = "mean over calls, of the slowest rank"
MEAN_OF_ALL = "mean over calls and ranks"
BY_MODEL = "by the cost model"
MODEL = "the cost model"  # the kind of a run


class Setting(NamedTuple):
    """The settings of a collective call; rows of one setting may share a picture."""

    collective: str
    form: str = "blocking"
    dtype: str | None = None
    op: str | None = None
    root: int | str | None = None
    in_place: bool | None = None
    counts: str | None = None
    fresh: bool | None = None

    @property
    def reduces(self) -> bool:
        """Return whether the collective computes, so that the type of its numbers matters beside their bytes."""
        meant = COLLECTIVES.get(base_collective(self.collective))
        return meant is not None and meant.reduces

    @property
    def variant(self) -> str:
        """Return the setting without its collective, in words, of what matters to that collective.

        >>> Setting("reduce", "nonblocking", "float64", "sum", 0, False, "even").variant
        'nonblocking, float64, sum, root 0'
        >>> Setting("bcast", "blocking", "float64", "sum", "rotating").variant
        'blocking, float64, root rotating'
        """
        meant = COLLECTIVES.get(base_collective(self.collective))
        words = [self.form] + [self.dtype] * (meant is None or meant.naming != "none")
        words += [self.op] if meant is None or meant.reduces else []
        words += [f"root {self.root}"] if self.root is not None and (meant is None or meant.rooted) else []
        words += ["in place"] if self.in_place else []
        words += ["fresh arrays"] if self.fresh else []
        words += [f"{self.counts} counts"] if self.counts not in (None, "even") else []
        return ", ".join(word for word in words if word)

    @property
    def title(self) -> str:
        """Return the setting in words."""
        return f"{self.collective}, {self.variant}"


class Place(NamedTuple):
    """The ranks and hosts of a run. where: what else distinguishes it from the runs shown beside it."""

    ranks: int | None
    hosts: int | None
    where: str = ""

    @property
    def title(self) -> str:
        """Return the place in words.

        >>> Place(8, 2, "MPICH 5.0.2").title, Place(1, 1).title, Place(None, None).title
        ('8 ranks on 2 hosts, MPICH 5.0.2', '1 rank on 1 host', 'unknown number of ranks')
        """
        ranks = f"{self.ranks} rank{'s' * (self.ranks != 1)}" if self.ranks else "unknown number of ranks"
        hosts = f" on {self.hosts} host{'s' * (self.hosts != 1)}" if self.hosts else ""
        return f"{ranks}{hosts}{', ' * bool(self.where)}{self.where}"


@dataclass(frozen=True)
class Overlap:
    """The part of a nonblocking call's time that other work can use, in percent, and the times it was computed from."""

    percent: float
    interval: tuple[float, float] | None = None
    overall_us: float | None = None
    compute_us: float | None = None
    init_us: float | None = None
    wait_us: float | None = None


@dataclass(frozen=True)
class Row:
    """One contender at one size.

    median_us: the row's time, what kind of which is said by statistic; None: not timed, the note says why.
    ratio: native's time over this one's. samples_us: a value a round, or percentiles of them if sketched.
    paired: whether its rounds alternated with native's. base: of which size, in words, this one is what it came to on
    so many ranks, where sizes grew or shrank with these. fixed: whether the algorithm is that of fixed rules, which the
    others are compared with; ran has its name.
    """

    setting: Setting
    size: int
    algorithm: str
    engine: str | None = None
    ranks: int | None = None
    hosts: int | None = None
    ran: dict[str, Any] = field(default_factory=dict)
    paired: bool = False
    valid: bool | None = None
    note: str = ""
    median_us: float | None = None
    interval_us: tuple[float, float] | None = None
    statistic: str = MEDIAN_OF_LONGEST
    rounds: int | None = None
    late: int = 0
    algbw: float | None = None
    busbw: float | None = None
    limit_us: float | None = None
    of_limit: float | None = None
    ratio: float | None = None
    ratio_interval: tuple[float, float] | None = None
    verdict: str | None = None
    overlap: Overlap | None = None
    samples_us: tuple[float, ...] = ()
    sketched: bool = False
    base: str = ""
    fixed: bool = False

    @property
    def contender(self) -> str:
        """Return the label of the algorithm, with the engine where one was forced."""
        return Contender(self.algorithm, self.engine, None).label

    @property
    def chose(self) -> str | None:
        """Return the algorithm that auto or fixed rules chose, if the file records it; None for other algorithms."""
        return self.ran.get("algorithm") or None if self.fixed or self.algorithm == AUTO else None

    @property
    def counts_as(self) -> str:
        """Return the label to compare algorithms by: for auto and fixed rules, that of the algorithm chosen."""
        return Contender(self.chose or self.algorithm, self.engine, None).label

    @property
    def ran_as(self) -> tuple[str, str | None]:
        """Return the algorithm and the engine that ran, as far as the file records them."""
        algorithm = self.chose or self.algorithm
        return algorithm, None if algorithm == NATIVE else self.ran.get("engine") or self.engine

    @property
    def label(self) -> str:
        """Return the contender's label and, for auto and fixed rules, the algorithm chosen."""
        return f"{self.contender}: {self.chose}" if self.chose else self.contender

    @property
    def native(self) -> bool:
        """Return whether the algorithm is MPI's own."""
        return self.algorithm == NATIVE

    @property
    def is_reference(self) -> bool:
        """Return whether the others are compared with this row."""
        return self.native or self.fixed

    @property
    def right(self) -> bool:
        """Return whether the row has a time and its answer is not known to be wrong."""
        return self.median_us is not None and self.valid is not False

    @property
    def bandwidth(self) -> float | None:
        """Return the bus bandwidth, or the algorithm bandwidth if the file does not record it."""
        return self.busbw if self.busbw is not None else self.algbw


@dataclass(frozen=True)
class Run:
    """A file: who wrote it, on what, with which settings, and its rows. left_out: lines that were not whole."""

    name: str
    kind: str
    rows: tuple[Row, ...]
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    left_out: int = 0

    @property
    def description(self) -> str:
        """Return one line for people: the file, the program, and the rows read and left out."""
        lost = f"; {self.left_out} line{'s' * (self.left_out != 1)} left out, not whole" if self.left_out else ""
        return f"{self.name}: {self.kind}, {len(self.rows)} row{'s' * (len(self.rows) != 1)}{lost}"
