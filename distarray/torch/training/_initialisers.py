"""Initialisers that know shards: each rank draws the whole parameter and keeps its block.

A shard is a plain tensor. torch's initialisers would take it for the whole: with one seed every
rank would draw the same block, and fans would be computed from the block's shape. So torch's
functions that fill a tensor in place, by chance or by position, give way to functions that look
whether it is a shard. Of one they make the whole, for as long as the call
lasts, let torch fill that, and copy the block: so values are those of one process with the same
seed, on any number of ranks. There is no other place to notice: plain tensors reach no
``__torch_function__`` outside of a mode, and a mode costs every call of every function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Final

import torch
from torch import nn

from distarray.comm import token
from distarray.errors import ArgumentError
from distarray.torch._buffers import digest_of
from distarray.torch._compat import FANS, base_of, function_mode_depth, is_wrapped
from distarray.torch._layouts import Placed, all_placed, is_sharded, own_placed
from distarray.torch._random import read_state
from distarray.torch._shards import block_of

_RANDOM = (
    *("bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_"),
    "uniform_",
)
"""Methods of tensors. Those that fill with one number do the same to a block."""
_BY_NUMBER = ("calculate_gain", "constant_", "ones_", "zeros_", "constant")
"""Functions of ``torch.nn.init`` that do the same to a block, or to no tensor."""

ORIGINALS: Final[dict[Any, Any]] = {}
"""torch's own methods by ours, which modes are told of where a program calls torch's."""


@cache
def watch_initialisers() -> None:
    """Replace torch's initialisers, once in a process."""
    for name in _RANDOM:
        own = getattr(torch.Tensor, name)
        aware = _make_aware(own, records=True)
        ORIGINALS[aware] = own
        setattr(torch.Tensor, name, aware)
    for name in (*nn.init.__all__, FANS):
        if name not in _BY_NUMBER:
            setattr(nn.init, name, _make_aware(getattr(nn.init, name), records=False))


def _make_aware(function: Callable[..., Any], *, records: bool) -> Callable[..., Any]:
    """Return a function of a tensor that works on the whole of a shard.

    ``records`` tells whether autograd is to know of it, which refuses parameters.
    """
    name = function.__name__

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        tensor: Any = args[0] if args else kwargs.get("tensor")
        placed = _find_shard(tensor, name)
        if placed is None:
            return function(*args, **kwargs)
        kwargs.pop("tensor", None)
        if name == FANS:
            return function(torch.empty(placed.layout.shape, device="meta"))
        _check(name, tensor, placed, [*args[1:], *kwargs.values()])
        whole = torch.empty(placed.layout.shape, dtype=tensor.dtype, device=tensor.device)
        function(whole, *args[1:], **kwargs)
        with torch.set_grad_enabled(torch.is_grad_enabled() and records):
            return tensor.copy_(block_of(whole, placed))

    return call


def _find_shard(tensor: Any, name: str) -> Placed | None:
    """Return how a tensor is placed if it is a shard, or ``data`` of one; None if it is neither."""
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.is_meta:
        return None
    placed = own_placed(tensor)
    if placed is not None and type(tensor) is torch.Tensor and function_mode_depth():
        return None  # something that is computed, where a mode sees what is drawn for it
    if placed is None and tensor.layout is torch.strided and not is_wrapped(tensor):
        memory = tensor.untyped_storage()
        shards = [
            (shard, own_placed(shard))
            for shard, _ in all_placed()
            if type(shard) is nn.Parameter and shard.untyped_storage() is memory
        ]
        if base_of(tensor) is None:  # a view may have all of a shard here, and of others not
            placed = next((known for shard, known in shards if shard.is_set_to(tensor)), None)
        cut = [known for _, known in shards if known is not None and is_sharded(known.layout)]
        if placed is None and cut:
            raise ArgumentError(
                f"{name} of a view of shape {tuple(tensor.shape)} of a shard of a parameter "
                f"{cut[0].layout}: every rank would draw the same for another part of the whole; "
                "fill the parameter itself, or before it is cut, or copy into it what "
                "dt.distribute_tensor makes of a whole tensor"
            )
    return None if placed is None or not is_sharded(placed.layout) else placed


def _check(name: str, tensor: torch.Tensor, placed: Placed, others: list[Any]) -> None:
    """Raise where ranks would draw different wholes (collective)."""
    generator = next((one for one in others if isinstance(one, torch.Generator)), None)
    if any(isinstance(one, torch.Tensor) for one in others):
        raise ArgumentError(
            f"{name} of a shard of a parameter {placed.layout} takes numbers, and was given a "
            "tensor; fill the parameter before it is cut, or copy into it what "
            "dt.distribute_tensor makes of a whole tensor"
        )
    state = read_state(generator, tensor.device if tensor.is_cuda else None)
    doing = (
        f"{name} of a parameter {placed.layout} by random numbers of state {digest_of(state)[:8]}, "
        "which must be alike (torch.manual_seed with one seed on every rank)"
    )
    mesh: Any = placed.layout.mesh
    mesh.communicator().agree(token(doing), doing)
