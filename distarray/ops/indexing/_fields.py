"""Fields of structured arrays: views of the blocks, whatever the layout."""

from __future__ import annotations

from typing import Any

from distarray.comm import _backend
from distarray.core import BaseArray, empty_block
from distarray.errors import ArgumentError, DTypeError, IndexingError
from distarray.ops.families._relabel import carry_cuts


def field_names(key: Any) -> Any:
    """Return a key that is the name of a field, or a list of names; None: another one."""
    if isinstance(key, str) or (
        isinstance(key, list) and key and all(isinstance(one, str) for one in key)
    ):
        return key
    return None


def select_fields(x: BaseArray, names: Any) -> Any:
    """Return fields of a structured array, which look at its memory.

    Raises
    ------
    IndexingError
        If it has no fields.
    ArgumentError
        If it has no field of a name.
    DTypeError
        If its blocks are on GPUs, where fields have no views.
    """
    dtype, layout = x._local.dtype, x._layout
    if dtype.names is None:
        raise IndexingError(
            f"an index holds the name {names!r}, and {dtype} has no fields; integers, slices, ..., "
            "None and arrays select items"
        )
    for name in [names] if isinstance(names, str) else names:
        if name not in dtype.names:
            raise ArgumentError(f"no field is named {name!r}; those of {dtype} are {dtype.names}")
    if not _backend.is_numpy(x._local):
        raise DTypeError("fields of arrays on GPUs cannot be selected; use x.to_device('cpu')")
    block = x._local[names]
    within = block.shape[x._local.ndim :]  # of a field that is an array itself
    if within:
        layout = carry_cuts(layout, (*layout.shape, *within), {a: a for a in range(layout.ndim)})
        if layout.mesh.coordinate is None:
            block = empty_block(layout, block.dtype)
    return x._new(block, layout)
