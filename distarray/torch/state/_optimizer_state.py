"""States of optimizers by parameter names, of whole tensors: a run goes on with other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from distarray.comm import DeviceMesh, all_gather_checked
from distarray.errors import StateDictError
from distarray.torch._layouts import is_sharded, own_placed
from distarray.torch._modules import check_alike
from distarray.torch.state._entries import Holder, ModuleState, OptimizerState, receiver_of


class _Tensor(NamedTuple):
    """What a tensor of a state is, in a form that travels."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def optimizer_state_dict(
    module: nn.Module,
    optimizer: Optimizer,
    *,
    ranks: str | int = "all",
    mesh: DeviceMesh | None = None,
    cpu: bool = False,
) -> dict[str, Any]:
    """Return an optimizer's state under the names of a module's parameters (collective).

    Parameters
    ----------
    module
        Whose parameters the optimizer holds.
    optimizer
        Its state may consist of tensors of a parameter's shape, which are gathered one after
        another, of scalars and of other values.
    ranks, mesh, cpu
        As for `state_dict`.

    Returns
    -------
    dict
        ``"state"``: by name, what the optimizer keeps; ``"param_groups"``: its groups, with names
        for parameters. Empty on ranks that get nothing.

    Raises
    ------
    ArgumentError
        The optimizer keeps a tensor of another shape for a parameter that is cut.
    MismatchError
        The ranks keep different things.

    Examples
    --------
    >>> def shapes():
    ...     layer = nn.Linear(4, 6)
    ...     dt.parallelize_module(layer, da.default_mesh(), dt.ColwiseParallel())
    ...     optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
    ...     layer(torch.ones(2, 4)).sum().backward()
    ...     optimizer.step()
    ...     state = dt.optimizer_state_dict(layer, optimizer)["state"]
    ...     return [*state["weight"]["momentum_buffer"].shape]
    >>> da.testing.simulate(2, shapes)
    [[6, 4], [6, 4]]
    """
    own = ModuleState(module)
    receiver = receiver_of(own, ranks, mesh)
    kept = OptimizerState(optimizer, [("", module)])

    def describe() -> Any:
        states = tuple(
            (name, key, entry.placed is not None)
            for parameter, name, key, entry in kept.entries()
            if own_placed(parameter) is not None and isinstance(entry.value, torch.Tensor)
        )
        return states, [_numbers_in(group) for group in kept.groups]

    for one in own.meshes:
        told = all_gather_checked(one, "optimizer_state_dict", describe)
        states, numbers = zip(*told, strict=True)
        what = "optimizers keep different states on different ranks"
        check_alike(what, states, one, "make the same steps everywhere")
        for group in zip(*numbers, strict=False):
            for name in group[0]:
                what = f"optimizers have different values of {name!r} on different ranks"
                remedy = (
                    "each would step by its own: let schedules follow what all ranks have, such as "
                    "the loss of all of them"
                )
                check_alike(what, [str(of_rank.get(name)) for of_rank in group], one, remedy)
    state: dict[str, Any] = {}
    for _, name, key, entry in kept.entries():
        whole = receiver.gather(entry, cpu=cpu)
        if receiver.is_here:
            state.setdefault(name, {})[key] = whole
    return {"state": state, "param_groups": kept.groups} if receiver.is_here else {}


def _numbers_in(group: Mapping[str, Any]) -> dict[str, float]:
    """Return the hyperparameters of a group that are numbers, or tensors of one."""
    single = {
        name: value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        for name, value in group.items()
    }
    return {name: value for name, value in single.items() if isinstance(value, int | float)}


