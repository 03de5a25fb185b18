"""Fixed rules that the model's choice is compared with: mpicoll's own, a library's, or one algorithm for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mpicoll.errors import MpicollError, UnknownAlgorithm
from mpicoll.plans.plan import WINDOW
from mpicoll.schedules.grouping import Partition
from mpicoll.schedules.registry import list_algorithms, parse_spec
from mpicoll.selection.rules import rules

KIB = 1024
RULES, MPICH = "rules", "mpich"


class Choice(NamedTuple):
    """An algorithm, and in which chunks it runs: None for whole blocks, or those that the model calls the best."""

    algorithm: str
    chunk_bytes: int | None = None
    window: int = WINDOW
    in_best_chunks: bool = False


Choose = Callable[[str, int, int, Partition], Choice | None]  # of collective, bytes of the call, p and nodes


def choices(name: str) -> tuple[str, Choose]:
    """Return fixed rules in words, and the function that chooses by them.

    Raises ValueError for an unknown name, and MpicollError for parameters that no algorithm of the name takes.
    """
    if name in (RULES, MPICH):
        return name, by_rules if name == RULES else mpich
    base = name.partition("(")[0].strip()
    having = [collective for collective, names in list_algorithms().items() if base in names]
    if having:
        parse_spec(having[0], name)
    else:
        known = sorted({*(name for names in list_algorithms().values() for name in names), RULES, MPICH})
        raise ValueError(str(UnknownAlgorithm("choice", name, known)))
    return f"always {name}", lambda collective, nbytes, p, nodes: _always(name, collective, p, nodes)


def by_rules(collective: str, nbytes: int, p: int, nodes: Partition) -> Choice:
    """Choose by mpicoll's fixed rules."""
    rule = next(rule for rule in reversed(rules(collective, p, True, nodes)) if rule.fits(nbytes, p))
    return Choice(rule.algorithm, rule.chunk_bytes, rule.window)


def mpich(collective: str, nbytes: int, p: int, nodes: Partition) -> Choice | None:
    """Choose as MPICH does with its default thresholds, for ranks of which it does not know the nodes.

    Source: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH, 2005;
    the thresholds are the defaults of MPICH's variables MPIR_CVAR_*_MSG_SIZE. None for other collectives.
    """
    choose = OF_MPICH.get(collective)
    return Choice(choose(nbytes, p)) if choose else None


def _mpich_bcast(nbytes: int, p: int) -> str:
    if nbytes < 12 * KIB or p < 8:
        return "binomial"
    medium = nbytes < 512 * KIB and p & (p - 1) == 0
    return "scatter_allgather(allgather=recursive_doubling)" if medium else "scatter_allgather"


def _mpich_allgather(nbytes: int, p: int) -> str:
    if p & (p - 1) == 0:
        return "recursive_doubling" if nbytes < 512 * KIB else "ring"
    return "bruck" if nbytes < 80 * KIB else "ring"


def _mpich_alltoall(nbytes: int, p: int) -> str:
    if nbytes <= 256 * p and p >= 8:
        return "bruck"
    return "linear" if nbytes <= 32 * KIB * p else "pairwise"


OF_MPICH: dict[str, Callable[[int, int], str]] = {  # by bytes of the call and p
    "barrier": lambda nbytes, p: "dissemination",
    "bcast": _mpich_bcast,
    "scatter": lambda nbytes, p: "binomial",
    "gather": lambda nbytes, p: "binomial",
    "allgather": _mpich_allgather,
    "reduce": lambda nbytes, p: "binomial" if nbytes <= 2 * KIB else "rabenseifner",
    "reduce_scatter": lambda nbytes, p: "recursive_halving" if nbytes < 512 * KIB else "pairwise",
    "allreduce": lambda nbytes, p: "recursive_doubling" if nbytes <= 2 * KIB else "rabenseifner",
    "alltoall": _mpich_alltoall,
}


def _always(name: str, collective: str, p: int, nodes: Partition) -> Choice | None:
    """Choose one algorithm; None where it does not serve."""
    try:
        entry, parameters = parse_spec(collective, name)
        entry.resolve(p, nodes, **dict(parameters))
    except MpicollError:
        return None
    return Choice(name, in_best_chunks=True)
