"""Factorizations of matrices and their eigenvalues."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from distarray.core import BaseArray, check_flag, describe, numeric, refusal_error, register, run
from distarray.errors import ArgumentError
from distarray.linalg import _tiles
from distarray.linalg._blocked_cholesky import blocked_cholesky
from distarray.linalg._blocked_qr import blocked_qr, panel_width
from distarray.linalg._blocks import adjoint, cut_as, multiply, on_grid
from distarray.linalg._kernels import decompose_finite
from distarray.linalg._spectral import eigen, hermitian, singular, singular_values
from distarray.linalg._tall import is_tall, tall_qr, tall_svd
from distarray.linalg._tiles import is_large, takes_tiles
from distarray.ops import Axes, astype, concat, give_values, matrix_transpose, whole_axes


class EigResult(NamedTuple):
    """Eigenvalues and right eigenvectors."""

    eigenvalues: Any
    eigenvectors: Any


class EighResult(NamedTuple):
    """Eigenvalues in ascending order, and eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    """Orthonormal columns, and an upper triangle."""

    Q: Any
    R: Any


class SVDResult(NamedTuple):
    """Left singular vectors, singular values in descending order, right singular vectors."""

    U: Any
    S: Any
    Vh: Any


def _complex(function: Any) -> Any:
    """Return a function whose results are complex whatever the values, as the standard asks."""

    def call(block: Any) -> Any:
        results = function(block)
        if isinstance(results, tuple):
            return tuple(np.asarray(one, _complex_dtype(block)) for one in results)
        return np.asarray(results, _complex_dtype(block))

    return call


def _complex_dtype(block: np.ndarray) -> Any:
    single = block.dtype in (np.float32, np.complex64)
    return np.complex64 if single else np.complex128


_cholesky = whole_axes("cholesky", np.linalg.cholesky, fails=True)
_qr = whole_axes("qr", lambda block, mode: _as_tuple(np.linalg.qr(block, mode)), kinds=numeric)
_svd = whole_axes("svd", lambda *args, **kw: _as_tuple(decompose_finite(*args, **kw)), fails=True)
_eigh = whole_axes("eigh", lambda block, UPLO: _as_tuple(np.linalg.eigh(block, UPLO)), fails=True)  # noqa: N803
_eigvalsh = whole_axes("eigvalsh", np.linalg.eigvalsh, fails=True)
_eig = whole_axes("eig", _complex(np.linalg.eig), fails=True)
_eigvals = whole_axes("eigvals", _complex(np.linalg.eigvals), fails=True)


def _as_tuple(results: Any) -> Any:
    return tuple(results) if isinstance(results, tuple) else results


def cholesky(x: Any, /, *, upper: bool = False) -> Any:
    """Return the triangle L with `x = L @ L.mT.conj()` of positive definite matrices.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, m). Of each matrix one triangle is looked at.
    upper : bool
        Return the upper triangle U with `x = U.mT.conj() @ U` instead.

    Returns
    -------
    DistArray
        Of the shape of `x`, cut as `x` is, or along a batch axis where that had to be.

    Raises
    ------
    LinAlgError
        If a matrix is not square or not positive definite; on all processes.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB.

    Notes
    -----
    Distribution: nothing is sent where no matrix is cut; else one all-to-all that cuts a batch axis
    instead, or, of a single matrix up to 8 MiB, an all-gather. Processes with the same matrices
    compare checksums of the results. Peak memory: twice what a process then has.

    A single matrix that is larger is factorized where it is distributed, in tiles of a block-cyclic
    distribution, right-looking (Choi, Dongarra et al. 1996): on p processes each receives about
    n^2 / sqrt(p) items of panels, and its tiles twice. Peak memory: three blocks and two panels of
    256 columns; where processes cannot share the rows in tiles evenly up to half as much again.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.cholesky(da.asarray([[4.0, 2.0], [2.0, 5.0]])))
    [[2. 0.]
     [1. 2.]]
    """
    upper = check_flag("cholesky", "upper", upper)
    if takes_tiles(x):
        if upper:
            return adjoint(run(blocked_cholesky, (adjoint(x),), _tiles.tile_width(x)))
        return run(blocked_cholesky, (x,), _tiles.tile_width(x))
    options = (("upper", upper),)
    return run(_cholesky, (x,), Axes("ij->ij", options))


