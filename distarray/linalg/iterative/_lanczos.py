"""Eigenvalues and singular values of large operators, by Lanczos' method with restarts."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from distarray.comm import default_mesh, default_placements
from distarray.core import BaseArray, check_distributed, check_flag, new_array, replicated_layout
from distarray.errors import ArgumentError, ShapeError
from distarray.layout import Layout
from distarray.linalg._blocks import adjoint
from distarray.linalg._factorizations import svd
from distarray.linalg._norms import norm
from distarray.linalg.iterative._basis import Basis
from distarray.linalg.iterative._operators import (
    Map,
    Operator,
    check_callback,
    read_choice,
    read_count,
    read_operator,
    read_real,
    read_tolerance,
    refuse,
    vector_dtype,
)
from distarray.linalg.iterative._vectors import (
    ORDINARY_IMAGE,
    Space,
    exponent_of,
    is_finite,
    size_of,
    times_power,
)
from distarray.ops import LinAlgError, flip, matmul, stack
from distarray.random import Generator, default_rng

_LEAST_BASIS: Final = 20
"""Vectors of a basis, where there are as many; as in SciPy."""

_ROUNDING: Final = 10
"""Times the precision of A's largest eigenvalue: of what rounding alone leaves of a residual."""


def _start_space(
    name: str, operator: Operator, A: Any, v0: Any, rng: Any, length: int | None
) -> tuple[Space, Any, Any]:
    """Return the space of the vectors, the first one's block, and a source of others."""
    rng = rng if isinstance(rng, Generator) else default_rng(0 if rng is None else rng)
    if v0 is None and length is None:
        raise ArgumentError(
            f"{name}: which shape do vectors have? Pass v0=, a distributed array of that shape, of "
            "random numbers for instance; or an object with matvec(x) and shape"
        )
    if v0 is None:
        own: Any = A._layout.mesh if isinstance(A, BaseArray) else getattr(A, "mesh", None)
        mesh = own or default_mesh()
        layout = Layout(mesh, default_placements(mesh, 1), (length or 0,))
    else:
        layout = check_distributed(f"{name}(v0=)", v0)._layout.without_partial()
    dtype = vector_dtype(operator.dtype, np.float32 if v0 is None else v0.dtype)
    if operator.dtype is None and v0 is None:
        dtype = np.dtype(np.float64)
    space = Space(name, layout, dtype)

    def draw() -> Any:
        drawn = rng.normal(size=layout.shape, mesh=space.mesh)
        return space.read(drawn, "a random vector")

    return space, draw() if v0 is None else space.read(v0, "v0"), draw


def _start(space: Space, block: Any) -> tuple[Any, float]:
    """Return a first vector, neither large nor small, and its size."""
    block, _, square = space.normalize(block, space.multiply((block, block))[0].real)
    size = size_of(square)
    if not (is_finite(size) and size > 0):
        raise LinAlgError(f"{space.name}: v0 has size {size}; it must have items that are not 0")
    return block, size


