"""Every function of the registry agrees with NumPy: any layout, uneven, empty, special values."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import distarray as da
from distarray import fft, linalg, random  # noqa: F401 - whose functions are registered then
from distarray.array._array import DistArray
from distarray.core._op import Op
from distarray.core.families._registry import public
from distarray.errors import DeviceError, DistArrayError, DTypeError
from tests.array.index_keys import keys
from tests.array.strategies import (
    KIND,
    Case,
    agrees,
    cases,
    on_ranks,
    pairs,
    special_cases,
    special_pairs,
)

REAL = tuple(map(np.dtype, "?bBhHiIlLefd"))
NUMBERS = (*REAL, *map(np.dtype, "FD"))
ORDINARY = tuple(map(np.dtype, ("?", "i4", "u1", "f8", "f4", "c16", "f2")))
TEXT_AND_TIMES = tuple(map(np.dtype, ("U3", "S3", "M8[s]", "m8[ns]") if KIND == "cpu" else ()))

EXACT = {
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "negative", "positive",
    "abs", "fabs", "sign", "signbit", "copysign", "heaviside", "maximum", "minimum", "fmax", "fmin",
    "nextafter", "spacing", "frexp", "modf", "sqrt", "ldexp", "ceil", "floor", "trunc", "rint",
    "conj", "real", "imag", "clip", "where", "nan_to_num", "fix",
}  # fmt: skip
"""Rows item by item whose floating-point results do not depend on the loop that NumPy takes."""

Use = Callable[[Callable[..., Any], Any, int], Any]
"""Calls a function, ours or NumPy's, with an array and a number that varies."""


def _axis(x: Any, i: int) -> int:
    return i % max(x.ndim, 1) - (x.ndim if i % 2 else 0)


def _along(f: Any, x: Any, i: int) -> Any:
    return f(x, axis=_axis(x, i))