def qr(x: Any, /, mode: str = "reduced") -> Any:
    """Return the factors Q and R of matrices: orthonormal columns, and an upper triangle.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, n).
    mode : {"reduced", "complete", "r", "raw"}
        k = min(m, n) columns of Q, or m; R alone; or LAPACK's own form, as in NumPy.

    Returns
    -------
    QRResult
        With `Q` of shape (..., m, k), cut as the rows of `x` are, and `R` of shape (..., k, n), cut
        as its columns are; both along a batch axis where matrices had been cut.

    Raises
    ------
    ArgumentError
        If there is no such mode.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB, or one with
        mode="raw".

    Notes
    -----
    Distribution: as for `cholesky`. But where rows are cut, and blocks have as many of them as
    there are columns, triangles of n x n items are joined along a tree of the processes, and no row
    is sent: TSQR (Demmel, Grigori, Hoemmen, Langou 2012). On p processes each receives n^2 items
    log2(p) times at most, and 2 n^2. Of blocks of 1 MiB or more it is products of columns that are
    added up, twice, where the first ones tell that the condition is small: CholeskyQR2 (Yamamoto et
    al. 2015). Of other conditions, and up to 128 columns, they are shifted first, once to four
    times: shifted CholeskyQR3 (Fukaya et al. 2020). For each time a process receives 3 n^2 items.
    Residuals are as small and columns as orthogonal as by TSQR, which is left for columns that are
    zero, not finite, or dependent to the last digit. Peak memory: twice the block of `Q`, and
    triangles of up to 128 MiB.

    Any other matrix of more than 8 MiB that is cut is factorized in tiles of a block-cyclic
    distribution, unless the mode is "raw", and both factors are cut as it is. Panels are factorized
    by TSQR and made block reflectors (Schreiber, Parlett 1988; Ballard et al. 2014): columns are
    orthonormal to the precision whatever the condition or the rank. On p processes each receives
    about 3 n^2 / sqrt(p) items of panels, and the tiles of the matrix and both factors. Peak
    memory: five blocks and two panels of 128 columns. Of a wide matrix the first m columns are
    factorized, and the others multiplied by the adjoint of `Q`.

    Examples
    --------
    >>> import distarray as da
    >>> q, r = da.linalg.qr(da.ones((4, 2)))
    >>> q.shape, r.shape
    ((4, 2), (2, 2))
    """
    subscripts = {"reduced": "ij->ik,kj", "complete": "ij->ik,lj", "r": "ij->kj", "raw": "ij->ji,k"}
    if not isinstance(mode, str) or mode not in subscripts:
        raise ArgumentError(
            f"qr got mode={describe(mode)}; it is one of {', '.join(map(repr, subscripts))}"
        )
    if mode in ("reduced", "r") and isinstance(x, BaseArray) and is_tall(x.layout):
        found = run(tall_qr, (x,), "r" if mode == "r" else "qr")
        return found if mode == "r" else QRResult(*found)
    if mode != "raw" and is_large(x, _tiles.WHOLE_BYTES):
        return _qr_in_tiles(x, mode)
    found = run(_qr, (x,), Axes(subscripts[mode], (("mode", mode),)))
    return QRResult(*found) if mode in ("reduced", "complete") else found


def _qr_in_tiles(x: Any, mode: str) -> Any:
    rows, columns = x.shape
    if rows >= columns:
        found = run(blocked_qr, (x,), (mode, panel_width(x)))
        return found if mode == "r" else QRResult(*found)
    x = cut_as(x, x)  # not Partial
    q, first = qr(x[:, :rows])
    rest = cut_as(multiply(adjoint(q), x[:, rows:]), x)
    r = cut_as(concat([first, rest], axis=1), x)
    return r if mode == "r" else QRResult(q, r)


