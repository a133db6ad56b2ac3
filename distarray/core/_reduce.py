"""The family of reductions: local call, Partial result where a reduced axis is cut."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import _on_device
from distarray.core._arguments import check_travels
from distarray.core._base import BaseArray
from distarray.core._dispatch import as_block, move_all, remember
from distarray.core._dtypes import checked_dtype, stays_partial
from distarray.core._float_errors import alike, converted, strict, told
from distarray.core._masked_reduce import reduce_masked
from distarray.core._operands import (
    assign,
    plain,
    without_partial,
)
from distarray.core._read_only import check_writable
from distarray.core._resolution import Resolution, resolve
from distarray.core._spec import Rule, reduction
from distarray.errors import ArgumentError, ArgumentTypeError, AxisError, DTypeError, ShapeError
from distarray.layout import REDUCTIONS, Layout, Partial
from distarray.redistribute import redistribute_local
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
        `local(block, axes, dtype, keepdims, **where)` with the reduced axes as a tuple.
    combine : str
        The Partial op that combines results of blocks.
    positional : tuple of str
        NumPy's order of the arguments after the array.
    ufunc : ufunc, optional
        The reduction's own ufunc: `initial` goes through it.
    rules : tuple of Rule
        Which Partial inputs may stay.
    initial : callable, optional
        How `initial=` joins the result.
    finish : callable, optional
        `finish(reduced block, count, dtype of the result)`; the ranks then reduce at once.
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
        finish: Callable[[Buffer, int, Any], Any] | None = None,
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
        self.finish = finish
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
        check_out(self.name, x, out)
        if not isinstance(x, BaseArray):
            x = plain(self.name, x)
            rest = {} if initial is ABSENT else {"initial": initial}
            if where is not True:
                rest["where"] = where
            axes = normalised_axes(axis, np.ndim(x))
            block = x if _backend.is_buffer(x) else np.asarray(x)
            return self.local(block, axes, dtype, keepdims, **rest)
        if dtype is None and out is not None and "dtype" in self.positional:
            dtype = self.accumulator(x.dtype, out.dtype)
        if initial is None:
            initial = ABSENT
        if initial is not ABSENT:
            initial = self._checked_initial(initial, self.result_dtype(x.dtype, dtype))
        if where is not True:
            if self.ufunc is not None and self.ufunc.identity is None and initial is ABSENT:
                raise ArgumentError(f"{self.name}(where=) needs initial=, as nothing may be left")
            result = reduce_masked(self, x, normalised_axes(axis, x.ndim), dtype, keepdims, where)
        else:
            result = self._plain(x, axis, dtype, keepdims, initial is ABSENT)
        if initial is not ABSENT:
            assert self.initial is not None
            result = self.initial(result, initial)
        if out is not None:
            return self._into(out, result)
        return result

    def accumulator(self, dtype: Any, out: Any) -> Any:
        """Return the dtype of `out` to add up in, as NumPy does; None where it does not fit."""
        fits = np.can_cast(self.result_dtype(dtype, None), out, "same_kind")
        return out.newbyteorder("=") if fits else None

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
        rules = tuple(
            rule
            for rule in self.rules
            if isinstance(rule[1], Partial) and stays_partial(rule[1].op, dtype, result)
        )
        found = resolve(reduction(layout.ndim, axes, keepdims, combine, rules), (layout,))
        source = found.moves[0][1] if found.moves[0] else layout
        if _leaves_out(self.combine, result, source, axes):
            found = resolve(reduction(layout.ndim, axes, keepdims, None), (layout,))
            source = found.moves[0][1] if found.moves[0] else layout
        count = reduced_count(layout.shape, axes)
        found.local = self._bound(
            found, source.local_shape(), axes, (dtype, result), wanted, keepdims, count
        )
        return found

    def _bound(
        self,
        found: Resolution,
        shape: Shape,
        axes: tuple[int, ...],
        dtypes: tuple[Any, Any],
        wanted: Any,
        keepdims: bool,
        count: int,
    ) -> Callable[..., Buffer]:
        """Return the call for blocks of this shape, with what follows at once, if anything does."""
        before, result = dtypes
        total = self.total_dtype(*dtypes, wanted)
        wide = self.wide_dtype(total, found.output)
        if wide is None and self.finish is None:
            return self._local_call(found, shape, axes, result, wanted, keepdims)
        adds = total if wide is None else wide
        call = self._local_call(found, shape, axes, adds, adds, keepdims)
        narrow = wide is not None and before != total
        partial, found.output = found.output, without_partial(found.output)
        finish, name = self.finish, self.name

        def finished(sums: Buffer) -> Buffer:
            sums = sums.astype(total, copy=False)
            return sums if finish is None else as_block(finish(sums, count, result))

        def settled(source: Buffer) -> Buffer:
            block = source
            if narrow:
                block = converted(partial.mesh, name, before, total, lambda: source.astype(total))
            sums = call(block)
            sums = redistribute_local(sums, partial, found.output)
            return alike(partial.mesh, name, lambda: finished(sums))

        return settled

    def wide_dtype(self, total: Any, output: Layout) -> Any:
        """Return the dtype in which sums travel, where it is not their own; they are reduced then.

        Half precision adds up in float32 on all ranks together, and is rounded once.
        """
        half = self.combine == "sum" and total.char == "e" and output.has_partial
        return np.dtype(np.float32) if half else None

    def _local_call(
        self,
        found: Resolution,
        shape: Shape,
        axes: tuple[int, ...],
        result: Any,
        wanted: Any,
        keepdims: bool,
    ) -> Callable[..., Buffer]:
        """Return the local call for blocks of this shape."""
        out_shape = found.output.local_shape()
        if found.outside or 0 in shape:
            # Nothing here to reduce: what changes nothing when it is combined with the others.
            mesh, device = found.output.mesh, _backend.device_of
            nothing = self.identity(result)
            return lambda block: alike(
                mesh, self.name, lambda: _memory.full(out_shape, nothing, result, device(block))
            )
        mesh, local, name = found.output.mesh, self.local, self.name

        def call(block: Buffer) -> Buffer:
            found = as_block(local(block, axes, wanted, keepdims))
            return found if _backend.is_numpy(found) else _on_device.conformed(found, result)

        return lambda block: told(mesh, name, lambda: call(block)) if strict() else call(block)

    def total_dtype(self, before: Any, result: Any, wanted: Any) -> Any:
        """Return the dtype of what `finish` takes, of items of dtype `before`."""
        del before, wanted
        return result

    def identity(self, dtype: Any) -> Any:
        """Return what an empty block contributes to items of `dtype`."""
        if dtype.kind in "mM" and self.combine in ("min", "max"):  # the smallest integer is NaT
            bound = np.iinfo(np.int64).max
            return np.array(bound if self.combine == "min" else -bound).view(
                dtype.newbyteorder("=")
            )[()]
        # A sum of nothing is 0.0: NumPy's sums begin with it, so that none of a block is -0.0.
        return REDUCTIONS[self.combine].identity(dtype.kind, dtype.itemsize) or 0

    def result_dtype(self, dtype: Any, wanted: Any) -> Any:
        """Return the dtype of the result.

        Raises
        ------
        DTypeError
            If NumPy has no such reduction for `dtype`, or `wanted` holds Python objects.
        """
        wanted = None if wanted is None else checked_dtype(wanted)
        check_travels(dtype)
        try:
            return np.asarray(self.local(np.zeros((1,), dtype), (0,), wanted, False)).dtype
        except (TypeError, ValueError) as error:
            raise DTypeError(f"{self.name} of {dtype}: {error}; convert with astype") from error

    def _check_empty(self, shape: Shape, dtype: Any, axes: tuple[int, ...]) -> None:
        """Refuse what NumPy refuses, on every rank alike."""
        try:
            with np.errstate(all="ignore"):
                self.local(np.empty(shape, dtype), axes, None, False)
        except ValueError as error:
            raise ArgumentError(
                f"{self.name} over axes {axes} of an array of shape {shape}: {error}; check "
                "x.size first" + (", or pass initial=" if self.initial else "")
            ) from error

    def _into(self, out: Any, result: Any) -> Any:
        if out.shape != result.shape:
            raise ShapeError(f"{self.name} gives shape {result.shape}, but out= has {out.shape}")
        if not np.can_cast(result.dtype, out.dtype, "same_kind"):
            raise DTypeError(f"{self.name} gives {result.dtype}, but out= has {out.dtype}")
        assign(self.name, out, result)
        return out


def check_out(name: str, x: Any, out: Any) -> None:
    """Refuse an `out` that cannot take the reduction of `x`, before anything is sent.

    Raises
    ------
    ArgumentTypeError
        If one of them is distributed, and not the other.
    ReadOnlyError
        If `out` is read-only.
    """
    if out is None:
        return
    if not isinstance(x, BaseArray):
        raise ArgumentTypeError(
            f"{name}(out=) of a plain array, which every process reduces by itself; use NumPy's "
            "function with an out= of NumPy's, or make a DistArray first: distarray.asarray(x)"
        )
    if not isinstance(out, BaseArray):
        raise ArgumentTypeError(
            f"{name}(out=) takes a DistArray, got {type(out).__name__}; to fill a plain "
            "array, gather first: x.full_array()"
        )
    check_writable(name, out)


def _leaves_out(combine: str, dtype: Any, source: Layout, axes: tuple[int, ...]) -> bool:
    """Tell whether a block is empty for which no value could stand: it must contribute nothing."""
    if REDUCTIONS[combine].has_exact_identity(dtype.kind) or not source.size:
        return False
    parts = [source.partition(axis) for axis in axes]
    return any(part.length(i) == 0 for part in parts for i in range(part.count))


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