def power_iteration(
    A: Any,
    v0: Any = None,
    *,
    rtol: float = 1e-5,
    maxiter: int | None = None,
    callback: Any = None,
    rng: Any = None,
) -> tuple[Any, Any, int]:
    """Find the eigenvalue that is largest in absolute value by power iteration (collective).

    Parameters
    ----------
    A : DistArray, callable or object
        As for `cg`, but any square operator, one of whose eigenvalues is larger than the others.
    v0 : DistArray, optional
        Where to begin; its shape and layout are those of vectors. Default, where A has a shape:
        random numbers.
    rtol : float
        It ends when `norm(A @ v - w * v) <= rtol * abs(w)`.
    maxiter : int, optional
        Most iterations; default: 10 for each item of a vector.
    callback : callable, optional
        `callback(v)` is called after each iteration with the vector so far.
    rng : int or Generator, optional
        Seed, or source, of the random numbers; default: 0.

    Returns
    -------
    w : float or complex
        The eigenvalue.
    v : DistArray
        An eigenvector of size 1.
    info : int
        0: they are there. More: not yet, after so many iterations. -1: numbers were not finite.

    Raises
    ------
    ArgumentError
        If nothing tells the shape of vectors.
    LinAlgError
        If `v0` is 0, or not finite.
    ArgumentTypeError, ShapeError, DTypeError
        As for `cg`.

    Notes
    -----
    The eigenvalue is Rayleigh's quotient. How quickly it is found depends on how much larger it is
    than the others; `eigsh` takes far fewer steps.

    Distribution: vectors have the layout of `v0`. Besides what A sends an iteration makes one
    reduction, of three numbers. Peak memory: two vectors, and what A needs.

    Examples
    --------
    >>> import distarray as da
    >>> a = da.asarray([[2.0, 1.0], [1.0, 2.0]])
    >>> w, v, info = da.linalg.power_iteration(a)
    >>> round(w, 6), info
    (3.0, 0)
    """
    rtol = read_tolerance("power_iteration", "rtol", rtol)
    check_callback("power_iteration", callback)
    operator = read_operator("power_iteration", "A", A)
    length = None if operator.shape is None else operator.shape[1]
    space, block, _ = _start_space("power_iteration", operator, A, v0, rng, length)
    operator.check_shape("power_iteration", space.layout.shape, space.layout.shape)
    limit = read_count("power_iteration", "maxiter", maxiter, 10 * space.size)
    apply = Map("what A returned", operator.matvec, space, space)
    v, other = space.empty(), space.empty()
    block, size = _start(space, block)
    space.combine([(v, 0, ((1 / size, block),))])
    own: list[Any] = []
    value: Any = 0.0

    def result(info: int) -> tuple[Any, Any, int]:
        return times_power(value, -apply.unit.exponent), space.array(space.unite(v)), info

    for iteration in range(limit + 1):
        image = apply(v)
        found = space.add_up(own + space.combine((), [(image, image), (v, image)]))
        size, last, value = size_of(found[-2]), value, found[-1]
        if not is_finite(size, value):
            return result(-1)
        # The residual of the iteration before: this one's is smaller.
        if size == 0 or (own and size_of(found[0]) <= rtol * size_of(last * last.conjugate())):
            return result(0)
        if iteration == limit:
            break
        own = space.combine(
            [(other, 0, ((1 / size, image),)), (v, -value, ((1, image),))], [(v, v)]
        )
        v, other = other, v
        if callback is not None:
            callback(space.array(space.unite(v)))
    return result(limit or 1)


