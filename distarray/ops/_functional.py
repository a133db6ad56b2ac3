"""Functions of functions: of the lines of an array, of its items, of those that a condition tells.

Users' functions get plain arrays or numbers, on the process that has the items. What one raises on
one process is raised on all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distarray.comm import all_gather_checked
from distarray.core import (
    BaseArray,
    Op,
    as_block,
    check_distributed,
    describe,
    empty_block,
    normalize_arrays,
    normalize_operands,
    plain_buffer,
    pointwise_spec,
    register,
    run,
)
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    MeshError,
    ShapeError,
)
from distarray.layout import normalize_axis, read_axes
from distarray.ops._inspection import result_type
from distarray.ops.creation._filled import check_value
from distarray.ops.elementwise._rounding import astype, where
from distarray.ops.families._lines import make_whole
from distarray.ops.families._relabel import carry_cuts
from distarray.ops.families._values import on_host, read_values
from distarray.ops.indexing._items import getitem
from distarray.ops.manipulation._joining import list_arrays
from distarray.ops.manipulation._shape import expand_dims

# --- lines ---------------------------------------------------------------------------------------


@register
def apply_along_axis(
    func1d: Callable[..., Any], axis: int, x: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """Call a function with every line along an axis, and return what it returns in its place.

    Parameters
    ----------
    func1d : callable
        `func1d(line, *args, **kwargs)` takes a plain array of one axis, and returns numbers or
        arrays of one shape and dtype.
    axis : int
    x : DistArray
    *args, **kwargs
        Passed on.

    Returns
    -------
    DistArray
        With the axes of the results in the place of `axis`.

    Raises
    ------
    AxisError
        If there is no such axis.
    ArgumentError
        If there is no line, or one line alone that is cut and has more than 1 MiB.
    ShapeError, DTypeError
        If results on different processes differ in shape or dtype.
    MeshError
        On a process outside of the mesh, which cannot know what the function returns.

    Notes
    -----
    Distribution: lines that are cut are made whole, by cutting the longest other axis instead: each
    item moves at most once. Then the processes tell each other shape and dtype of their results.
    The function is called on every process that has the line.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.apply_along_axis(sorted, 1, da.asarray([[3, 1, 2], [6, 5, 4]])))
    [[1 2 3]
     [4 5 6]]
    """
    along = normalize_axis(axis, check_distributed("apply_along_axis", x).ndim)
    if not callable(func1d):
        raise ArgumentTypeError(f"apply_along_axis got {describe(func1d)}; pass a function")
    if 0 in (*x.shape[:along], *x.shape[along + 1 :]):
        raise ArgumentError(f"apply_along_axis of shape {x.shape}, in which there is no line")
    mesh: Any = x._layout.mesh
    if mesh.coordinate is None:
        raise MeshError(
            f"apply_along_axis: this process is not in {mesh}, and cannot know the shape of what "
            "the function returns; call it on the processes of the mesh alone"
        )
    x = make_whole("apply_along_axis", x, along)
    layout, lines = x._layout, x._local
    after = lines.ndim - along - 1
    results: list[Any] = []

    def say() -> tuple[Any, ...] | None:
        if 0 in (*lines.shape[:along], *lines.shape[along + 1 :]):
            return None
        results.append(as_block(np.apply_along_axis(func1d, along, lines, *args, **kwargs)))
        shape = results[0].shape
        return shape[along : len(shape) - after], results[0].dtype

    told = [one for one in all_gather_checked(mesh, "apply_along_axis", say) if one is not None]
    shape, dtype = told[0]
    for other, kind in told:
        if other != shape:
            raise ShapeError(
                f"apply_along_axis: the function returned shapes {shape} and {other}; they must be "
                "equal"
            )
        if kind != dtype:  # NumPy takes that of the first line
            raise DTypeError(
                f"apply_along_axis: the function returned items of {dtype} and {kind}; "
                "convert them in the function"
            )
    places = {a: a if a < along else a + len(shape) - 1 for a in range(layout.ndim) if a != along}
    whole = (*layout.shape[:along], *shape, *layout.shape[along + 1 :])
    output = carry_cuts(layout, whole, places)
    if not results:
        return x._new(empty_block(output, dtype), output)
    return x._new(results[0], output)


@register
def apply_over_axes(func: Callable[..., Any], x: Any, axes: Any, /) -> Any:
    """Call a function over several axes, one after another, which keep length 1.

    Parameters
    ----------
    func : callable
        `func(x, axis)` takes a DistArray, and returns one of as many axes or one fewer, as
        reductions do.
    x : DistArray
    axes : int or sequence of int

    Returns
    -------
    DistArray
        Of as many axes as `x`.

    Raises
    ------
    AxisError
        If there is no such axis.
    ShapeError
        If the function returns something else.

    Examples
    --------
    >>> import distarray as da
    >>> da.apply_over_axes(da.sum, da.ones((2, 3, 4)), (0, 2)).shape
    (1, 3, 1)
    """
    ndim = check_distributed("apply_over_axes", x).ndim
    read = read_axes(axes)
    for one in read if isinstance(read, tuple) else (read,):
        axis = normalize_axis(one, ndim)
        result = func(x, axis)
        if getattr(result, "ndim", None) == ndim - 1:
            result = expand_dims(result, axis)
        if getattr(result, "ndim", None) != ndim:
            raise ShapeError(
                f"apply_over_axes: the function returned {describe(result)} of an array of {ndim} "
                "axes; it must have as many or one fewer"
            )
        x = result
    return x


# --- items ---------------------------------------------------------------------------------------


def _call_on_host(function: Callable[..., Any], *blocks: Any) -> Any:
    return on_host(function)(*blocks)


_vectorized = Op(
    "vectorize",
    _call_on_host,
    pointwise_spec,
    dtypes=lambda _, call: (None, call.static),
    check=lambda *_: True,
)


class vectorize:  # noqa: N801 (NumPy's name)
    """A function of items as a function of arrays, which may be distributed.

    Parameters
    ----------
    pyfunc : callable
        Takes and returns numbers, or tuples of numbers.
    otypes : str or list of data types, optional
        Of the results. By default those of the first items, for which the function is called once
        more, on every process.
    doc, excluded, cache, signature : optional
        As in NumPy; with `excluded` or `signature` the arrays must be plain.

    Raises
    ------
    ArgumentError
        When called with arrays without items, if there is no `otypes`.
    ArgumentTypeError
        When called with distributed arrays by name, or with `excluded` or `signature`.

    Notes
    -----
    Distribution: that of functions item by item: what fits together stays where it is. Without
    `otypes` the first items are fetched. Of text all processes tell each other the length. As in
    NumPy it is a loop of Python; `da.map_blocks` calls a function of whole blocks.

    Examples
    --------
    >>> import math
    >>> import distarray as da
    >>> print(da.vectorize(math.gcd)(da.asarray([12, 9]), 6))
    [6 3]
    """

    def __init__(
        self,
        pyfunc: Callable[..., Any],
        otypes: Any = None,
        doc: str | None = None,
        excluded: Any = None,
        cache: bool = False,
        signature: str | None = None,
    ) -> None:
        self._of_plain = np.vectorize(pyfunc, otypes, doc, excluded, cache, signature)
        self._function, self._cache = pyfunc, cache
        self._whole = bool(excluded or signature)
        self.__doc__ = self._of_plain.__doc__
        self.__name__ = getattr(pyfunc, "__name__", "vectorize")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with the items of arrays that broadcast."""
        if not any(isinstance(x, BaseArray) for x in (*args, *kwargs.values())):
            return self._of_plain(*args, **kwargs)
        if kwargs or self._whole:
            raise ArgumentTypeError(
                f"vectorize of {self.__name__} got a DistArray by name, or with excluded= or "
                "signature=; pass arrays by position, and lines to da.apply_along_axis"
            )
        arrays = normalize_arrays("vectorize", args)
        types = self._of_plain.otypes
        if types is None:
            if any(not x.size for x in arrays):
                raise ArgumentError(
                    f"vectorize of {self.__name__} of arrays without items needs otypes="
                )
            results = self._function(*map(_first_item, arrays))
            several = results if isinstance(results, tuple) else (results,)
            types = "".join(np.asarray(one).dtype.char for one in several)
        dtypes = tuple(map(np.dtype, types))
        function = np.vectorize(self._function, otypes=types, cache=self._cache)
        static = dtypes if len(dtypes) > 1 else dtypes[0]
        results = run(_vectorized, arrays, static, function)
        if len(dtypes) > 1:
            return tuple(map(_as_long_on_all, results, dtypes))
        return _as_long_on_all(results, dtypes[0])


