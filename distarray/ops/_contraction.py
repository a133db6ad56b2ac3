"""Products that sum over axes: matmul, dot, vecdot, tensordot, outer, inner.

A product is an einsum string: a letter for every axis of the iteration space (see `_products`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core._base import BaseArray
from distarray.core._registry import register, ufuncs
from distarray.core._spec import Letters
from distarray.errors import ArgumentError, ArgumentTypeError, ShapeError
from distarray.layout import dimmap
from distarray.ops._products import Contraction, Subscripts
from distarray.ops._reshape import reshape
from distarray.typing import Shape

_MATRIX = 1 << 20  # letters of matrix axes, apart from those of batch axes
_ROW, _SUM, _COLUMN = _MATRIX, _MATRIX + 1, _MATRIX + 2


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
    letters = []
    for batch in batches:
        shift = len(joint) - len(batch)
        letters.append(
            tuple(i + shift if n == joint[i + shift] else None for i, n in enumerate(batch))
        )
    return letters, tuple(range(len(joint)))


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
    places = [dimmap.checked_axes(axis, len(shape))[0] for shape in shapes]
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


_matmul: Any = Contraction("matmul", _matmul_letters, np.matmul, writes=True)


def _local_vecdot(left: Any, right: Any, axis: int) -> Any:
    if _backend.is_cupy(left):  # CuPy has no such function
        first, second = (np.moveaxis(x, axis, -1) for x in (left, right))
        product = np.matmul(np.conjugate(first)[..., None, :], second[..., None])
        return product[..., 0, 0]
    function: Any = np.vecdot  # whose stub lacks axis=
    return function(left, right, axis=axis)


_vecdot: Any = Contraction("vecdot", _vecdot_letters, _local_vecdot)
_tensordot = Contraction("tensordot", _tensordot_letters, np.tensordot)

_matmul_pair = _matmul.pair


@register
def matmul(x1: Any, x2: Any, /) -> Any:
    """Return the matrix product.

    Parameters
    ----------
    x1, x2 : DistArray or array
        At least one axis each. Of one axis: a row on the left, a column on the right, and the
        result lacks that axis. Of more than two: stacks of matrices, which broadcast. Plain arrays
        must be the same on every process.

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
        If the dtypes cannot be multiplied.

    Notes
    -----
    `Partial` operands are reduced first.
    """
    return _matmul_pair(x1, x2)


@register
def dot(x1: Any, x2: Any, /) -> Any:
    """Return NumPy's dot product: the last axis of `x1` with the last but one of `x2`.

    Operands of at most two axes give `matmul`; a number multiplies.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    """
    ndims = (
        np.ndim(x1) if not isinstance(x1, BaseArray) else x1.ndim,
        (np.ndim(x2) if not isinstance(x2, BaseArray) else x2.ndim),
    )
    if 0 in ndims:
        return x1 * x2 if isinstance(x1, BaseArray) else x2 * x1
    if max(ndims) <= 2 or ndims[1] == 1:
        return _matmul_pair(x1, x2)
    return tensordot(x1, x2, axes=((-1,), (-2,)))


@register
def vecdot(x1: Any, x2: Any, /, axis: int = -1) -> Any:
    """Return the sum of `conj(x1) * x2` along an axis.

    Parameters
    ----------
    x1, x2 : DistArray or array
        Their other axes broadcast.
    axis : int
        The axis of each operand; a negative one counts from its last.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    AxisError
        If an operand has no such axis.
    """
    return _vecdot.run((x1, x2), axis)


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
    """
    left, right = (x.ndim if isinstance(x, BaseArray) else np.ndim(x) for x in (x1, x2))
    if hasattr(axes, "__index__"):
        count = int(axes)  # type: ignore[arg-type]
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
        pair = (dimmap.checked_axes(first, left), dimmap.checked_axes(second, right))
    if len(pair[0]) != len(pair[1]):
        raise ArgumentError(
            f"tensordot got {len(pair[0])} axes of the first operand and {len(pair[1])} of the "
            "second; name equally many"
        )
    return _tensordot.run((x1, x2), pair)


@register
def outer(x1: Any, x2: Any, /) -> Any:
    """Return the products of every item of `x1` with every item of `x2`, both taken as flat."""
    flat = [
        reshape(x, (-1,)) if isinstance(x, BaseArray) else np.reshape(x, (-1,)) for x in (x1, x2)
    ]
    return _tensordot.run(flat, ((), ()))


@register
def inner(x1: Any, x2: Any, /) -> Any:
    """Return the sum of products over the last axis of both operands."""
    if any((x.ndim if isinstance(x, BaseArray) else np.ndim(x)) == 0 for x in (x1, x2)):
        return dot(x1, x2)
    return tensordot(x1, x2, axes=((-1,), (-1,)))


ufuncs[np.matmul] = _matmul
ufuncs[np.vecdot] = _vecdot
