"""Random functions of torch, called for a rank's shard of a tensor, and beside one.

Every one of them draws one key from torch's default generator, however many items this rank has, so
that ranks that were alike before are alike after it. Dropout of a shard whose place is known leaves
out the same items on any number of ranks; others draw differently on ranks that hold other items.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from distarray.layout import Layout, Shard
from distarray.torch._layouts import cut_axes, own_placed
from distarray.torch._random import random_state, seeded_alike
from distarray.torch.following._operands import Operand
from distarray.torch.following._rules import Call
from distarray.torch.training import drop_as

_DROPOUTS: dict[str, type[nn.Module]] = {
    "dropout": nn.Dropout,
    "alpha_dropout": nn.AlphaDropout,
    "dropout1d": nn.Dropout1d,
    "dropout2d": nn.Dropout2d,
    "dropout3d": nn.Dropout3d,
    "feature_alpha_dropout": nn.FeatureAlphaDropout,
}
_FILLING = (
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "random"),
    "uniform",
)
"""Those that fill a tensor with numbers, by methods whose names end with _."""
_BY_SIZE = ("rand", "randn", "randint", "randperm")
_OTHERS = (
    *("rand_like", "randn_like", "randint_like", "poisson", "multinomial", "binomial", "rrelu"),
    *("gumbel_softmax", "scaled_dot_product_attention", "multi_head_attention_forward"),
    *("native_dropout", "feature_dropout", "fractional_max_pool2d", "fractional_max_pool3d"),
)
_RANDOM = frozenset((*_DROPOUTS, *_FILLING, *_BY_SIZE, *_OTHERS))


def draws(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether a function of this bare name draws numbers from torch's default generator."""
    if name not in _RANDOM or kwargs.get("generator") is not None:
        return False
    if name in _DROPOUTS:
        _, p, training, _ = _told_to_drop(name, args, kwargs)
        return bool(training and p)
    if name == "scaled_dot_product_attention":
        return bool(args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0))
    return True


def draw(call: Call) -> Any:
    """Return what a function returns that draws random numbers."""
    function, name, operands = call.function, call.rule.name, call.operands
    args, kwargs = call.args, call.kwargs
    if kwargs.get("layout") is not None:
        return function(*args, **kwargs)  # it is said where the shard is
    layout = next((cut for one in operands if (cut := _cut(one)) is not None), None)
    if layout is None:
        known = bool(operands) and all(one.placed is not None for one in operands)
        by_size = name in _BY_SIZE or (name in _FILLING and not known)
        if not by_size:
            return function(*args, **kwargs)  # alike on all ranks, which have the same items
        with seeded_alike():
            return function(*args, **kwargs)
    if name in _DROPOUTS:
        x, p, _, inplace = _told_to_drop(name, args, kwargs)
        if own_placed(x) is not None:
            return drop_as(_DROPOUTS[name], x, p, inplace, layout)
    mesh: Any = layout.mesh
    cutting = [
        axis for axis, p in zip(mesh.axis_names, layout.placements, strict=True) if type(p) is Shard
    ]
    with random_state(mesh, differ=cutting):
        return function(*args, **kwargs)


def _cut(one: Operand) -> Layout | None:
    """Return the layout by which a tensor is cut, or comes of one that is."""
    known = one.placed or one.lost
    return None if known is None or not cut_axes(known.layout) else known.layout


def _told_to_drop(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.Tensor, float, bool, bool]:
    """Return input, probability, whether in training and whether in place."""
    told = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
    training = told.get("training", told.get("train", "alpha" not in name))
    return told["input"], told.get("p", 0.5), training, told.get("inplace", False)
