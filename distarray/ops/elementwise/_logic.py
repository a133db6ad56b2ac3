"""Comparisons, truth, bits, and tests of single items."""

from __future__ import annotations

import operator

import numpy as np

from distarray.core import (
    POINTWISE,
    binary,
    equality,
    joining,
    real,
    unary,
)

_UNLIKE = """

Text and numbers, and structures, are for the operators ``==`` and ``!=``."""
equal, equal_or_unlike = equality(
    "equal", np.equal, operator.eq, "Tell where items are equal." + _UNLIKE
)
not_equal, not_equal_or_unlike = equality(
    "not_equal", np.not_equal, operator.ne, "Tell where items differ." + _UNLIKE
)
less = binary("less", POINTWISE, np.less, "Tell where x1 < x2.")
less_equal = binary("less_equal", POINTWISE, np.less_equal, "Tell where x1 <= x2.")
greater = binary("greater", POINTWISE, np.greater, "Tell where x1 > x2.")
greater_equal = binary("greater_equal", POINTWISE, np.greater_equal, "Tell where x1 >= x2.")

logical_and = binary("logical_and", joining("all"), np.logical_and, "Tell where both are true.")
logical_or = binary("logical_or", joining("any"), np.logical_or, "Tell where one or both are true.")
logical_xor = binary("logical_xor", POINTWISE, np.logical_xor, "Tell where exactly one is true.")
logical_not = unary("logical_not", POINTWISE, np.logical_not, "Tell where x is false.")

bitwise_and = binary(
    "bitwise_and", joining("band"), np.bitwise_and, "Return the bits that both have."
)
bitwise_or = binary(
    "bitwise_or", joining("bor"), np.bitwise_or, "Return the bits that one or both have."
)
bitwise_xor = binary(
    "bitwise_xor", POINTWISE, np.bitwise_xor, "Return the bits that exactly one has."
)
bitwise_invert = unary("bitwise_invert", POINTWISE, np.invert, "Flip every bit.")
bitwise_left_shift = binary(
    "bitwise_left_shift", POINTWISE, np.left_shift, "Shift bits to the left."
)
bitwise_right_shift = binary(
    "bitwise_right_shift", POINTWISE, np.right_shift, "Shift bits to the right."
)
bitwise_count = unary("bitwise_count", POINTWISE, np.bitwise_count, "Count bits set.")

isfinite = unary("isfinite", POINTWISE, np.isfinite, "Tell where x is a finite number.")
isinf = unary("isinf", POINTWISE, np.isinf, "Tell where x is infinite.")
isnan = unary("isnan", POINTWISE, np.isnan, "Tell where x is not a number.")
isnat = unary("isnat", POINTWISE, np.isnat, "Tell where x is not a time.")
isposinf = unary("isposinf", POINTWISE, np.isposinf, "Tell where x is +infinity.", kinds=real)
isneginf = unary("isneginf", POINTWISE, np.isneginf, "Tell where x is -infinity.", kinds=real)
isreal = unary("isreal", POINTWISE, np.isreal, "Tell where the imaginary part is 0.")
iscomplex = unary("iscomplex", POINTWISE, np.iscomplex, "Tell where the imaginary part is not 0.")

bitwise_not = invert = bitwise_invert
left_shift, right_shift = bitwise_left_shift, bitwise_right_shift
