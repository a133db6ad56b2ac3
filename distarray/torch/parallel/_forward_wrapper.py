"""Wrappers of forwards: what a call of a parallelized module passes through.

All of it takes the place of the module's ``forward``. So the hooks that anybody registers on the
module, before or after, find what arrives and what leaves, never what one rank computes of it; a
call of ``forward`` itself moves the same; and what a call has changed, it puts back.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import nn

from distarray.errors import DistArrayError
from distarray.layout import Layout
from distarray.torch._compat import function_mode_depth, function_modes, parameters_of
from distarray.torch._layouts import lines_of, lines_of_mesh, lost_of
from distarray.torch._modules import check_own, locate, state_of
from distarray.torch._opaque import disable_compile, pause_modes, resume, skip_compile
from distarray.torch._routes import count_failure, moving_for
from distarray.torch.following import Following, OwnWeights, hidden, own_weights, tensors_in
from distarray.torch.parallel._arrivals import check_lost
from distarray.torch.parallel._gradient_sums import summing_together
from distarray.torch.parallel._other_cuts import find_cuts, keep_cuts_of


class Wrapping(NamedTuple):
    """What one module's calls pass through: functions in the order in which they run."""

    forward: Any = None  # what stood in the place of the class's before; None if nothing did
    inputs: tuple[Callable[..., Any], ...] = ()
    """``function(module, args, kwargs)``, which returns both anew."""
    values: tuple[Callable[..., Any], ...] = ()
    """``function(module)``: parameters by name, and what ``forward`` finds there instead. Those of
    the outputs find the parameters again."""
    arounds: tuple[Callable[..., Any], ...] = ()
    """``function(module, forward, *args, **kwargs)``, in the place of ``forward``; the last is
    outermost. What a call has to remember till its end lives in the call, so that errors and calls
    within calls leave nothing behind."""
    outputs: tuple[Callable[..., Any], ...] = ()
    """``function(module, output)``."""
    follows: bool = False  # layouts, through ``forward``
    hides: bool = False  # ``forward``, from modes that are open


def extend(module: nn.Module, **functions: Callable[..., Any]) -> None:
    """Let a module's calls pass through further functions, by the names that `Wrapping` has.

    Copies of the module have them, too. With none, `layout_of` will know the parameters of copies
    of the module, once they have run.
    """
    wrapping = wrapping_of(module)
    more: Any = {kind: (*getattr(wrapping, kind), one) for kind, one in functions.items()}
    _install(module, wrapping._replace(**more))


def follow_layouts(module: nn.Module) -> None:
    """Let layouts be followed in the forward of a module that holds parallelized ones."""
    wrapping = wrapping_of(module)
    if type(module).forward is not nn.Module.forward and not (wrapping.follows or wrapping.hides):
        _install(module, wrapping._replace(follows=True))


def hide_forward(module: nn.Module) -> None:
    """Let no mode that is open see what a module computes: its style says how that is placed."""
    _install(module, wrapping_of(module)._replace(hides=True))


def wrapping_of(module: nn.Module) -> Wrapping:
    """Return what a module's calls pass through, besides what its class says."""
    return _wrapping_in(module) or Wrapping(module.__dict__.get("forward"))


def _wrapping_in(module: nn.Module) -> Wrapping | None:
    forward = module.__dict__.get("forward")
    wrapping = getattr(getattr(forward, "__func__", None), "wrapping", None)
    return wrapping if isinstance(wrapping, Wrapping) else None


def _install(module: nn.Module, wrapping: Wrapping) -> None:
    if _wrapping_in(module) is None:
        module.register_forward_pre_hook(_present)
    call = _wrap_forward(wrapping, type(module).forward.__module__.startswith("torch."))
    with contextlib.suppress(TypeError, ValueError):
        call.__signature__ = inspect.signature(_unbound(module, wrapping.forward))
    module.__dict__["forward"] = MethodType(call, module)


def _present(_: nn.Module, __: Any) -> None:
    """Do nothing: torch's fused layers, which call no forward, leave modules with hooks alone."""


def _unbound(module: nn.Module, found: Any) -> Any:
    if found is None:
        return type(module).forward
    return found.__func__ if isinstance(found, MethodType) else found


# --- one call ------------------------------------------------------------------------------------


