"""The error of sums by codes, beside its bound, for any number of ranks: simulated in one process, without MPI.

    python -m mpicoll.benchmarks.train.errors --ranks 2,3,8,13,64

Each rank contributes a vector: normal numbers, or the gradient of its own part of a batch of digits after some steps of
training. What an allreduce on codes gives is computed as its schedule has it: contributions are encoded once, but for a
block's owner, reduced in float32, and the sum is encoded once more. Errors and bounds are parts of the sum's largest
element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from rich.table import Table

from mpicoll.cli.group import OneLineCommand, asking
from mpicoll.compression import Codec, parse
from mpicoll.schedules.blocks import offsets, sizes
from mpicoll.training.modules import cross_entropy, parameters

from ..command.checks import listed, positive
from ..command.console import console
from ..command.results_file import write_lines
from .compressed import network
from .data import Digits, load

NAME = "mpicoll.benchmarks.train.errors"
CODECS = "bfloat16,float8_e4m3fn,int8,int4,topk(fraction=0.01)"
RANDOM, GRADIENTS = "normal", "gradients"


@dataclass(frozen=True)
class Error:
    """The error of one sum: the largest, the mean, and the largest bound, as parts of the sum's largest element."""

    data: str
    codec: str
    ranks: int
    largest: float
    mean: float
    bound: float
    within: bool


@click.command(cls=OneLineCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--ranks", default="2,3,8,13,64", help="Numbers of ranks.")
@click.option("--codecs", default=CODECS, help="Codecs of mpicoll.compression.")
@click.option("--elements", default=1 << 16, help="Of normal numbers.")
@click.option("--steps", default=20, help="Of training, before gradients are taken.")
@click.option("--json", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON lines.")
def errors(ranks: str, codecs: str, elements: int, steps: int, path: Path | None) -> None:
    """Hold the error of sums by codes against its bound."""
    with asking():
        counts = [int(positive("--ranks", int(word))) for word in listed("--ranks", ranks)]
        chosen = [parse(word) for word in listed("--codecs", codecs)]
        positive("--elements", elements)
    data, rows = load(), list[Error]()
    for p in counts:
        normal = np.random.default_rng(p).standard_normal((p, elements)).astype(np.float32)
        for name, vectors in ((RANDOM, normal), (GRADIENTS, gradients(data, p, steps))):
            rows += [measured(name, codec, vectors) for codec in chosen]
    console().print(table(rows))
    if path:
        write_lines(path, rows)


def gradients(data: Digits, p: int, steps: int) -> np.ndarray:
    """Return the gradients of p ranks, a row each, after steps on whole batches."""
    units, draw = network(np.random.default_rng(0), 128), np.random.default_rng(1)
    for step in range(steps + 1):
        rows = draw.permutation(len(data.x))[: 8 * p]
        parts = np.array_split(rows, p)
        vectors = []
        for part in parts:
            for parameter in parameters(units):
                parameter.zero_grad()
            x, saved = data.x[part].astype(np.float32), []
            for unit in units:
                x, state = unit.forward(x)
                saved.append(state)
            _, dy = cross_entropy(x, data.y[part])
            for unit, state in zip(reversed(units), reversed(saved)):
                dy = unit.backward(dy, state)
            vectors.append(np.concatenate([parameter.grad.ravel() for parameter in parameters(units)]))
        if step < steps:
            total, at = np.sum(vectors, axis=0) / len(rows), 0
            for parameter in parameters(units):
                parameter.value -= 0.3 * total[at : at + parameter.size].reshape(parameter.shape)
                at += parameter.size
    return np.array(vectors, np.float32)


def measured(data: str, codec: Codec, vectors: np.ndarray) -> Error:
    """Return the error of the sum of some vectors by codes."""
    p, n = vectors.shape
    got, bound = np.zeros(n), np.zeros(n)
    lengths = sizes(n, p)
    for owner, (first, length) in enumerate(zip(offsets(lengths), lengths)):
        part = np.ascontiguousarray(vectors[:, first : first + length])
        total, allowed = part[owner].copy(), np.zeros(length)
        for rank in range(p):
            if rank != owner:
                total += codec.decode(codec.encode(part[rank]), length)
                allowed += codec.error_bound(part[rank])
        rounding = p * 2.0**-24 * np.abs(part).sum(axis=0, dtype=np.float64)  # of the sum in float32
        bound[first : first + length] = allowed + codec.error_bound(total) + rounding
        got[first : first + length] = codec.decode(codec.encode(total), length)
    exact = vectors.sum(axis=0, dtype=np.float64)
    error, largest = np.abs(got - exact), float(np.abs(exact).max())
    within = bool((error <= bound).all())
    return Error(data, str(codec), p, error.max() / largest, error.mean() / largest, bound.max() / largest, within)


def table(rows: Sequence[Error]) -> Table:
    """Return a row for each sum."""
    rich_table = Table(title="sums by codes; parts of the largest element of the sum", title_justify="left")
    for name in ("data", "codec", "ranks", "largest error", "mean error", "bound", "within"):
        rich_table.add_column(name, justify="left" if name in ("data", "codec") else "right")
    for row in rows:
        numbers = (f"{number:.1e}" for number in (row.largest, row.mean, row.bound))
        rich_table.add_row(row.data, row.codec, str(row.ranks), *numbers, "yes" if row.within else "NO")
    return rich_table


if __name__ == "__main__":
    errors(prog_name=f"python -m {NAME}")
