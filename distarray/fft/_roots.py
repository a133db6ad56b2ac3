"""Roots of unity: accurate to the last bit but one, whatever their order.

Integers are reduced to an eighth of the circle before anything is rounded, so that sine and cosine
see no angle beyond pi/4.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def roots(exponents: Any, order: int, forward: bool, dtype: Any) -> np.ndarray:
    """Return exp(-2 pi i e / order) of integers e, with + for inverse transforms.

    Parameters
    ----------
    exponents : array of int
    order : int
        Below 2**60.
    forward : bool
    dtype : data type
        Complex; they are computed in float64, or in long double for its own.
    """
    real = np.longdouble if np.dtype(dtype).itemsize > 16 else np.float64
    octant, rest = np.divmod(8 * (np.asarray(exponents, np.int64) % order), order)
    rest = np.where(octant & 1, order - rest, rest)
    angle = (np.arctan(real(1)) / order) * rest.astype(real)
    cosine, sine = np.cos(angle), np.sin(angle)
    steep = ((octant + 1) & 2).astype(bool)
    found = np.empty(angle.shape, np.result_type(real, np.complex64))
    found.real = np.where(steep, sine, cosine)
    found.imag = np.where(steep, cosine, sine)
    np.negative(found.real, out=found.real, where=(octant >= 2) & (octant <= 5))
    np.negative(found.imag, out=found.imag, where=(octant >= 4) == (not forward))
    return found.astype(dtype, copy=False)


def squares(index: Any, modulus: int) -> np.ndarray:
    """Return i * i modulo `modulus`, exact for integers below 2**42 and moduli below 2**43."""
    high, low = np.divmod(np.asarray(index, np.int64), 1 << 20)
    found = high * high % modulus
    found = ((found << 20) % modulus + 2 * high * low % modulus) % modulus
    return ((found << 20) % modulus + low * low) % modulus