def _wrap_forward(wrapping: Wrapping, stock: bool) -> Any:
    """Return what takes the place of forward.

    What a class of torch's computes for a style the mode that follows layouts does not see.
    """
    hidden = wrapping.hides or (stock and wrapping.forward is None and not wrapping.follows)

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        depth = function_mode_depth()
        if hidden and depth:
            with pause_modes():
                return _call(module, wrapping, args, kwargs)
        within = bool(wrapping.outputs)
        if not (depth or wrapping.follows) or not (within or state_of(module).placed):
            return _call(module, wrapping, args, kwargs)
        before = own_weights.set((OwnWeights(module, within, {}), *own_weights.get()))
        try:
            return _call(module, wrapping, args, kwargs)
        finally:
            own_weights.reset(before)

    call.wrapping = wrapping  # type: ignore[attr-defined]
    return skip_compile(call)


@skip_compile
def _call(module: nn.Module, wrapping: Wrapping, args: Any, kwargs: Any) -> Any:
    cuts = find_cuts(module, args, kwargs)
    own: dict[str, Any] = {}  # parameters to put back after forward
    before = hidden.get()
    try:
        try:
            args, kwargs = _enter(module, wrapping, args, kwargs, own)
            output = _compute(module, wrapping, args, kwargs)
        finally:
            hidden.set(before)
            if own:
                parameters_of(module).update(own)
        output = _leave(module, wrapping, output) if wrapping.outputs else output
    except DistArrayError as error:
        locate(error, module)
        raise
    return output if cuts is None else keep_cuts_of(module, cuts, output)


@skip_compile
def _compute(module: nn.Module, wrapping: Wrapping, args: Any, kwargs: Any) -> Any:
    forward = wrapping.forward
    if forward is None or isinstance(forward, MethodType):
        forward = MethodType(_unbound(module, forward), module)
    for function in wrapping.arounds:
        if wrapping.follows or function_mode_depth():
            function = partial(_seen_inside, function)
        forward = partial(function, module, forward)
    modes = function_modes() if wrapping.follows else []
    modes = [mode for mode in modes if isinstance(mode, Following)]
    if not wrapping.follows or any(mode.is_inside for mode in modes):
        return forward(*args, **kwargs)
    try:
        with contextlib.ExitStack() as stack:
            mode = modes[-1] if modes else stack.enter_context(Following(strict=False))
            stack.enter_context(summing_together(module))
            stack.enter_context(mode.running())
            output = forward(*args, **kwargs)
    except BaseException as error:
        count_failure(error)
        raise
    _check_leaving(module, output)
    return output


@skip_compile
def _seen_inside(function: Any, module: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a style's function where modes see only what it calls as forward."""
    with pause_modes() as pause:
        return function(module, partial(resume, pause, forward), *args, **kwargs)


@disable_compile
def _enter(
    module: nn.Module, wrapping: Wrapping, args: Any, kwargs: Any, own: dict[str, Any]
) -> tuple[Any, Any]:
    """Return the arguments for forward; ``own`` takes the parameters in whose place others are."""
    if not (wrapping.inputs or wrapping.values or state_of(module).placed):
        return args, kwargs
    parameters = parameters_of(module)
    check_own(module)
    with moving_for(state_of(module).moving):
        for function in wrapping.inputs:
            args, kwargs = function(module, args, kwargs)
        for values in wrapping.values:
            found = values(module)
            own.update({name: parameters[name] for name in found} | own)
            parameters.update(found)
            if names := tuple(name for name, value in found.items() if value is None):
                hidden.set((*hidden.get(), (parameters, names)))
    return args, kwargs


@disable_compile
def _leave(module: nn.Module, wrapping: Wrapping, output: Any) -> Any:
    with moving_for(state_of(module).moving):
        for function in wrapping.outputs:
            output = function(module, output)
    return output


@disable_compile
def _check_leaving(module: nn.Module, output: Any) -> None:
    """Raise where what leaves is of each rank's alone, and nothing says how it is placed.

    It was computed along an axis that is cut, or of contributions to sums. A loss of each rank's
    part of a batch, which another mesh than the styles' cuts, may leave as after forward.
    """
    for x in _tensors(output):
        lost = lost_of(x)
        if lost is not None and not (lost.is_mean and _is_of_others(module, lost.layout)):
            check_lost(x, None, "what leaves", "")


def _is_of_others(module: nn.Module, layout: Layout) -> bool:
    """Tell whether a layout cuts along no line of ranks of the styles of a module."""
    meshes = {mesh for child in module.modules() for _, mesh in state_of(child).styles}
    lines, replicated = lines_of(layout)
    cut = {line for i, line in lines.items() if i not in replicated}
    return all(cut.isdisjoint(lines_of_mesh(mesh)) for mesh in meshes)


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors in an output, in containers within containers too."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        return tensors_in((value,), {})
    return [x for part in value for x in _tensors(part)]
