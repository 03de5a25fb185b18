"""What popular texts say about collectives, beside what the schedules are measured to do."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from .describe.catalogue import USUAL, Measured, measured
from .describe.picture import share
from .proofs.symbolic import play
from .schedules.registry import find
from .schedules.schedule import schedule

ODD = 13  # ranks, where the powers of two are to fail


class Misreading(NamedTuple):
    """A sentence, what it would mean in numbers, what is measured, and what holds instead."""

    said: str
    meant: str
    measured: str
    truth: str


def misreadings(p: int = USUAL, odd: int = ODD) -> list[Misreading]:
    """Sentences that are wrong, with the numbers for p ranks."""
    naive, ring, doubling = (_of("allreduce", name, p) for name in ("naive", "ring", "recursive_doubling"))
    scattered, gathered = _of("reduce_scatter", "ring", p).bytes, _of("allgather", "ring", p).bytes
    tree_in, tree_out = _at_root("allreduce", "reduce_bcast", p)
    served_in, served_out = _at_root("allreduce", "parameter_server", p)
    down, chained = _at_root("bcast", "binomial", p)[1], _of("bcast", "chain", p).bytes
    pairwise, bruck = _of("alltoall", "pairwise", p), _of("alltoall", "bruck", p)
    ring_odd, halved_odd = _of("allreduce", "ring", odd).bytes, _of("allreduce", "rabenseifner", odd).bytes
    return [
        Misreading(
            "In a ring allreduce every rank moves (p − 1) n bytes.",
            share(Fraction(p - 1)),
            share(ring.bytes),
            "2 n (p − 1) / p: each of its 2 (p − 1) messages has one p-th of the vector.",
        ),
        Misreading(
            "A ring allreduce takes p − 1 steps.",
            f"{p - 1} steps",
            f"{ring.steps} steps",
            "2 (p − 1): once round to reduce, once more to hand the result on.",
        ),
        Misreading(
            "An allgather after the reduce-scatter costs twice an allreduce.",
            share(2 * ring.bytes),
            f"reduce_scatter {share(scattered)} + allgather {share(gathered)} = {share(scattered + gathered)}, "
            f"allreduce {share(ring.bytes)}",
            "Each is half of an allreduce, and both together are one.",
        ),
        Misreading(
            "Recursive doubling moves n bytes per rank.",
            "n",
            share(doubling.bytes),
            "n lg p: the whole vector in every step. It saves steps, not bytes.",
        ),
        Misreading(
            "The naive allreduce, everybody to everybody, sends each vector once.",
            "n",
            share(naive.bytes),
            "(p − 1) n sent by every rank, and as much received.",
        ),
        Misreading(
            "A tree allreduce, reduce then broadcast, moves 2 n per rank.",
            "n in, n out",
            f"{share(tree_in)} in, {share(tree_out)} out at the root",
            "True of a leaf. The root of a binomial tree takes n lg p in and sends n lg p out.",
        ),
        Misreading(
            "With a parameter server every rank moves n up and n down.",
            "n in, n out",
            f"{share(served_in)} in, {share(served_out)} out at the server",
            "True of the workers; the link of a single server carries (p − 1) n each way.",
        ),
        Misreading(
            "A binomial broadcast sends the vector once from every rank, as a chain does.",
            share(chained),
            f"{share(down)} from the root, chain {share(chained)}",
            "n lg p from the root. For long vectors the chain, cut into chunks, wins.",
        ),
        Misreading(
            "Halving and doubling moves as few bytes as the ring.",
            f"{share(ring_odd)} for p = {odd}",
            f"{share(halved_odd)} for p = {odd}, ring {share(ring_odd)}",
            "For powers of two. Elsewhere ranks that fold into a neighbour first move n more; "
            "binary blocks avoid most of it.",
        ),
        Misreading(
            "Bruck's alltoall moves fewer bytes.",
            f"below {share(pairwise.bytes)}",
            f"{share(bruck.bytes)} in {bruck.steps} steps, pairwise {share(pairwise.bytes)} in {pairwise.steps}",
            "Fewer messages, more bytes: about n/2 lg p, since blocks travel by way of others.",
        ),
    ]


def _of(collective: str, name: str, p: int) -> Measured:
    found = measured(find(collective, name), p)
    assert found is not None
    return found


def _at_root(collective: str, name: str, p: int) -> tuple[Fraction, Fraction]:
    """What rank 0 receives and sends, as a share of the vector."""
    made = schedule(collective, name, p)
    trace, k = play(made), len(made.blocks)
    return Fraction(trace.received[0], k), Fraction(trace.sent[0], k)
