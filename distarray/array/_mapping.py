"""Plain-array code on local blocks: `map_blocks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from distarray.array._convert import check_blocks, infer_layout
from distarray.comm import _memory, all_gather_checked
from distarray.core import (
    BaseArray,
    _replicas,
    check_device,
    choose_placements,
    common_mesh,
    describe,
    lift,
    move,
    new_array,
    normalize_shape,
    plain_buffer,
)
from distarray.errors import ArgumentTypeError, AxisError
from distarray.layout import Layout, Placement, Shard


def map_blocks(
    func: Callable[..., Any],
    *arrays: Any,
    out_placements: Sequence[Placement] | None = None,
    out_shape: Sequence[int] | None = None,
    **options: Any,
) -> Any:
    """Call a function of plain arrays with this process's blocks (collective over the mesh).

    Parameters
    ----------
    func : callable
        `func(*blocks, **options)` returns one array, this process's block of the result.
    *arrays
        Distributed arrays, at least one; whatever else is among them is passed on as it is.
        Partial arrays are reduced first.
    out_placements : sequence of Placement, optional
        Of the result, one per mesh axis; default: those of the first array. Of sums, or extremes,
        of blocks ``[Partial("sum")]``, or ``"max"``, ``"min"``: the ranks' results are reduced.
        With ``Replicate`` all have to be the same, which ``DISTARRAY_CHECK=1`` compares.
    out_shape : sequence of int, optional
        The global shape, checked; by default the blocks' lengths along each sharded axis add up.
    **options
        Passed on to `func`.

    Returns
    -------
    DistArray

    Raises
    ------
    ArgumentTypeError
        Without a distributed array, or a function.
    LayoutError, DTypeError, AxisError
        If the blocks do not fit together, or lack an axis that they should be cut along, on every
        rank alike.
    MismatchError
        With ``DISTARRAY_CHECK=1``, if results differ that should be replicas.

    Notes
    -----
    Shapes and dtypes of the blocks are compared by one small exchange, which also carries an
    exception of `func` on one rank to all. A process outside the mesh does not call `func`; it
    knows the shape of the result only from `out_shape`, else takes that of the first array.

    Examples
    --------
    >>> import numpy as np
    >>> import distarray as da
    >>> x = da.arange(6.0)
    >>> print(da.map_blocks(np.cumsum, x))  # of each block by itself; here there is one process
    [ 0.  1.  3.  6. 10. 15.]
    >>> print(da.map_blocks(lambda block: block.sum(), x, out_placements=[da.Partial("sum")]))
    15.0
    """
    mesh, first = mesh_and_first("map_blocks", func, arrays)
    told = None if out_shape is None else normalize_shape(out_shape)
    whole = first.without_partial().placements
    placed = whole if out_placements is None else choose_placements(mesh, out_placements, 0)
    blocks = [_reduce_block(x) if isinstance(x, BaseArray) else x for x in arrays]
    if mesh.coordinate is None:
        layout = (
            first.replace(placements=whole)
            if told is None and placed == whole
            else Layout(mesh, placed, first.shape if told is None else told)
        )
        shape = layout.local_shape()
        return new_array(_memory.empty(shape, blocks[0].dtype, mesh.device), layout)
    result: list[Any] = []

    def say() -> tuple[Any, ...]:
        result.append(plain_buffer(func(*blocks, **options), "map_blocks", mesh.device))
        check_device(result[0], mesh, "map_blocks")
        digest = _replicas.summarize(result[0]) if _replicas.checked else ""
        return tuple(result[0].shape), result[0].dtype.str, digest

    shapes, dtypes, digests = zip(*all_gather_checked(mesh, "map_blocks", say), strict=True)
    check_blocks(mesh, "map_blocks: the results", shapes, dtypes)
    _check_axes(placed, len(shapes[0]))
    order = first.shard_order if placed == whole else None
    layout = infer_layout(mesh, placed, shapes, told, order)
    if any(digests):
        remedy = 'for parts of a sum pass out_placements=[Partial("sum")]'
        _replicas.refuse(mesh, "map_blocks", "the result", digests, layout, remedy)
    return new_array(result[0], layout)


def _check_axes(placements: Sequence[Placement], ndim: int) -> None:
    """Refuse to cut results along axes that they lack."""
    for placement in placements:
        if type(placement) is Shard and not -ndim <= placement.axis < ndim:
            raise AxisError(
                f"map_blocks: the results have no axis {placement.axis}, as they are {ndim}-d, and "
                f"out_placements, by default those of the first array, are {list(placements)}; for "
                'sums over blocks pass out_placements=[Partial("sum")], or "max", "min"; only '
                "where all ranks return the same, [Replicate()]"
            )


def mesh_and_first(name: str, func: Any, arrays: Sequence[Any]) -> tuple[Any, Layout]:
    """Return the mesh of the distributed arrays among others, and the layout of the first there.

    Raises
    ------
    ArgumentTypeError
        If there is none, or `func` is no function.
    """
    if not callable(func):
        raise ArgumentTypeError(f"{name}(func={describe(func)}): pass a function of blocks")
    layouts = [x._layout for x in arrays if isinstance(x, BaseArray)]
    if not layouts:
        raise ArgumentTypeError(
            f"{name} got no distributed array; call the function itself, or distribute one with "
            "da.distribute_array"
        )
    mesh = common_mesh(name, [layout.mesh for layout in layouts])
    return mesh, lift(layouts[0], mesh)


def _reduce_block(x: BaseArray) -> Any:
    layout = x._layout
    if not layout.has_partial:
        return x._local
    return move("map_blocks", x._local, layout, layout.without_partial())
