"""Launches of kernels on CuPy arrays: on the current stream, with tables in device memory.

Everything that differs between a GPU and Numba's simulator is here and in `_numba`.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from itertools import chain
from typing import Any, Final

import numpy as np

from distarray.comm.kernels._jit import load_kernels
from distarray.comm.kernels._loop_nest import address_of
from distarray.typing import Buffer

_NUMBA: Final = "distarray.comm.cuda._numba"

THREADS: Final = 256
"""Threads of a block, a multiple of those of a warp; on an H100 512 are slower, 128 no quicker."""

SIMULATED_THREADS: Final = 3  # few, as each is a thread of Python

_LEAST_BLOCKS: Final = 128  # Numba warns of fewer; those without a tile end at once
_MOST_BLOCKS: Final = (1 << 31) - 1  # CUDA takes no more
_SIMULATED_BLOCKS: Final = 2
_TABLES_KEPT: Final = 512  # any number of this size does
_LARGEST_KEPT: Final = 64 * 1024  # bytes of a table: all that are kept take 32 MiB at most

_DEVICE_MEMORY: Final = 2  # cudaMemoryTypeDevice
_PAGE: Final = 4096  # nothing lies below the second page; NumPy takes address 0 for none

_usable: bool | None = None
_tables: OrderedDict[Hashable, Any] = OrderedDict()
_memories: dict[tuple[int, str], Any] = {}
_streams: dict[tuple[int, int], Any] = {}
_peers: dict[tuple[int, int], bool] = {}
_launched: dict[Any, Any] = {}  # of kernels, devices and types: CuPy's function, None without
_lock = threading.RLock()


def is_usable(array: Buffer) -> bool:
    """Tell whether kernels can work on such an array: it is CuPy's, and Numba reaches the GPU.

    Where Numba's simulator runs the kernels, every array in host memory serves.
    """
    global _usable
    if _usable is None and not array.size:  # has no address to find out by
        return not find_hindrance(array)
    if _usable is None:
        with _lock:
            if _usable is None:
                why = find_hindrance(array)
                if why.startswith("Numba"):
                    _warn(why)
                _usable = not why
    return _usable and (is_simulated() or (not isinstance(array, np.ndarray) and _reachable(array)))


def find_hindrance(array: Buffer) -> str:
    """Return why no kernel works on such an array; empty where they do, as far as it tells."""
    try:
        if load_kernels(_NUMBA) is None:
            return "there is no Numba, or DISTARRAY_KERNELS=numpy"
        if is_simulated():
            return ""
        cuda = load_kernels(_NUMBA).cuda
        if not cuda.is_available():
            told = " ".join(str(cuda.cuda_error() or "it has no compiler").split())
            return f"Numba does not reach the GPU ({told})"
    except Exception as error:  # of another package, at its import
        return f"Numba's part for GPUs does not import ({type(error).__name__}: {error})"
    if not array.size:
        return ""
    runtime = importlib.import_module("cupy").cuda.runtime
    try:
        of_device = runtime.pointerGetAttributes(address_of(array)).type == _DEVICE_MEMORY
    except Exception:
        of_device = False
    return "" if of_device else "the array is not of the GPU that Numba has found"


def _reachable(array: Buffer) -> bool:
    """Tell whether kernels on the current device can address an array, perhaps another device's."""
    runtime = importlib.import_module("cupy").cuda.runtime
    here, there = runtime.getDevice(), array.data.device_id
    if here == there:
        return True
    found = _peers.get((here, there))
    if found is None:
        found = bool(runtime.deviceCanAccessPeer(here, there))
        if found:
            # What it says where it was enabled before is no error.
            with contextlib.suppress(runtime.CUDARuntimeError):
                runtime.deviceEnablePeerAccess(there)
        _peers[here, there] = found
    return found


def is_simulated() -> bool:
    """Tell whether Numba's simulator runs the kernels."""
    return bool(load_kernels(_NUMBA).SIMULATED)


def threads() -> int:
    """Return the number of threads of a block."""
    return SIMULATED_THREADS if is_simulated() else THREADS


# --- what kernels are given ----------------------------------------------------------------------


