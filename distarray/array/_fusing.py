"""Functions whose expressions are computed in one pass over their arrays: `fuse`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from distarray.array._array import DistArray
from distarray.comm import _backend
from distarray.core import (
    BaseArray,
    Deferred,
    Trace,
    compute,
    describe,
    errors_raise,
    new_array,
)
from distarray.errors import ArgumentTypeError

Function = TypeVar("Function", bound=Callable[..., Any])


class _Argument(Deferred, DistArray):
    """An array inside a fused function."""

    __slots__ = ()


def fuse(func: Function) -> Function:
    """Return a function that computes item by item in one pass over its arrays.

    Parameters
    ----------
    func : callable
        A function of distributed arrays, and of anything else. Each call calls it. It may take and
        return tuples, lists and dictionaries of arrays.

    Returns
    -------
    callable
        Of the same arguments and results. Values item by item, dtypes, layouts, errors and what is
        sent are those of `func`; sums of floating-point numbers are rounded in another order.

    Raises
    ------
    ArgumentTypeError
        If `func` cannot be called.

    Notes
    -----
    What works item by item (operators, ufuncs, `where`, `clip`, `astype`, ...) waits until its
    values are needed. Then whole expressions are computed on pieces of blocks that stay in the
    cache of a core, 1 MiB of all arrays together, and written once; all results of `func` whose
    blocks have one shape are found in one pass. `sum`, `prod`, `min`, `max`, `any`, `all`, `mean`
    and `count_nonzero` of an expression read its arrays once and write nothing: an expression that
    is used before and after one is computed twice.

    Everything else (`std`, products, changes of shape, `if`, another `numpy.errstate` than that of
    the call) is computed as always, and before it what it needs. So is all of `func` on GPUs, and
    where floating-point errors are to raise.

    Arguments are read-only inside: ``x = x - m``, not ``x -= m``. NumPy arrays that are blocks of
    distributed ones (`to_local`) must not be written into during the call.

    Examples
    --------
    >>> import distarray as da
    >>> @da.fuse
    ... def distance(x, y):
    ...     return da.sqrt(((x - y) ** 2).sum())
    >>> print(distance(da.arange(4.0), da.ones(4)))
    2.449489742783178
    """
    if not callable(func):
        raise ArgumentTypeError(f"fuse takes a function of arrays, not {describe(func)}")

    @functools.wraps(func)
    def fused(*args: Any, **options: Any) -> Any:
        inside: list[Any] = []
        entered = _map(lambda x: _enter(x, inside), (args, options))
        if not inside or errors_raise():
            return func(*args, **options)
        with Trace():
            found = func(*entered[0], **entered[1])
            results: list[Any] = []
            _map(results.append, found)
            compute([x._node for x in results if isinstance(x, Deferred)])
            return _map(_unwrap, found)

    return fused  # type: ignore[return-value]


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Return a value with `function` of the arrays in it."""
    if isinstance(value, BaseArray):
        return function(value)
    if type(value) in (tuple, list):
        return type(value)(_map(function, one) for one in value)
    if type(value) is dict:
        return {key: _map(function, one) for key, one in value.items()}
    return value


def _enter(x: Any, inside: list[Any]) -> Any:
    """Return what stands for an argument inside, and note it."""
    if isinstance(x, Deferred) or not _backend.is_numpy(x._local):
        return x
    inside.append(object.__new__(_Argument).enter(x))
    return inside[-1]


def _unwrap(x: Any) -> Any:
    """Return the array that a result is outside."""
    if not isinstance(x, Deferred):
        return x
    if x._whole is not None:
        return x._whole
    result = new_array(x._local, x._layout)
    for name in BaseArray.__slots__:
        if name not in ("__weakref__", "_local", "_layout") and hasattr(x, name):
            setattr(result, name, getattr(x, name))
    return result
