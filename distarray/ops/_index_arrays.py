"""Index arrays made: of diagonals and triangles, open meshes, and places in flat order.

What has as many items as a part of a matrix is distributed, like everything that `arange` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import (
    BaseArray,
    Op,
    Step,
    check_distributed,
    check_integer,
    check_order,
    describe,
    normalize_shape,
    plain_buffer,
    pointwise_spec,
    refusal,
    register,
    run,
)
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ShapeError,
)
from distarray.ops.creation._filled import ones
from distarray.ops.creation._ranges import arange
from distarray.ops.elementwise._arithmetic import subtract
from distarray.ops.elementwise._logic import greater_equal, less_equal
from distarray.ops.families._values import on_host
from distarray.ops.indexing._items import getitem
from distarray.ops.indexing._masks import outside
from distarray.ops.indexing._places import nonzero
from distarray.ops.manipulation._joining import unstack
from distarray.typing import Buffer

_INDEX = np.dtype(np.int64)
_PIECE: Final = 1 << 13
"""Places that are taken apart at once, which stay in the cache until their parts are copied."""

# --- diagonals and triangles ---------------------------------------------------------------------


def diag_indices(n: int, ndim: int = 2, *, mesh: Any = None) -> tuple[Any, ...]:
    """Return the indices of the main diagonal of arrays whose axes all have length `n`.

    Parameters
    ----------
    n, ndim : int
        Length and number of axes.
    mesh : DeviceMesh, optional
        As for `arange`.

    Returns
    -------
    tuple of DistArray
        One array for each axis, cut as those of `arange`.

    Raises
    ------
    ArgumentTypeError
        If a number is not an integer.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.zeros((2, 2))
    >>> x[da.diag_indices(2)] = 1
    >>> x.full_array()
    array([[1., 0.],
           [0., 1.]])
    """
    n = check_integer("diag_indices", "n", n)
    return (arange(n, mesh=mesh),) * check_integer("diag_indices", "ndim", ndim)


@register
def diag_indices_from(x: Any, /) -> tuple[Any, ...]:
    """Return the indices of the main diagonal of an array: `diag_indices` of its lengths.

    Raises
    ------
    ShapeError
        If it has fewer than two axes, or axes of different lengths.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.arange(9).reshape(3, 3)
    >>> x[da.diag_indices_from(x)].full_array()
    array([0, 4, 8])
    """
    shape = check_distributed("diag_indices_from", x).shape
    if len(shape) < 2 or len(set(shape)) > 1:
        raise ShapeError(
            f"diag_indices_from got an array of shape {shape}; it takes at least two axes, all of "
            "one length"
        )
    return diag_indices(shape[0], len(shape), mesh=x._layout.mesh)


def tril_indices(n: int, k: int = 0, m: int | None = None, *, mesh: Any = None) -> tuple[Any, Any]:
    """Return the indices of the items on and below diagonal `k` of matrices of shape (n, m).

    Parameters
    ----------
    n : int
        Number of rows.
    k : int
        Which diagonal; 0 is the main one, and those below are negative.
    m : int, optional
        Number of columns; `n` by default.
    mesh : DeviceMesh, optional
        As for `arange`.

    Returns
    -------
    tuple of DistArray
        Rows and columns, in C order; each process has those of its rows of the matrix.

    Raises
    ------
    ArgumentTypeError
        If a number is not an integer.

    Examples
    --------
    >>> import distarray as da
    >>> [i.full_array() for i in da.tril_indices(2)]
    [array([0, 1, 1]), array([0, 0, 1])]
    """
    return _triangle("tril_indices", n, k, m, mesh, less_equal)


@register
def tril_indices_from(x: Any, /, k: int = 0) -> tuple[Any, Any]:
    """Return the indices of the items on and below diagonal `k` of a matrix; see `tril_indices`.

    Raises
    ------
    ShapeError
        If it is no matrix.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.arange(4).reshape(2, 2)
    >>> x[da.tril_indices_from(x)].full_array()
    array([0, 2, 3])
    """
    return _triangle_of("tril_indices", x, k, less_equal)


def triu_indices(n: int, k: int = 0, m: int | None = None, *, mesh: Any = None) -> tuple[Any, Any]:
    """Return the indices of the items on and above diagonal `k` of matrices of shape (n, m).

    Parameters, result and errors are those of `tril_indices`.

    Examples
    --------
    >>> import distarray as da
    >>> [i.full_array() for i in da.triu_indices(2)]
    [array([0, 0, 1]), array([0, 1, 1])]
    """
    return _triangle("triu_indices", n, k, m, mesh, greater_equal)


@register
def triu_indices_from(x: Any, /, k: int = 0) -> tuple[Any, Any]:
    """Return the indices of the items on and above diagonal `k` of a matrix; see `tril_indices`.

    Raises
    ------
    ShapeError
        If it is no matrix.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.arange(4).reshape(2, 2)
    >>> x[da.triu_indices_from(x)].full_array()
    array([0, 1, 3])
    """
    return _triangle_of("triu_indices", x, k, greater_equal)


def mask_indices(
    n: int, mask_func: Callable[..., Any], k: Any = 0, *, mesh: Any = None
) -> tuple[Any, ...]:
    """Return the indices of the items of matrices of shape (n, n) that a function keeps.

    Parameters
    ----------
    n : int
        Number of rows and of columns.
    mask_func : callable
        Called with a distributed matrix of ones and `k`, as `triu`; what is not 0 in its result is
        kept.
    k
        Passed on.
    mesh : DeviceMesh, optional
        As for `arange`.

    Returns
    -------
    tuple of DistArray
        Rows and columns, in C order.

    Raises
    ------
    ArgumentTypeError
        If `n` is not an integer, or the function gives no distributed array.

    Examples
    --------
    >>> import distarray as da
    >>> [i.full_array() for i in da.mask_indices(2, da.triu, 1)]
    [array([0]), array([1])]
    """
    n = check_integer("mask_indices", "n", n)
    if not callable(mask_func):
        raise ArgumentTypeError(
            f"mask_indices got mask_func={describe(mask_func)}; pass a function"
        )
    kept = check_distributed("mask_indices", mask_func(ones((n, n), dtype=int, mesh=mesh), k))
    return tuple(nonzero(kept))


def _triangle(
    name: str, n: Any, k: Any, m: Any, mesh: Any, compare: Callable[..., Any]
) -> tuple[Any, Any]:
    rows = check_integer(name, "n", n)
    columns = rows if m is None else check_integer(name, "m", m)
    diagonal = check_integer(name, "k", k)
    row = getitem(arange(rows, mesh=mesh), (slice(None), None))
    column = arange(columns, mesh=mesh)
    apart = subtract(column, row)
    if apart._layout.mesh.coordinate is not None:
        first, second = nonzero(compare(apart, diagonal))
        return first, second

    def length(start: int, stop: int) -> int:
        last = np.arange(start, stop) + diagonal
        if compare is less_equal:
            return int(np.clip(last + 1, 0, columns).sum())
        return int((columns - np.clip(last, 0, columns)).sum())

    return outside(apart, 0, 2, length), outside(apart, 0, 2, length)


def _triangle_of(name: str, x: Any, k: Any, compare: Callable[..., Any]) -> tuple[Any, Any]:
    shape = check_distributed(f"{name}_from", x).shape
    if len(shape) != 2:
        raise ShapeError(f"{name}_from got an array of shape {shape}; it takes a matrix")
    return _triangle(name, shape[0], k, shape[1], x._layout.mesh, compare)


# --- open meshes ---------------------------------------------------------------------------------


@register
def ix_(*args: Any) -> tuple[Any, ...]:
    """Return index arrays that select all combinations of places, one sequence for each axis.

    Parameters
    ----------
    *args : DistArray or array_like
        Of one axis; integers, or booleans that say which places.

    Returns
    -------
    tuple of DistArray or array
        As many axes as there are arguments; array `i` is the i-th argument along axis `i`. Plain
        arguments give plain arrays.

    Raises
    ------
    ShapeError
        If an argument has not one axis.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.arange(12).reshape(3, 4)
    >>> x[da.ix_([0, 2], [1, 3])].full_array()
    array([[ 1,  3],
           [ 9, 11]])
    """
    if not any(isinstance(one, BaseArray) for one in args):
        try:
            return np.ix_(*args)
        except ValueError as error:
            raise ShapeError(f"ix_: {error}") from None
    found = []
    for axis, one in enumerate(args):
        places: Any = one if isinstance(one, BaseArray) else plain_buffer(one, "ix_")
        if places.ndim != 1:
            raise ShapeError(
                f"ix_ got an argument of shape {tuple(places.shape)}; each has one axis"
            )
        if places.dtype == np.bool_:
            (places,) = np.nonzero(places)
        elif not places.size and not hasattr(one, "dtype"):  # else an empty list is of floats
            places = places.astype(np.intp)
        key = (*(None,) * axis, slice(None), *(None,) * (len(args) - axis - 1))
        found.append(places[key])
    return tuple(found)


# --- places in flat order ------------------------------------------------------------------------


@register
def unravel_index(indices: Any, /, shape: Any, order: str = "C") -> tuple[Any, ...]:
    """Return the indices along each axis of places in flat order.

    Parameters
    ----------
    indices : DistArray, array_like or int
        Of integers; plain ones give plain results.
    shape : int or sequence of int
        Of the array that they are places of.
    order : {"C", "F"}
        Which axis varies fastest: the last or the first.

    Returns
    -------
    tuple of DistArray
        One for each axis, with the layout of `indices`.

    Raises
    ------
    ArgumentError
        If a place is not in the array.
    DTypeError
        If the places are no integers.

    Examples
    --------
    >>> import distarray as da
    >>> [i.full_array() for i in da.unravel_index(da.asarray([5, 2]), (2, 3))]
    [array([1, 0]), array([2, 2])]
    """
    sizes = normalize_shape(shape)
    order = check_order("unravel_index", order, "CF")
    if not isinstance(indices, BaseArray):
        return _call(np.unravel_index, plain_buffer(indices, "unravel_index"), sizes, order)
    _check_integers("unravel_index", indices)
    if not sizes:
        raise ShapeError("unravel_index got shape (); places are those of arrays with axes")
    return run(_unravel, (indices,), (sizes, order))


@register
def ravel_multi_index(multi_index: Any, /, dims: Any, mode: Any = "raise", order: str = "C") -> Any:
    """Return places in flat order, given the indices along each axis.

    Parameters
    ----------
    multi_index : sequence of DistArray, array_like or int, or DistArray
        One for each axis; an array stands for the arrays along its first axis. Shapes broadcast.
        Plain ones give plain results.
    dims : int or sequence of int
        Shape of the array that they are places of.
    mode : {"raise", "wrap", "clip"} or a tuple of these
        What becomes of indices out of range, of all axes or of each.
    order : {"C", "F"}
        Which axis varies fastest: the last or the first.

    Returns
    -------
    DistArray
        Of int64, placed as the result of other functions item by item.

    Raises
    ------
    ArgumentError
        If an index is out of range; if there is not one array for each axis.
    DTypeError
        If the indices are no integers.

    Examples
    --------
    >>> import distarray as da
    >>> da.ravel_multi_index((da.asarray([1, 0]), 2), (2, 3)).full_array()
    array([5, 2])
    """
    sizes = normalize_shape(dims)
    order = check_order("ravel_multi_index", order, "CF")
    modes = tuple(mode) if isinstance(mode, (tuple, list)) else (mode,) * len(sizes)
    if len(modes) != len(sizes) or any(one not in ("raise", "wrap", "clip") for one in modes):
        raise ArgumentError(
            f"ravel_multi_index(mode={describe(mode)}): 'raise', 'wrap' or 'clip', or one of them "
            "for each axis"
        )
    if isinstance(multi_index, BaseArray):
        multi_index = unstack(multi_index)
    elif not isinstance(multi_index, Sequence) and not _backend.is_buffer(multi_index):
        raise ArgumentTypeError(
            f"ravel_multi_index got {describe(multi_index)}; pass a tuple of arrays, one for each "
            "axis"
        )
    arrays = [
        one if isinstance(one, BaseArray) else plain_buffer(one, "ravel_multi_index")
        for one in multi_index
    ]
    if len(arrays) != len(sizes):
        raise ArgumentError(
            f"ravel_multi_index got {len(arrays)} index arrays and dims={sizes}; pass one for each "
            "axis"
        )
    if not any(isinstance(one, BaseArray) for one in arrays):
        return _call(np.ravel_multi_index, tuple(arrays), sizes, modes, order)
    for one in arrays:
        _check_integers("ravel_multi_index", one)
    return run(_ravel, arrays, (sizes, modes, order))


def _check_integers(name: str, indices: Any) -> None:
    if indices.dtype.kind not in "biu":
        raise DTypeError(f"{name} got indices of {indices.dtype}; they must be integers")


def _call(function: Callable[..., Any], *args: Any) -> Any:
    """Call NumPy's function; its errors become ours."""
    try:
        return function(*args)
    except TypeError as error:
        raise DTypeError(f"{function.__name__}: {error}") from None
    except (ValueError, OverflowError) as error:
        raise refusal(error)(f"{function.__name__}: {error}") from None