def _as_long_on_all(x: Any, asked: np.dtype[Any]) -> Any:
    """Return an array of text that is as long on all processes as the longest of all items."""
    mesh: Any = x._layout.mesh
    if asked.kind not in "US" or asked.itemsize or mesh.coordinate is None:
        return x
    lengths = all_gather_checked(mesh, "vectorize", lambda: x.dtype.itemsize)
    longest = np.dtype(asked.char + str(max(lengths) // np.dtype(asked.char + "1").itemsize))
    return x._new(x._local.astype(longest), x._layout)


def _first_item(x: Any) -> Any:
    """Return the first item of an array, a distributed one's on every process."""
    first = x[(0,) * x.ndim]
    return first if not isinstance(first, BaseArray) else np.asarray(first)[()]


# --- conditions ----------------------------------------------------------------------------------


_pieces = Op("piecewise", _call_on_host, pointwise_spec, check=lambda *_: True)


@register
def piecewise(x: Any, /, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any:
    """Return for each item what the function of the last condition that holds there returns.

    Parameters
    ----------
    x : DistArray
    condlist : sequence of array of bool
        Conditions of the shape of `x`.
    funclist : sequence of callable or number
        One for each condition, and perhaps one more, for where none holds, else 0. Each is called
        on every process with a plain array of those of its items for which the condition holds,
        if there are any, and with the other arguments.
    *args, **kw
        Passed on.

    Returns
    -------
    DistArray
        With the dtype and the layout of `x`.

    Raises
    ------
    ArgumentError
        If there are fewer functions than conditions, or more than one more.
    ShapeError
        If a condition has another shape.

    Notes
    -----
    Distribution: that of functions item by item: conditions come to where `x` is. Unlike in NumPy,
    a function sees the items of one block at a time.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.arange(-2, 3)
    >>> print(da.piecewise(x, [x < 0, x > 0], [-1, lambda items: 10 * items]))
    [-1 -1  0 10 20]
    """
    check_distributed("piecewise", x)
    conditions = _read_conditions(x, condlist)
    try:
        functions = list(funclist)
    except TypeError:
        raise ArgumentTypeError(f"piecewise got {describe(funclist)}; pass functions") from None
    if len(functions) not in (len(conditions), len(conditions) + 1):
        raise ArgumentError(
            f"piecewise got {len(functions)} functions for {len(conditions)} conditions; pass as "
            "many, or one more"
        )
    for i, value in enumerate(functions):
        if isinstance(value, BaseArray) and not value.ndim:
            functions[i] = value = read_values("piecewise", value)[()]
        if not callable(value):
            check_value("piecewise", value, x.dtype)
    for condition in conditions:
        if condition.shape != x.shape:
            raise ShapeError(
                f"piecewise of shape {x.shape} got a condition of shape {condition.shape}; "
                "broadcast it"
            )

    def local(block: Any, *conditions: Any) -> Any:
        return np.piecewise(block, [*conditions], functions, *args, **kw)

    return run(_pieces, [x, *conditions], None, local)


def _read_conditions(x: Any, condlist: Any) -> list[Any]:
    """Return the conditions of `piecewise` as arrays of bool; one may stand by itself."""
    try:
        if isinstance(condlist, BaseArray):
            several = condlist.ndim == x.ndim + 1
            given = (
                [getitem(condlist, i) for i in range(condlist.shape[0])] if several else [condlist]
            )
        elif np.isscalar(condlist) or (
            x.ndim and not isinstance(condlist[0], (list, np.ndarray, BaseArray))
        ):
            given = [condlist]
        else:
            given = [*condlist]
        return [
            astype(one, np.bool_, copy=False)
            if isinstance(one, BaseArray)
            else np.asarray(plain_buffer(one, "piecewise"), np.bool_)
            for one in given
        ]
    except (TypeError, ValueError, LookupError) as error:
        raise ArgumentTypeError(
            f"piecewise got {describe(condlist)}: {error}; pass arrays of booleans"
        ) from None


@register
def select(condlist: Sequence[Any], choicelist: Sequence[Any], /, default: Any = 0) -> Any:
    """Return for each item that of the choice of the first condition that holds there.

    Parameters
    ----------
    condlist : sequence of array of bool
    choicelist : sequence of array or number
        One for each condition. All broadcast together.
    default : array or number
        Where no condition holds.

    Returns
    -------
    DistArray
        Of the broadcast shape, and the dtype to which the choices and the default promote.

    Raises
    ------
    ArgumentError
        If there is no condition, or another number of choices.
    ArgumentTypeError
        If a condition is not of booleans, or nothing is distributed.

    Notes
    -----
    Distribution: that of `where`, once for each condition, from the last one on.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.arange(6)
    >>> print(da.select([x < 2, x > 3], [x, x * x], default=-1))
    [ 0  1 -1 -1 16 25]
    """
    conditions = normalize_operands("select", list_arrays("select", condlist))
    choices = normalize_operands("select", [*list_arrays("select", choicelist), default])
    if not conditions or len(conditions) != len(choices) - 1:
        raise ArgumentError(
            f"select got {len(conditions)} conditions and {len(choices) - 1} choices; pass one or "
            "more, and as many"
        )
    for condition in conditions:
        if getattr(condition, "dtype", None) != np.bool_:
            raise ArgumentTypeError(
                f"select got {describe(condition)}; conditions are arrays of booleans"
            )
    operands = [*conditions, *choices]
    check_distributed(
        "select", next((x for x in operands if isinstance(x, BaseArray)), conditions[0])
    )
    dtype = result_type(*choices)
    result = choices.pop()
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        if any(isinstance(x, BaseArray) for x in (condition, choice, result)):
            result = where(condition, choice, result)
        else:
            result = np.where(condition, choice, result)
    return astype(result, dtype, copy=False)
