"""What a parallelized module knows of itself, and hooks that tell which module an error is in."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, TypeVar, cast

import torch
from torch import nn

from distarray.errors import DistArrayError
from distarray.torch._layouts import Placed, is_placed, place

_NAME = "_distarray"
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class State:
    """Beside a module, in its ``__dict__``: it is copied with the module.

    Attributes
    ----------
    path
        The module's name in the model that was parallelized; "" for the model itself.
    placed
        How its own parameters are placed, by name.
    styles
        What has been applied to the module, and over which mesh.
    substituted
        Parameters that were replaced for calls of ``forward`` under way, innermost last.
    owner
        The module.
    """

    path: str = ""
    placed: dict[str, Placed] = field(default_factory=dict)
    styles: list[tuple[Any, Any]] = field(default_factory=list)
    substituted: list[dict[str, Any]] = field(default_factory=list)
    owner: weakref.ref[nn.Module] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        owner = None if self.owner is None else self.owner()
        for name, placed in self.placed.items():
            copied = None if owner is None else memo.get(id(owner._parameters.get(name)))
            if isinstance(copied, torch.Tensor):
                place(copied, *placed)
        return State(self.path, dict(self.placed), list(self.styles))  # layouts are values

    def __reduce__(self) -> tuple[Any, ...]:
        return State, (self.path, dict(self.placed), list(self.styles))


def state_of(module: nn.Module) -> State:
    """Return what is known beside a module, nothing at first."""
    found: State | None = module.__dict__.get(_NAME)
    if found is None:
        found = module.__dict__[_NAME] = State()
    if found.owner is None:
        found.owner = weakref.ref(module)
    return found


def place_parameters(module: nn.Module) -> None:
    """Say again how the module's parameters are placed, should they be new tensors.

    Copies of a module have such, and modules that were materialised or loaded with ``assign=True``.
    """
    for name, placed in state_of(module).placed.items():
        parameter = module._parameters.get(name)
        if parameter is None or is_placed(parameter):
            continue
        if tuple(parameter.shape) == placed.layout.local_shape():
            place(parameter, *placed)


@contextmanager
def located(module: nn.Module) -> Iterator[None]:
    """Begin the message of an error from inside with the module's path and class."""
    try:
        yield
    except DistArrayError as error:
        _locate(error, module)
        raise


def _locate(error: DistArrayError, module: nn.Module) -> None:
    """Begin an error's message with the innermost module that it comes from."""
    if not getattr(error, "located", False) and error.args:
        where = f"{state_of(module).path or 'the module'} ({type(module).__name__})"
        error.args = (f"{where}: {error.args[0]}", *error.args[1:])
        error.located = True  # type: ignore[attr-defined]


def untraced(function: F) -> F:
    """Keep torch.compile out of a function: its graphs end before it, and begin again after it."""
    apart: Any = torch._disable_dynamo(function)
    return cast("F", apart)


def on_input(
    module: nn.Module, function: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]
) -> None:
    """Call ``function(module, args, kwargs)`` before forward; it returns new args and kwargs."""

    @untraced
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            place_parameters(module)
            return function(module, args, kwargs)
        except DistArrayError as error:
            _locate(error, module)
            raise

    module.register_forward_pre_hook(hook, with_kwargs=True)


def keep_placed(module: nn.Module) -> None:
    """Let `layout_of` know the parameters also of copies of the module, once they have run."""
    on_input(module, lambda _, args, kwargs: (args, kwargs))


def map_inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any], count: int, function: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with a function of the first `count`, however they are passed."""
    args = (*map(function, args[:count]), *args[count:])
    named = list(kwargs)[: max(count - len(args), 0)]
    return args, {k: function(v) if k in named else v for k, v in kwargs.items()}


def on_output(module: nn.Module, function: Callable[[nn.Module, Any], Any]) -> None:
    """Call ``function(module, output)`` after forward; it returns the new output."""

    @untraced
    def hook(module: nn.Module, _: Any, output: Any) -> Any:
        try:
            return function(module, output)
        except DistArrayError as error:
            _locate(error, module)
            raise

    module.register_forward_hook(hook)


def around(module: nn.Module, function: Callable[..., Any]) -> None:
    """Run ``function(module, forward, *args, **kwargs)`` in the place of forward.

    For what one call has to remember between its beginning and its end: it lives in the call, so
    that errors and calls within calls leave nothing behind. Copies of the module have it too.
    """
    found = module.__dict__.get("forward")
    inner = found.__func__ if isinstance(found, MethodType) else found

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        forward: Any = inner
        if inner is None or inner is not found:
            forward = MethodType(inner or type(module).forward, module)
        with located(module):
            place_parameters(module)
            return function(module, forward, *args, **kwargs)

    module.__dict__["forward"] = MethodType(call, module)


def substitute(
    module: nn.Module,
    values: Callable[[nn.Module], Mapping[str, torch.Tensor | None]],
) -> None:
    """Let forward see other values of the module's own parameters, and put these back after it.

    Parameters
    ----------
    values
        Function of the module: parameters by name, and what ``forward`` finds there instead.
    """

    @untraced
    def before(module: nn.Module, _: tuple[Any, ...], __: dict[str, Any]) -> None:
        try:
            place_parameters(module)
            found = values(module)
        except DistArrayError as error:
            _locate(error, module)
            raise
        parameters: dict[str, Any] = module._parameters
        state_of(module).substituted.append({name: parameters[name] for name in found})
        parameters.update(found)

    @untraced
    def after(module: nn.Module, _: Any, __: Any) -> None:
        stack = state_of(module).substituted
        if stack:  # empty where an error came before the substitution
            module._parameters.update(stack.pop())

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after, always_call=True)
