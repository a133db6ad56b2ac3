"""Reshape: in place where blocks stay whole, else by the most even route, remembered by layout.

A sharded axis stays in place where it leads the axes that it merges with, or is divided where
blocks end. Otherwise blocks must be cut anew, and no process ever holds much more than its share
(see `_routes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distarray.comm import _backend, _memory
from distarray.core._dispatch import remember
from distarray.core._policy import permit, permit_exchange
from distarray.errors import ArgumentError
from distarray.layout import Layout, dimmap
from distarray.ops._relabel import transposed
from distarray.ops._routes import route
from distarray.typing import Buffer, Shape

_programs: dict[Any, Program] = {}


class Program:
    """How arrays of one layout become arrays of one shape on this process."""

    __slots__ = ("inside", "moves", "output", "steps")

    def __init__(self, layout: Layout, shape: Shape) -> None:
        found = route(layout, shape)
        self.moves = found.moves
        self.output = found.reached
        self.inside = layout.mesh.coordinate is not None
        # In place, one relabelling does.
        self.steps = found.bind() if self.inside and found.moves else []

    def run(self, block: Buffer) -> Buffer:
        """Return the new block."""
        for src, dst, planned in self.moves:
            (permit if planned else permit_exchange)("reshape", src, dst, block.dtype)
        shape = self.output.local_shape()
        if not self.inside:
            return _memory.empty(shape, block.dtype, self.output.mesh.device)
        for step in self.steps:
            block = step(block)
        return block.reshape(shape)


def reshape(
    x: Any, /, shape: int | Sequence[int], order: str = "C", *, copy: bool | None = None
) -> Any:
    """Return the same items in the same (row-major) order under another shape.

    Parameters
    ----------
    x : DistArray
    shape : int or sequence of int
        The new shape; one size may be -1 and follows from the others.
    order : {"C", "F"}
        Row-major or column-major order of the items.
    copy : bool, optional
        True: the result never shares memory with `x`. False: it must (an error where that takes a
        copy or an exchange). Default: it shares where it can.

    Raises
    ------
    ShapeError
        If the sizes do not have the number of items.
    ArgumentError
        If `copy=False` cannot be had.

    Notes
    -----
    A sharded axis stays in place where it is the first of the axes that it merges with, or is
    divided at block boundaries; `Partial` stays as it is. Otherwise the axes concerned take one
    exchange, in which each process receives its part of the flat order.
    """
    if order not in ("C", "F"):
        raise ArgumentError(f'reshape got order={order!r}; it takes "C" and "F"')
    asked = (shape,) if hasattr(shape, "__index__") else tuple(shape)
    sizes = dimmap.reshape(x.shape, asked).out_shape
    if order == "F":
        backwards = tuple(reversed(range(x.ndim)))
        turned = x._new(x._local.transpose(), transposed(x._layout, backwards))
        result = reshape(turned, sizes[::-1], copy=copy)
        backwards = tuple(reversed(range(len(sizes))))
        after = transposed(result._layout, backwards)
        if after.mesh.coordinate is None:
            return x._new(_memory.empty(after.local_shape(), x.dtype, after.mesh.device), after)
        return result._new(result._local.transpose(), after)
    key = (x._layout, sizes)
    program = _programs.get(key)
    if program is None:
        program = Program(x._layout, sizes)
        remember(_programs, key, program)
    if copy is False and program.moves:
        raise ArgumentError(
            f"reshape of {x._layout} to {sizes} with copy=False: items must move to other "
            "processes; leave copy out, or redistribute first"
        )
    block = program.run(x._local)
    if copy is not None and copy is _shares(x._local, block):
        if not copy:
            raise ArgumentError(
                f"reshape of {x._layout} to {sizes} with copy=False needs a copy of the block, "
                f"whose strides are {x._local.strides}; leave copy out"
            )
        block = copied(block)
    return x._new(block, program.output)


def copied(block: Buffer) -> Buffer:
    """Return a C-contiguous copy of a block, in memory of its own."""
    out = _memory.empty(block.shape, block.dtype, _backend.device_of(block))
    out[...] = block
    return out


def _shares(block: Buffer, result: Buffer) -> bool:
    if not block.size:
        return True
    return bool(_backend.namespace_of(block).may_share_memory(block, result))
