"""Factorizations of tall matrices whose rows are cut, which send triangles and no rows.

TSQR: each process factorizes its rows; of two triangles, one above the other, one process makes
one, along a tree whose root has the triangle of all, and each gets back, along the tree, its rows
of what the orthonormal factors of these come to (Demmel, Grigori, Hoemmen and Langou,
"Communication-optimal parallel and sequential QR and LU factorizations", 2012). Of n columns in
each matrix no process receives more than n^2 items log2(p) times, and 2 n^2 on the way back. Peak
memory: twice the block, and 2 n^2 log2(p) items.

CholeskyQR2: the Cholesky factor of the columns' products, which are added up over all processes, is
the triangle, and once more of what that makes of the matrix. It is as accurate where the condition
is small (Yamamoto, Nakatsukasa, Yanagisawa and Fukaya, "Roundoff error analysis of the CholeskyQR2
algorithm", 2015), and reads rows as matrix products do. Where it is not, a multiple of the identity
is added to the products first, which leaves columns of a smaller condition, as often as needed:
shifted CholeskyQR3 (Fukaya, Kannan, Nakatsukasa, Yamamoto and Yanagisawa, "Shifted Cholesky QR for
computing the QR factorization of ill-conditioned matrices", 2020). Columns are scaled to lengths
near 1, so that only their directions count. Matrices in single precision are multiplied in double
(Yamazaki, Tomov, Dongarra, "Mixed-precision Cholesky QR factorization and its case studies on
multicore CPU with multiple GPUs", 2015). Large matrices are factorized so; where that fails, as of
columns that are zero, not finite, or dependent in every digit, TSQR takes its place. Each time a
process receives the 2 n^2 items of an all-reduce and, but for the last, n^2 of a triangle, which
one process finds for all. Peak memory: the block and that of the factor, and 4 n^2 items.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from math import prod, sqrt
from typing import Any, Final

import numpy as np

from distarray.comm import Communicator, _backend, _memory
from distarray.core import Call, Layouts, Op, Step, dtypes_of, numeric
from distarray.layout import Layout
from distarray.linalg._kernels import decompose_finite, solve_triangle
from distarray.ops import REPLICATED_BYTES, raise_alike, uncut_axes
from distarray.typing import Buffer

_CHOLESKY_BYTES: Final = 1 << 20
"""Bytes of a block, on average, from which columns are multiplied before rows are factorized.

On two ranks of a Zen 5, of 4 to 128 columns, both factors then take 0.3 to 0.6 of the time of TSQR,
and 0.11 to 0.26 from 8 MiB on; the triangle alone takes 1.2 to 2, and from 64 MiB on 0.4."""

_PIECE: Final = 1 << 16
"""Items of rows that are multiplied, or divided by a triangle, while they are in a core's cache."""

_MOST_SHIFTS: Final = 4
"""How often products are shifted at most. Each time divides a condition by 1e3 or more: four take
1e15, and columns that depend on each other but for rounding, to what the products tell exactly."""


_SHIFTED_COLUMNS: Final = 128
"""Of so many columns at most products are shifted. On two ranks of a Zen 4, where the condition is
1e15, that takes 0.3 of the time of TSQR for 32 columns of 4 Mi rows, 0.9 for 128, 1.5 for 256."""

_INVERTED_CONDITION: Final = 10
"""Up to this condition a triangle is inverted, which loses as many units of rounding: products with
the inverse take half the time of solutions for 32 columns, and a tenth for 8."""


def is_tall(layout: Layout) -> bool:
    """Tell whether a tree of triangles is less than the matrix, and small enough to keep."""
    if layout.ndim < 2 or not layout.size:
        return False
    *batch, rows, columns = layout.shape
    count = layout.partition(layout.ndim - 2).count
    triangles = 2 * _levels(count) * columns * columns * 16 * prod(batch)
    return (
        count > 1
        and layout.partition(layout.ndim - 1).count == 1
        and rows >= count * columns
        and triangles <= REPLICATED_BYTES
    )


def _levels(count: int) -> int:
    """Return how often triangles of so many processes are joined one after the other."""
    return (count - 1).bit_length()


def _spec(_op: Op, call: Call) -> Layouts:
    source = call.layouts[0].without_partial()
    source = uncut_axes(source, (source.ndim - 1,))  # a mesh axis of one process may cut it
    *batch, _rows, columns = source.shape
    axis = source.ndim - 2
    count = source.partition(axis).count
    # All that a process receives at most, as if another had it: of TSQR, and of CholeskyQR2 before.
    height = (_levels(count) + 1 + 5 * _is_long(source)) * columns
    told = source.replace(
        shape=(*batch, height, columns),
        boundaries=(source.boundaries or {}) | {axis: (0,) * count + (height,)},
    )
    return Layouts((source,), source, ((told, uncut_axes(told, (axis,)), True),))


def _is_long(source: Layout) -> bool:
    """Tell whether columns of a matrix are multiplied: whether blocks of float64 are large."""
    return source.ndim == 2 and source.size * 8 >= _CHOLESKY_BYTES * source.partition(0).count


