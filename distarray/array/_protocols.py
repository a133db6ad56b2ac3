"""Protocols by which NumPy, DLPack and Python itself meet a distributed array."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, cast

import numpy as np

from distarray.array import _convert
from distarray.comm import _backend
from distarray.core import (
    BaseArray,
    functions,
    instead_of,
    method_of,
    parsing,
    permit,
    reduced_source,
    replicated_layout,
    row_of,
    ufuncs,
    warn_of_gather,
)
from distarray.errors import ArgumentError, ArgumentTypeError, ExportError, MeshError
from distarray.layout import Replicate
from distarray.ops import any as any_of
from distarray.ops import (
    copy,
    creators,
    equal_or_unlike,
    getitem,
    not_equal_or_unlike,
    rows,
    setitem,
)

API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")
"""Revisions of the array API standard that the namespace can stand for."""

_BY_OPERATOR = {np.equal: equal_or_unlike, np.not_equal: not_equal_or_unlike}


class Protocols(BaseArray):
    """`np.asarray(x)`, NumPy's ufuncs and functions, indexing, iteration, copying, pickling."""

    __slots__ = ()
    __array_priority__ = 1000

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the global array on every rank (collective over the mesh).

        `np.asarray(x)` is read-only: writing into it would not change `x`. `np.array(x)` and
        `x.full_array()` are copies to work on. Where the array takes more than a quarter of the
        free memory, a warning says so, once per line of the program.

        Raises
        ------
        ArgumentError
            If `copy=False`: the global array is always a copy.
        ImplicitCommunicationError
            If the `communication` policy refuses to gather.
        MeshError
            Outside the mesh, where the values are not known.
        """
        layout = self._layout
        if copy is False:
            raise ArgumentError(
                "np.asarray(x, copy=False): the global array is gathered and so is always a copy; "
                "use x.to_local() for this process's block"
            )
        if layout.mesh.coordinate is None:
            raise MeshError(
                f"this process is not in {layout.mesh} and has no values of this array; use "
                "x.redistribute(mesh=...) to a mesh that holds it"
            )
        full = _backend.to_host(_gather_for("np.asarray(x)", self))
        if copy is None:  # where NumPy's asarray(x) gives x itself, or converts it
            full.flags.writeable = False
        return full if dtype is None else full.astype(dtype, copy=False)

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        """Return the namespace of functions of this array: `distarray` itself.

        Parameters
        ----------
        api_version : str, optional
            Revision of the array API standard, from "2021.12" to "2025.12", the default.

        Raises
        ------
        ArgumentError
            For any other.
        """
        if api_version is not None and api_version not in API_VERSIONS:
            raise ArgumentError(
                f"x.__array_namespace__(api_version={api_version!r}): there is "
                f"{', '.join(API_VERSIONS)}"
            )
        return sys.modules[__name__.partition(".")[0]]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "__call__":
            row = ufuncs.get(ufunc) or row_of(ufunc)
            # ``array == x`` calls the ufunc, and so may `np.equal(array, x)`: the operator answers.
            if ufunc in _BY_OPERATOR and isinstance(inputs[0], (np.ndarray, np.generic)):
                row = _BY_OPERATOR[ufunc]
            return row(*inputs, **options)
        function = method_of(ufunc, method)
        if function is None:
            raise ArgumentTypeError(
                f"np.{ufunc.__name__}.{method} has no distributed form; apply it to x.to_local(), "
                "or gather first with x.full_array()"
            )
        if method in ("reduce", "accumulate"):
            return _along(function, *inputs, **options)
        if ufunc.nout == 1 and isinstance(options.get("out"), tuple):
            (options["out"],) = options["out"]
        return function(*inputs, **options)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        ours = functions.get(func) or _find_after_import(func)
        if func in creators:  # `self` is what like= says, or an end of a range
            ours, count = creators[func]
            kwargs = {k: v for k, v in kwargs.items() if k not in ("order", "subok")}
            kwargs, args = {"mesh": self._layout.mesh, **kwargs}, args[:count]
        if ours is None:
            path = f"{getattr(func, '__module__', 'numpy')}.{func.__name__}"
            remedy = (
                "call it on x.full_array(), which gathers on every rank, on blocks with "
                "da.map_blocks or x.to_local(), or look for a function of the distarray namespace"
            )
            known = instead_of(path.removeprefix("numpy."))
            if known is not None:
                remedy = f"use {known}"
            raise ArgumentTypeError(
                f"{path} has no distributed form, and distarray does not gather silently; {remedy}"
            )
        if not all(_is_known(t) for t in types):
            return NotImplemented
        if kwargs:
            args, kwargs = _by_position(func, ours, args, kwargs)
        return ours(*args, **kwargs)

    def __dlpack_device__(self) -> tuple[Any, int]:
        """Return the kind and number of the device that `__dlpack__` exports from."""
        kind, number = self._local.__dlpack_device__()
        return kind, number

    def __dlpack__(
        self,
        /,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Export the global array, on every rank (collective over the mesh).

        Where every rank holds all of it, it is exported as it is, else gathered where the blocks
        are. Export `x.to_local()` for this process's block.

        Parameters
        ----------
        stream, max_version, dl_device : optional
            As for arrays of NumPy and CuPy.
        copy : bool, optional
            False: never a copy. True: always. Default: where it must be.

        Raises
        ------
        ExportError
            If a copy is needed and `copy=False`, or the dtype is none of DLPack's.
        MeshError
            Outside the mesh, where the values are not known.
        """
        layout, this = self._layout, cast("Any", self)
        if layout.mesh.coordinate is None:
            raise MeshError(
                f"this process is not in {layout.mesh} and has no values of this array to export"
            )
        options = {"stream": stream, "max_version": max_version, "dl_device": dl_device}
        options = {name: value for name, value in options.items() if value is not None}
        sizes = zip(layout.placements, layout.mesh.shape, strict=True)
        whole_here = all(size == 1 or type(placement) is Replicate for placement, size in sizes)
        if not whole_here and copy is False:
            raise ExportError(
                f"x.__dlpack__(copy=False): the array lies in blocks, {layout}, so that the whole "
                "is a copy; leave copy out, or export this process's block: x.to_local()"
            )
        if whole_here and copy is not True:
            asked = options if copy is None else {**options, "copy": copy}
            try:
                return this.to_local().__dlpack__(**asked)
            except BufferError as error:
                if copy is False:
                    raise ExportError(f"x.__dlpack__(copy=False): {error}") from None
        full = _gather_for("x.__dlpack__()", self)
        try:
            return full.__dlpack__(**options)
        except BufferError as error:
            raise ExportError(f"x.__dlpack__() of {self.dtype}: {error}") from None

    __getitem__ = getitem
    __setitem__ = setitem

    def __len__(self) -> int:
        """Return the length of the first axis."""
        shape = self._layout.shape
        if not shape:
            raise ArgumentTypeError("a 0-d array has no length; its value is x.item() or x[()]")
        return shape[0]

    def __iter__(self) -> Iterator[Any]:
        """Yield `x[0]`, `x[1]`, ...: views, or read-only copies where axis 0 is cut."""
        if not self._layout.shape:
            raise ArgumentTypeError("a 0-d array cannot be iterated over; its value is x.item()")
        return rows(self, range(self._layout.shape[0]))

    def __contains__(self, value: Any) -> bool:
        return bool(any_of(equal_or_unlike(self, value)))

    def __copy__(self) -> Any:
        return copy(self)

    def __deepcopy__(self, memo: Any) -> Any:
        return copy(self)

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(
            "a DistArray cannot be pickled: this process holds one block of it; pickle "
            "x.full_array(), or x.to_local() and x.layout on every process"
        )

    def tolist(self) -> Any:
        """Return the global array as nested lists, on every rank (collective over the mesh).

        Examples
        --------
        >>> import distarray as da
        >>> da.arange(4).reshape(2, 2).tolist()
        [[0, 1], [2, 3]]
        """
        return np.asarray(self).tolist()


