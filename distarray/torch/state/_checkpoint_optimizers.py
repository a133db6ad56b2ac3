"""Optimizers in checkpoints: their states under the names of parameters, placed as these are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from distarray.checkpoint import Adapter, Finish, LoadPlan, Node, SavePlan, encode_key, join_name
from distarray.errors import ArgumentError, StateDictError
from distarray.torch._layouts import Placed, own_placed
from distarray.torch.parallel._parameters import is_sharded
from distarray.torch.state._checkpoint_modules import modules_in
from distarray.torch.state._checkpoint_tensors import fill_tensor, save_tensor, torch_dtype
from distarray.torch.state._optimizer_state import matched
from distarray.torch.state._state_dict import kept


class Optimizers(Adapter):
    """Optimizers whose states have the shape of the parameter, or are the same on every rank."""

    def save(self, value: Optimizer, plan: SavePlan, name: str) -> Node:
        """Save states and hyperparameters."""
        names = _names(value, plan.state, name)
        states = []
        for parameter, key in names.items():
            placed = own_placed(parameter)
            start = join_name(join_name(name, "state"), key)
            found = []
            for what, one in value.state.get(parameter, {}).items():
                full = join_name(start, what)
                if isinstance(one, torch.Tensor):
                    how = _placed_like(one, parameter, placed, full)
                    found.append([encode_key(what, start), save_tensor(one, how, plan, full)])
                else:
                    found.append([encode_key(what, start), plan.node(one, full)])
            if found:
                states.append([key, {"dict": found}])
        groups = [
            {**group, "params": [names[p] for p in group["params"]]} for group in value.param_groups
        ]
        return {
            "object": type(value).__qualname__,
            "of": {
                "dict": [
                    ["state", {"dict": states}],
                    ["param_groups", plan.node(groups, join_name(name, "param_groups"))],
                ]
            },
        }

    def load(self, value: Optimizer, plan: LoadPlan, name: str) -> Finish:
        """Fill states, making those that are not there yet, and set hyperparameters."""
        names = _names(value, plan.state, name)
        made_groups = plan.saved_value(join_name(name, "param_groups"))
        made: dict[torch.Tensor, dict[Any, Finish]] = {}
        for parameter, key in names.items():
            start = join_name(join_name(name, "state"), key)
            for what, full in plan.children(start):
                one = _state(value, parameter, what, plan, full)
                if one is not None:
                    made.setdefault(parameter, {})[what] = one
        is_same = made_groups is not None and _compare(value, names, plan, name)

        def finish() -> Any:
            groups: Sequence[Mapping[str, Any]] = value.param_groups
            if made_groups is not None:
                groups = made_groups() if is_same else matched(made_groups(), names, value)
            states = {p: {k: m() for k, m in one.items()} for p, one in made.items()}
            _set(value, states, groups)
            return value

        return finish


def _compare(
    optimizer: Optimizer, names: dict[torch.Tensor, str], plan: LoadPlan, name: str
) -> bool:
    """Tell whether the groups that were saved are those of the optimizer; take note otherwise."""
    start = join_name(name, "param_groups")
    given = [plan.value(join_name(group, "params")) for _, group in plan.children(start)]
    wanted = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
    if list(map(set, given)) == list(map(set, wanted)):
        return True
    plan.refuse_if_strict(
        f"{name} was saved with parameter groups {given}, and has {wanted} here; make the "
        "optimizer with the same groups"
    )
    try:
        matched([{"params": one} for one in given], names, optimizer)
    except StateDictError as error:
        plan.refuse(f"{name}: {error}")
    return False


def _names(optimizer: Optimizer, state: Any, name: str) -> dict[torch.Tensor, str]:
    """Return the names of an optimizer's parameters, in the order of its groups.

    They are those within the module that has them all; with the module's own where several do.
    """
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    wanted = set(held)
    known: dict[torch.Tensor, list[tuple[str, str]]] = {}
    for path, module in modules_in(state):
        kept(module)
        for key, parameter in module.named_parameters():
            if parameter in wanted:
                known.setdefault(parameter, []).append((path, key))
    unknown = sum(parameter not in known for parameter in held)
    if unknown:
        raise ArgumentError(
            f"{name or 'the state'} is an {type(optimizer).__name__} with {unknown} of "
            f"{len(held)} parameters that no module of the state has; pass the module that it was "
            'made for beside it: {"model": model, "optimizer": optimizer}'
        )
    paths = [{path for path, _ in found} for found in known.values()]
    common = set.intersection(*paths) if paths else set()
    if common:
        chosen = min(common)
        return {p: next(key for path, key in known[p] if path == chosen) for p in held}
    return {p: join_name(*known[p][0]) for p in held}


def _placed_like(
    value: torch.Tensor, parameter: torch.Tensor, placed: Placed | None, name: str
) -> Placed | None:
    """Return how a state is placed: as its parameter, if it has its shape."""
    if placed is None or value.ndim == 0:
        return None
    if value.shape == parameter.shape:
        return placed
    if is_sharded(placed.layout):
        raise ArgumentError(
            f"{name} has shape {tuple(value.shape)}, and the block of its parameter "
            f"{tuple(parameter.shape)}: how it is cut is not known; use an optimizer whose states "
            "have the shape of the parameter"
        )
    return None


def _state(
    optimizer: Optimizer, parameter: torch.Tensor, what: Any, plan: LoadPlan, name: str
) -> Finish | None:
    """Let a state be filled: the tensor that is there, if it has the dtype, or a new one."""
    found = plan.value(name) if plan.is_array(name) else None
    if found is None:
        return plan.saved_value(name)
    placed = own_placed(parameter)
    full = tuple(parameter.shape) if placed is None else placed.layout.shape
    like = bool(found.shape) and found.shape == full
    shape = tuple(parameter.shape) if like else found.shape
    dtype = torch_dtype(found)
    tensor = optimizer.state.get(parameter, {}).get(what)
    if not isinstance(tensor, torch.Tensor) or (tensor.shape, tensor.dtype) != (shape, dtype):
        device = parameter.device if shape else "cpu"
        tensor = torch.empty(shape, dtype=dtype, device=device)
        if like and shape == tuple(parameter.shape):
            tensor = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    fill_tensor(tensor, placed if like else None, plan, name)
    return lambda: tensor


def _set(
    optimizer: Optimizer,
    states: dict[torch.Tensor, dict[Any, Any]],
    groups: Sequence[Mapping[str, Any]],
) -> None:
    """Give an optimizer what was loaded."""
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    index = {parameter: i for i, parameter in enumerate(held)}
    own = [
        {**saved, "params": [index[p] for p in group["params"]]}
        for saved, group in zip(groups, optimizer.param_groups, strict=True)
    ]
    kept = {p: one for p, one in optimizer.state.items() if p not in states}
    loaded = {index[p]: dict(one) for p, one in {**kept, **states}.items()}
    optimizer.load_state_dict({"state": loaded, "param_groups": own})
    for parameter, one in states.items():
        for key, value in one.items():
            taken = optimizer.state[parameter].get(key)
            # torch converts states to the dtype of the parameter, which loses what was saved.
            if isinstance(taken, torch.Tensor) and taken.dtype != value.dtype:
                optimizer.state[parameter][key] = value.to(taken.device)
