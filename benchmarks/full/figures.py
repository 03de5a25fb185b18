"""Targets of mpicoll between two ranks of one machine, and the ratios that launches reached.

A ratio is native's time over mpicoll's. Ratios of one launch differ less among themselves than launches do, so several
launches are made, and of what they say the median counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..cases.contenders import AUTO
from ..measure.stats import geometric_mean


@dataclass(frozen=True)
class Figure:
    """A run of `mpicoll bench`, and the ratios that each MPI has to reach: at every size, and as geometric mean."""

    name: str
    words: str
    seconds: float
    per_size: Mapping[str, float] | None = None
    mean: Mapping[str, float] | None = None


def on(mpich: float, openmpi: float | None = None, intel: float | None = None) -> dict[str, float]:
    """Return a number for each MPI; the first, where there is no other.

    >>> on(1.5, intel=1.0)
    {'mpich': 1.5, 'openmpi': 1.5, 'intel': 1.0}
    """
    return {
        "mpich": mpich,
        "openmpi": mpich if openmpi is None else openmpi,
        "intel": mpich if intel is None else intel,
    }


OTHERS = "bcast,scatter,gather,allgather,reduce,scan,exscan,alltoall,scatterv,gatherv,allgatherv,alltoallv,alltoallw"
FIGURES = {
    figure.name: figure
    for figure in (
        Figure("small", "allreduce --sizes 8,64,512,4K", 4, per_size=on(0.9)),
        Figure("fresh", "allreduce --sizes 8,64,512,4K --fresh", 4, per_size=on(0.9)),
        Figure("persistent", "allreduce --sizes 8,64,512,4K --form persistent", 4, per_size=on(1.0)),
        Figure("medium", "allreduce --sizes 8K,16K,32K,64K,128K", 5, mean=on(1.5, intel=1.0)),
        Figure("large", "allreduce --dtype float32 --sizes 256K,1M,4M,16M,64M", 12, on(0.9), on(1.5, 1.4, 1.1)),
        Figure("reduce-scatter", "reduce_scatter_block --sizes 256K,1M,4M,16M", 6, mean=on(1.3)),
        Figure("others", f"{OTHERS} --sizes 256K,1M,4M,16M", 40, per_size=on(0.9)),
    )
}

Ratios = dict[tuple[str, int], float]  # by collective and size


def ratios(rows: Sequence[Mapping[str, Any]]) -> Ratios:
    """Return what one launch says of auto."""
    return {
        (row["collective"], row["size"]): row["ratio"]
        for row in rows
        if row["algorithm"] == AUTO and row["ratio"] is not None
    }


def by_row(launches: Sequence[Ratios]) -> dict[tuple[str, int], list[float]]:
    """Return the value of each launch by collective and size, the least first."""
    by_key = defaultdict[tuple[str, int], list[float]](list)
    for launch in launches:
        for key, ratio in launch.items():
            by_key[key].append(ratio)
    return {key: sorted(values) for key, values in by_key.items()}


@dataclass(frozen=True)
class Reached:
    """One target, `asked`: what it applies to, the ratio of each launch, and the rows whose median is below it."""

    what: str
    asked: float
    launches: Sequence[float]
    below: Sequence[tuple[str, int]] = ()

    @property
    def value(self) -> float:
        """Return the median over launches, which is compared with the target."""
        return median(self.launches)

    @property
    def is_met(self) -> bool:
        """Return whether the median reaches the target."""
        return self.value >= self.asked


def reached(figure: Figure, mpi: str, launches: Sequence[Ratios]) -> list[Reached]:
    """Return how a figure's targets fared on one MPI; a target for every size has the row with the least median."""
    targets, rows = [], by_row(launches)
    if not rows:
        return []
    if figure.mean is not None:
        means = sorted(geometric_mean([*launch.values()]) for launch in launches if launch)
        targets.append(Reached("geometric mean", figure.mean[mpi], means))
    if figure.per_size is not None:
        asked = figure.per_size[mpi]
        worst = min(rows, key=lambda key: median(rows[key]))
        below = [key for key in rows if median(rows[key]) < asked]
        targets.append(Reached("at every size", asked, rows[worst], below))
    return targets
