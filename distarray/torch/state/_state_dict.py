"""State dicts with the names, shapes and order of one process, however the module is placed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from distarray.comm import DeviceMesh, list_first
from distarray.errors import ArgumentTypeError, StateDictError
from distarray.torch import _compat, _modules
from distarray.torch._buffers import check_travels
from distarray.torch._layouts import place
from distarray.torch._shard_records import drop_records, find_difference, list_records, record_of
from distarray.torch.state._entries import Entry, Holder, ModuleState, quote, receiver_of


def state_dict(
    module: nn.Module,
    *,
    full: bool = True,
    ranks: str | int = "all",
    mesh: DeviceMesh | None = None,
    cpu: bool = False,
) -> OrderedDict[str, Any]:
    """Return a module's parameters and buffers under their names in one process (collective).

    Parameters
    ----------
    module
        Distributed or not. Parameters are gathered one after another.
    full
        False gives this rank's blocks, and nothing is sent; `layout_of` knows how they are placed.
    ranks
        Who gets the whole tensors: ``"all"``, or the position in ``mesh`` of the only rank that
        does; on the others the result is empty, and they hold no whole tensor at any time.
    mesh
        For ``ranks``: default is the mesh that all distributed parameters are placed on. Each
        sub-mesh of a larger mesh has a rank 0 of its own; pass the larger one to mean its rank 0.
    cpu
        Whether tensors of other devices come to the CPU, each as soon as it is whole.

    Returns
    -------
    OrderedDict
        As ``module.state_dict()`` of one process: parts of fused weights in their order, tied
        parameters under every name, one tensor for all of them. What is not distributed shares its
        memory with the module.

    Examples
    --------
    >>> def shapes():
    ...     layer = nn.Linear(4, 6)
    ...     dt.parallelize_module(layer, da.default_mesh(), dt.ColwiseParallel())
    ...     return [*layer.weight.shape], [*dt.state_dict(layer)["weight"].shape]
    >>> da.testing.simulate(2, shapes)
    [([3, 4], [6, 4]), ([3, 4], [6, 4])]
    """
    state = ModuleState(module)
    result: OrderedDict[str, Any] = OrderedDict()
    if state.metadata is not None:
        known = drop_records(state.metadata) if full else state.metadata
        result._metadata = known  # type: ignore[attr-defined]
    if not full:
        for name, (value, placed) in state.entries.items():
            result[name] = value
            if isinstance(value, torch.Tensor):
                result[name] = value.detach().cpu() if cpu else value.detach()
                if placed is not None:
                    place(result[name], *placed)
        return result
    receiver = receiver_of(state, ranks, mesh)
    seen: dict[int, Any] = {}
    for name, entry in state.entries.items():
        key = id(entry.value)
        if key not in seen:
            seen[key] = receiver.gather(entry, cpu=cpu)
        if receiver.is_here:
            result[name] = seen[key]
        else:
            seen[key] = None
    return result


# --- loading -------------------------------------------------------------------------------------


class IncompatibleKeys(NamedTuple):
    """Names that a state dict lacks, and names that the module lacks."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class _Described(NamedTuple):
    """What a state dict has, in a form that travels: shape and dtype of each tensor."""

    tensors: dict[str, tuple[tuple[int, ...], torch.dtype] | None]
    metadata: Any


