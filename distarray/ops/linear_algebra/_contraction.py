"""Products that sum over axes: matmul, dot, vecdot, tensordot, outer, inner.

A product is an einsum string: a letter for every axis of the iteration space. On one mesh axis,
cutting a letter that the result has cuts the result; cutting one that is summed gives a
`Partial("sum")` result, reduced only when its value is needed. Operands that do not fit together
are redistributed in the way that takes the least time, sending and multiplying taken together: of
two matrices cut by rows, the smaller is gathered, by panels if it is large. `Partial` operands are
reduced first.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import (
    DEFAULT_ERROR_STATE,
    LARGE,
    BaseArray,
    Call,
    Letters,
    Op,
    Spec,
    Step,
    cache,
    check_fits,
    check_flag,
    check_integer,
    check_target,
    error_state,
    errors_raise,
    normalize_arrays,
    normalize_operands,
    numeric,
    pointwise,
    products_of,
    register,
    remember,
    run,
    run_and_write,
    step_for,
    ufuncs,
    write_out,
)
from distarray.errors import ArgumentError, ArgumentTypeError, ShapeError
from distarray.layout import Layout, normalize_axes, normalize_axis
from distarray.ops.elementwise._arithmetic import multiply
from distarray.ops.families._values import give_values
from distarray.ops.linear_algebra._panels import MultiplyByPanels, choose_panels
from distarray.ops.manipulation._reshape import change_shape
from distarray.ops.statistical._reductions import without_partial
from distarray.ops.statistical._reproducible import round_states, shortly, state_dtype, sum_state
from distarray.typing import Shape

PRODUCTS_PER_SECOND = 1e10
"""Multiplications with addition that one process does in a second: weighs work against sending.
OpenBLAS does 6 to 9e9 in float64 on one core of an AMD EPYC, and more in float32."""

Subscripts = tuple[tuple[Letters, ...], Letters]

_MATRIX = 1 << 20  # letters of matrix axes, apart from those of batch axes
_ROW, _SUM, _COLUMN = _MATRIX, _MATRIX + 1, _MATRIX + 2


# --- the family ----------------------------------------------------------------------------------


def contraction(
    name: str,
    subscripts: Callable[[Sequence[Shape], Any], Subscripts],
    local: Callable[..., Any],
    ufunc: np.ufunc | None = None,
    accepts: tuple[str, ...] = (),
) -> Op:
    """Return a product that sums over axes.

    Parameters
    ----------
    name : str
        The public name.
    subscripts : callable
        `subscripts(shapes, static)` gives the letters of operands and result, and checks both.
    local : callable
        `local(*blocks, static)`; without the last where `static` is None.
    ufunc : ufunc, optional
        The function itself, where `local` takes `out=` as it does.
    accepts : tuple of str
        NumPy's keyword arguments.
    """

    def spec(op: Op, call: Call) -> Spec:
        inputs, output = subscripts(call.shapes, call.static)
        return Spec(inputs, output, "any" if op.dtypes(op, call)[0].kind == "b" else "sum")

    return Op(
        name,
        local,
        spec,
        call=_call,
        dtypes=_dtypes,
        bind=_product,
        work=_seconds,
        panels=choose_panels,
        kinds=numeric,
        accepts=accepts,
        ufunc=ufunc,
    )


def _dtypes(_: Op, call: Call) -> tuple[Any, Any]:
    dtype = np.result_type(*call.dtypes)
    return dtype, dtype


def _product(step: Step) -> Callable[..., Any]:
    if step.panels is not None:
        return MultiplyByPanels(step, step.panels)
    local, dtype, shape = step.op.local, step.adds, step.partial.local_shape()
    static = () if step.call.static is None else (step.call.static,)
    half = dtype is not step.total
    large = step.op.ufunc is not None and prod(shape) * dtype.itemsize >= LARGE

    def product(*blocks: Any) -> Any:
        if half:
            blocks = tuple(block.astype(dtype) for block in blocks)
        if _backend.is_cupy(blocks[0]):
            _backend.use(blocks[0])
            if any(not block.size for block in blocks):  # of nothing it is zeros
                return _memory.zeros(shape, dtype, _backend.device_of(blocks[0]))
            if dtype == np.float16 and prod(shape) == 1:
                # CuPy adds up a single sum in half precision, those of matrices in float32.
                wide = [block.astype(np.float32) for block in blocks]
                return local(*wide, *static).astype(dtype)
        elif large:
            return local(*blocks, out=_memory.empty(shape, dtype))
        return local(*blocks, *static)

    return product


def _seconds(spec: Spec, layouts: Sequence[Layout]) -> float:
    """Return how long the busiest process multiplies."""
    extents: dict[int, int] = {}
    for letters, layout in zip(spec.inputs, layouts, strict=True):
        for axis, letter in enumerate(letters):
            if letter is not None:
                extents[letter] = layout.partition(axis).largest
    return prod(extents.values()) / PRODUCTS_PER_SECOND


def _call(op: Op, *operands: Any, out: Any = None, **options: Any) -> Any:
    """Run as NumPy's ufunc of the same name, with its `out=` and `axis=`."""
    options = {k: v for k, v in options.items() if v is not None}
    static = None
    if "axis" in op.accepts:
        static = check_integer(op.name, "axis", options.pop("axis", -1))
    if options:
        taken = " and ".join(f"{name}=" for name in ("out", *op.accepts))
        raise ArgumentTypeError(f"{op.name} takes {taken}, got {', '.join(options)}")
    target = out[0] if isinstance(out, tuple) else out
    return run_product(op, operands, static, target)


