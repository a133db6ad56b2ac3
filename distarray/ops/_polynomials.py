"""Polynomials by their coefficients, the highest power first, as in NumPy's old functions.

Coefficients are few: where they are distributed every process gets them, and computes with them by
NumPy. Values of polynomials are computed, and many points fitted, where the items are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    BaseArray,
    Call,
    Layouts,
    Op,
    Step,
    call_alike,
    check_distributed,
    check_flag,
    check_integer,
    common_mesh,
    describe,
    documented,
    dtypes_of,
    move,
    normalize_operands,
    plain_buffer,
    pointwise_spec,
    refusal,
    register,
    replicated_layout,
    run,
    run_one,
    warn,
)
from distarray.errors import ArgumentError, DTypeError, MeshError, ShapeError
from distarray.layout import Replicate
from distarray.ops.creation._asarray import asarray
from distarray.ops.families._relabel import carry_cuts
from distarray.typing import Buffer

COEFFICIENTS = 1 << 16
"""How many coefficients every process may be given; NumPy's time grows with their square."""


def _read(name: str, value: Any) -> Buffer:
    """Return coefficients as an array of NumPy, on every process of the mesh."""
    if not isinstance(value, BaseArray):
        return _backend.to_host(plain_buffer(value, name))
    layout: Any = value._layout
    if layout.size > COEFFICIENTS:
        raise ArgumentError(
            f"{name} got {layout.size} coefficients; every process computes with all of them, and "
            f"they may be {COEFFICIENTS} at most; pass x.full_array() for more"
        )
    if layout.mesh.coordinate is None:
        raise MeshError(
            f"{name}: this process is not in {layout.mesh}, and has none of the coefficients; call "
            "it on the processes of the mesh alone"
        )
    block = move(name, value._local, layout, replicated_layout(layout.mesh, layout.shape))
    return _backend.to_host(block)


# --- of few coefficients -------------------------------------------------------------------------

_FEW = """{sentence}

Parameters
----------
{arguments}

Returns
-------
array or DistArray
    NumPy's result; where an argument is distributed, replicated on every process of its mesh.

Raises
------
ArgumentError
    If there are more than 65,536 coefficients, or NumPy refuses them.

Notes
-----
Distribution: distributed arguments are gathered. Every process then computes the same.

Examples
--------
>>> import distarray as da
>>> print(da.{example})
{shown}
"""
_ONE = "p : array or DistArray\n    Coefficients, the highest power first."
_PAIR = "a1, a2 : array or DistArray\n    Coefficients, the highest power first."
_POINTS = """x, y : array or DistArray
    The points; more than 65,536 are not gathered, but fitted by `linalg.lstsq`.
deg : int
    Its degree.
rcond, full, w, cov : optional
    As in NumPy."""
_INTEGRAL = f"""{_ONE}
m : int
    How often it is integrated.
k : number or array, optional
    Constants of integration; default: 0."""


