"""Putting arrays side by side, and repeating or shifting the items of one.

Along an uncut axis each process joins its own blocks. Along a cut axis the result is cut by the
default split, and every part is redistributed to where it belongs there: one exchange per part.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    BaseArray,
    Call,
    Layouts,
    Op,
    Step,
    as_integers,
    cast,
    check_casting,
    check_distributed,
    check_fits,
    check_target,
    common_mesh,
    convert_on_all,
    copy_array,
    describe,
    normalize_arrays,
    normalize_dtype,
    plain_buffer,
    register,
    run,
    run_and_write,
    run_once,
    run_one,
    with_length,
)
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from distarray.layout import Layout, mark_counted, normalize_axis
from distarray.ops.families._relabel import carry_cuts, resize_axis
from distarray.ops.families._selection import WHOLE_AXIS, selected_layout
from distarray.ops.indexing._items import getitem, rows
from distarray.ops.manipulation._reshape import change_shape
from distarray.ops.manipulation._shape import expand_dims
from distarray.redistribute import Joined, Part, estimate
from distarray.typing import Axes, Buffer, Shape

# --- the family ----------------------------------------------------------------------------------


@functools.cache
def join(name: str) -> Op:
    """Return an operation that joins arrays, or stretches of one.

    `static` is (axis, layout of the result or None, stretches or None): where each begins in the
    only operand, and where it ends.
    """
    return Op(name, np.concatenate, _spec, bind=_bind)


def _spec(_: Op, call: Call) -> Layouts:
    axis, given, stretches = call.static
    layouts, starts = call.layouts, [0] * len(call.layouts)
    if stretches is None:
        shape = join_shapes(call.shapes, axis)
    else:
        (whole,) = layouts
        before = (WHOLE_AXIS,) * axis
        layouts = [selected_layout(whole, (*before, (*one, None))) for one in stretches]
        starts = [start for start, _ in stretches]
        shape = join_shapes([layout.shape for layout in layouts], axis)
    targets, output = plan_join(layouts, axis, given) if given else cheapest(layouts, axis, shape)
    inputs, parts, sends = [*call.layouts], [], []
    for i, (start, src, dst) in enumerate(zip(starts, layouts, targets, strict=True)):
        if src.has_partial and not dst.has_partial:  # then all are whole
            inputs[i] = src = dst  # the engine reduces it
        parts.append(Part(0 if stretches is not None else i, start, src, dst))
        if src is not dst:
            sends.append((src, dst, True))
    if any(layout.is_counted for layout in call.layouts):
        for part in parts:
            mark_counted(part.src)
            mark_counted(part.dst)
    return Layouts(tuple(inputs), output, tuple(sends), plan=tuple(parts))


def _bind(step: Step) -> Callable[..., Buffer]:
    spec: Any = step.spec
    axis, name = step.call.static[0], step.op.name
    return Joined(name, spec.inputs, axis, spec.plan, spec.output, step.call.dtypes[0])


_roll = join("roll")
_tile = join("tile")


@register
def concat(
    arrays: Sequence[Any],
    /,
    axis: int | None = 0,
    out: Any = None,
    *,
    dtype: Any = None,
    casting: Any = "same_kind",
) -> Any:
    """Join arrays along an axis that they have.

    Parameters
    ----------
    arrays : sequence of DistArray or array
        Equal in shape but for `axis`; of any layouts. Plain arrays must be the same on every
        process.
    axis : int or None
        None joins the arrays in flat order.
    out : DistArray, optional
        Where the result goes, once it is complete; it keeps its layout and dtype.
    dtype : data type, optional
        Default: that of `out`, or else that to which all promote. Not beside `out`.
    casting : str
        Which conversions are allowed, as in NumPy.

    Returns
    -------
    DistArray
        Cut as one of the arrays is, the one for which least has to move; along `axis`, by the
        default split.

    Raises
    ------
    ShapeError
        If there is no array, or the shapes do not fit.
    AxisError
        If there is no such axis.
    ArgumentTypeError
        If none of them is distributed.
    DTypeError
        If `casting` forbids a conversion.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.concat([da.arange(3), da.zeros(2, int)]))
    [0 1 2 0 0]
    """
    return concat_as("concat", arrays, axis, out, dtype, casting)


def concat_as(
    name: str,
    arrays: Any,
    axis: int | None,
    out: Any = None,
    dtype: Any = None,
    casting: Any = "same_kind",
) -> Any:
    """Do what `concat` does, for a function of this name."""
    check_casting(name, casting)
    given = list_arrays(name, arrays)
    if out is None and dtype is None and axis is not None and _are_alike(given):
        return run(join(name), given, (normalize_axis(axis, given[0].ndim), None, None))
    given = normalize_arrays(name, given)
    if not given:
        raise ShapeError(f"{name} got no arrays; pass at least one")
    check_distributed(name, next((x for x in given if isinstance(x, BaseArray)), given[0]))
    if axis is None:
        given = [change_shape(x, (-1,)) if isinstance(x, BaseArray) else np.ravel(x) for x in given]
        axis = 0
    dtypes = [x.dtype for x in given]
    if out is not None and dtype is not None:
        raise ArgumentTypeError(f"{name} takes dtype= or out=, which has a dtype, not both")
    if out is not None:
        check_target(name, out)
        dtype = out.dtype
    if dtype is None:
        dtype = normalize_dtype(_common_dtype(name, dtypes))
    else:
        wanted = normalize_dtype(dtype)
        dtype = max((with_length(wanted, own) for own in dtypes), key=lambda one: one.itemsize)
    for own in dtypes:
        if own is not dtype and not np.can_cast(own, dtype, casting):
            raise DTypeError(
                f"{name} of {own} into {dtype} with casting={casting!r}; pass another dtype, or "
                "casting='unsafe'"
            )
    along = normalize_axis(axis, given[0].ndim)
    if all(own is dtype or own == dtype for own in dtypes):
        return run_and_write(join(name), given, (along, None, None), out)
    shape = join_shapes([x.shape for x in given], along)  # which must fit before anything is sent
    if out is not None:
        check_fits(name, out, shape, dtype)
    mesh = common_mesh(name, [x._layout.mesh for x in given if isinstance(x, BaseArray)])
    parts = [
        cast(name, x, dtype)
        if isinstance(x, BaseArray)
        else convert_on_all(mesh, name, x.dtype, dtype, functools.partial(x.astype, dtype))
        for x in given
    ]
    return run_and_write(join(name), parts, (along, None, None), out)


def _are_alike(arrays: Sequence[Any]) -> bool:
    """Tell whether all are distributed, and of one dtype, to which they promote."""
    dtype = None
    for x in arrays:
        if not isinstance(x, BaseArray):
            return False
        if dtype is None:
            dtype = x.dtype
        elif x.dtype is not dtype:
            return False
    return dtype is not None and bool(dtype.isbuiltin)


def _common_dtype(name: str, dtypes: Sequence[Any]) -> Any:
    try:
        return np.result_type(*dtypes)
    except TypeError as error:
        raise DTypeError(
            f"{name} of {', '.join(map(str, dtypes))}: {error}; convert the arrays with astype"
        ) from None


def list_arrays(name: str, arrays: Any) -> list[Any]:
    try:
        return list(arrays)
    except TypeError:
        raise ArgumentTypeError(
            f"{name} got {type(arrays).__name__}; pass a sequence of arrays"
        ) from None


def cheapest(layouts: Sequence[Layout], axis: int, shape: Shape) -> tuple[list[Layout], Layout]:
    """Return what `plan_join` does, for the layout of theirs for which least moves."""
    alike = len({layout.placements for layout in layouts}) == 1
    models = dict.fromkeys(layouts if alike else [layout.without_partial() for layout in layouts])
    ways = [plan_join(layouts, axis, resize_axis(model, axis, shape[axis])) for model in models]

    def seconds(way: tuple[list[Layout], Layout]) -> float:
        pairs = zip(layouts, way[0], strict=True)
        return sum(estimate(layout, target, 8) for layout, target in pairs if layout is not target)

    return min(ways, key=seconds)


def plan_join(layouts: Sequence[Layout], axis: int, output: Layout) -> tuple[list[Layout], Layout]:
    """Return what arrays must be cut like to be joined in a given layout, and that."""
    inputs, start = [], 0
    for layout in layouts:
        part = (start, start + layout.shape[axis], None)
        inputs.append(selected_layout(output, (*(WHOLE_AXIS,) * axis, part)))
        start = part[1]
    return inputs, output


def join_shapes(shapes: Sequence[Shape], axis: int) -> Shape:
    """Return the shape of arrays of these shapes joined along an axis.

    Raises
    ------
    ShapeError
        If they differ elsewhere.
    """
    first = shapes[0]
    for shape in shapes:
        if len(shape) != len(first) or any(
            a != b for i, (a, b) in enumerate(zip(first, shape, strict=True)) if i != axis
        ):
            raise ShapeError(
                f"joining along axis {axis} got shapes {tuple(shapes)}; they must be equal but for "
                "that axis"
            )
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])


@register
def stack(
    arrays: Sequence[Any],
    /,
    axis: int = 0,
    out: Any = None,
    *,
    dtype: Any = None,
    casting: Any = "same_kind",
) -> Any:
    """Join arrays of one shape along a new axis.

    Parameters
    ----------
    arrays : sequence of DistArray or array
    axis : int
        Of the result.
    out, dtype, casting
        As for `concat`.

    Raises
    ------
    ShapeError
        If there is no array, or the shapes differ.
    AxisError
        If the result has no such axis.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.stack([da.arange(3), da.ones(3, int)]))
    [[0 1 2]
     [1 1 1]]
    """
    given = [x if hasattr(x, "ndim") else np.asarray(x) for x in list_arrays("stack", arrays)]
    shapes = [tuple(x.shape) for x in given]
    if len(set(shapes)) != 1:
        raise ShapeError(f"stack got shapes {tuple(shapes)}; pass arrays of one shape")
    wide = [
        expand_dims(x, axis) if isinstance(x, BaseArray) else np.expand_dims(x, axis) for x in given
    ]
    return concat_as("stack", wide, axis, out, dtype, casting)


@register
def unstack(x: Any, /, axis: int = 0) -> tuple[Any, ...]:
    """Return the items along an axis as arrays without that axis; see indexing for their layout.

    Raises
    ------
    AxisError
        If there is no such axis.

    Examples
    --------
    >>> import distarray as da
    >>> x, y = da.unstack(da.arange(6).reshape(2, 3))
    >>> print(x, y)
    [0 1 2] [3 4 5]
    """
    along = normalize_axis(axis, check_distributed("unstack", x).ndim)
    before = (slice(None),) * along
    return tuple(rows(x, ((*before, i) for i in range(x.shape[along]))))


@register
def roll(x: Any, /, shift: int | Sequence[int], axis: Axes = None) -> Any:
    """Return the array with its items shifted along some axes, those at the end coming first.

    Parameters
    ----------
    x : DistArray
    shift : int or sequence of int
        How far, for each axis.
    axis : int, sequence of int or None
        None shifts the items in flat order.

    Returns
    -------
    DistArray
        With the layout of `x`.

    Raises
    ------
    ArgumentError
        If there are several shifts and not as many axes.
    AxisError
        If there is no such axis.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.roll(da.arange(5), 2))
    [3 4 0 1 2]
    """
    check_distributed("roll", x)
    several = [shift] if shift.__class__ is int else _shifts(shift)
    if axis is None:
        return change_shape(_roll_axis(change_shape(x, (-1,)), sum(several), 0), x.shape)
    if axis.__class__ is int and len(several) == 1:
        return _roll_axis(x, several[0], normalize_axis(axis, x.ndim))
    several_axes = isinstance(axis, (tuple, list)) or (isinstance(axis, np.ndarray) and axis.ndim)
    axes: list[Any] = [*axis] if several_axes else [axis]  # type: ignore[misc]
    shifts = several * len(axes) if len(several) == 1 else several
    axes = axes * len(shifts) if len(axes) == 1 else axes
    if len(shifts) != len(axes):
        raise ArgumentError(
            f"roll got {len(shifts)} shifts for {len(axes)} axes; pass as many, or one"
        )
    for by, one in zip(shifts, axes, strict=True):
        x = _roll_axis(x, by, normalize_axis(one, x.ndim))
    return x


def _shifts(shift: Any) -> list[int]:
    try:
        return [operator.index(by) for by in np.atleast_1d(shift)]
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"roll got shift={describe(shift)}; pass an integer, or one for each axis"
        ) from None


def _roll_axis(x: Any, shift: int, axis: int) -> Any:
    size = x.shape[axis]
    split = size - shift % size if size else 0
    return run_one(_roll, x, (axis, x._layout, ((split, size), (0, split))))


@register
def repeat(x: Any, /, repeats: Any, axis: int | None = None) -> Any:
    """Return the array with every item repeated along an axis.

    Nothing is sent, but for the lengths of the new blocks where `repeats` is distributed, 8 bytes
    each, and what of it lies elsewhere than its item.

    Parameters
    ----------
    x : DistArray
    repeats : int or 1-d array of int
        How often; one for all items, or one for each. A plain array is the same on every process.
    axis : int or None
        None repeats the items in flat order.

    Returns
    -------
    DistArray
        Along a cut axis the copies stay where the item is, and the boundaries follow.

    Raises
    ------
    ArgumentError
        If a number is negative, or there is not one for each item.
    AxisError
        If there is no such axis.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.repeat(da.arange(3), 2), da.repeat(da.arange(3), [1, 0, 2]))
    [0 0 1 1 2 2] [0 2 2]
    """
    if axis is None:
        return repeat(change_shape(check_distributed("repeat", x), (-1,)), repeats, axis=0)
    layout = check_distributed("repeat", x)._layout
    along = normalize_axis(axis, layout.ndim)
    size = layout.shape[along]
    if repeats.__class__ is int:
        return run_one(_repeat, x, (along, repeats))
    if isinstance(repeats, BaseArray):
        return _repeat_by(x, repeats, along)
    counts = plain_buffer(repeats, "repeat", objects=True)
    counts = counts if counts.size else counts.astype(np.int64)
    if counts.dtype.kind not in "biu" or counts.ndim > 1 or counts.size not in (1, size):
        raise ArgumentError(
            f"repeat got repeats={repeats!r}; pass an integer, or one for each of the {size} items "
            f"of axis {along}"
        )
    if counts.size == 1:
        return run_one(_repeat, x, (along, int(counts.reshape(-1)[0])))
    return run_once(_repeat, x, (along, counts))


def _repeat_spec(_: Op, call: Call) -> Layouts:
    axis, counts = call.static
    (layout,) = call.layouts
    most = sys.maxsize // max(layout.size, 1)
    if np.size(counts) and not 0 <= np.min(counts) <= np.max(counts) <= most:
        raise ArgumentError(
            f"repeat got repeats={counts!r}; numbers must be 0 or more, and items countable"
        )
    ends = np.array([0, layout.shape[axis]])
    if layout.sharding_axes(axis):
        ends = np.array(layout.partition(axis).offsets)
    if isinstance(counts, int):
        ends = ends * counts
    else:
        of_blocks = [counts[i:j].sum(dtype=np.int64) for i, j in pairwise(ends.tolist())]
        ends = np.cumsum([0, *of_blocks])
    shape = (*layout.shape[:axis], int(ends[-1]), *layout.shape[axis + 1 :])
    offsets = {axis: tuple(ends.tolist())} if layout.sharding_axes(axis) else None
    return Layouts(
        (layout,), carry_cuts(layout, shape, {a: a for a in range(layout.ndim)}, offsets)
    )


def _repeat_bind(step: Step) -> Callable[[Buffer], Buffer]:
    axis, counts = step.call.static
    own = counts if isinstance(counts, int) else counts[slice(*step.sources[0].own_box[axis])]
    return lambda block: _repeated(block, own, axis)


def _repeated(block: Buffer, counts: Any, axis: int) -> Buffer:
    if _backend.is_cupy(block) and not isinstance(counts, int):
        counts = _backend.to_host(counts).tolist()  # of arrays some versions of CuPy take none
    return np.repeat(block, counts, axis)


_repeat = Op("repeat", np.repeat, _repeat_spec, bind=_repeat_bind)


def _repeat_by(x: Any, counts: Any, along: int) -> Any:
    """Return items repeated as often as distributed numbers say."""
    size = x.shape[along]
    if counts.dtype.kind not in "biu" or counts.ndim > 1 or counts.size not in (1, size):
        raise ArgumentError(
            f"repeat got repeats of {counts.dtype} and shape {counts.shape}; pass an integer, or "
            f"one for each of the {size} items of axis {along}"
        )
    if counts.size == 1:
        common_mesh("repeat", (x._layout.mesh, counts._layout.mesh))
        return repeat(x, int(change_shape(counts, ())), axis=along)
    return run(_repeat_each, (x, counts), along)


def _repeat_each_spec(_: Op, call: Call) -> Layouts:
    axis, (layout, counts) = call.static, call.layouts
    aligned = carry_cuts(layout.without_partial(), counts.shape, {axis: 0})
    return Layouts((layout, aligned), layout, counted=axis)


def _repeat_each_bind(step: Step) -> Callable[[Buffer, Buffer], Buffer]:
    axis = step.call.static

    def repeat_each(block: Buffer, counts: Buffer) -> Buffer:
        if (counts < 0).any():
            raise ArgumentError("repeat got negative repeats; numbers must be 0 or more")
        return _repeated(block, counts.astype(np.int64, copy=False), axis)

    return repeat_each


_repeat_each = Op(
    "repeat", np.repeat, _repeat_each_spec, bind=_repeat_each_bind, check=lambda *_: True
)


@register
def tile(x: Any, /, reps: int | Sequence[int]) -> Any:
    """Return the array put side by side with itself along its axes, in memory of its own.

    Parameters
    ----------
    x : DistArray
    reps : int or sequence of int
        How often along each axis, counted from the last; further ones make new axes.

    Raises
    ------
    ArgumentTypeError
        If a number is not an integer.
    ArgumentError
        If a number is negative.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.tile(da.arange(3), 2))
    [0 1 2 0 1 2]
    """
    check_distributed("tile", x)
    try:
        times = as_integers(reps)
    except TypeError:
        raise ArgumentTypeError(f"tile got {describe(reps)}; pass integers") from None
    if min(times, default=0) < 0 or prod(times) * max(x.size, 1) > sys.maxsize:
        raise ArgumentError(f"tile got {times}; numbers must be 0 or more, and items countable")
    if len(times) > x.ndim:
        x = expand_dims(x, tuple(range(len(times) - x.ndim)))
    times = (1,) * (x.ndim - len(times)) + times
    if all(n == 1 for n in times):
        return copy_array(x)
    for axis, n in enumerate(times):
        if n == 0:
            x = getitem(x, (*(slice(None),) * axis, slice(0)))
        elif n > 1:
            x = run_one(_tile, x, (axis, None, ((0, x.shape[axis]),) * n))
    return x
