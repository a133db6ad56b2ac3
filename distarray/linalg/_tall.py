"""Factorizations of tall matrices whose rows are cut, which send triangles and no rows.

TSQR: each process factorizes its rows, all of them get all triangles and factorize these, and each
takes its rows of the product: one round of the algorithm of Demmel, Grigori, Hoemmen and Langou,
"Communication-optimal parallel and sequential QR and LU factorizations" (2012).

CholeskyQR2: the Cholesky factor of the columns' products, which are added up over all processes, is
the triangle, and once more of what that makes of the matrix. It is as accurate where the condition
is small (Yamamoto, Nakatsukasa, Yanagisawa and Fukaya, "Roundoff error analysis of the CholeskyQR2
algorithm", 2015), and reads rows as matrix products do. Large matrices of such a condition, which
the first triangle tells all processes alike, are factorized so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from math import prod, sqrt
from typing import Any, Final

import numpy as np

from distarray.comm import _backend, _memory, gather_states, token
from distarray.core import Call, Layouts, Op, Step, refusal_error
from distarray.layout import Layout, Replicate, Shard
from distarray.linalg._kernels import solve_triangle
from distarray.ops import REPLICATED_BYTES, raise_alike
from distarray.typing import Buffer

_CHOLESKY_BYTES: Final = 1 << 20
"""Bytes of a block, on average, from which columns are multiplied before rows are factorized.

On two ranks of a Zen 5, of 4 to 128 columns, both factors then take 0.3 to 0.6 of the time of TSQR,
and 0.11 to 0.26 from 8 MiB on; the triangle alone takes 1.2 to 2, and from 64 MiB on 0.4."""

_PIECE: Final = 1 << 16
"""Items of rows that are multiplied, or divided by a triangle, while they are in a core's cache."""


def is_tall(layout: Layout) -> bool:
    """Tell whether triangles of all processes are less than the matrix, and few enough to keep."""
    if layout.ndim < 2 or not layout.size:
        return False
    *batch, rows, columns = layout.shape
    count = layout.partition(layout.ndim - 2).count
    triangles = count * columns * columns * 16 * prod(batch)
    return (
        count > 1
        and layout.partition(layout.ndim - 1).count == 1
        and rows >= count * columns
        and triangles <= REPLICATED_BYTES
    )


def _spec(_op: Op, call: Call) -> Layouts:
    source = call.layouts[0].without_partial()
    source = _with_whole(source, source.ndim - 1)  # a mesh axis of one process may cut it
    *batch, _rows, columns = source.shape
    heights = _heights(source)
    triangles = source.replace(
        shape=(*batch, sum(heights), columns),
        boundaries=(source.boundaries or {})
        | {source.ndim - 2: tuple(int(n) for n in np.cumsum([0, *heights]))},
    )
    sent = triangles, _with_whole(triangles, source.ndim - 2), True
    return Layouts((source,), source, (sent,) * (3 if _is_long(source, call.dtypes[0]) else 1))


def _is_long(source: Layout, dtype: Any) -> bool:
    """Tell whether the columns of a matrix are multiplied first: in double precision alone."""
    nbytes = source.size // source.partition(0).count * dtype.itemsize
    return source.ndim == 2 and dtype.char in "dD" and nbytes >= _CHOLESKY_BYTES


def _heights(source: Layout) -> list[int]:
    """Return the number of rows of each block's triangle."""
    blocks = source.partition(source.ndim - 2)
    lengths = (stop - start for start, stop in map(blocks.bounds, range(blocks.count)))
    return [min(length, source.shape[-1]) for length in lengths]


def _with_whole(layout: Layout, axis: int) -> Layout:
    """Return the layout without cuts of an axis."""
    if Shard(axis) not in layout.placements:
        return layout
    boundaries = {a: own for a, own in (layout.boundaries or {}).items() if a != axis}
    placements = [Replicate() if p == Shard(axis) else p for p in layout.placements]
    return layout.replace(placements=placements, boundaries=boundaries or None)


def _outputs(step: Step) -> tuple[Layout, ...]:
    source = step.sources[0]
    *batch, _, columns = source.shape
    whole = _with_whole(source, source.ndim - 2)
    square = whole.replace(shape=(*batch, columns, columns))
    values = whole.replace(shape=(*batch, columns))
    kinds = {"qr": (source, square), "r": (square,), "svd": (source, values, square)}
    return kinds.get(step.call.static, (values,))


def _dtypes(op: Op, call: Call) -> tuple[Any, Any]:
    try:
        q, s, _ = np.linalg.svd(np.empty((0, 1, 1), call.dtypes[0]))
    except (TypeError, ValueError) as error:
        raise refusal_error(op.name, error, call.dtypes) from error
    kinds: dict[str, Any] = {"qr": (q.dtype,) * 2, "r": q.dtype, "svd": (q.dtype, s.dtype, q.dtype)}
    found = kinds.get(call.static, s.dtype)
    return found, found


