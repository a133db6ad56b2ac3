"""Exponential of a matrix: a rational approximation of a part of it, and squarings.

Al-Mohy, Higham, "A new scaling and squaring algorithm for the matrix exponential" (2009), algorithm
6.1. How small the part must be is what norms of powers tell: those of the fourth and the sixth,
which are there anyway, bound those of higher ones, which the paper estimates. It is written in
sums, products and one solution, for a block of one process or a distributed matrix.
"""

from __future__ import annotations

from math import ceil, comb, factorial, inf, log2
from typing import Any, Final

import numpy as np

from distarray.core import register, run
from distarray.linalg._blocks import cut_as, on_grid
from distarray.linalg._factorizations import to_inexact
from distarray.linalg._tiles import takes_tiles
from distarray.ops import Axes, eye, whole_axes

_LIMITS: Final = {
    3: 1.495585217958292e-2,
    5: 2.539398330063230e-1,
    7: 9.504178996162932e-1,
    9: 2.097847961257068,
    13: 4.25,
}
"""Of each degree the largest norm at which the approximation has the precision of float64; the last
is smaller than it could be, so that its denominator is well conditioned (the paper's section 5)."""


def _expm(a: Any, one: Any) -> Any:
    """Return the exponential of a matrix, given the identity; either may be distributed."""
    norm = _norm(a)
    if norm == 0:
        return one
    powers, norms, bound = {0: one, 2: a @ a}, {}, inf
    for degree, limit in _LIMITS.items():
        if degree in (5, 7):
            powers[degree - 1] = powers[degree - 3] @ powers[2]
        if degree < 9:
            norms[degree - 1] = _norm(powers[degree - 1])
            fourth = norms.get(4, norms[2] ** 2)
            bound = max(fourth ** (1 / 4), norms.get(6, fourth * norms[2]) ** (1 / 6))
        if degree < 13 and bound <= limit and _count_halvings(a, degree, norm) <= 0:
            if degree == 9:
                powers[8] = powers[4] @ powers[4]
            return _approximate(a, powers, degree)
    if not bound < inf:  # nor is the exponential
        return a * np.nan
    halvings = ceil(max(log2(max(bound, 1) / limit), 0))
    halvings = max(halvings, ceil(_count_halvings(a, degree, norm)))
    powers = {k: power * 2.0 ** (-k * halvings) for k, power in powers.items()}
    found = _approximate(a * 2.0**-halvings, powers, degree)
    for _ in range(halvings):
        found = found @ found
    return found


def _norm(a: Any) -> np.float64:
    """Return the largest sum of absolute values in a column."""
    return np.float64(float(np.max(np.sum(np.abs(a), axis=0))))  # powers of it may be infinite


def _count_halvings(a: Any, degree: int, norm: float) -> float:
    """Return how often to halve a matrix until a degree is enough for it; none if not positive.

    It is the paper's function l, not rounded: a bound of what the approximation leaves out, by the
    norm of a power of the absolute values, which products with a row give.
    """
    sizes, row, size = np.abs(a), np.ones(len(a)), 0.0
    for _ in range(2 * degree + 1):
        row = row @ sizes
        largest = float(np.max(row))
        if largest == 0:
            return 0.0
        row, size = row / largest, size + log2(largest)
    coefficient = comb(2 * degree, degree) * factorial(2 * degree + 1)
    return (size - log2(coefficient) - log2(norm) + 53) / (2 * degree)


def _approximate(a: Any, powers: dict[int, Any], degree: int) -> Any:
    """Return the approximation of Pade with numerator and denominator of a degree."""
    c = [
        float(factorial(2 * degree - k) // (factorial(degree - k) * factorial(k)))
        for k in range(degree + 1)
    ]
    odd, even = (
        sum(c[k + shift] * power for k, power in powers.items() if k + shift <= degree)
        for shift in (1, 0)
    )
    if degree == 13:
        high = [
            sum(c[k + 6 + shift] * power for k, power in powers.items() if 2 <= k <= 6)
            for shift in (1, 0)
        ]
        odd, even = odd + powers[6] @ high[0], even + powers[6] @ high[1]
    odd = a @ odd
    return np.linalg.solve(even - odd, even + odd)


def _expm_whole(blocks: np.ndarray) -> np.ndarray:
    """Return the exponentials of batches of matrices in one process."""
    *batch, rows, columns = blocks.shape
    dtype = np.linalg.inv(np.empty((0, rows, columns), blocks.dtype)).dtype
    found = np.empty(blocks.shape, dtype)
    with np.errstate(all="ignore"):  # as in LAPACK
        for at in np.ndindex(*batch) if rows else ():
            found[at] = _expm(blocks[at].astype(dtype, copy=False), np.eye(rows, dtype=dtype))
    return found


_whole = whole_axes("expm", _expm_whole, fails=True)


def expm(x: Any, /) -> Any:
    """Return the exponentials of square matrices: sums of all powers, divided by factorials.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, m).

    Returns
    -------
    DistArray
        Of the shape of `x`, cut as `x` is, or along a batch axis where that had to be. NaN where
        items of a matrix are not finite, or so large that powers of it are not.

    Raises
    ------
    LinAlgError
        If a matrix is not square; on all processes.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB.

    Notes
    -----
    Distribution: as for `inv`, by scaling and squaring (Al-Mohy, Higham 2009). A single matrix of
    more than 8 MiB that is cut stays so: four to six products of blocks on a grid of all processes,
    one more for each squaring, and one `solve`. On p processes each receives about 2 n^2 / sqrt(p)
    items in each of them. Peak memory: twelve blocks.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.expm(da.zeros((2, 2))))
    [[1. 0.]
     [0. 1.]]
    """
    if not takes_tiles(x):
        return run(_whole, (x,), Axes("ij->ij"))
    a = on_grid(to_inexact("expm", x))
    with np.errstate(all="ignore"):
        found = _expm(a, eye(len(a), dtype=a.dtype, mesh=a.mesh, placements=a.placements))
    return cut_as(found, x)


register(expm, room="linalg")
