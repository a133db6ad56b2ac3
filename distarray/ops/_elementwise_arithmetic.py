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
    floating,
    integer,
    joining,
    numeric,
    real,
    unary,
)
from distarray.errors import ArgumentError


def _natural(operands: Sequence[Any]) -> bool:
    """Refuse a negative exponent of integers that every rank knows, not only where items are.

    Returns
    -------
    bool
        Whether only some ranks may know of one.

    Raises
    ------
    ArgumentError
        If NumPy refuses it.
    """
    base, exponent = operands[:2]
    if isinstance(exponent, BaseArray):
        kinds = {getattr(x, "dtype", np.dtype(type(x))).kind for x in (base, exponent)}
        return exponent.dtype.kind == "i" and kinds <= set("biu")
    if not getattr(base, "size", 1) * np.size(exponent):
        return False
    lowest = exponent if isinstance(exponent, int) else np.min(exponent)
    if _backend.is_cupy(lowest):
        lowest = _backend.to_host(lowest)[()]
    if np.asarray(lowest).dtype.kind != "i" or lowest >= 0:
        return False
    try:
        np.power(np.ones((1,), base.dtype) if hasattr(base, "dtype") else base, lowest)
    except ValueError as error:
        raise ArgumentError(
            f"pow of {getattr(base, 'dtype', base)} and exponent {lowest}: {error}; convert the "
            "base with astype, or use float_power"
        ) from error
    return False


add = binary("add", numeric, ADDITIVE, np.add, "Add two arrays.")
subtract = binary("subtract", numeric, ADDITIVE, np.subtract, "Subtract the second array.")
multiply = binary("multiply", numeric, MULTIPLICATIVE, np.multiply, "Multiply two arrays.")
divide = binary("divide", floating, POINTWISE, np.divide, "Divide by the second array.")
floor_divide = binary(
    "floor_divide", real, POINTWISE, np.floor_divide, "Round quotients down to integers."
)
remainder = binary(
    "remainder", real, POINTWISE, np.remainder, "Return remainders with the divisor's sign."
)
fmod = binary("fmod", real, POINTWISE, np.fmod, "Return remainders with the dividend's sign.")
divmod = binary("divmod", real, POINTWISE, np.divmod, "Return floor quotients and remainders.")
pow = binary(
    "pow",
    numeric,
    POINTWISE,
    np.power,
    "Raise to the powers of the second array.",
    check=_natural,
)
float_power = binary(
    "float_power", floating, POINTWISE, np.float_power, "Raise to powers in float64 or wider."
)
negative = unary("negative", numeric, LINEAR, np.negative, "Change the sign.")
positive = unary("positive", numeric, LINEAR, np.positive, "Return a copy of each item.")
abs = unary("abs", numeric, POINTWISE, np.absolute, "Return absolute values.")
fabs = unary("fabs", real, POINTWISE, np.fabs, "Return absolute values as floating point.")
sign = unary("sign", numeric, POINTWISE, np.sign, "Return -1, 0, 1, or z/|z| for complex z.")
signbit = unary("signbit", real, POINTWISE, np.signbit, "Tell where the sign bit is set.")
copysign = binary(
    "copysign", real, POINTWISE, np.copysign, "Return magnitudes with the second array's signs."
)
heaviside = binary(
    "heaviside", real, POINTWISE, np.heaviside, "Return 0 below zero, 1 above, x2 at zero."
)
square = unary("square", numeric, POINTWISE, np.square, "Return squares.")
sqrt = unary("sqrt", floating, POINTWISE, np.sqrt, "Return square roots.")
cbrt = unary("cbrt", real, POINTWISE, np.cbrt, "Return cube roots.")
reciprocal = unary("reciprocal", floating, POINTWISE, np.reciprocal, "Return 1/x.")
hypot = binary("hypot", real, POINTWISE, np.hypot, "Return sqrt(x1**2 + x2**2) without overflow.")
maximum = binary(
    "maximum", numeric, joining("max"), np.maximum, "Return the larger items; NaN wins."
)
minimum = binary(
    "minimum", numeric, joining("min"), np.minimum, "Return the smaller items; NaN wins."
)
fmax = binary("fmax", numeric, POINTWISE, np.fmax, "Return the larger items; NaN loses.")
fmin = binary("fmin", numeric, POINTWISE, np.fmin, "Return the smaller items; NaN loses.")
gcd = binary("gcd", integer, POINTWISE, np.gcd, "Return greatest common divisors.")
lcm = binary("lcm", integer, POINTWISE, np.lcm, "Return lowest common multiples.")
nextafter = binary(
    "nextafter", real, POINTWISE, np.nextafter, "Return the next number towards the second array."
)
spacing = unary("spacing", real, POINTWISE, np.spacing, "Return the distance to the next number.")
ldexp = binary("ldexp", real, POINTWISE, np.ldexp, "Return x1 * 2**x2.")
frexp = unary("frexp", real, POINTWISE, np.frexp, "Split into mantissas and exponents of two.")
modf = unary("modf", real, POINTWISE, np.modf, "Split into fractions and whole parts.")

true_divide = divide
mod = remainder
power = pow
absolute = abs
