"""What every operation does once its rule is resolved: move what must move, wrap the result.

The engine is one pipeline and knows no operation by name: normalise the operands (`_operands`),
resolve the rule (`_spec`, `_resolution`), move the inputs (here), call the local function, wrap.
A row keeps what it resolved in a dict on the layouts, which are interned, so that the second call
is a lookup; `_paths` has the short ways for small blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core._policy import permit
from distarray.core._resolution import Resolution
from distarray.layout import Layout
from distarray.layout._box import slices
from distarray.redistribute import redistribute_local
from distarray.typing import Buffer

CACHED = 1024
"""Most resolutions that one row remembers; a full cache is emptied."""


def move(name: str, block: Buffer, src: Layout, dst: Layout) -> Buffer:
    """Return the block of `dst`, moved because operation `name` needs it so.

    Raises
    ------
    ImplicitCommunicationError
        If data would travel and the `communication` policy refuses it.
    """
    if src is dst:
        return block
    permit(name, src, dst, block.dtype)
    return redistribute_local(block, src, dst)


def move_all(name: str, blocks: Sequence[Buffer], resolution: Resolution) -> list[Buffer]:
    """Return the blocks that `resolution` asks for, after asking the policy about all of them."""
    for block, step in zip(blocks, resolution.moves, strict=True):
        if step is not None and not block.dtype.hasobject:
            permit(name, *step, block.dtype)
    return [
        block if step is None else _moved(block, *step)
        for block, step in zip(blocks, resolution.moves, strict=True)
    ]


def _moved(block: Buffer, src: Layout, dst: Layout) -> Buffer:
    if block.dtype.hasobject:  # a plain operand, which every rank has: objects cannot travel
        return block[slices(dst.local_box() or ())]
    return redistribute_local(block, src, dst)


def remember(cache: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep `value`, emptying a cache that has grown too long."""
    if len(cache) >= CACHED:
        cache.clear()
    cache[key] = value


def as_block(result: Any) -> Buffer:
    """Return `result` as an array: NumPy gives a scalar, or an object, where operands are 0-d."""
    if isinstance(result, np.ndarray) or _backend.is_buffer(result):
        return result
    if isinstance(result, np.generic):
        return np.asarray(result)
    block = np.empty((), object)
    block[()] = result
    return block
