"""What CUDA's driver tells and CuPy does not: which allocation an address lies in."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

from distarray.errors import DeviceError

_BUFFER_ID = 7  # CU_POINTER_ATTRIBUTE_BUFFER_ID


class Allocation(NamedTuple):
    """A stretch of device memory that was allocated at once.

    Attributes
    ----------
    base, nbytes
        Its first address and its length.
    identity
        A number that the process gives to no other allocation.
    """

    base: int
    nbytes: int
    identity: int


def allocation_of(pointer: int) -> Allocation:
    """Return the allocation in which an address of device memory lies.

    Raises
    ------
    DeviceError
        The driver knows none.
    """
    library = driver()
    base, nbytes, identity = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint64()
    address = ctypes.c_uint64(pointer)
    _check(library.cuMemGetAddressRange_v2(_at(base), _at(nbytes), address), pointer)
    _check(library.cuPointerGetAttribute(_at(identity), _BUFFER_ID, address), pointer)
    return Allocation(base.value, nbytes.value, identity.value)


@functools.cache
def driver() -> Any:
    """Return the driver's library."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(
            f"there is no CUDA driver here ({error}); use device='cpu', or a machine with a GPU"
        ) from error


def _at(value: Any) -> Any:
    return ctypes.byref(value)


def _check(status: int, pointer: int) -> None:
    if status:
        raise DeviceError(
            f"the CUDA driver does not know address {pointer:#x} (error {status}); pass memory of "
            "the GPU that this process is bound to"
        )
