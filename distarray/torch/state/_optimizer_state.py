"""States of optimizers by parameter names, of whole tensors: a run goes on with other ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from distarray.comm import DeviceMesh, all_gather_checked, by_answer
from distarray.errors import ArgumentError, MismatchError, StateDictError
from distarray.layout import Layout, Replicate
from distarray.torch import _wholes
from distarray.torch._layouts import Placed, placed_of
from distarray.torch.parallel._parameters import block_of, is_sharded
from distarray.torch.state._state_dict import kept, meshes, only_mesh


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
    """
    found = kept(module)
    rank, here = None, True
    if isinstance(ranks, int):
        mesh = only_mesh(found, mesh, f"ranks={ranks}")
        rank = _wholes.number_of(mesh, ranks)
        here = mesh.rank == rank
    names = _names(module, optimizer)
    for one in meshes(found):
        told = all_gather_checked(one, "optimizer_state_dict", lambda: _described(optimizer, names))
        if any(other != told[0] for other in told):
            raise MismatchError(
                "optimizers keep different states on different ranks: "
                f"{by_answer(told, one.communicator().world_ranks)}; make the same steps everywhere"
            )
    state: dict[str, Any] = {}
    for parameter, name in names.items():
        placed = placed_of(parameter)
        for key, value in optimizer.state.get(parameter, {}).items():
            whole = value
            if placed is not None and _is_block(value, parameter, placed):
                if rank is None:
                    whole = _wholes.gathered_on_all(value, placed)
                else:
                    whole = _wholes.gathered_on_one(value, placed, rank)
            if here:
                moved = cpu and isinstance(whole, torch.Tensor)
                state.setdefault(name, {})[key] = whole.cpu() if moved else whole
    groups = [
        {**group, "params": [names[p] for p in group["params"]]} for group in optimizer.param_groups
    ]
    return {"state": state, "param_groups": groups} if here else {}


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
        The ranks pass other values of ``strict``.
    """
    found = kept(module)
    source = None
    if src_data_rank is not None:
        mesh = only_mesh(found, mesh, f"src_data_rank={src_data_rank}")
        source = _wholes.number_of(mesh, src_data_rank)
    names = _names(module, optimizer)

    def say() -> Any:
        if source is not None and mesh is not None and mesh.rank != source:
            return strict, None
        told = _told(state)
        _compare(told, names, optimizer, strict)
        return strict, told

    everyone: list[Any] = meshes(found) if mesh is None else [mesh]
    told: Any = None if everyone else say()[1]
    for one in everyone:
        said = all_gather_checked(one, "load_optimizer_state_dict", say)
        if any(other != strict for other, _ in said):
            ranks = one.communicator().world_ranks
            raise MismatchError(
                "load_optimizer_state_dict got strict=True on some ranks and strict=False on "
                f"others: {by_answer([other for other, _ in said], ranks)}; "
                "pass the same everywhere"
            )
        told = said[one.flat_ranks.index(one.rank if source is None else source)][1]
    index = {name: i for i, name in enumerate(names.values())}
    own: dict[int, dict[str, Any]] = {}
    for parameter, name in names.items():
        if not strict and name not in _all_names(told):
            own[index[name]] = dict(optimizer.state.get(parameter, {}))
        for key, value in told["state"].get(name, {}).items():
            given = None
            if isinstance(value, _Tensor) and state:
                given = state["state"][name][key]
            taken = value
            if isinstance(value, _Tensor):
                taken = _taken(given, value, parameter, source, mesh)
            own.setdefault(index[name], {})[key] = taken
    groups = [
        {**given, "params": [index[names[p]] for p in group["params"]]}
        for given, group in zip(
            _matched(told, names, optimizer, strict), optimizer.param_groups, strict=True
        )
    ]
    optimizer.load_state_dict({"state": own, "param_groups": groups})


def _names(module: nn.Module, optimizer: Optimizer) -> dict[torch.Tensor, str]:
    """Return the names of an optimizer's parameters, in the order of its groups."""
    known = {parameter: name for name, parameter in module.named_parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(parameter not in known for parameter in held):
        raise ArgumentError(
            f"the {type(optimizer).__name__} holds parameters that are none of the "
            f"{type(module).__name__}'s; pass the module that it was made for (parallelize before "
            "the optimizer is made where that replaces parameters)"
        )
    return {parameter: known[parameter] for parameter in held}


def _is_block(value: Any, parameter: torch.Tensor, placed: Placed) -> bool:
    """Tell whether a value is cut as its parameter is."""
    return (
        isinstance(value, torch.Tensor)
        and value.ndim > 0
        and value.shape == parameter.shape
        and is_sharded(placed.layout)
    )


def _described(optimizer: Optimizer, names: Mapping[torch.Tensor, str]) -> Any:
    """Return which states of which parameters are blocks, or raise where one has no layout."""
    found = []
    for parameter, name in names.items():
        placed = placed_of(parameter)
        for key, value in optimizer.state.get(parameter, {}).items():
            if placed is None or not isinstance(value, torch.Tensor):
                continue
            block = _is_block(value, parameter, placed)
            if not block and value.ndim > 0 and is_sharded(placed.layout):
                raise ArgumentError(
                    f"the {type(optimizer).__name__} keeps {key!r} of shape {tuple(value.shape)} "
                    f"for {name}, whose block has shape {tuple(parameter.shape)}: how it is cut is "
                    "not known; use an optimizer whose states have the shape of the parameter"
                )
            found.append((name, key, block))
    return tuple(found)


def _told(state: Any) -> dict[str, Any]:
    if not isinstance(state, Mapping) or not {"state", "param_groups"} <= set(state):
        raise StateDictError(
            "the state of an optimizer is what dt.optimizer_state_dict returned, with the keys "
            f"'state' and 'param_groups'; not {type(state).__name__}"
        )
    tensors = {
        name: {
            key: _Tensor(tuple(value.shape), value.dtype)
            if isinstance(value, torch.Tensor)
            else value
            for key, value in kept_values.items()
        }
        for name, kept_values in state["state"].items()
    }
    return {"state": tensors, "param_groups": state["param_groups"]}


def _all_names(told: Mapping[str, Any]) -> set[str]:
    """Return the names of all parameters of the optimizer that was saved."""
    return {name for group in told["param_groups"] for name in group["params"]}


def _matched(
    told: Mapping[str, Any],
    names: Mapping[torch.Tensor, str],
    optimizer: Optimizer,
    strict: bool,
) -> list[Mapping[str, Any]]:
    """Return for each group of the optimizer the hyperparameters that it takes."""
    given: list[Mapping[str, Any]] = list(told["param_groups"])
    return given if strict else matched(given, names, optimizer)


def matched(
    saved: Sequence[Mapping[str, Any]], names: Mapping[torch.Tensor, str], optimizer: Optimizer
) -> list[Mapping[str, Any]]:
    """Return for each group of an optimizer the saved one with its parameters, or itself.

    Raises
    ------
    StateDictError
        A group has parameters of several.
    """
    found: list[Mapping[str, Any]] = []
    for i, group in enumerate(optimizer.param_groups):
        own = {names[p] for p in group["params"]}
        sharing = [given for given in saved if not own.isdisjoint(given["params"])]
        if len(sharing) > 1:
            raise StateDictError(
                f"group {i} of the optimizer has parameters of {len(sharing)} groups of the state, "
                f"{[given['params'] for given in sharing]}, so that it is not known whose "
                "hyperparameters it takes; make the optimizer with these groups, and further ones "
                "for new parameters"
            )
        found.append(sharing[0] if sharing else group)
    return found


def _compare(
    told: Mapping[str, Any],
    names: Mapping[torch.Tensor, str],
    optimizer: Optimizer,
    strict: bool,
) -> None:
    """Raise unless a state is that of an optimizer of these parameters."""
    if strict:
        _compare_groups(told, names, optimizer)
    else:
        _matched(told, names, optimizer, strict)
    for parameter, name in names.items():
        placed = placed_of(parameter)
        full = tuple(parameter.shape) if placed is None else placed.layout.shape
        for key, value in told["state"].get(name, {}).items():
            if isinstance(value, _Tensor) and value.shape not in ((), full):
                cut = placed is not None and is_sharded(placed.layout)
                if cut or value.shape == tuple(parameter.shape):
                    raise StateDictError(
                        f"{key!r} of {name} has shape {value.shape}, where the parameter has "
                        f"{full}; pass whole tensors, of this module"
                    )


def _compare_groups(
    told: Mapping[str, Any], names: Mapping[torch.Tensor, str], optimizer: Optimizer
) -> None:
    """Raise unless groups have the same parameters."""
    given = [list(group["params"]) for group in told["param_groups"]]
    wanted = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
    if [set(group) for group in given] != [set(group) for group in wanted]:
        raise StateDictError(
            f"the state has parameter groups {given}, where the optimizer has {wanted}; make the "
            "optimizer with the same groups, or pass strict=False"
        )


def _taken(
    given: torch.Tensor | None,
    told: _Tensor,
    parameter: torch.Tensor,
    source: int | None,
    mesh: Any,
) -> torch.Tensor:
    """Return this rank's part of a tensor of the state."""
    placed = placed_of(parameter)
    if placed is None or told.shape != placed.layout.shape or not told.shape:
        placed = None
    if source is None:
        assert given is not None
        whole = given.detach()
        part = whole if placed is None else block_of(whole, placed)
        return part.clone(memory_format=torch.contiguous_format)
    if placed is None:
        placed = Placed(Layout(mesh, [Replicate()] * mesh.ndim, told.shape))
    device = "cpu" if not told.shape else parameter.device
    like = torch.empty(0, dtype=told.dtype, device=device)
    return _wholes.handed_out(
        given if mesh.rank == source else None, _wholes.over(placed, mesh), source, like
    )
