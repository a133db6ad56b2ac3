"""NumPy's keyword arguments of ufuncs: what they may be, and local calls that take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import _on_device
from distarray.core._base import BaseArray
from distarray.core._dtypes import checked_dtype, stand_in
from distarray.errors import ArgumentError, ArgumentTypeError

_CASTING = ("no", "equiv", "safe", "same_kind", "unsafe")


def ufunc_options(
    name: str, nout: int, is_ufunc: bool, given: dict[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    """Return (out, where, what else the local call gets).

    Raises
    ------
    ArgumentTypeError
        For keywords that the function lacks, and an `out` that is not distributed.
    ArgumentError
        For a `casting` that there is not.
    """
    options = dict(given)
    out = options.pop("out", None)
    where = options.pop("where", True)
    taken = ("dtype", "casting", "signature")
    extra: dict[str, Any] = {name: options.pop(name) for name in taken if name in options}
    options.pop("subok", None)
    order = options.pop("order", "K")
    if options or order not in ("K", "A", "C"):
        raise ArgumentTypeError(
            f"{name}() got {options or {'order': order}}; it takes out=, where=, dtype=, "
            "casting= and order='K'"
        )
    if "dtype" in extra:
        dtype = extra.pop("dtype")
        if dtype is not None:
            extra["dtype"] = checked_dtype(dtype)
    if extra.get("casting", "no") not in _CASTING:
        raise ArgumentError(f"{name}(casting={extra['casting']!r}): one of {_CASTING}")
    if (where is not True or extra) and not is_ufunc:
        raise ArgumentTypeError(
            f"{name}() takes no where=, dtype= or casting=; use da.where or x.astype"
        )
    if out is not None:
        out = out if isinstance(out, tuple) else (out,)
        out = None if all(one is None for one in out) else out
    if out is not None and (len(out) != nout or not all(isinstance(one, BaseArray) for one in out)):
        raise ArgumentTypeError(
            f"{name}() with a distributed operand takes out= of {nout} DistArray, "
            f"got {[type(one).__name__ for one in out]}; to fill a plain array, gather first: "
            "x.full_array()"
        )
    return out, where, extra


def masked_call(local: Callable[..., Any], extra: dict[str, Any]) -> Callable[..., Any]:
    """Return `local` under a mask, its last operand; without `out` the other items are 0.

    NumPy leaves them as they come, which would make replicas differ.
    """

    def call(*blocks: Any, out: Any = None, **keywords: Any) -> Any:
        inputs, mask = blocks[:-1], blocks[-1]
        found = next((x for x in blocks if _backend.is_cupy(x)), None)
        if out is None:
            shape = np.broadcast_shapes(*(np.shape(block) for block in blocks))
            results = local(*[stand_in(x) for x in inputs], **{**extra, **keywords})
            results = results if isinstance(results, tuple) else (results,)
            library = np if found is None else _backend.namespace_of(found)
            out = tuple(library.zeros(shape, result.dtype) for result in results)
        if found is None:
            return local(*inputs, where=mask, out=out, **{**extra, **keywords})
        casting = keywords.pop("casting", extra.get("casting", "same_kind"))
        targets = out if isinstance(out, tuple) else (out,)
        results = _on_device.substitute(local)(*inputs, **{**extra, **keywords})
        results = results if isinstance(results, tuple) else (results,)
        for target, result in zip(targets, results, strict=True):
            _on_device.copied_where(target, result, mask, casting)
        return targets if len(targets) > 1 else targets[0]

    call.masks = True  # type: ignore[attr-defined]
    return call


def call_with(local: Callable[..., Any], extra: dict[str, Any]) -> Callable[..., Any]:
    """Return `local` with more keyword arguments."""

    def call(*blocks: Any, **keywords: Any) -> Any:
        function = _on_device.substitute(local) if _on_device.is_on_device(blocks) else local
        return function(*blocks, **{**extra, **keywords})

    return call