def load_state_dict(
    module: nn.Module,
    state: Mapping[str, Any] | None,
    *,
    strict: bool = True,
    assign: bool = False,
    src_data_rank: int | None = None,
    mesh: DeviceMesh | None = None,
) -> IncompatibleKeys:
    """Load parameters and buffers under their names in one process (collective).

    Parameters
    ----------
    module
        Distributed or not, also materialised by ``to_empty`` or, with ``assign``, on meta.
    state
        Whole tensors, or this rank's blocks; one and the other may be mixed.
    strict
        Whether names must match exactly.
    assign
        Whether the module takes new parameters, of the dtype and device of the given tensors, and
        not only their values.
    src_data_rank
        Position in ``mesh`` of the only rank whose ``state`` counts: of whole tensors, of which
        each rank is sent its block, one module after another. With None every rank has its own.
    mesh
        For ``src_data_rank``; default: the mesh that all distributed parameters are placed on.

    Returns
    -------
    IncompatibleKeys
        ``missing_keys`` and ``unexpected_keys``, empty where ``strict``.

    Raises
    ------
    StateDictError
        Names do not match, or shapes are neither those of whole tensors nor of blocks; on every
        rank, and nothing has been loaded.

    Examples
    --------
    >>> saved = nn.Linear(4, 6).state_dict()  # of one process
    >>> def load():
    ...     layer = nn.Linear(4, 6)
    ...     dt.parallelize_module(layer, da.default_mesh(), dt.ColwiseParallel())
    ...     dt.load_state_dict(layer, saved)
    ...     return torch.equal(dt.full_tensor(layer.weight), saved["weight"])
    >>> da.testing.simulate(2, load)
    [True, True]
    """
    own = ModuleState(module)
    source = Holder(own, src_data_rank, mesh, "src_data_rank")

    def describe() -> _Described:
        told = _describe(state)
        _compare(own, told, strict, whole=source.is_one)
        return told

    def names(told: _Described) -> list[str]:
        return [name for name in told.tensors if name in own.entries and own.entries[name].placed]

    told = source.agree("load_state_dict", {"strict": strict, "assign": assign}, describe, names)
    keys = _compare(own, told, strict, whole=source.is_one)
    tied = [holders for holders in _modules.list_holders(module) if len(holders) > 1]
    for prefix, child in module.named_modules():
        start = f"{prefix}." if prefix else ""
        values = {
            name: _take(own.entries[name], state, told.tensors[name], source, name, copied=assign)
            for name in _names_of(child, start)
            if name in told.tensors and name in own.entries
        }
        metadata = dict((told.metadata or {}).get(prefix, {}))
        if assign:
            metadata["assign_to_params_buffers"] = True
        errors = _compat.load_own_state(child, values, start, metadata)
        if errors:
            raise StateDictError(f"{prefix or 'the module'} refuses its state: {'; '.join(errors)}")
        _modules.place_parameters(child)
    if assign:
        for (first, name), *others in tied:
            for child, other in others:
                _compat.parameters_of(child)[other] = _compat.parameters_of(first)[name]
    return keys


def _describe(state: Any) -> _Described:
    if not isinstance(state, Mapping):
        raise ArgumentTypeError(f"state is a mapping of names, not {type(state).__name__}")
    tensors: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            check_travels(value)
            tensors[name] = tuple(value.shape), value.dtype
        else:
            tensors[name] = None
    return _Described(tensors, getattr(state, "_metadata", None))


def _compare(own: ModuleState, told: _Described, strict: bool, whole: bool) -> IncompatibleKeys:
    """Return the names that do not match, or raise where they or the shapes must."""
    missing = [name for name in own.entries if name not in told.tensors]
    unexpected = [name for name in told.tensors if name not in own.entries]
    wrong = []
    if strict and missing:
        wrong.append(f"missing keys: {quote(missing)}")
    if strict and unexpected:
        wrong.append(f"unexpected keys: {quote(unexpected)}")
    for name, (value, placed) in own.entries.items():
        given = told.tensors.get(name)
        if given is None or not isinstance(value, torch.Tensor):
            continue
        block = tuple(value.shape)
        full = block if placed is None else placed.layout.shape
        if given[0] != full and (whole or given[0] != block):
            has = f"{name} has shape {given[0]}, where the module's has {full}"
            wrong.append(has if whole or block == full else f"{has} (this rank's block: {block})")
    for name, record in list_records(told.metadata):
        tensor = told.tensors.get(name)
        if tensor is not None and name in own.entries:
            here = None if whole else record_of(own.entries[name].placed)
            shard = find_difference(name, record, tensor[0], here)
            wrong += [] if shard is None else [shard]
    module = own.module
    known = {
        name
        for prefix, child in module.named_modules(remove_duplicate=False)
        for name in _names_of(child, f"{prefix}." if prefix else "")
    }
    if odd := [name for name in own.entries if name not in known]:
        wrong.append(f"hooks of the module rename {quote(odd)}; load it before it is parallelized")
    if wrong:
        raise StateDictError(
            f"the state dict does not fit the {type(module).__name__}: {list_first(wrong, '; ')}. "
            "Pass the state of this module, whole or as blocks"
            + (", or strict=False for names that differ" if missing or unexpected else "")
        )
    return IncompatibleKeys(missing, unexpected)


def _names_of(module: nn.Module, start: str) -> Iterator[str]:
    """Yield every name that a state dict may have of a module itself."""
    own = (*_compat.parameters_of(module), *_compat.buffers_of(module), "_extra_state")
    yield from (start + name for name in own)


def _take(
    entry: Entry,
    state: Mapping[str, Any] | None,
    told: tuple[tuple[int, ...], torch.dtype] | None,
    source: Holder,
    name: str,
    *,
    copied: bool,
) -> Any:
    """Return what a parameter, buffer or extra state takes, `copied` where it is a view."""
    value, placed = entry
    given = state[name] if source.is_here and state is not None else None
    if told is None:
        return source.broadcast(given)
    shape, dtype = told
    if not source.is_one and (placed is None or tuple(value.shape) == shape):
        return given
    device = "cpu" if value.device.type == "meta" else value.device
    return source.scatter(given, shape, dtype, placed, device, copied)
