"""Conjugate gradients, for positive definite systems and, in pairs and stabilized, for others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from distarray.linalg.iterative._operators import (
    System,
    check_callback,
    read_count,
    read_tolerance,
)
from distarray.linalg.iterative._vectors import is_finite, square_of

Callback = Callable[[Any], Any]


def _read(
    name: str, A: Any, b: Any, x0: Any, M: Any, rtol: Any, atol: Any, maxiter: Any, callback: Any
) -> tuple[System, int, int | None]:
    """Return the system, the largest number of iterations, and what to say if none is needed."""
    rtol, atol = read_tolerance(name, "rtol", rtol), read_tolerance(name, "atol", atol)
    check_callback(name, callback)
    system = System(name, A, b, x0, M)
    limit = read_count(name, "maxiter", maxiter, 10 * system.space.size)
    return system, limit, system.begin(rtol, atol)


def cg(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callback | None = None,
) -> tuple[Any, int]:
    """Solve `A @ x = b` by conjugate gradients, for a hermitian positive definite A (collective).

    Parameters
    ----------
    A : DistArray, callable or object
        A distributed matrix; a function that takes a distributed array like `b` and returns
        `A @ x`, of any layout; or an object with such a `matvec` and a `shape`. It must not write
        into what it is given.
    b : DistArray
        The right-hand side, of any number of axes.
    x0 : DistArray, optional
        Where to begin; default: zeros.
    rtol, atol : float
        The solution is there when `norm(b - A @ x) <= max(rtol * norm(b), atol)`.
    maxiter : int, optional
        Most iterations; default: 10 for each item of `b`.
    M : like A, optional
        An approximation of the inverse of A, hermitian and positive definite.
    callback : callable, optional
        `callback(x)` is called after each iteration with the solution so far, which changes in
        place: copy it to keep it.

    Returns
    -------
    x : DistArray
        Of the shape and layout of `b`, float32, float64, complex64 or complex128.
    info : int
        0: it is the solution. More: it is not yet, after so many iterations (1 of ``maxiter=0``).
        -1: the method broke down, as A or M is not definite, or numbers were not finite; `x` is
        what was found before.

    Raises
    ------
    ArgumentTypeError
        If `A` or `M` is no operator, or they return no distributed array.
    ShapeError
        If shapes do not fit together.
    DTypeError
        If a complex operator meets a real `b`.

    Notes
    -----
    The method of Hestenes and Stiefel (1952) in the form of Chronopoulos and Gear, "s-step
    iterative methods for symmetric linear systems" (1989): its two or three inner products are
    found together.

    Distribution: vectors have the layout of `b`, which is reduced where it is `Partial`. Besides
    what A and M send an iteration makes one reduction, of two numbers, or of three with M; A is
    applied once in each, and once more at the end. Peak memory: four vectors, and what A and M
    need.

    Examples
    --------
    >>> import distarray as da
    >>> b = da.asarray([6.0, 8.0, 10.0])
    >>> x, info = da.linalg.cg(lambda x: 2 * x, b)
    >>> print(x, info)
    [3. 4. 5.] 0
    """
    system, limit, info = _read("cg", A, b, x0, M, rtol, atol, maxiter, callback)
    if info is not None:
        return system.result(info)
    space, x, r, enough = system.space, system.x, system.r, system.enough**2
    p, s = space.empty(), space.empty()
    alpha = before = 0.0
    own = space.combine((), [(r, r)])  # this process's part
    for iteration in range(limit):
        z = r if system.precondition is None else system.precondition(r)
        w = system.apply(z)
        products = [(z, w)] if system.precondition is None else [(z, w), (r, z)]
        totals = [one.real for one in space.add_up(own + space.combine((), products))]
        r2, curvature, gamma = totals if system.precondition is not None else [*totals, totals[0]]
        if r2 <= enough:
            return system.result(0)
        beta = gamma / before if iteration else 0.0
        if iteration:
            curvature -= beta * gamma / alpha
        alpha = gamma / curvature if curvature else 0.0
        if alpha == 0 or not is_finite(alpha, beta):
            return system.result(-1)
        before = gamma
        own = space.combine(
            [
                (p, beta, ((1, z),)),
                (s, beta, ((1, w),)),
                (x, 1, ((alpha, p),)),
                (r, 1, ((-alpha, s),)),
            ],
            [(r, r)],
        )
        del z, w, products  # before A makes others
        if callback is not None:
            callback(system.solution())
    (r2,) = space.add_up(own)
    return system.result(0 if r2.real <= enough else (limit or 1) if is_finite(r2) else -1)


def bicgstab(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callback | None = None,
) -> tuple[Any, int]:
    """Solve `A @ x = b` by stabilized biconjugate gradients, for any square A (collective).

    Parameters
    ----------
    A : DistArray, callable or object
        As for `cg`, but any square operator.
    b, x0, rtol, atol, maxiter, callback
        As for `cg`.
    M : like A, optional
        An approximation of the inverse of A.

    Returns
    -------
    x : DistArray
        Of the shape and layout of `b`.
    info : int
        As for `cg`; -10 and -11 where the method broke down, because the residual is orthogonal to
        the first one, or because no step makes it smaller, as in SciPy.

    Raises
    ------
    ArgumentTypeError, ShapeError, DTypeError
        As for `cg`.

    Notes
    -----
    The method of van der Vorst, "Bi-CGSTAB: a fast and smoothly converging variant of Bi-CG"
    (1992); the product of the new residual and the first one follows from those of its terms, as
    by Yang and Brent (2002).

    Distribution: that of `cg`. An iteration applies A twice and makes two reductions, of two and of
    five numbers. Peak memory: five vectors, and what A and M need.

    Examples
    --------
    >>> import distarray as da
    >>> x, info = da.linalg.bicgstab(lambda x: 2 * x, da.asarray([6.0, 8.0, 10.0]))
    >>> print(x, info)
    [3. 4. 5.] 0
    """
    system, limit, info = _read("bicgstab", A, b, x0, M, rtol, atol, maxiter, callback)
    if info is not None:
        return system.result(info)
    space, x, r, enough = system.space, system.x, system.r, system.enough**2
    precondition = system.precondition or (lambda block: block)
    first, p, v = space.copy(r), space.empty(), space.empty()
    rho: Any = system.r_size**2
    beta: Any = 0.0
    omega: Any = 0.0
    own = space.combine((), [(r, r)])
    for _ in range(limit):
        space.combine([(p, beta, ((-beta * omega, v), (1, r)) if beta else ((1, r),))])
        step = precondition(p)
        image = system.apply(step)
        r2, projection = space.add_up(own + space.combine((), [(first, image)]))
        if r2.real <= enough:
            return system.result(0)
        if not is_finite(r2, projection):
            return system.result(-1)
        # Not by the square of rho, which is there of ordinary sizes alone.
        if square_of(rho / (system.r_size * math.sqrt(r2.real))) <= space.eps**2:
            return system.result(-10)
        if projection == 0:
            return system.result(-11)
        alpha = rho / projection
        # A may return the same array each time, and so v is a copy of what it returned.
        own = space.combine(
            [(v, 0, ((1, image),)), (x, 1, ((alpha, step),)), (r, 1, ((-alpha, v),))], [(r, r)]
        )
        del step, image  # before M and A make others
        step = precondition(r)
        image = system.apply(step)
        pairs = [(image, r), (image, image), (first, r), (first, image)]
        s2, ts, t2, before, change = space.add_up(own + space.combine((), pairs))
        if s2.real <= enough:
            return system.result(0)
        if not is_finite(s2, ts, t2):
            return system.result(-1)
        if t2.real == 0:
            return system.result(-11)
        omega = ts / t2.real
        if omega == 0:
            return system.result(-11)
        last, rho = rho, before - omega * change
        beta = rho / last * (alpha / omega)
        own = space.combine(
            [(x, 1, ((omega, step),)), (r, 1, ((-omega, image),))],
            [(r, r)],
        )
        del step, image, pairs
        if callback is not None:
            callback(system.solution())
    (r2,) = space.add_up(own)
    return system.result(0 if r2.real <= enough else (limit or 1) if is_finite(r2) else -1)
