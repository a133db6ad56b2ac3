"""Inspection of the namespace as the array API standard has it, and of floating-point dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from distarray.comm import default_device
from distarray.comm.cuda import _device
from distarray.core import BaseArray
from distarray.errors import DeviceError, DTypeError


class NamespaceInfo:
    """Capabilities, devices and dtypes of the namespace; nothing here is communicated."""

    def capabilities(self) -> dict[str, Any]:
        """Return what arrays can: boolean masks, and shapes that depend on values."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Return the device of the default mesh."""
        return default_device()

    def devices(self) -> tuple[str, ...]:
        """Return the devices that arrays can be on: "cpu", and "cuda" where there is a GPU."""
        try:
            return ("cpu", "cuda") if _device.count() else ("cpu",)
        except DeviceError:
            return ("cpu",)

    def default_dtypes(self, *, device: str | None = None) -> dict[str, np.dtype[Any]]:
        """Return the dtypes of results where none is asked for, on any device."""
        del device
        return {
            "real floating": np.dtype(np.float64),
            "complex floating": np.dtype(np.complex128),
            "integral": np.dtype(np.int_),
            "indexing": np.dtype(np.intp),
        }

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> Any:
        """Return the standard's dtypes by name, all or those of kinds as `isdtype` knows them.

        Examples
        --------
        >>> import distarray as da
        >>> da.__array_namespace_info__().dtypes(kind="bool")
        {'bool': dtype('bool')}
        """
        del device
        given: Any = kind
        return np.__array_namespace_info__().dtypes(kind=given)

    def __repr__(self) -> str:
        return "<information on the namespace distarray>"


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807 (the standard's name)
    """Return what the namespace says of itself: its capabilities, devices and dtypes.

    Examples
    --------
    >>> import distarray as da
    >>> da.__array_namespace_info__().default_dtypes()["real floating"]
    dtype('float64')
    """
    return NamespaceInfo()


class finfo:  # noqa: N801 (NumPy's name)
    """Limits of a floating-point dtype; those of the standard are Python floats, as it says.

    Parameters
    ----------
    type : dtype or array
        Real or complex; of complex dtypes the limits are those of their parts.

    Attributes
    ----------
    bits : int
    dtype : dtype
        Of the parts.
    eps, max, min, smallest_normal : float
        Of more precision than Python's floats they are NumPy's. NumPy's other names are there, too.

    Raises
    ------
    DTypeError
        If it is no floating-point dtype.

    Examples
    --------
    >>> import distarray as da
    >>> da.finfo(da.float32).max
    3.4028234663852886e+38
    """

    __slots__ = ("_numpys",)

    def __init__(self, type: Any, /) -> None:
        try:
            kind = np.dtype(type.dtype if isinstance(type, (BaseArray, np.ndarray)) else type)
            self._numpys = np.finfo(kind)
        except (TypeError, ValueError) as error:
            raise DTypeError(f"finfo: {error}; pass a floating-point dtype") from None

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._numpys, name)
        is_number = isinstance(value, np.floating) and not isinstance(value, np.longdouble)
        return float(value) if is_number else value

    def __repr__(self) -> str:
        return repr(self._numpys)