def _of_few(
    sentence: str, arguments: str, example: str, shown: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    text = documented(_FEW, sentence=sentence, arguments=arguments, example=example, shown=shown)
    return lambda function: register(text(function))


def _compute(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return what a function of NumPy's makes of few coefficients."""
    name = function.__name__
    given = [x for x in (*args, *options.values()) if isinstance(x, BaseArray)]
    mesh = common_mesh(name, [x._layout.mesh for x in given]) if given else None
    plain = [_read(name, x) if isinstance(x, BaseArray) else x for x in args]
    named = {k: _read(name, x) if isinstance(x, BaseArray) else x for k, x in options.items()}
    try:
        result = function(*plain, **named)
    except (TypeError, ValueError, IndexError, np.linalg.LinAlgError) as error:
        raise refusal(error)(f"{name}: {error}") from error

    def place(value: Any) -> Any:
        if mesh is None:
            return value
        return asarray(value, mesh=mesh, placements=[Replicate()] * mesh.ndim)

    return tuple(map(place, result)) if isinstance(result, tuple) else place(result)


@_of_few(
    "Return the coefficients of the polynomial with given zeros.",
    "seq_of_zeros : array or DistArray\n    A matrix stands for its eigenvalues.",
    "poly([1, -1])",
    "[ 1.  0. -1.]",
)
def poly(seq_of_zeros: Any, /) -> Any:
    return _compute(np.poly, seq_of_zeros)


@_of_few("Return the sum of two polynomials.", _PAIR, "polyadd([1, 2], [3])", "[1 5]")
def polyadd(a1: Any, a2: Any, /) -> Any:
    return _compute(np.polyadd, a1, a2)


@_of_few(
    "Return a derivative of a polynomial.",
    f"{_ONE}\nm : int\n    Which derivative.",
    "polyder([1, 2, 3])",
    "[2 2]",
)
def polyder(p: Any, /, m: int = 1) -> Any:
    return _compute(np.polyder, p, m)


@_of_few(
    "Return quotient and remainder of two polynomials.",
    _PAIR.replace("a1, a2", "u, v"),
    "polydiv([1, 0, -1], [1, 1])[0]",
    "[ 1. -1.]",
)
def polydiv(u: Any, v: Any, /) -> Any:
    return _compute(np.polydiv, u, v)


@_of_few(
    "Return the polynomial that fits points best, by least squares.",
    _POINTS,
    "polyfit([0, 1, 2], [1, 3, 5], 1).round(6)",
    "[2. 1.]",
)
def polyfit(
    x: Any,
    y: Any,
    /,
    deg: int,
    rcond: Any = None,
    full: bool = False,
    w: Any = None,
    cov: Any = False,
) -> Any:
    if any(isinstance(one, BaseArray) and one.size > COEFFICIENTS for one in (x, y, w)):
        return _fit_many(x, y, check_integer("polyfit", "deg", deg), rcond, full, w, cov)
    return _compute(np.polyfit, x, y, deg, rcond=rcond, full=full, w=w, cov=cov)


def _fit_many(x: Any, y: Any, deg: int, rcond: Any, full: bool, w: Any, cov: Any) -> Any:
    """Return `np.polyfit` of many points, which stay where they are.

    NumPy's functions of matrices lead to ours.
    """
    x, y, *weights = normalize_operands("polyfit", (x, y) if w is None else (x, y, w))
    n, order = len(x), deg + 1
    shapes = x.shape, y.shape, *(one.shape for one in weights)
    if deg < 0 or len(x.shape) != 1 or y.shape[:1] != (n,) or shapes[2:] not in ((), ((n,),)):
        raise ArgumentError(
            f"polyfit of degree {deg} got x, y and w of shapes {shapes}; they are (n,), (n,) or "
            "(n, k), and (n,), and the degree is not negative"
        )
    if not isinstance(x, BaseArray):
        mesh: Any = next(one for one in (y, *weights) if isinstance(one, BaseArray))._layout.mesh
        x = asarray(x, mesh=mesh)
    x, y = x + 0.0, y + 0.0
    if rcond is None:
        rcond = n * np.finfo(x.dtype).eps
    rows = np.vander(x, order)
    for weight in weights:
        rows = rows * weight[:, None]
        y = y * (weight if len(y.shape) == 1 else weight[:, None])
    scale = np.sqrt(np.sum(rows * rows, axis=0))
    found, residuals, rank, values = np.linalg.lstsq(rows / scale, y, rcond)
    found = found / (scale if len(y.shape) == 1 else scale[:, None])
    if rank != order and not full:
        warn("polyfit may be poorly conditioned", np.exceptions.RankWarning)
    if full:
        return found, residuals, rank, values, rcond
    if not cov:
        return found
    base = np.linalg.inv((rows / scale).T @ (rows / scale)) / np.multiply.outer(scale, scale)
    base = base if len(y.shape) == 1 else base[:, :, None]
    is_scaled = not (isinstance(cov, str) and cov == "unscaled")
    return found, base * (residuals / (n - order)) if is_scaled else base


@_of_few("Return an antiderivative of a polynomial.", _INTEGRAL, "polyint([2, 2])", "[1. 2. 0.]")
def polyint(p: Any, /, m: int = 1, k: Any = None) -> Any:
    return _compute(np.polyint, p, m, k)


@_of_few("Return the product of two polynomials.", _PAIR, "polymul([1, 1], [1, -1])", "[ 1  0 -1]")
def polymul(a1: Any, a2: Any, /) -> Any:
    return _compute(np.polymul, a1, a2)


@_of_few("Return the difference of two polynomials.", _PAIR, "polysub([1, 2], [3])", "[ 1 -1]")
def polysub(a1: Any, a2: Any, /) -> Any:
    return _compute(np.polysub, a1, a2)


@_of_few("Return the zeros of a polynomial.", _ONE, "roots([1, 0, -1])", "[-1.  1.]")
def roots(p: Any, /) -> Any:
    return _compute(np.roots, p)


# --- of many items -------------------------------------------------------------------------------


def _horner(coefficients: Buffer, block: Buffer) -> Buffer:
    values = np.zeros_like(block)
    for coefficient in coefficients:
        values = values * block + coefficient
    return values


_polyval = Op("polyval", _horner, pointwise_spec, dtypes=lambda _, call: (call.static,) * 2)


@register
def polyval(p: Any, x: Any, /) -> Any:
    """Return the values of a polynomial at the items of an array, by Horner's rule.

    Parameters
    ----------
    p : array or DistArray
        Its coefficients, the highest power first; up to 65,536.
    x : DistArray or array

    Returns
    -------
    DistArray
        Placed as `x`; on every process, where `p` alone is distributed.

    Raises
    ------
    ShapeError
        If the coefficients have another number of axes than one.
    ArgumentError
        If there are more.
    DTypeError
        If items of the dtypes cannot be multiplied.

    Notes
    -----
    Distribution: a distributed `p` is gathered; the items stay where they are.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.polyval([1, 0, -1], da.arange(4)))
    [-1  0  3  8]
    """
    given = [one for one in (x, p) if isinstance(one, BaseArray)] or [x]
    meshes = [check_distributed("polyval", one)._layout.mesh for one in given]
    mesh = common_mesh("polyval", meshes)
    coefficients = _read("polyval", p)
    if coefficients.ndim != 1:
        raise ShapeError(f"polyval got coefficients of shape {coefficients.shape}; one axis")
    if not isinstance(x, BaseArray):
        x = asarray(x, mesh=mesh, placements=[Replicate()] * mesh.ndim)
    try:
        dtype = _horner(np.zeros_like(coefficients[:2]), np.zeros(1, x.dtype)).dtype
    except TypeError as error:
        raise DTypeError(f"polyval of {coefficients.dtype} at {x.dtype}: {error}") from None
    return run(_polyval, (x,), dtype, coefficients)


def _vander_spec(_: Op, call: Call) -> Layouts:
    (layout,), (count, _) = call.layouts, call.static
    whole = layout.without_partial()
    return Layouts((whole,), carry_cuts(whole, (*layout.shape, count), {0: 0}))


@dtypes_of
def _vander_dtypes(_: Op, call: Call) -> Any:
    return np.vander(np.zeros(1, call.dtypes[0]), 1)


def _vander_bind(step: Step) -> Callable[[Buffer], Buffer]:
    mesh, static = step.output.mesh, step.call.static
    return lambda block: call_alike(mesh, "vander", lambda: np.vander(block, *static))


_vander = Op(
    "vander", np.vander, _vander_spec, dtypes=_vander_dtypes, bind=_vander_bind, kinds="biufc"
)


@register
def vander(x: Any, /, N: int | None = None, increasing: bool = False) -> Any:  # noqa: N803 (NumPy's)
    """Return the Vandermonde matrix, whose columns are powers of the items.

    Parameters
    ----------
    x : DistArray
        Of one axis.
    N : int, optional
        How many columns; default: as many as rows.
    increasing : bool
        Whether powers increase from the left.

    Returns
    -------
    DistArray
        Cut by rows as `x` is.

    Raises
    ------
    ShapeError
        If `x` has another number of axes.
    ArgumentError
        If `N` is negative.

    Notes
    -----
    Distribution: nothing is sent.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.vander(da.asarray([2, 3]), 3))
    [[4 2 1]
     [9 3 1]]
    """
    if check_distributed("vander", x)._layout.ndim != 1:
        raise ShapeError(f"vander got an array of shape {x.shape}; it takes one axis")
    count = x.shape[0] if N is None else check_integer("vander", "N", N)
    if count < 0:
        raise ArgumentError(f"vander got N={describe(N)}; it must be 0 or more")
    return run_one(_vander, x, (count, check_flag("vander", "increasing", increasing)))
