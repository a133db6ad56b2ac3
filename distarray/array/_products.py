"""The operator `@`, reflected and in place, and NumPy's method `dot`."""

from __future__ import annotations

from typing import Any

import numpy as np

from distarray.array._operators import _known
from distarray.core._base import BaseArray
from distarray.core._read_only import in_place
from distarray.errors import DTypeError, ReadOnlyError
from distarray.ops._contraction import dot, matmul
from distarray.ops._items import setitem


class Products(BaseArray):
    """Matrix products of distributed arrays."""

    __slots__ = ()

    def __matmul__(self, other: Any) -> Any:
        """Return the matrix product; see `distarray.matmul`."""
        if other.__class__ is self.__class__ or _known(other):
            return matmul(self, other)
        return NotImplemented

    def __rmatmul__(self, other: Any) -> Any:
        """Return the matrix product of another operand with this one."""
        return matmul(other, self) if _known(other) else NotImplemented

    def __imatmul__(self, other: Any) -> Any:
        """Write the matrix product into this array, which keeps its layout and dtype."""
        if not _known(other):
            return NotImplemented
        result = matmul(self, other)
        if not np.can_cast(result.dtype, self.dtype, "same_kind"):
            raise DTypeError(
                f"x @= y gives {result.dtype}, which does not go into an array of {self.dtype}; "
                "write x = x @ y"
            )
        try:
            setitem(self, (...,), result)
        except ReadOnlyError as error:
            return in_place(type(self).__imatmul__, matmul, self, other, error)
        return self

    def dot(self, other: Any) -> Any:
        """Return NumPy's dot product; see `distarray.dot`."""
        return dot(self, other)