def _gather_for(call: str, x: BaseArray) -> Any:
    """Return the global array for a call that does not say so, if the policy lets it."""
    layout, dtype = x._layout, x._local.dtype
    whole = replicated_layout(layout.mesh, layout.shape)
    permit(call, reduced_source(x, x._local, layout, whole)[1], whole, dtype)
    warn_of_gather(call, layout, dtype)
    return _convert.gather(x)


def _by_position(theirs: Any, ours: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return arguments with those by position that ours, unlike NumPy's, takes only so."""
    names, kwargs = leading_names(theirs, ours), dict(kwargs)
    given = [*args]
    while len(given) < len(names) and names[len(given)] in kwargs:
        given.append(kwargs.pop(names[len(given)]))
    return given, kwargs


@functools.cache
def leading_names(theirs: Any, ours: Any) -> tuple[str, ...]:
    """Return NumPy's names of the arguments that our function takes by position only."""
    try:
        with parsing:
            names = [*inspect.signature(theirs).parameters]
    except ValueError:  # NumPy does not tell
        return ()
    taken = inspect.signature(ours).parameters.values()
    return tuple(names[: sum(p.kind is p.POSITIONAL_ONLY for p in taken)])


def _find_after_import(theirs: Any) -> Any:
    """Return our function for one of a module that is imported when it is first needed."""
    home = getattr(theirs, "__module__", "").removeprefix("numpy.")
    if home in ("fft", "linalg"):
        importlib.import_module(f"distarray.{home}")
    return functions.get(theirs)


def _is_known(kind: type) -> bool:
    """Tell whether a function may get arguments of a type."""
    known = issubclass(kind, (BaseArray, np.ndarray, np.generic))
    return known or (kind.__module__ == "cupy" and kind.__name__ == "ndarray")


def _along(
    function: Callable[..., Any],
    x: Any,
    axis: Any = 0,
    dtype: Any = None,
    out: Any = None,
    **options: Any,
) -> Any:
    """Call one of our functions with the arguments and the default axis of a ufunc's method."""
    if isinstance(out, tuple):
        (out,) = out
    if dtype is not None:
        options["dtype"] = dtype
    return function(x, axis=axis, out=out, **options)
