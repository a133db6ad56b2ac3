"""Attention of some of the heads; what dropout leaves out does not depend on whose heads."""

from __future__ import annotations

import torch
from torch.nn import functional

from distarray.torch._opaque import untraced
from distarray.torch.parallel.layers._features import Features
from distarray.torch.training._dropout import dropout


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    causal: bool,
    p: float,
    heads: Features,
    need_weights: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the output of each head, and its weights where they are needed.

    Parameters
    ----------
    q, k, v
        (batch, heads, items, features).
    mask
        To be added to the scores.
    causal
        Whether each query sees the keys up to its own position alone; then there is no mask.
    p
        Probability of a weight to be left out.
    heads
        Which of all heads these are.
    need_weights
        Whether weights are returned, with dropout applied.
    """
    if not need_weights and p == 0:
        out = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
        return out, None
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1)
    if not need_weights:
        # Queries that see nothing get zeros from fused kernels, not NaN.
        weights = weights.masked_fill((scores == float("-inf")).all(-1, keepdim=True), 0)
    if p > 0:
        weights = _thinned(weights, p, heads)
    return weights @ v, weights if need_weights else None


@untraced
def _thinned(weights: torch.Tensor, p: float, heads: Features) -> torch.Tensor:
    batch, _, *pairs = weights.shape
    return dropout(weights, p, layout=heads.layout((batch, heads.size, *pairs), 1))
