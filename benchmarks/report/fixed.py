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
RULES, MPICH, OPENMPI = "rules", "mpich", "openmpi"


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
    named: dict[str, Choose] = {RULES: by_rules, MPICH: mpich, OPENMPI: openmpi}
    if name in named:
        return name, named[name]
    base = name.partition("(")[0].strip()
    having = [collective for collective, names in list_algorithms().items() if base in names]
    if having:
        parse_spec(having[0], name)
    else:
        known = sorted({*(name for names in list_algorithms().values() for name in names), *named})
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


def openmpi(collective: str, nbytes: int, p: int, nodes: Partition) -> Choice | None:
    """Choose as Open MPI up to 4.0 does by the fixed decisions of its component coll/tuned.

    Source: J. Pjesivac-Grbovic and others, Performance analysis of MPI collective operations, 2007; the numbers are
    those of ompi/mca/coll/tuned/coll_tuned_decision_fixed.c, measured on Myrinet. None for other collectives.
    """
    choose = OF_OPENMPI.get(collective)
    return choose(nbytes, p) if choose else None


def _openmpi_bcast(nbytes: int, p: int) -> Choice:
    if nbytes < 2048:
        return Choice("binomial")
    if nbytes < 370728:
        return Choice("split_binary", KIB)
    if p < 1.6134e-6 * nbytes + 2.1102:
        return Choice("chain", 128 * KIB)
    if p < 13:
        return Choice("split_binary", 8 * KIB)
    if p < 2.3679e-6 * nbytes + 1.1787:
        return Choice("chain", 64 * KIB)
    return Choice("chain", 16 * KIB if p < 3.2118e-6 * nbytes + 8.7936 else 8 * KIB)


def _openmpi_reduce(nbytes: int, p: int) -> Choice:
    kib = nbytes / KIB
    if p < 8 and nbytes < 512:
        return Choice("linear")
    if (p < 8 and kib < 20) or kib < 2:
        return Choice("binomial")
    if p > 0.6016 * kib + 1.3496:
        return Choice("binomial", KIB)
    if p > 0.0410 * kib + 9.7128:
        return Choice("chain", KIB)
    if p > 0.0422 * kib + 1.1614:
        return Choice("binary_tree", 32 * KIB)
    return Choice("chain", 32 * KIB if p > 0.0033 * kib + 1.6761 else 64 * KIB)


def _openmpi_reduce_scatter(nbytes: int, p: int) -> Choice:
    power = p & (p - 1) == 0
    few_bytes = nbytes <= (256 if power else 12) * KIB or p >= 0.0012 * nbytes + 8
    return Choice("recursive_halving" if few_bytes else "ring")


def _openmpi_allgather(nbytes: int, p: int) -> Choice:
    if nbytes < 50000:
        return Choice("recursive_doubling" if p & (p - 1) == 0 else "bruck")
    return Choice("ring" if p % 2 else "neighbor_exchange")


def _openmpi_allreduce(nbytes: int, p: int) -> Choice:
    if nbytes < 10000:
        return Choice("recursive_doubling")
    return Choice("ring", None if nbytes <= p << 20 else 1 << 20)


def _openmpi_alltoall(nbytes: int, p: int) -> Choice:
    if nbytes < 200 * p and p > 12:
        return Choice("bruck")
    return Choice("linear" if nbytes < 3000 * p else "pairwise")


OF_OPENMPI: dict[str, Callable[[int, int], Choice]] = {  # by bytes of the call and p
    "barrier": lambda nbytes, p: Choice("dissemination" if p & (p - 1) else "recursive_doubling"),
    "bcast": _openmpi_bcast,
    "allgather": _openmpi_allgather,
    "reduce": _openmpi_reduce,
    "reduce_scatter": _openmpi_reduce_scatter,
    "allreduce": _openmpi_allreduce,
    "alltoall": _openmpi_alltoall,
}


def _always(name: str, collective: str, p: int, nodes: Partition) -> Choice | None:
    """Choose one algorithm; None where it does not serve."""
    try:
        entry, parameters = parse_spec(collective, name)
        entry.resolve(p, nodes, **dict(parameters))
    except MpicollError:
        return None
    return Choice(name, in_best_chunks=True)
