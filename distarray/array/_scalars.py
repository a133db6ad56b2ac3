"""The value of an array of one item as Python's numbers."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from distarray.core import BaseArray, cache, remember, replicated_layout
from distarray.errors import ArgumentError, ArgumentTypeError, IndexingError, MeshError
from distarray.redistribute import redistributing

_bringing = cache()
"""What brings an item to all ranks, by layout and dtype."""


def value(x: BaseArray) -> Any:
    """Return the item of an array of size 1, on every rank of the mesh (collective)."""
    kept = getattr(x, "_reduced", None)
    if isinstance(kept, BaseArray):
        return value(kept)
    layout = x._layout
    if layout.is_replicated and layout.mesh.coordinate is not None:
        return x._local.item()
    key = layout, x._local.dtype
    bring = _bringing[key]
    if bring is None:
        if layout.mesh.coordinate is None:
            raise MeshError(
                f"this process is not in {layout.mesh} and does not know the value of an array "
                "there; ask only where mesh.coordinate is not None, or redistribute(mesh=...)"
            )
        whole = replicated_layout(layout.mesh, layout.shape)
        bring = redistributing(layout, whole, key[1])
        remember(_bringing, key, bring)
    return bring(x._local).item()


def _place(x: Any, flat: int) -> tuple[int, ...]:
    try:
        flat = operator.index(flat)
    except TypeError:
        raise ArgumentTypeError(
            f"item({flat!r}): takes one index per axis, or one into the flat array"
        ) from None
    if not -x.size <= flat < x.size:
        raise IndexingError(f"item({flat}) of an array of {x.size} items")
    return tuple(int(i) for i in np.unravel_index(flat % x.size, x.shape))


def _zero_dimensional(x: BaseArray, what: str) -> Any:
    if x._layout.shape:
        raise ArgumentTypeError(
            f"{what}(x) of an array of shape {x.shape}: only 0-d arrays are numbers; use x.item() "
            "or index it"
        )
    return value(x)


class Scalars(BaseArray):
    """Conversion to Python's numbers: the global value on every rank, collective over the mesh."""

    __slots__ = ()

    def item(self, *index: Any) -> Any:
        """Return an item as a Python number, on every rank of the mesh (collective).

        Parameters
        ----------
        *index : int
            Of an array of more than one item: one index per axis, or one into the flat array.

        Examples
        --------
        >>> import distarray as da
        >>> x = da.asarray([[1, 2], [3, 4]])
        >>> x.item(1, 0), x.item(3)
        (3, 4)
        """
        if index:
            key = index[0] if len(index) == 1 else index
            if not isinstance(key, tuple):
                key = _place(self, key)
            if len(key) != self.ndim:
                raise ArgumentError(
                    f"item{index} of an array with {self.ndim} axes; give one per axis"
                )
            this: Any = self
            return value(this[key])
        if self.size != 1:
            raise ArgumentError(
                f"item() of an array of shape {self.shape}: it must have one item; index it first"
            )
        return value(self)

    def __float__(self) -> float:
        return float(_zero_dimensional(self, "float"))

    def __int__(self) -> int:
        return int(_zero_dimensional(self, "int"))

    def __complex__(self) -> complex:
        return complex(_zero_dimensional(self, "complex"))

    def __index__(self) -> int:
        if self._local.dtype.kind not in "iu":
            raise ArgumentTypeError(
                f"an array of {self._local.dtype} is no index; only 0-d arrays of integers are"
            )
        return int(_zero_dimensional(self, "operator.index"))

    def __bool__(self) -> bool:
        if self._layout.size != 1:
            raise ArgumentError(
                f"the truth of an array of shape {self.shape} is ambiguous; use da.any(x) or "
                "da.all(x)"
            )
        return bool(value(self))

    def __round__(self, digits: int | None = None) -> Any:
        if self._layout.shape:
            raise ArgumentTypeError(
                f"round(x) of an array of shape {self.shape}: Python's round() is for 0-d arrays "
                "here; use x.round(decimals)"
            )
        return round(value(self), digits)

    def __format__(self, spec: str) -> str:
        if spec and not self._layout.shape:
            return format(value(self), spec)
        if spec:
            raise ArgumentTypeError(
                f"format {spec!r} of an array of shape {self.shape}: only 0-d arrays are formatted "
                "as numbers; print(x), or take items first"
            )
        return format(str(self), spec)
