"""Singular values of which there are few: a matrix times random columns shows where they lie.

Halko, Martinsson, Tropp, "Finding structure with randomness: probabilistic algorithms for
constructing approximate matrix decompositions" (2011), algorithms 4.4 and 5.1.
"""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from distarray.core import check_distributed, check_integer, register
from distarray.errors import ArgumentError
from distarray.layout import Replicate, Shard
from distarray.linalg._blocks import adjoint
from distarray.linalg._factorizations import SVDResult, qr, svd
from distarray.ops import LinAlgError, asarray, matmul
from distarray.random import default_rng


def svd_lowrank(x: Any, /, q: int = 6, niter: int = 2, *, seed: int = 0) -> SVDResult:
    """Return the first singular values and vectors of matrices, nearly, from a few products.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, n).
    q : int
        How many, at most min(m, n). Ask for a few more than are needed: the last are the least
        accurate.
    niter : int
        How often `x` and its adjoint are applied once more, which makes values that decrease slowly
        more accurate.
    seed : int
        Of the random columns, which are the same on any number of processes.

    Returns
    -------
    SVDResult
        With `U` (..., m, q), `S` (..., q) and `Vh` (..., q, n), for which `(U * S) @ Vh` is nearly
        the best approximation of that rank.

    Raises
    ------
    LinAlgError
        If there are less than two axes, or the decomposition does not converge.
    ArgumentError
        If `q` is not from 1 to min(m, n), or `niter` is negative.

    Notes
    -----
    Distribution: `x` stays where it is. Each of the 2 niter + 2 products leaves q columns, whose
    sums go to the processes' rows, m q or n q items in all, and are orthonormalized by `qr`. Peak
    memory: q columns of m and of n items. By Halko, Martinsson, Tropp (2011).

    Examples
    --------
    >>> import distarray as da
    >>> u, s, vh = da.linalg.svd_lowrank(da.ones((40, 10)), q=2)
    >>> print(da.round(s, 6))
    [20.  0.]
    """
    shape = check_distributed("svd_lowrank", x).shape
    if len(shape) < 2:
        raise LinAlgError(f"svd_lowrank got shape {shape}; it needs at least 2 axes")
    q, niter = check_integer("svd_lowrank", "q", q), check_integer("svd_lowrank", "niter", niter)
    if not 1 <= q <= builtins.min(shape[-2:]) or niter < 0:
        raise ArgumentError(
            f"svd_lowrank got q={q} and niter={niter} for matrices of {shape[-2:]}; q must be from "
            "1 to the smaller length, and niter not negative"
        )
    dtype = np.float32 if x.dtype in (np.float32, np.complex64) else np.float64
    draw = default_rng(seed).standard_normal
    columns = draw((shape[-1], q), dtype, mesh=x.mesh, placements=[Replicate()] * x.mesh.ndim)
    other = adjoint(x)
    columns = _orthonormalize(matmul(x, columns))
    for _ in range(niter):
        columns = _orthonormalize(matmul(x, _orthonormalize(matmul(other, columns))))
    v, s, uh = svd(_by_rows(matmul(other, columns)), full_matrices=False)
    return SVDResult(matmul(columns, adjoint(uh)), s, adjoint(v))


def _orthonormalize(x: Any) -> Any:
    return qr(_by_rows(x)).Q


def _by_rows(x: Any) -> Any:
    """Return matrices of few columns whose rows are cut, and batch axes as they were."""
    placements = [
        p if type(p) is Shard and p.axis < x.ndim - 2 else Shard(x.ndim - 2) for p in x.placements
    ]
    return asarray(x, placements=placements)


register(svd_lowrank, room="linalg")
