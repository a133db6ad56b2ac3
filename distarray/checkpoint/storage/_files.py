"""File operations of checkpoints, each of them a point at which tests stop a save."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

hook: Callable[[str, str], None] | None = None
"""Called before each operation with its name and path; tests let it raise, or end the process."""

_SECONDS_TO_APPEAR = 10.0
"""How long a directory that another rank made may take to be seen on a network file system."""
_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM)
_AT_FDCWD = -100  # as the others of linux/fcntl.h and linux/fs.h
_RENAME_EXCHANGE = 2
_SYNC_FILE_RANGE_WRITE = 2


def _call_hook(operation: str, path: str) -> None:
    if hook is not None:
        hook(operation, path)


@contextlib.contextmanager
def _name_file(path: str) -> Iterator[None]:
    """Let errors name a file, where the system is told of its descriptor alone."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


def make_directory(path: str) -> None:
    """Make a directory, and those above it where they are missing."""
    _call_hook("make directory", path)
    os.makedirs(path)


def ensure_directory(path: str) -> None:
    """Make a directory that others may be making as well."""
    _call_hook("ensure directory", path)
    os.makedirs(path, exist_ok=True)


def create(path: str) -> int:
    """Return a descriptor of a new file, in a directory that may be slow to appear here."""
    return _open("create", path, os.O_RDWR | os.O_CREAT | os.O_EXCL)


def open_to_write(path: str) -> int:
    """Return a descriptor of a file that another rank has made."""
    return _open("open", path, os.O_WRONLY)


def _open(operation: str, path: str, flags: int) -> int:
    limit = time.monotonic() + _SECONDS_TO_APPEAR
    while True:
        _call_hook(operation, path)
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.05)


def write_at(file: int, data: Any, offset: int, path: str) -> None:
    """Write all bytes of a contiguous buffer at an offset."""
    view = memoryview(data).cast("B")
    while view:
        _call_hook("write", path)
        with _name_file(path):
            done = os.pwrite(file, view, offset)
        view, offset = view[done:], offset + done


def set_size(file: int, size: int, path: str) -> None:
    """Make a file as long as it is going to be."""
    with _name_file(path):
        os.ftruncate(file, size)


def read_at(file: int, target: Any, offset: int) -> int:
    """Fill a contiguous buffer with the bytes at an offset; return how many there were."""
    view = memoryview(target).cast("B")
    total = 0
    while view:
        done = os.preadv(file, [view], offset)
        if not done:
            break
        view, offset, total = view[done:], offset + done, total + done
    return total


def start_writeback(file: int, offset: int, nbytes: int) -> None:
    """Let the system begin to bring bytes of a file to the device, which `sync` waits for.

    Otherwise it begins when `sync` asks, with the device idle until then. What goes wrong is told
    there.
    """
    call = _library_call("sync_file_range")
    if call is not None:
        call(file, offset, nbytes, _SYNC_FILE_RANGE_WRITE)


def sync(file: int, path: str) -> None:
    """Wait until what was written to a file is on the device."""
    _call_hook("sync", path)
    with _name_file(path):
        os.fsync(file)


def sync_directory(path: str) -> None:
    """Wait until the entries of a directory are on the device, where its file system can."""
    _call_hook("sync directory", path)
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _name_file(path):
            os.fsync(file)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(file)


def rename(source: str, target: str) -> None:
    """Give a file or directory another name; a directory of that name must not exist."""
    _call_hook("rename", target)
    os.rename(source, target)


def exchange(first: str, second: str) -> bool:
    """Exchange two names in one step; False where the system or file system cannot."""
    _call_hook("exchange", second)
    call = _renameat2()
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), first, None, second)


def _renameat2() -> Any:
    return _library_call("renameat2")


_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "renameat2": (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    ),
    "sync_file_range": (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint),
}


@functools.cache
def _library_call(name: str) -> Any:
    """Return a function of the C library; None where it has none of that name."""
    try:
        call = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError, TypeError):
        return None
    call.argtypes = _ARGUMENTS[name]
    return call


def remove_file(path: str) -> None:
    """Remove a file, if it is there."""
    _call_hook("remove", path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_tree(path: str) -> None:
    """Remove a directory and what is in it, as far as that is possible."""
    _call_hook("remove", path)
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def new_file(path: str) -> Iterator[int]:
    """Yield a descriptor of a new file; it is on the device when the context ends."""
    file = create(path)
    try:
        yield file
        sync(file, path)
    finally:
        with _name_file(path):
            os.close(file)
