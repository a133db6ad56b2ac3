"""Modules to shard: every kind of parameter, and every way to use one."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.torch.fsdp.training import filled


class Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """An embedding, three blocks and a head; widths that no rank count divides."""

    def __init__(self, words: int = 11, width: int = 7, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, 3 * width + 1) for _ in range(3))
        self.head = nn.Linear(width, words, bias=not tied)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def model(**kwargs) -> nn.Module:
    return filled(Model(**kwargs))


def tokens(count: int, rows: int, length: int = 3, words: int = 11) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return list(torch.randint(0, words, (count, rows, length), generator=generator))


def next_token_loss(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(module(batch).flatten(0, 1), batch.flatten())
