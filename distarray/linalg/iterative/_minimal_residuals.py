"""Minimal residuals: MINRES for hermitian systems, by short recurrences, and GMRES for others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from distarray.linalg.iterative._basis import Basis
from distarray.linalg.iterative._operators import (
    System,
    check_callback,
    read_choice,
    read_count,
    read_real,
    read_tolerance,
    refuse,
)
from distarray.linalg.iterative._vectors import is_finite, size_of, square_of, times_power
from distarray.ops import LinAlgError

_RESTART: Final = 20
"""Vectors of GMRES before it begins anew, as in SciPy."""


def gmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    restart: int | None = None,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Any], Any] | None = None,
    callback_type: str | None = None,
) -> tuple[Any, int]:
    """Solve `A @ x = b` by generalized minimal residuals, for any square A (collective).

    Parameters
    ----------
    A : DistArray, callable or object
        As for `cg`, but any square operator.
    b, x0, rtol, atol
        As for `cg`.
    restart : int, optional
        After how many iterations it begins anew with the solution so far; default: 20.
    maxiter : int, optional
        How often, at most; default: 10 for each item of `b`.
    M : like A, optional
        An approximation of the inverse of A. Residuals stay those of the system itself (it is
        applied from the right).
    callback : callable, optional
        With `callback_type="pr_norm"`, the default, `callback(size)` is called after each iteration
        with the size of the residual over that of `b`; with "x", `callback(x)` before each restart.

    Returns
    -------
    x : DistArray
        Of the shape and layout of `b`.
    info : int
        0: it is the solution. More: it is not yet, after `maxiter` restarts. -1: numbers were not
        finite, or nothing comes closer, as A is singular or rounding leaves as much.

    Raises
    ------
    ArgumentError
        If there is no such `callback_type`; SciPy's "legacy" counts `maxiter` otherwise.
    ArgumentTypeError, ShapeError, DTypeError
        As for `cg`.

    Notes
    -----
    The method of Saad and Schultz, "GMRES: a generalized minimal residual algorithm for solving
    nonsymmetric linear systems" (1986).

    Distribution: that of `cg`. Iteration j applies A once and makes one reduction, of j + 1
    numbers, or two where most of a new vector lies in the space of those before; a restart, and the
    end, apply A once more and make one. Peak memory: `restart` + 4 vectors, and what A and M need.

    Examples
    --------
    >>> import distarray as da
    >>> x, info = da.linalg.gmres(lambda x: 2 * x, da.asarray([6.0, 8.0, 10.0]))
    >>> print(x, info)
    [3. 4. 5.] 0
    """
    read_choice("gmres", "callback_type", callback_type, (None, "pr_norm", "x"))
    check_callback("gmres", callback)
    rtol, atol = read_tolerance("gmres", "rtol", rtol), read_tolerance("gmres", "atol", atol)
    restart = read_count("gmres", "restart", restart, _RESTART, 1)
    system = System("gmres", A, b, x0, M)
    space, x = system.space, system.x
    cycles = read_count("gmres", "maxiter", maxiter, 10 * space.size)
    info = system.begin(rtol, atol)
    if info is not None:
        return system.result(info)
    restart, enough, size = min(restart, space.size), system.enough, system.r_size
    precondition = system.precondition or (lambda block: block)
    basis, sum_of_basis = Basis(space, restart + 1), space.empty()
    promised = False
    for cycle in range(cycles + 1):
        if cycle:
            image = system.apply(x)
            space.combine([(system.r, 0, ((1, system.b), (-1, image)))])
            del image
            before, size = size, size_of(space.multiply((system.r, system.r))[0])
            if size <= enough:
                return system.result(0)
            # The triangle does not know how much rounding leaves: of a large x that is more.
            if not is_finite(size) or (promised and size > before / 2):
                return system.result(-1)
        if cycle == cycles:
            break
        basis.start(system.r, size)
        triangle = _Triangle(size, space.eps)
        stuck = False
        for j in range(restart):
            image = system.apply(precondition(basis.rows[j]))
            coefficients, rest = basis.extend(j + 1, image)
            del image  # before A makes another
            if not is_finite(rest):
                return system.result(-1)
            stuck = not triangle.append(coefficients, rest) or rest == 0
            if callback is not None and callback_type != "x":
                callback(triangle.size / system.b_size)
            if stuck or triangle.size <= enough:
                break
        basis.combine(triangle.solution(), sum_of_basis)
        space.combine([(x, 1, ((1, precondition(sum_of_basis)),))])
        if callback is not None and callback_type == "x":
            callback(system.solution())
        promised = triangle.size <= enough
        if stuck and not promised:
            return system.result(-1)
    return system.result(cycles or 1)


class _Triangle:
    """The least-squares problem of GMRES, kept triangular by rotations.

    All are operations on Python's numbers, which every processor rounds alike; those of the matrix
    are as accurate as `precision` tells.
    """

    def __init__(self, size: float, precision: float) -> None:
        self._precision = precision
        self._columns: list[list[Any]] = []
        self._right: list[Any] = [size]
        self._rotations: list[tuple[float, Any]] = []
        self.size = size
        """Of the residual."""

    def append(self, column: list[Any], below: float) -> bool:
        """Add a column of the Hessenberg matrix; tell whether it is independent of the others."""
        column = [*column]
        for i, (c, s) in enumerate(self._rotations):
            a, b = column[i : i + 2]
            column[i : i + 2] = c * a + s * b, c * b - s.conjugate() * a
        last = column[-1]
        part = math.sqrt(square_of(last))
        length = math.sqrt(square_of(last) + below * below)
        if length <= self._precision * math.sqrt(max(map(square_of, column))):
            return False
        c, s = part / length, last / part * (below / length) if part else 1.0
        column[-1] = c * last + s * below
        right = self._right[-1]
        self._right[-1:] = [c * right, -s.conjugate() * right]
        self._rotations.append((c, s))
        self._columns.append(column)
        self.size = math.sqrt(square_of(self._right[-1]))
        return True

    def solution(self) -> list[Any]:
        """Return the coefficients of the vectors."""
        found = self._right[: len(self._columns)]
        for j in reversed(range(len(found))):
            found[j] /= self._columns[j][j]
            for i in range(j):
                found[i] -= self._columns[j][i] * found[j]
        return found


def minres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    shift: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Any], Any] | None = None,
    show: bool = False,
    check: bool = False,
) -> tuple[Any, int]:
    """Solve `(A - shift) @ x = b` by minimal residuals, for any hermitian A (collective).

    Parameters
    ----------
    A : DistArray, callable or object
        As for `cg`, but hermitian only: it may be indefinite or singular.
    b, x0, callback
        As for `cg`.
    rtol : float
        It ends when `norm(r) <= rtol * norm(A) * norm(x)` with the residual r, or, of a singular
        system, `norm(A @ r) <= rtol * norm(A) * norm(r)`; the norm of A is estimated.
    shift : float
        This times the identity is subtracted from A.
    maxiter : int, optional
        Most iterations; default: 5 for each item of `b`.
    M : like A, optional
        An approximation of the inverse of A - shift, hermitian and positive definite. Norms are
        those that it defines.
    show, check : bool
        SciPy's; not taken.

    Returns
    -------
    x : DistArray
        Of the shape and layout of `b`.
    info : int
        0: it is the solution, of a singular system one whose residual is least. More: it is not
        yet, after so many iterations. -1: numbers were not finite.

    Raises
    ------
    ArgumentError
        If `show` or `check` is set.
    LinAlgError
        If `M` is not positive definite; on all processes.
    ArgumentTypeError, ShapeError, DTypeError
        As for `cg`.

    Notes
    -----
    The method of Paige and Saunders, "Solution of sparse indefinite systems of linear equations"
    (1975).

    Distribution: that of `cg`. An iteration applies A once and makes two reductions, of two numbers
    and of one. Peak memory: seven vectors, and what A and M need.

    Examples
    --------
    >>> import distarray as da
    >>> x, info = da.linalg.minres(lambda x: -2 * x, da.asarray([6.0, 8.0, 10.0]))
    >>> print(x, info)
    [-3. -4. -5.] 0
    """
    refuse("minres", {"show": show, "check": check}, "watch it by callback=")
    rtol, shift = read_tolerance("minres", "rtol", rtol), read_real("minres", "shift", shift)
    check_callback("minres", callback)
    system = System("minres", A, b, x0, M)
    space, x, precondition = system.space, system.x, system.precondition
    limit = read_count("minres", "maxiter", maxiter, 5 * space.size)
    info = system.begin(shift=shift)
    if info is not None:
        return system.result(info)
    last, now = space.empty(), system.r  # vectors of Lanczos, which are not normalized
    image = now if precondition is None else precondition(now)
    beta = system.r_size if precondition is None else _size(space.multiply((now, image))[0])
    if not (is_finite(beta) and beta > 0):
        return system.result(-1)
    v, older, old = space.empty(), space.zeros(), space.zeros()
    before, delta, epsilon, cosine, sine, residual = 0.0, 0.0, 0.0, -1.0, 0.0, beta
    norm2 = 0.0
    for iteration in range(limit):
        space.combine([(v, 0, ((1 / beta, image),))])
        product = system.apply(v)
        # The next vector takes the place of the last but one.
        terms: Any = ((1, product),)
        if shift:
            terms = *terms, (-times_power(shift, system.apply.unit.exponent), v)
        factor = -beta / before if iteration else 0
        own = space.combine([(last, factor, terms)], [(v, last), (x, x)])
        del product, terms  # before A makes another
        alpha, size2 = (one.real for one in space.add_up(own))
        own = space.combine([(last, 1, ((-alpha / beta, now),))], [(last, last)])
        last, now = now, last
        image = now if precondition is None else precondition(now)
        if precondition is not None:
            own = space.combine((), [(now, image)])
        before, beta = beta, _size(space.add_up(own)[0])
        if not is_finite(alpha, beta):
            return system.result(-1)
        norm2 += alpha**2 + before**2 * bool(iteration) + beta**2
        # The rotation of the iteration before, and a new one, make the tridiagonal matrix
        # triangular: (epsilon, delta, gamma) is its newest column.
        rotated = cosine * delta + sine * alpha
        left = sine * delta - cosine * alpha
        column = epsilon
        epsilon, delta = sine * beta, -cosine * beta
        norm = math.sqrt(norm2)
        if math.sqrt(left * left + delta * delta) <= rtol * norm:
            return system.result(0)
        gamma = max(math.sqrt(left * left + beta * beta), space.eps * norm)
        cosine, sine = left / gamma, beta / gamma
        weight, residual = cosine * residual, sine * residual
        space.combine(
            [
                (older, -column / gamma, ((1 / gamma, v), (-rotated / gamma, old))),
                (x, 1, ((weight, older),)),
            ]
        )
        older, old = old, older
        if callback is not None:
            callback(system.solution())
        if residual <= rtol * norm * math.sqrt(size2) or beta <= space.eps * norm:
            return system.result(0)
    return system.result(limit or 1)


def _size(square: Any) -> float:
    """Return the length that a preconditioner defines, from its square."""
    if square.real < 0:
        raise LinAlgError(
            "minres: M is not positive definite; it must be, as an approximation of the inverse"
        )
    return size_of(square)
