"""The family of reductions: local call, Partial result where a reduced axis is cut."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import _on_device
from distarray.core._base import BaseArray
from distarray.core._dispatch import as_block, move_all, remember
from distarray.core._dtypes import checked_dtype, keeps_sums
from distarray.core._meshes import device_of
from distarray.core._operands import (
    assign,
    broadcast_shape,
    lifted_layouts,
    local_blocks,
    plain,
)
from distarray.core._resolution import Resolution, resolve
from distarray.core._spec import Rule, Spec, reduction
from distarray.errors import ArgumentError, ArgumentTypeError, AxisError, DTypeError, ShapeError
from distarray.layout import REDUCTIONS, Layout, Partial
from distarray.typing import Buffer, Shape

ABSENT: Any = type("Absent", (), {"__repr__": lambda _: "<no value>"})()
"""Default of an argument for which None has a meaning."""

LocalCall = Callable[..., Buffer]


class Reduction:
    """A reduction over axes; the row is the public callable.

    Parameters
    ----------
    name : str
        The public name.
    local : callable
        `local(block, axes, dtype, keepdims, count, **where)` with the reduced axes as a tuple and
        the global number of items that are reduced into one.
    combine : str
        The Partial op that combines results of blocks.
    positional : tuple of str
        NumPy's order of the arguments after the array.
    ufunc : ufunc, optional
        The reduction's own ufunc: `initial` goes through it.
    rules : tuple of Rule
        Which Partial inputs may stay.
    """

    def __init__(
        self,
        name: str,
        local: LocalCall,
        combine: str,
        positional: tuple[str, ...],
        ufunc: np.ufunc | None = None,
        rules: tuple[Rule, ...] = (),
        initial: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.name = self.__name__ = self.__qualname__ = name
        self.__module__ = "distarray"
        self.local = local
        self.combine = combine
        self.positional = positional
        self.accepted = frozenset((*positional, "where"))
        self.__signature__ = _signature(positional)
        self.ufunc = ufunc
        self.rules = rules
        self.initial = initial
        self.resolutions: dict[Any, Resolution] = {}

    def __repr__(self) -> str:
        return f"<distarray function {self.name}>"

    def __reduce__(self) -> str:
        return self.__qualname__

    def __call__(self, x: Any, /, *args: Any, **options: Any) -> Any:
        """Reduce; see the row's own documentation."""
        if not options and len(args) <= 1 and isinstance(x, BaseArray):
            return self._plain(x, args[0] if args else None, None, False, True)
        if args:
            if len(args) > len(self.positional):
                raise ArgumentTypeError(
                    f"{self.name}() takes at most {len(self.positional)} arguments after the array"
                )
            named = dict(zip(self.positional, args, strict=False))
            if named.keys() & options.keys():
                raise ArgumentTypeError(
                    f"{self.name}() got {sorted(named.keys() & options.keys())} twice"
                )
            options |= named
        if options and not options.keys() <= self.accepted:
            raise ArgumentTypeError(
                f"{self.name}() got {sorted(options.keys() - self.accepted)}; it takes "
                f"{', '.join(self.positional)} and where"
            )
        return self.reduce(x, **options)

    def reduce(
        self,
        x: Any,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: bool = False,
        initial: Any = ABSENT,
        where: Any = True,
    ) -> Any:
        """Return the reduction of `x` over `axis`."""
        if not isinstance(x, BaseArray):
            x = plain(self.name, x)
            rest = {} if initial is ABSENT else {"initial": initial}
            if where is not True:
                rest["where"] = where
            axes = normalised_axes(axis, np.ndim(x))
            block = x if _backend.is_buffer(x) else np.asarray(x)
            count = reduced_count(block.shape, axes)
            return self.local(block, axes, dtype, keepdims, count, **rest)
        if dtype is None and self.ufunc is not None and "dtype" in self.positional:
            dtype = self._accumulator(x.dtype, out)
        if initial is None:
            initial = ABSENT
        if initial is not ABSENT:
            initial = self._checked_initial(initial, self.result_dtype(x.dtype, dtype))
        if where is not True:
            result = self._masked(x, axis, dtype, keepdims, initial, where)
        else:
            result = self._plain(x, axis, dtype, keepdims, initial is ABSENT)
        if initial is not ABSENT:
            assert self.initial is not None
            result = self.initial(result, initial)
        if out is not None:
            return self._into(out, result)
        return result

    def _accumulator(self, dtype: Any, out: Any) -> Any:
        """Return the dtype of `out` to add up in, as NumPy does; None where it does not fit."""
        if isinstance(out, BaseArray) and np.can_cast(
            self.result_dtype(dtype, None), out.dtype, "same_kind"
        ):
            return out.dtype
        return None

    def _checked_initial(self, initial: Any, dtype: Any) -> Any:
        """Return `initial` as an item of the result's dtype, as NumPy takes it.

        Raises
        ------
        ArgumentTypeError
            If the reduction takes none.
        ArgumentError
            If it is not one number that fits the dtype.
        """
        if self.initial is None:
            raise ArgumentTypeError(f"{self.name}() takes no initial=")
        item = np.empty((), dtype)
        try:
            item[...] = initial
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(
                f"{self.name}(initial={initial!r}) of items of {dtype}: {error}; pass one number "
                "that the result's dtype holds"
            ) from error
        return item[()]

    def _plain(self, x: BaseArray, axis: Any, dtype: Any, keepdims: bool, strict: bool) -> Any:
        layout, block = x._layout, x._local
        key: Any = (layout, axis, block.dtype, dtype, keepdims, strict)
        try:
            found = self.resolutions.get(key)
        except TypeError:  # a list of axes
            axis = tuple(axis)
            key = (layout, axis, block.dtype, dtype, keepdims, strict)
            found = self.resolutions.get(key)
        if found is None:
            found = self._resolve(layout, axis, block.dtype, dtype, keepdims, strict)
            remember(self.resolutions, key, found)
        if not found.still:
            (block,) = move_all(self.name, (block,), found)
        assert found.local is not None
        return x._new(found.local(block), found.output)

    def _resolve(
        self, layout: Layout, axis: Any, dtype: Any, wanted: Any, keepdims: bool, strict: bool
    ) -> Resolution:
        axes = normalised_axes(axis, layout.ndim)
        result = self.result_dtype(dtype, wanted)
        if strict and layout.size == 0:
            self._check_empty(layout.shape, dtype, axes)
        combine = self.combine if result.kind in REDUCTIONS[self.combine].kinds else None
        rules = self.rules if keeps_sums(dtype, result) else ()
        spec = reduction(layout.ndim, axes, keepdims, combine, rules)
        found = resolve(spec, (layout,))
        source = found.moves[0][1] if found.moves[0] else layout
        count = reduced_count(layout.shape, axes)
        found.local = self._bound(
            found, source.local_shape(), axes, result, wanted, keepdims, count
        )
        return found

    def _bound(
        self,
        found: Resolution,
        shape: Shape,
        axes: tuple[int, ...],
        result: Any,
        wanted: Any,
        keepdims: bool,
        count: int,
    ) -> Callable[..., Buffer]:
        """Return the local call for blocks of this shape."""
        out_shape = found.output.local_shape()
        if found.outside or 0 in shape:
            # Nothing here to reduce: what changes nothing when it is combined with the others.
            return lambda block: _memory.full(
                out_shape, self.identity(result, count), result, _backend.device_of(block)
            )
        local = self.local

        def call(block: Buffer) -> Buffer:
            found = as_block(local(block, axes, wanted, keepdims, count))
            return found if _backend.is_numpy(found) else _on_device.conformed(found, result)

        return call

    def identity(self, dtype: Any, count: int) -> Any:
        """Return what an empty block contributes to items of `dtype` reduced from `count` items."""
        del count
        return REDUCTIONS[self.combine].identity(dtype.kind, dtype.itemsize) or 0

    def result_dtype(self, dtype: Any, wanted: Any) -> Any:
        """Return the dtype of the result.

        Raises
        ------
        DTypeError
            If NumPy has no such reduction for `dtype`, or `wanted` holds Python objects.
        """
        wanted = None if wanted is None else checked_dtype(wanted)
        try:
            return np.asarray(self.local(np.zeros((1,), dtype), (0,), wanted, False, 1)).dtype
        except TypeError as error:
            raise DTypeError(f"{self.name} of {dtype}: {error}; convert with astype") from error

    def _check_empty(self, shape: Shape, dtype: Any, axes: tuple[int, ...]) -> None:
        """Refuse what NumPy refuses, on every rank alike."""
        try:
            with np.errstate(all="ignore"):
                self.local(np.empty(shape, dtype), axes, None, False, reduced_count(shape, axes))
        except ValueError as error:
            raise ArgumentError(
                f"{self.name} over axes {axes} of an array of shape {shape}: {error}; check "
                "x.size first" + (", or pass initial=" if self.initial else "")
            ) from error

    # --- where= and out= -------------------------------------------------------------------------

    def _masked(
        self, x: BaseArray, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any
    ) -> Any:
        """Reduce only items where the mask is true."""
        mask = where if isinstance(where, BaseArray) else plain(self.name, where)
        if not isinstance(mask, BaseArray) and not _backend.is_buffer(mask):
            mask = np.asarray(mask)
        if np.dtype(mask.dtype) != np.bool_:
            raise DTypeError(f"{self.name}(where=) takes booleans, not {mask.dtype}")
        if broadcast_shape(self.name, (x.shape, mask.shape)) != x.shape:
            raise ShapeError(
                f"{self.name}(where=) of shape {mask.shape} does not broadcast to {x.shape}"
            )
        if self.ufunc is not None and self.ufunc.identity is None and initial is ABSENT:
            raise ArgumentError(f"{self.name}(where=) needs initial=, as nothing may be left")
        axes = normalised_axes(axis, x.ndim)
        kept = mask._layout if isinstance(mask, BaseArray) else mask.shape
        layouts = lifted_layouts(self.name, [x._layout, kept])
        result = self.result_dtype(x._local.dtype, dtype)
        combine = self.combine if result.kind in REDUCTIONS[self.combine].kinds else None
        whole = reduction(x.ndim, axes, keepdims, combine)
        shift = x.ndim - len(mask.shape)
        letters = tuple(
            None if size == 1 and x.shape[shift + i] != 1 else shift + i
            for i, size in enumerate(mask.shape)
        )
        found = resolve(Spec((*whole.inputs, letters), whole.output, combine), layouts)
        blocks = local_blocks(self.name, x, [x, mask])
        blocks = move_all(self.name, blocks, found)
        count = reduced_count(x.shape, axes)
        value = self.identity(result, count)
        if found.outside or 0 in blocks[0].shape:
            shape, device = found.output.local_shape(), device_of(x._layout)
            return x._new(_memory.full(shape, value, result, device), found.output)
        if _backend.is_cupy(blocks[0]):
            return x._new(
                self._masked_on_device(blocks[0], blocks[1], axes, dtype, keepdims, count, result),
                found.output,
            )
        extra = {"where": blocks[1]}
        if self.ufunc is not None and self.ufunc.identity is None:
            extra["initial"] = value
        local = self.local(blocks[0], axes, dtype, keepdims, count, **extra)
        return x._new(as_block(local), found.output)

    def _masked_on_device(
        self,
        block: Buffer,
        mask: Any,
        axes: tuple[int, ...],
        dtype: Any,
        keepdims: bool,
        count: int,
        result: Any,
    ) -> Buffer:
        """Reduce a block on a GPU in which masked items have become what changes nothing."""
        library = _backend.namespace_of(block)
        nothing = self.identity(result, count)
        chosen = mask if _backend.is_cupy(mask) else library.asarray(mask)
        kept = library.where(chosen, block, _backend.scalar(nothing, block))
        local = self.local(kept, axes, dtype, keepdims, count)
        return _on_device.conformed(local, result)

    def _into(self, out: Any, result: Any) -> Any:
        if not isinstance(out, BaseArray):
            raise ArgumentTypeError(
                f"{self.name}(out=) takes a DistArray, got {type(out).__name__}; to fill a plain "
                "array, gather first: x.full_array()"
            )
        if out.shape != result.shape:
            raise ShapeError(f"{self.name} gives shape {result.shape}, but out= has {out.shape}")
        if not np.can_cast(result.dtype, out.dtype, "same_kind"):
            raise DTypeError(f"{self.name} gives {result.dtype}, but out= has {out.dtype}")
        assign(self.name, out, result)
        return out


