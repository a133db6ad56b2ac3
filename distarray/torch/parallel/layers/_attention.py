"""Multi-head attention cut by heads: every rank attends with its own, the outputs are added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError, ArgumentTypeError, LayoutError
from distarray.layout import Placement, Replicate, Shard
from distarray.torch._modules import check_own
from distarray.torch._opaque import disable_compile
from distarray.torch.parallel._forward_wrapper import extend
from distarray.torch.parallel._partition_rules import check_stock
from distarray.torch.parallel._slices import keeping_shards
from distarray.torch.parallel.layers._features import Features, gather_input, sum_output
from distarray.torch.training import dropout

_R = Replicate()
Qkv = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_check_own = disable_compile(check_own)
_PARAMETERS = (
    *(("q_proj_weight", 0, 0), ("k_proj_weight", 0, 0), ("v_proj_weight", 0, 0)),
    *(("in_proj_weight", 0, 3), ("in_proj_bias", 0, 3), ("bias_k", 2, 0), ("bias_v", 2, 0)),
)
"""Those of the inputs, the axis along which each is cut, and of how many parts that consists."""


def cut_heads(
    style: Any, module: nn.MultiheadAttention, mesh: DeviceMesh, given: Placement, target: Placement
) -> None:
    """Cut an attention module by whole heads, and hook it.

    The projections of query, key and value are cut by columns and that of the output by rows, so
    that one all-reduce is needed each way (for self-attention); one more forward where weights are
    asked for. Masks and weights are whole on every rank.
    """
    heads_of = f"({module.num_heads} of {module.head_dim})"
    style.refuse_parts(f"a MultiheadAttention knows its parts and heads {heads_of}")
    remedy = "cut its projections by styles of their own, with unit= the size of a head"
    check_stock(module, nn.MultiheadAttention, "ColwiseParallel", remedy)
    _cut_parameters(style, module, mesh)
    heads = Features.in_units(mesh, module.num_heads, 1)

    def run(
        module: Any,
        _: Callable[..., Any],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        _check_own(module.out_proj)
        if is_causal and attn_mask is None:
            raise ArgumentError(
                "is_causal=True says what attn_mask is, but there is none; pass one, made for "
                "instance by nn.Transformer.generate_square_subsequent_mask"
            )
        inputs = _whole((query, key, value), mesh, given)
        batched = query.ndim == 3
        with keeping_shards(inputs):
            q, k, v = _project(module, *(_batch_first(module, x) for x in inputs))
        q, k, v = (_by_heads(x, module.head_dim) for x in (q, k, v))
        mask = None
        only_causal = is_causal and key_padding_mask is None and not need_weights
        if not only_causal:
            mask = _mask(attn_mask, key_padding_mask, heads, (len(q), q.shape[2], k.shape[2]), q)
        k, v, mask = _extend(module, k, v, mask)
        p = module.dropout if module.training else 0.0
        y, weights = _attend((q, k, v), mask, only_causal, p, heads, need_weights)
        y = functional.linear(y.transpose(1, 2).flatten(2), module.out_proj.weight)
        if not batched:
            y = y.squeeze(0)
        elif not module.batch_first:
            y = y.transpose(0, 1)
        y = sum_output(y.contiguous(), mesh, target, module.out_proj.bias)
        if weights is None:
            return y, None
        if average_attn_weights:
            weights = sum_output(weights.sum(1) / module.num_heads, mesh, _R)
        else:
            weights = heads.leave(weights, _R, 1)
        return y, weights if batched else weights.squeeze(0)

    extend(module, arounds=run)


def _cut_parameters(style: Any, module: nn.MultiheadAttention, mesh: DeviceMesh) -> None:
    size, width = module.head_dim, module.embed_dim
    for name, axis, count in _PARAMETERS:
        if getattr(module, name) is not None:
            parts = (width,) * count
            style.distribute(module, name, mesh, [Shard(axis)], parts=parts, unit=size, axis=axis)
    style.distribute(module.out_proj, "weight", mesh, [Shard(1)], unit=size, axis=1)
    if module.out_proj.bias is not None:
        style.distribute(module.out_proj, "bias", mesh, [_R])


def _whole(inputs: Qkv, mesh: DeviceMesh, given: Placement) -> Qkv:
    """Bring the inputs to every rank; one that is passed several times is moved once."""
    query, key, value = inputs
    q = gather_input(query, mesh, given, "the query")
    k = q if key is query else gather_input(key, mesh, given, "the key")
    if value is query:
        return q, k, q
    return q, k, k if value is key else gather_input(value, mesh, given, "the value")


def _batch_first(module: nn.MultiheadAttention, x: torch.Tensor) -> torch.Tensor:
    if x.ndim == 2:
        return x.unsqueeze(0)
    if x.ndim == 3:
        return x if module.batch_first else x.transpose(0, 1)
    raise LayoutError(
        f"query, key and value have 2 or 3 axes, not {x.ndim} (shape {tuple(x.shape)}); flatten "
        "further batch axes"
    )


def _project(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return this rank's features of query, key and value; equal inputs are projected at once."""
    biases = [None] * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    if module.in_proj_weight is not None:
        if query is key and key is value:
            both = functional.linear(query, module.in_proj_weight, module.in_proj_bias)
            return both.chunk(3, -1)
        weights = module.in_proj_weight.chunk(3)
    inputs = (query, key, value)
    return tuple(map(functional.linear, inputs, weights, biases))


