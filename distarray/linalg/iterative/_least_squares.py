"""Least squares by the bidiagonalization of Golub and Kahan: LSQR."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distarray.core import check_distributed, new_array
from distarray.errors import ArgumentError
from distarray.layout import Layout, Partial, Shard
from distarray.linalg.iterative._operators import (
    Map,
    Unit,
    read_count,
    read_operator,
    read_real,
    read_tolerance,
    refuse,
    vector_dtype,
)
from distarray.linalg.iterative._vectors import Space, is_finite, size_of, times_power


def lsqr(
    A: Any,
    b: Any,
    damp: float = 0.0,
    atol: float = 1e-6,
    btol: float = 1e-6,
    conlim: float = 1e8,
    iter_lim: int | None = None,
    show: bool = False,
    calc_var: bool = False,
    x0: Any = None,
) -> tuple[Any, ...]:
    """Find the least-squares solution of `A @ x = b` by LSQR, for any A (collective).

    Parameters
    ----------
    A : DistArray or object
        A distributed matrix, or an object with functions `matvec` and `rmatvec` of distributed
        arrays, which multiply by A and by its adjoint, and may have a `shape`.
    b : DistArray
        The right-hand side, of any number of axes.
    damp : float
        This squared, times the square of `norm(x - x0)`, is added to what is least.
    atol, btol : float
        Relative errors of A and `b`: it ends when the residual is as small as they allow.
    conlim : float
        It ends when the condition of A is estimated to be more; 0: never.
    iter_lim : int, optional
        Most iterations; default: twice the number of items of `x`.
    show : bool
        SciPy's; not taken.
    calc_var : bool
        Estimate the diagonal of the inverse of `A.T @ A + damp**2`.
    x0 : DistArray, optional
        Where to begin; its layout is that of the result. Default: zeros.

    Returns
    -------
    x : DistArray
        The solution.
    istop : int
        Why it ended, as in SciPy: 0: `x0` is the solution; 1: the residual is small enough; 2: no
        residual is smaller; 3: the condition is too large; 4 to 6: the same, to the precision of
        the numbers; 7: after `iter_lim` iterations. -1: numbers were not finite.
    itn : int
        The number of iterations.
    r1norm, r2norm : float
        The size of the residual, without and with what `damp` adds.
    anorm, acond : float
        Estimates of the Frobenius norm and of the condition of A, with `damp`.
    arnorm, xnorm : float
        Estimates of `norm(A.T @ r)` with the residual r, and of `norm(x)`.
    var : DistArray or None
        None without `calc_var`.

    Raises
    ------
    ArgumentError
        If `show` is set, or A has no adjoint.
    ArgumentTypeError, ShapeError, DTypeError
        As for `cg`.

    Notes
    -----
    The method of Paige and Saunders, "LSQR: an algorithm for sparse linear equations and sparse
    least squares" (1982).

    Distribution: vectors like `b` have its layout, the others that of `x0`, or of the product of
    the adjoint and `b`, whose `Partial` sums are scattered along axis 0. Besides what A sends an
    iteration makes two reductions, of two numbers and of one. Peak memory: two vectors like `b` and
    three like `x`, and what A needs.

    Examples
    --------
    >>> import distarray as da
    >>> a, b = da.asarray([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]), da.asarray([3.0, 4.0, 5.0])
    >>> x, istop, *_ = da.linalg.lsqr(a, b)
    >>> print(x, istop)
    [3. 2.] 2
    """
    refuse("lsqr", {"show": show}, "its results tell what happened")
    damp = read_real("lsqr", "damp", damp)
    atol, btol = read_tolerance("lsqr", "atol", atol), read_tolerance("lsqr", "btol", btol)
    conlim = read_tolerance("lsqr", "conlim", conlim)
    layout = check_distributed("lsqr", b)._layout.without_partial()
    operator = read_operator("lsqr", "A", A)
    if operator.rmatvec is None:
        raise ArgumentError(
            "lsqr: A has no adjoint; pass a matrix, or an object with matvec(x) and rmatvec(y), "
            "such as types.SimpleNamespace(matvec=..., rmatvec=...)"
        )
    started = x0 is not None
    known = [check_distributed("lsqr(x0=)", x0).dtype] if started else []
    dtype = vector_dtype(b.dtype, operator.dtype, *known)
    rows = Space("lsqr", layout, dtype)
    block = rows.read(b, "b")
    (b2,) = rows.multiply((block, block))
    block, of_b, b2 = rows.normalize(block, b2.real)
    u = rows.copy(block)
    first = x0 if started else operator.rmatvec(rows.array(u))
    columns = Space("lsqr", _scattered(check_distributed("lsqr", first)._layout), dtype)
    operator.check_shape("lsqr", layout.shape, columns.layout.shape)
    unit = Unit(abs(damp))
    forward = Map("what A returned", operator.matvec, columns, rows, unit)
    back = Map("what the adjoint of A returned", operator.rmatvec, rows, columns, unit)
    limit = read_count("lsqr", "iter_lim", iter_lim, 2 * columns.size)
    x = columns.copy(columns.read(x0, "x0")) if started else columns.zeros()
    r2 = b2
    if started:
        start, exponent, x2 = columns.normalize(x, columns.multiply((x, x))[0].real)
        if x2:
            image = forward(start)
            unit.fix()  # or else it would change what the solution begins with
            exponent = of_b - unit.exponent - exponent
            x, image = times_power(start, exponent), times_power(image, exponent)
            (r2,) = rows.add_up(rows.combine([(u, 1, ((-1, image),))], [(u, u)]))
    size, beta = size_of(b2), size_of(r2)
    v = columns.zeros()
    alpha = 0.0
    if beta > 0:
        image = back(u) if started else back.take(first, u)
        own = columns.combine([(v, 0, ((1 / beta, image),))], [(v, v)])
        alpha = size_of(columns.add_up(own)[0])
    var = np.abs(columns.zeros()) if calc_var else None
    of_a = unit.exponent  # of the power of two that A and its damping are multiplied by
    damp = times_power(damp, of_a)

    def result(istop: int, itn: int, *norms: float) -> tuple[Any, ...]:
        found, spread = columns.unite(times_power(x, of_a - of_b)), None
        if var is not None:
            variances = columns.unite(times_power(var, 2 * of_a)).reshape(columns.local_shape)
            spread = new_array(variances, columns.layout)
        if found is not x and not is_finite(columns.largest(found)):
            istop = -1
        exponents = -of_b, -of_b, -of_a, 0, -of_a - of_b, of_a - of_b
        return (columns.array(found), istop, itn, *map(times_power, norms, exponents), spread)

    if not is_finite(alpha, beta):
        return result(-1, 0, beta, beta, 0.0, 0.0, math.nan, 0.0)
    if alpha * beta == 0:
        return result(0, 0, beta, beta, 0.0, 0.0, 0.0, 0.0)
    # u and v are beta and alpha times the unit vectors of the method.
    w = columns.empty()
    own = columns.combine([(w, 0, ((1 / alpha, v),))], [(w, w)])
    rho_bar, phi_bar = alpha, beta
    a2 = d2 = x2 = z = damped2 = 0.0
    cosine2, sine2 = -1.0, 0.0
    rnorm = r1norm = beta
    anorm = acond = xnorm = 0.0
    arnorm = alpha * beta
    for itn in range(1, limit + 1):
        image = forward(v)
        parts = rows.combine([(u, -alpha / beta, ((1 / alpha, image),))], [(u, u)])
        last = alpha
        u2, w2 = (one.real for one in rows.add_up(parts + own))
        beta = size_of(u2)
        if beta > 0:
            a2 += last**2 + beta**2 + damp**2
            image = back(u)
            parts = columns.combine([(v, -beta / last, ((1 / beta, image),))], [(v, v)])
            alpha = size_of(columns.add_up(parts)[0])
        if not is_finite(alpha, beta):
            return result(-1, itn, r1norm, rnorm, anorm, acond, arnorm, xnorm)
        # One rotation takes the damping away, another one the element below the diagonal.
        rho_damped = math.sqrt(rho_bar**2 + damp**2)
        damped2 += (damp / rho_damped * phi_bar) ** 2
        phi_bar *= rho_bar / rho_damped
        rho = math.sqrt(rho_damped**2 + beta**2)
        cosine, sine = rho_damped / rho, beta / rho
        theta, rho_bar = sine * alpha, -cosine * alpha
        phi, phi_bar = cosine * phi_bar, sine * phi_bar
        if var is not None:
            var += np.abs(w / rho) ** 2
        updates: list[Any] = [(x, 1, ((phi / rho, w),))]
        if alpha > 0:
            updates.append((w, -theta / rho, ((1 / alpha, v),)))
        own = columns.combine(updates, [(w, w)])
        d2 += w2 / rho**2
        # The norm of x follows from a rotation from the right.
        right = phi - sine2 * rho * z
        bar = -cosine2 * rho
        xnorm = math.sqrt(x2 + (right / bar) ** 2)
        gamma = math.sqrt(bar**2 + theta**2)
        cosine2, sine2, z = bar / gamma, theta / gamma, right / gamma
        x2 += z**2
        anorm, acond = math.sqrt(a2), math.sqrt(a2 * d2)
        rnorm = math.sqrt(phi_bar**2 + damped2)
        arnorm = alpha * abs(sine * phi)
        without = rnorm**2 - damp**2 * x2
        r1norm = math.copysign(math.sqrt(abs(without)), without)
        # SciPy adds eps alone, next to which a small b, or A, is found to be solved at once.
        least = anorm * (rnorm + rows.eps * size)
        istop = _reason(
            rnorm / size if size else 0.0,
            arnorm / least if least else 0.0,
            1 / (acond + rows.eps),
            anorm * xnorm / size if size else 0.0,
            (atol, btol, 1 / conlim if conlim else 0.0),
        )
        if istop or itn == limit:
            return result(istop or 7, itn, r1norm, rnorm, anorm, acond, arnorm, xnorm)
    return result(7, 0, beta, beta, 0.0, 0.0, arnorm, 0.0)


def _reason(
    residual: float, gradient: float, condition: float, scale: float, tolerances: tuple[float, ...]
) -> int:
    """Return why to stop, as SciPy's numbers; 0: there is no reason."""
    atol, btol, ctol = tolerances
    if residual <= btol + atol * scale:
        return 1
    if gradient <= atol:
        return 2
    if condition <= ctol:
        return 3
    if 1 + residual / (1 + scale) <= 1:
        return 4
    if 1 + gradient <= 1:
        return 5
    return 6 if 1 + condition <= 1 else 0


def _scattered(layout: Layout) -> Layout:
    """Return a layout whose Partial sums are cut along axis 0."""
    if not layout.has_partial or not layout.ndim or layout.boundaries:
        return layout.without_partial()
    return layout.replace(
        placements=[Shard(0) if isinstance(p, Partial) else p for p in layout.placements]
    )