def run_product(op: Op, operands: Sequence[Any], static: Any, target: Any) -> Any:
    """Run a product; its result goes into `target`, if there is one, also that of plain arrays."""
    if target is None:
        return run(op, operands, static)
    known = [x if hasattr(x, "dtype") else np.asarray(x) for x in operands]
    if any(isinstance(x, BaseArray) for x in operands):
        return run_and_write(op, known, static, target)
    check_target(op.name, target)
    result = op.local(*known, *([] if static is None else [static]))
    check_fits(op.name, target, result.shape, result.dtype)
    return write_out(op.name, target, result)


# --- subscripts ----------------------------------------------------------------------------------


def _batch(
    name: str, shapes: Sequence[Shape], kept: Sequence[int]
) -> tuple[list[Letters], Letters]:
    """Return letters of the batch axes of operands and result; the last `kept[i]` axes are not."""
    batches = [shape[: len(shape) - n] for shape, n in zip(shapes, kept, strict=True)]
    try:
        joint = np.broadcast_shapes(*batches)
    except ValueError:
        raise ShapeError(
            f"{name} got shapes {' and '.join(map(str, shapes))}, whose leading axes do not "
            "broadcast; counted from the last of them, sizes must be equal or 1"
        ) from None
    spec = pointwise(tuple(batches), joint)
    return [*spec.inputs], spec.output


def _matmul_letters(shapes: Sequence[Shape], _: None) -> Subscripts:
    left, right = shapes
    if not left or not right:
        raise ShapeError(
            f"matmul got shapes {left} and {right}; both need an axis to sum over (use * for "
            "numbers)"
        )
    rows = (_ROW, _SUM)[-min(len(left), 2) :]
    columns = (_SUM, _COLUMN)[: min(len(right), 2)]
    inner = right[0] if len(right) == 1 else right[-2]
    if left[-1] != inner:
        raise ShapeError(
            f"matmul got shapes {left} and {right}: {left[-1]} columns and {inner} rows; they must "
            "be equal"
        )
    (first, second), batch = _batch("matmul", shapes, (len(rows), len(columns)))
    output = (*batch, *rows[:-1], *columns[1:])
    return ((*first, *rows), (*second, *columns)), output


def _vecdot_letters(shapes: Sequence[Shape], axis: int) -> Subscripts:
    places = [normalize_axis(axis, len(shape)) for shape in shapes]
    lengths = [shape[place] for shape, place in zip(shapes, places, strict=True)]
    if lengths[0] != lengths[1]:
        raise ShapeError(
            f"vecdot along axis {axis} got shapes {shapes[0]} and {shapes[1]}: lengths "
            f"{lengths[0]} and {lengths[1]}; they must be equal"
        )
    moved = [
        (*shape[:place], *shape[place + 1 :], 0)
        for shape, place in zip(shapes, places, strict=True)
    ]
    letters, batch = _batch("vecdot", moved, (1, 1))
    inputs = tuple(
        (*own[:place], _SUM, *own[place:]) for own, place in zip(letters, places, strict=True)
    )
    return inputs, batch