def _over(f: Any, x: Any, i: int) -> Any:
    axes: tuple[Any, ...] = (None, _axis(x, i), tuple(range(x.ndim))[:: 1 + i % 2])
    return f(x, axis=axes[i % 3] if x.ndim else None, keepdims=bool(i // 3 % 2))


def _of_one_axis(f: Any, x: Any, i: int) -> Any:
    axis = None if i % 2 or not x.ndim else _axis(x, i)
    return f(x, axis=axis, keepdims=bool(i // 2 % 2))


def _averaged(f: Any, x: Any, i: int) -> Any:
    if not x.size:
        return f(x)
    axis = None if i % 3 == 0 or not x.ndim else _axis(x, i)
    weights = (None, abs(x) + 1, np.arange(1.0, x.shape[axis] + 1))[i % 3] if x.ndim else None
    return f(x, axis=axis, weights=weights, returned=bool(i % 2), keepdims=i > 5)


def _as_rows(x: Any) -> Any:
    return x.reshape(x.shape[0], -1) if x.ndim > 2 and x.size else x


def _like(f: Any, x: Any, _: int) -> Any:
    return f(x, dtype=np.int32) * 0


def _kth(x: Any, i: int) -> tuple[int, int]:
    axis = _axis(x, i)
    return (i % x.shape[axis] if x.shape[axis] else 0), axis


def _places_in_order(f: Any, x: Any, i: int) -> Any:
    kth, axis = _kth(x, i)
    return np.sort(f(x, kth, axis=axis), axis=axis)


def _item_at(f: Any, x: Any, i: int) -> Any:
    kth, axis = _kth(x, i)
    return f(x, kth, axis=axis)[(*(slice(None),) * (axis % x.ndim), kth)]


def _sorted(f: Any, x: Any, i: int) -> Any:
    return f(x, axis=None if i % 4 == 3 else _axis(x, i), kind="stable")


def _topk(f: Any, x: Any, i: int) -> Any:
    axis = _axis(x, i)
    return f(x, min(i, x.shape[axis]), axis, largest=bool(i % 2))


def _numpys_topk(x: np.ndarray, k: int, axis: int, *, largest: bool) -> tuple[np.ndarray, ...]:
    given = np.flip(x, axis) if largest else x
    order = np.argsort(given, axis, kind="stable")
    order = np.flip(x.shape[axis] - 1 - order, axis) if largest else order
    places = np.take(order, range(k), axis)
    return np.take_along_axis(x, places.astype(np.intp), axis), places


def _copied(f: Any, x: Any, i: int) -> Any:
    out = x.copy()
    f(out, x[..., ::-1] if x.ndim and i % 2 else x)
    return out


def _placed(f: Any, x: Any, i: int) -> Any:
    out = x.copy()
    f(out, x == x, x[..., ::-1] if x.ndim and i % 2 else x)
    return out


def _places(x: Any, i: int) -> Any:
    """Return indices of any items in flat order, as many as there are, some of them twice."""
    return np.arange(x.size) * (i + 1) % max(x.size, 1)


def _put(f: Any, x: Any, i: int) -> Any:
    out = x.copy()
    f(out, _places(x, i), x[::-1] if x.ndim and i % 2 else x)
    return out


def _put_along(f: Any, x: Any, i: int) -> Any:
    out, axis = x.copy(), _axis(x, i)
    f(out, np.zeros((1,) * x.ndim, int) - i % 2, x[(0,) * x.ndim], axis)
    return out


def _filled_diagonal(f: Any, x: Any, i: int) -> Any:
    out = x.copy()
    f(out, x.ravel()[:3] if i % 2 else x[(0,) * x.ndim], wrap=bool(i // 2 % 2))
    return out


MOVING_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")
SLIDES = ("full", "same", "valid")


def _with_others(f: Any, x: Any, i: int) -> Any:
    return f(x, x[..., :1] if x.ndim and i % 2 else x)


def _of_points(counts: Any, edges: Any) -> Any:
    return (counts, *edges)


def _at(q: Any, f: Any) -> Any:
    return lambda x, **options: f(x, q, **options)


CHOICES: dict[str, Use] = {
    "apply_along_axis": lambda f, x, i: f(lambda line: line[:: (1, 2, -1)[i % 3]], _axis(x, i), x),
    "array_split": lambda f, x, i: f(x, (1 + i % 4, [1, 3, -1])[i % 2], axis=_axis(x, i)),
    "atleast_1d": lambda f, x, _: f(x),
    "atleast_2d": lambda f, x, _: f(x, x),
    "atleast_3d": lambda f, x, _: f(x),
    "block": lambda f, x, i: f(([[x, x]], [x, x], x)[i % 3]),
    "column_stack": lambda f, x, _: f([x, x]),
    "diag": lambda f, x, i: f(x, i - 3),
    "diagflat": lambda f, x, i: f(x[..., :1] if x.ndim else x, i - 3),
    "dsplit": lambda f, x, i: f(x, 1 + i % 2),
    "dstack": lambda f, x, _: f([x, x]),
    "fliplr": lambda f, x, _: f(x),
    "flipud": lambda f, x, _: f(x),
    "hsplit": lambda f, x, i: f(x, 1 + i % 2),
    "hstack": lambda f, x, _: f([x, x]),
    "packbits": lambda f, x, i: f(x, axis=(None, _axis(x, i))[i % 2], bitorder="big"),
    "pad": lambda f, x, i: f(x, (i % 3, i % 4), mode=MOVING_MODES[i % 5]),
    "piecewise": lambda f, x, i: f(x, [x == x], [lambda items: items, 1][: 1 + i % 2]),
    "real_if_close": lambda f, x, _: f(x),
    "rollaxis": lambda f, x, i: f(x, _axis(x, i), i % 3),
    "rot90": lambda f, x, i: f(x, i, axes=(0, -1)),
    "select": lambda f, x, i: f([x == x, x != x], [x, x[..., ::-1] if x.ndim else x], default=x),
    "split": lambda f, x, i: f(x, (1 + i % 2, [1, 2])[i % 2], axis=_axis(x, i)),
    "unpackbits": lambda f, x, i: f(
        x,
        axis=(None, _axis(x, i))[i % 2],
        count=(None, 5 if x.size else None, -3)[i % 3],  # what NumPy adds to no item is anything
    ),
    "vsplit": lambda f, x, i: f(x, 1 + i % 2),
    "vstack": lambda f, x, _: f([x, x]),
    "all": _over,
    "any": _over,
    "argmax": _of_one_axis,
    "argmin": _of_one_axis,
    "argpartition": _places_in_order,
    "argsort": _sorted,
    "argwhere": lambda f, x, _: f(x),
    "nanargmax": _of_one_axis,
    "nanargmin": _of_one_axis,
    "count_nonzero": _over,
    "diagonal": lambda f, x, i: f(x, i - 3),
    "max": _over,
    "meshgrid": lambda f, x, i: f(x, x[..., :1] if x.ndim else x, sparse=i % 2),
    "min": _over,
    "min_scalar_type": lambda f, x, _: f(x),
    "nanmax": _over,
    "nanmin": _over,
    "append": lambda f, x, i: f(x, x[:1] if x.ndim else x, None if i % 2 else 0),
    "array_equal": lambda f, x, i: f(x, x[..., ::-1] if x.ndim and i % 2 else x),
    "array_equiv": lambda f, x, i: f(x, x[:1] if x.ndim and i % 2 else x),
    "broadcast_arrays": lambda f, x, _: f(x, x[..., :1] if x.ndim else x),
    "broadcast_to": lambda f, x, i: f(x, (1 + i % 3, *x.shape)),
    "can_cast": lambda f, x, i: f(x.dtype, (np.float64, np.int8)[i % 2]),
    "choose": lambda f, x, i: f((x == x[..., ::-1]), [x, x[..., :1]]),
    "clip": lambda f, x, i: f(x, *((0, 2), (None, 1), (1, None))[i % 3]),
    "compress": lambda f, x, i: f(np.arange(9) % 5 == i % 5, x[:8], axis=0) if i < 9 else f([0], x),
    "concat": lambda f, x, i: f([x, x], axis=None if i % 4 == 3 else _axis(x, i)),
    "copy": lambda f, x, _: f(x),
    "copyto": _copied,
    "delete": lambda f, x, i: f(x, (0, [0, -1], slice(None, None, 2))[i % 3], _axis(x, i)),
    "diag_indices_from": lambda f, x, _: f(x),
    "expand_dims": lambda f, x, i: f(x, _axis(x, i)),
    "extract": lambda f, x, _: f(x, x),
    "flatnonzero": lambda f, x, _: f(x),
    "flatten": lambda f, x, _: f(x),
    "flip": lambda f, x, i: f(x) if i % 2 else _along(f, x, i),
    "lexsort": lambda f, x, i: f((x, x[..., ::-1]), axis=_axis(x, i)),
    "fill_diagonal": _filled_diagonal,
    "insert": lambda f, x, i: f(
        x,
        (0, -1, [1, 0, 1], slice(None, None, i // 5 - 2 or 1))[i % 4],
        x[(0,) * x.ndim],
        _axis(x, i),
    ),
    "ix_": lambda f, x, _: f((x == x).ravel(), (x != x).ravel()),
    "matrix_transpose": lambda f, x, _: f(x),
    "moveaxis": lambda f, x, i: f(x, _axis(x, i), 0),
    "ndim": lambda f, x, _: f(x),
    "nonzero": lambda f, x, _: f(x),
    "partition": _item_at,
    "permute_dims": lambda f, x, _: f(x, tuple(reversed(range(x.ndim)))),
    "place": _placed,
    "putmask": _placed,
    "put": _put,
    "put_along_axis": _put_along,
    "ravel": lambda f, x, _: f(x),
    "repeat": lambda f, x, i: f(x, i % 3, axis=None if i % 2 else _axis(x, i)),
    "reshape": lambda f, x, i: f(x, ((-1,), (x.size, 1), (*x.shape, 1), (1, -1))[i % 4]),
    "resize": lambda f, x, i: f(x, ((7,), (2, 5), 0, 3)[i % 4]),
    "result_type": lambda f, x, _: f(x, np.float32),
    "roll": lambda f, x, i: f(x, i - 3, axis=None if i % 2 else _axis(x, i)),
    "sliding_window_view": lambda f, x, i: f(x, 1 + i % 3, axis=_axis(x, i)),
    "shape": lambda f, x, _: f(x),
    "size": lambda f, x, i: f(x) if i % 2 else f(x, _axis(x, i)),
    "sort": _sorted,
    "sort_complex": lambda f, x, _: f(x),
    "squeeze": lambda f, x, _: f(x),
    "stack": lambda f, x, i: f([x, x], axis=_axis(x, i)),
    "swapaxes": lambda f, x, i: f(x, 0, _axis(x, i)),
    "take": lambda f, x, i: f(  # of no items NumPy refuses to take any, whatever the axis has
        x, [0, -1, 0] if x.size else [], axis=None if i % 4 == 3 else _axis(x, i)
    ),
    "take_along_axis": lambda f, x, i: f(x, np.zeros((1,) * x.ndim, int) - i % 2, axis=_axis(x, i)),
    "tile": lambda f, x, i: f(x, ((2,), 1, (i % 3, 2))[i % 3]),
    "topk": _topk,
    "transpose": lambda f, x, _: f(x),
    "tril": lambda f, x, i: f(x, i - 3),
    "trim_zeros": lambda f, x, i: f(x, ("fb", "f", "b")[i % 3], None if i % 2 else _axis(x, i)),
    "tril_indices_from": lambda f, x, i: f(x, i - 3),
    "triu": lambda f, x, i: f(x, i - 3),
    "triu_indices_from": lambda f, x, i: f(x, i - 3),
    "unstack": lambda f, x, i: f(x, axis=_axis(x, i)),
    "where": lambda f, x, i: f(x == x, x, x[..., ::-1] if x.ndim and i % 2 else x),
    "intersect1d": _with_others,
    "isin": lambda f, x, i: f(x, x[..., :1] if x.ndim else x, invert=bool(i % 2)),
    "setdiff1d": _with_others,
    "setxor1d": _with_others,
    "union1d": _with_others,
    "unique": lambda f, x, i: f(x, True, bool(i % 2), bool(i // 2 % 2)),
    "unique_all": lambda f, x, _: tuple(f(x))[::3],
    "unique_counts": lambda f, x, _: tuple(f(x)),
    "unique_inverse": lambda f, x, _: f(x)[0],
    "unique_values": lambda f, x, _: f(x),
}
"""Functions that move or choose items: exact whatever these are."""

COMPUTED: dict[str, Use] = {
    "apply_over_axes": lambda f, x, i: f(np.sum, x, _axis(x, i)),
    "convolve": lambda f, x, i: f(x, x[: 1 + i % 3] if x.ndim else x, mode=SLIDES[i % 3]),
    "correlate": lambda f, x, i: f(x[: 1 + i % 3] if x.ndim else x, x, mode=SLIDES[i % 3]),
    "gradient": lambda f, x, i: f(x, 0.5, axis=_axis(x, i), edge_order=1 + i % 2),
    "poly": lambda f, x, _: f(x[:3]),
    "polyadd": lambda f, x, _: f(x, x[:2]),
    "polyder": lambda f, x, i: f(x, i % 3),
    "polydiv": lambda f, x, _: f(x, x[:2]),
    "polyfit": lambda f, x, _: f(x, x, 1),
    "polyint": lambda f, x, i: f(x, i % 3),
    "polymul": lambda f, x, _: f(x, x[:2]),
    "polysub": lambda f, x, _: f(x, x[:2]),
    "polyval": lambda f, x, _: f(np.arange(3), x),
    "roots": lambda f, x, _: f(x),
    "vander": lambda f, x, i: f(x, i % 4, increasing=bool(i % 2)),
    "average": _averaged,
    "corrcoef": lambda f, x, i: f(_as_rows(x), rowvar=bool(i % 2)),
    "cov": lambda f, x, i: f(_as_rows(x), rowvar=bool(i % 2), ddof=i % 3),
    "cumprod": lambda f, x, i: f(x) if i % 2 else _along(f, x, i),
    "cumsum": lambda f, x, i: f(x) if i % 2 else _along(f, x, i),
    "cumulative_prod": lambda f, x, i: f(x, axis=_axis(x, i), include_initial=i % 2),
    "cumulative_sum": lambda f, x, i: f(x, axis=_axis(x, i), include_initial=i % 2),
    "ediff1d": lambda f, x, i: f(x, *((None, None), (1, None), (None, (2, 3)), (x, 1))[i % 4]),
    "interp": lambda f, x, i: f(
        x, (-3, 0, 2), (0.5, -i, 1j if i % 4 > 1 else 2), right=None if i % 2 else 9
    ),
    "mean": _over,
    "nancumprod": lambda f, x, i: f(x) if i % 2 else _along(f, x, i),
    "nancumsum": lambda f, x, i: f(x) if i % 2 else _along(f, x, i),
    "nanmean": _over,
    "nanprod": _over,
    "nanstd": _over,
    "nansum": _over,
    "nanvar": _over,
    "prod": _over,
    "ptp": _over,
    "std": _over,
    "sum": _over,
    "trapezoid": lambda f, x, i: f(x, axis=_axis(x, i), dx=1 + i % 2),
    "unwrap": lambda f, x, i: f(x, axis=_axis(x, i), period=i % 3 + 3),
    "var": _over,
    "diff": lambda f, x, i: f(x, n=i % 3, axis=_axis(x, i)),
    "allclose": lambda f, x, i: f(x, x + i % 2),
    "angle": lambda f, x, i: f(x, deg=bool(i % 2)),
    "astype": lambda f, x, i: f(x, (np.complex128, np.bool_)[i % 2]),
    "common_type": lambda f, x, _: f(x),
    "cross": lambda f, x, _: f(x, x[..., :1] if x.shape[-1] == 2 else x),
    "dot": lambda f, x, i: f(x, x) if x.ndim < 2 or i % 2 else f(x, x.T),
    "einsum_path": lambda f, x, _: f("ab,cb", x, x)[0],
    "einsum": lambda f, x, i: f(("ab,ab->a", "ab,cb->ca", "ab,ab->")[i % 3], x, x),
    "empty_like": _like,
    "fix": lambda f, x, _: f(x),
    "full_like": lambda f, x, i: f(x, i),
    "imag": lambda f, x, _: f(x),
    "inner": lambda f, x, _: f(x, x),
    "ravel_multi_index": lambda f, x, i: f((x, x[..., ::-1]), (7, 8), mode=("wrap", "clip")[i % 2]),
    "isclose": lambda f, x, i: f(x, x + i % 2),
    "iscomplexobj": lambda f, x, _: f(x),
    "isrealobj": lambda f, x, _: f(x),
    "kron": lambda f, x, _: f(x, x),
    "matmul": lambda f, x, _: f(x, x.T),
    "matvec": lambda f, x, _: f(x, x[0]),
    "nan_to_num": lambda f, x, i: f(x, nan=i),
    "ones_like": _like,
    "outer": lambda f, x, _: f(x, x),
    "real": lambda f, x, _: f(x),
    "round": lambda f, x, i: f(x, i - 3),
    "tensordot": lambda f, x, i: f(x, x, axes=((_axis(x, i),), (_axis(x, i),))),
    "trace": lambda f, x, i: f(x, i - 3),
    "vdot": lambda f, x, _: f(x, x),
    "unravel_index": lambda f, x, i: f(x, ((6,), (2, 3), (7, 1, 2))[i % 3], order="CF"[i % 2]),
    "vecdot": lambda f, x, i: f(x, x) if i % 2 else f(x, x, axis=_axis(x, i)),
    "vecmat": lambda f, x, _: f(x[..., 0], x),
    "zeros_like": _like,
    "bincount": lambda f, x, i: f(x, minlength=i),
    "digitize": lambda f, x, i: f(x, ((0, 2, 4), (3, 1, 0))[i % 2], right=bool(i // 2 % 2)),
    "histogram": lambda f, x, i: f(x, 1 + i % 4, density=bool(i // 4 % 2)),
    "histogram2d": lambda f, x, i: f(x, x, 1 + i % 3),
    "histogram_bin_edges": lambda f, x, i: f(x, (3, "sqrt", "sturges")[i % 3]),
    "histogramdd": lambda f, x, i: _of_points(*f(x, 1 + i % 3)),
    "median": _over,
    "nanmedian": _over,
    "nanpercentile": lambda f, x, i: _over(_at((0, 30.0, 100)[i % 3], f), x, i),
    "nanquantile": lambda f, x, i: _over(_at((0.2, 0.5, 1)[i % 3], f), x, i),
    "percentile": lambda f, x, i: _over(_at((0, 30.0, 100)[i % 3], f), x, i),
    "quantile": lambda f, x, i: _over(_at([0.2, 0.5], f), x, i),
    "searchsorted": lambda f, x, i: f([0, 1, 1, 3], x, ("left", "right")[i % 2]),
}
"""Functions that compute with items: small integers, with which all are exact but moments. Where
they are named after NaN some items are NaN."""

SCANS = [name for name in COMPUTED if name.startswith(("cum", "nancum"))]
LEAST_AXES = dict.fromkeys((*SCANS, "cross", "diff", "repeat", "size", "vecdot"), 1)
SORTS = ("argpartition", "argsort", "lexsort", "partition", "sort", "sort_complex", "topk")
LEAST_AXES |= dict.fromkeys(SORTS, 1)
LEAST_AXES |= {"compress": 1, "histogramdd": 1, "nonzero": 1}
LEAST_AXES |= {"tril": 2, "triu": 2}
LEAST_AXES |= dict.fromkeys(("sliding_window_view", "trapezoid", "unwrap"), 1)
LEAST_AXES |= dict.fromkeys(
    ("choose", "delete", "insert", "put_along_axis", "ravel_multi_index", "take"), 1
)
"""Where NumPy takes arrays of fewer axes, as if these had one more, and we refuse them."""


def _assigned(x: Any, key: Any) -> Any:
    out, value = x.copy(), x[key]
    out[key] = value[::-1] if value.ndim else value
    return out


def _added(x: Any, key: Any) -> Any:
    out = x.copy()
    out[key] += 1
    return out


SELECTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "x[key]": lambda x, key: x[key],
    "x[key] = distributed": _assigned,
    "x[key] += 1": _added,
}
"""Uses of what has no name in the registry: the selection of items by a key."""

JOINS: dict[str, Callable[[Callable[..., Any], Any, Any, int], Any]] = {
    "concat": lambda f, x, y, axis: f([x, y, x], axis=axis),
    "stack": lambda f, x, y, axis: f([x, y], axis=axis),
}
"""Joins of arrays in different layouts and dtypes; `CHOICES` has those of one layout."""

LEAST_AXES["apply_over_axes"] = 1

TOLD = {"array2string", "array_repr", "array_str"}
"""Text, which tests/array/test_repr.py compares."""

LOCAL = {"may_share_memory", "shares_memory"}
"""Answers of each process for itself; tests/array/test_standard.py has them."""

MAIN = {name for name in public if "." not in name}
"""The others, of `linalg` and `fft`, are proven in tests/linalg and tests/fft."""
BY_ITEM = {name: row for name, row in public.items() if isinstance(row, Op) and row.plain}
NUMPYS = {
    "flatten": np.ravel,
    "permute_dims": np.transpose,
    "sliding_window_view": np.lib.stride_tricks.sliding_window_view,
    "topk": _numpys_topk,
    "unique_values": lambda x: np.unique_counts(x).values,  # the other two make NaT of dates one
}


def test_every_row_is_a_public_name() -> None:
    assert set(da.__all__) >= MAIN
    rooms = {f"{room}.{name}" for room in ("fft", "linalg") for name in getattr(da, room).__all__}
    assert public.keys() - MAIN <= rooms


def test_every_row_is_proven_here() -> None:
    assert BY_ITEM.keys() | CHOICES.keys() | COMPUTED.keys() | TOLD | LOCAL == MAIN
    assert not BY_ITEM.keys() & (CHOICES.keys() | COMPUTED.keys())


@pytest.mark.parametrize("name", sorted(BY_ITEM.keys() - {"ldexp"}))  # its exponents are integers
def test_row_takes_the_kinds_of_dtype_that_it_names(name: str) -> None:
    row = BY_ITEM[name]
    taken = {dtype.kind for dtype in dtypes_of(row)}
    assert row.kinds
    assert set(row.kinds) & set("biufc") <= taken


# --- one comparison for all ----------------------------------------------------------------------


def outcome(function: Callable[..., Any], *operands: Any) -> Any:
    """Return what NumPy gives, as a tuple, or None where it raises or meets Python objects."""
    if any(np.asarray(x).dtype == np.object_ for x in operands if not isinstance(x, int)):
        return None
    try:
        results = function(*operands)
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
    results = results if type(results) in (tuple, list) else (results,)
    known = [x if isinstance(x, (tuple, np.dtype, type)) else np.asarray(x) for x in results]
    return None if any(getattr(x, "dtype", None) == np.object_ for x in known) else tuple(known)


def compare(
    function: Callable[..., Any], theirs: Any, *operands: Any, close: str = "", factor: int = 8
) -> None:
    """Check a function against NumPy's on operands that may be cases.

    `close` has the kinds of results that may differ by `factor` times their precision.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = outcome(theirs, *(x.value if isinstance(x, Case) else x for x in operands))

        def program() -> str | None:
            with np.errstate(all="ignore"):
                built = [x.build() if isinstance(x, Case) else x for x in operands]
                arrays = [x for x in built if isinstance(x, DistArray)]
                outside = any(x.mesh.coordinate is None for x in arrays)
                if expected is None and outside:
                    # What only values can tell it need not hear of.
                    with contextlib.suppress(DistArrayError, TypeError):
                        function(*built)
                    return None
                if expected is None:
                    with pytest.raises((DistArrayError, TypeError)) as caught:
                        function(*built)
                    return str(caught.value)
                try:
                    results = function(*built)
                except DistArrayError:
                    if outside:  # a number, of which only the others know
                        return None
                    raise
                results = results if type(results) in (tuple, list) else (results,)
                for result, wanted in zip(results, expected, strict=True):
                    _equals(result, wanted, close, factor)
            return str([getattr(result, "dtype", result) for result in results])

        said = {one for one in on_ranks(program) if one is not None}
    assert len(said) == 1


def _equals(result: Any, wanted: Any, close: str, factor: int) -> None:
    if not isinstance(result, DistArray):
        assert result == wanted
        return
    if wanted.dtype.kind in "US" and not wanted.ndim:  # NumPy's is cut to its text
        wanted = wanted.astype(result.dtype)
    epsilon = float(np.finfo(wanted.dtype).eps) if wanted.dtype.kind in close else 0.0
    sizes = np.abs(wanted[np.isfinite(wanted)]) if epsilon else np.zeros(0)
    # A sum of terms as large may come to 0, as on GPUs the sine of a multiple of pi.
    cancels = epsilon * float(sizes.max(initial=float(KIND != "cpu")))
    agrees(result, wanted, **({"rtol": factor * epsilon, "atol": cancels} if epsilon else {}))


def dtypes_of(row: Op) -> list[Any]:
    """Return dtypes that the row's NumPy function takes."""
    found = []
    for dtype in NUMBERS:
        block = np.ones(1, dtype)
        try:
            with np.errstate(all="ignore"):
                row.local(*[block] * row.nin)
        except TypeError:
            continue
        found.append(dtype)
    return found


# --- the proof -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(BY_ITEM.keys() - {"isnat"}))
@settings(max_examples=4)
@given(data=st.data())
def test_row_item_by_item(name: str, data: st.DataObject) -> None:
    row = BY_ITEM[name]
    kinds = dtypes_of(row)
    if name == "spacing" and KIND != "cpu":  # NumPy's of -1 in half precision is that of below 1
        kinds = [dtype for dtype in kinds if np.spacing(np.ones(1, dtype)).dtype != np.float16]
    special = data.draw(st.booleans()) and KIND == "cpu"  # others round, or order NaN, otherwise
    ops = ("max", "min") if special else ("sum", "avg", "max") if row.nin == 1 else ("sum", "max")
    if ops[1] == "avg" and np.dtype(np.float64) not in kinds:
        ops = ("sum", "bor")
    if row.nin == 1:
        operands: Any = [data.draw((special_cases if special else cases)(kinds, ops))]
    else:
        operands = list(data.draw((special_pairs if special else pairs)(kinds, ops)))
        if name == "pow":  # NumPy refuses negative powers of integers
            y = operands[1]
            operands[1] = replace(y, values=np.abs(y.values).astype(y.values.dtype))
        kind = data.draw(st.sampled_from(("arrays", "arrays", "plain", "number", "reflected")))
        x, y = operands
        if kind == "plain":
            operands = [x, y.value]
        elif kind in ("number", "reflected"):
            number = y.value.dtype.type(3)
            operands = [x, number] if kind == "number" else [number, y]
    compare(row, row.local, *operands, close="c" if name in EXACT and special else "fc")


@pytest.mark.parametrize("name", sorted(CHOICES))
@settings(max_examples=6)
@given(data=st.data(), i=st.integers(0, 11))
def test_row_that_moves_or_chooses_items(name: str, data: st.DataObject, i: int) -> None:
    numbers_only = {
        "nanargmax",
        "nanargmin",
        "clip",
        "can_cast",
        "result_type",
        "sort_complex",
        "tril",
        "triu",
        "all",
        "any",
    }
    kinds = NUMBERS if name in numbers_only else (*NUMBERS, *TEXT_AND_TIMES)
    kinds = REAL if name == "clip" else kinds
    x = data.draw(special_cases(kinds, ("max",) if kinds is NUMBERS else ()))
    assume(len(x.shape) >= LEAST_AXES.get(name, 0))
    theirs = NUMPYS.get(name) or getattr(np, name)
    use = CHOICES[name]
    compare(lambda x: use(public[name], x, i), lambda x: use(theirs, x, i), x)


@pytest.mark.parametrize("name", sorted(COMPUTED))
@settings(max_examples=6)
@given(data=st.data(), i=st.integers(0, 11))
def test_row_that_computes_with_items(name: str, data: st.DataObject, i: int) -> None:
    x = data.draw(cases(ORDINARY, ("sum", "max")))
    assume(len(x.shape) >= LEAST_AXES.get(name, 0))
    if "prod" in name:  # products of many items overflow, and where depends on their order
        x.values[...] = np.sign(x.values.real.astype(np.float64))
    if name.startswith("nan") and x.values.dtype.kind in "fc":
        x.values[data.draw(arrays(np.bool_, x.values.shape))] = np.nan
    theirs = NUMPYS.get(name) or getattr(np, name)
    use = COMPUTED[name]
    squares = {"corrcoef", "cov", "nanstd", "nanvar", "std", "var"}
    moments = {"angle", "average", "mean", "nanmean", *squares}
    close = "fc" if name in moments else ""
    factor = 64 if name in squares else 8
    run = lambda function: lambda x: use(function, x, i)  # noqa: E731
    compare(run(public[name]), run(theirs), x, close=close, factor=factor)


@pytest.mark.skipif(KIND != "cpu", reason="a GPU has its own byte order alone")
@pytest.mark.parametrize("name", ["ediff1d", "resize"])
@pytest.mark.parametrize("i", range(4))
def test_row_gives_the_byte_order_that_numpy_gives(name: str, i: int) -> None:
    x = Case((2,), (da.Shard(0),), np.arange(8).reshape(1, 8).astype(">i4"))
    use = {**CHOICES, **COMPUTED}[name]
    compare(lambda x: use(public[name], x, i), lambda x: use(getattr(np, name), x, i), x)


@pytest.mark.parametrize("name", SELECTIONS)
@settings(max_examples=8)
@given(data=st.data())
def test_selection(name: str, data: st.DataObject) -> None:
    kinds = NUMBERS if "+=" in name else (*NUMBERS, *TEXT_AND_TIMES)
    x = data.draw(special_cases(kinds, ("max",) if kinds is NUMBERS else ()))
    key = data.draw(keys(x.shape))
    compare(lambda x: SELECTIONS[name](x, key), lambda x: SELECTIONS[name](x, key), x, close="c")


@pytest.mark.parametrize("name", sorted(JOINS))
@settings(max_examples=8)
@given(data=st.data())
def test_join(name: str, data: st.DataObject) -> None:
    kinds = data.draw(st.sampled_from([NUMBERS, *((kind,) for kind in TEXT_AND_TIMES)]))
    ops = ("max",) if kinds is NUMBERS else ()
    x = data.draw(special_cases(kinds, ops))
    y = data.draw(special_cases(kinds, ops, mesh_shape=x.mesh_shape, shape=x.shape))
    assume(x.shape)
    axis = data.draw(st.integers(-len(x.shape), len(x.shape) - 1))
    join = lambda function: lambda x, y: JOINS[name](function, x, y, axis)  # noqa: E731
    compare(join(public[name]), join(getattr(np, name)), x, y)


@pytest.mark.parametrize("name", ["sum", "any", "mean", "nanmean", "std"])
def test_plain_array_is_reduced_beside_a_distributed_mask(name: str) -> None:
    x, where = np.arange(5.0), np.arange(5) % 2 == 0
    mask = Case((3,), (da.Shard(0),), where[None])

    def program() -> None:
        there = mask.build()
        if KIND != "cpu":  # nothing moves between devices unless it is asked for
            with pytest.raises(DeviceError):
                public[name](x, where=there)
            return
        agrees(public[name](x, where=there), getattr(np, name)(x, where=where))

    on_ranks(program)


@pytest.mark.skipif(KIND != "cpu", reason="a GPU has no such items")
@pytest.mark.parametrize("dtype", [[("a", "i4")], "V3"])
def test_items_without_an_order_have_no_largest(dtype: Any) -> None:
    x = da.distribute_array(np.zeros(4, dtype), da.DeviceMesh([0]))
    with pytest.raises(DTypeError, match="takes booleans"):
        da.argmax(x)