def _signature(positional: tuple[str, ...]) -> inspect.Signature:
    defaults = {"keepdims": False, "initial": ABSENT}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY),
            *(inspect.Parameter(x, kind, default=defaults.get(x)) for x in positional),
            inspect.Parameter("where", inspect.Parameter.KEYWORD_ONLY, default=True),
        ]
    )


def normalised_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the reduced axes in ascending order.

    Raises
    ------
    AxisError
        If one is out of range or named twice.
    ArgumentTypeError
        If one is no integer.
    """
    if axis is None:
        return tuple(range(ndim))
    named: Sequence[Any] = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = []
    for one in named:
        try:
            index = operator.index(one)
        except TypeError:
            raise ArgumentTypeError(f"axis={axis!r}: must be an integer, a tuple or None") from None
        if not -ndim <= index < ndim:
            raise AxisError(f"axis {index} of an array with {ndim} axes; use {-ndim} to {ndim - 1}")
        axes.append(index % ndim)
    if len(set(axes)) != len(axes):
        raise AxisError(f"axis={axis!r} names an axis twice (of {ndim} axes)")
    return tuple(sorted(axes))


def reduced_count(shape: Shape, axes: tuple[int, ...]) -> int:
    """Return how many items are reduced into one."""
    count = 1
    for axis in axes:
        count *= shape[axis]
    return count


def partial_rules(*ops: str) -> tuple[Rule, ...]:
    """Return the rules of a reduction that commutes with these Partial ops."""
    return tuple((Partial(op), Partial(op)) for op in ops)