def _tensordot_letters(shapes: Sequence[Shape], axes: tuple[tuple[int, ...], ...]) -> Subscripts:
    left, right = shapes
    first, second = axes
    if any(left[a] != right[b] for a, b in zip(first, second, strict=True)):
        raise ShapeError(
            f"tensordot over axes {first} and {second} got shapes {left} and {right}; the lengths "
            "of those axes must be equal"
        )
    inner = {b: a for a, b in zip(first, second, strict=True)}
    own = tuple(range(len(left)))
    other = tuple(inner.get(b, len(left) + b) for b in range(len(right)))
    output = (*(a for a in own if a not in first), *(b for b in other if b >= len(left)))
    return (own, other), output


def _local_vecdot(left: Any, right: Any, axis: int) -> Any:
    if _backend.is_cupy(left):  # CuPy has no such function
        first, second = (np.moveaxis(x, axis, -1) for x in (left, right))
        product = np.matmul(np.conjugate(first)[..., None, :], second[..., None])
        return product[..., 0, 0]
    function: Any = np.vecdot  # whose stub lacks axis=
    return function(left, right, axis=axis)


_matmul = contraction("matmul", _matmul_letters, np.matmul, np.matmul)
_vecdot = contraction("vecdot", _vecdot_letters, _local_vecdot, accepts=("axis",))
_tensordot = contraction("tensordot", _tensordot_letters, np.tensordot)
_matmul_of_wholes = replace(
    _matmul,
    spec=lambda _, call: Spec(*_matmul_letters(call.shapes, None)),
    panels=None,
)
"""The product where no axis that is summed over is cut."""


# --- exact sums of products; static arguments are (axis, whether the first is conjugated) --------


def _exact_spec(_: Op, call: Call) -> Spec:
    inputs, output = _vecdot_letters(call.shapes, call.static[0])
    return Spec(inputs, output, exchanged=(_SUM,))


def _exact_dtypes(op: Op, call: Call) -> tuple[Any, Any]:
    dtype = np.result_type(*call.dtypes)
    return (state_dtype(op, dtype.kind == "c"),), dtype


def _exact_hook(hook: Callable[..., Any]) -> Callable[[Step], Callable[..., Any]]:
    def bound(step: Step) -> Callable[..., Any]:
        axis, conjugates = step.call.static
        items = functools.partial(products_of, conjugates=conjugates)
        found: Callable[..., Any] = hook(step, normalize_axes(axis, step.sources[0].ndim), items)
        return found

    return bound


_exact_vecdot = shortly(
    Op(
        "vecdot",
        _local_vecdot,
        _exact_spec,
        dtypes=_exact_dtypes,
        bind=_exact_hook(sum_state),
        finish=_exact_hook(round_states),
        nin=2,
    )
)


def _sum_products(x1: Any, x2: Any, axis: int, conjugates: bool = True) -> Any:
    """Return the exact sums of rounded products along an axis of both, rounded once.

    The second may have fewer axes, which broadcast.
    """
    if x1.shape != x2.shape:
        x1, x2 = (np.moveaxis(x, axis, -1) for x in (x1, x2))
        shape, axis = np.broadcast_shapes(x1.shape, x2.shape), -1
        if x1.shape != shape:
            x1 = np.broadcast_to(x1, shape)
        x2 = x2.reshape((1,) * (len(shape) - x2.ndim) + x2.shape)
    return run(_exact_vecdot, (x1, x2), (axis, conjugates))


_quick = cache()
"""Layouts of matrix products for which nothing moves, whatever the dtypes."""


