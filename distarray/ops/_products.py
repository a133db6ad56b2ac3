"""What products of arrays share: subscripts as rules, the cheapest layouts, the local call.

On one mesh axis, cutting a letter that the result has cuts the result; cutting one that is summed
gives a `Partial("sum")` result, reduced only when its value is needed. Operands that do not fit
together are redistributed in the way that takes the least time, sending and multiplying taken
together: of two matrices cut by rows, the smaller is gathered. `Partial`
operands are reduced first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core._base import BaseArray
from distarray.core._cache import cache, remember
from distarray.core._dispatch import as_block, move_all
from distarray.core._float_errors import CALM, alike, state, strict
from distarray.core._meshes import common_mesh, lift, replicated
from distarray.core._on_device import conformed
from distarray.core._operands import local_blocks, normalised
from distarray.core._resolution import Resolution, resolve
from distarray.core._spec import Letters, Spec
from distarray.errors import ArgumentTypeError, DTypeError, ShapeError
from distarray.layout import Layout
from distarray.ops._blocks import empty_block
from distarray.ops._items import setitem
from distarray.redistribute import redistribute_local
from distarray.typing import Buffer, Shape

LARGE = _memory.POOLED_BYTES
PRODUCTS_PER_SECOND = 1e10
"""Multiplications with addition that one process does in a second: weighs work against sending."""

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
        self._quick: dict[Any, Layout] = cache()
        self._resolutions: dict[Any, Resolution] = cache()

    def __call__(self, *operands: Any) -> Any:
        """Run as NumPy's ufunc of the same name."""
        return self.call(operands, {})

    def pair(self, x1: Any, x2: Any) -> Any:
        """Return the product of two operands by the shortest way: small blocks that fit."""
        try:
            output = self._quick.get((x1._layout, x2._layout))
        except AttributeError:
            return self.run((x1, x2), None)
        if output is None:
            return self.run((x1, x2), None)
        left, right = x1._local, x2._local
        if left.nbytes >= LARGE or right.nbytes >= LARGE or (state() is not CALM and strict()):
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
        operands = normalised(self.name, operands)
        arrays = [x for x in operands if isinstance(x, BaseArray)]
        if not arrays:
            raise ArgumentTypeError(
                f"{self.name} got no distributed operand; make one with distarray.asarray(x), or "
                "use NumPy's function"
            )
        dtypes = tuple(x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype for x in operands)
        dtype = self._result_dtype(dtypes)
        parts = [x._layout if isinstance(x, BaseArray) else np.shape(x) for x in operands]
        boolean = dtype.kind == "b"
        key = (static, boolean, *parts)
        found = self._resolutions.get(key)
        if found is None:
            found = self._resolve(parts, static, boolean)
            remember(self._resolutions, key, found)
            if found.still and static is None and self._plainly(parts, found):
                remember(self._quick, tuple(parts), found.output)
        blocks = local_blocks(self.name, arrays[0], operands)
        if not found.still:
            blocks = move_all(self.name, blocks, found.moves)
        output = found.output
        half = dtype.char == "e" and output.has_partial
        wide = np.dtype(np.float32) if half else dtype
        if half:
            blocks = [block.astype(wide) for block in blocks]
        total = alike(output.mesh, self.name, lambda: self._product(blocks, static, found, wide))
        if not half:
            return arrays[0]._new(total, output)
        # Half precision adds up in float32, on all ranks together, and is rounded once.
        whole = output.without_partial()
        sums = redistribute_local(total, output, whole)
        return arrays[0]._new(alike(whole.mesh, self.name, lambda: sums.astype(dtype)), whole)

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
        known = [x if hasattr(x, "dtype") else np.asarray(x) for x in operands]
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

    def _resolve(self, parts: Sequence[Any], static: Any, boolean: bool) -> Resolution:
        shapes = [part.shape if isinstance(part, Layout) else part for part in parts]
        inputs, output = self.subscripts(shapes, static)
        mesh = common_mesh(self.name, [part.mesh for part in parts if isinstance(part, Layout)])
        layouts = [
            lift(part, mesh) if isinstance(part, Layout) else replicated(mesh, part)
            for part in parts
        ]
        spec = Spec(inputs, output, "any" if boolean else "sum")
        return resolve(spec, layouts, lambda targets: _seconds(inputs, targets))

    def _product(
        self, blocks: Sequence[Buffer], static: Any, found: Resolution, dtype: Any
    ) -> Buffer:
        output = found.output
        shape = output.local_shape()
        if found.outside:
            return empty_block(output, dtype)
        if _backend.is_cupy(blocks[0]):
            return self._on_device(blocks, static, output, dtype)
        if self.writes:
            if prod(shape) * dtype.itemsize >= LARGE:
                return self.local(*blocks, out=empty_block(output, dtype))
            return as_block(self.local(*blocks))
        return as_block(self.local(*blocks, static))

    def _on_device(
        self, blocks: Sequence[Buffer], static: Any, output: Layout, dtype: Any
    ) -> Buffer:
        """Return the product of blocks on a GPU; of nothing it is zeros."""
        _backend.use(blocks[0])
        if any(not block.size for block in blocks):
            return _memory.zeros(output.local_shape(), dtype, _backend.device_of(blocks[0]))
        arguments = [] if self.writes else [static]
        return conformed(self.local(*blocks, *arguments), dtype)


def _seconds(inputs: Sequence[Letters], layouts: Sequence[Layout]) -> float:
    """Return how long the busiest process multiplies."""
    extents: dict[int, int] = {}
    for letters, layout in zip(inputs, layouts, strict=True):
        for axis, letter in enumerate(letters):
            if letter is not None:
                extents[letter] = layout.partition(axis).largest
    return prod(extents.values()) / PRODUCTS_PER_SECOND