def _heights(source: Layout) -> list[int]:
    """Return the number of rows of each block's triangle."""
    blocks = source.partition(source.ndim - 2)
    lengths = (stop - start for start, stop in map(blocks.bounds, range(blocks.count)))
    return [min(length, source.shape[-1]) for length in lengths]


def _outputs(step: Step) -> tuple[Layout, ...]:
    source = step.sources[0]
    *batch, _, columns = source.shape
    whole = uncut_axes(source, (source.ndim - 2,))
    square = whole.replace(shape=(*batch, columns, columns))
    values = whole.replace(shape=(*batch, columns))
    kinds = {"qr": (source, square), "r": (square,), "svd": (source, values, square)}
    return kinds.get(step.call.static, (values,))


@dtypes_of
def _dtypes(_op: Op, call: Call) -> Any:
    q, s, _ = np.linalg.svd(np.empty((0, 1, 1), call.dtypes[0]))
    kinds: dict[str, Any] = {"qr": (q, q), "r": q, "svd": (q, s, q)}
    return kinds.get(call.static, s)


def _bind(step: Step) -> Callable[[Buffer], Any]:
    kind, source, name = step.call.static, step.sources[0], step.op.name
    mesh: Any = source.mesh
    comm = mesh.communicator(source.sharding_axes(source.ndim - 2))
    number = step.token()
    heights, is_long = _heights(source), _is_long(source)
    largest = source.partition(source.ndim - 2).largest
    has_columns = kind in ("qr", "svd")
    options: dict[str, Any] = {"full_matrices": False} if has_columns else {"compute_uv": False}
    decompose = raise_alike(partial(decompose_finite, **options), name, step.outputs[-1])
    dtype = np.linalg.qr(np.empty((0, 1, 1), step.call.dtypes[0]))[0].dtype

    def function(block: Buffer) -> Any:
        rows = _backend.to_host(block)
        comm.agree(number, step)
        found = _by_cholesky(comm, rows, dtype, largest, has_columns) if is_long else None
        if found is None:
            q, r = _factorize(rows, has_columns)
            inner, r = _join(comm, r, heights, has_columns)
        else:
            (q, r), inner = found, None
        if kind in ("r", "values"):
            return _to_device_of(block, r if kind == "r" else decompose(r))
        if kind == "qr":
            return _to_device_of(block, q if inner is None else q @ inner, r)
        u, s, vh = decompose(r)
        return _to_device_of(block, q @ (u if inner is None else inner @ u), s, vh)

    return function


