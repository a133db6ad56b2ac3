"""Calls of sharded modules, and what happens around them."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from distarray.errors import ArgumentError
from distarray.torch._compat import is_going_backward, leaves_of, map_leaves, parameters_of
from distarray.torch._modules import locate_errors
from distarray.torch._opaque import disable_compile, refuse_transforms
from distarray.torch._saved_tensors import enter_hooks
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
        group = self._group = state.group
        recomputing = self._recomputing = is_going_backward()
        outer = _running.get()
        context = outer or (group.context if recomputing and group else None) or state.own
        self._context = context
        self._outermost = outer is None and not recomputing
        self._is_last = state.is_last
        self._before: list[torch.Tensor] | None = None
        self._hooks: Any = None
        self._token = _running.set(context)
        if self._outermost:
            context.begin()
        try:
            if self._outermost and torch.is_grad_enabled():
                state.check_parameters(module)
            if group is not None:
                with locate_errors(module):
                    self._unshard(group)
            if torch.is_grad_enabled():
                self._hooks = enter_hooks(view_of_unsharded)
        except BaseException:
            self._end_pass()
            raise

    def _unshard(self, group: Group) -> None:
        group.context = self._context
        self._before = group.held if group.depth else None
        group.unshard()
        group.hold_unsharded()
        if not self._recomputing:
            group.is_outermost = self._outermost
            group.calls += torch.is_grad_enabled()
            self._context.enter(group)
        group.depth += 1

    @disable_compile
    def end(self) -> None:
        """Let the parameters go."""
        try:
            if self._hooks is not None:
                self._hooks.__exit__(None, None, None)
            if self._group is not None:
                self._reshard(self._group)
        finally:
            self._end_pass()

    def _reshard(self, group: Group) -> None:
        group.depth -= 1
        if self._before is not None and group.is_unsharded:
            group.hold(self._before)
        elif not group.depth and not self._recomputing and self._is_last:
            group.hold_shards()
            self._context.leave(group)
            if group.reshards_after_forward:
                group.reshard(after_forward=True)

    def _end_pass(self) -> None:
        _running.reset(self._token)
        if self._outermost:
            self._context.end()


class State:
    """Beside a sharded module."""

    def __init__(self, group: Group | None, is_last: bool, module: nn.Module) -> None:
        self.group = group  # of its parameters; None where modules inside have all of them
        self.is_last = is_last  # of those that share the group
        self.own = Context()  # of the calls where this module is the outermost one
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
        if self.group is not None and torch.is_grad_enabled():
            self._watch(self.group, args, kwargs)
        policy = None if self.group is None else self.group.policy
        if policy is None or policy.param_dtype is None or not policy.cast_forward_inputs:
            return args, kwargs
        return _cast((args, kwargs), policy.param_dtype)

    def _watch(self, group: Group, *inputs: Any) -> None:
        """Let frozen parameters go when gradients of inputs are there."""
        group.ends_with_inputs = False
        if all(m.parameter.requires_grad for m in group.members):
            return
        for tensor in leaves_of(inputs):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
                tensor.register_hook(group.post_backward)
                group.ends_with_inputs = True

    @disable_compile
    def post_forward(self, output: Any) -> Any:
        """Return the output of a call, converted; its gradient will announce the backward pass."""
        group = self.group
        if group is None:
            return output
        group.check_unchanged()
        output = _keep_memory(output, group.held or ())
        if group.policy.output_dtype is not None:
            output = _cast(output, group.policy.output_dtype)
        if torch.is_grad_enabled():
            for tensor in leaves_of(output):
                if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
                    tensor.register_hook(group.pre_backward)
        return output


def state_beside(module: nn.Module) -> State | None:
    """Return the state of a sharded module; None for another one."""
    found: State | None = module.__dict__.get(NAME)
    return found


def _keep_memory(output: Any, held: Sequence[torch.Tensor]) -> Any:
    """Return an output in which unsharded parameters, which are about to go, keep their memory."""
    going = {id(whole) for whole in held}

    def keep(value: Any) -> Any:
        return value.view_as(value) if id(value) in going else value

    if not any(id(value) in going for value in leaves_of(output)):
        return output
    return map_leaves(keep, output)


def _cast(values: Any, dtype: torch.dtype) -> Any:
    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.to(dtype)
        return value

    return map_leaves(convert, values)
