"""Products that sum over axes: matmul, dot, vecdot, tensordot, outer, inner, einsum.

A product is an einsum string: a letter for every axis of the iteration space. On one mesh axis,
cutting a letter that the result has cuts the result; cutting one that is summed gives a
`Partial("sum")` result, reduced only when its value is needed. Operands that do not fit together
are redistributed in the way that takes the least time, sending and multiplying taken together: of
two matrices cut by rows, the smaller is gathered. A product is linear in each operand, so that a
`Partial` sum times a replicated factor stays a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from distarray.comm import _memory
from distarray.core._base import BaseArray
from distarray.core._dispatch import (
    Resolution,
    as_block,
    common_mesh,
    lift,
    move_all,
    remember,
    replicated,
    resolve,
)
from distarray.core._dtypes import keeps_sums
from distarray.core._operands import plain
from distarray.core._registry import register_function, register_ufunc
from distarray.core._spec import Letters, Rule, Spec
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from distarray.layout import Layout, Replicate, dimmap
from distarray.ops._items import setitem
from distarray.ops._reshape import reshape
from distarray.typing import Buffer, Shape

LARGE = _memory.POOLED_BYTES
PRODUCTS_PER_SECOND = 1e10
"""Multiplications with addition that one process does in a second: weighs work against sending."""

_MATRIX = 1 << 20  # letters of matrix axes, apart from those of batch axes
_ROW, _SUM, _COLUMN = _MATRIX, _MATRIX + 1, _MATRIX + 2

Subscripts = tuple[tuple[Letters, ...], Letters]


class Contraction:
    """A product of arrays; rows of this class differ in their subscripts and local function."""

    __slots__ = ("_quick", "_resolutions", "local", "name", "subscripts", "writes")

    def __init__(
        self,
        name: str,
        subscripts: Callable[[Sequence[Shape], Any], Subscripts],
        local: Callable[..., Any],
        writes: bool = False,
    ) -> None:
        self.name = name
        self.subscripts = subscripts
        """`(shapes, static) -> letters`; checks shapes and arguments."""
        self.local = local
        """`local(*blocks, static)`, or for `writes` `local(*blocks, out=)`."""
        self.writes = writes
        self._quick: dict[Any, Layout] = {}
        self._resolutions: dict[Any, Resolution] = {}

    def pair(self, x1: Any, x2: Any) -> Any:
        """Return the product of two operands by the shortest way: small blocks that fit."""
        try:
            output = self._quick.get((x1._layout, x2._layout))
        except AttributeError:
            return self.run((x1, x2), None)
        if output is None:
            return self.run((x1, x2), None)
        left, right = x1._local, x2._local
        if left.nbytes >= LARGE or right.nbytes >= LARGE:
            return self.run((x1, x2), None)
        array = object.__new__(x1.__class__)
        array._local = self.local(left, right)
        array._layout = output
        return array

    def run(self, operands: Sequence[Any], static: Any) -> Any:
        """Return the product of operands of any kind: distributed, or arrays that every rank has.

        Raises
        ------
        ShapeError
            If the shapes do not fit together.
        DTypeError
            If the dtypes cannot be multiplied.
        """
        operands = [x if isinstance(x, BaseArray) else plain(self.name, x) for x in operands]
        arrays = [x for x in operands if isinstance(x, BaseArray)]
        if not arrays:
            raise ArgumentTypeError(
                f"{self.name} got no distributed operand; make one with distarray.asarray(x), or "
                "use NumPy's function"
            )
        dtypes = tuple(
            np.asarray(x).dtype if not isinstance(x, BaseArray) else x.dtype for x in operands
        )
        dtype = self._result_dtype(dtypes)
        parts = [x._layout if isinstance(x, BaseArray) else np.shape(x) for x in operands]
        boolean = dtype.kind == "b"
        rules = self._rules(parts, dtypes, dtype)
        key = (static, boolean, rules, *parts)
        found = self._resolutions.get(key)
        if found is None:
            found = self._resolve(parts, static, boolean, rules)
            remember(self._resolutions, key, found)
            if (
                found.still
                and len(operands) == 2
                and static is None
                and self._plainly(parts, found)
            ):
                remember(self._quick, tuple(parts), found.output)
        blocks = [x._local if isinstance(x, BaseArray) else x for x in operands]
        if not found.still:
            blocks = move_all(self.name, blocks, found)
        return arrays[0]._new(self._product(blocks, static, found, dtype), found.output)

    def call(self, operands: Sequence[Any], options: dict[str, Any]) -> Any:
        """Run as NumPy's ufunc of the same name, with its `out=` and `axis=`.

        Raises
        ------
        ArgumentTypeError
            For other options, or an `out` that is not distributed.
        """
        options = {k: v for k, v in options.items() if v is not None}
        out = options.pop("out", (None,))
        static = options.pop("axis", -1) if not self.writes else None
        if options:
            raise ArgumentTypeError(
                f"{self.name} takes out=" + ("" if self.writes else " and axis=") + ", got "
                f"{', '.join(options)}"
            )
        target = out[0] if isinstance(out, tuple) else out
        if target is None:
            return self.run(operands, static)
        if not isinstance(target, BaseArray):
            raise ArgumentTypeError(
                f"{self.name} with a distributed operand takes a DistArray as out=, got "
                f"{type(target).__name__}; to fill a plain array, gather first: x.full_array()"
            )
        shape, dtype = self._result(operands, static)
        if target.shape != shape or not np.can_cast(dtype, target.dtype, "same_kind"):
            raise ShapeError(
                f"{self.name} gives {dtype} of shape {shape}, which does not go into out= of "
                f"{target.dtype} and shape {target.shape}"
            )
        if any(isinstance(x, BaseArray) for x in operands):
            result = self.run(operands, static)
        else:
            result = self.local(*operands, *([] if self.writes else [static]))
        setitem(target, (...,), result)
        return target

    def _result(self, operands: Sequence[Any], static: Any) -> tuple[Shape, np.dtype[Any]]:
        """Return shape and dtype of the product."""
        known = [x if isinstance(x, BaseArray) else np.asarray(x) for x in operands]
        shapes = [tuple(x.shape) for x in known]
        inputs, output = self.subscripts(shapes, static)
        sizes = {
            letter: size
            for letters, shape in zip(inputs, shapes, strict=True)
            for letter, size in zip(letters, shape, strict=True)
        }
        return tuple(sizes[letter] for letter in output), self._result_dtype(
            [x.dtype for x in known]
        )

    def _plainly(self, parts: Sequence[Any], found: Resolution) -> bool:
        """Tell whether the resolution holds for every dtype and gives an array, not a scalar."""
        layouts = [part for part in parts if isinstance(part, Layout)]
        return (
            len(layouts) == len(parts)
            and not any(layout.has_partial for layout in layouts)
            and not found.output.has_partial
            and found.output.ndim > 0
        )

    def _result_dtype(self, dtypes: Sequence[Any]) -> np.dtype[Any]:
        try:
            dtype = np.result_type(*dtypes)
        except TypeError:
            dtype = None
        if dtype is None or dtype.kind not in "biufc":
            raise DTypeError(
                f"{self.name} got dtypes {', '.join(map(str, dtypes))}; it multiplies booleans, "
                "integers, floating and complex numbers"
            )
        return dtype

    def _rules(self, parts: Sequence[Any], dtypes: Sequence[Any], dtype: Any) -> tuple[Rule, ...]:
        """Return the rules of inputs that may stay Partial: sums that the product keeps."""
        rules: list[Rule] = []
        for i, part in enumerate(parts):
            if not isinstance(part, Layout) or not part.has_partial:
                continue
            for mesh_axis in part.partial_axes:
                placement = part.placements[mesh_axis]
                sums = dtype.kind != "b" and keeps_sums(dtypes[i], dtype)
                kept = ("sum", "avg") if sums else ()
                if dtype.kind == "b":
                    kept = ("any",)
                rule: Rule = tuple(
                    placement if j in (0, i + 1) else Replicate() for j in range(len(parts) + 1)
                )
                if placement.op in kept and rule not in rules:
                    rules.append(rule)
        return tuple(rules)

    def _resolve(
        self, parts: Sequence[Any], static: Any, boolean: bool, rules: tuple[Rule, ...]
    ) -> Resolution:
        shapes = [part.shape if isinstance(part, Layout) else part for part in parts]
        inputs, output = self.subscripts(shapes, static)
        mesh = common_mesh(self.name, [part.mesh for part in parts if isinstance(part, Layout)])
        layouts = [
            lift(part, mesh) if isinstance(part, Layout) else replicated(mesh, part)
            for part in parts
        ]
        if any(layout is not part for layout, part in zip(layouts, parts, strict=True)):
            rules = rules if all(not isinstance(p, Layout) or p.mesh is mesh for p in parts) else ()
        spec = Spec(inputs, output, "any" if boolean else "sum", rules)
        return resolve(spec, layouts, lambda targets: _seconds(inputs, targets))

    def _product(
        self, blocks: Sequence[Buffer], static: Any, found: Resolution, dtype: Any
    ) -> Buffer:
        output = found.output
        shape = output.local_shape()
        if found.outside:
            return _memory.empty(shape, dtype, output.mesh.device)
        if self.writes:
            if prod(shape) * dtype.itemsize >= LARGE:
                return self.local(*blocks, out=_memory.empty(shape, dtype, output.mesh.device))
            return as_block(self.local(*blocks))
        return as_block(self.local(*blocks, static))


def _seconds(inputs: Sequence[Letters], layouts: Sequence[Layout]) -> float:
    """Return how long the busiest process multiplies."""
    extents: dict[int, int] = {}
    for letters, layout in zip(inputs, layouts, strict=True):
        for axis, letter in enumerate(letters):
            if letter is not None:
                extents[letter] = layout.partition(axis).largest
    return prod(extents.values()) / PRODUCTS_PER_SECOND


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


_matmul = Contraction("matmul", _matmul_letters, np.matmul, writes=True)
_vecdot = Contraction("vecdot", _vecdot_letters, lambda a, b, axis: np.vecdot(a, b, axis=axis))
_tensordot = Contraction("tensordot", _tensordot_letters, np.tensordot)

_matmul_pair = _matmul.pair
register_ufunc(np.matmul, _matmul)
register_ufunc(np.vecdot, _vecdot)


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
        `Partial("sum")`. Integers keep NumPy's dtype and wrap around as there.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    DTypeError
        If the dtypes cannot be multiplied.

    Notes
    -----
    A `Partial` sum times a factor that is replicated along that mesh axis stays a sum; infinities
    in the factor may then give NaN where the reduced operand would not.
    """
    return _matmul_pair(x1, x2)


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
        first, second = axes  # type: ignore[misc]
        pair = (dimmap.checked_axes(first, left), dimmap.checked_axes(second, right))
    if len(pair[0]) != len(pair[1]):
        raise ArgumentError(
            f"tensordot got {len(pair[0])} axes of the first operand and {len(pair[1])} of the "
            "second; name equally many"
        )
    return _tensordot.run((x1, x2), pair)


def outer(x1: Any, x2: Any, /) -> Any:
    """Return the products of every item of `x1` with every item of `x2`, both taken as flat."""
    flat = [
        reshape(x, (-1,)) if isinstance(x, BaseArray) else np.asarray(x).reshape(-1)
        for x in (x1, x2)
    ]
    return _tensordot.run(flat, ((), ()))


def inner(x1: Any, x2: Any, /) -> Any:
    """Return the sum of products over the last axis of both operands."""
    if any((x.ndim if isinstance(x, BaseArray) else np.ndim(x)) == 0 for x in (x1, x2)):
        return dot(x1, x2)
    return tensordot(x1, x2, axes=((-1,), (-1,)))


register_function(np.dot)(dot)
register_function(np.tensordot)(tensordot)
register_function(np.outer)(outer)
register_function(np.inner)(inner)