def eigsh(
    A: Any,
    k: int = 6,
    M: Any = None,
    sigma: float | None = None,
    which: str = "LM",
    v0: Any = None,
    ncv: int | None = None,
    maxiter: int | None = None,
    tol: float = 0,
    return_eigenvectors: bool = True,
    Minv: Any = None,
    OPinv: Any = None,
    mode: str = "normal",
    rng: Any = None,
) -> Any:
    """Find some eigenvalues and eigenvectors of a hermitian operator (collective).

    Parameters
    ----------
    A : DistArray, callable or object
        As for `cg`, but hermitian only.
    k : int
        How many.
    M, Minv, mode
        SciPy's, of generalized problems; not taken.
    sigma : float, optional
        Find eigenvalues near this one; needs `OPinv`.
    which : {"LM", "SM", "LA", "SA", "BE"}
        Those largest or smallest in absolute value, those largest or smallest, or half from each
        end; with `sigma`, of `1 / (w - sigma)`.
    v0 : DistArray, optional
        Where to begin; its shape and layout are those of vectors. Default, where A has a shape:
        random numbers.
    ncv : int, optional
        Vectors that are kept; default: `2 * k + 1`, and 20 at least.
    maxiter : int, optional
        Most restarts; default: 10 for each item of a vector.
    tol : float
        Relative error of the eigenvalues; 0: the precision of the numbers. What is small beside the
        largest one is found to the precision of that.
    return_eigenvectors : bool
        Whether to return `v`.
    OPinv : like A, optional
        The inverse of `A - sigma`: a function that solves by `cg` or `minres`, for instance.
    rng : int or Generator, optional
        Seed, or source, of the random numbers; default: 0.

    Returns
    -------
    w : DistArray
        The eigenvalues, ascending; every process has them.
    v : DistArray
        Of the shape of a vector and one axis more, of length `k`: eigenvectors `v[..., i]`.

    Raises
    ------
    LinAlgError
        If they are not found after `maxiter` restarts, or numbers are not finite; on all processes.
    ArgumentError
        If `k`, `ncv` or `which` is impossible, or nothing tells the shape of vectors.
    ArgumentTypeError, ShapeError, DTypeError
        As for `cg`.

    Notes
    -----
    The thick-restart method of Wu and Simon, "Thick-restart Lanczos method for large symmetric
    eigenvalue problems" (2000), with full orthogonalization. An eigenvalue that occurs several
    times may be found less often.

    Distribution: vectors have the layout of `v0`. Step j applies A once and makes one reduction, of
    j + 1 numbers, or two where most of a new vector lies in the space of those before. A restart
    makes one broadcast, of a small eigenproblem that one process solves. Peak memory: `ncv` + 1
    vectors, and what A needs; at the end `k` more.

    Examples
    --------
    >>> import distarray as da
    >>> w, v = da.linalg.eigsh(da.diag(da.arange(1.0, 31.0)), k=2)
    >>> print(w, v.shape)
    [29. 30.] (30, 2)
    """
    refuse(
        "eigsh",
        {"M": M, "Minv": Minv},
        "it finds eigenvalues of A alone; pass L^-1 A L^-H for those of (A, L L^H)",
    )
    read_choice("eigsh", "mode", mode, ("normal",))
    read_choice("eigsh", "which", which, ("LM", "SM", "LA", "SA", "BE"))
    check_flag("eigsh", "return_eigenvectors", return_eigenvectors)
    sigma = None if sigma is None else read_real("eigsh", "sigma", sigma)
    if (sigma is None) != (OPinv is None):
        raise ArgumentError(
            "eigsh takes sigma= and OPinv=, the inverse of A - sigma, together; that may solve by "
            "an iteration: OPinv=lambda b: da.linalg.minres(A, b, shift=sigma, rtol=1e-12)[0]"
        )
    tol = read_tolerance("eigsh", "tol", tol)
    operator = read_operator("eigsh", *(("A", A) if OPinv is None else ("OPinv", OPinv)))
    shape = operator.shape or read_operator("eigsh", "A", A).shape
    length = None if shape is None else shape[1]
    space, block, draw = _start_space("eigsh", operator, A, v0, rng, length)
    operator.check_shape("eigsh", space.layout.shape, space.layout.shape)
    n = space.size
    k = read_count("eigsh", "k", k, 6, 1)
    ncv = read_count("eigsh", "ncv", ncv, min(n, max(2 * k + 1, _LEAST_BASIS)), 1)
    if not k <= n or not min(k + 1, n) <= ncv <= n:
        raise ArgumentError(
            f"eigsh got k={k} and ncv={ncv} for vectors of {n} items; k < ncv <= {n} must hold, or "
            f"k = ncv = {n}"
        )
    limit = read_count("eigsh", "maxiter", maxiter, 10 * n)
    basis = Basis(space, ncv + 1)
    basis.start(*_start(space, block))
    apply = Map("what A returned", operator.matvec, space, space)
    tolerance = max(tol, space.eps)
    projected = np.zeros((ncv, ncv), space.wide)
    kept = 0
    for _ in range(limit):
        rest = _extend(basis, apply, projected, kept, draw)
        values, vectors = space.share(*np.linalg.eigh(projected))
        order = _order(values, which, k)
        errors = np.abs(rest * vectors[-1])
        # What is small beside A is found to the rounding of A, not to that of its own size.
        least = _ROUNDING * space.eps * np.abs(values).max(initial=0.0)
        enough = np.maximum(tolerance * np.abs(values), least)
        converged = (errors <= enough)[order[:k]]
        if converged.all() or ncv == n:
            break
        # As many again are kept as half of the others: what is kept is not found anew.
        kept = min(k + max(1, (ncv - k) // 2), ncv - 1)
        basis.replace(vectors[:, order[:kept]])
        space.combine([(basis.rows[kept], 0, ((1, basis.rows[ncv]),))])
        projected[...] = 0
        projected[np.arange(kept), np.arange(kept)] = values[order[:kept]]
    else:
        raise LinAlgError(
            f"eigsh found {int(converged.sum()) if limit else 0} of {k} eigenvalues in {limit} "
            "restarts; allow more by maxiter=, keep more vectors by ncv=, or ask for less precision"
            " by tol="
        )
    chosen = order[:k]
    found = times_power(values[chosen], -apply.unit.exponent)
    found = found if sigma is None else sigma + 1 / found
    ascending = np.argsort(found)
    real = np.empty(0, space.dtype).real.dtype
    w = new_array(found[ascending].astype(real), replicated_layout(space.mesh, (k,)))
    if not return_eigenvectors:
        return w
    basis.replace(vectors[:, chosen[ascending]])
    columns = space.empty(k).reshape(-1, k)
    columns[...] = basis.rows[:k].T
    space.unite(columns.reshape(-1))
    layout = space.layout.replace(shape=(*space.layout.shape, k))
    return w, new_array(columns.reshape(*space.local_shape, k), layout)


def _extend(basis: Basis, apply: Map, projected: np.ndarray, kept: int, draw: Any) -> float:
    """Fill a basis of which some vectors are kept; return the size of what leads out of it."""
    space, rest = basis.space, 0.0
    for j in range(kept, len(projected)):
        coefficients, rest = basis.extend(j + 1, apply(basis.rows[j]))
        if not is_finite(rest):
            raise LinAlgError(f"{space.name}: what A returned has items that are not finite")
        projected[: j + 1, j] = coefficients
        projected[j, :j] = np.conj(coefficients[:j])
        projected[j, j] = projected[j, j].real
        if rest == 0 and j + 1 < len(projected):  # these vectors are mapped to themselves
            _, size = basis.extend(j + 1, draw())
            if not size:
                raise LinAlgError(f"{space.name}: random vectors add nothing to {j + 1} ones")
    return rest


def _order(values: np.ndarray, which: str, k: int) -> np.ndarray:
    """Return places of ascending eigenvalues, those that are wanted most first."""
    places = np.arange(len(values))
    if which == "BE":
        low = k // 2
        ends = np.concatenate([places[len(places) - (k - low) :], places[:low]])
        return np.concatenate([ends, places[low : len(places) - (k - low)]])
    keys = {"LM": -np.abs(values), "SM": np.abs(values), "LA": -values, "SA": values}
    return np.argsort(keys[which], kind="stable")


def svds(
    A: Any,
    k: int = 6,
    ncv: int | None = None,
    tol: float = 0,
    which: str = "LM",
    v0: Any = None,
    maxiter: int | None = None,
    return_singular_vectors: bool = True,
    solver: str = "arpack",
    rng: Any = None,
    options: Any = None,
) -> Any:
    """Find some singular values and vectors of an operator (collective).

    Parameters
    ----------
    A : DistArray or object
        A distributed matrix, or an object with functions `matvec` and `rmatvec` of distributed
        arrays of one axis, and a `shape`.
    k : int
        How many.
    ncv, tol, maxiter, rng
        As for `eigsh`, of `A.T @ A`.
    which : {"LM", "SM"}
        The largest or the smallest ones.
    v0 : DistArray, optional
        Where to begin, as long as the shorter side of A.
    return_singular_vectors : bool
        Whether to return `u` and `vh`.
    solver, options
        SciPy's; nothing else than "arpack" is taken, which is to say `eigsh` here.

    Returns
    -------
    u : DistArray
        Of shape (m, k), its columns orthonormal.
    s : DistArray
        The singular values, ascending.
    vh : DistArray
        Of shape (k, n), its rows orthonormal.

    Raises
    ------
    ArgumentError
        If A has no adjoint or no shape, or another argument is impossible.
    LinAlgError
        As for `eigsh`.
    ArgumentTypeError, ShapeError, DTypeError
        As for `cg`.

    Notes
    -----
    Eigenvectors of `A.T @ A`, or of `A @ A.T` if that is smaller, and the decomposition of their
    images: singular values below the root of the precision, times the largest one, have few digits.
    Of those that are 0 but for rounding, vectors of the longer side are orthonormal, no more.

    Distribution: that of `eigsh`, whose step applies A and its adjoint; then that of `svd` of a
    tall matrix of `k` columns.

    Examples
    --------
    >>> import distarray as da
    >>> u, s, vh = da.linalg.svds(da.diag(da.arange(1.0, 31.0)), k=2)
    >>> print(s, u.shape, vh.shape)
    [29. 30.] (30, 2) (2, 30)
    """
    refuse("svds", {"options": options}, "none of its solvers is here but eigsh")
    read_choice("svds", "solver", solver, ("arpack",))
    read_choice("svds", "which", which, ("LM", "SM"))
    check_flag("svds", "return_singular_vectors", return_singular_vectors)
    operator = read_operator("svds", "A", A)
    if operator.rmatvec is None or operator.shape is None:
        raise ArgumentError(
            "svds: A has no adjoint or no shape; pass a matrix, or an object with matvec(x), "
            "rmatvec(y) and shape, such as a types.SimpleNamespace of them"
        )
    rows, columns = operator.shape
    forward, back = operator.matvec, operator.rmatvec
    if rows < columns:
        forward, back = back, forward
    length = min(rows, columns)
    if not 1 <= read_count("svds", "k", k, 6) <= length:
        raise ShapeError(f"svds got k={k} of a matrix of shape {operator.shape}; it has {length}")
    gram = _Gram(forward, back, (length, length), operator.dtype)
    if v0 is None and isinstance(A, BaseArray):
        gram.mesh = A._layout.mesh
    _, v = eigsh(
        gram,
        k,
        which="LA" if which == "LM" else "SA",
        v0=v0,
        ncv=ncv,
        maxiter=maxiter,
        tol=tol,
        rng=rng,
    )
    if isinstance(A, BaseArray):
        images = matmul(A if rows >= columns else adjoint(A), v)
    else:
        images = stack([forward(v[:, i]) for i in range(v.shape[1])], axis=-1)
    if not return_singular_vectors:
        return flip(svd(images, compute_uv=False), axis=0)
    u, s, wh = svd(images, full_matrices=False)
    vh = matmul(wh, adjoint(v))
    if rows < columns:
        u, vh = adjoint(vh), adjoint(u)
    return flip(u, axis=1), flip(s, axis=0), flip(vh, axis=0)


class _Gram:
    """The product of an operator and its adjoint, times a power of two.

    Items of the product alone may be too small, or too large, for numbers.
    """

    mesh: Any = None

    def __init__(self, forward: Any, back: Any, shape: tuple[int, int], dtype: Any) -> None:
        self._forward, self._back, self.shape, self.dtype = forward, back, shape, dtype
        self._exponent: int | None = None

    def matvec(self, x: Any) -> Any:
        """Apply both."""
        image = self._forward(x)
        if self._exponent is None and isinstance(image, BaseArray):
            largest = float(norm(image, np.inf))
            self._exponent = exponent_of(largest, image.dtype, ORDINARY_IMAGE) if largest else None
        return self._back(times_power(image, self._exponent or 0))
