"""Eigenvalues and singular values of large matrices, by spectral divide and conquer.

Of a hermitian matrix A and a number m, the unitary factor U of the polar decomposition of A - m has
the eigenvalue 1 where A has larger ones than m, and -1 elsewhere. So (U + 1) / 2 is a projection.
Columns that span what it leaves, and others orthogonal to them, divide A into two blocks with the
larger and the smaller eigenvalues, which are divided again until they are small. Singular values of
a matrix are eigenvalues of the hermitian factor of its polar decomposition (Nakatsukasa, Higham,
"Stable and efficient spectral divide and conquer algorithms for the symmetric eigenvalue
decomposition and the SVD", 2013).

All of it is factorizations in tiles and products of blocks. Decisions depend on numbers that are
the same on all processes.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from distarray.core import run
from distarray.layout import Replicate
from distarray.linalg import _tiles
from distarray.linalg._blocked_qr import blocked_qr, panel_width
from distarray.linalg._blocks import adjoint, multiply, on_grid
from distarray.linalg._elimination import tile_inv, tile_solve
from distarray.linalg._kernels import scales_of_tiny
from distarray.ops import (
    LinAlgError,
    abs,
    arange,
    astype,
    concat,
    diagonal,
    eye,
    max,
    sqrt,
    square,
    sum,
    trace,
    tril,
    triu,
)
from distarray.random import default_rng

WEIGHT: Final = 100.0
"""The largest weight of a step, of which rounding takes the root: by orthogonal columns there are
fewer steps, of larger weights, but then small rows below large ones must be as accurate as alone,
and triangles of several processes are not. With 1000 there would be 12 steps of 15 at most."""

Eigen = Callable[[Any], tuple[Any, Any]]


def polar_factor(x: Any) -> Any:
    """Return the unitary factor of the polar decomposition of a square matrix.

    By Halley's iteration with weights that bring all singular values to 1 (QDWH: Nakatsukasa, Bai,
    Gygi, "Optimizing Halley's iteration for computing the matrix polar decomposition", 2010), in
    the form that solves equations. In directions where they are smaller than the precision times
    the largest, the factor need not be unitary.
    """
    x = on_grid(x)
    x = x / (_size(x) or 1.0)
    for a, b, c in _weights(_bound_least(x)):
        gram = _shift(c * multiply(adjoint(x), x), 1.0)
        solution = run(tile_solve, (gram, on_grid(adjoint(x))), _tiles.tile_width(gram))
        del gram
        x = b / c * x + (a - b / c) * on_grid(adjoint(solution))
    return x


def _shift(x: Any, number: float) -> Any:
    """Return a square matrix and a multiple of the identity."""
    return x + number * eye(len(x), dtype=x.dtype, mesh=x.mesh, placements=x.placements)


def _bound_least(x: Any) -> float:
    """Return a bound of the singular values of a matrix from below, or the precision."""
    precision = float(np.finfo(x.dtype).eps)
    try:
        with np.errstate(all="ignore"):
            found = 0.5 / _size(run(tile_inv, (x,), _tiles.tile_width(x)))
    except (LinAlgError, ZeroDivisionError):  # singular, or no numbers at all
        return precision
    return found if found > precision else precision


def _weights(least: float) -> Iterator[tuple[float, float, float]]:
    """Yield the weights of the steps, for singular values from `least` to 1."""
    while 1 - least > 1e-15:
        d = (4 * (1 - least**2) / least**4) ** (1 / 3)
        root = math.sqrt(1 + d)
        a = root + math.sqrt(8 - 4 * d + 8 * (2 - least**2) / (least**2 * root)) / 2
        a = builtins.min(a, 2 * math.sqrt(1 + WEIGHT) - 1)  # so that c is the largest
        b = (a - 1) ** 2 / 4
        c = a + b - 1
        yield a, b, c
        least = builtins.min(least * (a + b * least**2) / (1 + c * least**2), 1.0)


def orthonormalize(x: Any) -> tuple[Any, Any]:
    """Return orthonormal columns and the triangle of a matrix with no fewer rows than columns."""
    q, r = run(blocked_qr, (x,), ("reduced", panel_width(x)))
    return on_grid(q), r


def eigen(x: Any, name: str, small: Eigen) -> tuple[np.ndarray, Any]:
    """Return the eigenvalues of a hermitian matrix, ascending, and its eigenvectors in columns.

    `small` does it for matrices that may be collected. Eigenvectors are cut along both axes.
    """
    x = on_grid(x)
    scale = _find_scale(x, name)
    x = x / scale
    values, vectors = _divide(x, _tolerance(x), name, small)
    # Where blocks meet, rounding may have exchanged values that are equal but for it.
    return np.sort(values) * values.dtype.type(scale), vectors


def _divide(x: Any, tolerance: float, name: str, small: Eigen) -> tuple[np.ndarray, Any]:
    if not _tiles.is_large(x, _tiles.COLLECTED_BYTES):
        values, vectors = small(x)
        return np.asarray(values), vectors
    found = np.asarray(diagonal(x)).real
    if 2**0.5 * _size(tril(x, -1)) <= tolerance:
        order = np.argsort(found, kind="stable")
        rows = arange(len(x), mesh=x.mesh, placements=[*x.placements[:1], Replicate()])
        return found[order], astype(rows[:, None] == order, x.dtype)
    q, block, count = _split(x, found, tolerance, name)
    upper = _divide(block[:count, :count], tolerance, name, small)
    lower = _divide(block[count:, count:], tolerance, name, small)
    vectors = [multiply(q[:, count:], lower[1]), multiply(q[:, :count], upper[1])]
    return np.concatenate([lower[0], upper[0]]), concat(vectors, axis=1)


def _split(x: Any, found: np.ndarray, tolerance: float, name: str) -> tuple[Any, Any, int]:
    """Return a unitary matrix, what it makes of a hermitian one, and the order of the first block.

    A number to divide at may lie in a cluster of eigenvalues. Then what is left of the other blocks
    tells, and the next number is tried.
    """
    size = len(x)
    draw = default_rng(0).standard_normal
    for number in _candidates(found, tolerance, _size(_shift(x, -found.mean()))):
        projection = _shift(polar_factor(_shift(x, -number)) / 2, 0.5)
        count = round(float(trace(projection).real))
        if not 0 < count < size:
            continue
        q = draw(x.shape, found.dtype, mesh=x.mesh, placements=x.placements)
        for _ in range(2):  # the second makes up for random columns that are nearly dependent
            q, _ = orthonormalize(multiply(projection, q))
        del projection
        block = multiply(adjoint(q), multiply(x, q))
        if _size(block[count:, :count]) <= tolerance:
            return q, on_grid(block + adjoint(block)) / 2, count
    raise LinAlgError(f"{name}: Eigenvalues did not converge")


def _candidates(found: np.ndarray, tolerance: float, distance: float) -> Iterator[Any]:
    """Yield numbers among the eigenvalues, given the diagonal and the distance from its mean.

    First the middle of the widest gap in the middle third of the diagonal, if there is one; then
    the mean, which lies strictly inside, and others within the deviation of the eigenvalues.
    """
    ordered = np.sort(found)
    third = len(found) // 3
    middle = ordered[third : len(found) - third]
    gaps = np.diff(middle)
    widest = int(np.argmax(gaps))
    if gaps[widest] > tolerance:
        yield (middle[widest] + middle[widest + 1]) / 2
    deviation = found.dtype.type(distance / len(found) ** 0.5)
    for part in (0, 0.5, -0.5, 0.2, -0.2):
        yield found.mean() + part * deviation


def singular(x: Any, name: str, small: Eigen) -> tuple[Any, np.ndarray, Any]:
    """Return the singular value decomposition of a square matrix, with factors cut on a grid."""
    x = on_grid(x)
    scale = _find_scale(x, name)
    x = x / scale
    _, vectors = eigen(-_hermitian_factor(x, name), name, small)
    q, r = orthonormalize(multiply(x, vectors))  # a diagonal matrix, but for rounding
    found = np.asarray(diagonal(r))
    sizes, directions = np.abs(found), found * scales_of_tiny(found)
    lengths = np.abs(directions)
    turns = np.where(lengths > 0, directions / np.where(lengths > 0, lengths, 1), 1)
    turns = turns.astype(found.dtype)
    return q * turns, np.sort(sizes)[::-1] * sizes.dtype.type(scale), on_grid(adjoint(vectors))


def singular_values(x: Any, name: str, small: Eigen) -> np.ndarray:
    """Return the singular values of a square matrix."""
    x = on_grid(x)
    scale = _find_scale(x, name)
    values, _ = eigen(-_hermitian_factor(x / scale, name), name, small)
    return np.sort(np.abs(values))[::-1] * values.dtype.type(scale)


def _hermitian_factor(x: Any, name: str) -> Any:
    """Return the hermitian factor of the polar decomposition of a square matrix."""
    unitary = polar_factor(x)
    found = multiply(adjoint(unitary), x)
    found = on_grid(found + adjoint(found)) / 2
    if _size(multiply(unitary, found) - x) > _tolerance(x):
        raise LinAlgError(f"{name}: the polar decomposition did not converge")
    return found


def hermitian(x: Any, uplo: str) -> Any:
    """Return the hermitian matrix of which one triangle is looked at."""
    below = tril(x if uplo == "L" else adjoint(x), -1)
    return below + adjoint(below) + tril(triu(x.real))


def _find_scale(x: Any, name: str) -> float:
    """Return the size of the largest item, or what is large enough to divide by."""
    largest = float(max(abs(x)))
    if not math.isfinite(largest):
        raise LinAlgError(f"{name} did not converge; NaN or infinities are among the items")
    return builtins.max(largest, float(np.finfo(x.dtype).tiny))


def _size(x: Any) -> float:
    """Return the root of the sum of squares."""
    return float(sqrt(sum(square(abs(x)))))


def _tolerance(x: Any) -> float:
    """Return the most that rounding may leave of what should be zero: 10 n times the precision."""
    return 10 * len(x) ** 0.5 * float(np.finfo(x.dtype).eps) * _size(x)
