"""Reshape: in place where blocks stay whole, else by the most even route, remembered by layout.

A sharded axis stays in place where it leads the axes that it merges with, or is divided where
blocks end. Otherwise blocks must be cut anew, and no process ever holds much more than its share
(see `_routes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    Call,
    Layouts,
    Op,
    Step,
    check_distributed,
    check_flag,
    check_order,
    new_copied_view,
    normalize_shape,
    register,
    run_one,
    steps,
    unshare,
)
from distarray.errors import ArgumentError
from distarray.layout import DimMap, Layout, dimmap
from distarray.ops.families._shape_function import relabel
from distarray.ops.manipulation._routes import Route, route
from distarray.ops.manipulation._shape import transpose
from distarray.typing import Buffer, Shape

_OF_LENGTH_1 = (dimmap.InputAxis, dimmap.Singleton)
"""Sources of axes where a change drops and adds axes of length 1 alone."""


class Program(NamedTuple):
    """How arrays of one layout become arrays of one shape on this process."""

    change: DimMap
    route: Route
    joined: list[tuple[int, int]]
    """Axes that become one with the next."""
    varied: bool
    """The blocks of some processes might be views where those of others must be copies."""
    hidden: list[int]
    """Axes of which no block has two items."""
    inner: int | None
    """The last axis of a length other than 1."""

    def fits(self, block: Buffer, contiguous: bool) -> bool:
        """Tell whether blocks can be seen in the new shape: whether NumPy's result is a view, too.

        Strides decide; also those of axes of length 1 here, for which any would do. The innermost
        axis of contiguous items has theirs.
        """
        strides, shape = block.strides, block.shape
        if contiguous and self.inner is not None and strides[self.inner] != block.itemsize:
            return False
        for axis, after in self.joined:
            if strides[axis] != shape[after] * strides[after]:
                break
        else:
            return True
        return False

    def is_unclear(self, block: Buffer) -> bool:
        """Tell whether blocks might be views where NumPy's result is a copy.

        An axis with one item in every block does not show in the strides of those around it, and
        two of them do not tell which is the inner one.
        """
        strides, hidden = block.strides, self.hidden
        if not hidden:
            return False
        for axis, after in self.joined:
            around = (axis, after)
            if all(one in hidden for one in around):
                return True
            if any(strides[one] == strides[axis] for one in hidden if one not in around):
                return True
        return False


def _spec(_: Op, call: Call) -> Layouts:
    (layout,) = call.layouts
    change = dimmap.reshape(layout.shape, call.static)
    found = route(layout, change.out_shape)
    groups = change.groups if layout.size else ()
    joined = [pair for group in groups for pair in pairwise(group.inputs)]
    local = layout.local_shape()
    long = [axis for axis, size in enumerate(layout.shape) if size != 1]
    program = Program(
        change=change,
        route=found,
        joined=joined,
        varied=bool(joined) and not found.moves and _are_unalike(layout, joined),
        hidden=[axis for axis, size in enumerate(layout.shape) if local[axis] < 2 <= size],
        inner=long[-1] if long else None,
    )
    return Layouts((layout,), found.reached, tuple(found.moves), plan=program)


def _bind(step: Step) -> Callable[[Buffer], Buffer]:
    spec: Any = step.spec
    program: Program = spec.plan
    shape = spec.output.local_shape()
    if not spec.sends:  # in place, one relabelling does
        if all(isinstance(one, _OF_LENGTH_1) for one in program.change.axes):
            return relabel(program.change)[1](spec.output)
        return lambda block: block.reshape(shape)
    steps = program.route.bind()

    def follow_route(block: Buffer) -> Buffer:
        for one in steps:
            block = one(block)
        return block.reshape(shape)

    return follow_route


_reshape = Op("reshape", np.reshape, _spec, bind=_bind)


@register
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
        copy or an exchange). Default: it is a view or a copy as NumPy's is; where only the blocks
        are in the way of a view (items must move, or blocks are not alike), a copy, which is
        read-only as long as anything looks at the memory of `x`.

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

    Examples
    --------
    >>> import distarray as da
    >>> print(da.reshape(da.arange(6), (2, -1)))
    [[0 1 2]
     [3 4 5]]
    """
    check_distributed("reshape", x)
    copy = None if copy is None else check_flag("reshape", "copy", copy)
    if check_order("reshape", order, "CF") == "F":
        return transpose(reshape(transpose(x), normalize_shape(shape, True)[::-1], copy=copy))
    return _reshape_as(x, normalize_shape(shape, True), copy)