def _join(
    comm: Communicator, r: np.ndarray, heights: list[int], has_columns: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return this process's rows of the factor of all triangles, and the triangle of that.

    Triangles of fewer rows than columns stay as they are: rows of zeros that filled them up could
    be where columns of the factor lie. One process finds what two have: rounded otherwise, on a
    processor of another kind, columns could have the other sign. `heights` are the rows of each.
    Without `has_columns` the rows are none.
    """
    *batch, _, columns = r.shape

    def room(rows: int) -> np.ndarray:
        return np.empty((*batch, rows, columns), r.dtype)

    joined: list[tuple[int, np.ndarray, np.ndarray]] = []
    step = 1
    while step < comm.size and not comm.rank % (2 * step):
        child = comm.rank + step
        if child < comm.size:
            other = room(min(sum(heights[child : child + step]), columns))
            comm.recv(other, child)
            stack = np.concatenate([r, other], axis=-2)
            above = r.shape[-2]
            q, r = _factorize(stack, has_columns)
            joined.append((child, q[..., :above, :], q[..., above:, :]))
        step *= 2
    if comm.rank:
        comm.send(np.ascontiguousarray(r), comm.rank - step)
    if not has_columns:
        r = room(columns) if comm.rank else np.ascontiguousarray(r)
        comm.broadcast(r)
        return r[..., :0, :], r
    if comm.rank:
        told = room(r.shape[-2] + columns)
        comm.recv(told, comm.rank - step)
        inner, r = told[..., :-columns, :], told[..., -columns:, :]
    else:
        inner = np.broadcast_to(np.eye(columns, dtype=r.dtype), r.shape)
    for child, above, below in reversed(joined):
        comm.send(np.concatenate([below @ inner, r], axis=-2), child)
        inner = above @ inner
    return inner, r


def _by_cholesky(
    comm: Communicator, rows: np.ndarray, dtype: Any, largest: int, has_columns: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return this process's rows of the factor, and the triangle; None if products do not tell it.

    `largest` are the rows of the largest block. Without `has_columns` the factor is not finished.
    """
    count, columns = rows.shape
    wide = np.result_type(dtype, np.float64)
    length = max(_PIECE // columns, columns)
    pieces = [slice(start, start + length) for start in range(0, count, length)]
    terms = length + -(-largest // length) + comm.size  # that follow each other in a product
    products = np.zeros((columns, columns), wide)
    told = np.empty((columns + 1, columns), wide)
    r, q = np.eye(columns, dtype=wide), rows
    with np.errstate(all="ignore"):
        for piece in pieces:
            part = rows[piece].astype(wide, copy=False)
            products += part.conj().T @ part
        for shifts in reversed(range(1 + (columns <= _SHIFTED_COLUMNS) * _MOST_SHIFTS)):
            comm.all_reduce(products, out=products)
            if comm.rank == 0:
                told[...] = _choose(products, terms, shifts > 0)
            comm.broadcast(told)
            factor, is_shifted = told[:-1], told[-1, 0] != 0
            if not np.isfinite(told[0, 0]):
                return None
            r = factor @ r
            source, q = q, _memory.empty(rows.shape, dtype) if q is rows else q
            products[...] = 0
            for part in _divide(source, factor, q, pieces):
                products += part.conj().T @ part
            if not is_shifted:
                break
        comm.all_reduce(products, out=products)
        factor = np.linalg.cholesky(products).conj().T  # of what is near 1: it has one
    for _ in _divide(q, factor, q, pieces) if has_columns else ():
        pass
    return q, (factor @ r).astype(dtype, copy=False)


def _divide(
    source: np.ndarray, factor: np.ndarray, target: np.ndarray, pieces: list[slice]
) -> Iterator[np.ndarray]:
    """Put rows times the inverse of a triangle into a target, and yield them piece by piece."""
    dtype, inverse = factor.dtype, None
    if np.linalg.cond(factor, "fro") <= _INVERTED_CONDITION * len(factor):
        inverse = np.linalg.inv(factor)
    for piece in pieces:
        if inverse is not None:
            part = source[piece].astype(dtype, copy=False) @ inverse
        else:
            part = source[piece].astype(dtype)
            solve_triangle(factor.T, part.T, lower=True)
        target[piece] = part
        yield part


def _choose(products: np.ndarray, terms: int, may_shift: bool) -> np.ndarray:
    """Return a triangle of which products of columns are those; NaN where there is none to trust.

    Whether it is one of shifted products stands in a row below. `terms` are those of a sum that are
    added one after the other.
    """
    columns = len(products)
    told = np.full((columns + 1, columns), np.nan, products.dtype)
    finfo = np.finfo(products.dtype)
    squares = products.diagonal().real
    if not (np.isfinite(products).all() and squares.min() > terms * finfo.tiny / finfo.eps):
        return told
    scales = np.exp2(-np.round(np.log2(squares) / 2))  # exact, and so columns are as they were
    scaled = products * scales * scales[:, None]
    error = columns * (terms + columns + 1) * finfo.eps / 2
    # Norms of Frobenius are no less than those of the paper, and found in less time.
    with contextlib.suppress(np.linalg.LinAlgError):
        found = np.linalg.cholesky(scaled).conj().T
        if np.linalg.cond(found, "fro") <= 1 / (8 * sqrt(error)):
            told[:-1], told[-1] = found / scales, 0
            return told
    with contextlib.suppress(np.linalg.LinAlgError):
        if may_shift:
            scaled += 11 * error * np.linalg.norm(scaled) * np.eye(columns)
            told[:-1], told[-1] = np.linalg.cholesky(scaled).conj().T / scales, 1
    return told


def _factorize(rows: np.ndarray, has_columns: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the factor, without `has_columns` no rows of it, and the triangle of a matrix.

    LAPACK adds a column's norm to one of its items, which may overflow where neither does, and
    leaves few digits to subnormal numbers. Columns of such a matrix are scaled by powers of two
    before, each by its own: next to the largest, small ones would vanish.
    """

    def found(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if has_columns:
            return np.linalg.qr(x)
        triangle: Any = np.linalg.qr(x, "r")
        return x[..., :0, :], triangle

    with np.errstate(over="ignore", invalid="ignore"):
        q, r = found(rows)
    finfo = np.finfo(r.dtype)
    size = float(abs(r).max(initial=0))
    if finfo.tiny / finfo.eps < size < finfo.max * finfo.eps or not rows.size:
        return q, r
    largest = np.maximum(abs(rows.real).max(-2), abs(rows.imag).max(-2))[..., None, :]
    if not np.isfinite(largest).all():
        return q, r
    exponents = np.clip(-np.frexp(largest)[1], finfo.minexp, -finfo.minexp)
    one = finfo.dtype.type(1.0)
    q, r = found(rows * np.ldexp(one, exponents))
    return q, r * np.ldexp(one, -exponents)


def _to_device_of(block: Buffer, *results: np.ndarray) -> Any:
    device = _backend.device_of(block)
    moved = tuple(_backend.asarray(np.ascontiguousarray(one), device) for one in results)
    return moved if len(moved) > 1 else moved[0]


tall_qr = Op("qr", np.linalg.qr, _spec, kinds=numeric, dtypes=_dtypes, bind=_bind, outputs=_outputs)
"""Its static argument is "qr", or "r" for the triangle alone."""

tall_svd = Op("svd", np.linalg.svd, _spec, dtypes=_dtypes, bind=_bind, outputs=_outputs)
"""Its static argument is "svd", or "values" for the singular values alone."""
