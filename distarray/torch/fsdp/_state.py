"""Calls of sharded modules, and what happens around them."""

from __future__ import annotations

from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from distarray.errors import ArgumentError
from distarray.torch._backward import hook_gradients
from distarray.torch._compat import is_going_backward, leaves_of, map_leaves, parameters_of
from distarray.torch._modules import locate_errors
from distarray.torch._opaque import disable_compile, refuse_transforms
from distarray.torch._saved_tensors import saved_tensors_hooks
from distarray.torch._shards import shards
from distarray.torch.data_parallel import REPLICA
from distarray.torch.fsdp._autograd import view_of_unsharded
from distarray.torch.fsdp._context import Context
from distarray.torch.fsdp._group import Group
from distarray.torch.fsdp._hooks import Registrations

NAME = "_distarray_fsdp"
"""Under which a module's ``__dict__`` has its state."""

_running: ContextVar[Context | None] = ContextVar("the model that runs", default=None)


_SHARDED_MODULES = (
    "modules that fully_shard was applied to, whose parameters come and go by hooks that "
    "transforms do not see; call a copy that is not sharded (dt.state_dict has its whole "
    "parameters)"
)


class Call:
    """One call of a sharded module, for as long as its parameters are whole."""

    @disable_compile
    def __init__(self, state: State, module: nn.Module) -> None:
        refuse_transforms(_SHARDED_MODULES)
        group, outer, recomputing = state.group, _running.get(), is_going_backward()
        context = outer or (group.context if recomputing and group else state.own)
        outermost = outer is None and not recomputing
        with ExitStack() as stack:
            if outermost:
                context.begin()
                stack.callback(context.end)
            stack.callback(_running.reset, _running.set(context))
            if outermost and torch.is_grad_enabled():
                state.check_parameters(module)
            if group is not None:
                group.context = context
                before = group.held if group.depth else None
                with locate_errors(module):
                    group.unshard()
                    group.hold_unsharded()
                    if not recomputing:
                        group.is_outermost = outermost
                        group.calls += torch.is_grad_enabled()
                        context.enter(group)
                group.depth += 1
                stack.callback(_leave, group, before, state.is_last and not recomputing)
            if torch.is_grad_enabled():
                stack.enter_context(saved_tensors_hooks(view_of_unsharded))
            self._stack = stack.pop_all()

    @disable_compile
    def end(self) -> None:
        """Let the parameters go."""
        self._stack.close()


def _leave(group: Group, before: list[torch.Tensor] | None, is_used: bool) -> None:
    """End a call of a group's module, in which it may have been called ``before``."""
    group.depth -= 1
    if before is not None and group.is_unsharded:
        group.hold(before)
    elif not group.depth and is_used:
        group.hold_shards()
        group.context.left.append(group)
        if group.reshards_after_forward:
            group.reshard(after_forward=True)


class State:
    """Beside a sharded module."""

    def __init__(self, group: Group | None, is_last: bool, module: nn.Module) -> None:
        self.group = group  # of its parameters; None where modules inside have all of them
        self.is_last = is_last  # of those that share the group
        self.own = Context()  # of the calls where this module is the outermost one
        if group is not None:
            group.context = self.own
        self.known = {  # since `fully_shard`: others have been put in
            (child, name)
            for child in module.modules()
            for name, parameter in dict.items(parameters_of(child))
            if parameter is not None
        }
        Registrations.watch()
        self._checked = Registrations.count

    def check_parameters(self, module: nn.Module) -> None:
        """Raise where parameters have been put in whose gradients nothing averages."""
        if self._checked == Registrations.count:
            return
        inside = dict(module.named_modules())
        states = (state_beside(child) for child in inside.values())
        known = set().union(*(state.known for state in states if state is not None))
        replicas = [child for child in inside.values() if REPLICA in child.__dict__]
        averaged = {id(p) for child in replicas for p in child.parameters()}
        for path, child in inside.items():
            for name, p in dict.items(parameters_of(child)):
                if p is None or (child, name) in known or id(p) in averaged:
                    continue
                if p.requires_grad or p in shards:
                    raise ArgumentError(
                        f"parameter {name!r} of {path or 'the module'!r} has been put in after "
                        "fully_shard, so that nothing shards it or averages its gradients; put "
                        "modules, parametrizations and shared parameters in before fully_shard, or "
                        "apply fully_shard or replicate to the new module first"
                    )
        self._checked = Registrations.count

    @disable_compile
    def pre_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the arguments of a call, converted as the policy has it."""
        group, given = self.group, (args, kwargs)
        if group is None:
            return given
        if torch.is_grad_enabled():  # frozen parameters go when gradients of inputs are there
            frozen = not all(m.parameter.requires_grad for m in group.members)
            group.ends_with_inputs = frozen and hook_gradients(
                given, lambda _: group.context.current_backward().post_backward(group)
            )
        dtype = group.policy.param_dtype
        casts = dtype is not None and group.policy.cast_forward_inputs
        return _cast(given, dtype) if casts else given

    @disable_compile
    def post_forward(self, output: Any) -> Any:
        """Return the output of a call, converted; its gradient will announce the backward pass."""
        group = self.group
        if group is None:
            return output
        group.check_unchanged()
        going = set(map(id, group.held or ()))
        if not going.isdisjoint(map(id, leaves_of(output))):  # they keep their memory
            output = map_leaves(lambda x: x.view_as(x) if id(x) in going else x, output)
        if group.policy.output_dtype is not None:
            output = _cast(output, group.policy.output_dtype)
        if torch.is_grad_enabled():
            hook_gradients(output, lambda _: group.context.current_backward().pre_backward(group))
        return output


def state_beside(module: nn.Module) -> State | None:
    """Return the state of a sharded module; None for another one."""
    found: State | None = module.__dict__.get(NAME)
    return found


def _cast(values: Any, dtype: torch.dtype | None) -> Any:
    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.to(dtype)
        return value

    return map_leaves(convert, values)