class _Simulated:
    """An array as a simulated kernel sees it; one of NumPy the simulator would copy."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.dtype, self.size = array.dtype, array.size

    def __getitem__(self, where: Any) -> Any:
        return self._array[where]

    def __setitem__(self, where: Any, value: Any) -> None:
        self._array[where] = value


class _Memory:
    """All memory from an address on, as NumPy and Numba are told of an array."""

    def __init__(self, dtype: np.dtype[Any], start: int) -> None:
        told = {"typestr": dtype.str, "shape": (1 << 48,), "data": (start, False), "version": 3}
        self.__array_interface__ = self.__cuda_array_interface__ = told


def memory(dtype: Any) -> tuple[Any, int]:
    """Return all memory as a kernel sees it, an array of items, and the address of the first."""
    dtype = np.dtype(dtype)
    start = _PAGE if is_simulated() else 0
    key = _stream_pointer()[0], dtype.str
    found = _memories.get(key)
    if found is None:
        whole = _Memory(dtype, start)
        found = _memories[key] = wrap(np.asarray(whole) if is_simulated() else whole)
    return found, start


def wrap(array: Any) -> Any:
    """Return an array as a kernel sees it."""
    if is_simulated():
        return _Simulated(array)
    return load_kernels(_NUMBA).cuda.as_cuda_array(array, sync=False)


def table(key: Hashable, build: Callable[[], tuple[np.ndarray, Any]]) -> tuple[Any, Any]:
    """Return a table as kernels see it and what is known of it, kept for the next call.

    ``key`` is everything that the table says; ``build`` makes it, int64 and in host memory, and
    whatever is to be kept with it.
    """
    stream = _stream_pointer()
    found = _tables.get((stream, key))
    if found is not None:
        return found  # type: ignore[no-any-return]
    host, facts = build()
    made = (wrap(upload(host)), facts)
    if host.nbytes <= _LARGEST_KEPT:
        with _lock:
            _tables[stream, key] = made
            while len(_tables) > _TABLES_KEPT:
                _tables.popitem(last=False)
    return made


def upload(host: np.ndarray) -> Buffer:
    """Return a table's copy in device memory, ordered before what follows on the stream.

    CuPy copies by way of pinned memory and does not wait. The copy is used, and its memory used
    again, on this stream alone.
    """
    if is_simulated():
        return host
    return importlib.import_module("cupy").array(host)


def _stream_pointer() -> tuple[int, int]:
    """Return the number of the current device and the address of its current stream."""
    if is_simulated():
        return 0, 0
    cuda = importlib.import_module("cupy").cuda
    return int(cuda.Device().id), int(cuda.get_current_stream().ptr)


def launch(kernel: Any, tiles: int, *arguments: Any) -> bool:
    """Run a kernel on the current stream, without waiting for it; tell whether it runs.

    ``tiles`` is for how many blocks of threads there is work. A kernel that cannot be compiled here
    ends the use of all of them, with one warning; CuPy serves then.
    """
    global _usable
    if tiles == 0:
        return True
    if is_simulated():
        with _lock:
            kernel[min(tiles, _SIMULATED_BLOCKS), SIMULATED_THREADS](*arguments)
        return True
    blocks = max(_LEAST_BLOCKS, min(tiles, _MOST_BLOCKS))
    types = (getattr(argument, "dtype", type(argument)) for argument in arguments)
    compiled = kernel, _stream_pointer()[0], *types
    function = _launched.get(compiled)
    if function is not None:
        function((blocks,), (THREADS,), tuple(chain.from_iterable(map(_parameters, arguments))))
        return True
    if compiled in _launched:
        kernel[blocks, THREADS, _stream()](*arguments)
        return True
    try:
        with _lock:
            kernel[blocks, THREADS, _stream()](*arguments)
            _launched[compiled] = _function(kernel, arguments)
    except Exception as error:
        _usable = False
        _warn(f"Numba does not compile the kernels for GPUs ({type(error).__name__}: {error})")
        return False
    return True


def _function(kernel: Any, arguments: Iterable[Any]) -> Any:
    """Return CuPy's function of a kernel that has run, which it starts in a fifth of Numba's time.

    Measured on an H100: 11 and 55 microseconds. Numba has no public name for the code of a kernel;
    None where its version has other names.
    """
    try:
        found = kernel.overloads[tuple(map(kernel.typeof_pyval, arguments))]._codelibrary
        code = found.get_cubin()
        module = importlib.import_module("cupy").cuda.function.Module()
        module.load(bytes(getattr(code, "code", code)))
        return module.get_function(found._entry_name)
    except Exception:
        return None


def _parameters(argument: Any) -> tuple[Any, ...]:
    """Return what becomes of an argument: seven of Numba's for an array of one axis."""
    if not hasattr(argument, "dtype") or not argument.shape:
        return (argument,)
    size, itemsize = argument.size, argument.dtype.itemsize
    pointer = argument.__cuda_array_interface__["data"][0]
    return 0, 0, size, itemsize, pointer, size, itemsize


def _warn(why: str) -> None:
    warnings.warn(
        f"{why}: CuPy's own functions serve, which are slower; install numba-cuda[cu12] or [cu13], "
        "as the driver has it, of a version that knows this NumPy",
        RuntimeWarning,
        stacklevel=3,
    )


def _stream() -> Any:
    """Return the current stream as Numba's; 0 is the default one."""
    where = _stream_pointer()
    if where[1] == 0:
        return 0
    found = _streams.get(where)
    if found is None:
        found = _streams[where] = load_kernels(_NUMBA).cuda.external_stream(where[1])
    return found