def _bind(step: Step) -> Callable[[Buffer], Any]:
    kind, source, name = step.call.static, step.sources[0], step.op.name
    mesh: Any = source.mesh
    comm = mesh.communicator(source.sharding_axes(source.ndim - 2))
    number = token(name, source.fingerprint, kind, step.call.dtypes[0].str)
    heights = _heights(source)
    first = sum(heights[: comm.rank])
    own_rows = slice(first, first + heights[comm.rank])
    # Without the rows that fill up triangles: columns of the factor could lie in them.
    kept = np.concatenate([i * source.shape[-1] + np.arange(n) for i, n in enumerate(heights)])
    has_columns = kind in ("qr", "svd")
    options: dict[str, Any] = {"full_matrices": False} if has_columns else {"compute_uv": False}
    decompose = raise_alike(partial(np.linalg.svd, **options), name, step.outputs[-1])
    is_long = _is_long(source, step.call.dtypes[0])

    def add_up(part: np.ndarray, turn: int) -> np.ndarray:
        told = gather_states(comm, part.reshape(-1).view(np.uint8), number + turn, step)
        total: np.ndarray = told.view(part.dtype).reshape(comm.size, *part.shape).sum(axis=0)
        return total

    def choose(products: np.ndarray) -> np.ndarray | None:
        # By one process, whose rounding is that of all: processors of other kinds have others.
        told = np.full_like(products, np.nan)
        if comm.rank == 0:
            told[...] = _well_conditioned(products, source.shape[0])
        comm.broadcast(told, 0)
        return None if np.isnan(told[0, 0]) else told

    def function(block: Buffer) -> Any:
        q: np.ndarray
        r: np.ndarray
        rows = _backend.to_host(block)
        columns = rows.shape[-1]
        found = _by_cholesky(rows, add_up, choose, has_columns) if is_long else None
        if found is not None:
            q, r = found
            if kind in ("qr", "r"):
                return _on(block, *((q, r) if kind == "qr" else (r,)))
            if kind == "values":
                return _on(block, decompose(r))
            inner, s, vh = decompose(r)
            return _on(block, q @ inner, s, vh)
        q, r = np.linalg.qr(rows) if has_columns else (rows, _triangle(rows))
        own = np.zeros((*r.shape[:-2], columns, columns), r.dtype)
        own[..., : r.shape[-2], :] = r
        told = gather_states(comm, own.reshape(-1).view(np.uint8), number, step)
        stack = np.moveaxis(told.view(r.dtype).reshape(comm.size, *own.shape), 0, -3)
        stack = stack.reshape(*own.shape[:-2], comm.size * columns, columns)[..., kept, :]
        if kind == "r":
            return _on(block, _triangle(stack))
        if kind == "qr":
            inner, r = np.linalg.qr(stack)
            return _on(block, q @ inner[..., own_rows, :], r)
        if kind == "values":
            return _on(block, decompose(stack))
        inner, s, vh = decompose(stack)
        return _on(block, q @ inner[..., own_rows, :], s, vh)

    return function


def _well_conditioned(products: np.ndarray, height: int) -> Any:
    """Return the triangle of products of the columns of a matrix; NaN if its condition is large.

    `height` is that of the matrix.
    """
    columns = len(products)
    precision = np.finfo(products.dtype).eps / 2
    condition = 1 / (8 * sqrt((height + columns + 1) * columns * precision))
    with np.errstate(all="ignore"), contextlib.suppress(np.linalg.LinAlgError):
        found = np.linalg.cholesky(products).conj().T
        if np.linalg.cond(found) <= condition:
            return found
    return np.nan


def _by_cholesky(
    rows: np.ndarray,
    add_up: Callable[[np.ndarray, int], np.ndarray],
    choose: Callable[[np.ndarray], np.ndarray | None],
    has_columns: bool,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return this process's rows of the factor, and the triangle; None if its condition is large.

    `add_up` adds up what all processes have, and `choose` gives the first triangle. Without
    `has_columns` the factor is not finished.
    """
    count, columns = rows.shape
    step = max(_PIECE // columns, columns)
    pieces = [slice(start, start + step) for start in range(0, count, step)]
    products = np.zeros((columns, columns), rows.dtype)
    with np.errstate(all="ignore"):
        for piece in pieces:
            products += rows[piece].conj().T @ rows[piece]
        first = choose(add_up(products, 1))
        if first is None:
            return None
        q: np.ndarray = _memory.empty(rows.shape, rows.dtype)
        products[...] = 0
        for piece in pieces:
            part = q[piece]
            part[...] = rows[piece]
            solve_triangle(first.T, part.T, lower=True)
            products += part.conj().T @ part
        second = np.linalg.cholesky(add_up(products, 2)).conj().T  # near 1: it has one
    for piece in pieces if has_columns else ():
        solve_triangle(second.T, q[piece].T, lower=True)
    return q, second @ first


def _triangle(x: np.ndarray) -> np.ndarray:
    found: Any = np.linalg.qr(x, "r")
    return found


def _on(block: Buffer, *results: np.ndarray) -> Any:
    device = _backend.device_of(block)
    moved = tuple(_backend.asarray(np.ascontiguousarray(one), device) for one in results)
    return moved if len(moved) > 1 else moved[0]


tall_qr = Op("qr", np.linalg.qr, _spec, dtypes=_dtypes, bind=_bind, outputs=_outputs)
"""Its static argument is "qr", or "r" for the triangle alone."""

tall_svd = Op("svd", np.linalg.svd, _spec, dtypes=_dtypes, bind=_bind, outputs=_outputs)
"""Its static argument is "svd", or "values" for the singular values alone."""
