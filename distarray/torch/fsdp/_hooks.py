"""Hooks of the modules that hold shards: calls from outside, loading, and recomputation.

Calls of parts of a sharded module outside of its own, where parameters are shards, are refused.
State dicts that torch loads into a part go into shards. Checkpointed regions, which run again in
backward and call what nobody announces, find unsharded parameters: what they are certain to do is
to read parameters of modules while autograd records, which nothing else does in a backward pass.
"""

from __future__ import annotations

import weakref
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from distarray.errors import LayoutError
from distarray.torch._compat import is_going_backward, parameters_of
from distarray.torch._modules import locate_errors
from distarray.torch._shards import shards

if TYPE_CHECKING:
    from distarray.torch.fsdp._group import Group


def watch_modules(group: Group) -> None:
    """Put the hooks on the modules that hold the parameters of a group."""
    slots = [slot for member in group.members for slot in member.slots]
    for module in {id(module): module for module, _ in slots}.values():
        module.register_forward_pre_hook(_refuse_call, prepend=True)
        module.register_load_state_dict_pre_hook(_load)
    for module, name in slots:
        parameters: Any = parameters_of(module)
        if type(parameters) is not _Parameters:
            parameters = module.__dict__["_parameters"] = _Parameters(parameters)
        parameters.groups[name] = weakref.ref(group)


class Registrations:
    """How often modules and parameters have been put into modules, anywhere in this process."""

    count = 0

    @classmethod
    @lru_cache(maxsize=1)
    def watch(cls) -> None:
        register_module_module_registration_hook(cls._note)
        register_module_parameter_registration_hook(cls._note)

    @classmethod
    def _note(cls, *_: Any) -> None:
        cls.count += 1


def _refuse_call(module: nn.Module, _: Any) -> None:
    """Raise before forward where a module holds shards."""
    if torch.compiler.is_compiling():  # inside of calls that have been looked at
        return
    # By the dictionary's own method: reading one in a recomputation makes it whole, if later.
    held = dict.values(parameters_of(module))
    if not any(p is not None and p in shards for p in held) or is_going_backward():
        return
    with locate_errors(module):
        raise LayoutError(
            f"it is called outside of the call of {' and '.join(_groups_of(module))}, which "
            "fully_shard was applied to: its parameters are this rank's shards there. Call it "
            "inside of that module's forward, or of a method that dt.register_fsdp_forward_method "
            "knows; or apply fully_shard to it first, by itself; or unshard() that module before "
            "and reshard() it afterwards"
        )


def _load(module: nn.Module, *_: Any) -> None:
    """Let what is loaded go into shards."""
    for group in _groups_of(module).values():
        group.hold_shards()


def _groups_of(module: nn.Module) -> dict[str, Group]:
    """Return the groups that shard a module's own parameters, by their names; copies have none."""
    parameters = parameters_of(module)
    found = parameters.groups.values() if isinstance(parameters, _Parameters) else ()
    return {group.name: group for one in found if (group := one()) is not None}


class _Parameters(dict[str, Any]):
    """The parameters of a module; reading one in a recomputation makes it whole."""

    __slots__ = ("groups",)

    def __init__(self, parameters: dict[str, Any]) -> None:
        super().__init__(parameters)
        self.groups: dict[str, weakref.ref[Group]] = {}

    def __getitem__(self, name: str) -> Any:
        if torch.is_grad_enabled() and is_going_backward():
            self._unshard(name)
        return super().__getitem__(name)

    def items(self) -> Any:
        """Return names and parameters, as ``module.parameters()`` asks for them."""
        if torch.is_grad_enabled() and is_going_backward():
            for name in self.groups:
                self._unshard(name)
        return super().items()

    def _unshard(self, name: str) -> None:
        found = self.groups.get(name)
        group = None if found is None else found()
        if group is not None:
            group.hold_for_recomputation()

    def __reduce_ex__(self, _: Any) -> Any:
        return dict, (dict(super().items()),)  # copies are not sharded
