"""What a parallelized module knows of itself, and which module an error is in."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from distarray.errors import ArgumentTypeError, DistArrayError
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
        How its own parameters and buffers are placed, by name.
    styles
        What has been applied to the module, and over which mesh.
    owner
        The module.
    """

    path: str = ""
    placed: dict[str, Placed] = field(default_factory=dict)
    styles: list[tuple[Any, Any]] = field(default_factory=list)
    owner: weakref.ref[nn.Module] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        owner = None if self.owner is None else self.owner()
        for name, placed in self.placed.items():
            own = None if owner is None else owner._parameters.get(name, owner._buffers.get(name))
            copied = None if own is None else memo.get(id(own))
            if isinstance(copied, torch.Tensor):
                place(copied, *placed)
        return State(self.path, dict(self.placed), list(self.styles))  # layouts are values

    def __reduce__(self) -> tuple[Any, ...]:
        if self.styles:
            raise ArgumentTypeError(
                f"{self.path or 'the module'} has been parallelized, and cannot be pickled, since "
                "its mesh cannot; save it by da.checkpoint, or by dt.state_dict"
            )
        return State, (self.path,)


def state_of(module: nn.Module) -> State:
    """Return what is known beside a module, nothing at first."""
    found: State | None = module.__dict__.get(_NAME)
    if found is None:
        found = module.__dict__[_NAME] = State()
    if found.owner is None:
        found.owner = weakref.ref(module)
    return found


def place_parameters(module: nn.Module) -> None:
    """Say again how the module's parameters and buffers are placed, should they be new tensors.

    Copies of a module have such, and modules that were materialised or loaded with ``assign=True``.
    """
    for name, placed in state_of(module).placed.items():
        own: torch.Tensor | None = module._parameters.get(name)
        if own is None:
            own = module._buffers.get(name)
        if own is None or is_placed(own):
            continue
        if tuple(own.shape) == placed.layout.local_shape():
            place(own, *placed)


@contextmanager
def located(module: nn.Module) -> Iterator[None]:
    """Begin the message of an error from inside with the module's path and class."""
    try:
        yield
    except DistArrayError as error:
        locate(error, module)
        raise


def locate(error: DistArrayError, module: nn.Module) -> None:
    """Begin an error's message with the innermost module that it comes from."""
    if not getattr(error, "located", False) and error.args:
        where = f"{state_of(module).path or 'the module'} ({type(module).__name__})"
        error.args = (f"{where}: {error.args[0]}", *error.args[1:])
        error.located = True  # type: ignore[attr-defined]


def map_inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any], count: int, function: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with a function of the first `count`, however they are passed."""
    args = (*map(function, args[:count]), *args[count:])
    named = list(kwargs)[: max(count - len(args), 0)]
    return args, {k: function(v) if k in named else v for k, v in kwargs.items()}
