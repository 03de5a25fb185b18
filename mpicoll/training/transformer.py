"""A small transformer for text, as units that can be put on any rank: an embedding, blocks, a head.

Weights are drawn whole from one generator in one order, and then cut for the ranks that share a layer: so the model is
the same however many ranks hold it. On one rank it is a transformer like any other (Vaswani et al., 2017; normalised
before each layer, as in GPT-2, 2019).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .modules import Array, Bias, Gelu, LayerNorm, Linear, Module, Parameter, Residual, Sequential
from .tensor_parallel import Copied, Gathered, Joined, Reduced, Scattered, Split, share


@dataclass(frozen=True)
class Shape:
    """The sizes of a transformer; width is a multiple of heads."""

    vocabulary: int
    context: int = 32
    width: int = 32
    heads: int = 4
    blocks: int = 2
    dtype: Any = np.float64

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width is {self.width} and heads are {self.heads}; width must be a multiple of heads")


class Embedding(Module):
    """A vector for every token, and one for its position, added."""

    def __init__(self, tokens: Array, positions: Array) -> None:
        self.tokens, self.positions = Parameter(tokens), Parameter(positions)
        self.own = [self.tokens, self.positions]

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return the vectors of tokens (batch, position)."""
        return self.tokens.value[x] + self.positions.value[: x.shape[1]], x

    def backward(self, dy: Array, saved: Any) -> Array:
        """Return nothing: tokens have no gradient."""
        np.add.at(self.tokens.grad, saved, dy)
        self.positions.grad[: saved.shape[1]] += dy.sum(axis=0)
        return dy[:0]


class Attention(Module):
    """Causal attention of some heads; the input has their queries, keys and values side by side."""

    def __init__(self, heads: int, depth: int) -> None:
        self.heads, self.depth = heads, depth

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return the heads' outputs side by side."""
        batch, length, _ = x.shape
        q, k, v = x.reshape(batch, length, 3, self.heads, self.depth).transpose(2, 0, 3, 1, 4)
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(self.depth)
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares = powers / powers.sum(axis=-1, keepdims=True)
        return (shares @ v).transpose(0, 2, 1, 3).reshape(batch, length, self.heads * self.depth), (q, k, v, shares)

    def backward(self, dy: Array, saved: Any) -> Array:
        """Return the gradients of queries, keys and values side by side."""
        q, k, v, shares = saved
        batch, length, _ = dy.shape
        out = dy.reshape(batch, length, self.heads, self.depth).transpose(0, 2, 1, 3)
        inner = out @ v.swapaxes(-1, -2)
        scores = shares * (inner - (inner * shares).sum(axis=-1, keepdims=True)) / np.sqrt(self.depth)
        every = np.stack([scores @ k, scores.swapaxes(-1, -2) @ q, shares.swapaxes(-1, -2) @ out])
        dx: Array = every.transpose(1, 3, 0, 2, 4).reshape(batch, length, 3 * self.heads * self.depth)
        return dx


class Weights:
    """Weights of a transformer, drawn whole on every rank, in the order of the units."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape, self.draw = shape, np.random.default_rng(seed)

    def __call__(self, rows: int, columns: int) -> Array:
        """Return a matrix that keeps the size of what it is multiplied with."""
        return self.draw.normal(0, 1 / np.sqrt(rows), (rows, columns)).astype(self.shape.dtype)

    def zeros(self, n: int) -> Array:
        """Return a bias."""
        return np.zeros(n, self.shape.dtype)


def block(weights: Weights, comm: Any, by_positions: bool) -> Module:
    """Return a block of which this rank has some heads, and some columns of the layer that is four times as wide."""
    shape = weights.shape
    width, depth = shape.width, shape.width // shape.heads
    heads, hidden = share(shape.heads, comm), share(4 * width, comm)
    columns = slice(heads.start * depth, heads.stop * depth)
    inward = weights(width, 3 * width).reshape(width, 3, width)[:, :, columns]
    outward, up, down = weights(width, width)[columns], weights(width, 4 * width), weights(4 * width, width)
    attention = Sequential(
        Linear(inward.reshape(width, 3 * outward.shape[0])),
        Attention(heads.stop - heads.start, depth),
        Linear(outward),
    )
    mlp = Sequential(Linear(up[:, hidden], weights.zeros(hidden.stop - hidden.start)), Gelu(), Linear(down[hidden]))
    first, second, bias = LayerNorm(width, shape.dtype), LayerNorm(width, shape.dtype), Bias(weights.zeros(width))
    for parameter in (*first.own, *second.own, *bias.own):
        parameter.partial = by_positions
    enter, leave = (Gathered, Scattered) if by_positions else (Copied, Reduced)
    return Sequential(
        Residual(first, enter(comm), attention, leave(comm)),
        Residual(second, enter(comm), mlp, leave(comm), bias),
    )


def units(shape: Shape, comm: Any, seed: int = 0, by_positions: bool = False) -> Iterator[Module]:
    """Yield the units one after the other, cut among the ranks of comm; by_positions: between the pairs of layers too.

    Ranks may have no head at all, where there are more ranks than heads.
    """
    weights = Weights(shape, seed)
    embedding = Embedding(weights(shape.vocabulary, shape.width), weights(shape.context, shape.width))
    yield Sequential(embedding, Split(comm)) if by_positions else embedding
    for _ in range(shape.blocks):
        yield block(weights, comm, by_positions)
    head = LayerNorm(shape.width, shape.dtype), Linear(weights(shape.width, shape.vocabulary))
    yield Sequential(Joined(comm), *head) if by_positions else Sequential(*head)
