"""Arithmetic item by item: sums, products, powers, signs, remainders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    ADDITIVE,
    LINEAR,
    MULTIPLICATIVE,
    POINTWISE,
    BaseArray,
    binary,
    joining,
    refusal_error,
    unary,
)
from distarray.errors import ArgumentError


def _natural(operands: Sequence[Any], static: Any) -> bool:
    """Refuse a negative exponent of integers that every rank knows, not only where items are.

    Returns
    -------
    bool
        Whether only some ranks may know of one.

    Raises
    ------
    ArgumentError, OutOfRangeError
        If NumPy refuses it.
    """
    base, exponent = operands[:2]
    if isinstance(exponent, BaseArray):
        kinds = {getattr(x, "dtype", np.dtype(type(x))).kind for x in (base, exponent)}
        return exponent.dtype.kind == "i" and kinds <= set("biu")
    if not getattr(base, "size", 1) * np.size(exponent):
        return False
    if np.dtype(getattr(exponent, "dtype", type(exponent))).kind != "i":
        return False
    lowest = exponent if isinstance(exponent, int) else np.min(exponent)
    if _backend.is_cupy(lowest):
        lowest = _backend.to_host(lowest)[()]
    if lowest >= 0:
        return False
    if any(static):  # `dtype=` may compute it, and `where=` may leave it out
        return True
    try:
        np.power(np.ones((1,), base.dtype) if hasattr(base, "dtype") else base, lowest)
    except ValueError as error:
        raise ArgumentError(
            f"pow of {getattr(base, 'dtype', base)} and exponent {lowest}: {error}; convert the "
            "base with astype, or use float_power"
        ) from error
    except OverflowError as error:  # of a number that the dtype of the base does not hold
        raise refusal_error("pow", error, operands) from error
    return False


add = binary("add", ADDITIVE, np.add, "Add two arrays.")
subtract = binary("subtract", ADDITIVE, np.subtract, "Subtract the second array.")
multiply = binary("multiply", MULTIPLICATIVE, np.multiply, "Multiply two arrays.")
divide = binary("divide", POINTWISE, np.divide, "Divide by the second array.")
floor_divide = binary(
    "floor_divide", POINTWISE, np.floor_divide, "Round quotients down to integers."
)
remainder = binary(
    "remainder", POINTWISE, np.remainder, "Return remainders with the divisor's sign."
)
fmod = binary("fmod", POINTWISE, np.fmod, "Return remainders with the dividend's sign.")
divmod = binary("divmod", POINTWISE, np.divmod, "Return floor quotients and remainders.")
pow = binary(
    "pow",
    POINTWISE,
    np.power,
    "Raise to the powers of the second array.",
    check=_natural,
)
float_power = binary(
    "float_power", POINTWISE, np.float_power, "Raise to powers in float64 or wider."
)
negative = unary("negative", LINEAR, np.negative, "Change the sign.")
positive = unary("positive", LINEAR, np.positive, "Return a copy of each item.")
abs = unary("abs", POINTWISE, np.absolute, "Return absolute values.")
fabs = unary("fabs", POINTWISE, np.fabs, "Return absolute values as floating point.")
sign = unary("sign", POINTWISE, np.sign, "Return -1, 0, 1, or z/|z| for complex z.")
signbit = unary("signbit", POINTWISE, np.signbit, "Tell where the sign bit is set.")
copysign = binary(
    "copysign", POINTWISE, np.copysign, "Return magnitudes with the second array's signs."
)
heaviside = binary(
    "heaviside", POINTWISE, np.heaviside, "Return 0 below zero, 1 above, x2 at zero."
)
square = unary("square", POINTWISE, np.square, "Return squares.")
sqrt = unary("sqrt", POINTWISE, np.sqrt, "Return square roots.")
cbrt = unary("cbrt", POINTWISE, np.cbrt, "Return cube roots.")
reciprocal = unary("reciprocal", POINTWISE, np.reciprocal, "Return 1/x.")
hypot = binary("hypot", POINTWISE, np.hypot, "Return sqrt(x1**2 + x2**2) without overflow.")
maximum = binary("maximum", joining("max"), np.maximum, "Return the larger items; NaN wins.")
minimum = binary("minimum", joining("min"), np.minimum, "Return the smaller items; NaN wins.")
fmax = binary("fmax", POINTWISE, np.fmax, "Return the larger items; NaN loses.")
fmin = binary("fmin", POINTWISE, np.fmin, "Return the smaller items; NaN loses.")
gcd = binary("gcd", POINTWISE, np.gcd, "Return greatest common divisors.")
lcm = binary("lcm", POINTWISE, np.lcm, "Return lowest common multiples.")
nextafter = binary(
    "nextafter", POINTWISE, np.nextafter, "Return the next number towards the second array."
)
spacing = unary("spacing", POINTWISE, np.spacing, "Return the distance to the next number.")
ldexp = binary("ldexp", POINTWISE, np.ldexp, "Return x1 * 2**x2.")
frexp = unary("frexp", POINTWISE, np.frexp, "Split into mantissas and exponents of two.")
modf = unary("modf", POINTWISE, np.modf, "Split into fractions and whole parts.")

true_divide = divide
mod = remainder
power = pow
absolute = abs