@register
def matmul(x1: Any, x2: Any, /, out: Any = None, *, reproducible: bool = False) -> Any:
    """Return the matrix product.

    Parameters
    ----------
    x1, x2 : DistArray or array
        At least one axis each. Of one axis: a row on the left, a column on the right, and the
        result lacks that axis. Of more than two: stacks of matrices, which broadcast. Plain arrays
        must be the same on every process.
    out : DistArray, optional
        Where the result goes, once it is complete; it keeps its layout and dtype.
    reproducible : bool
        Whether the bits of floating-point results depend on the items alone, and on no layout,
        number of processes, library or processor.

    Returns
    -------
    DistArray
        Cut as the rows of `x1` and the columns of `x2` are. Where the axis summed over is cut,
        `Partial("sum")`, but in half precision, which adds up in float32 at once. Integers keep
        NumPy's dtype and wrap around as there.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    DTypeError
        If the dtypes cannot be multiplied, or the result not be converted to that of `out`.

    Notes
    -----
    Distribution: nothing is sent where cuts are along rows of `x1` or columns of `x2` alone, with
    the other operand whole, or along the axis summed over of both. Else the operands are
    redistributed in the way that takes the least time. What becomes larger than a process's block
    of it, as the smaller of two matrices cut by rows does, becomes so at once if it has no more
    than 16 MiB, or than the largest block of an operand or of the result. Of more, the processes of
    a node multiply each other's blocks where they lie, if these are 512 rows or columns wide;
    elsewhere a process gets panels, of the size of its block or of 16 MiB, between nodes the next
    one while it multiplies. Where both matrices are cut along two mesh axes, panels of both come
    along the axis summed over (SUMMA). The same bytes are sent either way; beside the result a
    process needs memory for two panels, or for 16 MiB. `Partial` operands are reduced first.

    With `reproducible` the error of each item is at most ``k * eps`` times that of `|x1| @ |x2|`,
    as that of an ordinary product, where k items are summed and `eps` is that of the result's
    dtype, and in the range of subnormal numbers k of the least. Of complex matrices that holds for
    the parts, of which each is a sum of 2 k real products. Products of vectors, and of few terms,
    are exact sums of rounded products, as those of `vecdot`: of up to 2**26 terms, as of 400 rows,
    in single precision 2**24, of complex numbers 2**27 and 2**22; where no sum is eight times as
    long as both rows and columns of the result, or longer than 1024; and where the largest and
    the least item of any row, and of any column, are 2**47 apart, both taken together. For these a
    process gets all terms of its sums. Else rows of `x1` and columns of `x2` are scaled by powers
    of two and cut into slices, integers whose products are exact (Ozaki, Ogita, Oishi, Rump 2012).
    A product of leading bits, in float32, tells how far slices must reach: for matrices without
    much smaller rows, columns or items 3 or 4 products of slices in float64, 1 of float32, more
    where items of the result are far below the largest ones of their rows and columns. Those
    few items that are further below than is worth more products are summed up exactly, as by
    `vecdot`, for which processes get their rows and columns, 32 MiB of each at a time. All that
    takes as many times the work as there are products, and half a product more for the look, which
    float32 mostly does without. Operands move once, as for an ordinary product, and slices are made
    where they are multiplied: beside what has moved that takes memory for 2 or 3 float64 copies of
    it, and for 3 of the result. Where operands come by panels, or the axis summed over is cut, each
    product sends slices or sums of its own, and memory is needed for some 6 copies of the operands
    and 5 of the result.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.matmul(da.asarray([[1, 2], [3, 4]]), [[0, 1], [1, 0]]))
    [[2 1]
     [4 3]]
    """
    if reproducible and check_flag("matmul", "reproducible", reproducible):
        return _multiply_reproducibly("matmul", x1, x2, out)
    if out is not None:
        return _matmul(x1, x2, out=out)
    try:
        output = _quick[x1._layout, x2._layout]
    except AttributeError:
        return run(_matmul, (x1, x2))
    left, right = x1._local, x2._local
    small = left.nbytes < LARGE and right.nbytes < LARGE
    if (
        output is not None
        and small
        and (error_state() is DEFAULT_ERROR_STATE or not errors_raise())
    ):
        return x1._new(_matmul.local(left, right), output)
    if output is None:
        step = step_for(_matmul, (x1, x2))
        layouts = (x1._layout, x2._layout, step.partial)
        if step.still and step.partial.ndim and not any(x.has_partial for x in layouts):
            remember(_quick, layouts[:2], step.partial)
    return run(_matmul, (x1, x2))


