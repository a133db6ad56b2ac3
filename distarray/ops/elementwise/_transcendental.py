"""Exponentials, logarithms, trigonometric and hyperbolic functions item by item."""

from __future__ import annotations

from typing import Any

import numpy as np

from distarray.core import POINTWISE, binary, floating, in_pieces, real, unary

_FLOAT = np.dtype(np.float64)

exp = unary("exp", POINTWISE, np.exp, "Return e**x.")
exp2 = unary("exp2", POINTWISE, np.exp2, "Return 2**x.")
expm1 = unary("expm1", POINTWISE, np.expm1, "Return e**x - 1, accurate near 0.")
log = unary("log", POINTWISE, np.log, "Return natural logarithms.")
log1p = unary("log1p", POINTWISE, np.log1p, "Return log(1 + x), accurate near 0.")
log2 = unary("log2", POINTWISE, np.log2, "Return logarithms to base 2.")
log10 = unary("log10", POINTWISE, np.log10, "Return logarithms to base 10.")
logaddexp = binary(
    "logaddexp", POINTWISE, np.logaddexp, "Return log(e**x1 + e**x2) without overflow."
)
logaddexp2 = binary(
    "logaddexp2", POINTWISE, np.logaddexp2, "Return log2(2**x1 + 2**x2) without overflow."
)

sin = unary("sin", POINTWISE, np.sin, "Return sines of angles in radians.")
cos = unary("cos", POINTWISE, np.cos, "Return cosines of angles in radians.")
tan = unary("tan", POINTWISE, np.tan, "Return tangents of angles in radians.")
asin = unary("asin", POINTWISE, np.arcsin, "Return inverse sines in radians.")
acos = unary("acos", POINTWISE, np.arccos, "Return inverse cosines in radians.")
atan = unary("atan", POINTWISE, np.arctan, "Return inverse tangents in radians.")
atan2 = binary("atan2", POINTWISE, np.arctan2, "Return the angles of points (x2, x1).")
sinh = unary("sinh", POINTWISE, np.sinh, "Return hyperbolic sines.")
cosh = unary("cosh", POINTWISE, np.cosh, "Return hyperbolic cosines.")
tanh = unary("tanh", POINTWISE, np.tanh, "Return hyperbolic tangents.")
asinh = unary("asinh", POINTWISE, np.arcsinh, "Return inverse hyperbolic sines.")
acosh = unary("acosh", POINTWISE, np.arccosh, "Return inverse hyperbolic cosines.")
atanh = unary("atanh", POINTWISE, np.arctanh, "Return inverse hyperbolic tangents.")
deg2rad = unary("deg2rad", POINTWISE, np.deg2rad, "Convert degrees to radians.")
rad2deg = unary("rad2deg", POINTWISE, np.rad2deg, "Convert radians to degrees.")
radians = unary("radians", POINTWISE, np.radians, "Convert degrees to radians.")
degrees = unary("degrees", POINTWISE, np.degrees, "Convert radians to degrees.")
sinc = unary(
    "sinc", POINTWISE, in_pieces(np.sinc), "Return sin(pi x) / (pi x), 1 at 0.", kinds=floating
)


def _i0(block: Any) -> Any:
    if getattr(block, "dtype", _FLOAT).kind in "SUV":
        raise TypeError("text is no number")  # NumPy converts it, if an item allows that
    return np.i0(block)


i0 = unary(
    "i0",
    POINTWISE,
    in_pieces(_i0),
    "Return the modified Bessel function of order 0.",
    kinds=real,
)

arcsin, arccos, arctan, arctan2 = asin, acos, atan, atan2
arcsinh, arccosh, arctanh = asinh, acosh, atanh
