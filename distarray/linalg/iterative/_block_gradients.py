"""Eigenvalues by preconditioned conjugate gradients of a block of vectors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

import numpy as np

from distarray.core import (
    BaseArray,
    check_distributed,
    check_flag,
    new_array,
    replicated_layout,
    warn,
)
from distarray.errors import ShapeError
from distarray.layout import Shard
from distarray.linalg.iterative._basis import Basis
from distarray.linalg.iterative._operators import (
    Map,
    Operator,
    Unit,
    read_count,
    read_operator,
    read_tolerance,
    refuse,
    vector_dtype,
)
from distarray.linalg.iterative._vectors import (
    ORDINARY_VECTOR,
    Space,
    exponent_of,
    is_finite,
    size_of,
    times_power,
)
from distarray.ops import LinAlgError, stack
from distarray.typing import Buffer

_INDEPENDENT: Final = 0.5
"""The power of the precision above which eigenvalues of products of unit vectors are kept: rounding
leaves half of the digits of what lies along the others, which the next step finds again."""


def lobpcg(
    A: Any,
    X: Any,
    B: Any = None,
    M: Any = None,
    Y: Any = None,
    tol: float | None = None,
    maxiter: int | None = None,
    largest: bool = True,
) -> tuple[Any, Any]:
    """Find the largest or smallest eigenvalues of `A @ x = w * B @ x` (collective).

    Parameters
    ----------
    A : DistArray, callable or object
        A hermitian operator: a distributed matrix; a function that takes a distributed array like
        `X`, perhaps of fewer columns, and returns what A makes of each; or an object with such a
        `matmat`, or a `matvec` of one column, and a `shape`.
    X : DistArray
        Where to begin: its last axis counts k independent vectors, of any number of axes. Random
        numbers do.
    B : like A, optional
        Hermitian positive definite; default: the identity.
    M : like A, optional
        An approximation of the inverse of A, hermitian and positive definite.
    Y : None
        SciPy's, of vectors to stay orthogonal to; not taken.
    tol : float, optional
        It ends when `norm(A @ x - w * B @ x) <= tol` for each x. Default, as for 0: the number of
        items of a vector, times the root of the precision.
    maxiter : int, optional
        Most iterations; default: 20.
    largest : bool
        Whether the largest eigenvalues are wanted.

    Returns
    -------
    w : DistArray
        The k eigenvalues, descending, or ascending where the smallest are wanted; every process has
        them.
    v : DistArray
        Of the shape of `X`: eigenvectors `v[..., i]`, orthonormal with respect to B.

    Warns
    -----
    UserWarning
        If `maxiter` iterations are not enough.

    Raises
    ------
    LinAlgError
        If columns of `X` depend on each other, B is not definite, or numbers are not finite; on all
        processes.
    ArgumentError
        If `Y` is passed, or `tol` or `maxiter` is impossible.
    ArgumentTypeError, ShapeError, DTypeError
        As for `cg`.

    Notes
    -----
    The method of Knyazev, "Toward the optimal preconditioned eigensolver: locally optimal block
    preconditioned conjugate gradient method" (2001), whose directions are made orthonormal in small
    matrices (Hetmaniuk, Lehoucq, "Basis selection in LOBPCG", 2006; Stathopoulos, Wu, "A block
    orthogonalization procedure with constant synchronization requirements", 2002). Columns that are
    there take part, and are applied no more. `eigsh` needs fewer applications where there is no
    good M.

    Distribution: vectors have the layout of `X`, of which another axis is cut where that is the
    last one. Besides what A, B and M send an iteration makes three reductions, of k, up to 2 k^2
    and up to 18 k^2 numbers, and one broadcast, of small eigenproblems that one process solves. A,
    B and M are applied once in each to up to k columns together; A and B once more at the end. Peak
    memory: 6 k vectors, or 9 k with B, 2 k more, and what the operators need.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.random.default_rng(0).normal(size=(30, 2))
    >>> w, v = da.linalg.lobpcg(da.diag(da.arange(1.0, 31.0)), x, tol=1e-6, maxiter=100)
    >>> print(w.round(6), v.shape)
    [30. 29.] (30, 2)
    """
    refuse("lobpcg", {"Y": Y}, "add a large multiple of Y @ Y.T to A, or subtract it")
    largest = check_flag("lobpcg", "largest", largest)
    layout = check_distributed("lobpcg", X)._layout.without_partial()
    *shape, count = layout.shape or (0,)
    if not shape or not 1 <= count <= prod(shape):
        raise ShapeError(
            f"lobpcg got X of shape {layout.shape}; its last axis counts vectors, at least 1, and "
            "at most as many as these have items"
        )
    last = len(shape)
    if layout.sharding_axes(last):
        placements = [Shard(0) if one == Shard(last) else one for one in layout.placements]
        layout = layout.replace(placements=placements, boundaries=None, shard_order=None)
    named = {"A": A} | {name: one for name, one in (("B", B), ("M", M)) if one is not None}
    operators = {name: read_operator("lobpcg", name, one) for name, one in named.items()}
    dtype = vector_dtype(X.dtype, *[one.dtype for one in operators.values()])
    space = Space("lobpcg", layout.replace(shape=tuple(shape)), dtype)
    for one in operators.values():
        one.check_shape("lobpcg", tuple(shape), tuple(shape))
    tol = read_tolerance("lobpcg", "tol", 0 if tol is None else tol)
    tol = tol or space.size * float(np.sqrt(space.eps))
    limit = read_count("lobpcg", "maxiter", maxiter, 20)
    functions = {name: _of_columns(operators[name], named[name]) for name in named}
    block = _Block(space, count, functions, largest)
    block.begin(X)
    for _ in range(limit):
        if not block.improve(tol):
            break
    values, sizes = block.finish()
    if max(sizes) > times_power(tol, block.unit.exponent):
        found = [float(times_power(one, -block.unit.exponent)) for one in sizes]
        warn(
            f"lobpcg: after {limit} iterations residuals are up to {max(found):.3g}, and tol is "
            f"{tol:.3g}; allow more by maxiter=, or pass a better M= or X="
        )
    real = np.empty(0, dtype).real.dtype
    w = times_power(values, -block.unit.exponent).astype(real)
    return new_array(w, replicated_layout(space.mesh, w.shape)), block.solution()


def _of_columns(operator: Operator, value: Any) -> Callable[[Any], Any]:
    """Return an operator as a function of several columns."""
    if isinstance(value, (BaseArray, np.ndarray)) or not hasattr(value, "matvec"):
        return operator.matvec
    matmat: Any = getattr(value, "matmat", None)
    return matmat or (
        lambda x: stack([operator.matvec(x[..., i]) for i in range(x.shape[-1])], axis=-1)
    )


class _Block:
    """The vectors of an iteration, and what A and B make of them.

    In each of the blocks rows are those found so far (X), directions in which these were changed
    last (P), and new ones (W).
    """

    def __init__(
        self, space: Space, count: int, functions: dict[str, Callable[[Any], Any]], largest: bool
    ) -> None:
        self._space, self._count, self._functions = space, count, functions
        self._largest = largest
        self._vectors, self._images = Basis(space, 3 * count), Basis(space, 3 * count)
        self._masses = Basis(space, 3 * count) if "B" in functions else self._vectors
        self._directions = 0
        self.unit = Unit()
        self._values = np.zeros(count)

    def begin(self, x: Any) -> None:
        """Read the first vectors, and make them orthonormal."""
        flat = self._wide(self._count).read(x, "X")
        largest = self._wide(self._count).largest(flat)
        if not is_finite(largest):
            raise LinAlgError(f"{self._space.name}: X has items that are not finite")
        exponent = exponent_of(largest, flat.dtype, ORDINARY_VECTOR)
        self._vectors.rows[: self._count] = times_power(flat, exponent).reshape(-1, self._count).T
        self._apply_to(slice(0, self._count))
        self._choose(self._count)

    def improve(self, tol: float) -> bool:
        """Make an iteration; false where nothing is to be done."""
        space, start = self._space, self._count + self._directions
        enough = times_power(tol, self.unit.exponent)
        active = np.flatnonzero(np.array(self._find_residuals(start)) > enough)
        if not active.size:
            return False
        rows = self._vectors.rows
        for target, source in enumerate(active.tolist(), start):
            if target != start + source:
                rows[target] = rows[start + source]
        new = slice(start, start + active.size)
        if "M" in self._functions:
            rows[new] = self._image("M", rows[new], None)
        (overlaps,) = self._add_up(space.multiply_rows(self._masses.rows[:start], rows[new]))
        self._vectors.subtract(new, overlaps)
        self._apply_to(new)
        self._choose(new.stop)
        return True

    def finish(self) -> tuple[np.ndarray, list[float]]:
        """Return the eigenvalues and the sizes of residuals, of what A makes of the vectors now."""
        self._directions = 0
        self._apply_to(slice(0, self._count))
        self._choose(self._count)
        return self._values, self._find_residuals(self._count)

    def solution(self) -> Any:
        """Return the vectors, along a last axis."""
        space = self._space
        columns = space.unite(self._vectors.rows[: self._count].T.copy().reshape(-1))
        return self._wide(self._count).array(columns)

    def _wide(self, count: int) -> Space:
        """Return the space of several vectors along a last axis."""
        space = self._space
        layout = space.layout.replace(shape=(*space.layout.shape, count))
        return Space(space.name, layout, space.dtype)

    def _image(self, name: str, rows: Buffer, unit: Unit | None) -> Buffer:
        """Return what an operator makes of rows."""
        space = self._wide(len(rows))
        if unit is None:
            unit = Unit()
            unit.fix()
        apply = Map(f"what {name} returned", self._functions[name], space, space, unit)
        return apply(rows.T.copy().reshape(-1)).reshape(-1, len(rows)).T

    def _apply_to(self, new: slice) -> None:
        """Apply A and B to some rows."""
        rows = self._vectors.rows[new]
        self._images.rows[new] = self._image("A", rows, self.unit)
        if "B" in self._functions:
            self._masses.rows[new] = self._image("B", rows, None)

    def _find_residuals(self, start: int) -> list[float]:
        """Put the residuals of all vectors into the rows from `start` on; return their sizes."""
        space = self._space
        updates = [
            (self._vectors.rows[start + i], 0, ((1, image), (-value, mass)))
            for i, (image, mass, value) in enumerate(
                zip(self._images.rows, self._masses.rows, self._values.tolist(), strict=False)
            )
        ]
        (squares,) = self._add_up(
            np.array(space.combine(updates, [(row, row) for row, *_ in updates]))
        )
        return [size_of(one) for one in squares]

    def _add_up(self, *products: np.ndarray) -> list[np.ndarray]:
        """Return the sums of all processes' arrays of products (one reduction)."""
        space = self._space
        sums = np.array(space.add_up(np.concatenate(products, axis=None).tolist()), space.wide)
        if not np.isfinite(sums).all():
            raise LinAlgError(f"{space.name}: numbers are not finite; A, B or M made them so")
        cuts = np.cumsum([one.size for one in products])[:-1]
        pairs = zip(np.split(sums, cuts), products, strict=True)
        return [part.reshape(one.shape) for part, one in pairs]

    def _choose(self, rows: int) -> None:
        """Put the best vectors that rows span in the place of the first, and new directions."""
        space, count = self._space, self._count
        products = [
            space.multiply_rows(self._vectors.rows[:rows], one.rows[:rows])
            for one in (self._images, self._masses)
        ]
        a, b = self._add_up(*products)
        found = _rayleigh_ritz(a, b, count, self._largest, space.eps**_INDEPENDENT)
        values, chosen = space.share(*found)
        if not np.isfinite(values).all():
            raise LinAlgError(
                f"{space.name}: {count} vectors are not independent, or B is not positive definite"
            )
        self._values = values
        self._directions = chosen.shape[1] - count
        for one in {id(one): one for one in (self._vectors, self._images, self._masses)}.values():
            one.replace(chosen)


def _rayleigh_ritz(
    a: np.ndarray, b: np.ndarray, count: int, largest: bool, least: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues of `a @ c = w * b @ c`, and coefficients of vectors and of directions.

    Of rows beyond the first `count` directions are made that are orthogonal to the vectors. Values
    are NaN where rows span too little.
    """
    a, b = (a + a.conj().T) / 2, (b + b.conj().T) / 2
    directions = count if len(a) > count else 0
    chosen = np.zeros((len(a), count + directions), a.dtype)
    basis = _orthonormalize(b, least)
    if basis.shape[1] < count:
        return np.full(count, np.nan), chosen
    values, vectors = np.linalg.eigh(basis.conj().T @ a @ basis)
    wanted = slice(None, -count - 1, -1) if largest else slice(count)
    best = basis @ vectors[:, wanted]
    chosen[:, :count] = best
    if directions:
        changes = best.copy()
        changes[:count] = 0
        for _ in range(2):
            changes -= best @ (best.conj().T @ b @ changes)
        changes = changes @ _orthonormalize(changes.conj().T @ b @ changes, least)
        chosen[:, count : count + changes.shape[1]] = changes
    return values[wanted], chosen


def _orthonormalize(products: np.ndarray, least: float) -> np.ndarray:
    """Return coefficients of orthonormal vectors that span what others do, but for rounding."""
    squares = products.diagonal().real
    scales = np.where(squares > 0, 1 / np.sqrt(np.where(squares > 0, squares, 1)), 0)
    values, vectors = np.linalg.eigh(scales[:, None] * products * scales)
    kept = values > least * values.max(initial=0)
    return np.asarray(scales[:, None] * vectors[:, kept] / np.sqrt(values[kept]))
