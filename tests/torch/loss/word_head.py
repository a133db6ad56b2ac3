"""A linear head over words, its inputs and its targets."""

from __future__ import annotations

import torch

BATCH, LENGTH, WIDTH, WORDS = 2, 3, 4, 7


def _values(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(5))


def setting() -> tuple[torch.nn.Linear, torch.Tensor, torch.Tensor]:
    """Return the head, inputs of shape (BATCH, LENGTH, WIDTH), and a word for each of them."""
    model = torch.nn.Linear(WIDTH, WORDS).double()
    with torch.no_grad():
        model.weight.copy_(_values(WORDS, WIDTH))
        model.bias.copy_(_values(WORDS))
    target = torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % WORDS
    return model, _values(BATCH, LENGTH, WIDTH), target
