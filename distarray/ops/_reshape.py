"""Reshape: in place where blocks stay whole, else by the most even route, remembered by layout.

A sharded axis stays in place where it leads the axes that it merges with, or is divided where
blocks end. Otherwise blocks must be cut anew, and no process ever holds much more than its share
(see `_routes`).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from distarray.comm import _backend
from distarray.core._dispatch import remember
from distarray.core._operands import checked
from distarray.core._policy import permit, permit_exchange
from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.layout import Layout, dimmap
from distarray.ops._blocks import copied, empty_block
from distarray.ops._relabel import transposed
from distarray.ops._routes import route
from distarray.typing import Buffer, Shape

_programs: dict[Any, Program] = {}


class Program:
    """How arrays of one layout become arrays of one shape on this process."""

    __slots__ = ("inside", "moves", "output", "steps", "varied")

    def __init__(self, layout: Layout, shape: Shape) -> None:
        found = route(layout, shape)
        self.moves = found.moves
        self.varied = not found.moves and _merges_unalike(layout, shape)
        """The blocks of some processes might be views where those of others must be copies."""
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
            return empty_block(self.output, block.dtype)
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
        copy or an exchange). Default: it shares where it can on every process alike.

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
    checked("reshape", x)
    if order not in ("C", "F"):
        raise ArgumentError(f'reshape got order={order!r}; it takes "C" and "F"')
    if order == "F":
        return _column_major(x, shape, copy)
    asked = _asked(shape)
    key = (x._layout, asked)
    program = _programs.get(key)
    if program is None:
        sizes = dimmap.reshape(x._layout.shape, asked).out_shape
        program = Program(x._layout, sizes)
        remember(_programs, key, program)
    if copy is False and program.moves:
        raise ArgumentError(
            f"reshape of {x._layout} to {asked} with copy=False: items must move to other "
            "processes; leave copy out, or redistribute first"
        )
    if program.varied:
        if copy is False:
            raise ArgumentError(
                f"reshape of {x._layout} to {asked} with copy=False: some processes have fewer "
                "than two items along an axis, so that blocks may not all share memory; leave copy "
                "out"
            )
        copy = True
    block = program.run(x._local)
    if copy is not None and copy is _shares(x._local, block):
        if not copy:
            raise ArgumentError(
                f"reshape of {x._layout} to {asked} with copy=False needs a copy of the block, "
                f"whose strides are {x._local.strides}; leave copy out"
            )
        block = copied(block)
    return x._new(block, program.output)


def _merges_unalike(layout: Layout, shape: Shape) -> bool:
    """Tell whether merging axes may take a copy of some blocks but not of others.

    Axes merge in place where their strides fit, and along an axis with fewer than two items any
    stride fits. Where that is so on some processes only, writing into the result would change `x`
    there and nowhere else.
    """
    for group in dimmap.reshape(layout.shape, shape).groups:
        if len(group.inputs) > 1:
            for axis in group.inputs:
                offsets = layout.partition(axis).offsets
                if len({min(stop - start, 2) for start, stop in pairwise(offsets)}) > 1:
                    return True
    return False


def _asked(shape: Any) -> tuple[int, ...]:
    """Return the sizes that `shape` (an integer or several) asks for, -1 among them."""
    try:
        if hasattr(shape, "__index__") and not hasattr(shape, "__len__"):
            return (operator.index(shape),)
        return tuple(map(operator.index, shape))
    except TypeError:
        raise ArgumentTypeError(
            f"shape {shape!r} is not an integer or a sequence of integers; pass e.g. (512, -1)"
        ) from None


def _column_major(x: Any, shape: int | Sequence[int], copy: bool | None) -> Any:
    """Reshape in column-major order: the transpose of the row-major reshape of the transpose."""
    return _turned(reshape(_turned(x), _asked(shape)[::-1], copy=copy))


def _turned(x: Any) -> Any:
    after = transposed(x._layout, tuple(reversed(range(x._layout.ndim))))
    if after.mesh.coordinate is None:
        return x._new(empty_block(after, x.dtype), after)
    return x._new(x._local.transpose(), after)


def _shares(block: Buffer, result: Buffer) -> bool:
    if not block.size:
        return True
    return bool(_backend.namespace_of(block).may_share_memory(block, result))
