"""Partition rules: which axis of which parameter is cut, and where the features are.

A module that computes ``y = f(x, W) + b`` is cut by *columns* where every rank computes some of the
output features, and by *rows* where every rank takes some of the input features and the outputs
are added (M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3). The rules are those of
torch's classes: whether a module computes what its class does is looked at first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.torch._compat import COMPUTING
from distarray.torch.parallel._forward_wrapper import extend, wrapping_of


@dataclass(frozen=True, slots=True)
class Cut:
    """One way to cut a class of modules."""

    parameters: Mapping[str, int]  # the axis along which each is cut; others are replicated
    features: int  # the axis, from the end, of the output's where columns are cut, else the input's
    inputs: tuple[str, ...] = ("input",)  # arguments that are tensors; of rows the first is cut
    fills: bool = False  # torch needs help where a rank has nothing of the weight


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
COLUMNS: dict[type[nn.Module], Cut] = {
    nn.Linear: Cut({"weight": 0, "bias": 0}, -1),
    nn.Bilinear: Cut({"weight": 0, "bias": 0}, -1, ("input1", "input2")),
    nn.Embedding: Cut({"weight": 1}, -1),
    nn.EmbeddingBag: Cut({"weight": 1}, -1),
    **{k: Cut({"weight": 0, "bias": 0}, -2 - i, fills=True) for i, k in enumerate(CONVOLUTIONS)},
    **{k: Cut({"weight": 1, "bias": 0}, -2 - i, fills=True) for i, k in enumerate(TRANSPOSED)},
}
ROWS: dict[type[nn.Module], Cut] = {
    nn.Linear: Cut({"weight": 1}, -1),
    nn.Embedding: Cut({"weight": 0}, -1),
    nn.EmbeddingBag: Cut({"weight": 0}, -1),
    nn.Bilinear: Cut({"weight": 1}, -1, ("input1", "input2"), fills=True),
    **{k: Cut({"weight": 1}, -2 - i, fills=True) for i, k in enumerate(CONVOLUTIONS)},
    **{k: Cut({"weight": 0}, -2 - i, fills=True) for i, k in enumerate(TRANSPOSED)},
}


OTHER_COLUMNS = ("MultiheadAttention", "BatchNorm", "GroupNorm", "InstanceNorm")
"""What is cut by columns in ways of its own, by names that messages list."""

REMEDY = (
    "pass own_forward=True if it is, or write a ParallelStyle of your own. What derives from a "
    "class of torch's may otherwise differ in __init__, reset_parameters and extra_repr"
)


def cut_of(
    table: Mapping[type[nn.Module], Cut], module: nn.Module, style: str, own_forward: bool = False
) -> Cut:
    """Return the entry of a module's class, or of the nearest class that it derives from."""
    for kind in type(module).__mro__:
        if kind in table:
            check_stock(module, kind, style, REMEDY, own_forward)
            return table[kind]
    known = [kind.__name__ for kind in table]
    if table is COLUMNS:
        known += OTHER_COLUMNS
    raise ArgumentTypeError(
        f"{style} knows no way to cut a {type(module).__name__}; it takes {', '.join(known)} and "
        "what derives from them. A module without a style runs whole on every rank, one that works "
        "position by position takes a shard of the sequence by SequenceParallel, and a "
        "ParallelStyle of your own takes everything else"
    )


def hook_arguments(
    module: nn.Module, functions: Mapping[str, Callable[[Any, torch.Tensor], torch.Tensor]]
) -> None:
    """Let forward see ``function(module, argument)`` in the place of arguments.

    The functions are by the arguments' names, in the order of ``forward``, from the first one on.
    Arguments that are None, or not there, are left alone; the first must be there.
    """
    first = next(iter(functions))

    def bring(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not args and first not in kwargs:
            raise ArgumentError(
                f"forward was called with {sorted(kwargs) or 'nothing'} and without {first!r}; "
                "pass the input first, or by this name"
            )
        told = list(args)
        for i, (name, function) in enumerate(functions.items()):
            if i < len(told):
                told[i] = None if told[i] is None else function(module, told[i])
            elif kwargs.get(name) is not None:
                kwargs = {**kwargs, name: function(module, kwargs[name])}
        return tuple(told), kwargs

    extend(module, inputs=bring)


# --- forwards -------------------------------------------------------------------------------------


def own_method(module: nn.Module, base: type[nn.Module] | None = None) -> str | None:
    """Return which method of a module computes something else than torch's class; None if none.

    Without ``base`` it is the nearest class of torch's that the module derives from.
    """
    if wrapping_of(module).forward is not None:
        return "forward"
    kind: Any = base or next(
        k for k in type(module).__mro__ if k.__module__.startswith("torch.nn.")
    )
    for name in COMPUTING:
        if getattr(type(module), name, None) is not getattr(kind, name, None):
            return name
    return None


def check_stock(
    module: nn.Module, base: type[nn.Module], style: str, remedy: str, consent: bool = False
) -> None:
    """Raise unless a module computes what torch's class does, or the user gives their consent."""
    own = None if consent else own_method(module, base)
    if own is not None:
        raise ArgumentTypeError(
            f"the {type(module).__name__} has a {own} of its own, not that of torch's "
            f"{base.__name__}: whether it is right on one rank's shard, {style} cannot know; "
            f"{remedy}"
        )
