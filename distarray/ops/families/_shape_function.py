"""Shape functions: operations that rename, add, drop or widen axes, by a `DimMap`.

Each process does it to its own block. Only a cut axis that the result cannot have any more (one of
length 1 that is dropped or widened) takes communication.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distarray.core import Op
from distarray.layout import DimMap, Layout, dimmap
from distarray.typing import Buffer, Shape

Local = Callable[[Buffer], Buffer]
Change = Callable[[Shape, Any], tuple[DimMap, Callable[[Layout], Local]]]
"""`change(shape, arguments) -> (DimMap, local)`, which checks the arguments; `local(layout of the
result)` is the function of a block."""


def shape_function(name: str, change: Change) -> Op:
    """Return an operation that renames, adds, drops or widens axes."""
    return Op(
        name,
        change,
        lambda _, call: change(call.layouts[0].shape, call.static)[0],
        bind=lambda step: change(step.call.layouts[0].shape, step.call.static)[1](step.output),
    )


def relabel(change: DimMap) -> tuple[DimMap, Any]:
    """Return what drops and adds axes of length 1, and keeps the strides of all others."""
    key: list[Any] = []
    done = 0
    for source in change.axes:
        if isinstance(source, dimmap.InputAxis):
            key += [0] * (source.axis - done) + [slice(None)]
            done = source.axis + 1
        else:
            key.append(None)
    key += [0] * (len(change.in_shape) - done)
    whole = (*key, ...)  # of no axes an array, not a scalar
    return change, lambda _: lambda block: block[whole]
