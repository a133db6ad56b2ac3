"""Parameters that are read while a backward pass computes anew what was not saved.

Checkpointed regions run again in backward, and call what they called in forward: modules inside of
a sharded one, which nobody announces. What they are certain to do is to read parameters of modules
while autograd records, which nothing else does inside a backward pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from distarray.torch._compat import is_going_backward
from distarray.torch.fsdp._parameter import ShardedParameter


class Shower(Protocol):
    """What lets modules hold wholes."""

    members: list[ShardedParameter]

    def show_in_backward(self) -> None:
        """Let modules hold the wholes (collective), unless they hold some."""


class _Parameters(dict[str, Any]):
    """The parameters of a module; reading one in a recomputation makes it whole."""

    __slots__ = ("groups",)

    def __init__(self, parameters: dict[str, Any]) -> None:
        super().__init__(parameters)
        self.groups: dict[str, weakref.ref[Shower]] = {}

    def __getitem__(self, name: str) -> Any:
        if torch.is_grad_enabled() and is_going_backward():
            self._show(name)
        return super().__getitem__(name)

    def items(self) -> Any:
        """Return names and parameters, as ``module.parameters()`` asks for them."""
        if torch.is_grad_enabled() and is_going_backward():
            for name in self.groups:
                self._show(name)
        return super().items()

    def _show(self, name: str) -> None:
        found = self.groups.get(name)
        group = None if found is None else found()
        if group is not None:
            group.show_in_backward()

    def __reduce_ex__(self, _: Any) -> Any:
        return dict, (dict(super().items()),)  # copies are not sharded


def watch_reading(group: Shower, members: Sequence[ShardedParameter]) -> None:
    """Let the wholes of a group come when its parameters are read in a recomputation."""
    slots: list[tuple[nn.Module, str]] = [slot for member in members for slot in member.slots]
    for module, name in slots:
        parameters: Any = module._parameters
        if type(parameters) is not _Parameters:
            parameters = module.__dict__["_parameters"] = _Parameters(parameters)
        parameters.groups[name] = weakref.ref(group)