def _bind_unravel(step: Step) -> Callable[[Buffer], tuple[Buffer, ...]]:
    shape, order = step.call.static

    def unravel(block: Buffer) -> tuple[Buffer, ...]:
        if block.size <= 4 * _PIECE:
            return tuple(map(np.array, _call(np.unravel_index, block, shape, order)))
        found = tuple([_memory.empty(block.shape, _INDEX) for _ in shape])
        flat, outs = block.reshape(-1), [one.reshape(-1) for one in found]
        for start in range(0, flat.size, _PIECE):
            piece = slice(start, start + _PIECE)
            parts = _call(np.unravel_index, flat[piece], shape, order)
            for out, part in zip(outs, parts, strict=True):
                out[piece] = part
        return found

    return on_host(unravel)


def _bind_ravel(step: Step) -> Callable[..., Buffer]:
    return on_host(
        lambda *blocks: np.asarray(_call(np.ravel_multi_index, blocks, *step.call.static))
    )


_unravel = Op(
    "unravel_index",
    np.unravel_index,
    pointwise_spec,
    dtypes=lambda _, call: (_INDEX, (_INDEX,) * len(call.static[0])),
    bind=_bind_unravel,
    check=lambda *_: True,
)
_ravel = Op(
    "ravel_multi_index",
    np.ravel_multi_index,
    pointwise_spec,
    dtypes=lambda *_: (_INDEX, _INDEX),
    bind=_bind_ravel,
    check=lambda *_: True,
)
