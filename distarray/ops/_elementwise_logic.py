"""Comparisons, truth, bits, and tests of single items."""

from __future__ import annotations

import operator

import numpy as np

from distarray.core import (
    POINTWISE,
    anything,
    binary,
    boolean,
    equality,
    integer,
    joining,
    numeric,
    real,
    unary,
)

_UNLIKE = """

Items of dtypes that cannot be equal, as text and numbers, differ, as for the operators. NumPy's own
functions raise there; but ``array == x`` of a NumPy array and a DistArray calls `np.equal`, too."""
equal = equality("equal", np.equal, operator.eq, "Tell where items are equal." + _UNLIKE)
not_equal = equality("not_equal", np.not_equal, operator.ne, "Tell where items differ." + _UNLIKE)
less = binary("less", anything, POINTWISE, np.less, "Tell where x1 < x2.")
less_equal = binary("less_equal", anything, POINTWISE, np.less_equal, "Tell where x1 <= x2.")
greater = binary("greater", anything, POINTWISE, np.greater, "Tell where x1 > x2.")
greater_equal = binary(
    "greater_equal", anything, POINTWISE, np.greater_equal, "Tell where x1 >= x2."
)

logical_and = binary(
    "logical_and", boolean, joining("all"), np.logical_and, "Tell where both are true."
)
logical_or = binary(
    "logical_or", boolean, joining("any"), np.logical_or, "Tell where one or both are true."
)
logical_xor = binary(
    "logical_xor", boolean, POINTWISE, np.logical_xor, "Tell where exactly one is true."
)
logical_not = unary("logical_not", boolean, POINTWISE, np.logical_not, "Tell where x is false.")

bitwise_and = binary(
    "bitwise_and", integer, joining("band"), np.bitwise_and, "Return the bits that both have."
)
bitwise_or = binary(
    "bitwise_or", integer, joining("bor"), np.bitwise_or, "Return the bits that one or both have."
)
bitwise_xor = binary(
    "bitwise_xor", integer, POINTWISE, np.bitwise_xor, "Return the bits that exactly one has."
)
bitwise_invert = unary("bitwise_invert", integer, POINTWISE, np.invert, "Flip every bit.")
bitwise_left_shift = binary(
    "bitwise_left_shift", integer, POINTWISE, np.left_shift, "Shift bits to the left."
)
bitwise_right_shift = binary(
    "bitwise_right_shift", integer, POINTWISE, np.right_shift, "Shift bits to the right."
)
bitwise_count = unary("bitwise_count", integer, POINTWISE, np.bitwise_count, "Count bits set.")

isfinite = unary("isfinite", numeric, POINTWISE, np.isfinite, "Tell where x is a finite number.")
isinf = unary("isinf", numeric, POINTWISE, np.isinf, "Tell where x is infinite.")
isnan = unary("isnan", numeric, POINTWISE, np.isnan, "Tell where x is not a number.")
isnat = unary("isnat", "mM", POINTWISE, np.isnat, "Tell where x is not a time.")
isposinf = unary("isposinf", real, POINTWISE, np.isposinf, "Tell where x is +infinity.")
isneginf = unary("isneginf", real, POINTWISE, np.isneginf, "Tell where x is -infinity.")
isreal = unary("isreal", numeric, POINTWISE, np.isreal, "Tell where the imaginary part is 0.")
iscomplex = unary(
    "iscomplex", numeric, POINTWISE, np.iscomplex, "Tell where the imaginary part is not 0."
)

bitwise_not = invert = bitwise_invert
left_shift, right_shift = bitwise_left_shift, bitwise_right_shift
