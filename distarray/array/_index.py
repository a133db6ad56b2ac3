"""Indexing of distributed arrays: `x[key]`, `x[key] = value`, `len`, iteration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from distarray.core._base import BaseArray
from distarray.errors import ArgumentTypeError
from distarray.ops._items import getitem, rows, setitem

__all__ = ["Indexing", "getitem", "setitem"]


class Indexing(BaseArray):
    """Reading and writing items with integers, slices, `...` and None."""

    __slots__ = ()

    __getitem__ = getitem
    __setitem__ = setitem

    def __len__(self) -> int:
        """Return the length of the first axis."""
        shape = self._layout.shape
        if not shape:
            raise ArgumentTypeError("a 0-d array has no length; its value is x.item() or x[()]")
        return shape[0]

    def __iter__(self) -> Iterator[Any]:
        """Yield `x[0]`, `x[1]`, ...: views, or read-only copies where axis 0 is cut."""
        if not self._layout.shape:
            raise ArgumentTypeError("a 0-d array cannot be iterated over; its value is x.item()")
        return rows(self, range(self._layout.shape[0]))
