"""Memory that this process keeps for reuse: how much it is, how to bound it, and to give it back.

Arrays leave their memory to the next ones, which find it warm. Where something else of the program
needs it, as another library or another process of the node, `trim` returns what is idle.
"""

from __future__ import annotations

from distarray.comm import _memory
from distarray.comm._memory import MemoryStats
from distarray.comm.cuda import _device, _pinned, close_unread
from distarray.errors import ArgumentError

__all__ = ["MemoryStats", "set_limit", "stats", "trim"]


def __dir__() -> list[str]:
    return __all__


def stats(device: str = "cpu") -> MemoryStats:
    """Return what this process holds, and keeps.

    Parameters
    ----------
    device : str
        "cpu": host memory for blocks of 64 KiB and more. "pinned": host memory for values on
        their way from and to GPUs. "cuda" or "cuda:<number>": CuPy's pool on the GPU of this
        rank, or on another.

    Raises
    ------
    ArgumentError
        If ``device`` is none of these.
    DeviceError
        If there is no such GPU.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.zeros(10**6)
    >>> da.memory.stats().in_use >= x.nbytes
    True
    """
    kind = str(device).partition(":")[0]
    if device == "cpu":
        return _memory.stats()
    if device == "pinned":
        pool = _pinned.pool
        return MemoryStats(pool.in_use, pool.idle, None, pool.kept)
    if kind == "cuda" and (device == kind or device.partition(":")[2].isdecimal()):
        used, idle = _device.pool_bytes(device)
        return MemoryStats(used, idle, None, None)
    raise ArgumentError(
        f"stats takes 'cpu', 'pinned', 'cuda' or 'cuda:<number>', not {device!r}; name one of them"
    )


def trim(keep: int = 0) -> None:
    """Give what is idle back to the system, and to CUDA.

    A GPU has the memory that its ranks give back when no other rank reads it any more: call this on
    all of them.

    Parameters
    ----------
    keep : int
        Bytes of host memory that may stay.

    Raises
    ------
    ArgumentError
        If it is no such number.

    Examples
    --------
    >>> import distarray as da
    >>> da.memory.trim()
    >>> da.memory.stats().idle
    0
    """
    _memory.trim(_checked(keep, "trim"))
    _pinned.pool.trim()
    close_unread()
    _device.trim()


def set_limit(nbytes: int) -> None:
    """Set how many bytes of host memory may be kept idle, and give back what is more.

    At first it is ``DISTARRAY_POOL_LIMIT``, or half of the memory that the job may use on the node,
    shared by its ranks.

    Raises
    ------
    ArgumentError
        If it is no number of bytes.

    Examples
    --------
    >>> import distarray as da
    >>> limit = da.memory.stats().limit
    >>> da.memory.set_limit(2**30)
    >>> da.memory.stats().limit
    1073741824
    >>> da.memory.set_limit(limit)
    """
    _memory.set_limit(_checked(nbytes, "set_limit"))


def _checked(nbytes: int, name: str) -> int:
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise ArgumentError(f"{name} takes a number of bytes, not {nbytes!r}; pass 0 or more")
    return nbytes
