"""Records of which tensors of a state dict are shards: written in its metadata, read on loading.

torch keeps the metadata of a state dict in its files. A shard that is loaded where another one
belongs would often fit by its shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from distarray.errors import StateDictError
from distarray.torch._compat import parameters_of, state_dict_hooks_of
from distarray.torch._layouts import Placed, TensorMap, is_sharded
from distarray.torch._modules import state_of, watch_replacements
from distarray.torch._shards import count_first_cut

KEY = "distarray_shares"
"""Under which metadata has a module's shards, by its parameters' names: saved files have it."""

_names: TensorMap[str] = TensorMap()

Record = tuple[Any, ...]
"""Of plain values, which torch loads with ``weights_only=True``."""


def note_placed(module: nn.Module, name: str, placed: Placed) -> None:
    """Take note of how a module's parameter or buffer is placed, also in its state dicts."""
    state = state_of(module)
    state.placed[name] = placed
    watch_replacements(module)
    own = parameters_of(module).get(name)
    if own is not None:
        _names.set(own, f"{state.path}.{name}" if state.path else name)
    if _write not in state_dict_hooks_of(module).values():
        module.register_state_dict_post_hook(_write)
        module.register_load_state_dict_pre_hook(_compare)


def name_of(parameter: torch.Tensor) -> str:
    """Return a parameter's name in its model, quoted, as far as it is known, and a space."""
    name = _names.get(parameter)
    return f"{name!r} " if name else ""


def list_records(metadata: Mapping[str, Any] | None) -> Iterator[tuple[str, Record]]:
    """Yield the names in a state dict of what its metadata says to be shards."""
    for prefix, local in (metadata or {}).items():
        for name, record in local.get(KEY, {}).items():
            yield f"{prefix}.{name}" if prefix else name, record


def drop_records(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of whole tensors."""
    return {
        prefix: {key: value for key, value in local.items() if key != KEY}
        for prefix, local in metadata.items()
    }


def record_of(placed: Placed | None) -> Record | None:
    """Return what tells a shard from others; None for a whole tensor."""
    if placed is None or not is_sharded(placed.layout):
        return None
    layout, parts, axis, units, _ = placed
    torn = (parts, axis, units, count_first_cut(placed)) if parts else ()
    return str(layout), layout.shape, layout.local_box(), torn


def find_difference(
    name: str, given: Record, shape: tuple[int, ...], own: Record | None
) -> str | None:
    """Return what is wrong with a shard in the place of another one, or of a whole tensor.

    A tensor of another `shape` than that of the shard has taken its place since.
    """
    if shape != tuple(stop - start for start, stop in given[2]):
        return None
    if own is not None and given[1:] == own[1:]:
        return None
    here = "whole" if own is None else _text(own)
    return f"{name} is a rank's shard, {_text(given)}, where this is {here}"


def _text(record: Record) -> str:
    items = ", ".join(f"{start}:{stop}" for start, stop in record[2])
    return f"[{items}] of {record[0]}"


def _write(module: nn.Module, state: Any, prefix: str, local: dict[str, Any]) -> None:
    found = {}
    for name, placed in state_of(module).placed.items():
        value = state.get(prefix + name)
        if isinstance(value, torch.Tensor) and tuple(value.shape) == placed.layout.local_shape():
            record = record_of(placed)
            if record is not None:
                found[name] = record
    if found:
        local[KEY] = found


_WHOLE_TENSORS_GIVEN = (
    "sharded parameters are this rank's shards here, and what is to be loaded has another shape; "
    "for whole tensors use dt.load_state_dict(model, state), for checkpoints da.checkpoint.load"
)


def _compare(
    module: nn.Module, state: Mapping[str, Any], prefix: str, local: Mapping[str, Any], *rest: Any
) -> None:
    parameters = parameters_of(module)
    for name, placed in state_of(module).placed.items():
        shape, own = placed.layout.local_shape(), parameters.get(name)
        given = state.get(prefix + name)
        if not isinstance(given, torch.Tensor) or own is None or tuple(given.shape) == shape:
            continue
        is_shard = is_sharded(placed.layout) and tuple(own.shape) == shape
        if type(parameters) is not dict:  # if it is whole, a hook of fully_shard makes it a shard
            is_shard = True
        if is_shard and _WHOLE_TENSORS_GIVEN not in rest[-1]:
            rest[-1].insert(0, _WHOLE_TENSORS_GIVEN)  # before torch names the shapes that differ
    for name, given in local.get(KEY, {}).items():
        value = state.get(prefix + name)
        if not isinstance(value, torch.Tensor):
            continue
        own = record_of(state_of(module).placed.get(name))
        wrong = find_difference(prefix + name, given, tuple(value.shape), own)
        if wrong is not None:
            raise StateDictError(
                f"{wrong}: shards go back to the rank, the mesh and the plan that they are of. "
                "Save whole tensors, by dt.state_dict(model), or the module by da.checkpoint.save, "
                "which any number of ranks loads"
            )
