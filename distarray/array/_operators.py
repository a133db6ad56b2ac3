"""Python's operators on distributed arrays: each is a row of `ops` by its shortest way."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

import distarray.ops as ops
from distarray.comm import _backend
from distarray.core import BaseArray, Op, in_place, inplace_path, run_into, run_row
from distarray.errors import DTypeError, ReadOnlyError, ShapeError

_PLAIN_NUMBERS = frozenset((bool, int, float, complex))
_TAKEN = (BaseArray, bool, int, float, complex, str, bytes, np.generic)


def _takes(value: Any) -> bool:
    """Tell whether an operator may take `value`; another class may know better what to do."""
    if isinstance(value, _TAKEN) or _backend.is_buffer(value):
        return True
    if getattr(value, "__array_ufunc__", ...) is None:
        return False
    return isinstance(value, (list, tuple)) or hasattr(value, "__array__")


def _binary(row: Op) -> Callable[[Any, Any], Any]:
    quick: Any = row.quick

    def method(self: Any, other: Any) -> Any:
        cls = other.__class__
        if cls is self.__class__ or cls in _PLAIN_NUMBERS or _takes(other):
            return quick(self, other)
        return NotImplemented

    return _document(method, row)


def _equality(row: Op) -> Callable[[Any, Any], Any]:
    """Return an operator that compares with whatever does not ask to answer itself."""
    quick: Any = row.quick

    def method(self: Any, other: Any) -> Any:
        cls = other.__class__
        if (
            cls is self.__class__
            or cls in _PLAIN_NUMBERS
            or getattr(other, "__array_ufunc__", ...) is not None
        ):
            return quick(self, other)
        return NotImplemented

    return _document(method, row)


def _reflect(row: Op) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return run_row(row, (other, self)) if _takes(other) else NotImplemented

    return _document(method, row)


def _inplace(row: Op) -> Callable[[Any, Any], Any]:
    inplace = inplace_path(row)

    def method(self: Any, other: Any) -> Any:
        if not _takes(other):
            return NotImplemented
        try:
            return inplace(self, other)
        except ReadOnlyError as error:
            return in_place(inplace, row, self, other, error)

    return _document(method, row)


def _unary(row: Op) -> Callable[[Any], Any]:
    quick: Any = row.quick

    def method(self: Any) -> Any:
        return quick(self)

    return _document(method, row)


def _document(method: Any, row: Any) -> Any:
    method.__doc__ = (row.__doc__ or "").partition("\n")[0]
    return method


_power_of_any = _binary(ops.pow)
_power_of_any_in_place = _inplace(ops.pow)


def _shortcut(x: Any, exponent: Any) -> Op | None:
    """Return the row that NumPy's own operator calls for a few exponents, to the same bits."""
    kind = x.dtype.kind
    if exponent == 2 and (kind in "fc" or (kind in "biu" and exponent.__class__ is int)):
        return ops.square
    if exponent == 0.5 and kind in "fc":
        return ops.sqrt
    if exponent == -1 and kind in "fc":
        return ops.reciprocal
    return None


def _power(self: Any, other: Any) -> Any:
    """Raise to the powers of the other operand."""
    row = _shortcut(self, other) if other.__class__ in (int, float) else None
    return _power_of_any(self, other) if row is None else row(self)


def _power_in_place(self: Any, other: Any) -> Any:
    """Raise to the powers of the other operand."""
    row = _shortcut(self, other) if other.__class__ in (int, float) else None
    if row is None:
        return _power_of_any_in_place(self, other)
    try:
        return run_into(row, (self,), (self,))
    except ReadOnlyError as error:
        return in_place(lambda x, _: run_into(row, (x,), (x,)), operator.pow, self, other, error)


class Operators(BaseArray):
    """Arithmetic, comparison, bit and matrix operators, reflected and in place."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # equality is item by item, as in NumPy

    __add__ = _binary(ops.add)
    __radd__ = _reflect(ops.add)
    __iadd__ = _inplace(ops.add)
    __sub__ = _binary(ops.subtract)
    __rsub__ = _reflect(ops.subtract)
    __isub__ = _inplace(ops.subtract)
    __mul__ = _binary(ops.multiply)
    __rmul__ = _reflect(ops.multiply)
    __imul__ = _inplace(ops.multiply)
    __truediv__ = _binary(ops.divide)
    __rtruediv__ = _reflect(ops.divide)
    __itruediv__ = _inplace(ops.divide)
    __floordiv__ = _binary(ops.floor_divide)
    __rfloordiv__ = _reflect(ops.floor_divide)
    __ifloordiv__ = _inplace(ops.floor_divide)
    __mod__ = _binary(ops.remainder)
    __rmod__ = _reflect(ops.remainder)
    __imod__ = _inplace(ops.remainder)
    __divmod__ = _binary(ops.divmod)
    __rdivmod__ = _reflect(ops.divmod)
    __pow__ = _power
    __rpow__ = _reflect(ops.pow)
    __ipow__ = _power_in_place

    __and__ = _binary(ops.bitwise_and)
    __rand__ = _reflect(ops.bitwise_and)
    __iand__ = _inplace(ops.bitwise_and)
    __or__ = _binary(ops.bitwise_or)
    __ror__ = _reflect(ops.bitwise_or)
    __ior__ = _inplace(ops.bitwise_or)
    __xor__ = _binary(ops.bitwise_xor)
    __rxor__ = _reflect(ops.bitwise_xor)
    __ixor__ = _inplace(ops.bitwise_xor)
    __lshift__ = _binary(ops.bitwise_left_shift)
    __rlshift__ = _reflect(ops.bitwise_left_shift)
    __ilshift__ = _inplace(ops.bitwise_left_shift)
    __rshift__ = _binary(ops.bitwise_right_shift)
    __rrshift__ = _reflect(ops.bitwise_right_shift)
    __irshift__ = _inplace(ops.bitwise_right_shift)

    __lt__ = _binary(ops.less)
    __le__ = _binary(ops.less_equal)
    __gt__ = _binary(ops.greater)
    __ge__ = _binary(ops.greater_equal)
    __eq__ = _equality(ops.equal_or_unlike)
    __ne__ = _equality(ops.not_equal_or_unlike)

    __neg__ = _unary(ops.negative)
    __pos__ = _unary(ops.positive)
    __abs__ = _unary(ops.abs)
    __invert__ = _unary(ops.bitwise_invert)

    def __matmul__(self, other: Any) -> Any:
        """Return the matrix product; see `distarray.matmul`."""
        if other.__class__ is self.__class__ or _takes(other):
            return ops.matmul(self, other)
        return NotImplemented

    def __rmatmul__(self, other: Any) -> Any:
        """Return the matrix product of another operand with this one."""
        return ops.matmul(other, self) if _takes(other) else NotImplemented

    def __imatmul__(self, other: Any) -> Any:
        """Write the matrix product into this array, which keeps its layout and dtype."""
        if not _takes(other):
            return NotImplemented
        result = ops.matmul(self, other)
        if not np.can_cast(result.dtype, self.dtype, "same_kind"):
            raise DTypeError(
                f"x @= y gives {result.dtype}, which does not go into an array of {self.dtype}; "
                "write x = x @ y"
            )
        if result.shape != self.shape:
            raise ShapeError(
                f"x @= y gives shape {result.shape}, and x has {self.shape}; write x = x @ y"
            )
        try:
            ops.setitem(self, (...,), result)
        except ReadOnlyError as error:
            return in_place(type(self).__imatmul__, ops.matmul, self, other, error)
        return self
