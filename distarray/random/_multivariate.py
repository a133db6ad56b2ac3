"""The methods of `Generator` whose variates are rows: of counts, of fractions, normal ones.

A process makes whole rows: where the last axis is cut, those of which it has a part. Counts of
several kinds are those of one kind after the other, each among the trials or items that are left
(L. Devroye, "Non-Uniform Random Variate Generation" (1986), chapter XI.1.4); fractions are gamma
variates over their sum (chapter XI.4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from distarray.comm import default_mesh
from distarray.core import BaseArray, normalize_shape, replicated_layout, warn
from distarray.errors import ArgumentError, ArgumentTypeError, ShapeError
from distarray.layout import Placement
from distarray.ops import LinAlgError, agree, matmul
from distarray.random._continuous import gamma_parts
from distarray.random._counts import binomial, hypergeometric
from distarray.random._parameters import (
    INTEGERS,
    Parameter,
    common_shape,
    count_parameter,
    read,
    read_float_dtype,
)
from distarray.random._streams import Items, by_rows

_ROUNDING: Final = 1e-12
"""By how much the sum of probabilities may exceed 1, as in NumPy."""


class Multivariate:
    """Methods of `Generator` that draw rows."""

    __slots__ = ()

    _draw: Callable[..., Any]
    standard_normal: Callable[..., Any]

    def multinomial(
        self,
        n: Any,
        pvals: Any,
        size: Any = None,
        *,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw how many of some trials have each of several outcomes.

        Parameters
        ----------
        n : int or array_like
            How many trials.
        pvals : array_like
            The probabilities of the outcomes, along the last axis; the last outcome has what is
            left.
        size : int or sequence of int, optional
            Of the draws, to which `n` and the other axes of `pvals` broadcast. The result has the
            axis of the outcomes after these.
        mesh, placements
            As for `random`.

        Raises
        ------
        ArgumentError
            If one of `n` is not a whole number from 0 to 2**53, or `pvals` are no probabilities.
        ArgumentTypeError
            If they are distributed; call `binomial` for one outcome after the other, and `stack`.
        ShapeError
            If they do not broadcast to `size`.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).multinomial(20, [0.2, 0.3, 0.5], 2))
        [[ 8  1 11]
         [ 6  3 11]]
        """
        trials = read(count_parameter("n", ""), _plain("multinomial", "n", n))
        p = _vector("multinomial", "pvals", pvals, _FRACTIONS, ndim=None)
        if np.any(p[..., :-1].sum(axis=-1) > 1 + _ROUNDING):
            raise ArgumentError(
                f"multinomial(pvals=) have a sum of {float(p.sum(axis=-1).max())!r}, which must "
                "be at most 1"
            )
        return self._rows(
            "multinomial", _multinomial, (trials,), p, size, INTEGERS, mesh, placements
        )

    def multivariate_hypergeometric(
        self,
        colors: Any,
        nsample: Any,
        size: Any = None,
        method: str = "marginals",
        *,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw how many of a sample without replacement have each of several colors.

        Parameters
        ----------
        colors : array_like
            How many items there are of each; of one axis.
        nsample : int
            How many are taken.
        size : int or sequence of int, optional
            Of the draws. The result has the axis of the colors after these.
        method : {"marginals", "count"}
            Taken for NumPy's sake: both give the same numbers.
        mesh, placements
            As for `random`.

        Raises
        ------
        ArgumentError
            If `nsample` is more than there are, or one of them is not a whole number from 0 to
            2**53.
        ArgumentTypeError
            If they are distributed.
        ShapeError
            If `colors` does not have one axis.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).multivariate_hypergeometric([5, 10, 15], 12, 2))
        [[4 1 7]
         [3 2 7]]
        """
        if method not in ("marginals", "count"):
            raise ArgumentError(f"method={method!r} must be 'marginals' or 'count'")
        there = _vector("multivariate_hypergeometric", "colors", colors, count_parameter("", ""))
        taken = read(
            count_parameter("nsample", ""),
            _plain("multivariate_hypergeometric", "nsample", nsample),
        )
        total = float(there.sum())
        if np.any(taken > total) or total > 2.0**53:
            raise ArgumentError(
                f"nsample={nsample!r} of {total:.0f} items: it must be at most as many, and these "
                "at most 2**53"
            )
        return self._rows(
            "multivariate_hypergeometric",
            _multivariate_hypergeometric,
            (taken,),
            there,
            size,
            INTEGERS,
            mesh,
            placements,
        )

    def dirichlet(
        self,
        alpha: Any,
        size: Any = None,
        *,
        dtype: Any = np.float64,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw fractions whose sum is 1 from the Dirichlet distribution.

        Parameters
        ----------
        alpha : array_like
            The shape of each, 0 or more, of one axis; 0 gives 0.
        size : int or sequence of int, optional
            Of the draws. The result has the axis of the fractions after these.
        dtype, mesh, placements
            As for `random`.

        Raises
        ------
        ArgumentError
            If one of `alpha` is negative or not finite.
        ArgumentTypeError
            If it is distributed.
        ShapeError
            If it does not have one axis.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).dirichlet([1.0, 2.0, 3.0], 2))
        [[0.21602274 0.34091484 0.44306242]
         [0.27789594 0.2793295  0.44277456]]
        """
        kind = read_float_dtype(dtype)
        shapes = _vector("dirichlet", "alpha", alpha, _SHAPES)
        return self._rows("dirichlet", _dirichlet, (), shapes, size, kind, mesh, placements)

    def multivariate_normal(
        self,
        mean: Any,
        cov: Any,
        size: Any = None,
        check_valid: str = "warn",
        tol: float = 1e-8,
        *,
        method: str = "svd",
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw rows from a normal distribution of several variables.

        Parameters
        ----------
        mean : array_like or DistArray
            Of the variables; of one axis.
        cov : array_like or DistArray
            Their covariances, a symmetric matrix without negative eigenvalues.
        size : int or sequence of int, optional
            Of the draws. The result has the axis of the variables after these.
        check_valid : {"warn", "raise", "ignore"}
            What to do where `cov` is no such matrix.
        tol : float
            How far it may be from one.
        method : {"svd", "eigh", "cholesky"}
            How a factor of `cov` is found. The last one is the fastest, wants eigenvalues above 0,
            and raises without them.
        mesh, placements
            As for `random`.

        Raises
        ------
        ArgumentTypeError
            If they hold no real numbers.
        ShapeError
            If `cov` is not square, or `mean` is not as long.
        ArgumentError
            If `cov` is not such a matrix, and `check_valid` is "raise".
        LinAlgError
            If it is none, and `method` is "cholesky".

        Notes
        -----
        Normal numbers times the transposed factor, by `matmul` with ``reproducible=True``: the same
        bits on any number of processes where the factor has. Of the numbers their sizes are sent,
        which the product depends on. A plain `cov` is factorized by every process, and checksums of
        the factor are compared; a distributed one as its function in `linalg` does.

        Examples
        --------
        >>> import distarray as da
        >>> rng = da.random.default_rng(7)
        >>> print(rng.multivariate_normal([0.0, 5.0], [[2.0, 1.0], [1.0, 3.0]], 2))
        [[3.20040111 9.10928169]
         [0.29677087 6.81184473]]
        """
        if check_valid not in ("warn", "raise", "ignore"):
            raise ArgumentError(f"check_valid={check_valid!r} must be 'warn', 'raise' or 'ignore'")
        if method not in ("svd", "eigh", "cholesky"):
            raise ArgumentError(f"method={method!r} must be 'svd', 'eigh' or 'cholesky'")
        mean, cov = (read(Parameter(of, ""), x) for of, x in (("mean", mean), ("cov", cov)))
        mean, cov = (x if isinstance(x, BaseArray) else np.asarray(x) for x in (mean, cov))
        if mean.ndim != 1 or cov.shape != mean.shape * 2:
            raise ShapeError(
                f"multivariate_normal of a mean of shape {mean.shape} and a covariance of shape "
                f"{cov.shape}: these must be (d,) and (d, d)"
            )
        checks = check_valid != "ignore"
        factorize: Callable[..., Any] = partial(_factor, method=method, checks=checks, tol=tol)
        if not isinstance(cov, BaseArray):  # columns of a factor may have another order or sign
            whole = replicated_layout(mesh or default_mesh(), cov.shape)
            factorize = agree(factorize, "multivariate_normal", whole)
        try:
            factor, is_valid = factorize(cov)
        except np.linalg.LinAlgError as error:
            raise LinAlgError(f"multivariate_normal(method={method!r}): {error}") from None
        if not is_valid:
            text = "the covariance is not symmetric and positive semidefinite"
            if check_valid == "raise":
                raise ArgumentError(f"{text}, but for tol={tol}")
            warn(text, RuntimeWarning)
        lead = () if size is None else normalize_shape(size)
        z = self.standard_normal((*lead, *mean.shape), mesh=mesh, placements=placements)
        return mean + matmul(z, factor.T, reproducible=True)

    def _rows(
        self,
        name: str,
        sampler: Callable[..., Any],
        values: tuple[Any, ...],
        vectors: np.ndarray,
        size: Any,
        dtype: Any,
        mesh: Any,
        placements: Sequence[Placement] | None,
    ) -> Any:
        """Return rows that a sampler makes of numbers for each and of a vector for each."""
        shape = common_shape(
            name,
            None if size is None else normalize_shape(size),
            [*map(np.shape, values), vectors.shape[:-1]],
        )
        vectors = np.broadcast_to(vectors, (*shape, vectors.shape[-1]))
        rows = vectors.shape[-1:]
        fill = by_rows(sampler)
        return self._draw(fill, shape, dtype, mesh, placements, (*values, vectors), rows)


# --- samplers of rows ----------------------------------------------------------------------------


def _column(items: Items, width: int, column: int) -> Items:
    """Return the items of a column of whole rows."""
    return items.take(np.arange(column, items.size, width))


def _multinomial(items: Items, n: Any, p: np.ndarray) -> np.ndarray:
    rows, width = p.shape
    out = np.empty((rows, width))
    left = np.broadcast_to(np.asarray(n, np.float64), rows)
    rest = np.ones(rows)
    for column in range(width - 1):
        share = np.clip(p[:, column] / rest, 0, 1)
        share[rest <= 0] = 0
        out[:, column] = binomial(_column(items, width, column), left, share)
        left, rest = left - out[:, column], rest - p[:, column]
    out[:, -1:] = left[:, None]
    return out


def _multivariate_hypergeometric(items: Items, taken: Any, colors: np.ndarray) -> np.ndarray:
    rows, width = colors.shape
    out = np.empty((rows, width))
    left = np.broadcast_to(np.asarray(taken, np.float64), rows)
    others = colors.sum(axis=1)
    for column in range(width - 1):
        own = colors[:, column]
        others = others - own
        out[:, column] = hypergeometric(_column(items, width, column), own, others, left)
        left = left - out[:, column]
    out[:, -1:] = left[:, None]
    return out


def _dirichlet(items: Items, alpha: np.ndarray) -> np.ndarray:
    flat = alpha.reshape(-1)
    variates, powers = gamma_parts(items, flat)
    variates = np.where(flat > 0, variates, 0.0).reshape(alpha.shape)
    powers = np.broadcast_to(powers, flat.shape).reshape(alpha.shape)
    parts = variates * np.exp(powers - powers.max(axis=1, keepdims=True))
    sums = np.cumsum(parts, axis=1)[:, -1:]  # in this order, whatever the number of rows
    return parts / np.where(sums > 0, sums, 1.0)


# --- arguments -----------------------------------------------------------------------------------

_FRACTIONS = Parameter("", "", "from 0 to 1", lambda x: (x >= 0) & (x <= 1))
_SHAPES = Parameter("", "", "0 or more and finite", lambda x: (x >= 0) & (x < np.inf))


def _plain(name: str, of: str, value: Any) -> Any:
    if isinstance(value, BaseArray):
        raise ArgumentTypeError(
            f"{name}({of}=) is distributed and must be what every process has, x.full_array(); "
            "or draw one column after the other, and stack them"
        )
    return value


def _vector(name: str, of: str, value: Any, parameter: Parameter, ndim: int | None = 1) -> Any:
    """Return a plain argument with an axis that is not empty, as float64."""
    found = np.asarray(read(parameter._replace(name=of), _plain(name, of, value)))
    if not found.ndim or ndim not in (None, found.ndim) or not found.shape[-1]:
        axes = "one axis" if ndim else "an axis"
        raise ShapeError(f"{name}({of}=) has shape {found.shape} and must have {axes}, with items")
    return found


def _factor(cov: Any, method: str, checks: bool, tol: float) -> tuple[Any, bool]:
    """Return f with ``cov = f @ f.T``, and whether there is one."""
    if method == "cholesky":
        try:
            return np.linalg.cholesky(cov), True
        except np.linalg.LinAlgError as error:
            text = f"{error}; use method='svd' for a covariance without full rank"
            raise np.linalg.LinAlgError(text) from None
    if method == "eigh":
        values, vectors = np.linalg.eigh(cov)
        return vectors * np.sqrt(np.maximum(values, 0)), not checks or bool((values >= -tol).all())
    if not np.isfinite(cov).all():  # LAPACK may not return
        raise np.linalg.LinAlgError("the covariance is not finite")
    vectors, values, others = np.linalg.svd(cov)
    factor = vectors * np.sqrt(values)
    return factor, not checks or bool(np.allclose((others.T * values) @ others, cov, tol, tol))