def _multiply_reproducibly(name: str, x1: Any, x2: Any, out: Any = None) -> Any:
    """Return the matrix product to the same bits anywhere."""
    from distarray.ops.linear_algebra._reproducible import (
        has_few_terms,
        multiply_matrices,
        result_dtype,
    )

    x1, x2 = normalize_arrays(name, (x1, x2))
    dtype = result_dtype(name, x1, x2)
    if dtype is None or not any(isinstance(x, BaseArray) for x in (x1, x2)):
        return run_product(_matmul, (x1, x2), None, out)
    step = step_for(_matmul, (x1, x2))  # which refuses what does not fit
    if out is not None:
        check_target(name, out)
        check_fits(name, out, step.output.shape, step.result)
    one = next(x for x in (x1, x2) if isinstance(x, BaseArray))
    x1, x2 = (x if isinstance(x, BaseArray) else give_values(one, x) for x in (x1, x2))
    if 1 in (x1.ndim, x2.ndim):
        lines = (x1, x2) if x2.ndim == 1 else (np.moveaxis(x2, -2, -1), x1)
        return write_out(name, out, _sum_products(*lines, -1, conjugates=False))
    few = has_few_terms(x1.shape, x2.shape, dtype)
    left, right = _bring_once(_matmul_of_wholes if few else _matmul, x1, x2)
    found = multiply_matrices(
        lambda a, b: run(_matmul, (a, b)),
        lambda a, b: _sum_products(a, b, -1, conjugates=False),
        _layout_of_blocks,
        left,
        right,
        dtype,
    )
    return write_out(name, out, found)


def _bring_once(op: Op, *operands: Any) -> Any:
    """Return operands where a product takes them, unless it takes a panel at a time.

    Slices of what has moved are made where they are multiplied, and none of them moves.
    """
    operands = tuple(without_partial(op.name, x) for x in operands)
    step = step_for(op, operands)
    if step.still or step.panels is not None:
        return operands
    blocks = step.move([x._local for x in operands], operands, step.bring)
    moved = zip(operands, blocks, step.sources, strict=True)
    return tuple(x._new(block, layout) for x, block, layout in moved)


def _layout_of_blocks(x1: Any, x2: Any) -> Layout | None:
    """Return the layout of the products of blocks of matrices; None where these are not all."""
    step = step_for(_matmul, (x1, x2))
    return step.partial if step.still and not step.partial.has_partial else None


@register
def dot(x1: Any, x2: Any, /, out: Any = None, *, reproducible: bool = False) -> Any:
    """Return NumPy's dot product: the last axis of `x1` with the last but one of `x2`.

    Operands of at most two axes give `matmul`; a number multiplies. The result goes into `out`, if
    that is given. `reproducible` is as for `matmul`, whose operands these must be then.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    ArgumentTypeError
        If it is to be reproducible, and `x2` has more than two axes.

    Notes
    -----
    Distribution: as for `matmul`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.dot(da.asarray([[1, 2], [3, 4]]), [1, 1]))
    [3 7]
    """
    x1, x2 = normalize_arrays("dot", (x1, x2))  # numbers have dtypes here, as in NumPy
    ndims = [x.ndim for x in (x1, x2)]
    if 0 in ndims:
        return multiply(x1, x2, out=out)
    if ndims[1] <= 2 and (reproducible or max(ndims) <= 2 or ndims[1] == 1):
        return matmul(x1, x2, out, reproducible=reproducible)
    if check_flag("dot", "reproducible", reproducible):
        raise ArgumentTypeError(
            f"dot(reproducible=True) of {ndims[0]} and {ndims[1]} axes: the second operand may "
            "have two; reshape it, or use matmul for stacks of matrices"
        )
    return run_product(_tensordot, (x1, x2), ((ndims[0] - 1,), (ndims[1] - 2,)), out)


