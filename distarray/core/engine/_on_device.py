"""Local calls on GPUs: what CuPy lacks, or does otherwise than NumPy, is made up for here.

NumPy's functions called with CuPy arrays are CuPy's. Their results have the dtypes that NumPy
promises; whatever CuPy chooses is converted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.comm.cuda import _device
from distarray.errors import DeviceError
from distarray.typing import Buffer

LACKING = ("returned NotImplemented", "no implementation found")
"""What NumPy says of a function that CuPy lacks."""


def is_on_device(blocks: Sequence[Any]) -> bool:
    """Tell whether any operand is on a GPU."""
    return any(_backend.is_cupy(block) for block in blocks)


def call_on_device(local: Callable[..., Any], blocks: Sequence[Any], dtypes: Sequence[Any]) -> Any:
    """Return the results of a local call as a tuple, each of the dtype that it should have."""
    on = next(block for block in blocks if _backend.is_cupy(block))
    if any(type(block) is int for block in blocks):
        # NumPy refuses one beyond its dtype, CuPy does only where a block has items.
        local(*(np.empty(0, b.dtype) if _backend.is_cupy(b) else b for b in blocks))
    _backend.use(on)
    function = substitute(local)
    results = _device.with_memory(lambda: function(*blocks), on.device.id)
    results = results if isinstance(results, tuple) else (results,)
    if any(_is_narrower(one.dtype, dtype) for one, dtype in zip(results, dtypes, strict=True)):
        # CuPy has computed in a narrower dtype than NumPy would have.
        wide = np.result_type(*dtypes)
        results = function(*(b.astype(wide) if _backend.is_cupy(b) else b for b in blocks))
        results = results if isinstance(results, tuple) else (results,)
    return tuple(as_dtype(one, dtype) for one, dtype in zip(results, dtypes, strict=True))


def _is_narrower(found: Any, promised: Any) -> bool:
    return promised.kind in "fc" and found.kind in "fc" and not np.can_cast(promised, found)


def as_dtype(result: Buffer, dtype: Any) -> Buffer:
    """Return a block in the dtype that NumPy gives it."""
    return result if result.dtype == dtype else result.astype(dtype)


def lacking_error(name: str) -> DeviceError:
    """Return the error for a function that CuPy lacks."""
    return DeviceError(
        f"{name} has no function in CuPy for these blocks on a GPU; compute it on the host: "
        "x.to_device('cpu')"
    )


def copy_where(target: Buffer, values: Buffer, mask: Any, casting: Any = "same_kind") -> None:
    """Copy values into a block on a GPU where a mask is true."""
    library = _backend.namespace_of(target)
    values = _backend.unaliased(values, target)
    if isinstance(mask, (bool, np.bool_)):
        if mask:
            library.copyto(target, values, casting=casting)
        return
    library.copyto(target, values, casting=casting, where=mask)


def substitute(local: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that does on a GPU what `local` does in host memory."""
    try:
        return _SUBSTITUTES.get(local, local)
    except TypeError:  # not hashable
        return local


def _truths(ufunc: Any) -> Callable[..., Any]:
    """Return a logical function that takes complex numbers, too."""

    def call(*blocks: Any, **options: Any) -> Any:
        return ufunc(*(_truth(block) for block in blocks), **options)

    return call


def _truth(block: Any) -> Any:
    kind = getattr(getattr(block, "dtype", None), "kind", "c" if isinstance(block, complex) else "")
    return block != 0 if kind == "c" else block


def _power(base: Any, exponent: Any, **options: Any) -> Any:
    """Raise to powers, and refuse negative ones of integers, as NumPy does."""
    kinds = [getattr(getattr(x, "dtype", None), "kind", "i") for x in (base, exponent)]
    whole = _backend.is_cupy(exponent) and kinds[1] == "i" and kinds[0] in "biu"
    # A look at the values, for which the host waits: wrong numbers would be worse.
    if whole and exponent.size and getattr(base, "size", 1) and bool((exponent < 0).any()):
        raise ValueError("Integers to negative integer powers are not allowed.")
    return np.power(base, exponent, **options)


def _spacing(block: Any, **options: Any) -> Any:
    """Return the distance to the next number away from zero."""
    block = block.astype(np.spacing(np.empty(0, block.dtype)).dtype, copy=False)
    distance = np.nextafter(block, np.copysign(np.inf, block).astype(block.dtype)) - block
    return np.positive(distance, **options) if options else distance


def _where(condition: Any, x1: Any, x2: Any) -> Any:
    """Choose item by item, also by a single truth value."""
    library = _backend.module("cuda")
    if not _backend.is_cupy(condition):
        condition = library.asarray(np.bool_(condition))
    return np.where(condition, x1, x2)


def _clip(block: Any, low: Any, high: Any, **options: Any) -> Any:
    """Limit items, also of a single number by arrays."""
    if not _backend.is_cupy(block):
        block = _backend.module("cuda").asarray(block)
    return np.clip(block, low, high, **options)


def _nan_to_num(block: Any, nan: Any = 0.0, **options: Any) -> Any:
    """Replace NaN, also by a negative zero."""
    return np.nan_to_num(block, nan=_backend.asarray(nan, _backend.device_of(block)), **options)


_SUBSTITUTES: dict[Any, Callable[..., Any]] = {
    np.logical_and: _truths(np.logical_and),
    np.logical_or: _truths(np.logical_or),
    np.logical_xor: _truths(np.logical_xor),
    np.logical_not: _truths(np.logical_not),
    np.power: _power,
    np.spacing: _spacing,
    np.where: _where,
    np.clip: _clip,
    np.nan_to_num: _nan_to_num,
}