def _by_heads(x: torch.Tensor, size: int) -> torch.Tensor:
    """Return (batch, heads, items, size) from (batch, items, features)."""
    return x.unflatten(2, (x.shape[2] // size, size)).transpose(1, 2)


def _extend(
    module: Any, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Append the learnt key and value, and those of zeros; no mask applies to them."""
    if module.bias_k is not None:
        own = [_by_heads(b, module.head_dim) for b in (module.bias_k, module.bias_v)]
        k, v = (
            torch.cat([x, b.expand(len(x), -1, -1, -1)], 2)
            for x, b in zip((k, v), own, strict=True)
        )
    if module.add_zero_attn:
        k, v = (functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
    if mask is not None and k.shape[2] > mask.shape[-1]:
        mask = functional.pad(mask, (0, k.shape[2] - mask.shape[-1]))
    return k, v, mask


def _mask(
    over_pairs: torch.Tensor | None,
    over_keys: torch.Tensor | None,
    heads: Features,
    sizes: tuple[int, int, int],
    like: torch.Tensor,
) -> torch.Tensor | None:
    """Return what to add to the scores of this rank's heads: broadcast to (batch, heads, L, S)."""
    batch, queries, keys = sizes
    found = []
    if over_pairs is not None:
        _check_mask("attn_mask", over_pairs, [(queries, keys), (batch * heads.size, queries, keys)])
        mask = _to_scores(over_pairs, like)
        if mask.ndim == 2:
            mask = gather_input(mask, heads.mesh) if mask.requires_grad else mask
        else:
            mask = heads.take(mask.unflatten(0, (batch, heads.size)), _R, 1)
        found.append(mask if mask.ndim == 4 else mask[None, None])
    if over_keys is not None:
        _check_mask("key_padding_mask", over_keys, [(batch, keys)] + [(keys,)] * (batch == 1))
        mask = _to_scores(over_keys, like)
        mask = gather_input(mask, heads.mesh) if mask.requires_grad else mask
        found.append(mask.reshape(batch, 1, 1, keys))
    if not found:
        return None
    return found[0] if len(found) == 1 else found[0] + found[1]


def _check_mask(name: str, mask: torch.Tensor, shapes: list[tuple[int, ...]]) -> None:
    if tuple(mask.shape) not in shapes:
        raise LayoutError(
            f"{name} has shape {tuple(mask.shape)}; it must be "
            f"{' or '.join(map(str, dict.fromkeys(shapes)))}, on every rank"
        )
    if mask.dtype is not torch.bool and not mask.is_floating_point():
        raise ArgumentTypeError(f"{name} is of {mask.dtype}; masks are bool or floating point")


def _to_scores(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a mask as what is added to scores."""
    if mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, float("-inf"))


# --- heads ----------------------------------------------------------------------------------------


def _attend(
    qkv: Qkv, mask: torch.Tensor | None, causal: bool, p: float, heads: Features, need_weights: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the output of each head, and its weights, after dropout, where they are needed.

    q, k and v are of shape (batch, heads, items, features). The mask is added to the scores; there
    is none where each query sees the keys up to its own position alone (``causal``).
    """
    q, k, v = qkv
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
        weights = _drop_weights(weights, p, heads)
    return weights @ v, weights if need_weights else None


@disable_compile
def _drop_weights(weights: torch.Tensor, p: float, heads: Features) -> torch.Tensor:
    batch, _, *pairs = weights.shape
    return dropout(weights, p, layout=heads.layout((batch, heads.size, *pairs), 1))