def _reshape_as(x: Any, asked: Shape, copy: bool | None, contiguous: bool = False) -> Any:
    """Return `reshape(x, asked, copy=copy)`; a view only if its items are `contiguous`."""
    step = steps[_reshape, asked, x._layout, x._local.dtype]
    spec: Any = step.spec
    program: Program = spec.plan
    if copy is False and spec.sends:
        raise ArgumentError(
            f"reshape of {x._layout} to {asked} with copy=False: items must move to other "
            "processes; leave copy out, or redistribute first"
        )
    if copy is False and program.varied:
        raise ArgumentError(
            f"reshape of {x._layout} to {asked} with copy=False: some processes have fewer "
            "than two items along an axis, so that blocks may not all share memory; leave copy "
            "out"
        )
    block = step.run(x._local) if step.still else step.run(*step.move((x._local,)))
    if copy is False and block.size and not _backend.may_share_memory(x._local, block):
        raise ArgumentError(
            f"reshape of {x._layout} to {asked} with copy=False needs a copy of the block, "
            f"whose strides are {x._local.strides}; leave copy out"
        )
    read_only = not _backend.is_writeable(x._local)  # so is a copy: some blocks might be views
    if copy is None and (spec.sends or program.varied or read_only):
        return new_copied_view(x, unshare(block, x._local), spec.output)
    if copy is None and not step.outside:  # where no strides tell, writing is not refused
        if program.is_unclear(x._local):
            return new_copied_view(x, unshare(block, x._local), spec.output)
        if not program.fits(x._local, contiguous):
            block = unshare(block, x._local)
    elif copy:
        block = unshare(block, x._local)
    return x._new(block, spec.output)


@register
def ravel(x: Any, /, order: str = "C") -> Any:
    """Return the items in row-major order as one axis, contiguous in each block; see `reshape`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.ravel(da.asarray([[1, 2], [3, 4]])))
    [1 2 3 4]
    """
    check_distributed("ravel", x)
    first = transpose(x) if check_order("ravel", order, "CF") == "F" else x
    return _reshape_as(first, (-1,), None, contiguous=True)


@register
def flatten(x: Any, /, order: str = "C") -> Any:
    """Return a copy of the items in row-major order as one axis; see `reshape`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.flatten(da.asarray([[1, 2], [3, 4]])))
    [1 2 3 4]
    """
    return reshape(check_distributed("flatten", x), (-1,), order, copy=True)


def change_shape(x: Any, shape: Sequence[int]) -> Any:
    """Return the same items under another shape, in memory that may be that of `x` or not."""
    return run_one(_reshape, x, normalize_shape(shape, True))


def _are_unalike(layout: Layout, joined: Sequence[tuple[int, int]]) -> bool:
    """Tell whether some processes could merge axes in place where others must copy.

    Axes merge in place where their strides fit. What the strides are depends on all axes that lie
    between them in memory, and along an axis with fewer than two items any stride fits. Where that
    is so on some processes only, writing into the result would change `x` there and nowhere else.
    So it would where a slice takes all of some blocks and part of others, along an inner axis.
    """
    if any(layout.partition(after).count > 1 for _, after in joined):
        return True
    for axis in range(layout.ndim):
        offsets = layout.partition(axis).offsets
        if len({min(stop - start, 2) for start, stop in pairwise(offsets)}) > 1:
            return True
    return False
