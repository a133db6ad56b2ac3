"""Optimizers whose step on this rank's shards is not their step on whole parameters: refused.

What an optimizer computes is found out by trying it, before its first step on shards: a new one of
the same class and options steps on a small parameter, and another on a block of that alone. Items
that are treated one by one become the same; norms, products and factors of whole parameters tell
one from the other, whatever the class is called.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

from distarray.errors import ArgumentError
from distarray.torch._compat import leaves_of
from distarray.torch._layouts import divided_axes, is_sharded, layout_of
from distarray.torch._opaque import disable_compile
from distarray.torch._random import forked

_STEPS = 3
"""Some begin to mix items after their first step, with what they have gathered in it."""

_LONG, _SHORT = 160, 4
"""Lengths of the axes that are tried: some factor matrices from 128 on; all others are short."""

_checked: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
"""Optimizers that have been looked at, and how many parameters they had then."""

_verdicts: dict[Any, str | None] = {}

_Kind = tuple[tuple[int, ...], frozenset[int]]
"""The shape that is tried, and which of its axes are cut."""


class _Trial(NamedTuple):
    """What is tried: an optimizer, a group's options, whether it steps by a closure, and where."""

    optimizer: Optimizer
    options: Mapping[str, Any]
    closes: bool
    device: torch.device


@disable_compile
def check_optimizer(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise before the first step on shards of an optimizer that needs whole parameters."""
    count = sum(len(group["params"]) for group in optimizer.param_groups)
    if _checked.get(optimizer) == count:
        return
    closes = any(map(callable, (*args[1:], *kwargs.values())))
    for group in optimizer.param_groups:
        kinds = frozenset(kind for p in group["params"] if (kind := _kind(p)) is not None)
        if not kinds:
            continue
        options = {name: value for name, value in group.items() if name != "params"}
        key = type(optimizer), str(options), str(optimizer.defaults), kinds, closes
        if key not in _verdicts:
            device = next(p.device for p in group["params"] if _kind(p) is not None)
            trial = _Trial(optimizer, options, closes, device)
            _verdicts[key] = _find_obstacle(trial, sorted(kinds, key=str))
        if (why := _verdicts[key]) is not None:
            raise ArgumentError(
                f"{type(optimizer).__name__} needs whole parameters, and these are this rank's "
                f"shards: {why}. Take an optimizer that treats items one by one (SGD, AdamW and "
                "its kin), or give it parameters that are not cut: dt.replicate their modules, and "
                "name them in ignored_params of fully_shard"
            )
    _checked[optimizer] = count


def _kind(parameter: torch.Tensor) -> _Kind | None:
    """Return what stands for a parameter that is cut; None for others."""
    layout = layout_of(parameter)
    if layout is None or not is_sharded(layout):
        return None
    longest = sorted(range(layout.ndim), key=lambda axis: -layout.shape[axis])[:2]
    shape = tuple(
        max(2, min(length, _LONG if axis in longest else _SHORT))
        for axis, length in enumerate(layout.shape)
    )
    return shape, divided_axes(layout)


def _find_obstacle(trial: _Trial, kinds: Iterable[_Kind]) -> str | None:
    """Return why an optimizer cannot work on shards; None where it can, or nobody knows."""
    try:
        for shape, cut in kinds:
            block = tuple(
                slice(0, length // 2) if axis in cut else slice(None)
                for axis, length in enumerate(shape)
            )
            whole, part = _try_steps(trial, shape, ()), _try_steps(trial, shape, block)
            for name in sorted(set(whole) & set(part), key=str):
                if not _is_block_of(whole[name], part[name], cut):
                    what = "a block of a parameter" if name == "parameter" else f"its {name!r}"
                    return (
                        f"of a parameter of shape {shape}, cut along axes {sorted(cut)}, {what} "
                        "would become something else than what the step on the whole makes of it"
                    )
    except Exception as error:
        warnings.warn(
            f"whether {type(trial.optimizer).__name__} may step on shards of parameters could not "
            f"be found out by trying it ({type(error).__name__}: {error}). If it treats items one "
            "by one it may; if it takes norms, products or factors of whole parameters, its steps "
            "on shards are something else",
            stacklevel=4,
        )
    return None


def _try_steps(trial: _Trial, shape: tuple[int, ...], block: tuple[slice, ...]) -> dict[Any, Any]:
    """Return what becomes of a block of a parameter, and the states that are kept of it.

    Items outside of the block are much larger, so that a norm of the whole is not one of the block.
    """
    optimizer, options, closes, device = trial
    generator = torch.Generator().manual_seed(0)
    inside = tuple(slice(0, length // 2) for length in shape)

    def values(scale: float) -> torch.Tensor:
        found = torch.randn(shape, generator=generator, dtype=torch.float64)
        scales = torch.full(shape, scale, dtype=torch.float64)
        scales[inside] = 1.0
        return (found * scales)[block].to(device).clone()

    parameter = torch.nn.Parameter(values(100.0))
    before = parameter.detach().clone()
    group = {**options, "params": [parameter]}
    rate = group.get("lr")
    if rate is not None and float(rate) == 0.0:  # a schedule begins with it: nothing would change
        group["lr"] = 0.01
    takes = inspect.signature(type(optimizer).__init__).parameters
    given = {name: value for name, value in optimizer.defaults.items() if name in takes}
    with forked(), torch.enable_grad():
        fresh = type(optimizer)([group], **given)  # type: ignore[arg-type]
        step: Any = type(fresh).step
        if getattr(step, "hooked", False):  # torch's wrapper, which calls everybody's hooks
            step = step.__wrapped__
        for _ in range(_STEPS):
            gradient = values(10.0)

            def closure(gradient: torch.Tensor = gradient) -> torch.Tensor:
                parameter.grad = gradient.clone()
                return (gradient * parameter.detach()).sum()

            closure()
            step(fresh, closure) if closes else step(fresh)
    kept = {str(k): v for k, v in fresh.state[parameter].items()}
    return {**kept, "parameter": parameter.detach() - before}


def _is_block_of(whole: Any, part: Any, cut: frozenset[int]) -> bool:
    """Tell whether what is kept of a block is the block of what is kept of the whole."""
    theirs = [x for x in leaves_of(whole) if isinstance(x, torch.Tensor)]
    ours = [x for x in leaves_of(part) if isinstance(x, torch.Tensor)]
    if len(theirs) != len(ours):
        return False
    for kept, other in zip(theirs, ours, strict=True):
        one = kept
        if not (one.is_floating_point() or one.is_complex()):
            continue
        for axis in cut:
            if axis < min(one.ndim, other.ndim):
                one = one.narrow(axis, 0, min(one.shape[axis], other.shape[axis]))
        if one.shape != other.shape:
            return False
        # Between what rounds and what a norm of the whole does, of gradients 10 times larger.
        size = float(other.abs().max()) if other.numel() else 0.0
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-3 * size, equal_nan=True):
            return False
    return True
