"""Models to train: a network of equal layers for the time of steps, and a small GPT that learns."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

EMBEDDING, BLOCKS, HEADS, CONTEXT = 128, 4, 4, 64  # 0.8 million


def network(width: int, layers: int) -> Any:
    """Return so many linear layers of a width, with ReLU between them."""
    units: list[Any] = []
    for _ in range(layers):
        units += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*units[:-1])


class Block(nn.Module):  # type: ignore[misc]
    """Attention to what came before, and a network of two layers; both add to their input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rise, self.fall = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """Return what goes to the next block, (windows, positions, width) as it came."""
        windows, positions, width = x.shape
        parts = self.attend(self.before(x)).view(windows, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2)
        x = x + self.join(attended.reshape(windows, positions, width))
        return x + self.fall(gelu(self.rise(self.between(x))))


class Gpt(nn.Module):  # type: ignore[misc]
    """A decoder over characters: embeddings, blocks, and an output for each character."""

    def __init__(self, characters: int, width: int = EMBEDDING, blocks: int = BLOCKS, heads: int = HEADS) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(characters, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)

    def forward(self, tokens: Any) -> Any:
        """Return a score for each character at each position of some windows of tokens."""
        x = self.characters(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))


def loss_of_text(scores: Any, expected: Any) -> Any:
    """Return the mean cross entropy of the characters that follow."""
    return cross_entropy(scores.flatten(0, 1), expected.flatten())


def parameters_of(model: Any) -> int:
    """Return how many parameters a model has."""
    return sum(parameter.numel() for parameter in model.parameters())