@register
def vecdot(x1: Any, x2: Any, /, axis: int = -1, *, reproducible: bool = False) -> Any:
    """Return the sum of `conj(x1) * x2` along an axis.

    Parameters
    ----------
    x1, x2 : DistArray or array
        Their other axes broadcast.
    axis : int
        The axis of each operand; a negative one counts from its last.
    reproducible : bool
        Whether the bits of floating-point results depend on the items alone: products are rounded
        to float64, added up exactly, and the sum is rounded once. Of n float64 products the error
        is at most 2**-53 times the sum of their magnitudes, and one rounding.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    AxisError
        If an operand has no such axis.

    Notes
    -----
    Distribution: as for `matmul`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.vecdot(da.asarray([[1, 2], [3, 4]]), [1, 1]))
    [3 7]
    """
    axis = check_integer("vecdot", "axis", axis)
    if not check_flag("vecdot", "reproducible", reproducible):
        return run(_vecdot, (x1, x2), axis)
    from distarray.ops.linear_algebra._reproducible import result_dtype

    x1, x2 = normalize_arrays("vecdot", (x1, x2))
    dtype = result_dtype("vecdot", x1, x2)
    if dtype is None or not any(isinstance(x, BaseArray) for x in (x1, x2)):
        return run(_vecdot, (x1, x2), axis)
    step_for(_vecdot, (x1, x2), axis)  # which refuses what does not fit
    return _sum_products(x1, x2, axis)


@register
def tensordot(x1: Any, x2: Any, /, axes: int | Sequence[Sequence[int]] = 2) -> Any:
    """Return the sum of products over several axes of both operands.

    Parameters
    ----------
    x1, x2 : DistArray or array
    axes : int or two sequences of int
        The axes to sum over: the last of `x1` and the first of `x2`, or those named.

    Raises
    ------
    ShapeError
        If the lengths of the axes differ.
    AxisError
        If there is no such axis.
    ArgumentError
        If the two sequences do not name equally many.

    Notes
    -----
    Distribution: as for `matmul`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.tensordot(da.ones((2, 3, 4)), da.ones((3, 4)), axes=2))
    [12. 12.]
    """
    x1, x2 = normalize_operands("tensordot", (x1, x2))
    left, right = (x.ndim if isinstance(x, BaseArray) else np.ndim(x) for x in (x1, x2))
    try:
        count: int | None = operator.index(axes)  # type: ignore[arg-type]
    except TypeError:
        count = None
    if count is not None:
        if not 0 <= count <= min(left, right):
            raise ArgumentError(
                f"tensordot got axes={count} for arrays of {left} and {right} axes; it must be "
                f"0 to {min(left, right)}"
            )
        pair = (tuple(range(left - count, left)), tuple(range(count)))
    else:
        try:
            first, second = axes  # type: ignore[misc]
        except (TypeError, ValueError):
            raise ArgumentTypeError(
                f"tensordot got axes={axes!r}; pass an integer, or two sequences of axes"
            ) from None
        pair = (normalize_axes(first, left), normalize_axes(second, right))
    if len(pair[0]) != len(pair[1]):
        raise ArgumentError(
            f"tensordot got {len(pair[0])} axes of the first operand and {len(pair[1])} of the "
            "second; name equally many"
        )
    return run(_tensordot, (x1, x2), pair)


@register
def outer(x1: Any, x2: Any, /, out: Any = None) -> Any:
    """Return the products of every item of `x1` with every item of `x2`, both taken as flat.

    They go into `out`, if that is given.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.outer(da.asarray([1, 2]), [3, 4]))
    [[3 4]
     [6 8]]
    """
    x1, x2 = normalize_arrays("outer", (x1, x2))
    column, row = [
        change_shape(x, shape) if isinstance(x, BaseArray) else x.reshape(shape)
        for x, shape in ((x1, (-1, 1)), (x2, (1, -1)))
    ]
    # A product of matrices adds to 0.0, which loses -0.0.
    return multiply(column, row) if out is None else multiply(column, row, out=out)


@register
def inner(x1: Any, x2: Any, /) -> Any:
    """Return the sum of products over the last axis of both operands.

    Notes
    -----
    Distribution: as for `matmul`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.inner(da.asarray([1, 2]), [3, 4]))
    11
    """
    x1, x2 = normalize_arrays("inner", (x1, x2))
    if any(x.ndim == 0 for x in (x1, x2)):
        return dot(x1, x2)
    return tensordot(x1, x2, axes=((-1,), (-1,)))


ufuncs[np.matmul] = _matmul
ufuncs[np.vecdot] = _vecdot
