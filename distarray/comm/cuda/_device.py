"""Devices: which GPU this process, or this thread of it, uses, and its memory.

"cuda" stands for the GPU that a rank is bound to: by its number among the ranks of its node, modulo
how many GPUs it sees; several ranks may share one. "cuda:<number>" fixes it. Nothing is imported
until a GPU is asked for.

The current device is a matter of threads in CUDA: one that allocates a block makes the device of
that block its current one.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import numpy as np

from distarray.comm._launcher import launched_local_rank
from distarray.comm.cuda._streams import note_use
from distarray.errors import DeviceError, DTypeError, OutOfMemoryError
from distarray.typing import Buffer, Shape

T = TypeVar("T")

_bound: ContextVar[int | None] = ContextVar("distarray_gpu", default=None)
"""The GPU of a simulated rank; its background work inherits it."""
_bound_process: int | None = None


class Keeper(NamedTuple):
    """Another library that keeps memory of GPUs.

    ``reserved`` tells how many bytes of a GPU it has; ``give_back`` returns to CUDA what it does
    not use.
    """

    name: str
    reserved: Callable[[int], int]
    give_back: Callable[[], Any]


keepers: list[Keeper] = []
_is_warning_off = False


def cupy(device: str = "cuda") -> Any:
    """Return CuPy; a DeviceError where it does not import."""
    global _is_warning_off
    try:
        found = importlib.import_module("cupy")
    except Exception as error:  # one made for another NumPy raises ValueError, or anything
        raise DeviceError(f"device {device!r} needs CuPy: {missing_cupy(error)}") from error
    if not _is_warning_off:
        _is_warning_off = True
        # Ranks of a node read each other's blocks: that one is on another GPU is no news.
        warnings.filterwarnings("ignore", message="The device where the array resides")
    return found


def missing_cupy(error: Exception) -> str:
    """Say why CuPy does not import, and what to do; what it says itself may be a page long."""
    if getattr(error, "name", "") == "cupy":
        why = "CuPy is not installed"
    else:
        told = [line.strip() for line in str(error.__cause__ or error).splitlines()]
        last = next((line for line in reversed(told) if line.strip("=")), type(error).__name__)
        why = f"CuPy does not import here ({last})"
    return f"{why}; install distarray-mpi[cuda12] or [cuda13], as the driver has it"


def count(device: str = "cuda") -> int:
    """Return how many GPUs this process sees; a DeviceError where it sees none."""
    runtime = cupy(device).cuda.runtime
    try:
        found = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        raise DeviceError(
            f"device {device!r} cannot be used here: CUDA says {error}; look at nvidia-smi (is the "
            "driver as new as CuPy's CUDA?) and at CUDA_VISIBLE_DEVICES"
        ) from error
    if found == 0:
        raise DeviceError(
            f"device {device!r} cannot be used here: CUDA sees no GPU; look at "
            "CUDA_VISIBLE_DEVICES and at what the job asked for"
        )
    return found


def bind(device: str, local_rank: int | None, *, simulated: bool = False) -> int:
    """Make the GPU current that "cuda" or "cuda:<number>" names, and return its number.

    "cuda" binds this rank, which is ``local_rank`` of its node, None where nobody tells. A
    DeviceError says that there is no such GPU, or no telling which one of several is this rank's.
    """
    global _bound_process
    have = count(device)
    told = device.partition(":")[2]
    if told:
        number = _check_number(int(told), have)
        use(number)
        return number
    if have == 1:
        number = 0
    elif local_rank is None:
        raise DeviceError(
            f"this process sees {have} GPUs, and the launcher does not say which rank of its node "
            "it is; set DISTARRAY_LOCAL_RANK to 0, 1, ... on the ranks of a node, or name "
            "device='cuda:<n>'"
        )
    else:
        number = local_rank % have
    if simulated:
        _bound.set(number)
    else:
        _bound_process = number
    use(number)
    return number


def _check_number(number: int, have: int) -> int:
    if number >= have:
        shown = "only GPU 0" if have == 1 else f"GPUs 0 to {have - 1}"
        raise DeviceError(
            f"device 'cuda:{number}' is not there: this process sees {shown}; device='cuda' is "
            "the one of this rank"
        )
    return number


def number_of(device: str) -> int:
    """Return the number of the GPU that a device names for this rank."""
    told = device.partition(":")[2]
    if told:
        return int(told)
    bound = _bound.get()
    if bound is None:
        bound = _bound_process
    return bind(device, launched_local_rank()) if bound is None else bound


class _Thread(threading.local):
    """Whether CUDA knows of a thread: a new one has a device, number 0, and no context on it."""

    has_context = False


_thread = _Thread()
_in_use: set[int] = set()


def use(number: int) -> None:
    """Make a GPU the current one of this thread."""
    note_use()
    _in_use.add(number)
    runtime = cupy().cuda.runtime
    if not _thread.has_context or runtime.getDevice() != number:
        runtime.setDevice(number)
        _thread.has_context = True


def empty(shape: Shape, dtype: Any, device: str) -> Buffer:
    """Return an uninitialised C-contiguous block, of which the GPU becomes the current one."""
    library = cupy(device)
    number = number_of(device)
    use(number)
    check_dtype(dtype)
    return with_memory(lambda: library.empty(shape, dtype), number)


def with_memory(work: Callable[[], T], number: int) -> T:
    """Return what ``work`` returns, called again where the GPU's memory did not suffice at first.

    In between other libraries give back what they do not use. An OutOfMemoryError says how much was
    asked for, and who holds the rest.
    """
    lack = cupy().cuda.memory.OutOfMemoryError
    try:
        return work()
    except lack:
        for keeper in keepers:
            keeper.give_back()
    try:
        return work()
    except lack as error:
        raise OutOfMemoryError(
            f"GPU {number}: {error} {describe_memory(number)}. Use more ranks or drop arrays first"
        ) from error


def pool_bytes(device: str) -> tuple[int, int]:
    """Return how many bytes of a GPU arrays hold, and CuPy keeps idle."""
    with cupy().cuda.Device(_check_number(number_of(device), count(device))):
        pool = cupy().get_default_memory_pool()
        return pool.used_bytes(), pool.free_bytes()


def trim() -> None:
    """Give back to CUDA what CuPy keeps idle on the GPUs that this process has used."""
    for number in sorted(_in_use):
        with cupy().cuda.Device(number):
            cupy().get_default_memory_pool().free_all_blocks()
    if _in_use:
        cupy().get_default_pinned_memory_pool().free_all_blocks()


def describe_memory(number: int) -> str:
    """Say who holds the memory of a GPU."""
    library = cupy()
    with library.cuda.Device(number):
        free, total = library.cuda.runtime.memGetInfo()
        pool = library.get_default_memory_pool()
        used, idle, limit = pool.used_bytes(), pool.free_bytes(), pool.get_limit()
    others = "".join(f", {keeper.name} has {keeper.reserved(number)}" for keeper in keepers)
    bound = f", {limit} at most (raise it by set_limit of CuPy's pool)" if limit else ""
    return (
        f"Of its {total} bytes {free} are free; arrays of this process hold {used}, and CuPy keeps "
        f"{idle} for the next{bound}{others}; the rest belongs to other processes and to CUDA"
    )


def bits(array: Buffer) -> Buffer:
    """Return the items of structures as unsigned integers, which CuPy knows how to copy."""
    if array.dtype.kind == "V" and array.dtype.itemsize in (1, 2, 4, 8):
        return array.view(f"u{array.dtype.itemsize}")
    return array


def check_dtype(dtype: Any) -> None:
    """Raise DTypeError for items that CuPy cannot have."""
    kind = np.dtype(dtype)
    plain = kind.kind in "biufcV" and kind.char not in "gG" and kind.isnative
    if not plain or kind.hasobject:
        raise DTypeError(
            f"dtype {kind} cannot lie on a GPU, which has booleans and numbers as NumPy's, but for "
            "long double and other byte orders; convert with astype, or use device='cpu'"
        )
