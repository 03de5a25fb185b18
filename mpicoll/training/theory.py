"""Compute what each pattern should send and hold, in bytes per rank and step, from the sizes of its model.

n is the bytes of all parameters, p the number of ranks, unit the bytes of the largest unit. state says how many numbers
an optimizer remembers of each parameter: 1 for momentum, 2 for Adam. Sent is what the rank that sends most sends, by
the algorithms that send least.
"""

from __future__ import annotations

from typing import NamedTuple


class Expected(NamedTuple):
    """Bytes that a rank sends in a step, and the most that it holds of parameters, gradients and optimizer state."""

    sent: float
    parameters: float
    gradients: float
    state: float


def data_parallel(n: float, p: int, state: int) -> Expected:
    """Return what an allreduce of all gradients takes, with everything on every rank."""
    return Expected(2 * n * (p - 1) / p, n, n, state * n)


def master(n: float, p: int, state: int) -> Expected:
    """Return what a reduction to rank 0 and a broadcast take: who is between it and others sends n twice or more."""
    return Expected(2 * n, n, n, state * n)


def zero(n: float, p: int, state: int, stage: int, unit: float) -> Expected:
    """Return what reduce-scatter and allgather take; in stage 3 a second allgather, and two whole units at a time."""
    exchange = n * (p - 1) / p
    both = min(n, 2 * unit)
    parameters = n if stage < 3 else n / p + both
    gradients = n + n / p if stage == 1 else n / p + both
    return Expected((3 if stage == 3 else 2) * exchange, parameters, gradients, state * n / p)


def parameter_server(n: float, p: int, state: int, servers: int) -> Expected:
    """Return what servers take that send their parts to all others directly, and their gradients to other servers."""
    part = n / servers
    return Expected((p - 1) * part + n - part, n, n, state * part)


def tensor_parallel(activations: float, blocks: int, p: int) -> float:
    """Return the bytes sent for so many blocks: two pairs of layers each, an allreduce forward and backward of each."""
    return 4 * blocks * 2 * activations * (p - 1) / p


def batch_norm(features: int, itemsize: int, layers: int, p: int) -> float:
    """Return the bytes sent for normalisations: 2 features + 1 numbers forward, 2 features backward."""
    return layers * 2 * (4 * features + 1) * itemsize * (p - 1) / p


def exchange(nbytes: float, p: int) -> float:
    """Return the bytes sent for an all-to-all of a rank's nbytes."""
    return nbytes * (p - 1) / p


def pipeline(activations: float, stages: int) -> float:
    """Return the bytes sent by a stage: activations forward, their gradients backward; in the middle both."""
    return activations * min(2, stages - 1)