def svd(
    x: Any, /, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any:
    """Return the singular value decomposition of matrices: `x = (U * S[..., None, :]) @ Vh`.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, n).
    full_matrices : bool
        m columns of U and n rows of Vh; else k = min(m, n) of both.
    compute_uv : bool
        Return `SVDResult`, else the singular values alone.
    hermitian : bool
        Whether the matrices are hermitian, for which there is a quicker way.

    Returns
    -------
    SVDResult
        With `U` (..., m, m or k), cut as the rows of `x` are, `S` (..., k), and `Vh`
        (..., n or k, n), cut as its columns are; along a batch axis where matrices had been cut.

    Raises
    ------
    LinAlgError
        If it does not converge; on all processes.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB.

    Notes
    -----
    Distribution: without `full_matrices`, rows of tall matrices as by `qr`, and of wide ones those
    of the transpose. A single matrix up to 128 MiB is collected otherwise; a larger one is not, and
    factors are cut as it is. If it is not square it is factorized by `qr` first. Of a square one
    the singular values are eigenvalues of the hermitian factor of its polar decomposition, which
    are found as by `eigh` (Nakatsukasa, Higham 2013), in 120 n^3 operations or more, six times
    as many as LAPACK's, shared by all processes. On p processes each receives about
    100 n^2 / sqrt(p) items where the hermitian factor is divided once. Peak memory: that of `eigh`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.svd(da.eye(2)).S)
    [1. 1.]
    """
    flags = {"full_matrices": full_matrices, "compute_uv": compute_uv, "hermitian": hermitian}
    flags = {name: check_flag("svd", name, flag) for name, flag in flags.items()}
    needs = "values" if not flags["compute_uv"] else None if flags["full_matrices"] else "svd"
    may_be_tall = not flags["hermitian"]  # which is square
    if needs is not None and may_be_tall and isinstance(x, BaseArray) and x.ndim > 1:
        if is_tall(x.layout):
            found = run(tall_svd, (x,), needs)
            return found if needs == "values" else SVDResult(*found)
        turned = matrix_transpose(x)
        if is_tall(turned.layout):
            found = run(tall_svd, (turned,), needs)
            if needs == "values":
                return found
            u, s, vh = found
            return SVDResult(matrix_transpose(vh), s, matrix_transpose(u))
    if is_large(x, _tiles.COLLECTED_BYTES) and (may_be_tall or x.shape[0] == x.shape[1]):
        return _svd_by_division(to_inexact("svd", x), flags["full_matrices"], flags["compute_uv"])
    if not flags["compute_uv"]:
        return run(_svd, (x,), Axes("ij->k", tuple(flags.items())))
    return SVDResult(*run(_svd, (x,), Axes("ij->ik,l,mj", tuple(flags.items()))))


def _svd_by_division(x: Any, is_full: bool, has_vectors: bool) -> Any:
    rows, columns = x.shape
    if rows < columns:
        found = _svd_by_division(matrix_transpose(x), is_full, has_vectors)
        if not has_vectors:
            return found
        return SVDResult(matrix_transpose(found.Vh), found.S, matrix_transpose(found.U))
    if rows > columns:
        mode = ("complete" if is_full else "reduced") if has_vectors else "r"
        found = qr(x, mode)
        if not has_vectors:
            return svd(found, compute_uv=False)
        q, r = found
        u, s, vh = svd(r[:columns])
        u = multiply(q[:, :columns], u)
        u = concat([u, on_grid(q[:, columns:])], axis=1) if is_full else u
    elif not has_vectors:
        return give_values(x, singular_values(x, "svd", _small_eigh))
    else:
        u, s, vh = singular(x, "svd", _small_eigh)
        s = give_values(x, s)
    return SVDResult(cut_as(u, x), s, cut_as(vh, x))


def to_inexact(name: str, x: Any) -> Any:
    """Return a matrix of the dtype that is decomposed in its place."""
    try:
        dtype = np.linalg.svd(np.empty((0, 1, 1), x.dtype))[0].dtype
    except (TypeError, ValueError) as error:
        raise refusal_error(name, error, (x.dtype,)) from error
    return astype(x, dtype, copy=False)


def svdvals(x: Any, /) -> Any:
    """Return the singular values of matrices in descending order.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, n).

    Returns
    -------
    DistArray
        Of shape (..., min(m, n)), replicated where matrices had been cut that stand alone.

    Raises
    ------
    LinAlgError
        If it does not converge; on all processes.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB.

    Notes
    -----
    Distribution: as for `svd`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.svdvals(da.eye(2) * 3))
    [3. 3.]
    """
    return svd(x, compute_uv=False)


def eigh(x: Any, /, UPLO: str = "L") -> EighResult:  # noqa: N803 (NumPy's name)
    """Return eigenvalues and eigenvectors of hermitian matrices.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, m).
    UPLO : {"L", "U"}
        The triangle that is looked at.

    Returns
    -------
    EighResult
        With `eigenvalues` (..., m), ascending, and `eigenvectors` (..., m, m), in columns, cut as
        the rows of `x` are; along a batch axis where matrices had been cut.

    Raises
    ------
    LinAlgError
        If a matrix is not square, or it does not converge; on all processes.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB.

    Notes
    -----
    Distribution: as for `cholesky`, but that a single matrix up to 128 MiB is collected. A larger
    one is divided, as often as needed, into blocks of larger and of smaller eigenvalues: spectral
    divide and conquer (Nakatsukasa, Higham 2013), with polar decompositions by QDWH (Nakatsukasa,
    Bai, Gygi 2010). Eigenvectors are cut as it is. To divide a matrix on p processes each receives
    about 56 n^2 / sqrt(p) items and does 50 to 90 n^3 / p operations, six to ten times as many as
    LAPACK in all. Peak memory: 18 blocks, or of a matrix that is collected six times its size.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.eigh(da.asarray([[2.0, 0.0], [0.0, 1.0]])).eigenvalues)
    [1. 2.]
    """
    letter = _triangle(UPLO)
    if takes_tiles(x, _tiles.COLLECTED_BYTES):
        values, vectors = eigen(hermitian(to_inexact("eigh", x), letter), "eigh", _small_eigh)
        return EighResult(give_values(x, values), cut_as(vectors, x))
    return EighResult(*run(_eigh, (x,), Axes("ij->k,il", (("UPLO", letter),))))


def _small_eigh(x: Any) -> Any:
    return run(_eigh, (x,), Axes("ij->k,il", (("UPLO", "L"),)))


def eigvalsh(x: Any, /, UPLO: str = "L") -> Any:  # noqa: N803 (NumPy's name)
    """Return the eigenvalues of hermitian matrices in ascending order.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, m).
    UPLO : {"L", "U"}
        The triangle that is looked at.

    Returns
    -------
    DistArray
        Of shape (..., m).

    Raises
    ------
    LinAlgError
        If a matrix is not square, or it does not converge; on all processes.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB.

    Notes
    -----
    Distribution: as for `eigh`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.eigvalsh(da.asarray([[2.0, 0.0], [0.0, 1.0]])))
    [1. 2.]
    """
    letter = _triangle(UPLO)
    if takes_tiles(x, _tiles.COLLECTED_BYTES):
        return eigh(x, letter).eigenvalues
    return run(_eigvalsh, (x,), Axes("ij->k", (("UPLO", letter),)))


def _triangle(letter: Any) -> str:
    if not isinstance(letter, str) or letter.upper() not in ("L", "U"):
        raise ArgumentError(
            f"UPLO={describe(letter)}: it is 'L' or 'U', the triangle that is looked at"
        )
    return letter.upper()


def eig(x: Any, /) -> EigResult:
    """Return eigenvalues and right eigenvectors of matrices.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, m).

    Returns
    -------
    EigResult
        With `eigenvalues` (..., m) and `eigenvectors` (..., m, m), in columns, cut as the rows of
        `x` are. Both are complex whatever the values, as in the standard: NumPy's are real where
        all imaginary parts are 0.

    Raises
    ------
    LinAlgError
        If a matrix is not square or not finite, or it does not converge; on all processes.
    ImplicitCommunicationError
        If one matrix that is cut is larger than 128 MiB.

    Notes
    -----
    Distribution: as for `cholesky`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.eig(da.eye(2)).eigenvalues)
    [1.+0.j 1.+0.j]
    """
    return EigResult(*run(_eig, (x,), Axes("ij->k,il")))


def eigvals(x: Any, /) -> Any:
    """Return the eigenvalues of matrices.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, m).

    Returns
    -------
    DistArray
        Of shape (..., m), complex whatever the values, as in the standard: NumPy's are real where
        all imaginary parts are 0.

    Raises
    ------
    LinAlgError
        If a matrix is not square or not finite, or it does not converge; on all processes.
    ImplicitCommunicationError
        If one matrix that is cut is larger than 128 MiB.

    Notes
    -----
    Distribution: as for `cholesky`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.eigvals(da.eye(2)))
    [1.+0.j 1.+0.j]
    """
    return run(_eigvals, (x,), Axes("ij->k"))


for _function in (cholesky, qr, svd, svdvals, eigh, eigvalsh, eig, eigvals):
    register(_function, room="linalg")
