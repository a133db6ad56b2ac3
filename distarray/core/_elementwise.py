"""The family of functions item by item: broadcasting, promotion, `out=`, `where=`, in place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import _on_device
from distarray.core._base import BaseArray
from distarray.core._cache import cache, remember
from distarray.core._dispatch import as_block, move_all
from distarray.core._dtypes import dtype_key, stand_in, stays_partial
from distarray.core._float_errors import strict, text_converts, told
from distarray.core._meshes import device_of
from distarray.core._operands import (
    LARGE,
    allocate,
    assign,
    broadcast_shape,
    lifted_layouts,
    local_blocks,
    normalised,
    reduced,
    spread,
)
from distarray.core._options import call_with, masked_call, ufunc_options
from distarray.core._read_only import check_writable
from distarray.core._resolution import Resolution, align, resolve
from distarray.core._spec import Rule, pointwise
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DistArrayError,
    DTypeError,
    OutOfRangeError,
    ShapeError,
)
from distarray.layout import Layout, Partial
from distarray.typing import Buffer, Shape

Key = list[Any]
"""Per operand: the layout, the shape of a plain array, or None for a number."""


REFUSALS = (TypeError, ValueError, OverflowError)
"""What NumPy's functions raise for dtypes and values that they do not take."""


class Elementwise:
    """A function of the items at the same place; the row is the public callable.

    Parameters
    ----------
    name : str
        The public name.
    local : callable
        The function of blocks, usually a NumPy ufunc.
    nin : int
        Number of operands.
    rules : tuple of Rule
        When a Partial input may stay so.
    kinds : str
        Kinds of dtype the function is meant for, for its documentation.
    check : callable, optional
        `check(operands)` refuses values that every rank knows, and that the function would refuse
        only where there are items; true if it may refuse values that only some ranks know.
    objects : bool
        Whether it takes plain operands of Python objects, too; it must make none.
    """

    __signature__: Any
    __qualname__: str

    def __init__(
        self,
        name: str,
        local: Callable[..., Any],
        nin: int,
        rules: tuple[Rule, ...] = (),
        kinds: str = "",
        check: Callable[[Sequence[Any]], bool] | None = None,
        objects: bool = False,
    ) -> None:
        self.name = self.__name__ = name
        self.local = local
        self.nin = nin
        self.nout: int = getattr(local, "nout", 1)
        self.kinds = kinds
        self.rules = rules
        self.check = check
        self.objects = objects
        self.is_ufunc = isinstance(local, np.ufunc)
        self.resolutions: dict[Any, Resolution] = cache()
        self.dtypes: dict[Any, tuple[Any, ...]] = cache()

    def __repr__(self) -> str:
        return f"<distarray function {self.name}>"

    def __reduce__(self) -> str:
        return self.__qualname__

    def __call__(self, *operands: Any, **options: Any) -> Any:
        """Apply the function; see the row's own documentation."""
        if len(operands) == self.nin and not options:
            return self.run(operands)
        return self.call(operands, options)

    # --- the general path ------------------------------------------------------------------------

    def call(self, operands: Sequence[Any], options: dict[str, Any]) -> Any:
        """Run with NumPy's keyword arguments `out`, `where`, `dtype`, `casting`.

        Raises
        ------
        ArgumentTypeError
            For a wrong number of operands, an unknown keyword, or an `out` that is not distributed.
        """
        if len(operands) > self.nin and "out" not in options:
            options = {**options, "out": tuple(operands[self.nin :])}
            operands = operands[: self.nin]
        if len(operands) != self.nin:
            raise ArgumentTypeError(
                f"{self.name}() takes {self.nin} operands, {len(operands)} were given"
            )
        out, where, extra = ufunc_options(self.name, self.nout, self.is_ufunc, options)
        local = self.local
        masked = where is not True
        if masked:
            operands = (*operands, where)
            local = masked_call(local, extra)
        elif extra:
            local = call_with(local, extra)
        if out is None:
            return self.run(operands, None if local is self.local else local)
        return self.into(out, operands, local, masked, extra.get("casting", "same_kind"))

    def run(
        self,
        operands: Sequence[Any],
        local: Callable[..., Any] | None = None,
    ) -> Any:
        """Return the function of operands of any kind: distributed, plain arrays, numbers.

        `local` replaces the row's function of blocks; Partial inputs are then reduced first.
        """
        operands = normalised(self.name, operands, self.objects)
        uncertain = self.check is not None and self.check(operands)
        first = next((x for x in operands if isinstance(x, BaseArray)), None)
        if first is None:
            try:
                return (self.local if local is None else local)(*operands)
            except REFUSALS as error:
                raise self.refused(error, operands) from error
        key: Key = []
        partial = False
        for x in operands:
            if isinstance(x, BaseArray):
                key.append(x._layout)
                partial = partial or x._layout.has_partial
            else:
                key.append(x.shape if getattr(x, "ndim", 0) else None)
        found_key: Any = tuple(key)
        rules: tuple[Rule, ...] = ()
        if partial and local is None:
            rules = self._holding_rules(operands)
            found_key = (rules, *key)
        found = self.resolutions.get(found_key)
        if found is None:
            found = self._resolve(key, rules)
            remember(self.resolutions, found_key, found)
        local = self.local if local is None else local
        return self._finish(first, operands, found, local, uncertain)

    def _holding_rules(self, operands: Sequence[Any]) -> tuple[Rule, ...]:
        """Return the Partial rules that are exact for these dtypes."""
        kept = []
        result = self.result_dtypes(operands, self.local)[0]
        for rule in self.rules:
            good = True
            for placement, x in zip(rule[1:], operands, strict=True):
                if type(placement) is Partial:
                    good &= isinstance(x, BaseArray) and stays_partial(
                        placement.op, x._local.dtype, result
                    )
            if good:
                kept.append(rule)
        return tuple(kept)

    def _resolve(self, key: Key, rules: tuple[Rule, ...]) -> Resolution:
        """Return the resolution for operands of these layouts, plain shapes and numbers (None)."""
        places = [i for i, part in enumerate(key) if part is not None]
        layouts = lifted_layouts(self.name, [key[i] for i in places])
        shapes = tuple(layout.shape for layout in layouts)
        kept = tuple((rule[0], *[rule[i + 1] for i in places]) for rule in rules)
        spec = pointwise(shapes, broadcast_shape(self.name, shapes), kept)
        resolution = resolve(spec, layouts)
        return spread(resolution, places, len(key))

    def _finish(
        self,
        first: BaseArray,
        operands: Sequence[Any],
        resolution: Resolution,
        local: Callable[..., Any],
        uncertain: bool,
    ) -> Any:
        blocks = local_blocks(self.name, first, operands)
        output = resolution.output
        if not resolution.still:
            dtypes = self.result_dtypes(blocks, local)  # finds dtype errors before any sending
            blocks = move_all(self.name, blocks, resolution.moves)
            if resolution.outside:
                device = device_of(first._layout)
                empty = [_memory.empty(output.local_shape(), dtype, device) for dtype in dtypes]
                return self._wrap(first, empty, output)
        if uncertain or strict():
            call = functools.partial(self._computed, first, blocks, output, local)
            return told(output.mesh, self.name, call)
        return self._computed(first, blocks, output, local)

    def _computed(
        self, first: BaseArray, blocks: Sequence[Any], output: Layout, local: Callable[..., Any]
    ) -> Any:
        """Return the function of blocks that fit together."""
        try:
            if _on_device.is_on_device(blocks):
                dtypes = self.result_dtypes(blocks, local)
                return self._wrap(first, _on_device.called(local, blocks, dtypes), output)
            if max(getattr(block, "nbytes", 0) for block in blocks) >= LARGE and self.is_ufunc:
                outs = self._outs(blocks, output.local_shape(), local)
                local(*blocks, out=outs)
                return self._wrap(first, outs, output)
            results = local(*blocks)
            if isinstance(results, np.character):  # cut to this text, and shorter than its dtype
                results = np.asarray(results, self.result_dtypes(blocks, local)[0])
        except REFUSALS as error:
            raise self.refused(error, blocks) from error
        return self._wrap(first, results if self.nout > 1 else (results,), output)

    def _outs(
        self, blocks: Sequence[Any], shape: Shape, local: Callable[..., Any]
    ) -> tuple[Buffer, ...]:
        """Return warm buffers for large results, in the memory order of the operands."""
        dtypes = self.result_dtypes(blocks, local)
        device = _backend.device_of(next(b for b in blocks if getattr(b, "nbytes", 0) >= LARGE))
        return tuple(allocate(shape, dtype, device, blocks) for dtype in dtypes)

    def _wrap(self, first: BaseArray, results: Sequence[Any], output: Layout) -> Any:
        arrays = tuple(first._new(as_block(result), output) for result in results)
        return arrays if self.nout > 1 else arrays[0]

    def result_dtypes(self, operands: Sequence[Any], local: Callable[..., Any]) -> tuple[Any, ...]:
        """Return the dtype of each result, as NumPy promotes.

        Raises
        ------
        DTypeError
            If the function does not take these dtypes.
        OutOfRangeError
            If a Python integer does not fit the dtype that it takes.
        """
        key: Any = tuple(dtype_key(x) for x in operands)
        kept = local is self.local and int not in key  # an integer's value matters, too
        if kept:
            known = self.dtypes.get(key)
            if known is not None:
                return known
        try:
            results = local(*[stand_in(x) for x in operands])
        except REFUSALS as error:
            raise self.refused(error, operands) from error
        dtypes = tuple(r.dtype for r in (results if self.nout > 1 else (results,)))
        if kept:
            remember(self.dtypes, key, dtypes)
        return dtypes

    def refused(self, error: Exception, operands: Sequence[Any]) -> DistArrayError:
        """Return the error for operands that the local function refused."""
        if isinstance(error, DistArrayError):
            return error
        kinds = ", ".join(str(getattr(x, "dtype", type(x).__name__)) for x in operands)
        if isinstance(error, OverflowError):
            return OutOfRangeError(
                f"{self.name} of {kinds}: {error}; Python numbers take the dtype of the array they "
                "meet, so convert that with astype, or pass an array"
            )
        if isinstance(error, (ValueError, RuntimeError)):
            return ArgumentError(f"{self.name} of {kinds}: {error}")
        if any(words in str(error) for words in _on_device.LACKING):
            return _on_device.lacking(f"{self.name} of {kinds}")
        return DTypeError(f"{self.name} of {kinds}: {error}; convert the operands with astype")

    # --- into an existing array ------------------------------------------------------------------

    def into(
        self,
        out: tuple[Any, ...],
        operands: Sequence[Any],
        local: Callable[..., Any] | None = None,
        masked: bool = False,
        casting: Any = "same_kind",
    ) -> Any:
        """Write the function into `out`, which keeps its layout and dtype, and return `out`.

        Raises
        ------
        ShapeError
            If the operands do not broadcast to the shape of `out`.
        DTypeError
            If the result cannot be cast to the dtype of `out`.
        """
        local = self.local if local is None else local
        operands = normalised(self.name, operands)
        uncertain = self.check is not None and self.check(operands)
        uncertain |= self._check_out(out, operands, local, casting)
        if len(out) > 1 or out[0]._layout.has_partial:
            if masked:
                return self._into_reduced(out, operands, local, casting)
            results = self.run(operands, None if local is self.local else local)
            for one, result in zip(out, results if len(out) > 1 else (results,), strict=True):
                assign(self.name, one, result, casting)
            return out if len(out) > 1 else out[0]
        key = [
            x._layout if isinstance(x, BaseArray) else getattr(x, "shape", ()) or None
            for x in operands
        ]
        found_key = ("into", out[0]._layout, *key)
        found = self.resolutions.get(found_key)
        if found is None:
            places = [i for i, part in enumerate(key) if part is not None]
            layouts = lifted_layouts(self.name, [out[0]._layout, *[key[i] for i in places]])
            spec = pointwise(tuple(layout.shape for layout in layouts), out[0].shape)
            found = spread(align(spec, layouts), [-1, *places], len(key))
            remember(self.resolutions, found_key, found)
        blocks = local_blocks(self.name, out[0], operands)
        if not found.still:
            blocks = move_all(self.name, blocks, found.moves)
        if not found.outside:
            if uncertain or strict():
                call = functools.partial(self._write, out[0]._local, blocks, local, casting)
                told(out[0]._layout.mesh, self.name, call)
            else:
                self._write(out[0]._local, blocks, local, casting)
        return out[0]

    def _write(
        self, target: Buffer, blocks: Sequence[Any], local: Callable[..., Any], casting: Any
    ) -> None:
        """Write the function of blocks that fit together into a block."""
        try:
            if _on_device.is_on_device(blocks):
                self._into_on_device(target, blocks, local, casting)
            else:
                local(*blocks, out=target, casting=casting)
        except (*REFUSALS, RuntimeError) as error:  # the last where text is too short for dates
            raise self.refused(error, blocks) from error

    def _into_on_device(
        self, target: Buffer, blocks: Sequence[Any], local: Callable[..., Any], casting: Any
    ) -> None:
        """Write the local call's values into a block on a GPU."""
        if getattr(local, "masks", False):
            local(*blocks, out=target, casting=casting)
            return
        (result,) = _on_device.called(local, blocks, self.result_dtypes(blocks, local))
        _backend.namespace_of(target).copyto(target, result, casting=casting)

    def _check_out(
        self, out: tuple[Any, ...], operands: Sequence[Any], local: Any, casting: Any
    ) -> bool:
        """Check shapes and dtypes; tell whether the result is text that may not convert."""
        for one in out:
            check_writable(self.name, one)
        shapes = [x.shape for x in operands if getattr(x, "ndim", 0)]
        of_text = False
        for one, dtype in zip(out, self.result_dtypes(operands, local), strict=True):
            of_text |= text_converts(dtype, one.dtype)
            if broadcast_shape(self.name, [one.shape, *shapes]) != one.shape:
                raise ShapeError(
                    f"{self.name} of shapes {shapes} does not fit into an array of shape "
                    f"{one.shape}; broadcast the target first, or drop out="
                )
            if not np.can_cast(dtype, one.dtype, casting):
                raise DTypeError(
                    f"{self.name} gives {dtype}, which casting={casting!r} does not put into an "
                    f"array of {one.dtype}; use a new array, or x.astype({str(dtype)!r}) first"
                )
        return of_text

    def _into_reduced(
        self, out: tuple[Any, ...], operands: Sequence[Any], local: Any, casting: Any
    ) -> Any:
        """Write under a mask into a Partial array: reduce it, write, split it again."""
        if len(out) > 1:
            raise ArgumentTypeError(
                f"{self.name}() takes where= with out= for one result only; compute the results "
                "and combine each with da.where"
            )
        whole = reduced(self.name, out[0])
        self.into((whole,), operands, local, True, casting)
        assign(self.name, out[0], whole)
        return out[0]