def load_optimizer_state_dict(
    module: nn.Module,
    optimizer: Optimizer,
    state: Mapping[str, Any] | None,
    *,
    strict: bool = True,
    src_data_rank: int | None = None,
    mesh: DeviceMesh | None = None,
) -> None:
    """Load what `optimizer_state_dict` returned, on however many ranks (collective).

    Parameters
    ----------
    module, optimizer
        The optimizer holds parameters of the module, in as many groups as it did.
    state
        Of whole tensors.
    strict
        Whether groups must have the same parameters. With False what the state has of others is
        left out, and parameters that it lacks, such as those that a model has grown, keep what the
        optimizer has of them. A group takes the hyperparameters of that with which it shares
        parameters, and keeps its own where it shares none.
    src_data_rank, mesh
        As for `load_state_dict`.

    Raises
    ------
    StateDictError
        Groups, names or shapes do not fit; on every rank, and nothing has been loaded.
    MismatchError
        The ranks pass other values of ``strict``, or have different states where each has its own.

    Notes
    -----
    As by torch's ``Optimizer.load_state_dict`` states are converted to the dtype of the parameter,
    and parameters of which none were saved have none. ``param_names`` stay the optimizer's own.

    Examples
    --------
    >>> layer = nn.Linear(4, 6)
    >>> optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
    >>> layer(torch.ones(2, 4)).sum().backward()
    >>> optimizer.step()
    >>> saved = dt.optimizer_state_dict(layer, optimizer)
    >>> later = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
    >>> dt.load_optimizer_state_dict(layer, later, saved)
    >>> later.state[layer.weight]["momentum_buffer"].shape
    torch.Size([6, 4])
    """
    source = Holder(ModuleState(module), src_data_rank, mesh, "src_data_rank")
    own = OptimizerState(optimizer, [("", module)])

    def describe() -> dict[str, Any]:
        told = _describe(state)
        _compare(told, own, strict)
        return told

    def names(told: dict[str, Any]) -> list[str]:
        held = [name for parameter, name in own.names.items() if own_placed(parameter) is not None]
        return [f"{name}.{key}" for name in held for key in told["state"].get(name, ())]

    told = source.agree("load_optimizer_state_dict", {"strict": strict}, describe, names)
    states: dict[torch.Tensor, dict[str, Any]] = {}
    for parameter, name in own.names.items():
        for key, value in told["state"].get(name, {}).items():
            taken = value
            if isinstance(value, _Tensor):
                given = state["state"][name][key] if state and source.is_here else None
                placed = own_placed(parameter)
                if placed is None or value.shape != placed.layout.shape or not value.shape:
                    placed = None
                device = parameter.device if value.shape else "cpu"
                taken = source.scatter(given, *value, placed, device, copied=True).detach()
            states.setdefault(parameter, {})[key] = taken
    own.load(states, told["param_groups"])


def _describe(state: Any) -> dict[str, Any]:
    if not isinstance(state, Mapping) or not {"state", "param_groups"} <= set(state):
        raise StateDictError(
            "the state of an optimizer is what dt.optimizer_state_dict returned, with the keys "
            f"'state' and 'param_groups'; not {type(state).__name__}"
        )

    def form(value: Any) -> Any:
        is_tensor = isinstance(value, torch.Tensor)
        return _Tensor(tuple(value.shape), value.dtype) if is_tensor else value

    tensors = {
        name: {key: form(value) for key, value in values.items()}
        for name, values in state["state"].items()
    }
    return {"state": tensors, "param_groups": state["param_groups"]}


def _compare(told: Mapping[str, Any], own: OptimizerState, strict: bool) -> None:
    """Raise unless a state is that of an optimizer of these parameters."""
    if not strict:
        own.match_groups(told["param_groups"])
    elif wrong := own.differing_groups([group["params"] for group in told["param_groups"]]):
        raise StateDictError(
            f"the state has {wrong}; make the optimizer with the same groups, or pass strict=False"
        )
    for parameter, name in own.names.items():
        placed = own_placed(parameter)
        full = tuple(parameter.shape) if placed is None else placed.layout.shape
        for key, value in told["state"].get(name, {}).items():
            if isinstance(value, _Tensor) and value.shape not in ((), full):
                cut = placed is not None and is_sharded(placed.layout)
                if cut or value.shape == tuple(parameter.shape):
                    raise StateDictError(
                        f"{key!r} of {name} has shape {value.shape}, where the parameter has "
                        f"{full}; pass whole tensors, of this module"
                    )
